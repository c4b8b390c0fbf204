"""The process that reads one file: `python -m rankscope.store.worker`, a task on stdin, reports on stdout.

A process of its own per file keeps memory apart, lets a crash or the out-of-memory killer take one rank and
not the run, and uses every core. Reports are JSON lines: {"read", "doing"}, then {"done"} or {"error"}.
"""

from __future__ import annotations

import json
import os
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


def main() -> int:
    task = Task(**json.loads(sys.stdin.read()))
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
        return 1
    except OSError as error:
        where = error.filename or task.path
        _report(
            error=[f"cannot read {task.path}", f"{error.strerror} ({where}).", "Check the disk and the path."]
        )
        return 1
    _report(done=manifest)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # DuckDB's binding prints a list of "leaked" objects at a normal exit when a Python file system was used.
    os._exit(code)
