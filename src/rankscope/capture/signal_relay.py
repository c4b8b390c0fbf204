"""Signals that reach the process in front of a job: which of them the job has to be given.

The job is in the same process group, as it would be without us: the terminal's Ctrl-C and Ctrl-Z, `kill -- -PGID` and
schedulers reach it directly, and it must not get them twice. A signal for this process alone (`timeout`, `kill PID`)
must be passed on. The kernel does not tell the two apart, so a witness does: a process of the group that receives what
the whole group receives, and nothing else.

A job that makes a group of its own (`timeout`, os.setpgid) would not leave ours if it were alone: it would lead it. So
it is given the group's signals, and the terminal.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from rankscope.capture.forked_child import fork_child

# The witness answers this one, if this process sends it. Its number is above the others, so those that came before are
# seen before.
_QUESTION = signal.SIGRTMAX
# Every signal that can be caught; the end and the stops of the job are our own.
FORWARDED = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
# They stop a job that does not handle them.
STOPPING = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
# The kernel signals a group's processes one after another.
_DELIVERY_S = 0.005
_ANSWER_S = 1.0
# How often the witness looks whether the process in front still runs.
_CHECK_S = 1.0


class Before(NamedTuple):
    """What `fork_with_witness` has changed, and the job must have."""

    mask: set[int | signal.Signals]
    sigchld: Any

    def restore(self) -> None:
        signal.signal(signal.SIGCHLD, self.sigchld)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)


def fork_with_witness(work: Callable[[Before], object]) -> tuple[int, Witness, Before]:
    """Call ``work`` in a forked child, beside a witness of its group's signals; from now on these are received with
    sigwaitinfo. OSError where no process can be had (ulimit -u): then everything is as before.
    """
    # Where the caller ignores SIGCHLD, the kernel would keep no status of the job.
    sigchld = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = Before(signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD}), sigchld)
    try:
        witness = Witness()
        try:
            return fork_child(lambda: work(before)), witness, before
        except OSError:
            witness.end()
            raise
    except OSError:
        before.restore()
        raise


def sent_by_us(info: signal.struct_siginfo) -> bool:
    """SIGPIPE and SIGXFSZ of our own writes, which Python ignores."""
    return info.si_pid == os.getpid()


class Witness:
    """A process in this process's group; the signals must be blocked when it is made. OSError where none can be."""

    def __init__(self) -> None:
        front = os.getpid()
        self._answers, answers = os.pipe()
        self._group_signals: Counter[int] = Counter()
        try:
            self._pid = fork_child(lambda: _witness(front, answers))
        except OSError:
            os.close(self._answers)
            raise
        finally:
            os.close(answers)

    def pass_on(self, number: int, receiver: int, *, placed_by_us: bool = False) -> None:
        """Give the job a signal of this process, unless it has got the group's.

        ``placed_by_us``: if it is in another group, that was not its own doing.
        """
        to_all = self._saw(number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(receiver)
            if not to_all or (placed_by_us and group != os.getpgrp()):
                os.kill(receiver, number)
            elif has_own_group(receiver):
                os.killpg(group, number)

    def _saw(self, number: int) -> bool:
        """Whether a signal that this process has received was sent to the whole group."""
        time.sleep(_DELIVERY_S)
        with contextlib.suppress(OSError):
            os.kill(self._pid, _QUESTION)
            if select.select([self._answers], [], [], _ANSWER_S)[0]:
                self._group_signals.update(os.read(self._answers, 4096))
        count = self._group_signals.pop(number, 0)
        if number >= signal.SIGRTMIN and count > 1:  # each of them arrives; others are one while they wait
            self._group_signals[number] = count - 1
        return count > 0

    def end(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._answers)


def _witness(front: int, answers: int) -> None:
    """Note the signals that arrive; answer with their numbers. It holds nothing of the job's open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.closerange(3, answers)
    os.closerange(answers + 1, os.sysconf("SC_OPEN_MAX"))
    seen: list[int] = []
    while os.getppid() == front:
        info = signal.sigtimedwait(FORWARDED, _CHECK_S)
        if info is None:
            continue
        if info.si_signo != _QUESTION or info.si_pid != front:
            seen.append(info.si_signo)
            continue
        os.write(answers, bytes([*seen[-1000:], 0]))
        seen.clear()


def has_own_group(job: int) -> bool:
    """Whether the job has left our group for one of its own, which alone it would have led from the start."""
    with contextlib.suppress(ProcessLookupError):
        leads_ours = os.getpgrp() == os.getpid()
        return leads_ours and os.getpgid(job) == job and os.getsid(job) == os.getsid(0)
    return False


def _is_stopped(pid: int, in_group: int | None = None) -> bool:
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123  (pathlib would double what a rank imports)
            state, _, group = file.read().rpartition(")")[2].split()[:3]
        return state == "T" and in_group in (None, int(group))
    return False


class Terminal:
    """The terminal of a job in front of which we are: the job reads it, and Ctrl-Z and fg stop and continue both."""

    # How soon a job that has made its own group may read the terminal. Nothing announces that group.
    _FOLLOW_S = 0.2

    def __init__(self, job: int) -> None:
        self._job = job
        self._descriptor: int | None = None
        self._given = False
        self._stop_requested = 0
        if os.getpgrp() == os.getpid():
            with contextlib.suppress(OSError):
                self._descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)

    @property
    def wait_s(self) -> float | None:
        """How long to wait for a signal before `follow` must be called."""
        return None if self._descriptor is None or self._given else self._FOLLOW_S

    def follow(self) -> None:
        """Give a job that has its own group the terminal, and wake it if it has tried to read before."""
        if self._descriptor is None or not has_own_group(self._job):
            return
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) == os.getpgrp():
                os.tcsetpgrp(self._descriptor, self._job)
                self._given = True
                time.sleep(_DELIVERY_S)
                self._wake(unless_ctrl_z=True)

    def request_stop(self, number: int) -> None:
        """This process has received a signal that stops: it stops with the job, if that does or has."""
        self._stop_requested = number
        self.stop_with_job()

    def stop_with_job(self) -> None:
        """Nothing tells us that a job has stopped which is not our child."""
        if (self._stop_requested or self._given) and _is_stopped(self._job):
            self.job_stopped(self._stop_requested or signal.SIGTSTP)

    def job_stopped(self, number: int) -> None:
        """Stop as the job has (Ctrl-Z), so that the shell knows; when that continues us, continue the job."""
        if not (self._stop_requested or self._given) or number not in STOPPING:
            return
        self._stop_requested = 0
        given = self._given
        self.take_back()
        signal.sigtimedwait({number}, 0)  # one that waits would stop us a second time
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)  # here it stands until SIGCONT
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        if given:
            self.follow()
            self._wake()

    def _wake(self, *, unless_ctrl_z: bool = False) -> None:
        """Continue the job's group where it is stopped; a job that handles SIGCONT gets it for no other reason."""
        names = os.listdir("/proc")  # noqa: PTH208
        if any(_is_stopped(int(name), self._job) for name in names if name.isdecimal()):
            state = None
            with contextlib.suppress(ChildProcessError):  # not ours
                state = os.waitid(os.P_PID, self._job, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            with contextlib.suppress(OSError):
                if not (unless_ctrl_z and state and state.si_status == signal.SIGTSTP):
                    os.killpg(self._job, signal.SIGCONT)

    def take_back(self) -> None:
        if self._descriptor is not None and self._given:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._descriptor, os.getpgrp())
        self._given = False

    def close(self) -> None:
        self.take_back()
        if self._descriptor is not None:
            os.close(self._descriptor)
