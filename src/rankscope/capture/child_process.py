"""Run a command transparently: its exit code, its signals and its terminal stay its own."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

# Signals that people and schedulers send to a job; they are forwarded to the command.
FORWARDED = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
}
# si_code of a signal that the kernel (the terminal) sent to the whole process group: the command has received it.
SI_KERNEL = 0x80


def replace_process(
    command: Sequence[str], env: Mapping[str, str], ignored: signal.Signals | None = None
) -> None:
    """Become the command: never returns, except as an OSError."""
    _restore_signals(ignored)
    os.execvpe(command[0], list(command), dict(env))


def run_command(
    command: Sequence[str],
    env: Mapping[str, str],
    kept: signal.Signals | None = None,
    on_kept: Callable[[], None] = lambda: None,
) -> int:
    """Run the command to its end and return its status: an exit code, or minus the signal that killed it.

    ``kept`` is not forwarded: ``on_kept`` is called for it, and the command starts with it ignored.
    """
    watched = FORWARDED | {signal.SIGCHLD} | ({kept} if kept else set())
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        become(command, env, before, kept)
    try:
        while True:
            info = signal.sigwaitinfo(watched)
            if info.si_signo == signal.SIGCHLD:
                pid, status = os.waitpid(child, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
            elif info.si_signo == kept:
                on_kept()
            elif info.si_code != SI_KERNEL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_like(status: int) -> int:
    """The exit code to return; if a signal killed the command, the same signal ends this process."""
    if status >= 0:
        return status
    sys.stdout.flush()
    # No second core file: the command has written one.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # The handler of SIGKILL cannot be set.
    with contextlib.suppress(OSError):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


def become(
    command: Sequence[str],
    env: Mapping[str, str],
    mask: set[int | signal.Signals],
    ignored: signal.Signals | None,
) -> None:
    """In a forked child: become the command, with the signal handlers and mask that it would have had."""
    try:
        _restore_signals(ignored)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), dict(env))
    except OSError as error:
        sys.stderr.write(f"rankscope: cannot start {command[0]}: {error.strerror}\n")
    finally:
        os._exit(126)


def _restore_signals(ignored: signal.Signals | None) -> None:
    """Restore the signals that Python ignores: they would stay ignored in the command."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)
