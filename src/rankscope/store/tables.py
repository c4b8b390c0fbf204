"""The tables of one segment, made from its events: slices, instants, counters, links, tracks, steps.

SQL moves the columns, numpy does what needs an order: nesting, links, steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rankscope.model import COUNTERS, GPU_CATEGORIES, INSTANTS, LAUNCH_CATEGORIES, LINKS, SLICES, STEPS, TRACKS, Table
from rankscope.readers.json_repair import ReadReport
from rankscope.store.linking import Annotation, Links, Mask, Steps, find_steps, link, self_time, slice_at
from rankscope.store.nesting import NONE, Ints, Nesting, nest, order_outer_first
from rankscope.store.pairing import Pairs, pair_by_key, pair_nested

if TYPE_CHECKING:
    import duckdb

_LONGEST_FILE_NS = 1 << 46
"""20 hours; anything farther from the median is a broken time stamp, not a part of the profile."""

PARQUET_OPTIONS = "FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1, STRING_DICTIONARY_PAGE_SIZE_LIMIT 1000000"
"""A dictionary that outgrows 1 MB is of arguments, which hardly repeat: trying one costs 8 % of the time."""

_TRACK_KIND = """CASE
    WHEN category IN ('kernel', 'gpu_memcpy', 'gpu_memset') THEN 'stream'
    WHEN category = 'gpu_user_annotation' THEN 'annotation'
    WHEN category = 'cuda_sync' THEN 'sync'
    WHEN category = 'overhead' THEN 'overhead'
    WHEN category = 'Trace' THEN 'span'
    WHEN ph IN ('b', 'e', 'n') THEN 'async'
    WHEN ph = 'C' THEN 'counter'
    ELSE 'thread' END"""

_TRACK_LABEL = """CASE kind
    WHEN 'stream' THEN concat('GPU ', device, ' stream ', stream)
    WHEN 'annotation' THEN concat('GPU ', device, ' stream ', stream, ' annotations')
    WHEN 'sync' THEN concat('GPU ', coalesce(device::VARCHAR, pid), ' synchronisation')
    WHEN 'async' THEN concat(tid, ' (async)')
    WHEN 'counter' THEN concat('counters of ', coalesce(process, pid))
    ELSE coalesce(thread, concat('thread ', tid)) END"""


@dataclass(frozen=True)
class SliceColumns:
    """The slices as arrays, in file order; times count from the segment's origin."""

    id: Ints
    track: Ints
    start: Ints
    duration: Ints
    name: Ints
    category: Ints
    correlation: Ints
    external_id: Ints
    device: Ints
    stream: Ints
    bytes: Ints


class SegmentTables:
    """Builds the tables of one segment inside one connection."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, folder: Path, report: ReadReport) -> None:
        self._connection = connection
        self._folder = folder
        self._report = report
        connection.execute(
            "CREATE TEMP VIEW events AS SELECT first + file_row_number AS id, * EXCLUDE (file_row_number, first), "
            f"{_TRACK_KIND} AS kind FROM read_parquet('{_glob(folder)}', file_row_number=true, "
            "hive_partitioning=true, hive_types={'first': BIGINT})"
        )

    def write(self) -> dict[str, Any]:
        """Write every table; returns the facts for segment.json."""
        origin, misplaced = self._find_origin()
        self._make_dictionaries()
        slices, unpaired = self._load_slices(origin)
        nesting = nest(slices.track, slices.start, slices.start + slices.duration)
        categories = self._codes("categories")
        links = self._link(slices, nesting, categories)
        steps = find_steps(self._annotations(slices, categories))
        step = _steps_of(slices, links, steps)
        self._write_slices(slices, nesting, links, step)
        self._write_tracks(slices, nesting)
        self._write_steps(steps)
        self._write_instants(origin)
        self._write_counters(origin)
        self._write_flows(origin, slices, nesting)
        end = int((slices.start + np.maximum(slices.duration, 0)).max(initial=0))
        return {
            "origin_ns": origin,
            "end_ns": end,
            "slices": len(slices.id),
            "steps": len(steps.number),
            "steps_source": steps.source,
            "counts": self._count_kinds(),
            "misplaced": misplaced,
            "unpaired": unpaired,
        }

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql).fetchall()

    def _arrays(self, sql: str) -> dict[str, Ints]:
        columns: dict[str, Ints] = self._connection.execute(sql).fetchnumpy()
        return columns

    def _find_origin(self) -> tuple[int, int]:
        """The earliest sensible time, and how many events have none (ts = 0, or years away)."""
        ((middle,),) = self._rows("SELECT quantile_disc(ts_ns, 0.5) FROM events WHERE ts_ns > 0 AND ph <> 'M'")
        if middle is None:
            return 0, 0
        low, high = max(middle - _LONGEST_FILE_NS, 1), middle + _LONGEST_FILE_NS
        self._connection.execute(
            f"CREATE TEMP VIEW placed AS SELECT * FROM events WHERE ts_ns BETWEEN {low} AND {high} AND ph <> 'M'"
        )
        ((origin, placed),) = self._rows("SELECT min(ts_ns), count(*) FROM placed")
        ((timed,),) = self._rows("SELECT count(*) FROM events WHERE ph <> 'M'")
        return int(origin), int(timed - placed)

    def _make_dictionaries(self) -> None:
        """Small tables that turn names, categories and tracks into numbers."""
        run = self._connection.execute
        if not self._rows("SELECT 1 FROM duckdb_views() WHERE view_name = 'placed'"):
            run("CREATE TEMP VIEW placed AS SELECT * FROM events WHERE false")
        for table, column in (("names", "name"), ("categories", "category")):
            run(
                f"CREATE TEMP TABLE {table} AS SELECT (row_number() OVER (ORDER BY {column}) - 1)::BIGINT AS code, "
                f"{column} AS text FROM (SELECT DISTINCT {column} FROM placed)"
            )
        run(
            "CREATE TEMP TABLE track_keys AS SELECT (row_number() OVER (ORDER BY kind, pid, tid) - 1)::BIGINT AS track,"
            " * FROM (SELECT kind, pid, CASE kind WHEN 'async' THEN category WHEN 'counter' THEN '' ELSE tid END"
            " AS tid, min(coalesce(device, TRY_CAST(pid AS BIGINT))) FILTER (kind IN ('stream', 'annotation'))"
            " AS device, min(coalesce(stream, TRY_CAST(tid AS BIGINT))) FILTER (kind IN ('stream', 'annotation'))"
            " AS stream FROM placed WHERE ph NOT IN ('s', 't', 'f') GROUP BY ALL)"
        )

    def _codes(self, table: str) -> dict[str, int]:
        return {text: code for code, text in self._rows(f"SELECT code, text FROM {table}")}

    def _load(self, origin: int, where: str, columns: str = "") -> dict[str, Ints]:
        arrays = self._arrays(
            "SELECT e.id, k.track, e.ts_ns - "
            f"{origin} AS time, coalesce(e.dur_ns, 0) AS duration, n.code AS name, c.code AS category, "
            "coalesce(e.correlation, 0) AS correlation, coalesce(e.external_id, 0) AS external_id, "
            "coalesce(e.device, -1) AS device, coalesce(e.stream, -1) AS stream, "
            f"coalesce(e.bytes, -1) AS bytes {columns} FROM placed e JOIN names n ON n.text = e.name "
            "JOIN categories c ON c.text = e.category JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid "
            "AND k.tid = CASE e.kind WHEN 'async' THEN e.category WHEN 'counter' THEN '' ELSE e.tid END "
            f"WHERE {where}"
        )
        if np.any(np.diff(arrays["id"]) < 0):
            order = np.argsort(arrays["id"])
            arrays = {name: values[order] for name, values in arrays.items()}
        return arrays

    def _load_slices(self, origin: int) -> tuple[SliceColumns, int]:
        """Complete events, and begin/end events paired; the second value counts those without a partner."""
        whole = self._load(origin, "e.ph = 'X'")
        parts = [whole]
        unpaired = 0
        last = int((whole["time"] + whole["duration"]).max(initial=0))
        for phases, key in (("BE", "nested"), ("be", "async")):
            begin, end = phases
            halves = self._load(
                origin,
                f"e.ph IN ('{begin}', '{end}')",
                f", e.ph = '{begin}' AS begins, (hash(e.pid, e.category, e.flow, e.name) >> 1)::BIGINT AS pair",
            )
            if len(halves["id"]) == 0:
                continue
            last = max(last, int(halves["time"].max()))
            begins = halves["begins"].astype(bool)
            pairs = (
                pair_nested(halves["track"], halves["time"], begins)
                if key == "nested"
                else pair_by_key(halves["pair"], halves["time"], begins)
            )
            unpaired += len(pairs.never_ended) + len(pairs.never_begun)
            parts.append(_paired(halves, pairs, last))
        names = ("id", "track", "time", "duration", "name", "category", "correlation", "external_id")
        names += ("device", "stream", "bytes")
        columns = [np.concatenate([part[name] for part in parts]) if len(parts) > 1 else whole[name] for name in names]
        return SliceColumns(*columns), unpaired

    def _annotations(self, slices: SliceColumns, categories: dict[str, int]) -> list[Annotation]:
        wanted = slices.category == categories.get("user_annotation", NONE)
        texts = dict(self._rows("SELECT code, text FROM names"))
        return [
            Annotation(texts[name], start, start + duration)
            for name, start, duration in zip(
                slices.name[wanted].tolist(), slices.start[wanted].tolist(), slices.duration[wanted].tolist(), strict=True
            )
        ]

    def _link(self, slices: SliceColumns, nesting: Nesting, categories: dict[str, int]) -> Links:
        def is_in(*wanted: str) -> Mask:
            return np.isin(slices.category, [categories[c] for c in wanted if c in categories])

        is_python = is_in("python_function")
        modules = [code for code, in self._rows("SELECT code FROM names WHERE text LIKE 'nn.Module: %'")]
        return link(
            nesting,
            slices.correlation,
            slices.external_id,
            is_gpu=is_in(*GPU_CATEGORIES),
            is_launch=is_in(*LAUNCH_CATEGORIES),
            is_op=is_in("cpu_op"),
            is_python=is_python,
            is_module=is_python & np.isin(slices.name, modules),
        )

    def _copy(self, select: str, table: Table) -> None:
        """Write a table with exactly the columns and types of the model."""
        columns = ", ".join(f"CAST({f.name} AS {f.type}) AS {f.name}" for f in table.fields)
        target = str(self._folder / f"{table.name}.parquet").replace("'", "''")
        self._connection.execute(
            f"COPY (SELECT {columns} FROM ({select})) TO '{target}' ({PARQUET_OPTIONS})"
        )

    def _copy_arrays(self, arrays: dict[str, Any], select: str, table: Table) -> None:
        self._connection.register("arrays", arrays)
        try:
            self._copy(select, table)
        finally:
            self._connection.unregister("arrays")

    def _write_slices(self, slices: SliceColumns, nesting: Nesting, links: Links, step: Ints) -> None:
        def ids(index: Ints) -> Ints:
            return np.where(index != NONE, slices.id[index], NONE) if len(index) else index

        arrays = {
            "id": slices.id,
            "track": slices.track,
            "start_ns": slices.start,
            "dur_ns": slices.duration,
            "depth": nesting.row,
            "name_code": slices.name,
            "category_code": slices.category,
            "step": step,
            "parent": ids(nesting.parent),
            "self_ns": self_time(nesting, slices.duration),
            "launch": ids(links.launch),
            "op": ids(links.op),
            "python": ids(links.python),
            "module": ids(links.module),
            "correlation": slices.correlation,
            "device": slices.device,
            "stream": slices.stream,
            "bytes": slices.bytes,
        }
        optional = ("step", "parent", "launch", "op", "python", "module", "device", "stream", "bytes")
        nulls = ", ".join(f"nullif(a.{name}, {NONE}) AS {name}" for name in optional)
        self._copy_arrays(
            arrays,
            f"SELECT a.* EXCLUDE (correlation, {', '.join(optional)}), nullif(a.correlation, 0) AS correlation, {nulls}, "
            "n.text AS name, c.text AS category, m.collective FROM arrays a JOIN names n ON n.code = a.name_code "
            "JOIN categories c ON c.code = a.category_code LEFT JOIN (SELECT id, collective FROM placed "
            "WHERE collective IS NOT NULL) m USING (id)",
            SLICES,
        )

    def _write_tracks(self, slices: SliceColumns, nesting: Nesting) -> None:
        ((count,),) = self._rows("SELECT count(*) FROM track_keys")
        rows = np.zeros(count, dtype=np.int64)
        np.maximum.at(rows, slices.track, nesting.row + 1)
        arrays = {"track": np.arange(count), "slices": np.bincount(slices.track, minlength=count), "rows": rows}
        named = (
            "SELECT pid, tid, max(args->>'name') FILTER (name = 'process_name') AS process, "
            "max(trim(args->>'name')) FILTER (name = 'thread_name') AS thread, "
            "max(TRY_CAST(args->>'sort_index' AS BIGINT)) FILTER (name LIKE '%sort_index') AS sort_index "
            "FROM events WHERE ph = 'M' GROUP BY pid, tid"
        )
        self._copy_arrays(
            arrays,
            f"SELECT *, {_TRACK_LABEL} AS label FROM (SELECT k.*, a.slices, a.rows, p.process, t.thread, "
            "coalesce(t.sort_index, p.sort_index) AS sort_index FROM track_keys k JOIN arrays a USING (track) "
            f"LEFT JOIN ({named}) t ON t.pid = k.pid AND t.tid = k.tid "
            f"LEFT JOIN (SELECT pid, max(process) AS process, max(sort_index) AS sort_index FROM ({named}) "
            "WHERE process IS NOT NULL GROUP BY pid) p ON p.pid = k.pid) ORDER BY track",
            TRACKS,
        )

    def _write_steps(self, steps: Steps) -> None:
        arrays = {"step": steps.number, "start_ns": steps.start, "dur_ns": steps.end - steps.start}
        self._connection.register("steps_found", arrays)
        self._copy(f"SELECT *, '{steps.source}' AS source FROM steps_found", STEPS)

    def _write_instants(self, origin: int) -> None:
        memory = {
            "bytes": "Bytes",
            "allocated_bytes": "Total Allocated",
            "reserved_bytes": "Total Reserved",
            "device_type": "Device Type",
            "device": "Device Id",
            "address": "Addr",
        }
        columns = ", ".join(f'e.memory."{key}" AS {name}' for name, key in memory.items())
        self._copy(
            f"SELECT e.id, k.track, e.ts_ns - {origin} AS ts_ns, e.name, e.category, "
            f"CASE WHEN e.ts_ns - {origin} < s.start_ns + s.dur_ns THEN s.step END AS step, {columns} "
            "FROM placed e JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid AND k.tid = e.tid "
            f"ASOF LEFT JOIN steps_found s ON e.ts_ns - {origin} >= s.start_ns WHERE e.ph IN ('i', 'I', 'R')",
            INSTANTS,
        )

    def _write_counters(self, origin: int) -> None:
        self._copy(
            f"SELECT e.id, k.track, e.ts_ns - {origin} AS ts_ns, e.name, j.key AS series, "
            "TRY_CAST(json_extract_string(j.value, '$') AS DOUBLE) AS value FROM placed e "
            "JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid, json_each(e.args) j WHERE e.ph = 'C'",
            COUNTERS,
        )

    def _write_flows(self, origin: int, slices: SliceColumns, nesting: Nesting) -> None:
        flows = self._arrays(
            "SELECT e.id, e.ph = 's' AS leaves, k.track, e.ts_ns - "
            f"{origin} AS time FROM placed e JOIN track_keys k ON k.pid = e.pid AND k.tid = e.tid "
            "AND k.kind IN ('thread', 'stream') WHERE e.ph IN ('s', 't', 'f')"
        )
        end = slices.start + slices.duration
        order = order_outer_first(slices.track, slices.start, end)
        bound = slice_at(order, slices.track, slices.start, end, nesting.parent, flows["track"], flows["time"])
        arrays = {
            "id": flows["id"],
            "leaves": flows["leaves"],
            "time": flows["time"],
            "slice": np.where(bound != NONE, slices.id[bound], NONE) if len(slices.id) else bound,
        }
        points = (
            "(SELECT e.category AS kind, e.flow, nullif(max(a.slice), -1) AS slice, min(a.time) AS time FROM arrays a "
            "JOIN placed e USING (id) WHERE {which} GROUP BY e.category, e.flow, e.id)"
        )
        self._copy_arrays(
            arrays,
            "SELECT coalesce(s.kind, f.kind) AS kind, coalesce(s.flow, f.flow) AS flow, s.slice AS source, "
            "f.slice AS target, s.time AS source_ns, f.time AS target_ns FROM "
            f"{points.format(which='a.leaves')} s FULL JOIN {points.format(which='NOT a.leaves')} f "
            "ON s.kind = f.kind AND s.flow = f.flow",
            LINKS,
        )

    def _count_kinds(self) -> dict[str, int]:
        return dict(self._rows("SELECT concat(ph, ' ', category), count(*) FROM events GROUP BY 1 ORDER BY 1"))


def _glob(folder: Path) -> str:
    return str(folder / "events" / "*" / "events.parquet").replace("'", "''")


def _paired(halves: dict[str, Ints], pairs: Pairs, last: int) -> dict[str, Ints]:
    """Slices from begin/end events; one that never ended lasts to the end of the file."""
    kept = np.concatenate([pairs.begin, pairs.never_ended])
    ends = np.concatenate([halves["time"][pairs.end], np.full(len(pairs.never_ended), last)])
    slices = {name: values[kept] for name, values in halves.items()}
    slices["duration"] = ends - slices["time"]
    return slices


def _steps_of(slices: SliceColumns, links: Links, steps: Steps) -> Ints:
    """By start; device activity by the start of its launch."""
    when = np.where(links.launch != NONE, slices.start[links.launch], slices.start) if len(slices.id) else slices.start
    return steps.at(when)
