"""Blocks over address and time: when each part of the reserved memory was allocated, and by which line of Python.

An allocation is a rectangle from its allocation to its free, over its addresses. Addresses that were never reserved are
left out. A picture has far fewer cells than a snapshot has allocations, so each cell gets the exact share of its area
that each line holds; the largest rectangles are listed besides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import LIVE, last_snapshots
from rankscope.model import MEMORY_SEGMENTS, SNAPSHOT_CATEGORY
from rankscope.timeline.run import Run

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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
_ALLOCATES, _FREES, _RESERVES, _RELEASES = (0,), (1, 2), (3, 4), (5, 6)
"""Places in _ACTIONS. Of the two frees, that counts which changes the total: it has Bytes."""


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

    rank: int
    device: int
    allocations: Rectangles
    segments: Rectangles
    begin: int
    end: int
    """Of the history: ns from the start of the run, or the numbers of entries where it has no times."""
    has_times: bool
    sources: dict[int, str]
    """Of stacks: the line of Python, or the op where none was recorded, as in the backward pass."""
    ops: dict[int, str]
    frames: dict[int, tuple[str, ...]]
    """Lines of Python, innermost first."""
    left_out: int
    """Entries with an impossible address or size."""


@dataclass(frozen=True)
class LargeBlock:
    """One allocation; `offset` is its place among the addresses that were ever reserved."""

    begin: int
    end: int
    offset: int
    bytes: int
    stack: int
    """Its number: Blocks.sources, ops and frames."""


@dataclass(frozen=True)
class BlockMap:
    """A picture of the blocks: rows of cells from the lowest address on, columns from the first time on."""

    blocks: Blocks
    begin: int
    end: int
    reserved_bytes: int
    """The height: all addresses that were ever reserved."""
    lines: tuple[str, ...]
    """The meaning of the numbers in `held`: those that hold most, over the whole history, then OTHER_LINES."""
    held: Floats
    """Share of each cell that each line holds: [line, row, column]."""
    reserved: Floats
    """Share of each cell that is reserved: [row, column]."""
    largest: list[LargeBlock]
    """The largest rectangles in the window, largest first."""


def devices_with_blocks(run: Run, scope: Scope) -> list[tuple[int, int]]:
    """Ranks and devices of which there is a snapshot; those with the most reserved memory first."""
    if not run.has(MEMORY_SEGMENTS):
        return []
    rows = run.rows(f"""
        SELECT rank, device FROM memory_segments WHERE {scope.only_ranks().where()}
        GROUP BY ALL ORDER BY sum(total_bytes) DESC, rank, device
    """)
    return [(int(rank), int(device)) for rank, device in rows]


def read_blocks(run: Run, rank: int, device: int, segment: int | None = None) -> Blocks:
    """The blocks of a device, from the snapshot in this segment, by default the last of its rank."""
    if segment is None:
        ((_, segment),) = run.rows(last_snapshots(Scope(ranks=frozenset((rank,)))))
    mine = f"rank = {rank} AND segment = {segment}"
    entries = _Entries(
        run.arrays(f"""
        SELECT a.id AS id, name, coalesce(i.ts_ns, {_NO_TIME}) AS ts_ns, coalesce(args."Addr", -1) AS address,
               coalesce(args.size, -1) AS size, coalesce(args.stack, {_NO_STACK})::BIGINT AS stack
        FROM (SELECT id, list_position({list(_ACTIONS)}, name) - 1 AS name,
                     json_transform(args, '{_ARGS}') AS args
              FROM events WHERE {mine} AND category = '{SNAPSHOT_CATEGORY}' AND device = {device}
              AND list_contains({list(_ACTIONS)}, name)) a
        LEFT JOIN (SELECT id, ts_ns FROM instants WHERE {mine}) i ON i.id = a.id
        WHERE args."Bytes" IS NOT NULL OR NOT list_contains({list(_FREES)}, name) ORDER BY a.id
    """)
    )
    live = run.arrays(f"""
        SELECT coalesce(address, -1) AS address, coalesce(requested_bytes, bytes) AS bytes,
               coalesce(stack, {_NO_STACK})::BIGINT AS stack
        FROM memory_blocks WHERE {mine} AND device = {device} AND state = '{LIVE}'
    """)
    held = run.arrays(f"""
        SELECT coalesce(address, -1) AS address, total_bytes AS bytes, {_NO_STACK}::BIGINT AS stack
        FROM memory_segments WHERE {mine} AND device = {device}
    """)
    stacks = run.rows(f"SELECT stack, source, op, frames FROM memory_stacks WHERE {mine}")
    return Blocks(
        rank,
        device,
        entries.rectangles(_ALLOCATES, _FREES, live),
        entries.rectangles(_RESERVES, _RELEASES, held),
        entries.begin,
        entries.end,
        entries.has_times,
        {stack: source or op for stack, source, op, _ in stacks if source or op},
        {stack: op for stack, _, op, _ in stacks if op},
        {stack: tuple(frames) for stack, _, _, frames in stacks if frames},
        entries.left_out,
    )


class _Entries:
    """The history of one device, in its order."""

    def __init__(self, columns: dict[str, NDArray[np.int64]]) -> None:
        times, ids = columns["ts_ns"], columns["id"]
        self.has_times = bool(len(times) and (times != _NO_TIME).any())
        usable = (columns["address"] >= 0) & (columns["address"] < _LARGEST)
        usable &= (columns["size"] > 0) & (columns["size"] < _LARGEST)
        if self.has_times:
            usable &= times != _NO_TIME
        self.left_out = int(len(usable) - usable.sum())
        self._time = (times if self.has_times else ids)[usable]
        self._action, self._address, self._bytes, self._stack = (
            columns[name][usable] for name in ("name", "address", "size", "stack")
        )
        self.begin = int(self._time.min()) if len(self._time) else 0
        self.end = max(int(self._time.max()) if len(self._time) else 0, self.begin + 1)

    def rectangles(
        self, opens: tuple[int, ...], closes: tuple[int, ...], at_end: dict[str, Ints]
    ) -> Rectangles:
        """From each opening entry to the next entry of its address. What is closed without having been opened, and what
        is there at the end without an entry, was there from the beginning."""
        mine = np.flatnonzero(np.isin(self._action, (*opens, *closes)))
        mine = mine[np.argsort(self._address[mine], kind="stable")]
        address, is_open = self._address[mine], np.isin(self._action[mine], opens)
        first = np.append(True, address[1:] != address[:-1])[: len(mine)]
        last = np.append(address[1:] != address[:-1], True)[: len(mine)]
        end = np.where(last, self.end, np.append(self._time[mine][1:], 0)[: len(mine)])
        late = ~is_open & first
        used = is_open | late
        usable = (at_end["address"] >= 0) & (at_end["address"] < _LARGEST)
        usable &= (at_end["bytes"] > 0) & (at_end["bytes"] < _LARGEST)
        usable &= ~np.isin(at_end["address"], address)
        older = {name: column[usable] for name, column in at_end.items()}
        count = int(usable.sum())
        return Rectangles(
            np.append(np.where(late, self.begin, self._time[mine])[used], np.full(count, self.begin)),
            np.append(np.where(late, self._time[mine], end)[used], np.full(count, self.end)),
            np.append(address[used], older["address"]),
            np.append(self._bytes[mine][used], older["bytes"]),
            np.append(np.where(late, _NO_STACK, self._stack[mine])[used], older["stack"]),
        )


class _Offsets:
    """Places of addresses on an axis without the addresses between segments."""

    def __init__(self, *rectangles: Rectangles) -> None:
        begin = np.concatenate([each.address for each in rectangles])
        end = begin + np.concatenate([each.bytes for each in rectangles])
        order = np.argsort(begin, kind="stable")
        begin, reach = begin[order], np.maximum.accumulate(end[order])
        starts = np.flatnonzero(np.append(True, begin[1:] > reach[:-1])[: len(begin)])
        self._begin = begin[starts]
        lengths = reach[np.append(starts[1:], len(begin))[: len(starts)] - 1] - self._begin
        self._offset = np.cumsum(lengths) - lengths
        self.total = int(lengths.sum())

    def __call__(self, address: Ints) -> Ints:
        part = np.searchsorted(self._begin, address, side="right") - 1
        offset: Ints = self._offset[part] + address - self._begin[part]
        return offset


def block_map(
    blocks: Blocks, columns: int, rows: int, window: tuple[int, int] | None = None, largest: int = 0
) -> BlockMap:
    """The picture of a window, by default the whole history, in so many cells."""
    begin, end = window or (blocks.begin, blocks.end)
    end = max(end, begin + 1)
    offsets = _Offsets(blocks.segments, blocks.allocations)
    lines, number = _numbered_lines(blocks)
    scale = (begin, end, max(offsets.total, 1), columns, rows)
    held = _coverage(blocks.allocations, offsets, number, len(lines), *scale)
    same = np.zeros(len(blocks.segments.begin), np.int64)
    (reserved,) = _coverage(blocks.segments, offsets, same, 1, *scale)
    return BlockMap(
        blocks,
        begin,
        end,
        offsets.total,
        lines,
        held,
        np.maximum(reserved, np.minimum(held.sum(axis=0), 1.0)),
        _largest(blocks, offsets, begin, end, largest),
    )


def _numbered_lines(blocks: Blocks) -> tuple[tuple[str, ...], Ints]:
    """The lines that hold most, in bytes times time; and the number of that of each allocation."""
    allocations = blocks.allocations
    stacks, of_stack = np.unique(allocations.stack, return_inverse=True)
    codes_of: dict[str, int] = {}
    names = (blocks.sources.get(stack, NO_LINE) for stack in stacks.tolist())
    line = np.array([codes_of.setdefault(name, len(codes_of)) for name in names], dtype=np.int64)
    codes = line[of_stack]
    area = (allocations.end - allocations.begin) * allocations.bytes.astype(np.float64)
    weight = np.bincount(codes, area, len(codes_of))
    order = np.argsort(-weight, kind="stable")[:LINES]
    number = np.full(len(codes_of), len(order))
    number[order] = np.arange(len(order))
    texts = list(codes_of)
    lines = tuple(texts[number] for number in order)
    return (*lines, OTHER_LINES) if len(codes_of) > len(order) else lines, number[codes]


def held_by_line(run: Run, scope: Scope) -> Result:
    """How much memory each line of Python holds over time: the highest value in each interval; of the device with the
    most reserved memory."""
    rows: list[dict[str, Any]] = []
    notes: tuple[str, ...] = ("the run has no memory snapshot",)
    for rank, device in devices_with_blocks(run, scope)[:1]:
        blocks = read_blocks(run, rank, device)
        lines, number = _numbered_lines(blocks)
        notes = () if blocks.has_times else ("the history of the snapshot has no times",)
        for index, line in enumerate(lines) if blocks.has_times else ():
            rows += [
                {"rank": rank, "device": f"GPU {device}", "line": line, "ts_ns": at, "held_bytes": held}
                for at, held in _held(blocks, number == index)
            ]
    return Result("held_by_line", "Memory by line over time", "whole file", HELD_COLUMNS, rows, notes=notes)


def _held(blocks: Blocks, mine: NDArray[np.bool_]) -> list[tuple[int, int]]:
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


def _coverage(
    rectangles: Rectangles,
    offsets: _Offsets,
    number: Ints,
    count: int,
    begin: int,
    end: int,
    height: int,
    columns: int,
    rows: int,
) -> Floats:
    """The share of each cell that is covered: [number, row, column].

    The share of a cell is the product of two overlaps. Along each axis the overlap rises at the two cells from the
    beginning and falls at the two from the end, so a rectangle is sixteen corners, which running sums fill.
    """
    low = offsets(rectangles.address)
    across = _steps(rectangles.begin, rectangles.end, begin, end, columns)
    up = _steps(low, low + rectangles.bytes, 0, height, rows)
    corners = np.zeros(count * (rows + 2) * (columns + 2))
    for row, row_weight in up:
        for column, weight in across:
            corner = (number * (rows + 2) + row) * (columns + 2) + column
            corners += np.bincount(corner, row_weight * weight, len(corners))
    filled = corners.reshape(count, rows + 2, columns + 2).cumsum(axis=1).cumsum(axis=2)
    shares: Floats = np.clip(filled[:, :rows, :columns], 0.0, 1.0)
    return shares


def _steps(begin: Ints, end: Ints, low: int, high: int, cells: int) -> list[tuple[Ints, Floats]]:
    """Where the overlap with the cells of an axis changes, and by how much."""
    steps = []
    for edge, sign in ((begin, 1.0), (end, -1.0)):
        at = np.clip((edge - low) / (high - low), 0.0, 1.0) * cells
        cell = np.floor(at).astype(np.int64)
        steps += [(cell, sign * (1 - (at - cell))), (cell + 1, sign * (at - cell))]
    return steps


def _largest(blocks: Blocks, offsets: _Offsets, begin: int, end: int, most: int) -> list[LargeBlock]:
    """Rectangles by their area in the window."""
    allocations = blocks.allocations
    shown = np.minimum(allocations.end, end) - np.maximum(allocations.begin, begin)
    area = np.maximum(shown, 0) * allocations.bytes.astype(np.float64)
    chosen = np.argsort(-area, kind="stable")[:most]
    chosen = chosen[area[chosen] > 0]
    columns = (
        allocations.begin,
        allocations.end,
        offsets(allocations.address),
        allocations.bytes,
        allocations.stack,
    )
    return [
        LargeBlock(*map(int, row))
        for row in zip(*(column[chosen].tolist() for column in columns), strict=True)
    ]
