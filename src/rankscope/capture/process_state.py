"""Other processes of this machine, from /proc: their parents, and whether they still run."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcessState(NamedTuple):
    state: str
    parent: int
    started: int
    """Clock ticks since boot; with the process id it names one process for ever."""


def process_state(pid: int) -> ProcessState | None:
    """None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return ProcessState(fields[0], int(fields[1]), int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None


def still_runs(pid: int, started: int) -> bool:
    """Whether the process of this id that began then has not ended."""
    process = process_state(pid)
    return process is not None and process.started == started and process.state not in ("Z", "X")
