"""Run an application as the child of a profiler, with the application's own streams, signals and exit status.

nsys stands between the launcher and the application: it pipes the application's output, is killed by signals that are
meant for the application (SIGUSR1, which leaves the application an orphan), and may end before it. So the profiler is
in a process group of its own; the application is started through app_start.py, which writes its process id, goes back
to the job's group, and restores the job's stdout and stderr; signals are forwarded to the application only; and if the
profiler ends early, this process waits for the application.
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

from rankscope.capture.child_process import become, through_shell
from rankscope.capture.signal_relay import (
    FORWARDED,
    STOPPING,
    Before,
    Terminal,
    Witness,
    fork_with_witness,
    sent_by_us,
)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Programs of nsys and ncu that may outlive them; they are ended, the application's own children are not.
_AGENTS = ("nsys", "nsys-launcher", "nsys-tee", "QdstrmImporter", "ncu")
_AGENT_GRACE_S = 3.0
_POLL_S = 0.05
# How often to check for the end of an adopted process that another process has waited for: that sends no SIGCHLD.
_CHECK_S = 1.0


class Ended(NamedTuple):
    """How the application ended."""

    status: int
    """An exit code, or minus the signal."""
    started: bool
    """Whether the application ever ran."""
    tool_status: int
    """How the profiler ended."""


class Supervised(NamedTuple):
    """An application's command, wrapped so that it writes its process id."""

    application: list[str]
    pid_file: Path
    out: int | None
    err: int | None


def wrap_application(
    command: Sequence[str], env: Mapping[str, str], folder: Path, *, own_streams: bool, shown: bool = True
) -> Supervised:
    """The command that the profiler is to start; the application gets ``env`` as its environment.

    ``own_streams`` restores the job's stdout and stderr, where the profiler would pipe them; without ``shown`` its
    output stays with the profiler.
    """
    pid_file, variables = folder / "application.pid", folder / "application.env"
    while pid_file.exists():  # of an attempt that failed; an application of it may only be starting
        pid_file = pid_file.with_name(f"again-{pid_file.name}")
    # The differences between its environment and ours; TMPDIR always, because the profiler has its own.
    changed = [name for name in env if os.environ.get(name) != env[name] or name == "TMPDIR"]
    unset = [name for name in ("TMPDIR", *os.environ) if name not in env]
    entries = [*(f"{name}={env[name]}" for name in changed), *unset]
    variables.write_bytes(b"".join(os.fsencode(entry) + b"\0" for entry in entries))
    out, err = (os.dup(1), os.dup(2)) if own_streams else (None, None)
    streams = [str(out), str(err)] if out is not None and shown else ["-", "-"]
    start = str(Path(__file__).with_name("app_start.py"))
    ours = [str(os.getpid()), str(os.getpgrp())]
    head = [sys.executable, "-I", "-S", start, str(pid_file), *streams, *ours, str(variables)]
    return Supervised([*head, *(through_shell(command) or command)], pid_file, out, err)


def run_under_tool(
    command: Sequence[str],
    env: Mapping[str, str],
    supervised: Supervised,
    log: Path,
    ignored: signal.Signals | None = None,
) -> Ended:
    """Run the profiler and the application until both have ended.

    The profiler's output goes to ``log``; signals are forwarded to the application, which starts with ``ignored``
    ignored: that signal asks for a recording, and may arrive before a handler for it is installed.
    """
    # Become the parent of descendants that lose theirs, so that they can be waited for or ended.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def become_tool(before: Before) -> None:
        os.setpgid(0, 0)
        # A launcher kills only this one process: then the profiler gets SIGTERM, which nsys forwards to the application
        # and its agents; SIGKILL would leave both running.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _redirect(supervised, log)
        become(command, env, before, ignored)

    try:
        tool, witness, before = fork_with_witness(become_tool)
    except OSError as error:
        log.write_text(f"no process can be started: {error.strerror}\n")
        return Ended(0, started=False, tool_status=0)
    statuses = _Statuses(tool, supervised, witness)
    tool_status = statuses.wait_for(tool)
    assert tool_status is not None  # our own child: its status is never lost
    application = statuses.application
    if application is None:
        try:
            supervised.pid_file.touch(exist_ok=False)  # an application that is only starting ends at this
        except FileExistsError:  # it starts at this moment
            time.sleep(_POLL_S)
            application = statuses.application
    own_status = None
    if application is not None and statuses.alive(application):
        _end_agents("nsys-launcher")  # the application's parent; without it, we adopt the application
        own_status = statuses.wait_for(application)
    statuses.close()
    _end_agents()
    if application is None:  # the job is still to be started, without the profiler
        before.restore()
    status = tool_status if own_status is None else own_status
    return Ended(status, application is not None, tool_status)


class _Statuses:
    """The exit statuses of all children, adopted ones included; forwards signals while it waits."""

    def __init__(self, tool: int, supervised: Supervised, witness: Witness) -> None:
        self.seen: dict[int, int] = {}
        self._witness = witness
        self._tool = tool
        self._terminal: Terminal | None = None
        self._pid_file = supervised.pid_file

    @property
    def application(self) -> int | None:
        """The application's process id, once it is written."""
        with contextlib.suppress(OSError, ValueError):
            return int(self._pid_file.read_text())
        return None

    def alive(self, pid: int) -> bool:
        return pid not in self.seen and Path(f"/proc/{pid}").exists()

    def wait_for(self, pid: int) -> int | None:
        """A process's status; None when another process waited for it first."""
        while pid not in self.seen:
            info = signal.sigtimedwait(FORWARDED | {signal.SIGCHLD}, _CHECK_S)
            if info is None or info.si_signo == signal.SIGCHLD:
                self._reap()
                if not self.alive(pid):
                    break
            elif not sent_by_us(info):
                # To the application; before it runs, to the profiler, which must not stop alone; after it, to none: the
                # report is being written.
                receiver, terminal = self.application or self._tool, self._terminal
                stops = info.si_signo in STOPPING
                if self.alive(receiver) and not (stops and terminal is None):
                    self._witness.pass_on(info.si_signo, receiver, placed_by_us=True)
                    if stops and terminal is not None:
                        time.sleep(_POLL_S)
                        terminal.request_stop(info.si_signo)
            application = self.application
            if self._terminal is None and application is not None:
                self._terminal = Terminal(application)
            if self._terminal is not None:
                self._terminal.follow()
                self._terminal.stop_with_job()
        return self.seen.get(pid)

    def close(self) -> None:
        self._witness.end()
        if self._terminal is not None:
            self._terminal.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self.seen[pid] = os.waitstatus_to_exitcode(status)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _end_agents(*names: str) -> None:
    """End processes that the profiler left running; those of the application are not touched."""
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
    children = []
    for path in Path("/proc").iterdir():
        if not path.name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            text = (path / "stat").read_text()
            state, parent = text.rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                children.append((int(path.name), text[text.index("(") + 1 : text.rindex(")")]))
    return children


def _redirect(supervised: Supervised, log: Path) -> None:
    """In the profiler's process: send its output to the log, and keep the job's streams open for the application."""
    if supervised.out is None or supervised.err is None:
        return
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for number in (supervised.out, supervised.err):
        os.set_inheritable(number, True)
