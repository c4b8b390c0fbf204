"""Spans of a rank's host activity: waiting for data, synchronising, annotations, ops."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Intervals, Ints, union
from rankscope.analysis.core.names import all_names, name_codes, sql_names, vocabulary
from rankscope.model import (
    DATALOADER_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    LAUNCH_CATEGORIES,
    SYNC_CALL_PATTERN,
)
from rankscope.records import dataclass
from rankscope.timeline.linking import NUMBERED_STEP, PROFILER_STEP, slice_at
from rankscope.timeline.nesting import nest
from rankscope.timeline.run import Run


def sync_names(run: Run) -> list[str]:
    """Runtime calls that occur and in which the host waits for its device."""
    return [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if re.search(SYNC_CALL_PATTERN, name)]


_ANNOTATION, _SYNC, _OP, _ENGINE = range(4)
_ENGINE_NAME = "autograd::engine::evaluate_function: "
"""Ops by which autograd runs the nodes of a backward pass."""


@dataclass(frozen=True)
class Marks:
    """Annotations, synchronising calls, outermost ops and calls of autograd's engine of one rank."""

    track: Ints
    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    """An index into names.all_names."""
    outermost: NDArray[np.bool_]

    def pick(self, mask: NDArray[np.bool_]) -> Marks:
        return Marks(*(getattr(self, f.name)[mask] for f in fields(self)))


def _marks(run: Run, rank: int) -> Marks:
    return _marks_of_ranks(run)[rank]


@once_per_run
def _marks_of_ranks(run: Run) -> dict[int, Marks]:
    """Read for all ranks in one pass over the slices."""
    engine = f"contains(s.name, '{_ENGINE_NAME}')"
    calls = f"s.category IN ({sql_names(LAUNCH_CATEGORIES)}) AND s.name IN ({sql_names(sync_names(run))})"
    found = run.arrays(f"""
        SELECT s.rank::BIGINT AS rank, s.track::BIGINT AS track, s.start_ns AS start,
               s.start_ns + greatest(s.dur_ns, 0) AS end, s.op IS NULL AS outermost,
               CASE WHEN s.category = 'user_annotation' THEN {_ANNOTATION} WHEN s.category <> 'cpu_op' THEN {_SYNC}
                    WHEN {engine} THEN {_ENGINE} ELSE {_OP} END::BIGINT AS kind, n.code AS name
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE s.category = 'user_annotation' OR (s.category = 'cpu_op' AND (s.op IS NULL OR {engine})) OR ({calls})
    """)
    return {rank: Marks(**own) for rank, own in split_by_rank(found, run.ranks).items()}


def _spans(marks: Marks) -> Intervals:
    return union(marks.start, marks.end)


def annotated(run: Run, rank: int, pattern: str) -> Intervals:
    """When any thread was inside an annotation whose name matches."""
    return _spans(_annotations(run, rank, lambda name: bool(re.search(pattern, name, re.IGNORECASE))))


def _annotations(run: Run, rank: int, wanted: Callable[[str], bool]) -> Marks:
    marks = _marks(run, rank)
    texts = all_names(run)
    names = [code for code in name_codes(run, "user_annotation").tolist() if wanted(texts[code])]
    return marks.pick((marks.kind == _ANNOTATION) & np.isin(marks.name, names))


def sync_spans(run: Run, rank: int) -> Intervals:
    """When any thread was inside a synchronising call."""
    marks = _marks(run, rank)
    return _spans(marks.pick(marks.kind == _SYNC))


def outermost_ops(run: Run, rank: int) -> Marks:
    """The ops that are not inside another."""
    marks = _marks(run, rank)
    return marks.pick((marks.kind >= _OP) & marks.outermost)


def op_spans(run: Run, rank: int) -> Intervals:
    """When any thread was inside an op."""
    return _spans(outermost_ops(run, rank))


def engine_calls(run: Run, rank: int) -> tuple[Ints, Ints, Ints]:
    """Track, start and end of what autograd's engine ran."""
    marks = _marks(run, rank)
    found = marks.pick(marks.kind == _ENGINE)
    return found.track, found.start, found.end


def dataloader_spans(run: Run, rank: int) -> Intervals:
    """When the training loop waited for a batch."""
    return annotated(run, rank, DATALOADER_PATTERN)


@dataclass(frozen=True)
class Annotations:
    """The annotations of a rank's program, without steps, waits for data and collectives."""

    track: Ints
    start: Ints
    end: Ints
    name: Ints

    def at(self, track: Ints, time: Ints) -> Ints:
        """For each place the innermost annotation on that thread, as an index into names.all_names, or UNKNOWN."""
        if len(self.start) == 0 or len(track) == 0:
            return np.full(len(track), UNKNOWN)
        found = slice_at(
            nest(self.track, self.start, self.end), self.track, self.start, self.end, track, time
        )
        return np.where(found >= 0, self.name[found], UNKNOWN)


def rank_annotations(run: Run, rank: int) -> Annotations:
    others = [re.compile(pattern) for pattern in (DATALOADER_PATTERN, HOST_COLLECTIVE_PATTERN, "^nccl:")]
    skipped = [PROFILER_STEP, NUMBERED_STEP, *others]
    found = _annotations(run, rank, lambda name: not any(pattern.search(name) for pattern in skipped))
    return Annotations(found.track, found.start, found.end, found.name)
