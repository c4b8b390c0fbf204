"""Torch's memory snapshots: the allocator's segments and blocks, and the history of allocations with their stacks.

A file may have gigabytes, so its entries become columns without an object for each (pickled_tree).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.errors import ReadError
from rankscope.model import (
    MEMORY_ARGS,
    MEMORY_BLOCKS,
    MEMORY_SEGMENTS,
    MEMORY_STACKS,
    OPTIMIZER_STEPS,
    SNAPSHOT_CATEGORY,
)
from rankscope.readers.base import EventBatch, Reader, ReadyBatch
from rankscope.readers.columns import (
    NO_TEXT,
    NULL,
    Codes,
    EventColumns,
    Numbers,
    Texts,
    event_columns,
    joined_texts,
)
from rankscope.readers.pickled_tree import PickledTree, Values, read_tree
from rankscope.readers.row_batch import TablesReading
from rankscope.readers.safe_pickle import Budget, is_pickle
from rankscope.readers.stack_frames import Frame, frame_of, op_name, own_line, python_lines

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
_FREE, _FREED = "free_requested", "free_completed"
_LIVE = "active_allocated"
_ARGS = ",".join(f'"{name}":%s' for name in ("size", "stack", "stream", *MEMORY_ARGS))
_OPTIMIZER_STEP = "Optimizer.step#"
_MOST_STEPS = 5000
"""Of a history, the last. The list of them is in the header."""
_LEAST_FRAME_TEXT = 64 << 20
_BEYOND = 2.0**63


class SnapshotReading(TablesReading):
    """One snapshot: its history as events, its blocks, segments and stacks as tables."""

    def batches(self) -> Iterator[EventBatch]:
        """The tree of the file is gone after the last batch, before the other tables are made."""
        tree = read_tree(self._path)
        segments = tree.fields(tree.root, "segments")
        if tree.lengths(segments)[0] < 0:
            raise ReadError(
                f"{self._path} is not a memory snapshot",
                why="It has no list of segments.",
                hint="Write one with torch.cuda.memory._dump_snapshot(FILE), or with rankscope.memory_history().",
            )
        snapshot = _Snapshot(tree, self._path)
        segment_rows = snapshot.segment_rows(segments)
        blocks = snapshot.block_rows()
        self.header = snapshot.settings()
        if steps := snapshot.optimizer_steps():
            self.header[OPTIMIZER_STEPS] = steps
        yield from snapshot.history(blocks, segment_rows)
        stacks = snapshot.stacks.rows
        self.tables = [(MEMORY_SEGMENTS, segment_rows), (MEMORY_BLOCKS, blocks), (MEMORY_STACKS, stacks)]
        if snapshot.stacks.without_frames:
            self.header["stacks_without_frames"] = snapshot.stacks.without_frames


class _Snapshot:
    """The tables of a pickle."""

    def __init__(self, tree: PickledTree, path: Path) -> None:
        self._tree = tree
        self._budget = Budget(path, max(tree.size, 1000))
        # Each distinct stack is walked once for its lines, once for its line in user code and once for its op.
        self.stacks = _Stacks(tree, Budget(path, 4 * max(tree.size, 1000)))
        self._segment_dicts = tree.root[:0]

    def settings(self) -> dict[str, Any]:
        settings = self._tree.fields(self._tree.root, "allocator_settings")
        if not self._tree.are_dicts(settings)[0]:
            return {}
        names, values = self._tree.pairs(settings)
        pairs = zip(names, self._tree.plain(values), strict=True)
        return {str(name): value for name, value in pairs if isinstance(value, (str, int, float))}

    def optimizer_steps(self) -> dict[str, list[int]]:
        """By device, the id of the first event of its history after each step of an optimizer, which torch notes
        (external_annotations)."""
        tree = self._tree
        notes = self._members(tree.fields(tree.root, "external_annotations"))
        codes, names = tree.coded(tree.fields(notes, "name"))
        is_step = np.array([str(name).startswith(_OPTIMIZER_STEP) for name in names], bool)[codes]
        codes, stages = tree.coded(tree.fields(notes, "stage"))
        is_end = np.array([stage == "END" for stage in stages], bool)[codes]
        notes = notes[is_step & is_end]
        devices, times = (tree.numbers(tree.fields(notes, key)) for key in ("device", "time_us"))
        traces = self._members(tree.fields(tree.root, "device_traces"))
        steps: dict[str, list[int]] = {}
        first = 0
        for device in range(len(traces)):
            entries = self._entries(traces, device)
            ends = np.sort(times[devices == device])[-_MOST_STEPS:]
            begins = tree.numbers(tree.fields(entries, "time_us")) if len(ends) else ends
            if len(ends) and (np.diff(begins) >= 0).all():
                steps[str(device)] = (first + np.searchsorted(begins, ends, side="right")).tolist()
            first += len(entries)
        return steps

    def segment_rows(self, segments: Values) -> list[dict[str, Any]]:
        tree = self._tree
        members = self._members(segments)
        self._segment_dicts = members = members[tree.are_dicts(members)]
        columns = {
            name: self._numbers(members, key)
            for name, key in (
                ("device", "device"),
                ("address", "address"),
                ("stream", "stream"),
                ("total_bytes", "total_size"),
                ("allocated_bytes", "allocated_size"),
                ("active_bytes", "active_size"),
                ("requested_bytes", "requested_size"),
            )
        }
        for name in ("device", "total_bytes", "allocated_bytes", "active_bytes"):
            columns[name] = [value or 0 for value in columns[name]]
        columns["number"] = list(range(len(members)))
        columns["kind"] = self._texts(members, "segment_type")
        columns["expandable"] = [value is True for value in tree.plain(tree.fields(members, "is_expandable"))]
        return _rows(columns)

    def block_rows(self) -> list[dict[str, Any]]:
        """Blocks of older snapshots have no address: they are contiguous."""
        tree, segments = self._tree, self._segment_dicts
        lists = tree.fields(segments, "blocks")
        members = self._members(lists)
        owners = np.repeat(np.arange(len(segments)), np.maximum(tree.lengths(lists), 0))
        are_dicts = tree.are_dicts(members)
        members, owners = members[are_dicts], owners[are_dicts]
        devices, begins = self._numbers(segments, "device"), self._numbers(segments, "address")
        sizes = [size or 0 for size in self._numbers(members, "size")]
        addresses: list[int | None] = []
        number, following = -1, None
        for owner, size, address in zip(
            owners.tolist(), sizes, self._numbers(members, "address"), strict=True
        ):
            if owner != number:
                number, following = owner, begins[owner]
            addresses.append(following if address is None else address)
            if following is not None and addresses[-1] is not None:
                following = addresses[-1] + size
        return _rows(
            {
                "number": owners.tolist(),
                "device": [devices[owner] or 0 for owner in owners.tolist()],
                "address": addresses,
                "bytes": sizes,
                "requested_bytes": self._numbers(members, "requested_size"),
                "state": self._texts(members, "state"),
                "stack": _or_none(self.stacks.numbers(self._frames_of(members)), NO_TEXT),
            }
        )

    def _frames_of(self, blocks: Values) -> Values:
        """The frames of blocks; older snapshots have them in the last entry of the block's history."""
        tree = self._tree
        frames: Values = tree.fields(blocks, "frames").copy()
        without = np.flatnonzero(tree.lengths(frames) <= 0)
        histories = tree.fields(blocks[without], "history")
        lengths = np.maximum(tree.lengths(histories), 0)
        last = (np.cumsum(lengths) - 1)[lengths > 0]
        frames[without[lengths > 0]] = tree.fields(self._members(histories)[last], "frames")
        return frames

    def history(self, blocks: list[dict[str, Any]], segments: list[dict[str, Any]]) -> Iterator[EventBatch]:
        """The entries of all devices as events, with the totals after each."""
        traces = self._members(self._tree.fields(self._tree.root, "device_traces"))
        some = False
        for device in range(len(traces)):
            entries = self._entries(traces, device)
            live = sum(
                block["bytes"] if block["requested_bytes"] is None else block["requested_bytes"]
                for block in blocks
                if block["device"] == device and block["state"] == _LIVE
            )
            held = sum(segment["total_bytes"] for segment in segments if segment["device"] == device)
            for batch in self._device_history(device, entries, live, held):
                some = True
                yield batch
        if not some:
            yield ReadyBatch(self._columns(0, self._tree.root[:0], np.zeros(0, np.int32), [], *_NO_TOTALS))

    def _entries(self, traces: Values, device: int) -> Values:
        entries = self._members(traces[device : device + 1])
        are_dicts = self._tree.are_dicts(entries)
        return entries if are_dicts.all() else entries[are_dicts]

    def _device_history(self, device: int, entries: Values, live: int, held: int) -> Iterator[EventBatch]:
        """The totals at the start are computed backwards from the snapshot, since the history may be incomplete.

        It is read twice, some entries at a time: first what it adds to the totals, then the events.
        """
        tree = self._tree
        pieces = [entries[begin : begin + _BATCH_ROWS] for begin in range(0, len(entries), _BATCH_ROWS)]
        added: dict[int, list[float]] = {}
        for piece in pieces:
            codes, values, sizes = self._actions(piece)
            for code, value in enumerate(values):
                of_value = sizes[codes == code]
                total = added.setdefault(value, [0, 0.0])
                total[0] += int(of_value.sum())
                total[1] += float(of_value.sum(dtype=np.float64))
        places = {value: place for place, value in enumerate(sorted(added))}
        names = tree.plain(np.array([*places], entries.dtype))
        actions = [name if isinstance(name, str) else "" for name in names]
        effects = np.array([_effect(action, actions) for action in actions], np.int8).reshape(-1, 2)
        totals = []
        for column, at_end in enumerate((live, held)):
            of_actions = [*zip(effects[:, column].tolist(), map(added.__getitem__, places), strict=True)]
            exact, about = (sum(sign * total[part] for sign, total in of_actions) for part in (0, 1))
            totals.append(_RunningTotal(at_end - int(exact), at_end - about))
        for piece in pieces:
            codes, values, sizes = self._actions(piece)
            codes = np.array([places[value] for value in values], np.int32)[codes]
            effect = effects[codes]
            allocated, reserved = (total.after(effect[:, at] * sizes) for at, total in enumerate(totals))
            changes = np.where(effect[:, 0] == 0, NULL, effect[:, 0] * sizes)
            yield ReadyBatch(
                self._columns(device, piece, codes, actions, sizes, changes, allocated, reserved)
            )

    def _actions(self, entries: Values) -> tuple[Codes, list[int], Numbers]:
        """The action of each entry: its place in a list of values; and its size."""
        tree = self._tree
        values, codes = np.unique(tree.fields(entries, "action"), return_inverse=True)
        sizes = tree.numbers(tree.fields(entries, "size"))
        return codes.astype(np.int32), values.tolist(), np.where(sizes == NULL, 0, sizes)

    def _columns(
        self,
        device: int,
        entries: Values,
        codes: Codes,
        actions: list[str],
        sizes: Numbers,
        changes: Numbers,
        allocated: Numbers,
        reserved: Numbers,
    ) -> EventColumns:
        tree, count = self._tree, len(entries)
        times = tree.numbers(tree.fields(entries, "time_us"))
        usable = (times > -(2**53)) & (times < 2**53)
        address = tree.numbers(tree.fields(entries, "addr"))
        stack = self.stacks.numbers(tree.fields(entries, "frames"))
        stream = tree.numbers(tree.fields(entries, "stream"))
        memory = [changes, allocated, reserved, np.full(count, _CUDA), np.full(count, device), address]
        args, offsets = _spelt(
            (sizes, np.where(stack == NO_TEXT, NULL, stack.astype(np.int64)), stream, *memory)
        )
        fixed = ["i", SNAPSHOT_CATEGORY, "memory snapshot", f"GPU {device}"]
        phase, category, pid, tid = (np.full(count, code, np.int32) for code in range(len(fixed)))
        return event_columns(
            Texts.of((*fixed, *actions)),
            np.where(usable, times * 1000, NULL),
            np.full(count, NULL),
            {"device": np.full(count, device)},
            phase=phase,
            category=category,
            name=codes + np.int32(len(fixed)),
            pid=pid,
            tid=tid,
            args=args,
            args_offset=offsets,
            memory_events=np.arange(count, dtype=np.int32),
            memory=np.stack(memory, axis=1),
            read_by=tree.read_by,
        )

    def _members(self, lists: Values) -> Values:
        self._budget.spend(int(np.maximum(self._tree.lengths(lists), 0).sum()))
        return self._tree.members(lists)

    def _numbers(self, values: Values, key: str) -> list[Any]:
        return _or_none(self._tree.numbers(self._tree.fields(values, key)), NULL)

    def _texts(self, values: Values, key: str) -> list[str | None]:
        plain = self._tree.plain(self._tree.fields(values, key))
        return [value if isinstance(value, str) else None for value in plain]


class _Stacks:
    """Distinct stacks, each stored once, in the order in which they are first met."""

    def __init__(self, tree: PickledTree, budget: Budget) -> None:
        self.rows: list[dict[str, Any]] = []
        self.without_frames = 0
        """How many are stored without their lines: all of them would be longer than the file."""
        self._tree = tree
        self._budget = budget
        self._text_left = max(tree.size, _LEAST_FRAME_TEXT)
        self._of_list: dict[int, int] = {}
        self._of_lines: dict[tuple[object, ...], int] = {}
        self._frames: dict[int, Frame] = {}

    def numbers(self, lists: Values) -> Codes:
        """The number of each stack; NO_TEXT where there is none."""
        contents = np.where(self._tree.lengths(lists) > 0, self._tree.contents(lists), -1)
        distinct, firsts, places = np.unique(contents, return_index=True, return_inverse=True)
        number = np.full(len(distinct), NO_TEXT, np.int32)
        for index in np.argsort(firsts).tolist():
            if distinct[index] >= 0:
                number[index] = self._number(int(distinct[index]), lists[firsts[index] : firsts[index] + 1])
        numbers: Codes = number[places]
        return numbers

    def _number(self, content: int, stack: Values) -> int:
        if content not in self._of_list:
            self._budget.spend(3 * int(self._tree.lengths(stack)[0]))
            members = self._tree.members(stack)
            frames = self._known(members[self._tree.are_dicts(members)])
            lines = python_lines(frames)
            key = (own_line(frames), op_name(frames), lines)
            number = self._of_lines.setdefault(key, len(self.rows))
            if number == len(self.rows):
                self._text_left -= sum(map(len, lines))
                has_room = self._text_left >= 0
                self.without_frames += not has_room
                row = {"stack": number, "source": key[0], "op": key[1], "frames": lines if has_room else None}
                self.rows.append(row)
            self._of_list[content] = number
        return self._of_list[content]

    def _known(self, members: Values) -> list[Frame]:
        keys = members.tolist()
        new = [index for index, key in enumerate(keys) if key not in self._frames]
        if new:
            values = (
                self._tree.plain(self._tree.fields(members[new], key)) for key in ("filename", "line", "name")
            )
            self._frames.update(zip((keys[index] for index in new), map(frame_of, *values), strict=True))
        return [self._frames[key] for key in keys]


_NO_TOTALS = (np.zeros(0, np.int64),) * 4


def _effect(action: str, actions: list[str]) -> tuple[int, int]:
    """Of an action among those of a history. One that was recorded without requests (skip_actions) has only the
    completed frees."""
    if action == _FREED and _FREE not in actions:
        return _EFFECTS[_FREE]
    return _EFFECTS.get(action, (0, 0))


class _RunningTotal:
    """A total that entries add to."""

    def __init__(self, start: int, about: float) -> None:
        self._start = start
        """Modulo 2**64."""
        self._about = about

    def after(self, changes: Numbers) -> Numbers:
        """The total after each entry; NULL where it has more than 64 bits."""
        total = np.cumsum(changes)
        about = np.cumsum(changes.astype(np.float64)) + self._about
        start = np.int64((self._start + 2**63) % 2**64 - 2**63)
        self._start += int(total[-1])
        self._about = float(about[-1])
        return np.where(np.abs(about) < _BEYOND, total + start, NULL)


def _or_none(numbers: NDArray[Any], missing: int) -> list[Any]:
    return [None if number == missing else number for number in numbers.tolist()]


def _spelt(columns: tuple[Numbers, ...]) -> tuple[Any, NDArray[np.uint32]]:
    """The arguments of each event, as JSON."""
    if native.functions is not None:
        pieces = ("{" + _ARGS.replace("%s", "\0") + "}").encode().split(b"\0")
        columns = tuple(np.ascontiguousarray(column, dtype=np.int64) for column in columns)
        args, offsets = native.functions.spell_rows(tuple(pieces), columns)
        return args, np.frombuffer(offsets, np.uint32)
    texts = (["null" if number == NULL else str(number) for number in column.tolist()] for column in columns)
    return joined_texts(("{" + _ARGS % row + "}").encode() for row in zip(*texts, strict=True))


def _rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class SnapshotReader(Reader):
    """Recognises snapshots by the keys in their first bytes."""

    name = "memory"
    reading = SnapshotReading

    def recognises(self, path: Path, head: bytes) -> bool:
        return is_pickle(head) and any(key in head for key in _KEYS)


SNAPSHOT = SnapshotReader()
