"""Device memory as the allocator reported it: peaks and when, what was held but not used, growth over steps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from rankscope.analysis.core.ceilings import device_memory
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.live_at_peak import DEVICE
from rankscope.analysis.memory.snapshot import memory_rows
from rankscope.ranges import as_ranges
from rankscope.store.run import Run
from rankscope.units import format_bytes

NO_MEMORY = (
    "the trace has no [memory] events; rankscope profile --profile-memory (profile_memory=True) records them"
)
# What is less may be a cache that fills or a counter in a tensor.
_LEAST_GROWTH = 1_000_000
_UNUSED_PCT = 25.0
_LEAST_UNUSED = 1_000_000_000
_FULL_PCT = 92.0


_GROWTH = Column("growth_bytes", "bytes", "of the least allocated, a step on average", per_row_unit=True)


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
        Column("rank"),
        Column("device"),
        *((Column("step"),) if by == "step" else ()),
        Column("peak_allocated_bytes", "bytes", "most memory in use by tensors", per_row_unit=True),
        Column(
            "peak_reserved_bytes", "bytes", "most memory held by the caching allocator", per_row_unit=True
        ),
        Column("at_ns", "ns", "when the allocated peak was reached, from the run's start"),
        Column("unused_bytes", "bytes", "reserved less allocated, at the allocated peak", per_row_unit=True),
        *((_GROWTH,) if by is None else ()),
    )


def memory(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank and device, from [memory] events, else from a snapshot; by step, one a step too."""
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
        notes.append(NO_MEMORY)
    elif by != "step" and not troughs:
        notes.append("no steps, so growth is not known; profiler.step() marks them")
    timed = [row for row in rows if row["at_ns"] is not None]
    found = () if by == "step" else (*_leaks(troughs), *_pressure(run, scope, timed))
    return Result("memory", "Memory", scope.window, _columns(by), rows, tuple(found), tuple(notes))


def _from_snapshots(
    run: Run, scope: Scope, known: set[tuple[int, str]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Devices that only a snapshot tells of; where the trace does too, the trace is used, never both."""
    rows = [row for row in memory_rows(run, scope) if (row["rank"], row["device"]) not in known]
    ranks = sorted({row["rank"] for row in rows})
    note = f"from memory snapshots: rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}; sizes as asked for, not rounded up"
    return rows, [note] if rows else []


def _by_step(run: Run, scope: Scope) -> list[dict[str, Any]]:
    """One row a rank, device and step, and one for what lies outside steps; with the least allocated, too.

    What a step leaves behind raises the next one's least.
    """
    return run.records(f"""
        SELECT rank, {DEVICE} AS device, step, max(allocated_bytes) AS peak_allocated_bytes,
               max(reserved_bytes) AS peak_reserved_bytes, arg_max(ts_ns, key) AS at_ns,
               greatest(arg_max(reserved_bytes - allocated_bytes, key), 0) AS unused_bytes,
               min(allocated_bytes) AS least_bytes
        FROM (SELECT *, (allocated_bytes, -ts_ns) AS key FROM instants
              WHERE name = '[memory]' AND allocated_bytes IS NOT NULL AND {scope.where()})
        GROUP BY ALL ORDER BY rank, device, step
    """)


def _over_steps(in_steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a rank and device: the step with the highest peak, the first of several."""
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
    """Bytes a step; None with fewer than two steps."""
    if len(troughs) < 2:
        return None
    (first, low), (last, high) = troughs[0], troughs[-1]
    return round((high - low) / (last - first))


def _leaks(troughs: dict[tuple[int, str], list[tuple[int, int]]]) -> list[Finding]:
    """Memory that grows in every step does not stop by itself; three increases in a row are no accident."""
    found = []
    for (rank, device), values in troughs.items():
        grown = [after[1] - before[1] for before, after in pairwise(values)]
        if len(grown) < 2 or min(grown) < _LEAST_GROWTH:
            continue
        low, high = values[0][1], values[-1][1]
        found.append(
            Finding(
                "warning" if len(grown) >= 3 else "info",
                f"memory on {device} of rank {rank} grows by {format_bytes(_growth(values) or 0)} a step",
                f"The least allocated goes from {format_bytes(low)} in step {values[0][0]} to {format_bytes(high)} in "
                f"step {values[-1][0]}, and grows in each of the {len(grown)} steps between.",
                (rank,),
                hint="Something keeps tensors: a list of losses (append loss.item()), a graph kept alive. "
                "Who holds it: -r allocators",
            )
        )
    return found


def _pressure(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> list[Finding]:
    """Memory that is nearly full, and memory the allocator holds without using it."""
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
                    f"{row['device']} of rank {row['rank']} is {100 * reserved / size:.0f} % full",
                    f"The allocator holds {format_bytes(reserved)} of {format_bytes(size)}; once it cannot grow, it "
                    "frees and synchronises in the middle of a step.",
                    (row["rank"],),
                    (row["at_ns"], row["at_ns"]),
                    hint="Smaller batches, activation checkpointing, or fewer temporaries: -r allocators",
                )
            )
        unused = row["unused_bytes"] or 0
        if reserved and unused >= _LEAST_UNUSED and 100 * unused > _UNUSED_PCT * reserved:
            found.append(
                Finding(
                    "warning" if full else "info",
                    f"{format_bytes(unused)} of {row['device']}'s memory is held but not used at the peak "
                    f"(rank {row['rank']})",
                    f"{format_bytes(reserved)} are reserved, {format_bytes(row['peak_allocated_bytes'])} allocated.",
                    (row["rank"],),
                    (row["at_ns"], row["at_ns"]),
                    hint="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets the allocator reuse it.",
                )
            )
    return found
