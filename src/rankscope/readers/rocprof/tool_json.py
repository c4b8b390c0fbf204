"""rocprofv3's JSON output, NAME_results.json: what records refer to first, then the records, a list for each kind.

The records are read in blocks that are cut between two of them. DuckDB takes the numbers out of a block; a block that
it refuses is read record by record, and what is damaged is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.errors import ReadError
from rankscope.model import READ_EVENTS
from rankscope.readers.base import (
    EventBatch,
    Reader,
    Reading,
    ReadReport,
    ReadyBatch,
    TraceIdentity,
    rank_from_name,
)
from rankscope.readers.byte_stream import ByteStream, open_stream, read_head
from rankscope.readers.checked_values import as_object, integer
from rankscope.readers.columns import DUCKDB, IN_PYTHON, NULL, EventColumns, Numbers
from rankscope.readers.memory_file import MemoryFile
from rankscope.readers.rocprof.records import (
    FORMAT,
    Allocation,
    Kernel,
    MemoryUse,
    Process,
    Rank,
    call_columns,
    copy_columns,
    counter_row,
    device_properties,
    kernel_columns,
    name_row,
    rank_of,
)
from rankscope.readers.row_batch import RowBatch, row_batches
from rankscope.readers.sql_columns import connection, filled, or_repaired

_ROOT = re.compile(rb'^[\xef\xbb\xbf\s]*\{\s*"rocprofiler-sdk-tool"\s*:\s*\[')
_BLOCK_BYTES = 16 << 20
_SHORT_HEAD_BYTES = 1 << 16
_MOST_BEFORE_RECORDS = 128 << 20
"""Bytes of what records refer to. 10,000 kernels, as many as torch has, are 20 MB."""
_LARGEST_RECORD = 1 << 24
_MOST_DAMAGED = 200
"""Records of a block that do not parse, before the rest of it is left out: each may take as long as the block."""
_LONGEST_TEXT = 100_000
_SECTION = re.compile(rb'"(?:callback_records|buffer_records)"\s*:\s*\{')
"""In `strings` there are lists of the same names."""
_LIST = re.compile(rb'[\s,]*"(\w{1,64})"\s*:\s*\[')
_LIST_ENDS = re.compile(rb'\](?=\s*(?:,\s*"\w+"\s*:\s*\[|\}\s*(?:,\s*"|\})))')
_CLOSED = re.compile(rb"[\s}]*\][\s}]*")
"""What follows the last list."""
_LAST_LIST_ENDS = re.compile(rb"\](?=[\s}\]]*\Z)")
_BETWEEN = re.compile(rb"[\s,}]*")
_FIRST_KEY = re.compile(rb'\{\s*"(\w{1,64})"\s*:')
_METADATA = re.compile(rb'"metadata"\s*:\s*')
_NOT_READ = ("pc_sample_host_trap", "pc_sample_stochastic", "scratch_memory")
"""Lists without a place on the timeline, and memory that ROCm takes for registers."""

_EVENT = {
    "start": ("start_timestamp",),
    "end": ("end_timestamp",),
    "correlation": ("correlation_id", "internal"),
}
_DISPATCH = {
    "agent": ("dispatch_info", "agent_id", "handle"),
    "queue": ("dispatch_info", "queue_id", "handle"),
    "kernel": ("dispatch_info", "kernel_id"),
    "private": ("dispatch_info", "private_segment_size"),
    "group": ("dispatch_info", "group_segment_size"),
    **{f"block_{axis}": ("dispatch_info", "workgroup_size", axis) for axis in "xyz"},
    **{f"items_{axis}": ("dispatch_info", "grid_size", axis) for axis in "xyz"},
}
_KERNEL = {**_EVENT, **_DISPATCH, "stream": ("stream_id", "handle")}
_COPY = {
    **_EVENT,
    "kind": ("kind",),
    "operation": ("operation",),
    "source": ("src_agent_id", "handle"),
    "target": ("dst_agent_id", "handle"),
    "queue": ("queue_id", "handle"),
    "stream": ("stream_id", "handle"),
    "bytes": ("bytes",),
}
_CALL = {**_EVENT, "kind": ("kind",), "operation": ("operation",), "thread": ("thread_id",)}
_CALL_LISTS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api", "ompt")

Fields = Mapping[str, tuple[str, ...]]
"""Name of a value, and the keys that lead to it in a record."""


@dataclass(frozen=True)
class ProcessMetadata:
    """What the records of one process refer to."""

    process: Process
    kinds: tuple[tuple[str, tuple[str, ...]], ...]
    """Kinds of records, with the names of their operations."""
    messages: Mapping[int, str]
    """Of roctx, by correlation id."""
    counters: Mapping[int, str]

    def operation(self, kind: int, operation: int) -> tuple[str, str]:
        name, operations = self.kinds[kind] if 0 <= kind < len(self.kinds) else ("", ())
        return name, operations[operation] if 0 <= operation < len(operations) else f"{name} {operation}"


@dataclass(frozen=True)
class _Block:
    """Complete records of one list: text without the brackets around it."""

    list: str
    text: bytes
    key: bytes
    """That each record begins with."""
    offset: int
    """Where the text is in the file, for messages."""


@dataclass(frozen=True)
class JsonBatch(EventBatch):
    """A block and the events that its records are."""

    block: _Block
    fields: Fields
    events: Callable[[dict[str, Numbers]], EventColumns]
    report: ReadReport
    file: MemoryFile

    def columns(self) -> EventColumns:
        numbers, read_by = self.numbers()
        return replace(self.events(numbers), read_by=read_by)

    def numbers(self) -> tuple[dict[str, Numbers], str]:
        """The columns of the records, and what read them."""
        return or_repaired(lambda: (self._selected(), DUCKDB), lambda: (self._repaired(), IN_PYTHON))

    def _selected(self) -> dict[str, Numbers]:
        types = ", ".join(f"{name}: '{kind}'" for name, kind in _types(self.fields).items())
        values = ", ".join(f'{".".join(keys)} AS "{name}"' for name, keys in self.fields.items())
        path = self.file.write_array(self.block.text)
        result = connection().execute(
            f"SELECT {values} FROM read_json({path}, format='array', columns={{{types}}}, auto_detect=false, "
            f"maximum_object_size={_LARGEST_RECORD})"
        )
        return {name: filled(column) for name, column in result.fetchnumpy().items()}

    def _repaired(self) -> dict[str, Numbers]:
        columns: dict[str, list[int]] = {name: [] for name in self.fields}
        for record in parsed_records(self.block, self.report):
            row = {name: _integer(_at(record, keys)) for name, keys in self.fields.items()}
            if row["start"] == NULL:
                self.report.lose("a record without a usable time")
                continue
            for name, value in row.items():
                columns[name].append(value)
        return {name: np.array(values, dtype=np.int64) for name, values in columns.items()}

    def close(self) -> None:
        self.file.close()


class ToolJsonReading(Reading):
    """One pass over one file. Times count from the boot of the machine, and the file does not say when that was."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stream = open_stream(path)

    def batches(self) -> Iterator[EventBatch]:
        try:
            yield from self._batches()
        finally:
            self._stream.close()

    def position(self) -> int:
        return self._stream.position()

    def _batches(self) -> Iterator[EventBatch]:
        text = _Text(self._stream)
        number = 0
        while head := self._before_records(text, first=number == 0):
            told = _told(head, number)
            self.header.update(_header(head, self.header))
            yield RowBatch(
                READ_EVENTS, [name_row("process_name", told.process.pid, 0, _command(head) or "process")]
            )
            yield from self._records(text, told)
            number += 1
        if not _CLOSED.fullmatch(text.data, text.at):
            after = f"what follows byte {text.offset:,} is not read" if text.at < len(text.data) else ""
            self.report.damage = self._stream.damage or after or "the file ends before the end of its records"

    def _before_records(self, text: _Text, first: bool) -> dict[str, Any]:
        """What the records of the next process refer to; {} after the last."""
        section = text.find(_SECTION, _MOST_BEFORE_RECORDS)
        if section is None:
            if first:
                where = (
                    f"ends before the start of callback_records ({self._stream.damage or 'cut off'})"
                    if text.ended
                    else f"has no list of records in its first {_MOST_BEFORE_RECORDS >> 20} MiB"
                )
                raise ReadError(
                    f"{self._path} has no records",
                    why=f"It {where}.",
                    hint="Record this rank again: rocprofv3 --output-format json -- PROGRAM. Or leave the file out.",
                )
            return {}
        before = text.take(section.start())
        begin = before.find(b"{", 1 + before.find(b"[")) if first else before.find(b"{")
        try:
            content = json.loads(
                before[begin:].rstrip(b", \t\r\n").decode("utf-8", "replace") + "}", strict=False
            )
        except (ValueError, RecursionError):
            content = _readable(before)
            self.report.damage = "the fields before the records are damaged: names may be missing"
        return content if isinstance(content, dict) else {}

    def _records(self, text: _Text, told: ProcessMetadata) -> Iterator[EventBatch]:
        allocations: list[dict[str, Numbers]] = []
        dispatches = 0
        counted: list[dict[str, Numbers]] = []
        for block in self._blocks(text):
            if block.list == "kernel_dispatch":
                dispatches += 1
                yield self._batch(block, _KERNEL, partial(kernel_columns, told.process))
            elif block.list == "memory_copy":
                yield self._batch(block, _COPY, partial(_copies, told))
            elif block.list in _CALL_LISTS:
                with_args = self._with_arguments(block, told)
                yield self._batch(block, _CALL, partial(_calls, with_args))
            elif block.list == "memory_allocation":
                allocations.append(self._allocations(block, told))
            elif block.list == "counter_collection":
                records = list(parsed_records(block, self.report))
                counted.append(_dispatch_numbers(records))
                yield from row_batches(_counter_rows(records, told))
            else:
                count = max(1, block.text.count(b'"start_timestamp"'))
                self.report.lose(f"{block.list} is a list that is not known", count)
        if not dispatches:  # counters are collected without a trace of the kernels
            for numbers in counted:
                yield ReadyBatch(replace(kernel_columns(told.process, numbers), read_by=IN_PYTHON))
        yield from row_batches(_memory_rows(told, allocations))

    def _batch(
        self, block: _Block, fields: Fields, events: Callable[[dict[str, Numbers]], EventColumns]
    ) -> JsonBatch:
        return JsonBatch(block, fields, events, self.report, MemoryFile())

    def _with_arguments(self, block: _Block, told: ProcessMetadata) -> ProcessMetadata:
        """With the arguments of calls of RCCL, where the file has them."""
        if block.list != "rccl_api" or b'"args"' not in block.text:
            return told
        arguments = {
            _integer(_at(record, ("correlation_id", "internal"))): {
                str(name): str(value) for name, value in record["args"].items()
            }
            for record in parsed_records(block, ReadReport())
            if isinstance(record.get("args"), dict)
        }
        process = Process(
            told.process.pid, told.process.number, told.process.devices, told.process.kernels, arguments
        )
        return ProcessMetadata(process, told.kinds, told.messages, told.counters)

    def _allocations(self, block: _Block, told: ProcessMetadata) -> dict[str, Numbers]:
        """Numbers of allocations: few, and the totals need all of them in order of time."""
        rows = []
        for record in parsed_records(block, self.report):
            _, name = told.operation(_integer(record.get("kind")), _integer(record.get("operation")))
            time, size = _integer(record.get("start_timestamp")), _integer(record.get("allocation_size"))
            if NULL in (time, size):
                self.report.lose("an allocation without a usable time or size")
                continue
            rows.append(
                (
                    time,
                    _integer(record.get("thread_id")),
                    _integer(_at(record, ("agent_id", "handle"))),
                    _address(record.get("address")),
                    size,
                    int(name.endswith("FREE")),
                )
            )
        columns = np.array(rows, dtype=np.int64).reshape(-1, len(Allocation._fields)).T
        return dict(zip(Allocation._fields, columns, strict=True))

    def _blocks(self, text: _Text) -> Iterator[_Block]:
        """The records of the next process."""
        while (section := text.match(_SECTION)) is not None:
            text.at = section.end()
            while (begin := text.match(_LIST)) is not None:
                name = begin[1].decode()
                text.at = begin.end()
                yield from (block for block in self._list(text, name) if name not in _NOT_READ)
            text.skip_between()

    def _list(self, text: _Text, name: str) -> Iterator[_Block]:
        """The rest of a list, in blocks."""
        key = separator = b""
        while True:
            text.fill(_BLOCK_BYTES)
            text.skip_between()
            if text.data[text.at : text.at + 1] == b"]":
                text.at += 1
                return
            if not key:
                first = _FIRST_KEY.match(text.data, text.at)
                key = first[1] if first else b"size"
            if not separator:  # what is between the first two records, with the key that both begin with
                between = re.compile(rb'\}\s*,\s*\{\s*"%b"\s*:' % key)
                two = between.search(text.data, text.at, text.at + _LARGEST_RECORD)
                separator = two[0] if two else b""
            end = text.list_end()
            cut = text.data.rfind(separator, text.at) + 1 if separator else 0
            if end is None and not cut and not text.ended:
                raise ReadError(
                    f"cannot tell the records of {self._path} apart",
                    why=f"In {len(text.data) - text.at >> 20} MiB of {name} there is no end of a record.",
                    hint="It is damaged, or not of rocprofv3: leave it out, or record this rank again.",
                )
            offset = text.offset
            records = text.take(max(cut, text.at) if end is None else end)
            if records:
                yield _Block(name, records, key, offset)
            if end is not None:
                text.at += 1
                return
            if text.ended:  # the file is cut off
                if text.take(len(text.data)).strip(b", \t\r\n"):
                    self.report.lose("the last record is cut off by the end of the file")
                return


class _Text:
    """The rest of the file: bytes that were read, from `at` on."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._before = 0
        self.data = b""
        self.at = 0
        self.ended = False

    @property
    def offset(self) -> int:
        """In the file."""
        return self._before + self.at

    def fill(self, size: int) -> None:
        """Read until there are so many bytes, or the file ends."""
        if len(self.data) - self.at >= size or self.ended:
            return
        rest = self.data[self.at :]
        self._before += self.at
        wanted = max(size - len(rest), _BLOCK_BYTES)
        more = self._stream.read_on(wanted)
        self.ended = len(more) < wanted
        self.data, self.at = (rest + more if rest else more), 0

    def find(self, pattern: re.Pattern[bytes], limit: int) -> re.Match[bytes] | None:
        size = _BLOCK_BYTES
        while True:
            self.fill(size)
            match = pattern.search(self.data, self.at)
            if match is not None or self.ended or size >= limit:
                return match
            size *= 2

    def match(self, pattern: re.Pattern[bytes]) -> re.Match[bytes] | None:
        self.fill(_SHORT_HEAD_BYTES)
        return pattern.match(self.data, self.at)

    def list_end(self) -> int | None:
        """Where the list ends that these bytes begin in; None if it goes on."""
        patterns = (_LIST_ENDS, _LAST_LIST_ENDS) if self.ended else (_LIST_ENDS,)
        for pattern in patterns:
            for match in pattern.finditer(self.data, self.at):
                if self.data[max(0, match.start() - 100) : match.start()].rstrip()[-1:] == b"}":
                    return match.start()
        return None

    def take(self, end: int) -> bytes:
        """The bytes up to this place."""
        taken, self.at = self.data[self.at : end], end
        return taken

    def skip_between(self) -> None:
        """Go to what follows commas, space and closed objects."""
        match = _BETWEEN.match(self.data, self.at)
        self.at = match.end() if match else self.at


class ToolJsonReader(Reader):
    """JSON of rocprofv3."""

    name = FORMAT

    def recognises(self, path: Path, head: bytes) -> bool:
        return _ROOT.match(head) is not None

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        """From the metadata, which come first."""
        head, _ = read_head(path, _SHORT_HEAD_BYTES)
        metadata = _metadata(head)
        rank = rank_of({}, as_object(metadata.get("config")))
        if rank.rank is None and (named := rank_from_name(path)) is not None:
            rank = Rank(named, "file name")
        node = as_object(metadata.get("node"))
        parts = (node.get("machine_id"), metadata.get("pid"), metadata.get("init_time"))
        capture_id = " ".join(map(str, parts)) if metadata.get("init_time") else ""
        return [TraceIdentity(rank.rank, rank.source, rank.world_size, capture_id)]

    def open(self, path: Path, part: str = "") -> ToolJsonReading:
        return ToolJsonReading(path)


ROCPROF_JSON = ToolJsonReader()


def parsed_records(block: _Block, report: ReadReport) -> Iterator[dict[str, Any]]:
    """The records of a block one by one. What does not parse is lost, and counted."""
    text = block.text.decode("utf-8", "replace")
    start = re.compile(rf'(?<![:\s])\s*(?=\{{\s*"{block.key.decode()}"\s*:)', re.ASCII)
    decoder = json.JSONDecoder(strict=False)
    position = failures = 0
    while (match := start.search(text, position)) is not None:
        if text[position : match.end()].strip(", \t\r\n"):
            report.lose(f"text that is no record, after byte {block.offset:,}")
        try:
            record, position = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:80]
            report.lose(f"a record after byte {block.offset:,} is not valid JSON ({reason})")
            failures += 1
            if failures == _MOST_DAMAGED:
                report.lose(f"all records between byte {block.offset:,} and the next block")
                return
            following = start.search(text, match.end() + 1)
            position = following.end() if following else len(text)
            continue
        yield record
    if text[position:].strip(", \t\r\n"):
        report.lose(f"text that is no record, after byte {block.offset:,}")


def _types(fields: Fields) -> dict[str, str]:
    """SQL types of the records' keys, with those inside them."""
    tree: dict[str, Any] = {}
    for keys in fields.values():
        inside = tree
        for key in keys[:-1]:
            inside = inside.setdefault(key, {})
        inside[keys[-1]] = "BIGINT"

    def kind(value: Any) -> str:
        if isinstance(value, str):
            return value
        return f"STRUCT({', '.join(f'{key} {kind(inner)}' for key, inner in value.items())})"

    return {key: kind(value) for key, value in tree.items()}


def _copies(told: ProcessMetadata, columns: dict[str, Numbers]) -> EventColumns:
    kind = int(columns["kind"][0]) if len(columns["kind"]) else 0
    return copy_columns(told.process, columns, lambda operation: told.operation(kind, operation)[1])


def _calls(told: ProcessMetadata, columns: dict[str, Numbers]) -> EventColumns:
    messages: dict[str, int] = {}
    texts = (told.messages.get(call) for call in columns["correlation"].tolist()) if told.messages else ()
    places = [NULL if text is None else messages.setdefault(text, len(messages)) for text in texts]
    columns["message"] = np.array(places, dtype=np.int64) if places else np.full(len(columns["start"]), NULL)
    return call_columns(told.process, columns, told.operation, list(messages))


def _memory_rows(told: ProcessMetadata, allocations: list[dict[str, Numbers]]) -> Iterator[dict[str, Any]]:
    if not allocations:
        return
    columns = [np.concatenate([part[name] for part in allocations]) for name in Allocation._fields]
    order = np.argsort(columns[0], kind="stable")
    use = MemoryUse(told.process)
    for values in zip(*(column[order].tolist() for column in columns), strict=True):
        part = Allocation(*values)
        if (row := use.row(part)) is not None:
            yield row


def _dispatch_numbers(records: Iterable[dict[str, Any]]) -> dict[str, Numbers]:
    """Of the dispatches whose counters were collected."""
    rows = [as_object(record.get("dispatch_data")) for record in records]
    return {
        name: np.array([_integer(_at(row, keys)) for row in rows], dtype=np.int64)
        for name, keys in _KERNEL.items()
    }


def _counter_rows(records: Iterable[dict[str, Any]], told: ProcessMetadata) -> Iterator[dict[str, Any]]:
    for record in records:
        data = as_object(record.get("dispatch_data"))
        time = _integer(data.get("start_timestamp"))
        device = told.process.devices.get(_integer(_at(data, ("dispatch_info", "agent_id", "handle"))))
        listed = record.get("records")
        for counted in listed if isinstance(listed, list) else ():
            value = _at(counted, ("value",))
            counter = _integer(_at(counted, ("counter_id", "handle")))
            if time != NULL and isinstance(value, (int, float)):
                yield counter_row(told.counters.get(counter, f"counter {counter}"), device, time, value)


def _told(head: dict[str, Any], number: int) -> ProcessMetadata:
    strings = as_object(head.get("strings"))
    process = Process(
        pid=max(_integer(_at(head, ("metadata", "pid"))), 0),
        number=number,
        devices={
            _integer(_at(agent, ("id", "handle"))): _integer(agent.get("logical_node_type_id"))
            for agent in _gpus(head)
        },
        kernels={
            _integer(symbol.get("kernel_id")): _kernel(symbol)
            for symbol in _objects(head.get("kernel_symbols"))
        },
    )
    kinds = tuple(
        (
            str(entry.get("kind", "")),
            tuple(map(str, entry["operations"])) if isinstance(entry.get("operations"), list) else (),
        )
        for entry in _objects(strings.get("buffer_records"))
    )
    messages = {
        _integer(entry.get("key")): str(entry.get("value"))[:_LONGEST_TEXT]
        for entry in _objects(strings.get("marker_api"))
    }
    counters = {
        _integer(_at(entry, ("id", "handle"))): str(entry.get("name", ""))
        for entry in _objects(head.get("counters"))
    }
    return ProcessMetadata(process, kinds, messages, counters)


def _kernel(symbol: dict[str, Any]) -> Kernel:
    vector = [_integer(symbol.get(name)) for name in ("arch_vgpr_count", "accum_vgpr_count")]
    counts = [count for count in vector if count != NULL]
    scalar = _integer(symbol.get("sgpr_count"))
    name = str(symbol.get("formatted_kernel_name") or symbol.get("kernel_name") or "")
    return Kernel(name[:_LONGEST_TEXT], sum(counts) if counts else None, None if scalar == NULL else scalar)


def _gpus(head: dict[str, Any]) -> list[dict[str, Any]]:
    """The agents of type 2, with a number each."""
    gpus = [agent for agent in _objects(head.get("agents")) if agent.get("type") == 2]
    for position, agent in enumerate(gpus):
        if not isinstance(agent.get("logical_node_type_id"), int):
            agent["logical_node_type_id"] = position
    return gpus


def _header(head: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The metadata for segment.json."""
    metadata = as_object(head.get("metadata"))
    header: dict[str, Any] = {
        "rocprof": {"format": "json"},
        "processes": [*before.get("processes", []), metadata.get("pid")],
        "deviceProperties": device_properties(_gpus(head)),
    }
    if host := as_object(metadata.get("node")).get("hostname"):
        header["host_name"] = str(host)
    return header


def _command(head: dict[str, Any]) -> str:
    words = _at(head, ("metadata", "command"))
    return " ".join(map(str, words)) if isinstance(words, list) else ""


def _metadata(head: bytes) -> dict[str, Any]:
    """The metadata at the start of a file; {} if they are damaged."""
    match = _METADATA.search(head)
    if match is None:
        return {}
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(head[match.end() :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return as_object(value)


def _readable(before: bytes) -> dict[str, Any]:
    """The lists and objects that can be read in damaged text, by key."""
    content: dict[str, Any] = {"metadata": _metadata(before)}
    for key in ("agents", "counters", "strings", "kernel_symbols"):
        match = re.search(rf'"{key}"\s*:\s*(?=[\[{{])'.encode(), before)
        if match:
            try:
                text = before[match.end() :].decode("utf-8", "replace")
                content[key], _ = json.JSONDecoder(strict=False).raw_decode(text)
            except (ValueError, RecursionError):
                continue
    return content


def _at(record: Any, keys: Iterable[str]) -> Any:
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _integer(value: Any) -> int:
    """A whole number of 64 bits; NULL if it is none."""
    number = integer(value)
    return NULL if number is None else number


def _address(value: Any) -> int:
    """An address, which rocprofv3 writes as text in hexadecimal."""
    if isinstance(value, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", value):
        value = int(value, 16)
    return _integer(_at(value, ("value",)) if isinstance(value, dict) else value)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
