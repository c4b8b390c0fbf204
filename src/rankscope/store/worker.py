"""A process that reads files: `python -m rankscope.store.worker`, tasks on stdin, reports on stdout.

Processes of their own keep memory apart, let a crash or the out-of-memory killer take one file and not the run, and
use every core. A task is a line of JSON; reports are lines {"read", "doing"}, then {"done"} or {"error"}.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError
from rankscope.store.segment import build_segment


@dataclass(frozen=True)
class Task:
    """What one worker is asked to do."""

    path: str
    folder: str
    """New and empty; the worker fills it."""
    threads: int
    memory_bytes: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _do(task: Task) -> None:
    try:
        manifest = build_segment(
            Path(task.path),
            Path(task.folder),
            task.threads,
            task.memory_bytes,
            lambda read, doing: _report(read=read, doing=doing),
        )
    except RankscopeError as error:
        _report(error=[error.message, error.why, error.hint])
    except OSError as error:
        why = f"{error.strerror} ({error.filename or task.path})."
        _report(error=[f"cannot read {task.path}", why, "Check the disk and the path."])
    else:
        _report(done=manifest)


if __name__ == "__main__":
    for line in sys.stdin:
        _do(Task(**json.loads(line)))
