"""Memory from torch snapshots: the peak in their history, and the allocations that are live at it or at the end.

Sizes in a snapshot are as requested by the program; [memory] events of a trace round them up to blocks. The history is
read in the order of its entries: those of older versions of torch have no times.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.model import MEMORY_ARGS, MEMORY_SEGMENTS, SNAPSHOT_CATEGORY
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.arrays import Ints, Mask, starts_group
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
class Holder:
    """Memory that the allocations of one op and line, or of one call stack, hold at one time."""

    rank: int
    device: str
    name: str
    """The operator or autograd node, or what stands for an unknown one."""
    source: str | None
    """The line of Python that called it; None where stacks were not recorded."""
    bytes: int
    count: int | None
    """Number of allocations; None for memory allocated before the recording."""
    module: str | None = None
    frames: tuple[str, ...] = ()
    """Lines of Python, innermost first."""


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


def held_at_peak(run: Run, scope: Scope) -> list[Holder]:
    """What each stack holds at the peak of each rank and device; it adds up to the peak."""
    held: list[Holder] = []
    peaks = snapshot_peaks(run, scope)
    history = _history(run) if peaks else ""
    for peak in peaks:
        mine = f"rank = {peak.rank} AND segment = {peak.segment} AND device = {peak.device}"
        rows = _by_stack(run, peak.rank, peak.segment, peak.device, _held_at(peak, mine, history))
        held += rows
        rest = peak.allocated_bytes - sum(row.bytes for row in rows)
        if rest > 0:
            held.append(Holder(peak.rank, f"GPU {peak.device}", BEFORE, None, rest, None))
    return held


def held_at_end(run: Run, scope: Scope) -> list[Holder]:
    """What each stack holds when the last snapshot of each rank was taken."""
    if not run.has(MEMORY_SEGMENTS):
        return []
    by_stack: list[Holder] = []
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


def _by_stack(run: Run, rank: int, segment: int, device: int, held: str) -> list[Holder]:
    rows = run.rows(f"""
        WITH held AS ({held}), stacks AS (FROM memory_stacks WHERE rank = {rank} AND segment = {segment})
        SELECT coalesce(s.op, '{NO_OP}'), s.source, s.frames, sum(h.bytes)::BIGINT, count(*)
        FROM held h LEFT JOIN stacks s ON s.stack = h.stack GROUP BY ALL ORDER BY 4 DESC, 1, 2, 3
    """)
    return [
        Holder(rank, f"GPU {device}", op, source, size, count, frames=tuple(frames or ()))
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


HELD_COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("line", help="line of Python that allocated it, or the op"),
    Column("ts_ns", "ns", "time since the start of the run"),
    Column("held_bytes", "bytes", "most memory that it holds from this time to the next"),
)
INTERVALS = 300
LINES = 6
"""Lines of Python that have a colour of their own."""
OTHER_LINES = "other lines"
NO_LINE = "(no stack recorded)"
_LARGEST = 1 << 50
"""Addresses have 48 bits, and sizes fewer: beyond this a figure is damaged."""
_NO_STACK = -1
_NO_TIME = -(1 << 62)
_ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_map",
    "segment_free",
    "segment_unmap",
)
_ARGS = '{"Addr": "BIGINT", "size": "BIGINT", "stack": "INTEGER", "Bytes": "BIGINT"}'
_OPENS = np.array([True, False, False, True, True, False, False])
_OF_BLOCKS = np.array([True, True, True, False, False, False, False])
"""Of _ACTIONS; the others are of segments."""
_FREES = (1, 2)
"""Places in _ACTIONS. Of the two, that counts which changes the total: it has Bytes."""


@dataclass(frozen=True)
class Rectangles:
    """Memory from one time to another."""

    begin: Ints
    end: Ints
    address: Ints
    bytes: Ints
    stack: Ints
    """Number of the stack that allocated it, or _NO_STACK."""


@dataclass(frozen=True)
class Blocks:
    """The history of one device of a snapshot."""

    allocations: Rectangles
    segments: Rectangles
    begin: int
    end: int
    """Of the history: ns from the start of the run, or the numbers of entries where it has no times."""
    has_times: bool
    sources: dict[int, str]
    """Of stacks: the line of Python, or the op where none was recorded, as in the backward pass."""


def read_blocks(run: Run, rank: int, device: int, segment: int | None = None) -> Blocks:
    """The blocks of a device, from the snapshot in this segment, by default the last of its rank."""
    if segment is None:
        ((_, segment),) = run.rows(last_snapshots(Scope(ranks=frozenset((rank,)))))
    mine = f"rank = {rank} AND segment = {segment}"
    entries = run.arrays(f"""
        SELECT a.id AS id, name AS action, coalesce(i.ts_ns, {_NO_TIME}) AS ts_ns,
               coalesce(args."Addr", -1) AS address, coalesce(args.size, -1) AS bytes,
               coalesce(args.stack, {_NO_STACK})::BIGINT AS stack
        FROM (SELECT id, list_position({list(_ACTIONS)}, name) - 1 AS name,
                     json_transform(args, '{_ARGS}') AS args
              FROM events WHERE {mine} AND category = '{SNAPSHOT_CATEGORY}' AND device = {device}
              AND list_contains({list(_ACTIONS)}, name)) a
        LEFT JOIN (SELECT id, ts_ns FROM instants WHERE {mine}) i ON i.id = a.id
        WHERE args."Bytes" IS NOT NULL OR NOT list_contains({list(_FREES)}, name) ORDER BY a.id
    """)
    live = run.arrays(f"""
        SELECT coalesce(address, -1) AS address, coalesce(requested_bytes, bytes) AS bytes,
               coalesce(stack, {_NO_STACK})::BIGINT AS stack
        FROM memory_blocks WHERE {mine} AND device = {device} AND state = '{LIVE}'
    """)
    held = run.arrays(f"""
        SELECT coalesce(address, -1) AS address, total_bytes AS bytes, {_NO_STACK}::BIGINT AS stack
        FROM memory_segments WHERE {mine} AND device = {device}
    """)
    stacks = run.rows(
        f"SELECT stack, coalesce(nullif(source, ''), op) AS line FROM memory_stacks WHERE {mine} AND line != ''"
    )
    has_times = bool((entries["ts_ns"] != _NO_TIME).any())
    entries["time"] = entries["ts_ns" if has_times else "id"]
    entries = _possible(entries, entries["time"] != _NO_TIME)
    begin = int(entries["time"].min()) if len(entries["time"]) else 0
    end = max(int(entries["time"].max(initial=0)), begin + 1)
    allocations, segments = (
        _rectangles(
            {name: column[actions[entries["action"]]] for name, column in entries.items()}, at_end, begin, end
        )
        for actions, at_end in ((_OF_BLOCKS, live), (~_OF_BLOCKS, held))
    )
    return Blocks(allocations, segments, begin, end, has_times, dict(stacks))


def _possible(columns: dict[str, Ints], used: Mask | bool = True) -> dict[str, Ints]:
    """Without entries of an impossible address or size."""
    used = used & (columns["address"] >= 0) & (columns["address"] < _LARGEST)
    used = used & (columns["bytes"] > 0) & (columns["bytes"] < _LARGEST)
    return {name: column[used] for name, column in columns.items()}


def _rectangles(entries: dict[str, Ints], at_end: dict[str, Ints], begin: int, end: int) -> Rectangles:
    """From each opening entry to the next entry of its address. What is closed without having been opened, and what is
    there at the end without an entry, was there from the beginning."""
    order = np.argsort(entries["address"], kind="stable")
    time, address, size, stack = (entries[name][order] for name in ("time", "address", "bytes", "stack"))
    is_open = _OPENS[entries["action"][order]]
    first = starts_group([address]) if len(address) else is_open
    last = np.append(first[1:], True)[: len(first)]
    until = np.where(last, end, np.append(time[1:], end)[: len(time)])
    late = ~is_open & first
    used = is_open | late
    older = _possible(at_end, ~np.isin(at_end["address"], address))
    count = len(older["address"])
    return Rectangles(
        np.append(np.where(late, begin, time)[used], np.full(count, begin)),
        np.append(np.where(late, time, until)[used], np.full(count, end)),
        np.append(address[used], older["address"]),
        np.append(size[used], older["bytes"]),
        np.append(np.where(late, _NO_STACK, stack)[used], older["stack"]),
    )


def held_by_line(run: Run, scope: Scope) -> Result:
    """How much memory each line of Python holds over time: the highest value in each interval; of the device with the
    most reserved memory. The lines that hold most, in bytes times time, have rows of their own."""
    rows: list[dict[str, Any]] = []
    note = "the run has no memory snapshot"
    devices = f"""
        SELECT rank, device FROM memory_segments WHERE {scope.only_ranks().where()}
        GROUP BY ALL ORDER BY sum(total_bytes) DESC, rank, device LIMIT 1
    """
    for rank, device in run.rows(devices) if run.has(MEMORY_SEGMENTS) else ():
        blocks = read_blocks(run, rank, device)
        note = "" if blocks.has_times else "the history of the snapshot has no times"
        if note:
            continue
        held = blocks.allocations
        area = (held.end - held.begin) * held.bytes.astype(np.float64)
        stacks, of_stack = np.unique(held.stack, return_inverse=True)
        lines = [blocks.sources.get(stack, NO_LINE) for stack in stacks.tolist()]
        weights = Counter[str]()
        for line, weight in zip(lines, np.bincount(of_stack, area).tolist(), strict=True):
            weights[line] += weight
        largest = [line for line, _ in weights.most_common(LINES)]
        shown = np.array([line if line in largest else OTHER_LINES for line in lines], dtype=object)[of_stack]
        for line in [*largest, *([OTHER_LINES] if len(weights) > LINES else [])]:
            rows += [
                {"rank": rank, "device": f"GPU {device}", "line": line, "ts_ns": at, "held_bytes": most}
                for at, most in _held(blocks, shown == line)
            ]
    notes = (note,) if note else ()
    return Result("held_by_line", "Memory by line over time", "whole file", HELD_COLUMNS, rows, notes=notes)


def _held(blocks: Blocks, mine: Mask) -> list[tuple[int, int]]:
    """The begin of each interval and the most that these allocations hold in it."""
    allocations = blocks.allocations
    begin, end, size = (column[mine] for column in (allocations.begin, allocations.end, allocations.bytes))
    freed = end < blocks.end
    times = np.concatenate([begin, end[freed]])
    order = np.argsort(times, kind="stable")
    total = np.cumsum(np.concatenate([size, -size[freed]])[order])
    edges = np.linspace(blocks.begin, blocks.end, INTERVALS + 1).astype(np.int64)
    at = np.searchsorted(times[order], edges, side="right")
    points = []
    for edge, first, last in zip(edges[:-1].tolist(), at[:-1].tolist(), at[1:].tolist(), strict=True):
        held = total[max(first - 1, 0) : last]  # what is held when the interval begins, and each change in it
        points.append((edge, max(int(held.max()), 0) if last else 0))
    return points
