"""The micro-batches of a step with gradient accumulation or a pipeline, out of the compute segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.segments import BACKWARD, FORWARD, segments
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import middle_of_others
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.result import Column, ColumnRows, Result
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, Mask, number_rows
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("step"),
    Column("micro_batch", "count", "its number in the step, from 1", title="Micro-batch"),
    Column("forward_ns", "ns", "compute of its forward pass"),
    Column("backward_ns", "ns", "the same of its backward pass"),
    Column("ratio", "", "both, over the median of the other micro-batches of this rank and step"),
)


@dataclass(frozen=True)
class MicroBatches:
    """One entry a micro-batch, by rank, step and number; of steps that have several."""

    rank: Ints
    step: Ints
    number: Ints
    """From 0."""
    forward_ns: Ints
    backward_ns: Ints

    @property
    def total_ns(self) -> Ints:
        return self.forward_ns + self.backward_ns

    def median_of_others(self) -> Floats:
        """By entry, the median over the other micro-batches of its rank and step; NaN where there is none."""
        rows, row = number_rows([self.rank, self.step])
        table = np.full((len(rows), int(self.number.max(initial=-1)) + 1), np.nan)
        table[row, self.number] = self.total_ns
        low, high = middle_of_others(table)
        median: Floats = ((low + high) / 2)[row, self.number]
        return median


@once_per_run
def micro_batches_of(run: Run, scope: Scope) -> MicroBatches:
    """Of the ranks and steps in scope."""
    # All ranks run as many micro-batches: the segments of all are made where the first rank has several.
    if len(_several(run, Scope(frozenset(scope.ranks_in(run)[:1]), scope.steps)).rank):
        return _several(run, scope)
    return MicroBatches(*np.empty((5, 0), dtype=np.int64))


def _several(run: Run, scope: Scope) -> MicroBatches:
    """Of the steps that have several. A micro-batch has a forward and a backward pass."""
    parts = segments(run, Scope(scope.ranks, scope.steps))
    parts = parts.pick((parts.micro_batch != NONE) & (parts.step != NO_STEP))
    rows, row = number_rows([parts.rank, parts.step, parts.micro_batch])
    times = np.zeros((2, len(rows)), dtype=np.int64)
    for times_of, phase in zip(times, (FORWARD, BACKWARD), strict=True):
        mine = parts.phase == phase
        np.add.at(times_of, row[mine], parts.duration_ns[mine])
    whole = times.all(axis=0)
    _, step = number_rows([rows[:, 0], rows[:, 1]])
    several = np.bincount(step, weights=whole, minlength=1)[step] > 1 if len(step) else whole
    return MicroBatches(*np.concatenate([rows.T, times])[:, whole & several])


def micro_batches(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank, step and micro-batch."""
    batches = micro_batches_of(run, Scope(steps=scope.steps))
    usual = batches.median_of_others()
    shown: Mask = np.isin(batches.rank, scope.ranks_in(run))
    ratio = np.divide(batches.total_ns, usual, out=np.full(len(usual), np.nan), where=usual > 0)
    columns: dict[str, Any] = {
        "rank": batches.rank,
        "step": batches.step,
        "micro_batch": batches.number + 1,
        "forward_ns": batches.forward_ns,
        "backward_ns": batches.backward_ns,
        "ratio": np.where(np.isnan(ratio), None, ratio),
    }
    notes = []
    if not len(usual):
        notes.append("no step runs several forward and backward passes, or autograd's ops were not recorded")
    return Result(
        "stragglers.micro_batches",
        "Micro-batches of the steps",
        scope.window,
        COLUMNS,
        ColumnRows({name: values[shown] for name, values in columns.items()}),
        notes=tuple(notes),
    )
