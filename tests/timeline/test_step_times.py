"""Steps of GPU events and step times: against the definition written out event by event, and on planted cases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rankscope.store.arrays import NONE
from rankscope.timeline.step_times import step_times, steps_of_gpu_events


@dataclass(frozen=True)
class Event:
    launch: int
    start: int
    end: int


Ranges = list[tuple[int, int]]


def plain_step(ranges: Ranges, events: list[Event], event: Event) -> int | None:
    """The definition in words, one event at a time."""

    def at(time: int) -> int | None:
        if not ranges or time < ranges[0][0] or time >= ranges[-1][1]:
            return None
        return max(i for i, (start, _) in enumerate(ranges) if start <= time)

    if event.launch != NONE:
        return at(event.launch)
    launched_in_steps = [e.start for e in events if e.launch != NONE and at(e.launch) is not None]
    if launched_in_steps and event.start < min(launched_in_steps):
        return None
    return at(event.start)


def plain_times(ranges: Ranges, events: list[Event]) -> list[tuple[int, int]]:
    steps = [plain_step(ranges, events, event) for event in events]
    ends: list[int] = []
    for number, (_, host_end) in enumerate(ranges):
        own = [e.end for e, step in zip(events, steps, strict=True) if step == number]
        ends.append(max([host_end, *own, *ends[-1:]]))
    launched = [
        e.start for e, step in zip(events, steps, strict=True) if e.launch != NONE and step is not None
    ]
    backlog = [
        e.end
        for e in events
        if (e.launch != NONE and e.launch < ranges[0][0])
        or (e.launch == NONE and launched and e.start < min(launched))
    ]
    begin = ranges[0][0]
    if backlog:
        first = [e.start for e, step in zip(events, steps, strict=True) if step == 0]
        begin = max(begin, min([max(backlog), *first]))
    begins = [min(begin, ends[0]), *ends[:-1]]
    return list(zip(begins, ends, strict=True))


def computed(ranges: Ranges, events: list[Event]) -> tuple[list[int | None], list[tuple[int, int]]]:
    host = np.array(ranges, dtype=np.int64).reshape(-1, 2)
    columns = np.array([(e.launch, e.start, e.end) for e in events], dtype=np.int64).reshape(-1, 3).T
    launch, start, end = columns
    step = steps_of_gpu_events(host[:, 0], host[:, 1], launch, start)
    times = step_times(host[:, 0], host[:, 1], step, launch, start, end)
    numbers = [None if index == NONE else index for index in step.tolist()]
    return numbers, list(zip(times.begin.tolist(), times.end.tolist(), strict=True))


@st.composite
def cycles(draw: st.DrawFn) -> tuple[Ranges, list[Event]]:
    ranges, at = [], draw(st.integers(0, 20))
    for _ in range(draw(st.integers(1, 4))):
        length = draw(st.integers(0, 30))
        ranges.append((at, at + length))
        at += length + draw(st.integers(0, 8))
    events = []
    for _ in range(draw(st.integers(0, 8))):
        launch = draw(st.one_of(st.just(NONE), st.integers(0, 120)))
        start = draw(st.integers(0, 150)) if launch == NONE else launch + draw(st.integers(0, 40))
        events.append(Event(launch, start, start + draw(st.integers(0, 40))))
    return ranges, events


@given(cycles())
def test_against_the_definition_in_words(cycle: tuple[Ranges, list[Event]]) -> None:
    ranges, events = cycle
    steps, times = computed(ranges, events)
    assert steps == [plain_step(ranges, events, event) for event in events]
    assert times == plain_times(ranges, events)


@given(cycles())
def test_steps_fill_their_window(cycle: tuple[Ranges, list[Event]]) -> None:
    ranges, events = cycle
    _, times = computed(ranges, events)
    assert all(begin <= end for begin, end in times)
    assert sum(end - begin for begin, end in times) == times[-1][1] - times[0][0]


def test_the_host_runs_far_ahead_of_the_gpu() -> None:
    """Three host ranges of 1, each launching 80 of work: a step takes 80, not 1."""
    ranges = [(10, 11), (11, 12), (12, 13)]
    work = [Event(10, 12, 92), Event(11, 92, 172), Event(12, 172, 252)]
    steps, times = computed(ranges, work)
    assert steps == [0, 1, 2]
    assert times == [(10, 92), (92, 172), (172, 252)]


def test_backlog_belongs_to_no_step_and_delays_the_first() -> None:
    """What was launched before the recording still runs when the first step begins on the host."""
    ranges = [(100, 110), (110, 120)]
    steps, times = computed(ranges, [Event(50, 60, 130), Event(NONE, 130, 140), Event(101, 140, 150)])
    assert steps == [None, None, 0]
    assert times[0] == (140, 150)


def test_launches_between_host_ranges_count_to_the_earlier_and_after_the_last_to_none() -> None:
    ranges = [(0, 10), (20, 30)]
    steps, times = computed(ranges, [Event(15, 16, 18), Event(30, 31, 99)])
    assert steps == [0, None]
    assert times == [(0, 18), (18, 30)]


def test_a_cycle_without_gpu_events() -> None:
    assert computed([(5, 9), (12, 20)], []) == ([], [(5, 9), (9, 20)])
