"""What is allocated at the memory peak, by the op and the line of Python that allocated it.

An address is live if its last event up to the peak is an allocation. Memory allocated before the recording has no
event: it is the allocator's own total minus the live allocations.
"""

from __future__ import annotations

from collections import Counter

from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import Holder, covers_the_run, held_at_peak
from rankscope.analysis.memory.usage import DEVICE_NAME, IS_MEMORY_EVENT, NO_MEMORY_EVENTS
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run

BEFORE = "(before the recording)"
UNKNOWN = "(no op around it)"


def live_at_peak(run: Run, scope: Scope) -> list[Holder]:
    """Live allocations at the peak of each rank and device."""
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
        Holder(rank, device, op or UNKNOWN, source, size, count, module)
        for rank, device, op, module, source, size, count in rows
    ]
    held = Counter[tuple[int, str]]()
    for holder in holders:
        held[holder.rank, holder.device] += holder.bytes
    for rank, device, allocated, _ in peaks:
        rest = allocated - held[rank, device]
        if rest > 0:
            holders.append(Holder(rank, device, BEFORE, None, rest, None))
    return holders


def allocators(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per device, op and line, largest first; with --by module also per module.

    From a device's snapshot if it has one and all steps are in scope, otherwise from the events of the trace.
    """
    snapped = held_at_peak(run, scope) if covers_the_run(run, scope) else []
    seen = {(held.rank, held.device) for held in snapped}
    holders = [held for held in live_at_peak(run, scope) if (held.rank, held.device) not in seen] + snapped
    keys = ("rank", "device", "name", "source", "module")[: 5 if by == "module" else 4]
    sums = summed(
        (tuple(getattr(holder, key) for key in keys), (holder.bytes, holder.count or 0)) for holder in holders
    )
    rows = [
        dict(zip(keys, key, strict=True)) | {"bytes": size, "count": count or None}
        for key, (size, count) in sums.items()
    ]
    rows.sort(
        key=lambda row: (
            row["rank"], row["device"] == "CPU", row["device"], -row["bytes"], row["name"], row["source"] or "",
            row.get("module") or "",
        )
    )  # fmt: skip
    notes = [f"from memory snapshots: {rank_words({held.rank for held in snapped})}"] if snapped else []
    if not rows:
        notes.append(NO_MEMORY_EVENTS)
    elif all(holder.source is None for holder in holders):
        notes.append(
            "the trace has no lines of Python; rankscope profile --with-stack (with_stack=True) records them"
        )
    columns = (
        Column("rank"),
        Column("name", help="op that allocated it", at_end=True),
        Column("bytes", "bytes", "allocated at the peak"),
        Column("count", "count", "number of allocations"),
        Column("source", help="line of Python that called the op", at_end=True),
        *((Column("module", help="nn.Module that called the op", at_end=True),) if by == "module" else ()),
        Column("device"),
    )
    title = "Memory allocated at the peak"
    return Result("memory.allocators", title, scope.window, columns, rows, notes=tuple(notes))
