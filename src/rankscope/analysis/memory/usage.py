"""Memory per rank and device: the peaks and their time, reserved but unused memory, growth over steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rankscope.analysis.core.ceilings import device_memory
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.allocator_events import DEVICE_NAME, IS_MEMORY_EVENT, NO_MEMORY_EVENTS
from rankscope.analysis.memory.snapshot import snapshot_peaks
from rankscope.ranges import as_ranges
from rankscope.store.run import Run
from rankscope.units import format_rounded

# Smaller growth may be a cache that fills up, or a counter in a tensor.
_MIN_GROWTH_BYTES = 1_000_000
# A finding on unused memory needs both: a share of the reserved memory, and a size.
_UNUSED_PCT = 25.0
_MIN_UNUSED_BYTES = 1_000_000_000
_FULL_PCT = 92.0

_GROWTH = Column(
    "growth_bytes", "bytes", "mean rise per step of the lowest allocated total in a step", per_row_unit=True
)


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
        Column("rank"),
        Column("device"),
        *((Column("step"),) if by == "step" else ()),
        Column("peak_allocated_bytes", "bytes", "most memory used by tensors", per_row_unit=True),
        Column(
            "peak_reserved_bytes", "bytes", "most memory held by the caching allocator", per_row_unit=True
        ),
        Column("at_ns", "ns", "time of the allocated peak, since the start of the run"),
        Column("unused_bytes", "bytes", "reserved minus allocated, at the allocated peak", per_row_unit=True),
        *((_GROWTH,) if by is None else ()),
    )


def memory(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device, from [memory] events or else from a snapshot; --by step: one per step."""
    in_steps = _by_step(run, scope)
    troughs: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for row in in_steps:
        least = row.pop("least_bytes")
        if row["step"] is not None:
            troughs.setdefault((row["rank"], row["device"]), []).append((row["step"], least))
    rows = [row for row in in_steps if row["step"] is not None] if by == "step" else _over_steps(in_steps)
    if by != "step":
        for row in rows:
            row["growth_bytes"] = _growth(troughs.get((row["rank"], row["device"]), []))
    notes = left_out(run, scope)
    if by != "step" and scope.steps is None:
        more_rows, note = _from_snapshots(run, scope, {(row["rank"], row["device"]) for row in rows})
        rows = sorted([*rows, *more_rows], key=lambda row: (row["rank"], row["device"]))
        notes += note
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    elif by != "step" and not troughs:
        notes.append("no steps in the trace, so growth is unknown; profiler.step() marks them")
    timed = [row for row in rows if row["at_ns"] is not None]
    found = () if by == "step" else (*_leaks(troughs), *_pressure(run, scope, timed))
    return Result("memory", "Memory", scope.window, _columns(by), rows, tuple(found), tuple(notes))


def _from_snapshots(
    run: Run, scope: Scope, known: set[tuple[int, str]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Devices that have a snapshot and no [memory] events; with both, the events are used."""
    rows: list[dict[str, Any]] = [
        {
            "rank": peak.rank,
            "device": f"GPU {peak.device}",
            "peak_allocated_bytes": peak.allocated_bytes,
            "peak_reserved_bytes": peak.reserved_bytes,
            "at_ns": peak.at_ns,
            "unused_bytes": peak.unused_bytes,
            "growth_bytes": None,
        }
        for peak in snapshot_peaks(run, scope)
        if (peak.rank, f"GPU {peak.device}") not in known
    ]
    ranks = sorted({row["rank"] for row in rows})
    note = f"from memory snapshots: rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}; sizes as requested, not rounded up"
    return rows, [note] if rows else []


def _by_step(run: Run, scope: Scope) -> list[dict[str, Any]]:
    """One row per rank, device and step, and one for events outside steps.

    least_bytes is the lowest allocated total of the step: it rises if earlier steps do not free their memory.
    """
    return run.records(f"""
        SELECT rank, {DEVICE_NAME} AS device, step, max(allocated_bytes) AS peak_allocated_bytes,
               max(reserved_bytes) AS peak_reserved_bytes, arg_max(ts_ns, key) AS at_ns,
               greatest(arg_max(reserved_bytes - allocated_bytes, key), 0) AS unused_bytes,
               min(allocated_bytes) AS least_bytes
        FROM (SELECT *, (allocated_bytes, -ts_ns) AS key FROM instants
              WHERE {IS_MEMORY_EVENT} AND {scope.where()})
        GROUP BY ALL ORDER BY rank, device, step
    """)


def _over_steps(in_steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per rank and device: the step with the highest peak, the first of equals."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for row in in_steps:
        device = row["rank"], row["device"]
        best = found.setdefault(device, row)
        reserved = max(
            (one["peak_reserved_bytes"] for one in (best, row) if one["peak_reserved_bytes"]), default=None
        )
        if (row["peak_allocated_bytes"], -row["at_ns"]) > (best["peak_allocated_bytes"], -best["at_ns"]):
            best = row
        found[device] = best | {"peak_reserved_bytes": reserved}
    for row in found.values():
        del row["step"]
    return list(found.values())


def _growth(troughs: list[tuple[int, int]]) -> int | None:
    """Bytes per step; None with fewer than two steps."""
    if len(troughs) < 2:
        return None
    (first, low), (last, high) = troughs[0], troughs[-1]
    return round((high - low) / (last - first))


def _leaks(troughs: dict[tuple[int, str], list[tuple[int, int]]]) -> list[Finding]:
    """Memory that grows in every step: info after two increases in a row, warning after three."""
    found = []
    for (rank, device), values in troughs.items():
        grown = [after[1] - before[1] for before, after in pairwise(values)]
        if len(grown) < 2 or min(grown) < _MIN_GROWTH_BYTES:
            continue
        low, high = values[0][1], values[-1][1]
        found.append(
            Finding(
                "warning" if len(grown) >= 3 else "info",
                f"Memory on {device} of rank {rank} grows by {format_rounded('bytes', _growth(values) or 0)} per step",
                f"The lowest allocated total of a step rises from {format_rounded('bytes', low)} (step {values[0][0]}) "
                f"to {format_rounded('bytes', high)} (step {values[-1][0]}), and never falls in between.",
                (rank,),
                hint="Look for tensors that are kept alive, such as a list of losses (append loss.item()) or a "
                "retained graph. -r allocators lists what is allocated at the peak.",
            )
        )
    return found


def _pressure(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> list[Finding]:
    """Devices that are nearly full, and devices with much reserved memory that is not allocated at the peak."""
    found = []
    sizes = device_memory(run, scope)
    for row in rows:
        if row["device"] == "CPU":
            continue
        size, reserved = sizes.get(row["rank"]), row["peak_reserved_bytes"] or 0
        full = size is not None and 100 * reserved > _FULL_PCT * size
        if full and size:
            found.append(
                Finding(
                    "warning",
                    f"Memory of {row['device']} (rank {row['rank']}) is {100 * reserved / size:.0f} % full",
                    f"The allocator reserves {format_rounded('bytes', reserved)} of {format_rounded('bytes', size)}. "
                    "When it cannot grow, it frees cached blocks and synchronises in the middle of a step.",
                    (row["rank"],),
                    (row["at_ns"], row["at_ns"]),
                    hint="Use smaller batches, activation checkpointing or fewer temporaries. "
                    "-r allocators lists what is allocated at the peak.",
                )
            )
        unused = row["unused_bytes"] or 0
        if reserved and unused >= _MIN_UNUSED_BYTES and 100 * unused > _UNUSED_PCT * reserved:
            found.append(
                Finding(
                    "warning" if full else "info",
                    f"{format_rounded('bytes', unused)} on {row['device']} (rank {row['rank']}) is reserved but not "
                    "allocated at the peak",
                    f"Peak reserved: {format_rounded('bytes', reserved)}. Peak allocated: "
                    f"{format_rounded('bytes', row['peak_allocated_bytes'])}.",
                    (row["rank"],),
                    (row["at_ns"], row["at_ns"]),
                    hint="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces unused reserved memory.",
                )
            )
    return found
