"""NCCL Inspector's JSON lines: one line per collective or point-to-point operation, one file per process.

DuckDB parses blocks of lines. A block that does not parse is repaired line by line.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.model import NCCL, Table
from rankscope.readers.base import Batch, EventBatch, Reader, Reading, TraceIdentity
from rankscope.readers.byte_stream import line_blocks, open_stream
from rankscope.readers.checked_values import integer, json_object, text
from rankscope.readers.memory_file import MemoryFile
from rankscope.readers.nccl.operations import events_of, table_rows
from rankscope.readers.sql_columns import columns_of, connection, or_repaired
from rankscope.sql import sql_name, sql_text, sql_texts

if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns

TRACK = "NCCL Inspector"
_KNOWN_VERSION = "v4."
_BLOCK_BYTES = 16 << 20
_LONGEST_LINE = 16 << 20
"""A line with 64 channels has 15 kB."""
_IDENTIFIED_BYTES = 64 << 20
"""The communicators of a process are looked for in so much of its file."""
_HEADER = re.compile(rb'"header":\s*(\{[^{}]{1,4096}\})')
_LARGEST = 2**53

_KERNELS = [{"kernel_start_ts": integer, "kernel_stop_ts": integer}]


def _operation(kind: str) -> dict[str, Any]:
    return {
        kind: text,
        f"{kind}_sn": integer,
        **({f"{kind}_peer": integer} if kind == "p2p" else {}),
        f"{kind}_msg_size_bytes": integer,
        f"{kind}_exec_time_us": integer,
        f"{kind}_timing_source": text,
        f"{kind}_algobw_gbs": float,
        f"{kind}_busbw_gbs": float,
        "event_trace_ts": {f"{kind}_start_ts": integer, "kernel_events": _KERNELS},
    }


_SCHEMA: dict[str, Any] = {
    "header": {"id": text, "comm_name": text, "rank": integer, "n_ranks": integer, "nnodes": integer},
    "metadata": {
        "inspector_output_format_version": text,
        "dump_timestamp_us": integer,
        "hostname": text,
        "pid": integer,
    },
    "coll_perf": _operation("coll"),
    "p2p_perf": _operation("p2p"),
}
"""The fields that are read, as inspector_json.cc writes them (NCCL 2.28 to 2.30), and how each is checked."""

_SQL_TYPES = {text: "VARCHAR", integer: "BIGINT", float: "DOUBLE"}


def _sql_type(schema: Any) -> str:
    if isinstance(schema, list):
        return f"{_sql_type(schema[0])}[]"
    if isinstance(schema, dict):
        return f"STRUCT({', '.join(f'{sql_name(name)} {_sql_type(part)}' for name, part in schema.items())})"
    return _SQL_TYPES[schema]


def _either(field: str) -> str:
    return f"coalesce(coll_perf.coll{field}, p2p_perf.p2p{field})"


def _finite(number: str) -> str:
    """NCCL writes "nan" where there is no bandwidth."""
    return f"CASE WHEN isfinite({number}) THEN {number} END"


_TIMES = "coalesce(coll_perf.event_trace_ts.kernel_events, p2p_perf.event_trace_ts.kernel_events)"
_RAW = f"""
    SELECT header.id AS communicator, nullif(header.comm_name, 'unknown') AS communicator_name,
           header.rank AS communicator_rank, header.n_ranks AS ranks, header.nnodes AS nodes, {_either("")} AS function,
           {_either("_sn")} AS seq, p2p_perf.p2p_peer AS peer, {_either("_msg_size_bytes")} AS rank_bytes,
           1000 * nullif(coalesce(coll_perf.event_trace_ts.coll_start_ts, p2p_perf.event_trace_ts.p2p_start_ts), 0)
               AS created_ns,
           1000 * list_min([k.kernel_start_ts for k in {_TIMES} if k.kernel_start_ts > 0]) AS started_ns,
           1000 * list_max([k.kernel_stop_ts for k in {_TIMES} if k.kernel_stop_ts > 0]) AS completed_ns,
           1000 * nullif(metadata.dump_timestamp_us, 0) AS written_ns, 1000 * {_either("_exec_time_us")} AS duration_ns,
           {_either("_timing_source")} AS timing,
           {_finite(_either("_algobw_gbs"))} AS algbw_gb_s, {_finite(_either("_busbw_gbs"))} AS busbw_gb_s,
           nullif(len({_TIMES}), 0) AS channels, false AS is_mean,
           metadata.inspector_output_format_version AS version, metadata.hostname AS host
    FROM read_json({{path}}, format='newline_delimited', columns={{{{{{columns}}}}}}, auto_detect=false,
                   maximum_object_size={_LONGEST_LINE})
    WHERE header.id IS NOT NULL AND {_either("")} IS NOT NULL
"""


class LinesBatch(EventBatch):
    """The operations of some lines."""

    def __init__(self, lines: bytes, number: int, reading: InspectorReading) -> None:
        self._lines = lines
        self._number = number
        self._reading = reading
        self._file = MemoryFile()

    def columns(self) -> EventColumns:
        or_repaired(lambda: self._parse(self._lines), lambda: self._parse(self._repaired()))
        return self._reading.add(self._number)

    def _parse(self, lines: bytes) -> None:
        columns = ", ".join(f"{name}: {sql_text(_sql_type(part))}" for name, part in _SCHEMA.items())
        raw = _RAW.format(path=self._file.write(lines), columns=columns)
        connection().execute(f"CREATE OR REPLACE TEMP TABLE nccl_lines AS {raw}")

    def _repaired(self) -> bytes:
        """The lines that are operations, with null for values of other types; the others are counted."""
        operations = []
        for line in self._lines.split(b"\n"):
            try:
                value = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                self._reading.report.lose(f"a line is not JSON: {_shown(line)}")
                continue
            if isinstance(value, dict) and len(line) <= _LONGEST_LINE:
                operations.append(json.dumps(_checked(value, _SCHEMA)).encode())
            elif value is not None:
                self._reading.report.lose(f"a line is not an operation: {_shown(line)}")
        return b"\n".join(operations)

    def close(self) -> None:
        self._file.close()


def _shown(line: bytes) -> str:
    return line[:60].decode("utf-8", "backslashreplace")


def _checked(value: Any, schema: Any) -> Any:
    if isinstance(schema, (dict, list)) and not isinstance(value, type(schema)):
        return None
    if isinstance(schema, dict):
        return {name: _checked(value.get(name), part) for name, part in schema.items()}
    if isinstance(schema, list):
        return [_checked(item, schema[0]) for item in value if isinstance(item, dict)]
    if schema is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _LARGEST
        return value if number and math.isfinite(value) else None
    checked = schema(value)
    return None if isinstance(checked, int) and abs(checked) >= _LARGEST else checked


class InspectorReading(Reading):
    """One pass over one file, or over the lines of one rank in it."""

    def __init__(self, path: Path, part: str) -> None:
        super().__init__(path)
        self._stream = open_stream(path, lines=True)
        self._ranks = _ranks(path, path.stat().st_mtime_ns)
        self._part = part
        self._folder = tempfile.TemporaryDirectory(prefix="rankscope-")
        self._parts: list[Path] = []

    def batches(self) -> Iterator[EventBatch]:
        too_long = partial(self.report.lose, f"a line is longer than {_LONGEST_LINE >> 20} MiB")
        try:
            blocks = line_blocks(self._stream, _BLOCK_BYTES, _LONGEST_LINE, too_long)
            for number, lines in enumerate(blocks):
                yield LinesBatch(lines, number, self)
        finally:
            self.report.damage = self._stream.damage
            self._stream.close()

    def add(self, number: int) -> EventColumns:
        """Keep the operations that this thread has parsed for the table, and return them as events."""
        of_rank, database = "true", connection()
        if self._part:
            # A process with several GPUs: only the largest communicator tells whose an operation is.
            of_world = f"communicator = {sql_text(self._ranks.world)}"
            of_rank = f"{of_world} AND communicator_rank = {int(self._part)}"
            others = f"SELECT count(*) FROM nccl_lines WHERE NOT ({of_world})"
            ((count,),) = database.execute(others).fetchall()
            if count and self._part == str(self._ranks.ranks[0]):
                why = "a process with several GPUs does not tell whose operations of small communicators are"
                self.report.lose(why, count)
        rows = table_rows(f"SELECT * EXCLUDE (version, host) FROM nccl_lines WHERE {of_rank}")
        path = Path(self._folder.name) / f"{number}.parquet"
        database.execute(f"COPY ({rows}) TO {sql_text(path)} (FORMAT parquet, COMPRESSION uncompressed)")
        self._parts.append(path)
        versions = "SELECT version, min(host) FROM nccl_lines WHERE version IS NOT NULL GROUP BY version"
        for version, host in database.execute(versions).fetchall():
            self.header |= {"inspector_version": version, "host": host}
            if not version.startswith(_KNOWN_VERSION):
                self.header["unknown_version"] = version
        events = events_of(rows, TRACK, self._ranks.world)
        names = (
            f"SELECT 'M' AS ph, '' AS category, 'thread_name' AS name, {sql_text(TRACK)} AS pid, communicator AS tid, "
            "json_object('name', 'NCCL communicator ' || coalesce(any_value(communicator_name), communicator)) AS args "
            f"FROM nccl_lines WHERE {of_rank} GROUP BY communicator"
        )
        return columns_of(f"{events} UNION ALL BY NAME {names}")

    def position(self) -> int:
        return self._stream.position()

    def further(self) -> Iterator[tuple[Table, Batch]]:
        yield NCCL, _Written(sorted(self._parts, key=lambda path: int(path.stem)), self._folder)


class _Written:
    """The rows of all batches."""

    def __init__(self, paths: list[Path], folder: tempfile.TemporaryDirectory[str]) -> None:
        self._paths = paths
        self._folder = folder

    def select(self) -> str:
        return (
            f"FROM read_parquet([{sql_texts(map(str, self._paths))}])"
            if self._paths
            else table_rows("SELECT 1 WHERE false")
        )

    select_repaired = select

    def close(self) -> None:
        self._folder.cleanup()


class _Ranks:
    """The ranks of the job in a file: those in the largest communicator, which is taken to be that of the job."""

    def __init__(self, headers: set[bytes]) -> None:
        members: dict[str, set[int]] = {}
        sizes: dict[str, int] = {}
        for header in headers:
            told = json_object(header)
            name, rank, size = text(told.get("id")), integer(told.get("rank")), integer(told.get("n_ranks"))
            if name and rank is not None and size is not None and 0 <= rank < size:
                members.setdefault(name, set()).add(rank)
                sizes[name] = size
        self.world = max(sizes, key=lambda name: (sizes[name], name), default="")
        self.size = sizes.get(self.world)
        self.ranks = sorted(members.get(self.world, ()))


@lru_cache(maxsize=1)
def _ranks(path: Path, mtime_ns: int) -> _Ranks:
    """Of a file that is identified and then mostly opened; `mtime_ns` tells whether it has changed."""
    headers: set[bytes] = set()
    read, rest = 0, b""
    with closing(open_stream(path, lines=True)) as stream:
        while read < _IDENTIFIED_BYTES and len(headers) < 100_000 and (piece := stream.read(1 << 20)):
            read += len(piece)
            headers.update(_HEADER.findall(rest + piece))
            rest = piece[-4096:]
    return _Ranks(headers)


class InspectorReader(Reader):
    """Recognises the lines by the version in their metadata."""

    name = "nccl_inspector"

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        ranks = _ranks(path, path.stat().st_mtime_ns)
        if not ranks.ranks:
            return [TraceIdentity(None, "")]
        several = len(ranks.ranks) > 1
        return [
            TraceIdentity(rank, "largest communicator", ranks.size, part=str(rank) if several else "")
            for rank in ranks.ranks
        ]

    def open(self, path: Path, part: str = "") -> InspectorReading:
        return InspectorReading(path, part)


INSPECTOR = InspectorReader()
