"""Memory per rank and device: peaks and their time, reserved but unused memory, growth over steps, and the curve."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from rankscope.analysis.core.ceilings import device_memory
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.fragmentation import FULL_PCT, MIN_FREE_BYTES, MIN_FREE_PCT
from rankscope.analysis.memory.never_freed import (
    NeverFreed,
    leak_findings,
    lowest_totals,
    never_freed,
    snapshot_steps,
)
from rankscope.analysis.memory.snapshot import SnapshotPeak, covers_the_run, last_snapshots, snapshot_peaks
from rankscope.model import MEMORY_SEGMENTS, SNAPSHOT_CATEGORY
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

IS_MEMORY_EVENT = "name = '[memory]' AND allocated_bytes IS NOT NULL"
DEVICE_NAME = "CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END"

NO_MEMORY_EVENTS = (
    "the trace has no [memory] events; rankscope profile --profile-memory (profile_memory=True) records them"
)


POINTS = 300
"""Number of time intervals. Each keeps its highest and its last value, so that the curve shows the peak of each
interval and does not extend it."""

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("ts_ns", "ns", "time since the start of the run"),
    Column("allocated_bytes", "bytes", "used by tensors: the highest or the last value in an interval"),
    Column("reserved_bytes", "bytes", "held by the caching allocator at that time"),
)


def memory_curve(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One or two rows per rank, device and interval in which something was allocated or freed. From [memory] events, or
    else from the history of the last snapshot."""
    in_snapshots = "FROM recorded WHERE false"
    if run.has(MEMORY_SEGMENTS) and covers_the_run(run, scope):
        in_snapshots = f"""
            SELECT rank, concat('GPU ', device) AS device, ts_ns, allocated_bytes, reserved_bytes
            FROM instants i JOIN ({last_snapshots(scope)}) USING (rank, segment)
            WHERE category = '{SNAPSHOT_CATEGORY}' AND allocated_bytes IS NOT NULL
            AND NOT EXISTS (FROM recorded r WHERE r.rank = i.rank AND r.device = concat('GPU ', i.device))
        """
    rows = run.records(f"""
        WITH recorded AS (
            SELECT rank, {DEVICE_NAME} AS device, ts_ns, allocated_bytes, reserved_bytes
            FROM instants WHERE {IS_MEMORY_EVENT} AND {scope.where()}
        ), points AS (FROM recorded UNION ALL {in_snapshots}), bounds AS (
            SELECT min(ts_ns) AS low, greatest(max(ts_ns) - min(ts_ns), 1) AS width FROM points
        )
        SELECT DISTINCT rank, device, p.ts_ns AS ts_ns, p.allocated_bytes AS allocated_bytes,
               p.reserved_bytes AS reserved_bytes
        FROM (SELECT rank, device, unnest([arg_max(p, allocated_bytes), arg_max(p, ts_ns)]) AS p
        FROM (
            SELECT *, (ts_ns - low) * {POINTS} // width AS interval_number,
                   {{'ts_ns': ts_ns, 'allocated_bytes': allocated_bytes, 'reserved_bytes': reserved_bytes}} AS p
            FROM points, bounds
        ) GROUP BY rank, device, interval_number) ORDER BY rank, device, ts_ns
    """)
    notes = left_out(run, scope)
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    return Result("memory_curve", "Memory over time", scope.window, COLUMNS, rows, notes=tuple(notes))


# Smaller growth may be a cache that fills up, or a counter in a tensor. Chosen; the exam cases leak-* grow faster.
_MIN_GROWTH_BYTES = 1_000_000

_GROWTH = Column("growth_bytes", "bytes", "mean rise per step of the lowest allocated total in a step")


def memory(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device, from [memory] events or else from a snapshot; --by step: one per step."""
    in_steps = [
        {"rank": rank, **memory._asdict(), "at_ns": memory.at_ns + run.origin_ns(rank)}
        for rank, of_rank in rank_memory(run, scope).items()
        for memory in of_rank
        if scope.has_step(memory.step)
    ]
    troughs: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row in in_steps:
        least = row.pop("least_bytes")
        if row["step"] is not None:
            troughs.setdefault((row["rank"], row["device"]), []).append((row["step"], least))
    rows = [row for row in in_steps if row["step"] is not None] if by == "step" else _over_steps(in_steps)
    if by != "step":
        for row in rows:
            row["growth_bytes"] = _growth(troughs.get((row["rank"], row["device"]), []))
    notes = []
    no_peak: set[tuple[int, str]] = set()
    in_pieces: set[tuple[int, str]] = set()
    leaks: list[NeverFreed] = []
    if by != "step" and covers_the_run(run, scope):
        traced = {(row["rank"], row["device"]) for row in rows}
        for steps in snapshot_steps(run, scope):
            leaks += never_freed(run, steps)
            if (device := (steps.rank, f"GPU {steps.device}")) not in traced:
                troughs[device] = lowest_totals(run, steps)
        all_peaks = snapshot_peaks(run, scope)
        in_pieces = {(p.rank, f"GPU {p.device}") for p in all_peaks if p.event is not None}
        peaks = [p for p in all_peaks if (p.rank, f"GPU {p.device}") not in traced]
        # Of a device that has a snapshot and no [memory] events; with both, the events are used.
        rows += [
            {
                "rank": peak.rank,
                "device": f"GPU {peak.device}",
                "peak_allocated_bytes": peak.allocated_bytes,
                "peak_reserved_bytes": peak.reserved_bytes,
                "at_ns": peak.at_ns,
                "unused_bytes": peak.unused_bytes,
                "growth_bytes": _growth(troughs.get((peak.rank, f"GPU {peak.device}"), [])),
            }
            for peak in peaks
        ]
        rows.sort(key=lambda row: (row["rank"], row["device"]))
        notes += _snapshot_notes(peaks)
        no_peak = {(p.rank, f"GPU {p.device}") for p in peaks if p.event is None}
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    elif by != "step" and not troughs:
        notes.append("no steps in the trace, so growth is unknown; profiler.step() marks them")
    at_peak = [row for row in rows if (row["rank"], row["device"]) not in no_peak]
    named = {(leak.rank, f"GPU {leak.device}") for leak in leaks}
    findings = (
        *leak_findings(run, scope, leaks),
        *_leaks({device: values for device, values in troughs.items() if device not in named}),
        *_pressure(run, scope, at_peak, in_pieces),
    )
    findings = () if by == "step" else findings
    columns = (
        Column("rank"),
        Column("device"),
        *((Column("step"),) if by == "step" else ()),
        Column("peak_allocated_bytes", "bytes", "most memory used by tensors"),
        Column("peak_reserved_bytes", "bytes", "most memory held by the caching allocator"),
        Column("at_ns", "ns", "time of the allocated peak, since the start of the run"),
        Column("unused_bytes", "bytes", "reserved minus allocated, at the allocated peak"),
        *((_GROWTH,) if by is None else ()),
    )
    return Result("memory", "Memory", scope.window, columns, rows, findings, tuple(notes))


def _snapshot_notes(peaks: list[SnapshotPeak]) -> list[str]:
    """Which rows are from snapshots, and what those snapshots do not tell."""
    kinds = (
        ("from memory snapshots: {}; sizes as requested, not rounded up", peaks),
        (
            "the history of the snapshot has no times: {}; the peak is the highest total in the order of its entries, "
            "when it was is unknown",
            [peak for peak in peaks if peak.event is not None and peak.at_ns is None],
        ),
        (
            "the snapshot has no history: {}; the figures are from when it was taken, the peak may have been higher "
            "(torch.cuda.memory._record_memory_history() records the history)",
            [peak for peak in peaks if peak.event is None],
        ),
    )
    notes = []
    for text, some in kinds:
        if some:
            notes.append(text.format(rank_words({peak.rank for peak in some})))
    return notes


class StepMemory(NamedTuple):
    """The memory of one device in one step; step None: events outside steps."""

    device: str
    step: int | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    at_ns: int
    """Of the peak, from the start of the rank's first file."""
    unused_bytes: int
    least_bytes: int
    """The lowest allocated total: it rises if earlier steps do not free their memory."""


@kept_per_rank("memory", list[StepMemory], any_window=True)
def rank_memory(run: Run, scope: Scope) -> dict[int, list[StepMemory]]:
    """Of the ranks with [memory] events, by device and step."""
    steps_of: dict[int, list[StepMemory]] = {}
    for rank, *row in run.rows(f"""
        SELECT rank, {DEVICE_NAME} AS device, step, max(allocated_bytes), max(reserved_bytes),
               arg_max(ts_ns, key), greatest(arg_max(reserved_bytes - allocated_bytes, key), 0), min(allocated_bytes)
        FROM (SELECT *, (allocated_bytes, -ts_ns) AS key FROM instants
              WHERE {IS_MEMORY_EVENT} AND {scope.where()})
        GROUP BY ALL ORDER BY rank, device, step
    """):
        step = StepMemory._make(row)
        steps_of.setdefault(rank, []).append(step._replace(at_ns=step.at_ns - run.origin_ns(rank)))
    return steps_of


def _over_steps(in_steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per rank and device: the step with the highest peak, the first of equals."""
    by_device: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in in_steps:
        by_device.setdefault((row["rank"], row["device"]), []).append(row)
    rows = []
    for steps in by_device.values():
        best = max(steps, key=lambda row: (row["peak_allocated_bytes"], -row["at_ns"]))
        reserved = [row["peak_reserved_bytes"] for row in steps if row["peak_reserved_bytes"]]
        row = best | {"peak_reserved_bytes": max(reserved, default=None)}
        del row["step"]
        rows.append(row)
    return rows


def _growth(troughs: list[tuple[int, int]]) -> int | None:
    """Bytes per step; None with fewer than two steps."""
    if len(troughs) < 2:
        return None
    (first, low), (last, high) = troughs[0], troughs[-1]
    return round((high - low) / (last - first))


def _leaks(troughs: dict[tuple[int, str], list[tuple[int, int]]]) -> list[Finding]:
    """Memory that grows in every step: info after two increases in a row, warning after three."""
    findings = []
    for (rank, device), values in troughs.items():
        grown = [after[1] - before[1] for before, after in pairwise(values)]
        if len(grown) < 2 or min(grown) < _MIN_GROWTH_BYTES:
            continue
        subject, key = f"{device} of rank {rank}", {"rank": rank, "device": device}
        growth = Fact("growth_bytes", _growth(values) or 0, "bytes", subject, (rank,), key)
        low, high = (
            Fact("least_bytes", size, "bytes", f"{subject}, step {step}", (rank,), key | {"step": step})
            for step, size in (values[0], values[-1])
        )
        findings.append(
            Finding(
                "warning" if len(grown) >= 3 else "info",
                f"Memory on {device} of rank {rank} grows by {_size(growth)} per step",
                ranks=(rank,),
                advice="Look for tensors that are kept alive, such as a list of losses (append loss.item()) or a "
                "retained graph.",
                command=argv("rankscope stats RUN -r memory.allocators"),
                facts=(growth, low, high),
            )
        )
    return findings


def _size(fact: Fact) -> str:
    """The bytes of a fact, for a text."""
    return format_rounded("bytes", float(fact.value or 0))


def _pressure(
    run: Run, scope: Scope, rows: list[dict[str, Any]], in_pieces: set[tuple[int, str]]
) -> list[Finding]:
    """Devices that are nearly full, and devices with much reserved memory that is not allocated at the peak; of those
    `in_pieces`, which have a snapshot, `fragmentation` tells it."""
    findings = []
    sizes = device_memory(run, scope)
    for row in rows:
        if row["device"] == "CPU":
            continue
        rank, device, size = row["rank"], row["device"], sizes.get(row["rank"])
        subject = f"{device} of rank {rank}"
        reserved, unused, allocated = (
            Fact(name, row[name] or 0, "bytes", subject, (rank,), {"rank": rank, "device": device})
            for name in ("peak_reserved_bytes", "unused_bytes", "peak_allocated_bytes")
        )
        held, idle = int(reserved.value or 0), int(unused.value or 0)
        span = None if row["at_ns"] is None else (row["at_ns"], row["at_ns"])
        full = size is not None and 100 * held > FULL_PCT * size
        if full and size:
            capacity = replace(reserved, quantity="device_memory_bytes", value=size, row={})
            share = replace(
                reserved, quantity="reserved_pct", value=100 * held / size, unit="percent", row={}
            )
            findings.append(
                Finding(
                    "warning",
                    f"Memory of {device} (rank {rank}) is {share.value:.0f} % full",
                    ranks=(rank,),
                    span=span,
                    advice="An allocator that cannot grow synchronises in the middle of a step. Use smaller batches, "
                    "activation checkpointing or fewer temporaries.",
                    command=argv("rankscope stats RUN -r memory.allocators"),
                    facts=(share, reserved, capacity),
                )
            )
        much = idle >= MIN_FREE_BYTES and 100 * idle > MIN_FREE_PCT * held
        if held and much and (rank, device) not in in_pieces:
            findings.append(
                Finding(
                    "warning" if full else "info",
                    f"{_size(unused)} on {device} (rank {rank}) is reserved but not allocated at the peak",
                    ranks=(rank,),
                    span=span,
                    advice="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces unused reserved memory.",
                    facts=(unused, reserved, allocated),
                )
            )
    return findings
