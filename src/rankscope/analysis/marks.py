"""What the host was doing, as spans of one rank: waiting for data, synchronising, inside an annotation."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from rankscope.analysis.device import UNKNOWN, sql_names, vocabulary
from rankscope.analysis.events import Activity, host_collectives
from rankscope.analysis.intervals import EMPTY, Intervals, Ints, union
from rankscope.analysis.scope import Scope
from rankscope.model import (
    DATALOADER_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    LAUNCH_CATEGORIES,
    SYNC_CALL_PATTERN,
)
from rankscope.store.linking import NUMBERED_STEP, PROFILER_STEP, slice_at
from rankscope.store.nesting import nest
from rankscope.store.run import Run

ENGINE = "name LIKE 'autograd::engine::evaluate_function: %'"
"""In SQL: ops by which autograd runs the nodes of a backward pass."""


def sync_names(run: Run) -> list[str]:
    """Runtime calls that occur and in which the host waits for its device."""
    return [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if re.search(SYNC_CALL_PATTERN, name)]


_PREPARED: WeakSet[Run] = WeakSet()


def host_marks(run: Run, rank: int, where: str, columns: str = "") -> dict[str, Any]:
    """Start and end (and more columns) of what a rank's host did, out of a small table made once a run.

    It holds annotations, synchronising calls, the ops not inside another and what autograd's engine ran: one
    pass over all slices instead of one for every question.
    """
    if run not in _PREPARED:
        run.connection.execute(
            "CREATE OR REPLACE TEMP TABLE host_marks AS SELECT rank, track::BIGINT AS track, start_ns AS start, "
            "start_ns + greatest(dur_ns, 0) AS stop, name, category, op IS NULL AS is_outermost FROM slices "
            f"WHERE category = 'user_annotation' OR (category = 'cpu_op' AND (op IS NULL OR {ENGINE})) "
            f"OR (category IN ({sql_names(LAUNCH_CATEGORIES)}) AND name IN ({sql_names(sync_names(run))}))"
        )
        _PREPARED.add(run)
    return run.arrays(f"SELECT start, stop {columns} FROM host_marks WHERE rank = {rank} AND {where}")


def spans(run: Run, rank: int, where: str) -> Intervals:
    columns = host_marks(run, rank, where)
    return union(columns["start"], columns["stop"])


def annotated(run: Run, rank: int, pattern: str) -> Intervals:
    """When any thread was inside an annotation whose name matches."""
    names = [name for name in vocabulary(run, "user_annotation") if re.search(pattern, name, re.IGNORECASE)]
    if not names:
        return EMPTY
    return spans(run, rank, f"category = 'user_annotation' AND name IN ({sql_names(names)})")


def sync_spans(run: Run, rank: int) -> Intervals:
    """When any thread was inside a synchronising call."""
    names = sync_names(run)
    return spans(run, rank, f"name IN ({sql_names(names)})") if names else EMPTY


def dataloader_spans(run: Run, rank: int) -> Intervals:
    """When the training loop waited for a batch."""
    return annotated(run, rank, DATALOADER_PATTERN)


_COLLECTIVES: WeakKeyDictionary[Run, Activity] = WeakKeyDictionary()


def rank_collectives(run: Run, rank: int, scope: Scope) -> Activity:
    """The collectives on the host of one rank in the window; read once a run."""
    if run not in _COLLECTIVES:
        _COLLECTIVES[run] = host_collectives(run, Scope())
    found = _COLLECTIVES[run]
    mine = found.rank == rank
    if scope.steps is not None:
        mine &= (found.step >= scope.steps[0]) & (found.step <= scope.steps[1])
    return found.pick(mine)


@dataclass(frozen=True)
class Annotations:
    """The ranges a rank's program marked; steps, waits for data and collectives are not among them."""

    track: Ints
    start: Ints
    end: Ints
    name: Ints
    names: list[str]

    def at(self, track: Ints, time: Ints) -> Ints:
        """For each place the innermost annotation on that thread, as an index into `names`, or UNKNOWN."""
        if len(self.start) == 0 or len(track) == 0:
            return np.full(len(track), UNKNOWN)
        found = slice_at(
            nest(self.track, self.start, self.end), self.track, self.start, self.end, track, time
        )
        return np.where(found >= 0, self.name[found], UNKNOWN)


def rank_annotations(run: Run, rank: int) -> Annotations:
    others = [re.compile(pattern) for pattern in (DATALOADER_PATTERN, HOST_COLLECTIVE_PATTERN, "^nccl:")]
    skipped = [PROFILER_STEP, NUMBERED_STEP, *others]
    names = [
        name
        for name in vocabulary(run, "user_annotation")
        if not any(pattern.search(name) for pattern in skipped)
    ]
    where = f"category = 'user_annotation' AND name IN ({sql_names(names)})"
    columns = host_marks(run, rank, where, ", track, name")
    kept, name = np.unique(columns["name"].astype(str), return_inverse=True)
    return Annotations(columns["track"], columns["start"], columns["stop"], name, kept.tolist())
