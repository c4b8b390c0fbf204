"""A command of rankscope in a forked child: a new interpreter would take most of the time of a trial."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from rankscope import cli


@dataclass(frozen=True)
class Ended:
    """How a child ended, and what it wrote."""

    status: int
    """As subprocess gives it: negative for a signal."""
    stdout: str
    stderr: str

    def unclear(self) -> str:
        """What is wrong with the way it failed: every failure has three parts. '' if nothing is."""
        message = self.stderr[self.stderr.rfind("rankscope: ") :].splitlines()
        if self.status not in (1, 2):
            return f"ended with {self.status}: {self.stderr[-500:]}"
        if "Traceback" in self.stderr or len(message) < 3:
            return f"no message in three parts: {self.stderr[-500:]}"
        return ""


class Child:
    """A forked process that runs one command."""

    def __init__(self, argv: list[str], folder: Path, before: Callable[[], None] = lambda: None) -> None:
        """`folder` takes its output; `before` is called in the child."""
        self._outputs = [folder / f"{name}-{os.urandom(4).hex()}" for name in ("stdout", "stderr")]
        for path in self._outputs:
            path.touch()  # the child may be killed before it does
        self.pid = os.fork()
        if not self.pid:
            _run(argv, self._outputs, before)

    def wait(self) -> Ended:
        _, status = os.waitpid(self.pid, 0)
        stdout, stderr = (path.read_text(errors="replace") for path in self._outputs)
        for path in self._outputs:
            path.unlink()
        return Ended(os.waitstatus_to_exitcode(status), stdout, stderr)

    def workers(self) -> list[int]:
        """The pids of its children and of theirs: workers are forked from one process."""
        return [pid for child in _children(self.pid) for pid in (child, *_children(child))]


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _run(argv: list[str], outputs: list[Path], before: Callable[[], None]) -> None:
    status = 70
    try:
        for number, path in enumerate(outputs, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        before()
        status = cli.main(argv)
    except KeyboardInterrupt:  # outside the command, which an interpreter would be ended by
        status = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - what an interpreter would print
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def load_commands(*names: str) -> list[ModuleType]:
    """Import what the commands need once, before children are forked; DuckDB starts its threads in the children."""
    import importlib

    needed = [
        "duckdb",
        "numpy",
        "rankscope.timeline.segment",
        "rankscope.timeline.run",
        "rankscope.analysis.questions",
    ]
    return [importlib.import_module(name) for name in (*needed, *(f"rankscope.cli.{name}" for name in names))]
