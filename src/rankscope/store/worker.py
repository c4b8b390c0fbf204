"""A process that reads files: `python -m rankscope.store.worker`, tasks on stdin, reports on stdout.

Processes of their own keep memory apart, let a crash or the out-of-memory killer take one file and not the run, and
use every core. A task is a line of JSON; reports are lines {"read", "doing"}, then {"done"} or {"error"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError, ReadError
from rankscope.store.segment import Progress, build_segment
from rankscope.store.worker_protocol import Outcome, Task


def perform(task: Task, progress: Progress) -> Outcome:
    """Read one file."""
    try:
        return build_segment(
            Path(task.path), Path(task.folder), task.threads, task.memory_bytes, progress, task.part
        )
    except RankscopeError as error:
        return error
    except OSError as error:
        why = f"{error.strerror} ({error.filename or task.path})."
        return ReadError(f"cannot read {task.path}", why, "Check the disk and the path.")


def _report(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


def _do(task: Task) -> None:
    outcome = perform(task, lambda read, doing: _report(read=read, doing=doing))
    if isinstance(outcome, RankscopeError):
        _report(error=[outcome.message, outcome.why, outcome.hint])
    else:
        _report(done=outcome)


if __name__ == "__main__":
    for line in sys.stdin:
        _do(Task(**json.loads(line)))
