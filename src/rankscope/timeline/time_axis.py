"""The time axis of a run: where each of its files lies on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from rankscope.records import dataclass
from rankscope.store.index import SegmentEntry
from rankscope.timeline.clocks.alignment import Clocks

ClockMode = Literal["aligned", "raw"]
File = tuple[int, int]
"""The rank and the segment of a file."""


@dataclass(frozen=True)
class TimeAxis:
    """The first of the files begins at `shifted_by_ns`. A file is shifted as a whole, by the clock offset at its
    middle, so durations stay as recorded."""

    clocks: Clocks
    """As measured, or the wall clocks of the hosts."""
    files: Sequence[SegmentEntry]
    """Those that have times."""
    begins: Mapping[File, int]
    """From the run's start to each file by the wall clock of its host."""
    shifted_by_ns: int = 0

    @cached_property
    def ahead(self) -> Mapping[File, int]:
        """What is taken off the wall clock of each file."""
        ahead = {}
        for entry in self.files:
            file = entry.rank, entry.segment
            middle = self.begins[file] + int(entry.manifest["end_ns"]) / 2
            ahead[file] = round(self.clocks.ahead_ns(entry.rank, middle))
        return ahead

    @cached_property
    def shifts(self) -> Mapping[File, int]:
        """From the run's start to the origin of each file."""
        shifts = {file: self.begins[file] - ahead_ns for file, ahead_ns in self.ahead.items()}
        later = self.shifted_by_ns - min(shifts.values(), default=0)
        return {file: shift + later for file, shift in shifts.items()}
