"""What follows the end of a job: a summary, reports, tables. The job's status is fixed, and nothing here changes it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from rankscope.capture.signal_relay import FORWARDED, STOPPING
from rankscope.errors import RankscopeError

# A folder on a file system that does not answer is not waited for.
_ANSWER_S = 10.0
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


class _Interrupted(BaseException):
    """A signal arrived after the end of the job."""


@contextlib.contextmanager
def after_job(message: Callable[[str], None]) -> Iterator[None]:
    """Whatever happens inside, the caller goes on: a failure is one message, and so is a signal, which ends it."""
    try:
        _receive_signals()
        yield
    except _Interrupted as interrupted:
        message(f"interrupted by {interrupted} after the job's end: the rest is left out")
    except RankscopeError as error:
        message(f"{error}")
    except BaseException as error:  # noqa: BLE001  (SystemExit too: the status is the job's)
        message(f"after the job's end: {type(error).__name__}: {error}")
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)


def _receive_signals() -> None:
    """The signals are blocked since the job was started; those that would end this process end what is done here."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise _Interrupted(signal.Signals(number).name)

    for number in FORWARDED - STOPPING - {signal.SIGCONT, signal.SIGWINCH}:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, interrupt if number in _ENDING else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED | {signal.SIGCHLD})


def within_seconds(action: Callable[[], None], seconds: float = _ANSWER_S) -> bool:
    """Do it, but not for longer than this; returns whether it came to its end. What it raises is raised here."""
    failures: list[Exception] = []

    def act() -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  (raised again by the caller's thread)
            failures.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    return not thread.is_alive()
