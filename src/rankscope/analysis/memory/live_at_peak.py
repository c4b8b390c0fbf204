"""What was in memory at the peak: the allocations of [memory] events that were not freed yet, and who made them.

An address is live when the last thing that happened to it, up to the peak, was an allocation. What was allocated
before the recording began has no event; it is the difference to the allocator's own total.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

BEFORE = "(before the recording)"
UNKNOWN = "(no op around it)"

_EVENTS = "name = '[memory]' AND allocated_bytes IS NOT NULL AND bytes IS NOT NULL"
# 'GPU 0' for people; which allocator it is, for joins.
DEVICE = "CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END"


@dataclass(frozen=True)
class Holder:
    """Memory live at the peak, by who allocated it; None where stacks or ops were not recorded."""

    rank: int
    device: str
    name: str
    """The op, or why there is none."""
    module: str | None
    source: str | None
    """The line of Python."""
    bytes: int
    count: int | None
    """Allocations; None for what was there before."""


def live_at_peak(run: Run, scope: Scope) -> list[Holder]:
    """Who holds the memory at each rank's and device's peak, the largest first."""
    memory = (
        f"SELECT rank, segment, op, bytes, address, allocated_bytes, {DEVICE} AS holder, "
        # in order of time, then of the file: one number compares faster than two
        f"(ts_ns::HUGEINT << 40) + id AS moment FROM instants WHERE {_EVENTS}"
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
