"""What was in memory at the peak: the allocations of [memory] events that were not freed yet, and who made them.

An address is live when the last thing that happened to it, up to the peak, was an allocation. What was allocated
before the recording began has no event; it is the difference to the allocator's own total.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

BEFORE = "(before the recording)"
UNKNOWN = "(no op around it)"

_EVENTS = "name = '[memory]' AND allocated_bytes IS NOT NULL AND bytes IS NOT NULL"
# 'GPU 0' for people; which allocator it is, for joins.
DEVICE = "CASE device_type WHEN 0 THEN 'CPU' ELSE concat('GPU ', device) END"


@dataclass(frozen=True)
class Peak:
    """The first moment at which a device's total was highest."""

    rank: int
    device: str
    at_ns: int
    allocated_bytes: int
    reserved_bytes: int


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


def peaks(run: Run, scope: Scope) -> list[Peak]:
    """One a rank and device, in order."""
    rows = run.rows(
        f"SELECT rank, {DEVICE} AS holder, arg_max(ts_ns, key), max(allocated_bytes), arg_max(reserved_bytes, key) "
        "FROM ("
        f"SELECT *, (allocated_bytes, -ts_ns, -id) AS key FROM instants WHERE {_EVENTS} AND {scope.where()}) "
        "GROUP BY ALL ORDER BY rank, holder"
    )
    return [Peak(*row) for row in rows]


def live_at_peak(run: Run, scope: Scope) -> list[Holder]:
    """Who holds the memory at each rank's and device's peak, the largest first."""
    found = run.rows(f"""
        WITH memory AS (
            SELECT rank, segment, op, id, ts_ns, bytes, address, allocated_bytes, {DEVICE} AS holder,
                   {scope.where()} AS wanted
            FROM instants WHERE {_EVENTS} AND {scope.only_ranks().where()}
        ), peak AS (
            SELECT rank, holder, arg_max((ts_ns, id), (allocated_bytes, -ts_ns, -id)) AS moment FROM memory
            WHERE wanted GROUP BY ALL
        ), last AS (
            SELECT m.rank, m.holder, m.address,
                   arg_max((m.segment, m.op, m.bytes), (m.ts_ns, m.id)) AS allocation
            FROM memory m JOIN peak p ON p.rank = m.rank AND p.holder = m.holder AND (m.ts_ns, m.id) <= p.moment
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
    """)
    holders = [
        Holder(rank, device, op or UNKNOWN, module, source, size, count)
        for rank, device, op, module, source, size, count in found
    ]
    held: dict[tuple[int, str], int] = {}
    for holder in holders:
        held[holder.rank, holder.device] = held.get((holder.rank, holder.device), 0) + holder.bytes
    for peak in peaks(run, scope):
        rest = peak.allocated_bytes - held.get((peak.rank, peak.device), 0)
        if rest > 0:
            holders.append(Holder(peak.rank, peak.device, BEFORE, None, None, rest, None))
    return sorted(
        holders, key=lambda h: (h.rank, h.device == "CPU", h.device, -h.bytes, h.name, h.source or "")
    )
