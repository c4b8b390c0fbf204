"""Allocations from [memory] events that are live at the memory peak, with the op that made each.

An address is live if its last event up to the peak is an allocation. Memory allocated before the recording has no
event: it is the allocator's own total minus the live allocations.
"""

from __future__ import annotations

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.allocator_events import DEVICE_NAME, IS_MEMORY_EVENT
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
    found = run.rows(sql, [list(ranks), list(devices), list(moments)])
    holders = [
        Holder(rank, device, op or UNKNOWN, module, source, size, count)
        for rank, device, op, module, source, size, count in found
    ]
    held: dict[tuple[int, str], int] = {}
    for holder in holders:
        held[holder.rank, holder.device] = held.get((holder.rank, holder.device), 0) + holder.bytes
    for rank, device, allocated, _ in peaks:
        rest = allocated - held.get((rank, device), 0)
        if rest > 0:
            holders.append(Holder(rank, device, BEFORE, None, None, rest, None))
    return sorted(
        holders, key=lambda h: (h.rank, h.device == "CPU", h.device, -h.bytes, h.name, h.source or "")
    )
