"""Run a command transparently: its exit code, its signals and its terminal stay its own."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rankscope.capture.wrapper import find_program

if TYPE_CHECKING:
    from rankscope.capture.signal_relay import Before

_TOO_LONG = (
    "the command line and the environment are too long to be captured: the job runs without being captured"
)
_NO_PROCESS = "cannot start a process ({}): the job runs in this one, and there is no summary at its end"
# What bash reads of a file to tell a script from a program.
_HEAD_BYTES = 80


def replace_process(
    command: Sequence[str],
    env: Mapping[str, str],
    ignored: signal.Signals | None = None,
    plain: Sequence[str] | None = None,
) -> None:
    """Become the command: never returns, except as an OSError. ``plain`` is the job's own, if ours does not fit."""
    _restore_signals(ignored)
    _exec(command, env, plain)


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    requested: signal.Signals | None = None,
    on_request: Callable[[], None] = lambda: None,
    plain: Sequence[str] | None = None,
) -> int:
    """Run the command to its end and return its status: an exit code, or minus the signal that killed it.

    ``requested`` is not forwarded: ``on_request`` is called for it, and the command starts with it ignored. The signals
    of `signal_relay` stay blocked in this process: nothing may end it before it has returned the status (`after_job`).
    """
    # Late: a rank that is not selected only becomes its command.
    from rankscope.capture.signal_relay import FORWARDED, STOPPING, Terminal, fork_with_witness, sent_by_us

    try:
        child, witness, _ = fork_with_witness(lambda before: become(command, env, before, requested, plain))
    except OSError as error:
        say(_NO_PROCESS.format(error.strerror))
        replace_process(command, env, requested, plain)
        raise
    terminal = Terminal(child)
    watched = FORWARDED | {signal.SIGCHLD}
    while True:
        wait_s = terminal.wait_s
        info = signal.sigwaitinfo(watched) if wait_s is None else signal.sigtimedwait(watched, wait_s)
        if info is None:
            terminal.follow()
        elif info.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                terminal.job_stopped(os.WSTOPSIG(status))
            elif pid:
                witness.end()
                terminal.close()
                return os.waitstatus_to_exitcode(status)
        elif info.si_signo == requested:
            on_request()
        elif not sent_by_us(info):
            witness.pass_on(info.si_signo, child)
            if info.si_signo in STOPPING:
                terminal.request_stop(info.si_signo)


def end_like(status: int) -> int:
    """The exit code to return; if a signal killed the command, the same signal ends this process."""
    if status >= 0:
        return status
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # No second core file: the command has written one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The handler of SIGKILL cannot be set.
    with contextlib.suppress(OSError):
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
    os.kill(os.getpid(), -status)
    return 128 - status


def become(
    command: Sequence[str],
    env: Mapping[str, str],
    before: Before,
    ignored: signal.Signals | None,
    plain: Sequence[str] | None = None,
) -> None:
    """In a forked child: become the command, with the signal handlers and mask that it would have had."""
    try:
        _restore_signals(ignored)
        before.restore()
        _exec(command, env, plain)
    except OSError as error:
        say(f"cannot start {command[0]}: {error.strerror}")
    finally:
        os._exit(126)


def _exec(command: Sequence[str], env: Mapping[str, str], plain: Sequence[str] | None) -> None:
    try:
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        if error.errno == errno.ENOEXEC and (script := through_shell(command)) is not None:
            os.execve(script[0], script, dict(env))
        if error.errno != errno.E2BIG or plain is None:
            raise
        say(_TOO_LONG)
        _exec(plain, os.environ, None)


def through_shell(command: Sequence[str]) -> list[str] | None:
    """The command that runs a script without #!, as a shell does; None where it is no such script."""
    path = find_program(command[0]) or command[0]
    with contextlib.suppress(OSError):
        with open(path, "rb") as file:  # noqa: PTH123  (as in wrapper.py: pathlib would double the imports)
            head = file.read(_HEAD_BYTES)
        if not head.startswith(b"#!") and b"\0" not in head.partition(b"\n")[0]:
            return ["/bin/sh", path, *command[1:]]
    return None


def say(text: str) -> None:
    """One line on stderr, for the moment between two programs; never on anything else."""
    with contextlib.suppress(OSError, AttributeError):
        sys.stderr.write(f"rankscope: {text}\n")
        sys.stderr.flush()


def _restore_signals(ignored: signal.Signals | None) -> None:
    """Restore the signals that Python ignores: they would stay ignored in the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    ):  # else one that comes before exec would be lost
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)
