"""What a rank's host does, as spans: waiting for data, synchronising, annotations, ops."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Intervals, Ints, union
from rankscope.analysis.core.names import all_names, name_codes, sql_names, vocabulary
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.model import (
    DATALOADER_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    LAUNCH_CATEGORIES,
    NUMBERED_STEP_PATTERN,
    PROFILER_STEP_PATTERN,
    SYNC_CALL_PATTERN,
)
from rankscope.records import dataclass
from rankscope.store.arrays import NONE
from rankscope.timeline.nesting import nest, slice_at
from rankscope.timeline.run import Run

_ANNOTATION, _SYNC, _OP, _ENGINE = range(4)
_LIBRARIES = ("torch", "numpy")
_ENGINE_NAME = "autograd::engine::evaluate_function: "
"""Ops by which autograd runs the nodes of a backward pass."""


@dataclass(frozen=True)
class HostEvents:
    """Annotations, synchronising calls, outermost ops and calls of autograd's engine of one rank."""

    track: Ints
    start: Ints
    end: Ints
    kind: Ints
    name: Ints
    """An index into names.all_names."""
    outermost: NDArray[np.bool_]

    def pick(self, mask: NDArray[np.bool_]) -> HostEvents:
        return HostEvents(*(getattr(self, f.name)[mask] for f in fields(self)))

    @property
    def spans(self) -> Intervals:
        """When any thread was inside one of them."""
        return union(self.start, self.end)

    def at(self, track: Ints, time: Ints) -> Ints:
        """For each thread and time the innermost of them, as an index into names.all_names, or UNKNOWN."""
        if len(self.start) == 0 or len(track) == 0:
            return np.full(len(track), UNKNOWN)
        nesting = nest(self.track, self.start, self.end)
        index = slice_at(nesting, self.track, self.start, self.end - self.start, track, time)
        return np.where(index >= 0, self.name[index], UNKNOWN)


@once_per_run
def _host_events(run: Run) -> dict[int, HostEvents]:
    """Read for all ranks in one pass over the slices."""
    engine = f"contains(s.name, '{_ENGINE_NAME}')"
    calls = f"s.category IN ({sql_names(LAUNCH_CATEGORIES)}) AND s.name IN ({sql_names(_sync_names(run))})"
    columns = run.arrays(f"""
        SELECT s.rank::BIGINT AS rank, s.track::BIGINT AS track, s.start_ns AS start,
               s.start_ns + greatest(s.dur_ns, 0) AS end, s.op IS NULL AS outermost,
               CASE WHEN s.category = 'user_annotation' THEN {_ANNOTATION} WHEN s.category <> 'cpu_op' THEN {_SYNC}
                    WHEN {engine} THEN {_ENGINE} ELSE {_OP} END::BIGINT AS kind, n.code AS name
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE s.category = 'user_annotation' OR (s.category = 'cpu_op' AND (s.op IS NULL OR {engine})) OR ({calls})
    """)
    return {rank: HostEvents(**events) for rank, events in split_by_rank(columns, run.ranks).items()}


def _sync_names(run: Run) -> list[str]:
    """Runtime calls that occur and in which the host waits for its device."""
    return [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if re.search(SYNC_CALL_PATTERN, name)]


@once_per_run
def _annotations(run: Run) -> dict[int, HostEvents]:
    """Those of each rank's host events: few of many."""
    return {rank: events.pick(events.kind == _ANNOTATION) for rank, events in _host_events(run).items()}


def _is_wanted(run: Run, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """By number of a name: whether it is that of a wanted annotation."""
    texts = all_names(run)
    is_wanted = np.zeros(len(texts), dtype=bool)
    is_wanted[[code for code in name_codes(run, "user_annotation").tolist() if wanted(texts[code])]] = True
    return is_wanted


@once_per_run
def _annotated(run: Run) -> dict[str, dict[int, Intervals]]:
    """By pattern and rank; `annotated` fills it."""
    return {}


def annotated(run: Run, rank: int, pattern: str) -> Intervals:
    """When any thread was inside an annotation whose name matches."""
    spans = _annotated(run)
    if pattern not in spans:
        is_wanted = _is_wanted(run, re.compile(pattern, re.IGNORECASE).search)
        spans[pattern] = {
            other: events.pick(is_wanted[events.name]).spans for other, events in _annotations(run).items()
        }
    return spans[pattern][rank]


def dataloader_spans(run: Run, rank: int) -> Intervals:
    """When the training loop waited for a batch."""
    return annotated(run, rank, DATALOADER_PATTERN)


def rank_annotations(run: Run, rank: int) -> HostEvents:
    """The annotations of a rank's program, without steps, waits for data and collectives."""
    events = _annotations(run)[rank]
    return events.pick(_is_of_program(run)[events.name])


@once_per_run
def _is_of_program(run: Run) -> NDArray[np.bool_]:
    steps = PROFILER_STEP_PATTERN, NUMBERED_STEP_PATTERN
    skipped = [
        re.compile(pattern) for pattern in (*steps, DATALOADER_PATTERN, HOST_COLLECTIVE_PATTERN, "^nccl:")
    ]
    return _is_wanted(run, lambda name: not any(pattern.search(name) for pattern in skipped))


def sync_spans(run: Run, rank: int) -> Intervals:
    """When any thread was inside a synchronising call."""
    events = _host_events(run)[rank]
    return events.pick(events.kind == _SYNC).spans


def outermost_ops(run: Run, rank: int) -> HostEvents:
    """The ops that are not inside another."""
    events = _host_events(run)[rank]
    return events.pick((events.kind >= _OP) & events.outermost)


def engine_calls(run: Run, rank: int) -> HostEvents:
    """What autograd's engine ran."""
    events = _host_events(run)[rank]
    return events.pick(events.kind == _ENGINE)


def waiting_calls(run: Run, scope: Scope) -> dict[str, Any]:
    """Calls in which the host waits for its device, by rank and time, with the op and line of Python that made them.

    `name`, `op` and `line` are indices into names.all_names, or UNKNOWN. `waits` is 0 for copies of pageable memory,
    which wait although their name does not show it.
    """
    if scope.ranks is not None and scope.ranks.issuperset(run.ranks):
        scope = replace(scope, ranks=None)
    if scope.steps is None or not scope.has_all_steps(run):
        return _waiting_calls(run, scope)
    calls = _waiting_calls(run, scope.only_ranks())
    inside = scope.mask(calls["step"])
    return calls if inside.all() else {name: values[inside] for name, values in calls.items()}


@once_per_run
def _waiting_calls(run: Run, scope: Scope) -> dict[str, Any]:
    waits = wanted = f"name IN ({sql_names(_sync_names(run))})"
    if pageable := [name for name in vocabulary(run, "gpu_memcpy") if "ageable" in name]:
        wanted = f"""({waits} OR (rank, segment, id) IN (
            SELECT (rank, segment, launch) FROM gpu
            WHERE category = 'gpu_memcpy' AND name IN ({sql_names(pageable)}) AND launch IS NOT NULL
        ))"""
    return run.arrays(f"""
        WITH calls AS MATERIALIZED (
            SELECT rank, segment, track, id, start_ns, dur_ns, category, name, {waits} AS waits, step, op, python
            FROM slices WHERE category IN ({sql_names(LAUNCH_CATEGORIES)}) AND {scope.where()} AND {wanted}
        ), callers AS MATERIALIZED (
            SELECT s.rank, s.segment, s.id, n.code
            FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
            WHERE s.category IN ('cpu_op', 'python_function')
            AND s.id IN (SELECT unnest([op, python]) FROM calls)
        )
        SELECT c.rank::BIGINT AS rank, c.segment::BIGINT AS segment, c.track::BIGINT AS track, c.start_ns AS start,
               c.start_ns + greatest(c.dur_ns, 0) AS stop, n.code AS name, coalesce(c.waits, false)::BIGINT AS waits,
               coalesce(c.step, {NO_STEP})::BIGINT AS step, coalesce(o.code, {UNKNOWN}) AS op,
               coalesce(l.code, {UNKNOWN}) AS line
        FROM calls c JOIN internal.names n ON n.category = c.category AND n.name = c.name
        LEFT JOIN callers o ON o.rank = c.rank AND o.segment = c.segment AND o.id = c.op
        LEFT JOIN callers l ON l.rank = c.rank AND l.segment = c.segment AND l.id = c.python
        ORDER BY c.rank, c.start_ns, c.id
    """)


def program_frame(frames: Sequence[str]) -> str:
    """Of Python frames, the innermost first: the program's own one, not that of the library or torch that it calls."""
    written = [name for name in frames if not name.startswith(("<", "nn.Module:"))]
    of_program = (name for name in written if not _is_library(name))
    return next(of_program, next(iter(written or frames), ""))


def _is_library(frame: str) -> bool:
    """torch leaves out the folders of sys.path: `socket.py(692): readinto`, `torch/optim/sgd.py(9): step`."""
    path = frame.partition("(")[0]
    package = path.removesuffix(".py").partition("/")[0]
    in_folder = path.startswith("/") and ("-packages/" in path or "/lib/python3" in path)
    return in_folder or package in _LIBRARIES or package in sys.stdlib_module_names


def loading_line(run: Run, rank: int) -> str:
    """The program's innermost function that runs for most of the longest wait of a rank for data; empty where stacks
    were not recorded, and where other processes load."""
    waits = dataloader_spans(run, rank)
    longest = int((waits.end - waits.start).argmax())
    start, end = int(waits.start[longest]), int(waits.end[longest])
    rows = part_of(run, frozenset({rank})).rows(
        f"SELECT name FROM slices WHERE rank = {rank} AND category = 'python_function' AND start_ns >= {start} "
        f"AND start_ns + dur_ns <= {end} GROUP BY name HAVING 2 * sum(dur_ns) > {end - start} "
        "ORDER BY sum(dur_ns), max(depth) DESC"
    )
    frame = program_frame([name for (name,) in rows])
    return "" if _is_library(frame) else frame


def covering_names(run: Run, rank: int, time: Ints) -> list[str]:
    """The op, else the annotation, that covers each moment on any thread; '' where none does."""
    texts = all_names(run)
    ops, annotations = (
        latest_around(spans.start[order], spans.end[order], spans.name[order], time).tolist()
        for spans in (outermost_ops(run, rank), rank_annotations(run, rank))
        for order in [np.lexsort((spans.track, spans.start))]
    )
    return [
        texts[op] if op != NONE else texts[note] if note != NONE else ""
        for op, note in zip(ops, annotations, strict=True)
    ]


def latest_around(start: Ints, end: Ints, name: Ints, time: Ints) -> Ints:
    """For each moment the name of the slice around it that started last; NONE where there is none.

    Slices are sorted by start. Of those that have started, the last one that has not ended is found in a binary tree
    over their ends: a node has the latest end of the two below it.
    """
    levels = [end]
    while len(levels[-1]) > 1:
        below = np.append(levels[-1], np.iinfo(np.int64).min)  # so that the last one has a neighbour
        levels.append(np.maximum(below[:-1:2], below[1::2]))
    node = np.searchsorted(start, time, side="right")  # the first one that has not started
    height = np.full(len(time), NONE)
    for level, latest in enumerate(levels):
        is_right = (height == NONE) & (node % 2 == 1)
        covers = is_right.copy()
        covers[is_right] = latest[node[is_right] - 1] > time[is_right]
        height[covers] = level
        node[covers] -= 1
        node[height == NONE] >>= 1
    for level in range(len(levels) - 2, -1, -1):
        above = np.flatnonzero(height > level)
        right = np.minimum(2 * node[above] + 1, len(levels[level]) - 1)
        is_right = levels[level][right] > time[above]
        node[above] = np.where(is_right, right, 2 * node[above])
    names = np.full(len(time), NONE)
    names[height != NONE] = name[node[height != NONE]]
    return names
