"""Dumps of NCCL's example profiler plugin: a Chrome trace per communicator and rank (NCCL_PROFILE_DUMP_FILE).

Its events are read as those of any Chrome trace. Each collective, and the kernels of its channels that follow it in the
file, also become an operation of the table `nccl`. Times count from the start of the plugin; the GPU's clock, which the
kernels record, tells when that was. The number of ranks of the communicator is not in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.model import NCCL, NCCL_CATEGORY, NCCL_PARTS, Table
from rankscope.readers.base import Batch, EventBatch, Reader, ReadyBatch, TraceIdentity
from rankscope.readers.byte_stream import read_head
from rankscope.readers.checked_values import integer, json_object, text
from rankscope.readers.columns import NULL, Texts
from rankscope.readers.kineto.reader import Block, KinetoReading
from rankscope.readers.nccl.operations import OperationRows

if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns

TRACK = "NCCL"
_OWNER = re.compile(rb'"CommHash":\s*(\d{1,20}),\s*"Rank":\s*(\d{1,7})\b')
_PROCESS = re.compile(rb'"pid":\s*(\d{1,10})\b')
_IDENTIFIED_BYTES = 16 << 20
_UNQUOTED = re.compile(rb'("(?:datatype|Stream)":\s*)(nccl\w+|0x[0-9a-fA-F]+|\(nil\)|\(null\))')
"""NCCL 2.28 writes these values without quotes."""
_OPERATIONS = ("COLL", "P2P")
_KERNEL = "GPU"
_CREDIBLE_GPU_NS = 1_500_000_000_000_000_000
"""The GPU's timer counts from 1970; a value below is not one of it."""
_LONGEST_NS = 10**12
_TYPES = {
    "ncclInt8": 1, "ncclUint8": 1, "ncclInt32": 4, "ncclUint32": 4, "ncclInt64": 8, "ncclUint64": 8, "ncclFloat16": 2,
    "ncclFloat32": 4, "ncclFloat64": 8, "ncclBfloat16": 2, "ncclFloat8e4m3": 1, "ncclFloat8e5m2": 1,
}  # fmt: skip
"""NCCL's data types in the order of their numbers, and their sizes. NCCL 2.23 writes the number."""


@dataclass
class _Operation:
    row: dict[str, Any]
    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    gpu_begins: list[int] = field(default_factory=list)
    gpu_ends: list[int] = field(default_factory=list)

    def finished(self) -> dict[str, Any]:
        """Its row, with the times of its kernels where they were recorded: the event of the collective itself ends
        when it was launched."""
        row = dict(self.row)
        if self.begins and self.ends:
            row |= {"started_ns": min(self.begins), "completed_ns": max(self.ends)}
        if self.gpu_begins and self.gpu_ends:
            took = max(self.gpu_ends) - min(self.gpu_begins)
            if 0 < took < _LONGEST_NS:
                row |= {"duration_ns": took, "timing": "kernel_gpu"}
        return row


class PluginReading(KinetoReading):
    """One dump."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._owner = _owner(path)
        self._rows: list[dict[str, Any]] = []
        self._open: _Operation | None = None
        self._base_ns = 0
        self.header["communicator"] = self._owner.communicator

    def batches(self) -> Iterator[EventBatch]:  # type: ignore[override]
        for batch in super().batches():
            columns = batch.columns()
            batch.close()
            self._collect(columns)
            yield ReadyBatch(_with_own_categories(columns))
        yield OperationRows(self._rows, TRACK, self._owner.communicator)

    def _blocks(self) -> Iterator[Block]:
        for block in (each.read() for each in super()._blocks()):
            inside = bytes(memoryview(block.data)[block.start : block.end])
            fixed = _UNQUOTED.sub(rb'\1"\2"', inside)
            yield block if fixed == inside else replace(block, data=fixed, start=0, end=len(fixed))

    def position(self) -> int:
        return self._path.stat().st_size

    def clock_base_ns(self) -> int:
        return self._base_ns

    def further(self) -> Iterator[tuple[Table, Batch]]:
        yield NCCL, OperationRows(self._rows)

    def _collect(self, columns: EventColumns) -> None:
        """The operations among these events, in the order of the file: kernels follow the operation they are of."""
        texts = list(columns.texts)
        wanted = {code for code, name in enumerate(texts) if name in (*_OPERATIONS, _KERNEL)}
        for index, code in enumerate(columns.category.tolist()):
            if code not in wanted:
                continue
            time = int(columns.time[index])
            usable_time = time if time not in (0, NULL) else None
            begins, category = texts[columns.phase[index]] == "b", texts[code]
            if category == _KERNEL:
                self._add_kernel(begins, usable_time, columns.args_of(index))
            elif begins:
                self._open = _Operation(
                    _row(texts[columns.name[index]], usable_time, json_object(columns.args_of(index)))
                )
            elif self._open is not None:
                self._rows.append(self._open.finished())
                self._open = None

    def _add_kernel(self, begins: bool, time: int | None, args: str | None) -> None:
        if self._open is None:
            return
        if time is not None:
            (self._open.begins if begins else self._open.ends).append(time)
        if not begins:
            return
        told = json_object(args)
        start, stop = (integer(told.get(key)) or 0 for key in ("StartGpuClk", "StopGpuClk"))
        if start > 0 and stop > 0:
            self._open.gpu_begins.append(start)
            self._open.gpu_ends.append(stop)
        if start >= _CREDIBLE_GPU_NS and time is not None:
            # The start is noticed late, never early: the earliest notice is nearest.
            self._base_ns = max(self._base_ns, start - time)


def _with_own_categories(columns: EventColumns) -> EventColumns:
    """The same events with categories that say whose they are: nccl_proxy, not PROXY."""
    texts = list(columns.texts)
    categories = [f"{NCCL_CATEGORY}_{text.lower()}" for text in texts]
    named = [(code, text) for code, text in enumerate(categories) if text in NCCL_PARTS]
    new = np.arange(len(texts), dtype=np.int32)
    for index, (code, _) in enumerate(named):
        new[code] = len(texts) + index
    all_texts = Texts.of([*texts, *(text for _, text in named)])
    return replace(columns, texts=all_texts, category=new[columns.category])


def _row(function: str, time: int | None, args: dict[str, Any]) -> dict[str, Any]:
    kind, count = args.get("Datatype"), integer(args.get("Count"))
    if isinstance(kind, int) and 0 <= kind < len(_TYPES):
        kind = list(_TYPES)[kind]
    size = _TYPES.get(kind, 0) if isinstance(kind, str) else 0
    channels = integer(args.get("nChannels"))
    return {
        "communicator": _hash(integer(args.get("CommHash"))),
        "communicator_rank": integer(args.get("Rank")),
        "function": text(function),
        "seq": integer(args.get("SeqNum")),
        "peer": integer(args.get("Peer")),
        "rank_bytes": count * size if count is not None and size and 0 <= count < 2**53 else None,
        "dtype": text(kind.removeprefix("nccl").lower()) if isinstance(kind, str) else None,
        "created_ns": time,
        "algorithm": text(args.get("Algorithm")),
        "protocol": text(args.get("Protocol")),
        "channels": integer(args.get("nMaxChannels")) if channels is None else channels,
        "is_mean": False,
    }


def _hash(number: int | None) -> str:
    """As the Inspector spells it."""
    return "" if number is None else f"0x{number % 2**64:x}"


def _owner(path: Path) -> TraceIdentity:
    """Whose dump it is, from its first collective. The rank is that in its communicator; the store looks for the
    largest one among the files of a process."""
    head, _ = read_head(path, _IDENTIFIED_BYTES)
    match, process = _OWNER.search(head), _PROCESS.search(head)
    if match is None:
        return TraceIdentity(None, "")
    return TraceIdentity(
        int(match[2]),
        "communicator",
        communicator=_hash(int(match[1])),
        process=process[1].decode() if process else "",
    )


class PluginReader(Reader):
    """Recognises dumps by the categories of the plugin's events."""

    name = "nccl_plugin"
    reading = PluginReading

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return [_owner(path)]


PLUGIN = PluginReader()
