"""What was in memory at the peak: the allocations of [memory] events that were not freed yet, and who made them.

An address is live when the last thing that happened to it, up to the peak, was an allocation. What was allocated
before the recording began has no event; it is the difference to the allocator's own total.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.device import sql_names, vocabulary
from rankscope.analysis.intervals import Ints
from rankscope.analysis.scope import Scope
from rankscope.store.linking import slice_at
from rankscope.store.nesting import nest, track_time_key
from rankscope.store.run import Run

BEFORE = "(before the recording)"
UNKNOWN = "(no op around it)"

# Ops that only get memory for others: the one that asked for it is the one to name.
_ALLOCATING = r"^aten::(?:empty|new_|resize|set_|zeros|ones|full|clone|contiguous|to$|_to_copy)"
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
    _find_live(run, scope)
    found = run.rows("""
        WITH named AS (
            SELECT l.*, o.name AS op, o.module, o.python FROM live l LEFT JOIN live_ops w ON w.row = l.row
            LEFT JOIN (FROM slices WHERE category = 'cpu_op') o
            ON o.rank = l.rank AND o.segment = l.segment AND o.id = w.op
        ), frames AS (
            SELECT rank, segment, id, name FROM slices WHERE category = 'python_function'
            AND id IN (SELECT module FROM named UNION SELECT python FROM named)
        )
        SELECT n.rank, n.holder, n.op, m.name, p.name, sum(n.bytes)::BIGINT, count(*) FROM named n
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


def _find_live(run: Run, scope: Scope) -> None:
    """Temporary tables: live (one row an allocation) and live_ops (the op that asked for it)."""
    run.connection.execute(f"""
        CREATE OR REPLACE TEMP TABLE live AS
        WITH memory AS (
            SELECT rank, segment, track, id, ts_ns, bytes, address, allocated_bytes, {DEVICE} AS holder,
                   {scope.where()} AS wanted,
                   row_number() OVER (PARTITION BY rank, holder ORDER BY ts_ns, id) AS place
            FROM instants WHERE {_EVENTS} AND {scope.only_ranks().where()}
        ), peak AS (
            SELECT rank, holder, arg_max(place, (allocated_bytes, -place)) AS place FROM memory
            WHERE wanted GROUP BY ALL
        ), last AS (
            SELECT m.rank, m.holder, m.address, max(m.place) AS place FROM memory m
            JOIN peak p ON p.rank = m.rank AND p.holder = m.holder AND m.place <= p.place GROUP BY ALL
        )
        SELECT row_number() OVER () AS row, m.rank, m.segment, m.track, m.ts_ns, m.holder, m.bytes
        FROM memory m JOIN last l ON l.rank = m.rank AND l.holder = m.holder AND l.place = m.place
        WHERE m.bytes > 0
    """)
    wanted = run.rows("SELECT DISTINCT rank, segment FROM live ORDER BY ALL")
    found = [_asking_ops(run, rank, segment) for rank, segment in wanted]
    rows = np.concatenate([row for row, _ in found]) if found else np.empty(0, dtype=np.int64)
    ops = np.concatenate([op for _, op in found]) if found else np.empty(0, dtype=np.int64)
    run.connection.register("live_op_arrays", {"row": rows, "op": ops})
    run.connection.execute("CREATE OR REPLACE TEMP TABLE live_ops AS SELECT row, op FROM live_op_arrays")
    run.connection.unregister("live_op_arrays")


def _asking_ops(run: Run, rank: int, segment: int) -> tuple[Ints, Ints]:
    """Rows of live, and the op that asked for each: the innermost one open then that does more than allocate.

    Where all that are open only allocate, the innermost.
    """
    file = f"rank = {rank} AND segment = {segment}"
    live = run.arrays(
        f"SELECT row, track::BIGINT AS track, ts_ns AS time FROM live WHERE {file} ORDER BY track, time"
    )
    allocating = [name for name in vocabulary(run, "cpu_op") if re.search(_ALLOCATING, name)]
    ops = run.arrays(
        "SELECT id, track::BIGINT AS track, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop, "
        f"name IN ({sql_names(allocating)}) AS allocates FROM slices WHERE {file} AND category = 'cpu_op' "
        f"AND track IN (SELECT track FROM live WHERE {file})"
    )
    # Of the many ops only those matter in which an allocation lies.
    moments = track_time_key(live["track"], live["time"])
    first, last = (
        np.searchsorted(moments, track_time_key(ops["track"], ops[name])) for name in ("start", "stop")
    )
    ops = {name: values[last > first] for name, values in ops.items()}
    if len(ops["id"]) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    nesting = nest(ops["track"], ops["start"], ops["stop"])
    innermost = slice_at(nesting, ops["track"], ops["start"], ops["stop"], live["track"], live["time"])
    asking = innermost
    while (only := (asking >= 0) & ops["allocates"][asking]).any():
        asking = np.where(only, nesting.parent[asking], asking)
    asking = np.where(asking >= 0, asking, innermost)
    known = asking >= 0
    return live["row"][known], ops["id"][asking[known]]
