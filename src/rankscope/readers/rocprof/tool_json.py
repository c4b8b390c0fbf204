"""rocprofv3's JSON output, NAME_results.json: what records refer to first, then the records, a list for each kind.

The records are read in blocks that are cut between two of them. DuckDB takes the numbers out of a block; a block that
it refuses is read record by record, and what is damaged is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
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
    identity_from_name,
)
from rankscope.readers.byte_stream import ByteStream, open_stream, read_head
from rankscope.readers.checked_values import as_list, as_object, integer
from rankscope.readers.columns import DUCKDB, IN_PYTHON, NULL, EventColumns, Numbers
from rankscope.readers.memory_file import MemoryFile
from rankscope.readers.rocprof.records import (
    ALLOCATIONS,
    CALLS,
    COPIES,
    FORMAT,
    KERNELS,
    LONGEST_TEXT,
    REGISTERS,
    Kernel,
    Process,
    RecordKind,
    Values,
    header_of,
    numbered_gpus,
    rank_of,
)
from rankscope.readers.row_batch import RowBatch, row_batches
from rankscope.readers.sql_columns import connection, filled, or_repaired

_BLOCK_BYTES = 16 << 20
_SHORT_HEAD_BYTES = 1 << 16
_MOST_BEFORE_RECORDS = 128 << 20
"""Bytes of what records refer to. 10,000 kernels, as many as torch has, are 20 MB."""
_LARGEST_RECORD = 1 << 24
_SECTION = re.compile(rb'"(?:callback_records|buffer_records)"\s*:\s*\{')
"""In `strings` there are lists of the same names."""
_LIST = re.compile(rb'[\s,]*"(\w{1,64})"\s*:\s*\[')
_LIST_ENDS = re.compile(rb'\](?=\s*(?:,\s*"\w+"\s*:\s*\[|\}\s*(?:,\s*"|\})))')
_CLOSED = re.compile(rb"[\s}]*\][\s}]*")
"""What follows the last list."""
_LAST_LIST_ENDS = re.compile(rb"\](?=[\s}\]]*\Z)")
_BETWEEN = re.compile(rb"[\s,}]*")
_FIRST_KEY = re.compile(rb'\{\s*"(\w{1,64})"\s*:')
_NOT_READ = ("pc_sample_host_trap", "pc_sample_stochastic", "scratch_memory")
"""Lists without a place on the timeline, and memory that ROCm takes for registers."""

_LISTS = {
    "kernel_dispatch": KERNELS,
    "memory_copy": COPIES,
    **dict.fromkeys(
        ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api", "ompt"), CALLS
    ),
}


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
    kind: RecordKind
    process: Process
    report: ReadReport
    file: MemoryFile

    def columns(self) -> EventColumns:
        numbers, read_by = or_repaired(
            lambda: (self._selected(), DUCKDB),
            lambda: (_numbers(self._usable_records(), self.kind.values), IN_PYTHON),
        )
        return replace(self.kind.columns(self.process, numbers), read_by=read_by)

    def _selected(self) -> dict[str, Numbers]:
        values = self.kind.values
        types = ", ".join(f"{key}: '{kind}'" for key, kind in _types(keys for _, keys in values.values()))
        selected = ", ".join(f'{keys} AS "{name}"' for name, (_, keys) in values.items())
        path = self.file.write_array(self.block.text)
        result = connection().execute(
            f"SELECT {selected} FROM read_json({path}, format='array', columns={{{types}}}, auto_detect=false, "
            f"maximum_object_size={_LARGEST_RECORD})"
        )
        return {name: filled(column) for name, column in result.fetchnumpy().items()}

    def _usable_records(self) -> Iterator[dict[str, Any]]:
        for record in parsed_records(self.block, self.report):
            if integer(record.get("start_timestamp")) is None:
                self.report.lose("a record without a usable time")
            else:
                yield record

    def close(self) -> None:
        self.file.close()


class ToolJsonReading(Reading):
    """One pass over one file. Times count from the boot of the machine, and the file does not say when that was."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._stream = open_stream(path)

    def batches(self) -> Iterator[EventBatch]:
        with closing(self._stream):
            text = _Text(self._stream)
            pids: list[Any] = []
            while head := self._before_records(text, first=not pids):
                process = _process(head, len(pids))
                pids.append(_at(head, "metadata.pid"))
                host = str(_at(head, "metadata.node.hostname") or "")
                self.header |= header_of({"format": "json"}, [*pids], process.gpus, host)
                command = " ".join(map(str, as_list(_at(head, "metadata.command")))) or "process"
                yield RowBatch(READ_EVENTS, [process.name_row("process_name", 0, command)])
                yield from self._records(text, process)
            if not _CLOSED.fullmatch(text.data, text.at):
                after = f"what follows byte {text.offset:,} is not read" if text.at < len(text.data) else ""
                cut_off = "the file ends before the end of its records"
                self.report.damage = self._stream.damage or after or cut_off

    def position(self) -> int:
        return self._stream.position()

    def _before_records(self, text: _Text, first: bool) -> dict[str, Any]:
        """What the records of the next process refer to; {} after the last."""
        section = text.find(_SECTION, _MOST_BEFORE_RECORDS)
        if section is None and not first:
            return {}
        if section is None:
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
        before = text.take(section.start())
        begin = before.find(b"{", 1 + before.find(b"[")) if first else before.find(b"{")
        try:
            content = json.loads(
                before[begin:].rstrip(b", \t\r\n").decode("utf-8", "replace") + "}", strict=False
            )
        except (ValueError, RecursionError):
            keys = ("metadata", "agents", "counters", "strings", "kernel_symbols")
            content = {key: _value_of(before, key) for key in keys}
            self.report.damage = "the fields before the records are damaged: names may be missing"
        return content if isinstance(content, dict) else {}

    def _records(self, text: _Text, process: Process) -> Iterator[EventBatch]:
        allocations: list[dict[str, Any]] = []
        dispatches = False
        counted: list[dict[str, Numbers]] = []
        for block in self._blocks(text):
            if block.list in _LISTS:
                dispatches |= block.list == "kernel_dispatch"
                refers_to = _with_arguments(process, block) if block.list == "rccl_api" else process
                yield JsonBatch(block, _LISTS[block.list], refers_to, self.report, MemoryFile())
            elif block.list == "memory_allocation":
                allocations += (_allocation(process, record) for record in parsed_records(block, self.report))
            elif block.list == "counter_collection":
                records = list(parsed_records(block, self.report))
                counted.append(_numbers((record.get("dispatch_data") for record in records), KERNELS.values))
                yield from row_batches(_counter_rows(records, process))
            else:
                count = max(1, block.text.count(b'"start_timestamp"'))
                self.report.lose(f"{block.list} is a list that is not known", count)
        if not dispatches:  # counters are collected without a trace of the kernels
            for numbers in counted:
                yield ReadyBatch(replace(KERNELS.columns(process, numbers), read_by=IN_PYTHON))
        yield from row_batches(process.memory_rows(allocations, self.report))

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

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        """From the metadata, which come first."""
        head, _ = read_head(path, _SHORT_HEAD_BYTES)
        metadata = as_object(_value_of(head, "metadata"))
        identity = rank_of({}, as_object(metadata.get("config")))
        if identity.rank is None:
            identity = identity_from_name(path)
        node = as_object(metadata.get("node"))
        parts = (node.get("machine_id"), metadata.get("pid"), metadata.get("init_time"))
        capture_id = " ".join(map(str, parts)) if metadata.get("init_time") else ""
        return [replace(identity, trace_id=capture_id)]

    def open(self, path: Path, part: str = "") -> ToolJsonReading:
        reading = ToolJsonReading(path)
        reading.header["trace_id"] = self.identify_parts(path)[0].trace_id
        return reading


ROCPROF_JSON = ToolJsonReader()


def parsed_records(block: _Block, report: ReadReport) -> Iterator[dict[str, Any]]:
    """The records of a block one by one. What does not parse is lost, and counted."""
    start = re.compile(rf'(?<![:\s])\s*(?=\{{\s*"{block.key.decode()}"\s*:)', re.ASCII)
    decoder = json.JSONDecoder(strict=False)
    for text in filter(None, start.split(block.text.decode("utf-8", "replace"))):
        try:
            record, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)[:80]
            report.lose(f"a record after byte {block.offset:,} is not valid JSON ({reason})")
            continue
        yield record
        if text[end:].strip(", \t\r\n"):
            report.lose(f"text that is no record, after byte {block.offset:,}")


def _types(fields: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys of objects with these fields, and their SQL types."""
    inside: dict[str, list[str]] = {}
    for keys in fields:
        key, _, rest = keys.partition(".")
        inside.setdefault(key, []).extend([rest] if rest else [])
    for key, rests in inside.items():
        members = ", ".join(f"{name} {kind}" for name, kind in _types(dict.fromkeys(rests)))
        yield key, f"STRUCT({members})" if members else "BIGINT"


def _numbers(records: Iterable[Any], values: Values) -> dict[str, Numbers]:
    """The columns of records."""
    rows = [[_integer(_at(record, keys)) for _, keys in values.values()] for record in records]
    return dict(zip(values, np.array(rows, dtype=np.int64).reshape(-1, len(values)).T, strict=True))


def _with_arguments(process: Process, block: _Block) -> Process:
    """With the arguments of calls of RCCL, where the file has them."""
    if b'"args"' not in block.text:
        return process
    arguments = {
        _integer(_at(record, "correlation_id.internal")): {
            str(name): str(value) for name, value in record["args"].items()
        }
        for record in parsed_records(block, ReadReport())
        if isinstance(record.get("args"), dict)
    }
    return replace(process, rccl_arguments=arguments)


def _allocation(process: Process, record: dict[str, Any]) -> dict[str, Any]:
    """The values of an allocation. rocprofv3 writes its address as text in hexadecimal."""
    _, operation = process.operation(integer(record.get("kind")), integer(record.get("operation")))
    address = record.get("address")
    if isinstance(address, str) and re.fullmatch(r"0x[0-9a-fA-F]{1,16}", address):
        address = int(address, 16)
    elif isinstance(address, dict):
        address = address.get("value")
    values = {name: _integer(_at(record, keys)) for name, (_, keys) in ALLOCATIONS.items()}
    return {**values, "address": _integer(address), "frees": operation.endswith("FREE")}


def _counter_rows(records: Iterable[dict[str, Any]], process: Process) -> Iterator[dict[str, Any]]:
    for record in records:
        time = _integer(_at(record, "dispatch_data.start_timestamp"))
        agent = _integer(_at(record, "dispatch_data.dispatch_info.agent_id.handle"))
        for counted in as_list(record.get("records")):
            value = _at(counted, "value")
            if time != NULL and isinstance(value, (int, float)):
                yield process.counter_row(_integer(_at(counted, "counter_id.handle")), agent, time, value)


def _process(head: dict[str, Any], number: int) -> Process:
    strings = as_object(head.get("strings"))
    kinds = [
        (str(entry.get("kind", "")), [*map(str, as_list(entry.get("operations")))])
        for entry in _objects(strings.get("buffer_records"))
    ]

    def operation(kind: int | None, call: int | None) -> tuple[str, str]:
        name, operations = kinds[kind] if kind is not None and 0 <= kind < len(kinds) else ("", [])
        if call is None or not 0 <= call < len(operations):
            return name, f"{name} {call}"
        return name, operations[call]

    return Process(
        max(_integer(_at(head, "metadata.pid")), 0),
        number,
        numbered_gpus(
            (_integer(_at(agent, "id.handle")), agent)
            for agent in _objects(head.get("agents"))
            if agent.get("type") == 2
        ),
        {
            _integer(symbol.get("kernel_id")): Kernel.of(
                str(symbol.get("formatted_kernel_name") or symbol.get("kernel_name") or ""),
                *(symbol.get(name) for name in REGISTERS),
            )
            for symbol in _objects(head.get("kernel_symbols"))
        },
        operation,
        {
            _integer(entry.get("key")): str(entry.get("value"))[:LONGEST_TEXT]
            for entry in _objects(strings.get("marker_api"))
        },
        {
            _integer(_at(entry, "id.handle")): str(entry.get("name", ""))
            for entry in _objects(head.get("counters"))
        },
    )


def _value_of(text: bytes, key: str) -> Any:
    """The list or object of a key that can be read in text that is damaged or cut off; None if it cannot."""
    match = re.search(rf'"{key}"\s*:\s*(?=[\[{{])'.encode(), text)
    rest = text[match.end() :] if match else b""
    try:
        return json.JSONDecoder(strict=False).raw_decode(rest.decode("utf-8", "replace"))[0]
    except (ValueError, RecursionError):
        return None


def _at(record: Any, keys: str) -> Any:
    """The value that these keys lead to, with dots between them."""
    for key in keys.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    return record


def _integer(value: Any) -> int:
    """A whole number of 64 bits; NULL if it is none."""
    number = integer(value)
    return NULL if number is None else number


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in as_list(value) if isinstance(item, dict)]
