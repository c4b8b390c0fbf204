"""Torch's memory snapshots: the allocator's segments and blocks, and the history of allocations with their stacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.model import (
    MEMORY_BLOCKS,
    MEMORY_SEGMENTS,
    MEMORY_STACKS,
    READ_EVENTS,
    SNAPSHOT_CATEGORY,
    Table,
)
from rankscope.readers.base import Batch, EventBatch, ReadReport, TraceIdentity, rank_from_name
from rankscope.readers.row_batch import RowBatch
from rankscope.readers.safe_pickle import Budget, integer, is_pickle, load_plain, text
from rankscope.readers.stack_frames import op_name, own_line, python_lines

_KEYS = (b"device_traces", b"segment_type", b"allocator_settings", b"segments")
_BATCH_ROWS = 50_000
_CUDA = 1
"""torch's number for this type of device."""
# The sign with which each action changes the totals: bytes allocated, bytes reserved.
_EFFECTS = {
    "alloc": (1, 0),
    "free_requested": (-1, 0),
    "segment_alloc": (0, 1),
    "segment_map": (0, 1),
    "segment_free": (0, -1),
    "segment_unmap": (0, -1),
}
_LIVE = "active_allocated"


class SnapshotReading:
    """One snapshot: its history as events, its blocks, segments and stacks as tables."""

    def __init__(self, path: Path) -> None:
        self.report = ReadReport()
        self.header: dict[str, Any] = {}
        self._path = path
        self._stacks = Stacks()
        self._blocks: list[dict[str, Any]] = []
        self._segments: list[dict[str, Any]] = []

    def batches(self) -> Iterator[EventBatch]:
        snapshot, size = load_plain(self._path)
        if not isinstance(snapshot.get("segments"), list):
            raise ReadError(
                f"{self._path} is not a memory snapshot",
                why="It has no list of segments.",
                hint="Write one with torch.cuda.memory._dump_snapshot(FILE), or with rankscope.memory_history().",
            )
        # Each distinct stack is walked four times.
        self._stacks.budget = Budget(self._path, 4 * max(size, 1000))
        budget = Budget(self._path, max(size, 1000))
        self._read_segments(snapshot["segments"], budget)
        settings = snapshot.get("allocator_settings")
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if isinstance(value, (str, int, float)):
                self.header[str(name)] = value
        rows: list[dict[str, Any]] = []
        for device, trace in enumerate(budget.take(snapshot.get("device_traces"))):
            for row in self._history(device, budget.dicts(trace)):
                rows.append(row)
                if len(rows) == _BATCH_ROWS:
                    yield RowBatch(READ_EVENTS, rows)
                    rows = []
        yield RowBatch(READ_EVENTS, rows)

    def position(self) -> int:
        return self._path.stat().st_size

    def clock_base_ns(self) -> int:
        return 0

    def further(self) -> Iterator[tuple[Table, Batch]]:
        yield MEMORY_SEGMENTS, RowBatch(MEMORY_SEGMENTS, self._segments)
        yield MEMORY_BLOCKS, RowBatch(MEMORY_BLOCKS, self._blocks)
        yield MEMORY_STACKS, RowBatch(MEMORY_STACKS, self._stacks.rows)

    def _read_segments(self, segments: Any, budget: Budget) -> None:
        for number, segment in enumerate(budget.dicts(segments)):
            self._segments.append({
                "number": number,
                "device": integer(segment.get("device")) or 0,
                "address": integer(segment.get("address")),
                "stream": integer(segment.get("stream")),
                "kind": text(segment.get("segment_type")),
                "total_bytes": integer(segment.get("total_size")) or 0,
                "allocated_bytes": integer(segment.get("allocated_size")) or 0,
                "active_bytes": integer(segment.get("active_size")) or 0,
                "requested_bytes": integer(segment.get("requested_size")),
                "expandable": segment.get("is_expandable") is True,
            })  # fmt: skip
            address = integer(segment.get("address"))
            for block in budget.dicts(segment.get("blocks")):
                size = integer(block.get("size")) or 0
                at = integer(block.get("address"))
                self._blocks.append({
                    "number": number,
                    "device": integer(segment.get("device")) or 0,
                    "address": address if at is None else at,
                    "bytes": size,
                    "requested_bytes": integer(block.get("requested_size")),
                    "state": text(block.get("state")),
                    "stack": self._stacks.number(_frames_of(block)),
                })  # fmt: skip
                if address is not None:  # blocks of older snapshots have no address: they are contiguous
                    address = (address if at is None else at) + size

    def _history(self, device: int, entries: list[dict[Any, Any]]) -> Iterator[dict[str, Any]]:
        """The totals at the start are computed backwards from the snapshot, since the history may be incomplete."""
        allocated, reserved = self._totals_at_start(device, entries)
        for entry in entries:
            action, size = text(entry.get("action")) or "", integer(entry.get("size")) or 0
            use, hold = _EFFECTS.get(action, (0, 0))
            allocated, reserved = allocated + use * size, reserved + hold * size
            time = integer(entry.get("time_us"))
            stack = self._stacks.number(entry.get("frames"))
            memory = {
                "Bytes": use * size if use else None,
                "Total Allocated": allocated,
                "Total Reserved": reserved,
                "Device Type": _CUDA,
                "Device Id": device,
                "Addr": integer(entry.get("addr")),
            }
            yield {
                "ph": "i",
                "category": SNAPSHOT_CATEGORY,
                "name": action,
                "pid": "memory snapshot",
                "tid": f"GPU {device}",
                "ts_ns": time * 1000 if time is not None and abs(time) < 2**53 else None,
                "device": device,
                "args": {"size": size, "stack": stack, "stream": integer(entry.get("stream")), **memory},
                "memory": memory,
            }

    def _totals_at_start(self, device: int, entries: list[dict[Any, Any]]) -> tuple[int, int]:
        live = sum(
            block["bytes"] if block["requested_bytes"] is None else block["requested_bytes"]
            for block in self._blocks
            if block["device"] == device and block["state"] == _LIVE
        )
        held = sum(segment["total_bytes"] for segment in self._segments if segment["device"] == device)
        for entry in entries:
            use, hold = _EFFECTS.get(text(entry.get("action")) or "", (0, 0))
            size = integer(entry.get("size")) or 0
            live, held = live - use * size, held - hold * size
        return live, held


class Stacks:
    """Distinct stacks, each stored once. They are identified by object ids, so the pickle must stay alive."""

    def __init__(self) -> None:
        self.budget: Budget
        self.rows: list[dict[str, Any]] = []
        self._by_list: dict[int, int] = {}
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_content: dict[tuple[object, ...], int] = {}

    def number(self, frames: Any) -> int | None:
        if not isinstance(frames, (list, tuple)) or not frames:
            return None
        if id(frames) not in self._by_list:
            self._by_list[id(frames)] = self._number(frames)
        return self._by_list[id(frames)]

    def _number(self, frames: list[Any] | tuple[Any, ...]) -> int:
        # Frames are shared objects too, so their ids identify a stack without comparing contents.
        key = tuple(map(id, self.budget.take(frames)))
        if key not in self._by_frames:
            lines = tuple(f"{file}({line}): {name}" for file, line, name in python_lines(frames, self.budget))
            content = (own_line(frames, self.budget), op_name(frames, self.budget), lines)
            number = self._by_content.setdefault(content, len(self.rows))
            if number == len(self.rows):
                row = {"stack": number, "source": content[0], "op": content[1], "frames": lines}
                self.rows.append(row)
            self._by_frames[key] = number
        return self._by_frames[key]


def _frames_of(block: dict[Any, Any]) -> Any:
    """The frames of a block; older snapshots have them in the block's history."""
    if block.get("frames"):
        return block["frames"]
    history = block.get("history")
    last = history[-1] if isinstance(history, list) and history else None
    return last.get("frames") if isinstance(last, dict) else None


class SnapshotReader:
    """Recognises snapshots by the keys in their first bytes."""

    name = "memory"

    def recognises(self, path: Path, head: bytes) -> bool:
        return is_pickle(head) and any(key in head for key in _KEYS)

    def identify(self, path: Path) -> TraceIdentity:
        rank = rank_from_name(path)
        return TraceIdentity(rank, "file name" if rank is not None else "")

    def open(self, path: Path) -> SnapshotReading:
        return SnapshotReading(path)


SNAPSHOT = SnapshotReader()
