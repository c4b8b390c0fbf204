"""The schedule means what torch's means, step for step."""

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.capture.schedule import NONE, RECORD_AND_SAVE, Schedule, steps_window
from rankscope.errors import UsageError

small = st.integers(0, 5)


@settings(deadline=None)  # the first example imports torch
@given(small, small, small, st.integers(1, 5), small)
def test_every_step_is_for_what_torch_says(
    skip: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    torch_profiler = pytest.importorskip("torch.profiler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about warmup=0
        theirs = torch_profiler.schedule(
            skip_first=skip, wait=wait, warmup=warmup, active=active, repeat=repeat
        )
    ours = Schedule(skip, wait, warmup, active, repeat)
    assert [ours.action(step) for step in range(60)] == [theirs(step).value for step in range(60)]


@given(small, small, small, st.integers(1, 5), small)
def test_nothing_happens_before_the_first_busy_step(
    skip: int, wait: int, warmup: int, active: int, repeat: int
) -> None:
    schedule = Schedule(skip, wait, warmup, active, repeat)
    first = schedule.first_busy_step
    assert all(schedule.action(step) == NONE for step in range(first))
    assert schedule.action(first) != NONE


@given(st.integers(0, 30), st.integers(0, 10), st.integers(0, 3))
def test_steps_a_b_records_a_to_b_inclusive(first: int, more: int, warmup: int) -> None:
    schedule = steps_window(f"{first}:{first + more}", warmup)
    recorded = [step for step in range(60) if schedule.action(step) > 1]
    assert recorded == list(range(first, first + more + 1))
    assert schedule.action(first + more) == RECORD_AND_SAVE


@pytest.mark.parametrize("text", ["9:3", "3", "a:b", "1:", ":2", "-1:2", "1:2:3"])
def test_bad_ranges_of_steps(text: str) -> None:
    with pytest.raises(UsageError):
        steps_window(text)


@pytest.mark.parametrize("schedule", [Schedule(active=0), Schedule(wait=-1), Schedule(repeat=-2)])
def test_what_torch_refuses_is_refused(schedule: Schedule) -> None:
    with pytest.raises(UsageError, match="cannot be scheduled"):
        schedule.validate()
