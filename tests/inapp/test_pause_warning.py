"""The warning that the end of a window may exceed the process group's timeout: figures, and no false alarms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankscope.inapp.pause_warning import PauseWarning


class Job:
    """A job with a clock of its own."""

    def __init__(self, timeout_s: float | None = 600, with_stack: bool = False) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.pause = PauseWarning(
            self.said.append, with_stack=with_stack, timeout_s=lambda: timeout_s, clock=lambda: self.now
        )

    def window(self, steps: int, step_s: float, pause_s: float = 1) -> None:
        self.pause.started()
        for _ in range(steps):
            self.pause.step()
            self.now += step_s
        self.pause.check()
        self.pause.ended(int(pause_s * 1e9))


@pytest.mark.parametrize(
    ("steps", "step_s", "with_stack", "warns"),
    [(3, 0.3, True, False), (20, 2, False, False), (120, 1, False, True), (60, 1, True, True)],
)
def test_the_first_window_is_judged_by_its_length(
    steps: int, step_s: float, with_stack: bool, warns: bool
) -> None:
    job = Job(with_stack=with_stack)
    job.window(steps, step_s)
    assert len(job.said) == warns
    if warns:
        ratio = 6 if with_stack else 3
        assert f"for up to 300 s ({50 if with_stack else 100}" in job.said[0]
        assert f"torch needs up to {ratio} times that" in job.said[0]
        assert "the process group's timeout is 600 s" in job.said[0]
        assert ("without stacks" in job.said[0]) == with_stack


def test_a_later_window_is_judged_by_the_one_before() -> None:
    job = Job()
    job.window(10, 1, pause_s=5)
    job.window(200, 1, pause_s=100)  # long, but its steps cost little
    assert not job.said
    job.window(10, 1, pause_s=310)
    job.window(10, 1)
    assert "may pause training for about 310 s (the last one took 310 s for 10 steps)" in job.said[0]
    assert len(job.said) == 1


def test_no_other_rank_waits() -> None:
    job = Job(timeout_s=None)
    job.window(1000, 10, pause_s=900)
    job.window(1000, 10)
    assert not job.said


def test_it_warns_once_while_the_window_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    times: Callable[[], float] = iter(range(0, 10_000, 100)).__next__
    pause = PauseWarning(said.append, with_stack=False, timeout_s=lambda: 600.0, clock=times)
    pause.started()
    pause.step()
    pause.step()
    pause.step()
    assert len(said) == 1
