"""The warning that the end of a window may exceed the process group's timeout: figures, and no false alarms."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankscope.inapp.pause_warning import PauseWarning, autograd_operations


class Job:
    """A job with a clock of its own."""

    def __init__(
        self, timeout_s: float | None = 600, with_stack: bool = False, operations: int | None = None
    ) -> None:
        """``operations`` of each step; None where they are not counted."""
        self.now = 0.0
        self.each, self.count = operations, operations and 5
        self.said: list[str] = []
        self.pause = PauseWarning(
            self.said.append,
            with_stack=with_stack,
            operations=lambda: self.count,
            timeout_s=lambda: timeout_s,
            clock=lambda: self.now,
        )

    def window(self, steps: int, step_s: float, pause_s: float = 1) -> None:
        self.pause.started()
        for _ in range(steps):
            self.pause.step()
            self.now += step_s
            self.count = None if self.count is None else self.count + (self.each or 0)
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


@pytest.mark.parametrize(("operations", "warns"), [(300, False), (60_000, True)])
def test_the_first_window_is_judged_by_its_operations(operations: int, warns: bool) -> None:
    """Ten steps of a minute: 1800 s by their length alone."""
    job = Job(operations=operations)
    job.window(10, 60)
    assert len(job.said) == warns
    if warns:
        assert (
            "for up to 300 s (300000 operations are recorded, and torch needs up to 1.00 ms for each)"
            in job.said[0]
        )


def test_autograds_operations_are_counted() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.ones(2, requires_grad=True)
    before = autograd_operations()
    assert before is not None
    (weight * 2 + 1).sum()
    assert autograd_operations() == before + 3


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
    pause = PauseWarning(
        said.append, with_stack=False, operations=lambda: None, timeout_s=lambda: 600.0, clock=times
    )
    pause.started()
    pause.step()
    pause.step()
    pause.step()
    assert len(said) == 1


def test_a_window_is_announced_by_the_steps_before_it() -> None:
    job = Job(operations=400)
    job.pause.trained(1)
    for step in range(2, 12):
        job.now += 0.5
        job.count = (job.count or 0) + 400
        job.pause.trained(step)
    assert job.pause.expect(11, 5) == (
        "steps 11-15 will be recorded: about 1.4 MB for each rank, and training pauses for up to 2.00 s when they end "
        "(2000 operations are recorded, and torch needs up to 1.00 ms for each)"
    )
    assert not job.said


@pytest.mark.parametrize(("steps", "warns"), [(90, False), (110, True)])
def test_the_watchdog_is_compared_with_what_is_expected(steps: int, warns: bool) -> None:
    """Steps of 1 s, whose operations are not counted: 3 s each, and half of 600 s is the limit."""
    job = Job(operations=None)
    job.pause.trained(1)
    job.now += 4
    line = job.pause.expect(5, steps)
    assert f"training pauses for up to {steps * 3} s when they end" in line
    assert "about" not in line  # the size is not known
    assert len(job.said) == warns
    job.window(steps, 1)
    assert len(job.said) == warns  # not a second time for the same window


@pytest.mark.parametrize(
    ("operations", "step_s", "with_stack", "seconds"),
    [
        *((333, 5, False, 30), (334, 5, False, 0)),  # 1 ms each: 2 s
        *(
            (0, 0.11, False, 0.66),
            (None, 0.11, False, 0.66),
            (None, 0.12, False, 0),
        ),  # three times what is recorded
        *((None, 0.05, True, 0.3), (None, 0.06, True, 0)),
    ],
)
def test_a_longer_window_must_pause_training_for_two_seconds_at_most(
    operations: int | None, step_s: float, with_stack: bool, seconds: float
) -> None:
    job = Job(operations=operations, with_stack=with_stack, timeout_s=1)
    assert job.pause.if_little(1, 6) == 0, "nothing is known"
    job.pause.trained(1)
    job.now += 100  # torch's profiler is prepared
    job.pause.trained(1)
    job.now, job.count = job.now + step_s, operations and job.count and operations + job.count
    assert job.pause.if_little(2, 6) == pytest.approx(seconds)
    assert job.pause.if_little(2, 0) == 0
    assert not job.said, "the window that is chosen is announced"


@pytest.mark.parametrize("cuda", [True, False])
def test_graphs_that_are_replayed_have_no_operations_to_count(
    cuda: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.inapp.pause_warning._uses_cuda", lambda: cuda)
    job = Job(operations=1)
    job.pause.trained(1)
    job.now, job.count = 8.0, 13
    pause = "training pauses for up to 6.00 s" if cuda else "training pauses for up to 2.00 ms"
    assert pause in job.pause.expect(9, 2)


def test_a_later_window_is_expected_to_be_as_the_one_before() -> None:
    job = Job(operations=400)
    job.window(10, 1, pause_s=5)
    job.pause.trained(20)
    job.now, job.count = job.now + 5, (job.count or 0) + 2000
    assert "for about 10.0 s when they end (the last one took 5.00 s for 10 steps)" in job.pause.expect(
        25, 20
    )


def test_nothing_is_said_without_a_step_before() -> None:
    job = Job(operations=400)
    assert job.pause.expect(0, 5) == ""
    job.pause.trained(1)
    assert job.pause.expect(1, 5) == ""
