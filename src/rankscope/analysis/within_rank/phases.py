"""Phases of the step: host time and GPU work in data loading, forward, backward, recomputation and optimizer.

Recomputation are forward ops that run again inside the backward pass: activation checkpointing, reentrant or not.
Autograd gives each forward op that it will differentiate a sequence number and "Fwd thread id" 0. Ops of the backward
pass do not have both, so an op that has them there belongs to a recomputed forward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN, device_events
from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.host_spans import (
    HostEvents,
    annotated,
    dataloader_spans,
    engine_calls,
    outermost_ops,
)
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, intersect, join, length, subtract, union
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.step_times import host_windows, recordings
from rankscope.records import dataclass
from rankscope.timeline.nesting import nest, slice_at
from rankscope.timeline.run import Run

PHASES = ("dataloader", "forward", "backward", "recompute", "optimizer", "other")
DATALOADER, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(len(PHASES))

# Annotations that name a phase: those of torch, and common names of user and NVTX ranges.
OPTIMIZER_PATTERN = r"^Optimizer\.(?:step|zero_grad)#|^\W*(?:optimizer|optim)(?:[^a-z]|$)"
_BACKWARD = r"^\W*(?:backward|bwd)(?:[^a-z]|$)"
_FORWARD = r"^\W*(?:forward|fwd|loss)(?:[^a-z]|$)"
_IS_FORWARD = "(e.args->>'Fwd thread id') = '0' AND (e.args->>'Sequence number') IS NOT NULL"

COLUMNS = (
    Column("rank"),
    Column("phase"),
    Column("host_ns", "ns", "host time of the steps in the phase"),
    Column("host_pct", "percent", "share of the step time"),
    Column("device_ns", "ns", "total duration of the GPU events launched in the phase"),
    Column("device_pct", "percent", "share of the total duration of all GPU events"),
    Column("events", "count", "GPU events launched in the phase", title="GPU events"),
)


@dataclass(frozen=True)
class Partition:
    """The host time of a rank, cut at `start` into intervals of one phase each; before the first it is OTHER."""

    start: Ints
    phase: Ints
    window: Intervals

    def at(self, time: Ints) -> Ints:
        """The phase at each time."""
        if len(self.start) == 0:
            return np.full(len(time), OTHER)
        index = np.searchsorted(self.start, time, side="right") - 1
        return np.where(index >= 0, self.phase[np.maximum(index, 0)], OTHER)

    def lengths(self) -> list[int]:
        """Time in each phase; the sum is the length of the window."""
        sizes = np.append(np.diff(self.start), 0) if len(self.start) else self.start
        times = sums_by(self.phase, sizes, len(PHASES))
        times[OTHER] = length(self.window) - int(times[:OTHER].sum())
        return [int(time) for time in times]


def phases(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and phase that occurs."""
    rows: list[dict[str, Any]] = []
    for rank, times in rank_phases(run, scope).items():
        host_total, device_total = (sum(of_phase[side] for of_phase in times) for side in (0, 1))
        for name, (host, device, events) in zip(PHASES, times, strict=True):
            if host or events:
                shares = (100 * host / host_total if host_total else None,
                          100 * device / device_total if device_total else None)  # fmt: skip
                row = (rank, name, host, shares[0], device, shares[1], events)
                rows.append(dict(zip((column.name for column in COLUMNS), row, strict=True)))
    notes = []
    seen = {row["phase"] for row in rows}
    if not rows:
        notes.append(f"no ops and no annotations in the window; {how_to_record(run, 'host')}")
    elif not seen & {"backward", "optimizer"}:
        notes.append(
            "no backward pass and no optimizer in the window; if ops are not recorded (nsys), mark the phases with "
            f"annotations named forward, backward and optimizer: {how_to_record(run, 'annotations')}"
        )
    if rows and not steps_in(run, scope):
        notes.append("no steps in the trace: host time is from the first op to the last of each recording")
    return Result("breakdown.phases", "Phases of the step", scope.window, COLUMNS, rows, notes=tuple(notes))


@kept_per_rank("phases", list[tuple[int, int, int]])
def rank_phases(run: Run, scope: Scope) -> dict[int, list[tuple[int, int, int]]]:
    """By rank and phase: time on the host; time and number of the GPU events that were launched in it."""
    records = {}
    for rank in scope.ranks_in(run):
        partition, events = partition_of(run, rank, scope), device_events(run, rank, scope)
        phase = np.where(events.launch_start != UNKNOWN, partition.at(events.launch_start), OTHER)
        time = sums_by(phase, events.end - events.start, len(PHASES))
        counts = np.bincount(phase, minlength=len(PHASES)).tolist()
        records[rank] = [*zip(partition.lengths(), time.tolist(), counts, strict=True)]
    return records


@once_per_run
def _partitions(run: Run, steps: tuple[int, int] | None) -> dict[int, Partition]:
    """By rank; `partition_of` fills it."""
    return {}


def partition_of(run: Run, rank: int, scope: Scope) -> Partition:
    """A rank's time on the host by phase; computed once."""
    partitions = _partitions(run, None if scope.has_all_steps(run) else scope.steps)
    if rank not in partitions:
        partitions[rank] = _partition(run, rank, scope)
    return partitions[rank]


def _partition(run: Run, rank: int, scope: Scope) -> Partition:
    steps, ops = host_windows(run, rank, scope), outermost_ops(run, rank).spans
    window = union(steps.start, steps.end)
    if len(window.start) == 0:
        if len(ops.start) == 0:
            return Partition(EMPTY.start, EMPTY.start, EMPTY)
        # From the first op to the last of each recording.
        recording = np.searchsorted(recordings(run)[rank].start, ops.start, side="right")
        first = np.flatnonzero(np.diff(recording, prepend=-1))
        window = Intervals(ops.start[first], ops.end[np.append(first[1:], len(recording)) - 1])
    engine = engine_calls(run, rank)
    backward = join(engine.spans, annotated(run, rank, _BACKWARD))
    sets = {
        DATALOADER: dataloader_spans(run, rank),
        OPTIMIZER: annotated(run, rank, OPTIMIZER_PATTERN),
        RECOMPUTE: _recomputed(run, rank, engine),
        BACKWARD: backward,
        FORWARD: join(_before_backward(ops, backward, window), annotated(run, rank, _FORWARD)),
        OTHER: ops,
    }
    pieces, taken = [], EMPTY
    for phase, times in sets.items():
        piece = intersect(subtract(times, taken), window)
        pieces.append((piece, np.full(len(piece.start), phase)))
        taken = join(taken, times)
    return _filled(pieces, window)


def _filled(pieces: list[tuple[Intervals, Ints]], window: Intervals) -> Partition:
    """Time between two intervals of one phase in one step belongs to that phase: the host is in Python."""
    start = np.concatenate([piece.start for piece, _ in pieces])
    end = np.concatenate([piece.end for piece, _ in pieces])
    phase = np.concatenate([numbers for _, numbers in pieces])
    order = np.argsort(start, kind="stable")
    start, end, phase = start[order], end[order], phase[order]
    step = np.searchsorted(window.start, start, side="right")
    same = (phase[1:] == phase[:-1]) & (step[1:] == step[:-1])
    ends = end.copy()
    ends[:-1][same] = start[1:][same]
    # A cut at each start, and a cut to OTHER where no interval follows directly.
    open_end = np.append(ends[:-1] != start[1:], True) if len(start) else np.empty(0, dtype=bool)
    cuts = np.concatenate([start, ends[open_end]])
    labels = np.concatenate([phase, np.full(int(open_end.sum()), OTHER)])
    order = np.argsort(cuts, kind="stable")
    return Partition(cuts[order], labels[order], window)


def _before_backward(ops: Intervals, backward: Intervals, window: Intervals) -> Intervals:
    """Ops of each step up to the end of its last backward pass; all ops if it has none."""
    inside = intersect(backward, window)
    last = np.full(len(window.start) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, np.searchsorted(window.start, inside.start, side="right"), inside.end)
    last[last == np.iinfo(np.int64).min] = np.iinfo(np.int64).max
    limit = last[np.searchsorted(window.start, ops.start, side="right")]
    early = ops.start < limit
    return Intervals(ops.start[early], ops.end[early])


def _recomputed(run: Run, rank: int, engine: HostEvents) -> Intervals:
    """In each call of autograd's engine, the time from the first forward op to the last; nested calls are separate."""
    if len(engine.track) == 0 or not _recomputes(run, rank, engine):
        return EMPTY
    ops, around = _forward_ops(run, rank, engine, int(engine.start.min()), int(engine.end.max()))
    first = np.full(len(engine.track), np.iinfo(np.int64).max)
    last = np.full(len(engine.track), np.iinfo(np.int64).min)
    np.minimum.at(first, around, ops["start"])
    np.maximum.at(last, around, ops["stop"])
    times = EMPTY
    for level in nest(engine.track, engine.start, engine.end).levels:
        calls = union(engine.start[level], engine.end[level])
        times = join(subtract(times, calls), union(first[level], last[level]))
    return times


@once_per_run
def _recomputing(run: Run) -> dict[int, bool]:
    """Whether anything is recomputed, by the number of ops; `_recomputes` fills it."""
    return {}


def _recomputes(run: Run, rank: int, engine: HostEvents) -> bool:
    """Whether anything is recomputed, judged by the step with the most ops on the backward threads.

    Arguments are slow to read, and most runs recompute nothing. Recomputation adds ops, so if this step has none, no
    step is expected to have any. Ranks with the same number of ops in their step are assumed to run the same program.
    """
    counted = _ops_by_step(run)
    mine = (counted["rank"] == rank) & np.isin(counted["track"], engine.track)
    steps, which = np.unique(counted["step"][mine], return_inverse=True)
    sums = np.bincount(which, weights=counted["ops"][mine])
    step, ops = (int(steps[sums.argmax()]), int(sums.max())) if len(steps) else (-1, -rank)
    answers = _recomputing(run)
    if ops not in answers:
        window = host_windows(run, rank, Scope(steps=(step, step)))
        low = max([int(engine.start.min()), *window.start.tolist()])
        high = min([int(engine.end.max()), *window.end.tolist()])
        answers[ops] = len(_forward_ops(run, rank, engine, low, high)[1]) > 0
    return answers[ops]


@once_per_run
def _ops_by_step(run: Run) -> dict[str, Any]:
    return run.arrays(
        "SELECT rank::BIGINT AS rank, track::BIGINT AS track, step::BIGINT AS step, count(*) AS ops FROM slices "
        "WHERE category = 'cpu_op' AND step IS NOT NULL GROUP BY ALL"
    )


def _forward_ops(run: Run, rank: int, engine: HostEvents, low: int, high: int) -> tuple[dict[str, Any], Ints]:
    """The forward ops that start in [low, high) inside a call of the engine, and the index of that call."""
    parts = []
    for entry in (entry for entry in run.segments if entry.rank == rank):
        shift = (
            run.shift_ns(entry) - entry.manifest["origin_ns"]
        )  # from the clock of the file to that of the run
        parts.append(
            run.arrays(f"""
                SELECT s.track::BIGINT AS track, s.start_ns AS start, s.start_ns + greatest(s.dur_ns, 0) AS stop
                FROM (
                    SELECT e.id FROM events e WHERE e.rank = {rank} AND e.segment = {entry.segment}
                    AND e.category = 'cpu_op' AND e.ts_ns >= {low - shift} AND e.ts_ns < {high - shift}
                    AND {_IS_FORWARD}
                ) e JOIN (FROM slices WHERE rank = {rank} AND segment = {entry.segment} AND category = 'cpu_op') s
                ON s.id = e.id
            """)
        )
    ops = {name: np.concatenate([part[name] for part in parts]) for name in ("track", "start", "stop")}
    nesting = nest(engine.track, engine.start, engine.end)
    around = slice_at(
        nesting, engine.track, engine.start, engine.end - engine.start, ops["track"], ops["start"]
    )
    inside = around != UNKNOWN
    return {name: values[inside] for name, values in ops.items()}, around[inside]
