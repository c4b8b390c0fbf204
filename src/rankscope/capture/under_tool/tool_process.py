"""Run an application under a profiler that is its parent, and keep the application's own ways.

nsys puts itself between the launcher and the application: it pipes the application's output, dies by signals
that were meant for the application (SIGUSR1: and leaves it an orphan), and may end before it. So the
application is started through a few lines (start.py) that say its process id and give it the job's own stdout
and stderr; signals go to it alone; and where the profiler ends early, the application's own status is waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rankscope.capture.child_process import FORWARDED, SI_KERNEL, become

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Programs of nsys that may outlive it; the application's own children are left alone.
_AGENTS = ("nsys", "nsys-launcher", "nsys-tee", "QdstrmImporter", "ncu")
_AGENT_GRACE_S = 3.0
_POLL_S = 0.05
# SIGCHLD says when a child ends; that an adopted process was waited for by another is seen only by looking.
_LOOK_S = 1.0


class Ended(NamedTuple):
    """How it ended: an exit code, or minus the signal, as for a command without a profiler."""

    status: int
    started: bool
    """Whether the application ever ran."""
    tool_status: int
    """How the profiler ended."""


class Supervised(NamedTuple):
    """An application's command, wrapped so that it says who it is."""

    application: list[str]
    pid_file: Path
    out: int | None
    err: int | None


def wrap_application(
    command: Sequence[str], env: Mapping[str, str], folder: Path, *, own_streams: bool
) -> Supervised:
    """The command as the profiler shall start it, with ``env`` for its environment.

    ``own_streams`` where the profiler would pipe its output.
    """
    pid_file, variables = folder / "application.pid", folder / "application.env"
    variables.write_bytes(_changes(env))
    out, err = (os.dup(1), os.dup(2)) if own_streams else (None, None)
    streams = ["-", "-"] if out is None else [str(out), str(err)]
    start = str(Path(__file__).with_name("app_start.py"))
    head = [sys.executable, "-I", "-S", start, str(pid_file), *streams, str(os.getpid()), str(variables)]
    return Supervised([*head, *command], pid_file, out, err)


def _changes(env: Mapping[str, str]) -> bytes:
    """What makes the job's environment of ours; TMPDIR always, because the profiler has its own."""
    changed = {
        name: value for name, value in env.items() if os.environ.get(name) != value or name == "TMPDIR"
    }
    entries = [os.fsencode(f"{name}={value}") for name, value in changed.items()]
    unset = [os.fsencode(name) for name in ("TMPDIR", *os.environ) if name not in env]
    return b"".join(entry + b"\0" for entry in [*entries, *unset])


def run_under_tool(
    command: Sequence[str],
    env: Mapping[str, str],
    supervised: Supervised,
    log: Path,
    ignored: signal.Signals | None = None,
) -> Ended:
    """Run the profiler's command to its end, and the application to its own.

    The profiler's words go to ``log``; signals that are sent to us go to the application, which starts with
    ``ignored`` ignored: it asks for a window, and may come before anybody answers it.
    """
    _adopt_orphans()
    watched = FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        tool = os.fork()
        if tool == 0:
            _die_with_us()
            _redirect(supervised, log)
            become(command, env, before, ignored)
        statuses = _Statuses(tool, supervised)
        tool_status = statuses.wait_for(tool, watched)
        assert tool_status is not None  # a child of ours: its end is always seen
        application = statuses.application
        own_status = None
        if application is not None and statuses.alive(application):
            _end_agents("nsys-launcher")  # the application's parent: without it, it is ours
            own_status = statuses.wait_for(application, watched)
        _end_agents()
        status = tool_status if own_status is None else own_status
        return Ended(status, application is not None, tool_status)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Statuses:
    """Every child's end, our adopted ones included, and where signals go meanwhile."""

    def __init__(self, tool: int, supervised: Supervised) -> None:
        self.seen: dict[int, int] = {}
        self._tool = tool
        self._pid_file = supervised.pid_file

    @property
    def application(self) -> int | None:
        """The application's process, once it has said so."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._pid_file.read_text())
        return None

    def alive(self, pid: int) -> bool:
        return pid not in self.seen and Path(f"/proc/{pid}").exists()

    def wait_for(self, pid: int, watched: set[signal.Signals]) -> int | None:
        """A process's status; None when somebody else waited for it first."""
        while pid not in self.seen:
            info = signal.sigtimedwait(watched, _LOOK_S)
            if info is None or info.si_signo == signal.SIGCHLD:
                self._reap()
                if not self.alive(pid):
                    break
            elif info.si_code != SI_KERNEL:
                # A signal of the terminal's reached the profiler too, which hands it on itself.
                receiver = self._receiver()
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    if receiver is not None:
                        os.kill(receiver, info.si_signo)
        return self.seen.get(pid)

    def _receiver(self) -> int | None:
        """The application; before it runs, the profiler; after it, nobody: a report is being finished."""
        application = self.application
        if application is None:
            return self._tool
        return application if self.alive(application) else None

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.seen[pid] = os.waitstatus_to_exitcode(status)


def _adopt_orphans() -> None:
    """Processes below us that lose their parent become our children: so they can be waited for, or ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _die_with_us() -> None:
    """In the profiler's process: a launcher that kills us kills one process, and means the rank.

    SIGTERM, because nsys hands it on to the application and ends its agents; by SIGKILL it would leave both.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


def _end_agents(*names: str) -> None:
    """End what the profiler left running; no process of the application's is touched."""
    wanted = names or _AGENTS
    deadline = time.monotonic() + (0 if names else _AGENT_GRACE_S)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        agents = [pid for pid, name in _children() if name in wanted]
        if not agents:
            return
        for pid in agents if number else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number or 0)
        while agents and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            agents = [pid for pid, name in _children() if name in wanted]
        deadline = time.monotonic() + 1


def _children() -> list[tuple[int, str]]:
    """Our living children and their names."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (path / "stat").read_text()
            state, parent = text.rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                found.append((int(path.name), text[text.index("(") + 1 : text.rindex(")")]))
    return found


def _redirect(supervised: Supervised, log: Path) -> None:
    """In the profiler's process: its own words to the log, the job's streams where the application finds them."""
    if supervised.out is None or supervised.err is None:
        return
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for number in (supervised.out, supervised.err):
        os.set_inheritable(number, True)
