"""Signals that reach the process in front of a job: which of them the job has to be given.

The job is in the same process group, as it would be without us: the terminal's Ctrl-C and Ctrl-Z, `kill -- -PGID` and
schedulers reach it directly, and it must not get them twice. A signal for this process alone (`timeout`, `kill PID`)
must be passed on. The kernel does not tell the two apart, so a witness does: a process of the group that receives what
the whole group receives, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any, NamedTuple

# Signals that people and schedulers send to a job.
FORWARDED = frozenset(
    {
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGCONT,
    }
)
# The witness answers this one. Its number is above the others, so those that came before are seen before.
_QUESTION = signal.SIGRTMIN
# The kernel signals a group's processes one after another.
_DELIVERY_S = 0.005
_ANSWER_S = 1.0
# How often the witness looks whether the process in front still runs.
_CHECK_S = 1.0


class Before(NamedTuple):
    """What `block_signals` has changed, and the job must have."""

    mask: set[int | signal.Signals]
    sigchld: Any

    def restore(self) -> None:
        signal.signal(signal.SIGCHLD, self.sigchld)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def block_signals() -> Before:
    """Receive these signals with sigwaitinfo from now on."""
    # Where the caller ignores SIGCHLD, the kernel would keep no status of the job.
    sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return Before(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD, _QUESTION}), sigchld)


class Witness:
    """A process in this process's group; the signals must be blocked when it is made."""

    def __init__(self) -> None:
        front = os.getpid()
        self._answers, answers = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _witness(front, answers)
        os.close(answers)

    def saw(self, number: int) -> bool:
        """Whether a signal that this process has received was sent to the whole group."""
        time.sleep(_DELIVERY_S)
        with contextlib.suppress(OSError):
            os.kill(self._pid, _QUESTION)
            if select.select([self._answers], [], [], _ANSWER_S)[0]:
                return number in os.read(self._answers, 256)
        return False

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._answers)


def _witness(front: int, answers: int) -> None:
    """Note the signals that arrive; answer with their numbers. It holds nothing of the job's open."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        os.closerange(3, answers)
        os.closerange(answers + 1, os.sysconf("SC_OPEN_MAX"))
        seen: set[int] = set()
        while os.getppid() == front:
            info = signal.sigtimedwait(FORWARDED | {_QUESTION}, _CHECK_S)
            if info is None:
                continue
            if info.si_signo != _QUESTION:
                seen.add(info.si_signo)
                continue
            os.write(answers, bytes([*seen, 0]))
            seen.clear()
    finally:
        os._exit(0)
