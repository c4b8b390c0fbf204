"""Phases of the step: host time and GPU work in data loading, forward, backward, recomputation and optimizer."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN, device_events, steps_in
from rankscope.analysis.core.host_spans import annotated, dataloader_spans, engine_calls, op_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, intersect, join, length, subtract, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import OnRank, of_the_worst
from rankscope.analysis.core.step_times import host_windows, recordings
from rankscope.analysis.within_rank.recomputation import recomputed
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

PHASES = ("dataloader", "forward", "backward", "recompute", "optimizer", "other")
DATALOADER, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(len(PHASES))

RECOMPUTE_INFO = 0.05
"""Share of the GPU time. Recomputation trades time for memory on purpose, so the finding is never a warning."""

# Annotations that name a phase: those of torch, and common names of user and NVTX ranges.
_OPTIMIZER = r"^Optimizer\.(?:step|zero_grad)#|^\W*(?:optimizer|optim)(?:[^a-z]|$)"
_BACKWARD = r"^\W*(?:backward|bwd)(?:[^a-z]|$)"
_FORWARD = r"^\W*(?:forward|fwd|loss)(?:[^a-z]|$)"

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
        found = np.bincount(self.phase, weights=sizes, minlength=len(PHASES)).astype(np.int64)
        found[OTHER] = length(self.window) - int(found[:OTHER].sum())
        return [int(time) for time in found]


def phases(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and phase that occurs."""
    rows: list[dict[str, Any]] = []
    findings: list[OnRank] = []
    steps = steps_in(run, scope)
    for rank, found in rank_phases(run, scope).items():
        own = found.rows(rank)
        rows += own
        findings += _recomputation_finding(rank, own, steps)
    notes = left_out(run, scope)
    seen = {row["phase"] for row in rows}
    if not rows:
        notes.append("no ops and no annotations in the window; ProfilerActivity.CPU records them")
    elif not seen & {"backward", "optimizer"}:
        notes.append(
            "no backward pass and no optimizer in the window; if ops are not recorded (nsys), mark the phases with "
            "ranges named forward, backward and optimizer: torch.cuda.nvtx.range('backward')"
        )
    if rows and not steps:
        notes.append("no steps in the trace: host time is from the first op to the last of each recording")
    return Result(
        "phases", "Phases of the step", scope.window, COLUMNS, rows, of_the_worst(findings), tuple(notes)
    )


@dataclass(frozen=True)
class RankPhases:
    """The time of one rank in each of PHASES, and the GPU events that were launched in it."""

    host_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
    events: tuple[int, ...]

    def rows(self, rank: int) -> list[dict[str, Any]]:
        """The phases that occur."""
        host_total, device_total = sum(self.host_ns), sum(self.device_ns)
        return [
            {
                "rank": rank,
                "phase": name,
                "host_ns": host,
                "host_pct": 100 * host / host_total if host_total else None,
                "device_ns": device,
                "device_pct": 100 * device / device_total if device_total else None,
                "events": events,
            }
            for name, host, device, events in zip(
                PHASES, self.host_ns, self.device_ns, self.events, strict=True
            )
            if host or events
        ]


@kept_per_rank("phases", RankPhases, version=1)
def rank_phases(run: Run, scope: Scope) -> dict[int, RankPhases]:
    """By rank."""
    return {rank: _phases_of(run, rank, scope) for rank in scope.ranks_in(run)}


def _phases_of(run: Run, rank: int, scope: Scope) -> RankPhases:
    partition = partition_of(run, rank, scope)
    events = device_events(run, rank, scope)
    known = events.launch_start != UNKNOWN
    phase = np.where(known, partition.at(events.launch_start), OTHER)
    size = len(PHASES)
    device = np.bincount(phase, weights=events.end - events.start, minlength=size).astype(np.int64)
    counts = np.bincount(phase, minlength=size)
    return RankPhases(tuple(partition.lengths()), tuple(device.tolist()), tuple(counts.tolist()))


def _recomputation_finding(rank: int, rows: list[dict[str, Any]], steps: int) -> list[OnRank]:
    row = next((row for row in rows if row["phase"] == "recompute"), None)
    if row is None:
        return []
    on_device = row["device_pct"] is not None
    share, time = (row["device_pct"], row["device_ns"]) if on_device else (row["host_pct"], row["host_ns"])
    if share is None or share < 100 * RECOMPUTE_INFO:
        return []
    per_step = f" ({format_rounded('ns', time / steps)} per step)" if steps else ""
    where = "GPU" if on_device else "host"
    key = {"rank": rank, "phase": "recompute"}
    column = "device" if on_device else "host"
    finding = Finding(
        "info",
        f"Recomputation takes {share:.0f} % of the {where} time of rank {rank}{per_step}",
        f"rank {rank}: {format_rounded('ns', time)} in forward ops that run inside the backward pass",
        (rank,),
        hint="Activation checkpointing trades time for memory. If memory is free (-r memory), checkpoint fewer layers.",
        facts=(
            Fact(f"{column}_ns", time, "ns", f"rank {rank}", (rank,), key),
            Fact(f"{column}_pct", share, "percent", f"rank {rank}", (rank,), key),
        ),
    )
    return [OnRank(rank, share, finding)]


@once_per_run
def _partitions(run: Run, steps: tuple[int, int] | None) -> dict[int, Partition]:
    """By rank; `partition_of` fills it."""
    return {}


def partition_of(run: Run, rank: int, scope: Scope) -> Partition:
    """A rank's time on the host by phase; computed once."""
    known = _partitions(run, scope.steps)
    if rank not in known:
        known[rank] = _partition(run, rank, scope)
    return known[rank]


def _partition(run: Run, rank: int, scope: Scope) -> Partition:
    steps = host_windows(run, rank, scope)
    ops = op_spans(run, rank)
    window = union(steps.start, steps.end)
    if len(window.start) == 0:
        if len(ops.start) == 0:
            return Partition(EMPTY.start, EMPTY.start, EMPTY)
        window = _extent(ops, recordings(run)[rank])
    engine = engine_calls(run, rank)
    backward = join(union(engine[1], engine[2]), annotated(run, rank, _BACKWARD))
    sets = {
        DATALOADER: dataloader_spans(run, rank),
        OPTIMIZER: annotated(run, rank, _OPTIMIZER),
        RECOMPUTE: recomputed(run, rank, *engine),
        BACKWARD: backward,
        FORWARD: join(_before_backward(ops, backward, window), annotated(run, rank, _FORWARD)),
        OTHER: ops,
    }
    pieces, taken = [], EMPTY
    for phase, found in sets.items():
        own = intersect(subtract(found, taken), window)
        pieces.append((own, np.full(len(own.start), phase)))
        taken = join(taken, found)
    return _filled(pieces, window)


def _extent(ops: Intervals, recorded: Intervals) -> Intervals:
    """From the first op to the last of each recording."""
    place = np.searchsorted(recorded.start, ops.start, side="right")
    first = np.flatnonzero(np.diff(place, prepend=-1))
    last = np.append(first[1:], len(place)) - 1
    return Intervals(ops.start[first], ops.end[last])


def _filled(pieces: list[tuple[Intervals, Ints]], window: Intervals) -> Partition:
    """Time between two intervals of one phase in one step belongs to that phase: the host is in Python."""
    start = np.concatenate([own.start for own, _ in pieces])
    end = np.concatenate([own.end for own, _ in pieces])
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
