"""What is allocated at the memory peak, by the op and the line of Python that allocated it.

An address is live if its last event up to the peak is an allocation. Memory allocated before the recording has no
event: it is the allocator's own total minus the live allocations.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import covers_the_run, held_at_peak
from rankscope.analysis.memory.usage import DEVICE_NAME, IS_MEMORY_EVENT, NO_MEMORY_EVENTS
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.timeline.run import Run

BEFORE = "(before the recording)"
UNKNOWN = "(no op around it)"


@dataclass(frozen=True)
class Holder:
    """Memory live at the peak that one op and line allocated; None where stacks were not recorded."""

    rank: int
    device: str
    name: str
    """The op, or BEFORE or UNKNOWN."""
    module: str | None
    source: str | None
    """The line of Python that called the op."""
    bytes: int
    count: int | None
    """Number of allocations; None for memory allocated before the recording."""


def live_at_peak(run: Run, scope: Scope) -> list[Holder]:
    """Live allocations at the peak of each rank and device, largest first."""
    memory = (
        f"SELECT rank, segment, op, bytes, address, allocated_bytes, {DEVICE_NAME} AS holder, "
        # Order by time, then by position in the file; one number compares faster than a pair.
        f"(ts_ns::HUGEINT << 40) + id AS moment FROM instants WHERE {IS_MEMORY_EVENT} AND bytes IS NOT NULL"
    )
    peaks = run.rows(f"""
        SELECT rank, holder, max(allocated_bytes), arg_max(moment, (allocated_bytes, -moment))
        FROM ({memory} AND {scope.where()}) GROUP BY ALL
    """)
    ranks, devices, _, moments = zip(*peaks, strict=True) if peaks else ((), (), (), ())
    sql = f"""
        WITH memory_peaks AS MATERIALIZED (
            SELECT unnest(?::INTEGER[]) AS rank, unnest(?::VARCHAR[]) AS holder, unnest(?::HUGEINT[]) AS moment
        ), last AS (
            SELECT m.rank, m.holder, m.address, arg_max((m.segment, m.op, m.bytes), m.moment) AS allocation
            FROM ({memory}) m JOIN memory_peaks p ON p.rank = m.rank AND p.holder = m.holder AND m.moment <= p.moment
            GROUP BY ALL
        ), live AS (
            SELECT rank, holder, allocation[1] AS segment, allocation[2] AS op, allocation[3] AS bytes FROM last
            WHERE allocation[3] > 0
        ), named AS (
            SELECT l.*, o.name, o.module, o.python FROM live l
            LEFT JOIN (SELECT rank, segment, id, name, module, python FROM slices WHERE id IN (SELECT op FROM live)) o
            ON o.rank = l.rank AND o.segment = l.segment AND o.id = l.op
        ), frames AS (
            SELECT rank, segment, id, name FROM slices WHERE category = 'python_function'
            AND id IN (SELECT module FROM named UNION SELECT python FROM named)
        )
        SELECT n.rank, n.holder, n.name, m.name, p.name, sum(n.bytes)::BIGINT, count(*) FROM named n
        LEFT JOIN frames m ON m.rank = n.rank AND m.segment = n.segment AND m.id = n.module
        LEFT JOIN frames p ON p.rank = n.rank AND p.segment = n.segment AND p.id = n.python
        GROUP BY ALL
    """
    rows = run.rows(sql, [list(ranks), list(devices), list(moments)])
    holders = [
        Holder(rank, device, op or UNKNOWN, module, source, size, count)
        for rank, device, op, module, source, size, count in rows
    ]
    held = Counter[tuple[int, str]]()
    for holder in holders:
        held[holder.rank, holder.device] += holder.bytes
    for rank, device, allocated, _ in peaks:
        rest = allocated - held[rank, device]
        if rest > 0:
            holders.append(Holder(rank, device, BEFORE, None, None, rest, None))
    return sorted(
        holders, key=lambda h: (h.rank, h.device == "CPU", h.device, -h.bytes, h.name, h.source or "")
    )


def _columns(by: str | None) -> tuple[Column, ...]:
    return (
        Column("rank"),
        Column("name", help="op that allocated it", at_end=True),
        Column("bytes", "bytes", "allocated at the peak"),
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
    snapped = [
        Holder(held.rank, f"GPU {held.device}", held.op, None, held.source, held.bytes, held.count)
        for held in (held_at_peak(run, scope) if covers_the_run(run, scope) else ())
    ]
    seen = {(held.rank, held.device) for held in snapped}
    traced = [held for held in live_at_peak(run, scope) if (held.rank, held.device) not in seen]
    if snapped:
        notes.append(f"from memory snapshots: {rank_words({held.rank for held in snapped})}")
    return [*traced, *snapped], notes


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
