"""Acting when a function returns, and on the main thread."""

import sys
import threading
import time

from rankscope.inapp.main_thread import Timer, when_returning


def test_the_action_comes_after_the_function_and_before_the_next_line() -> None:
    order: list[str] = []

    def hook() -> None:
        order.append("hook")
        when_returning(sys._getframe(1), lambda: order.append("action"))

    def step() -> None:
        try:
            hook()
        finally:
            order.append("end of step")

    before = sys.gettrace()
    step()
    order.append("next")
    if before is None:
        assert order == ["hook", "end of step", "action", "next"]
    else:  # under coverage or a debugger it comes at once
        assert order == ["hook", "action", "end of step", "next"]
    assert sys.gettrace() is before


def test_a_timer_acts_on_the_main_thread() -> None:
    seen: list[str] = []
    Timer(0.02, lambda: seen.append(threading.current_thread().name))
    deadline = time.monotonic() + 5
    while not seen and time.monotonic() < deadline:
        time.sleep(0.005)
    assert seen == [threading.main_thread().name]


def test_a_cancelled_timer_does_nothing() -> None:
    seen: list[int] = []
    Timer(0.02, lambda: seen.append(1)).cancel()
    time.sleep(0.06)
    assert not seen
