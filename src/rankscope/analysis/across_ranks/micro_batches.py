"""The micro-batches of a step with gradient accumulation or a pipeline: how long each takes on each rank.

On a GPU they are those of the compute segments. Without one they follow from autograd: a micro-batch is a forward pass
and the backward pass after it. A backward pass begins with the node of autograd with which the first one of its step
begins, after ops that are none of autograd. The time of a pass is that of its ops which no other op calls, without
waiting.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.segments import BACKWARD, FORWARD, segments
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.grouping import middle_of_others
from rankscope.analysis.core.host_spans import annotated, dataloader_spans, engine_calls, outermost_ops
from rankscope.analysis.core.intervals import Ints, covered, join
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, ColumnRows, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import host_windows
from rankscope.analysis.within_rank.phases import OPTIMIZER_PATTERN
from rankscope.model import HOST_COLLECTIVE_PATTERN, WAITING_PATTERN
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, Mask, number_rows, starts_group
from rankscope.timeline.run import Run

_ALIKE = 0.5
"""Passes of one step with fewer ops than this share of the largest are not passes of the same program."""
_IS_WAIT = re.compile(
    rf"^c10d::|record_param_comms|{WAITING_PATTERN}|{HOST_COLLECTIVE_PATTERN}".replace("(?i)", ""), re.I
)

COLUMNS = (
    Column("rank"),
    Column("step"),
    Column("micro_batch", "count", "its number in the step, from 1", title="Micro-batch"),
    Column("forward_ns", "ns", "compute of its forward pass; without a GPU, the time of its ops"),
    Column("backward_ns", "ns", "the same of its backward pass"),
    Column("ratio", "", "both, over the median of the other micro-batches of this rank and step"),
)


@dataclass(frozen=True)
class RankMicroBatches:
    """Of one rank without a GPU, in order."""

    step: Ints
    number: Ints
    forward_ns: Ints
    backward_ns: Ints


@kept_per_rank("micro_batches", RankMicroBatches, any_window=True)
def host_micro_batches(run: Run, scope: Scope) -> dict[int, RankMicroBatches]:
    """Of the ranks without GPU events that run several micro-batches in a step."""
    records = {}
    for rank in scope.ranks_in(run):
        record = _on_host(run, rank) if rank not in gpu_ranks(run) else None
        if record is not None:
            records[rank] = record
    return records


def _on_host(run: Run, rank: int) -> RankMicroBatches | None:
    steps, engine = host_windows(run, rank, Scope()), engine_calls(run, rank)
    ops = outermost_ops(run, rank)
    if not len(engine.start) or not len(steps.step):
        return None
    outside = join(dataloader_spans(run, rank), annotated(run, rank, OPTIMIZER_PATTERN))
    ops = ops.pick(covered(outside, ops.start, ops.end) == 0)
    order = np.argsort(ops.start, kind="stable")
    start, end, name = ops.start[order], ops.end[order], ops.name[order]
    at = np.searchsorted(steps.start, start, side="right") - 1
    inside = (at >= 0) & (start < steps.end[at])
    start, end, name, at = start[inside], end[inside], name[inside], at[inside]
    is_engine = np.isin(name, engine.name)
    texts = all_names(run)
    waits = [code for code in np.unique(name).tolist() if _IS_WAIT.search(texts[code])]
    works = ~np.isin(name, waits)
    # The node with which the first backward pass of each step begins.
    nodes = np.flatnonzero(is_engine)
    first_of_step = nodes[starts_group([at[nodes]])] if len(nodes) else nodes
    root = np.full(len(steps.step), NONE)
    root[at[first_of_step]] = name[first_of_step]
    follows_op = np.append(True, ~is_engine[:-1]) | starts_group([at]) if len(at) else is_engine
    begins = is_engine & (name == root[at]) & follows_op
    passes = np.cumsum(begins)
    before = passes[np.searchsorted(at, at)] - begins[np.searchsorted(at, at)] if len(at) else passes
    number = passes - before  # backward passes of the step that have begun
    # An op of the forward pass counts to the backward pass that follows; after the last one it is no forward pass.
    micro_batch = np.where(is_engine, number - 1, number)
    counts = np.bincount(at, weights=begins, minlength=len(steps.step)).astype(np.int64)
    used = works & (micro_batch >= 0) & (micro_batch < counts[at]) & (counts[at] > 1)
    rows, row = number_rows([at[used], micro_batch[used]])
    figures = []
    for mine in (~is_engine[used], is_engine[used]):
        time, calls = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
        np.add.at(time, row[mine], (end - start)[used][mine])
        np.add.at(calls, row[mine], 1)
        figures.append((time, calls))
    (forward, forward_ops), (backward, nodes_run) = figures
    same = np.ones(len(steps.step), dtype=bool)
    for calls in (forward_ops, nodes_run):
        most, least = np.zeros(len(same)), np.full(len(same), np.inf)
        np.maximum.at(most, rows[:, 0], calls)
        np.minimum.at(least, rows[:, 0], calls)
        same &= least >= _ALIKE * most
    complete = np.bincount(rows[:, 0], minlength=len(same)) == counts
    chosen = (same & complete)[rows[:, 0]]
    if not chosen.any():
        return None
    return RankMicroBatches(steps.step[rows[chosen, 0]], rows[chosen, 1], forward[chosen], backward[chosen])


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
    parts = [np.empty((5, 0), dtype=np.int64)]
    for rank, record in host_micro_batches(run, Scope(ranks=scope.ranks)).items():
        columns = (record.step, record.number, record.forward_ns, record.backward_ns)
        parts.append(np.stack([np.full(len(record.step), rank), *columns]))
    asked = [rank for rank in scope.ranks_in(run) if rank in gpu_ranks(run)]
    # All ranks run as many micro-batches: the segments of all are made where the first rank has several.
    if asked and _on_device(run, Scope(frozenset(asked[:1]), scope.steps)).size:
        parts.append(_on_device(run, scope))
    rank, step, number, forward, backward = np.concatenate(parts, axis=1)
    inside = np.ones(len(rank), dtype=bool)
    if scope.steps is not None:
        inside = (step >= scope.steps[0]) & (step <= scope.steps[1])
    order = np.lexsort((number, step, rank))
    order = order[inside[order]]
    return MicroBatches(*(column[order] for column in (rank, step, number, forward, backward)))


def _on_device(run: Run, scope: Scope) -> Ints:
    """[column, micro-batch]: of the ranks with a GPU. A micro-batch has a forward and a backward pass."""
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
    columns: Ints = np.concatenate([rows.T, times])[:, whole & several]
    return columns


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
    notes = left_out(run, scope)
    if not len(usual):
        notes.append("no step runs several forward and backward passes, or autograd's ops were not recorded")
    return Result(
        "micro_batches",
        "Micro-batches of the steps",
        scope.window,
        COLUMNS,
        ColumnRows({name: values[shown] for name, values in columns.items()}),
        notes=tuple(notes),
    )
