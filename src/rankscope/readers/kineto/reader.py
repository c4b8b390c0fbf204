"""torch.profiler's Kineto traces, and Chrome traces in general: .json, also compressed, in any layout.

The bytes are cut at event boundaries into blocks, and DuckDB parses the blocks in parallel, each as a file
(docs/adr/0136-native-scanner.md). A block that does not parse is repaired event by event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope import native
from rankscope.errors import NotATraceError, ReadError
from rankscope.model import CATEGORY_ALIASES, COMPUTING_OPS, MEMORY_ARGS, SHAPE_ARGS
from rankscope.readers.base import (
    NCCL_PLUGIN_EVENT,
    EventBatch,
    Reader,
    Reading,
    ReadReport,
    TraceIdentity,
    identity_from_name,
    ranks_by_label,
    usable_time,
    usable_world,
)
from rankscope.readers.byte_stream import GzipStream, PlainStream, fill, open_stream, packed_stream, read_head
from rankscope.readers.kineto import json_layout
from rankscope.readers.memory_file import MemoryFile
from rankscope.sql import sql_name, sql_text, sql_texts

TYPED_ARGS = {
    "correlation": "BIGINT",
    "External id": "BIGINT",
    "device": "BIGINT",
    "stream": "BIGINT",
    "bytes": "BIGINT",
    "Collective name": "VARCHAR",
}
"""The arguments of events that get columns of their own, and their SQL types."""

# For the DuckDB reader parsing arguments costs up to a third of the time, so it is limited to categories that need it.
# Ops and annotations, the bulk of a trace, need only the External id, which torch writes first.
WITHOUT_TYPED_ARGS = ("cpu_op", "user_annotation", "python_function", "cpu_instant_event", "ac2g", "fwdbwd")
WITH_TYPED_ARGS = "record_param_comms"
"""The name of an op that has them whatever its category is."""

OP_CATEGORIES = ("cpu_op", *(old for old, new in CATEGORY_ALIASES.items() if new == "cpu_op"))


if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns

BLOCK_BYTES = 16 << 20
"""Parsed by one thread: small enough to keep the memory of many threads low and to let them finish at about the same
time. Half as much takes a tenth more CPU time."""
LARGEST_EVENT_BYTES = 16 << 20
_SHORT_HEAD_BYTES = 1 << 16
_HEAD_BYTES = 4 << 20
_MOST_WITHOUT_CUT = 128 << 20
"""Much longer than any event that is read (LARGEST_EVENT_BYTES): a file without an end of an event in it is a bomb."""
_ROOM_FOR_REST = 1 << 16
"""Extra space in buffers: the bytes after the last complete event of the previous block usually fit."""

_COLUMNS = {
    "ph": "VARCHAR",
    "cat": "VARCHAR",
    "name": "VARCHAR",
    "pid": "VARCHAR",
    "tid": "VARCHAR",
    "id": "VARCHAR",
    "args": "JSON",
}
_SELECT = """
SELECT coalesce(ph, '') AS ph, coalesce(cat, '') AS category, coalesce(name, '') AS name,
       coalesce(pid, '') AS pid, coalesce(tid, '') AS tid,
       {time} AS ts_ns, CAST(round(dur * 1000) AS BIGINT) AS dur_ns, id AS flow, args,
       typed.correlation AS correlation,
       coalesce(typed."External id", op_id,
                CASE WHEN cat = 'cpu_op' THEN TRY_CAST(args->>'External id' AS BIGINT) END) AS external_id,
       typed.device AS device,
       typed.stream AS stream, typed.bytes AS bytes, typed."Collective name" AS collective,
       CASE WHEN name = '[memory]' THEN json_transform(args, {memory}) END AS memory,
       CASE WHEN cat IN ({ops}) AND name IN ({computing}) THEN json_extract_string(args, {shapes}) END AS shapes
FROM (SELECT *,
             CASE WHEN cat IS NULL OR cat NOT IN ({untyped}) OR name = {always_typed}
                  THEN json_transform(args, {typed}) END AS typed,
             CASE WHEN cat IN ('cpu_op', 'user_annotation')
                  THEN TRY_CAST(regexp_extract(args, '^.?"External id":(\\d+)', 1) AS BIGINT) END AS op_id
      FROM read_json({path}, format='array', columns={columns}, auto_detect=false,
                     maximum_object_size={largest}))
"""

# Exact ns: a double holds µs with three decimals up to 2**43 (102 days; Kineto's base time is at most 92 days
# back) if the fraction is scaled separately. DuckDB's cast of a JSON number to DECIMAL is wrong by 1 ns from
# 2**42 on. For files with times since 1970 and fractions, the number is put in quotes: DuckDB casts a string to
# DECIMAL exactly. Ascend's profilers write them so.
_SHORT_TIME = ("DOUBLE", "CAST(trunc(ts) AS BIGINT) * 1000 + CAST(round((ts - trunc(ts)) * 1000) AS BIGINT)")
_LONG_TIME = ("DECIMAL(20,3)", "CAST(ts * 1000 AS BIGINT)")
_LONG_TIME_TEXT = re.compile(rb'"ts":\s*([0-9]{13,}\.[0-9]+)')
_PROTON_EVENT = re.compile(rb'"call_stack"\s*:\s*\[\s*"ROOT"')
"""Events of Triton's Proton; its header does not tell."""
_LONG_TIME_SAMPLE = re.compile(rb'"ts":\s*"?[0-9]{14,}\.[0-9]')


@dataclass(frozen=True)
class Block:
    """Bytes with complete events between start and end; `offset` is the position of the block in the file."""

    data: bytes | bytearray
    start: int
    end: int
    offset: int
    separator: bytes | None

    def read(self) -> Block:
        return self


@dataclass(frozen=True)
class BlockInFile:
    """A block that the thread which parses it reads."""

    reading: KinetoReading
    begin: int
    """Where it begins and ends in the file."""
    end: int
    separator: bytes

    def read(self) -> Block:
        data, size = self.reading.buffer_with(self.begin, self.end)
        start = json_layout.skip_between(data, 0, size)
        return Block(data, start, size, self.begin, self.separator)


class JsonBatch(EventBatch):
    """The events of one block."""

    def __init__(
        self, block: Block | BlockInFile, report: ReadReport, spare: list[bytearray], part: str = ""
    ) -> None:
        self._unread = block
        self._part = part
        self._report = report
        self._spare = spare
        self._file: MemoryFile | None = None
        """For DuckDB; the scanner needs none."""

    @cached_property
    def _block(self) -> Block:
        return self._unread.read()

    def columns(self) -> EventColumns:
        # Late: they import numpy.
        from rankscope.readers.columns import only_process
        from rankscope.readers.sql_columns import read_columns

        block = self._block
        columns = scan(memoryview(block.data)[block.start : block.end])
        columns = read_columns(self) if columns is None else columns
        return only_process(columns, f"[{self._part}] ") if self._part else columns

    def select(self) -> str:
        block = self._block
        content: bytes | memoryview = memoryview(block.data)[block.start : block.end]
        time = _SHORT_TIME
        if _LONG_TIME_SAMPLE.search(content, 0, 1 << 16):
            content, time = _LONG_TIME_TEXT.sub(rb'"ts":"\1"', bytes(content)), _LONG_TIME
        return self._select(content, time)

    def select_repaired(self) -> str:
        block = self._block
        clean = json_layout.repair_range(
            bytes(block.data), block.start, block.end, block.separator, block.offset, self._report
        )
        return self._select(clean, _LONG_TIME)

    def _select(self, content: bytes | memoryview, time: tuple[str, str]) -> str:
        columns = _COLUMNS | {"ts": time[0], "dur": "DOUBLE"}
        self._file = self._file or MemoryFile()
        return _SELECT.format(
            typed=sql_text(json.dumps(TYPED_ARGS)),
            untyped=sql_texts(WITHOUT_TYPED_ARGS),
            memory=sql_text(json.dumps(MEMORY_ARGS)),
            computing=sql_texts(COMPUTING_OPS),
            ops=sql_texts(OP_CATEGORIES),
            always_typed=sql_text(WITH_TYPED_ARGS),
            shapes="[" + sql_texts(f"$.{sql_name(name)}" for name in SHAPE_ARGS) + "]",
            time=time[1],
            path=self._file.write_array(content),
            columns="{" + ", ".join(f"{name}: {sql_text(kind)}" for name, kind in columns.items()) + "}",
            largest=LARGEST_EVENT_BYTES,
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        block = self.__dict__.pop("_block", self._unread)
        if isinstance(block, Block) and isinstance(block.data, bytearray):
            self._spare.append(block.data)


class KinetoReading(Reading):
    """One pass over one JSON trace, or over the events of one rank in it."""

    def __init__(self, path: Path, part: str = "") -> None:
        super().__init__(path)
        self._part = part
        self._stream = open_stream(path)
        # A byte more than a small file has: its first block is known to be the last without another read.
        size = path.stat().st_size
        self._block_bytes = (
            BLOCK_BYTES if isinstance(self._stream, GzipStream) else min(BLOCK_BYTES, size + 1)
        )
        self._spare: list[bytearray] = []
        """Buffers to use again: allocating new ones costs more than reading into them."""
        self._position = 0
        """Where the blocks end that threads read from the file."""

    def batches(self) -> Iterator[JsonBatch]:
        try:
            for block in self._blocks():
                yield JsonBatch(block, self.report, self._spare, self._part)
            if self._part and isinstance(info := self.header.get("distributedInfo"), dict):
                # It is that of the first rank.
                self.header["distributedInfo"] = {"world_size": info.get("world_size")}
        finally:
            self._stream.close()

    def position(self) -> int:
        return max(self._position, self._stream.position())

    def clock_base_ns(self) -> int:
        return usable_time(self.header.get("baseTimeNanoseconds"))

    def buffer_with(self, begin: int, end: int) -> tuple[bytearray, int]:
        """A buffer with these bytes of the file, and the number of bytes in it. Threads may call it side by side."""
        size = end - begin
        buffer = self._spare.pop() if self._spare else bytearray()
        if len(buffer) < size:
            buffer = bytearray(max(size, self._block_bytes + _ROOM_FOR_REST))
        try:
            with self._path.open("rb", buffering=0) as file:
                file.seek(begin)
                count = fill(memoryview(buffer)[:size], file)
        except OSError as error:
            self.report.damage = f"reading stopped: {error.strerror}"
            return buffer, 0
        if count < size:
            self.report.damage = "the file became shorter while it was read"
        return buffer, count

    def _read_after(self, rest: bytes) -> tuple[bytearray, int]:
        """A buffer with these bytes followed by the next ones of the file, and the number of bytes in it."""
        size = len(rest) + self._block_bytes
        buffer = self._spare.pop() if self._spare else bytearray(size + _ROOM_FOR_REST)
        if len(buffer) < size:
            buffer = bytearray(size)
        buffer[: len(rest)] = rest
        try:
            return buffer, len(rest) + self._stream.read_into(memoryview(buffer)[len(rest) : size])
        except OSError as error:
            self._stream.damage = f"reading stopped: {error.strerror}"
            return buffer, len(rest)

    def _blocks(self) -> Iterator[Block | BlockInFile]:
        data: bytes | bytearray = self._stream.read_on(
            self._block_bytes
        )  # a new bytearray would be filled with zeros
        size = len(data)
        last = size < self._block_bytes
        for head_bytes in (_SHORT_HEAD_BYTES, size):  # the events mostly begin after some kB
            head = bytes(memoryview(data)[: min(size, head_bytes)])
            begin = json_layout.find_events_start(head)
            separator = json_layout.sniff_separator(head, begin.offset) if begin else None
            if begin and separator and not begin.header_damaged:
                break
        if begin is None:
            raise _no_events(self._path, self._stream.damage)
        self.header.update(begin.header)
        if _PROTON_EVENT.search(head):
            self.header["profiler"] = "proton"
        if begin.header_damaged:
            self.report.damage = "the fields before the events are damaged"
        offset, start = 0, begin.offset
        while not last:
            end = json_layout.last_cut(data, start, size, separator) if separator else None
            if end is None:  # space, an event longer than a block, or an unusual layout
                start = json_layout.skip_between(data, start, size)
                rest = bytes(memoryview(data)[start:size])
                offset, start = offset + start, 0
                if len(rest) > _MOST_WITHOUT_CUT:
                    rest, skipped = self._after_long_event(rest, separator, offset)
                    offset, start = offset + skipped, json_layout.skip_between(rest, 0, len(rest))
            else:
                # Copied before the block is yielded, which gives its buffer away.
                rest = bytes(memoryview(data)[end:size])
                yield Block(data, start, end, offset, separator)
                offset, rest = yield from self._blocks_in_file(offset + end, rest, separator or b"")
                start = json_layout.skip_between(rest, 0, len(rest))
            data, size = self._read_after(rest)
            last = size < len(rest) + self._block_bytes
        if isinstance(data, bytearray):
            del data[size:]
        yield self._last_block(data, start, offset, separator)

    def _blocks_in_file(
        self, offset: int, rest: bytes, separator: bytes
    ) -> Generator[BlockInFile, None, tuple[int, bytes]]:
        """The blocks that follow `rest` in a plain file, up to the last or one without an end of an event. Only their
        ends are looked for here. Returns the offset of what follows them, and its bytes up to the stream's position."""
        stream = self._stream
        if not isinstance(stream, PlainStream):
            return offset, rest
        begin, boundary = offset, stream.position()
        size = self._path.stat().st_size
        while boundary + self._block_bytes <= size:
            end = self._cut_before(stream, begin, boundary + self._block_bytes, separator)
            if end is None:
                break
            boundary += self._block_bytes
            self._position = end
            yield BlockInFile(self, begin, end, separator)
            begin = end
        if begin > offset:
            rest = stream.read_at(begin, boundary - begin)
        stream.seek(boundary)
        return begin, rest

    def _cut_before(self, stream: PlainStream, begin: int, boundary: int, separator: bytes) -> int | None:
        """Where the last event ends that is followed by another before a place of the file."""
        for size in (_SHORT_HEAD_BYTES, boundary - begin):
            low = max(begin, boundary - size)
            text = stream.read_at(low, boundary - low)
            end = json_layout.last_cut(text, 0, len(text), separator)
            if end is not None:
                return low + end
        return None

    def _after_long_event(self, rest: bytes, separator: bytes | None, offset: int) -> tuple[bytes, int]:
        """What follows an event that is longer than any that is read, and how many bytes were left out."""
        if separator is None:
            raise ReadError(
                f"cannot tell the events of {self._path} apart",
                why=f"In {_MOST_WITHOUT_CUT >> 20} MiB there is no end of an event.",
                hint="It is damaged, or not a trace: leave it out, or capture this rank again.",
            )
        self.report.lose(f"event at byte {offset:,} is longer than {_MOST_WITHOUT_CUT >> 20} MiB")
        skipped = 0
        while rest:
            position = rest.find(separator)
            if position >= 0:
                end = position + separator.index(b"}") + 1
                return rest[end:], skipped + end
            tail = rest[-len(separator) :]
            skipped += len(rest) - len(tail)
            more = self._stream.read(BLOCK_BYTES)
            rest = tail + more if more else b""
        return b"", skipped

    def _last_block(self, data: bytes | bytearray, start: int, offset: int, separator: bytes | None) -> Block:
        end = json_layout.find_events_end(data, start, separator)
        self.header.update(end.trailer)
        if not end.closed:
            self.report.damage = self._stream.damage or "the file ends before the end of its list of events"
        if end.leftover:
            self.report.lose("the last event is cut off by the end of the file")
        return Block(data, start, end.events, offset, separator)


class KinetoReader(Reader):
    """Kineto and Chrome JSON."""

    name = "kineto"

    def recognises(self, path: Path, head: bytes) -> bool:
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text[:1] == b"[" and NCCL_PLUGIN_EVENT.search(head):
            return False
        if b'"traceEvents"' in head or (text[:1] == b"[" and re.search(rb'"ph"\s*:', head)):
            return True
        # After a long header the events start beyond `head`; a file named like a trace is accepted all the same.
        return text[:1] == b"{" and ".trace.json" in path.name

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        fields, head = _fields_before_events(path)
        if _MERGED.search(head):
            return _merged_ranks(path)
        identity = identity_from_name(path)
        info = fields.get("distributedInfo")
        if not isinstance(info, dict):
            info = _trailing_info(path, thorough=identity.rank is None)
        if isinstance(info.get("rank"), int):
            identity = TraceIdentity(info["rank"], "distributedInfo")
        world = usable_world(info.get("world_size"))
        return [replace(identity, world_size=world, trace_id=str(fields.get("trace_id", "")))]

    def open(self, path: Path, part: str = "") -> KinetoReading:
        return KinetoReading(path, part)


KINETO = KinetoReader()


_MERGED = re.compile(rb'"pid"\s*:\s*"\[((?:(?:TP|DP|PP|EP)\d+-?)+)\] ')
"""A process in a file that SGLang merged from those of several ranks (merge_profiles): [TP00-DP01] 1234."""


def _merged_ranks(path: Path) -> list[TraceIdentity]:
    labels: set[str] = set()
    with closing(open_stream(path)) as stream:
        rest = b""
        while piece := stream.read(BLOCK_BYTES):
            text = rest + piece
            labels |= {label.decode() for label in _MERGED.findall(text)}
            rest = text[-_SHORT_HEAD_BYTES:]
    ranks = ranks_by_label(labels)
    return [
        TraceIdentity(ranks[label], "its processes", part=label if len(labels) > 1 else "")
        for label in sorted(labels, key=ranks.__getitem__)
    ]


def _fields_before_events(path: Path) -> tuple[dict[str, Any], bytes]:
    """The fields, and the first bytes of the file."""
    for size in (_SHORT_HEAD_BYTES, _HEAD_BYTES):
        head, _ = read_head(path, size)
        begin = json_layout.find_events_start(head)
        if (begin and not begin.header_damaged) or len(head) < size:
            break
    return begin.header if begin else {}, head


def _trailing_info(path: Path, thorough: bool) -> dict[str, Any]:
    """distributedInfo among the fields after the events, or {}. A compressed file is searched only if `thorough`: it
    must be read to the end."""
    tail = b""
    if packed_stream(path):
        with closing(open_stream(path)) as stream:
            while thorough and (piece := stream.read(BLOCK_BYTES)):
                tail = (tail + piece)[-_HEAD_BYTES:]
    else:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
            tail = file.read()
    _, key, rest = tail.rpartition(b'"distributedInfo":')
    try:
        value = json.JSONDecoder(strict=False).raw_decode(rest.decode("latin-1").lstrip())[0] if key else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _no_events(path: Path, damage: str) -> NotATraceError:
    return NotATraceError(
        f"{path} has no events",
        why=f"It ends before the start of traceEvents{f' ({damage})' if damage else ''}.",
        hint="Capture this rank again, or leave the file out.",
    )


_Lists = tuple[tuple[bytes, ...], ...]


def _lists(*lists: tuple[str, ...]) -> _Lists:
    return tuple(tuple(text.encode() for text in texts) for texts in lists)


WORDS = _lists(
    WITHOUT_TYPED_ARGS,
    ("cpu_op",),
    ("user_annotation",),
    OP_CATEGORIES,
    (WITH_TYPED_ARGS,),
    ("[memory]",),
    COMPUTING_OPS,
)
"""Categories and names that decide which arguments of an event get columns; native/event_columns.c says what each
list means."""

NAMES = _lists(
    tuple(name for name, kind in TYPED_ARGS.items() if kind == "BIGINT"),
    tuple(name for name, kind in TYPED_ARGS.items() if kind == "VARCHAR"),
    tuple(MEMORY_ARGS),
    SHAPE_ARGS,
)
"""The arguments that get columns: numbers and texts of linked events, of memory events, of computing ops."""

_SCANNED = {
    **dict.fromkeys(("phase", "category", "name", "pid", "tid"), "int32"),
    **dict.fromkeys(("flow", "time", "duration"), "int64"),
    "args": "uint8",
    "args_offset": "uint32",
    "linked": "int32",
    **dict.fromkeys(("correlation", "external_id", "device", "stream", "bytes"), "int64"),
    "collective": "int32",
    "memory_events": "int32",
    "memory": "int64",
    "computing": "int32",
    "shapes": "int32",
}
"""In the order in which the C parts return them (native/event_columns.h)."""


def scan(view: memoryview) -> EventColumns | None:
    """The events of a block, complete events with commas between them, as the scanner in C reads them (native/scan.c,
    docs/adr/0136-native-scanner.md). None if it is not sure to read them as DuckDB does."""
    scanned = None if native.functions is None else native.functions.scan_events(view, WORDS, NAMES)
    return None if scanned is None else columns_in_c(scanned)


def columns_in_c(buffers: tuple[Any, ...]) -> EventColumns:
    """The columns that the C parts return."""
    # Late: numpy is not needed to find and identify files.
    import numpy as np

    from rankscope.readers.columns import IN_C, EventColumns, Texts

    *values, text_offsets, text_data = buffers
    columns: dict[str, Any] = {
        name: np.frombuffer(buffer, dtype=kind)
        for (name, kind), buffer in zip(_SCANNED.items(), values, strict=True)
    }
    columns["memory"] = columns["memory"].reshape(-1, len(MEMORY_ARGS))
    columns["shapes"] = columns["shapes"].reshape(-1, len(SHAPE_ARGS))
    return EventColumns(
        texts=Texts(np.frombuffer(text_offsets, dtype="int64"), text_data), read_by=IN_C, **columns
    )
