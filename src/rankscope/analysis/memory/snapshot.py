"""Memory from torch snapshots: the peak in their history, and the allocations that are live at it or at the end.

Sizes in a snapshot are as requested by the program; [memory] events of a trace round them up to blocks. The history is
read in the order of its entries: those of older versions of torch have no times.
"""

from __future__ import annotations

import json
from dataclasses import replace

from rankscope.analysis.core.scope import Scope
from rankscope.model import MEMORY_ARGS, MEMORY_SEGMENTS, SNAPSHOT_CATEGORY
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.timeline.run import Run

BEFORE = "(before the history)"
NO_OP = "(no op recorded)"
LIVE = "active_allocated"
SIZE = "coalesce(requested_bytes, bytes)"
"""SQL: the size of a block, as requested by the program."""
_COLUMNS = "rank, segment, id, name, device, bytes, address, allocated_bytes, reserved_bytes"
_TIMED = f"""
    SELECT {_COLUMNS} FROM instants WHERE category = '{SNAPSHOT_CATEGORY}' AND allocated_bytes IS NOT NULL
"""
_WITH_OR_WITHOUT_TIMES = f"""
    SELECT rank, segment, id, name, m."Device Id" AS device, m."Bytes" AS bytes, m."Addr" AS address,
           m."Total Allocated" AS allocated_bytes, m."Total Reserved" AS reserved_bytes
    FROM (SELECT *, json_transform(args, {sql_text(json.dumps(MEMORY_ARGS))}) AS m FROM events
          WHERE category = '{SNAPSHOT_CATEGORY}')
    WHERE m."Total Allocated" IS NOT NULL
"""


def _history(run: Run) -> str:
    """SQL: the entries with or without a time, in the order of their ids. instants has only those with a time, and is
    many times as fast: its figures are columns."""
    of_snapshots = f"WHERE category = '{SNAPSHOT_CATEGORY}'"
    ((timed, all_entries),) = run.rows(
        f"SELECT (SELECT count(*) FROM instants {of_snapshots}), (SELECT count(*) FROM events {of_snapshots})"
    )
    return _TIMED if timed == all_entries else _WITH_OR_WITHOUT_TIMES


@dataclass(frozen=True)
class SnapshotPeak:
    """The first time at which the allocated total of a device was highest, in one snapshot."""

    rank: int
    segment: int
    """The file; for a rank with several, the one with the highest peak."""
    device: int
    allocated_bytes: int
    reserved_bytes: int
    """Highest reserved total, at any time."""
    at_ns: int | None
    """None where the history has no times, and for a snapshot without history."""
    unused_bytes: int
    """Reserved minus allocated, at the peak."""
    event: int | None
    """Id of the event that reached the peak; None without history: the figures are from when it was taken."""


@dataclass(frozen=True)
class HeldByStack:
    """Memory that the allocations of one call stack hold at one time."""

    rank: int
    device: int
    op: str
    """The operator or autograd node, or BEFORE or NO_OP."""
    source: str | None
    frames: tuple[str, ...]
    """Lines of Python, innermost first."""
    bytes: int
    count: int | None
    """Number of allocations; None for memory allocated before the history."""


def covers_the_run(run: Run, scope: Scope) -> bool:
    """Whether the window is that of the whole run: a snapshot does not tell which step an allocation belongs to."""
    return scope.steps is None or scope.steps == replace(scope, steps=None).in_run(run).steps


def snapshot_peaks(run: Run, scope: Scope) -> list[SnapshotPeak]:
    """One per rank and device, in that order."""
    if not run.has(MEMORY_SEGMENTS):
        return []
    where = scope.only_ranks().where()
    history = _history(run)
    rows = run.rows(f"""
        WITH with_history AS (
            SELECT rank, segment, device, max(allocated_bytes) AS allocated, max(reserved_bytes) AS reserved,
                   arg_max(reserved_bytes - allocated_bytes, key) AS unused, arg_max(id, key) AS event
            FROM (SELECT *, (allocated_bytes, -id) AS key FROM ({history} AND {where}))
            GROUP BY rank, segment, device
        ), at_the_end AS (
            SELECT rank, segment, device, sum(total_bytes)::BIGINT AS reserved,
                   sum(coalesce(requested_bytes, allocated_bytes))::BIGINT AS allocated
            FROM memory_segments WHERE {where} GROUP BY rank, segment, device
        )
        SELECT p.rank, p.segment, p.device, allocated, reserved, i.ts_ns, unused, event FROM (
            FROM with_history UNION ALL BY NAME
            SELECT *, reserved - allocated AS unused, NULL AS event FROM at_the_end e
            WHERE NOT EXISTS (FROM with_history h WHERE (h.rank, h.segment, h.device) = (e.rank, e.segment, e.device))
        ) p LEFT JOIN instants i ON i.rank = p.rank AND i.segment = p.segment AND i.id = p.event
        QUALIFY row_number() OVER (PARTITION BY p.rank, p.device ORDER BY allocated DESC, p.segment DESC) = 1
        ORDER BY p.rank, p.device
    """)
    return [
        SnapshotPeak(rank, segment, device, allocated, reserved, at_ns, max(unused, 0), event)
        for rank, segment, device, allocated, reserved, at_ns, unused, event in rows
    ]


def held_at_peak(run: Run, scope: Scope) -> list[HeldByStack]:
    """What each stack holds at the peak of each rank and device; it adds up to the peak."""
    held: list[HeldByStack] = []
    peaks = snapshot_peaks(run, scope)
    history = _history(run) if peaks else ""
    for peak in peaks:
        mine = f"rank = {peak.rank} AND segment = {peak.segment} AND device = {peak.device}"
        rows = _by_stack(run, peak.rank, peak.segment, peak.device, _held_at(peak, mine, history))
        held += rows
        rest = peak.allocated_bytes - sum(row.bytes for row in rows)
        if rest > 0:
            held.append(HeldByStack(peak.rank, peak.device, BEFORE, None, (), rest, None))
    return held


def held_at_end(run: Run, scope: Scope) -> list[HeldByStack]:
    """What each stack holds when the last snapshot of each rank was taken."""
    if not run.has(MEMORY_SEGMENTS):
        return []
    by_stack: list[HeldByStack] = []
    for rank, segment, device in run.rows(f"""
        SELECT DISTINCT rank, segment, device FROM memory_segments
        JOIN ({last_snapshots(scope)}) USING (rank, segment) ORDER BY ALL
    """):
        mine = f"rank = {rank} AND segment = {segment} AND device = {device}"
        held = f"SELECT {SIZE} AS bytes, stack FROM memory_blocks WHERE {mine} AND state = '{LIVE}'"
        by_stack += _by_stack(run, rank, segment, device, held)
    return by_stack


def last_snapshots(scope: Scope) -> str:
    """SQL: the rank and the segment (the file) of the last snapshot of each rank."""
    return f"""
        SELECT m.rank, arg_max(m.segment, (s.unix_ns, m.segment)) AS segment FROM memory_segments m
        JOIN segments s ON s.rank = m.rank AND s.segment = m.segment
        WHERE {scope.only_ranks().where("m")} GROUP BY m.rank
    """


def _by_stack(run: Run, rank: int, segment: int, device: int, held: str) -> list[HeldByStack]:
    rows = run.rows(f"""
        WITH held AS ({held}), stacks AS (FROM memory_stacks WHERE rank = {rank} AND segment = {segment})
        SELECT coalesce(s.op, '{NO_OP}'), s.source, s.frames, sum(h.bytes)::BIGINT, count(*)
        FROM held h LEFT JOIN stacks s ON s.stack = h.stack GROUP BY ALL ORDER BY 4 DESC, 1, 2, 3
    """)
    return [
        HeldByStack(rank, device, op, source, tuple(frames or ()), size, count)
        for op, source, frames, size, count in rows
    ]


def _held_at(peak: SnapshotPeak, mine: str, history: str) -> str:
    """SQL for the allocations live at the peak: those of the history that are not freed by then, and blocks of the
    snapshot whose allocation is older than the history."""
    if peak.event is None:
        return f"SELECT {SIZE} AS bytes, stack FROM memory_blocks WHERE {mine} AND state = '{LIVE}'"
    entries = f"FROM ({history}) WHERE bytes IS NOT NULL AND {mine}"
    return f"""
        SELECT i.bytes, TRY_CAST(e.args->>'stack' AS INTEGER) AS stack
        FROM (SELECT address, max(id) AS id {entries} AND id <= {peak.event} GROUP BY address) l
        JOIN ({entries}) i ON i.id = l.id AND i.name = 'alloc'
        JOIN (SELECT id, args FROM events WHERE rank = {peak.rank} AND segment = {peak.segment}) e ON e.id = l.id
        UNION ALL
        SELECT {SIZE}, stack FROM memory_blocks b WHERE {mine} AND state = '{LIVE}'
        AND NOT EXISTS ({entries} AND address = b.address)
    """
