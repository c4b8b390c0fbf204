"""Memory from torch snapshots: the peak in their history, the allocations that are live at it, and what is reserved
without being used.

Sizes in a snapshot are as requested by the program; [memory] events of a trace round them up to blocks. The history is
read in the order of its entries: those of older versions of torch have no times.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.model import MEMORY_ARGS, MEMORY_SEGMENTS, SNAPSHOT_CATEGORY
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

BEFORE = "(before the history)"
NO_OP = "(no op recorded)"
LIVE = "active_allocated"
_SIZE = "coalesce(requested_bytes, bytes)"
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
        held = f"SELECT {_SIZE} AS bytes, stack FROM memory_blocks WHERE {mine} AND state = '{LIVE}'"
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
        return f"SELECT {_SIZE} AS bytes, stack FROM memory_blocks WHERE {mine} AND state = '{LIVE}'"
    entries = f"FROM ({history}) WHERE bytes IS NOT NULL AND {mine}"
    return f"""
        SELECT i.bytes, TRY_CAST(e.args->>'stack' AS INTEGER) AS stack
        FROM (SELECT address, max(id) AS id {entries} AND id <= {peak.event} GROUP BY address) l
        JOIN ({entries}) i ON i.id = l.id AND i.name = 'alloc'
        JOIN (SELECT id, args FROM events WHERE rank = {peak.rank} AND segment = {peak.segment}) e ON e.id = l.id
        UNION ALL
        SELECT {_SIZE}, stack FROM memory_blocks b WHERE {mine} AND state = '{LIVE}'
        AND NOT EXISTS ({entries} AND address = b.address)
    """


_FRAGMENT_COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("kind", help="large: segments for blocks over 1 MB; small: segments for smaller blocks"),
    Column("segments", "count", "allocations from the driver"),
    Column("reserved_bytes", "bytes", "size of the segments", per_row_unit=True),
    Column("allocated_bytes", "bytes", "used by tensors, rounded up to blocks", per_row_unit=True),
    Column("free_bytes", "bytes", "reserved minus allocated", per_row_unit=True),
    Column("largest_free_bytes", "bytes", "largest free block", per_row_unit=True),
    Column("free_blocks", "count", "number of free blocks"),
    Column("rounding_bytes", "bytes", "allocated minus requested", per_row_unit=True),
)
# A finding needs both: this many free bytes, and this share of the reserved memory. Chosen, not measured.
_MIN_FREE_BYTES = 1_000_000_000
_MIN_FREE_SHARE = 0.25
_FACTS: dict[str, Unit] = {
    "free_bytes": "bytes",
    "reserved_bytes": "bytes",
    "free_blocks": "count",
    "largest_free_bytes": "bytes",
}


def fragmentation(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank, device and kind of segment, from the last snapshot of each rank."""
    rows = _fragment_rows(run, scope) if run.has(MEMORY_SEGMENTS) else []
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or rankscope.memory_history() writes one"
        )
    findings = tuple(finding for row in rows if (finding := _unused_memory(row)) is not None)
    return Result(
        "fragmentation",
        "Reserved memory that is not used",
        "at the snapshot",
        _FRAGMENT_COLUMNS,
        rows,
        findings,
        tuple(notes),
    )


def _fragment_rows(run: Run, scope: Scope) -> list[dict[str, Any]]:
    where = scope.only_ranks().where()
    return run.records(f"""
        WITH last AS ({last_snapshots(scope)}
        ), blocks AS (
            SELECT rank, segment, number, max(bytes) FILTER (state = 'inactive') AS largest,
                   count(*) FILTER (state = 'inactive') AS free,
                   sum(bytes - coalesce(requested_bytes, bytes)) FILTER (state <> 'inactive') AS rounding
            FROM memory_blocks WHERE {where} GROUP BY rank, segment, number
        )
        SELECT m.rank, m.device, m.kind, count(*) AS segments, sum(m.total_bytes)::BIGINT AS reserved_bytes,
               sum(m.allocated_bytes)::BIGINT AS allocated_bytes,
               sum(m.total_bytes - m.allocated_bytes)::BIGINT AS free_bytes,
               coalesce(max(b.largest), 0) AS largest_free_bytes, coalesce(sum(b.free), 0)::BIGINT AS free_blocks,
               coalesce(sum(b.rounding), 0)::BIGINT AS rounding_bytes
        FROM memory_segments m JOIN last l ON l.rank = m.rank AND l.segment = m.segment
        LEFT JOIN blocks b ON b.rank = m.rank AND b.segment = m.segment AND b.number = m.number
        GROUP BY m.rank, m.device, m.kind ORDER BY m.rank, m.device, m.kind
    """)


def _unused_memory(row: dict[str, Any]) -> Finding | None:
    free, reserved, largest = row["free_bytes"], row["reserved_bytes"], row["largest_free_bytes"]
    if free < _MIN_FREE_BYTES or free < _MIN_FREE_SHARE * reserved:
        return None
    in_one_block = largest >= free / 2
    subject = f"{row['kind']} segments of GPU {row['device']}, rank {row['rank']}"
    key = {name: row[name] for name in ("rank", "device", "kind")}
    share = Fact("free_pct", 100 * free / reserved, "percent", subject, (row["rank"],))
    facts = [Fact(name, row[name], unit, subject, (row["rank"],), key) for name, unit in _FACTS.items()]
    return Finding(
        "info",
        f"{format_rounded('bytes', free)} in {row['kind']} segments of GPU {row['device']} (rank {row['rank']}) is "
        f"reserved but not allocated ({share.value:.0f} %)",
        f"Free blocks: {row['free_blocks']:,}; the largest is {format_rounded('bytes', largest)}. "
        "A larger tensor needs new memory.",
        ranks=(row["rank"],),
        hint="The next peak can use it."
        if in_one_block
        else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation.",
        facts=(*facts, share),
    )
