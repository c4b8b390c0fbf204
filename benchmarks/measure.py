"""Run a command and measure it: seconds, CPU seconds, and the most memory its process tree held."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


def measure(command: Sequence[object]) -> Cost:
    """Run to the end; a command that fails ends the benchmark with what it said."""
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = _watch(process.pid)
    assert process.stderr is not None
    complaint = process.stderr.read().decode()
    process.wait()
    seconds = time.perf_counter() - started
    after = os.times()
    process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{complaint}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(seconds, cpu, peak[0])


def _watch(pid: int) -> list[int]:
    """Sample the tree's resident memory from a thread until the process is gone."""
    peak = [0]

    def sample() -> None:
        while (size := _tree_bytes(pid)) > 0:
            peak[0] = max(peak[0], size)
            time.sleep(0.02)

    threading.Thread(target=sample, daemon=True).start()
    return peak


def _tree_bytes(pid: int) -> int:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_tree_bytes(int(child)) for child in children)
