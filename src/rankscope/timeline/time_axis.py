"""The time axis of a run: where each of its files lies on it, by the clocks of their hosts or by aligned clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Literal

from rankscope.records import dataclass
from rankscope.store.index import SegmentEntry
from rankscope.store.separate_runs import RunFiles
from rankscope.timeline.clocks.alignment import Clocks

ClockMode = Literal["aligned", "raw"]
File = tuple[int, int]
"""The rank and the segment of a file."""


@dataclass(frozen=True)
class TimeAxis:
    """Where the files of a run are. A file is shifted as a whole, by the clock offset at its middle, so durations stay
    as recorded."""

    clock_mode: ClockMode
    clocks: Clocks
    shifts: Mapping[File, int]
    """From the run's start to the origin of each file that has times."""
    ahead: Mapping[File, int]
    """What was taken off the wall clock of each file."""


def time_axis(
    mode: ClockMode,
    clocks: Clocks,
    timelines: Sequence[SegmentEntry],
    begins: Mapping[File, int],
    shifted_by_ns: int,
) -> TimeAxis:
    """The axis on which the first of these files begins at `shifted_by_ns`."""
    ahead = {}
    for entry in timelines:
        begin = begins[entry.rank, entry.segment]
        middle = begin + int(entry.manifest["end_ns"]) / 2
        ahead[entry.rank, entry.segment] = round(clocks.of(entry.rank).ahead_ns(middle))
    shifts = {file: begins[file] - ahead_ns for file, ahead_ns in ahead.items()}
    first = min(shifts.values(), default=0)
    return TimeAxis(
        mode, clocks, {file: shift - first + shifted_by_ns for file, shift in shifts.items()}, ahead
    )


def wall_clock_begins(runs: Iterable[RunFiles]) -> dict[File, int]:
    """By file, from the run's start to it by the wall clock of its host.

    Runs that were opened together follow each other without the time between them: a window, and what is computed
    from its length, would otherwise cover months that nobody recorded.
    """
    begins: dict[File, int] = {}
    end = 0
    for run in runs:
        begin = end
        for entry in run.entries:
            # A file of another clock is put at the run's start.
            later = entry.unix_origin_ns - run.begin_ns if run.shares_clock(entry) else 0
            begins[entry.rank, entry.segment] = begin + later
        end = begin + run.end_ns - run.begin_ns
    return begins


def first_steps(timelines: Iterable[SegmentEntry]) -> dict[File, int]:
    """By file, what is added to its steps. A file without ProfilerStep#N counts its steps from 0: the second cycle of a
    rank continues where the first cycles of all ranks end.
    """
    cycles: dict[int, list[SegmentEntry]] = {}
    for entry in sorted(timelines, key=lambda entry: entry.unix_origin_ns):
        if entry.manifest["steps"] and entry.manifest["steps_source"] != "profiler":
            cycles.setdefault(entry.rank, []).append(entry)
    first_of: dict[File, int] = {}
    first = 0
    for together in zip_longest(*cycles.values()):
        entries = [entry for entry in together if entry is not None]
        first_of |= {(entry.rank, entry.segment): first for entry in entries if first}
        first += max(int(entry.manifest["steps"]) for entry in entries)
    return first_of
