"""What is allocated at the memory peak, by the op and the line of Python that allocated it."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.allocator_events import NO_MEMORY_EVENTS
from rankscope.analysis.memory.live_at_peak import Holder, live_at_peak
from rankscope.analysis.memory.snapshot import SnapshotHolder, covers_the_run, snapshot_holders
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
        Column("rank"),
        Column("name", help="op that allocated it", at_end=True),
        Column("bytes", "bytes", "allocated at the peak", per_row_unit=True),
        Column("count", "count", "number of allocations"),
        Column("source", help="line of Python that called the op", at_end=True),
        *((Column("module", help="nn.Module that called the op", at_end=True),) if by == "module" else ()),
        Column("device"),
    )


def allocators(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per device, op and line, largest first; with --by module also per module."""
    holders, notes = _holders(run, scope)
    rows = _summed(holders, by)
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    elif all(holder.source is None for holder in holders):
        notes.append(
            "the trace has no lines of Python; rankscope profile --with-stack (with_stack=True) records them"
        )
    return Result(
        "allocators", "Memory allocated at the peak", scope.window, _columns(by), rows, notes=tuple(notes)
    )


def _holders(run: Run, scope: Scope) -> tuple[list[Holder], list[str]]:
    """From a device's snapshot if it has one and all steps are in scope, otherwise from the events of the trace."""
    notes = left_out(run, scope)
    snapped = snapshot_holders(run, scope) if covers_the_run(run, scope) else []
    seen = {(held.rank, f"GPU {held.device}") for held in snapped}
    traced = [held for held in live_at_peak(run, scope) if (held.rank, held.device) not in seen]
    if snapped:
        ranks = sorted({held.rank for held in snapped})
        notes.append(f"from memory snapshots: rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}")
    return [*traced, *map(_from_snapshot, snapped)], notes


def _from_snapshot(held: SnapshotHolder) -> Holder:
    return Holder(held.rank, f"GPU {held.device}", held.name, None, held.source, held.bytes, held.count)


def _summed(holders: list[Holder], by: str | None) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for holder in holders:
        module = holder.module if by == "module" else None
        row = rows.setdefault(
            (holder.rank, holder.device, holder.name, holder.source, module),
            {"rank": holder.rank, "name": holder.name, "bytes": 0, "count": None, "source": holder.source,
             "module": module, "device": holder.device},
        )  # fmt: skip
        row["bytes"] += holder.bytes
        row["count"] = None if holder.count is None else (row["count"] or 0) + holder.count
    return sorted(rows.values(), key=lambda row: (row["rank"], row["device"] == "CPU", row["device"], -row["bytes"],
                                                  row["name"], row["source"] or ""))  # fmt: skip
