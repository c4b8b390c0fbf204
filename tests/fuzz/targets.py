"""What the fuzzer calls, one function of bytes for each door through which strangers' data comes in.

A target may raise nothing but `RankscopeError`, which is a message for the user. Anything else is a fault of ours.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb

from conftest import kernel_event, kineto_text, slice_event
from event_rows import plain
from flight_dumps import dump, op
from fuzz.codes import Codes
from fuzz.events import odd_events
from fuzz.json_text import events_text
from fuzz.open_run import parameters, sql
from kineto_columns import same_or_refused, scanned
from nccl_files import Op, inspector_line, plugin_dump, prometheus_text
from nsys_files import ExportFile
from rankscope import native
from rankscope.analysis import REPORTS
from rankscope.analysis.core.machine import load_baseline
from rankscope.analysis.core.scope import Scope
from rankscope.capture.kernel_list import function_name, read_kernels, short_name, template_name
from rankscope.capture.rank import Identity, detect
from rankscope.capture.schedule import Schedule, choose_when, steps_window
from rankscope.capture.selector import parse_selector
from rankscope.errors import RankscopeError
from rankscope.jobs.sites import parse_site
from rankscope.readers import Batch, find_reader, identities
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.units import parse_bytes, parse_count
from rankscope.views import render
from sql_statements import HARMFUL, HARMLESS


@dataclass(frozen=True)
class Target:
    """One door: what to call, and bytes to begin with."""

    call: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]


_connection = duckdb.connect(config={"threads": 1})


def attempt(target: Target, data: bytes) -> None:
    """Call a target; a message for the user is an answer like any other."""
    _answered(lambda: target.call(data))


def _answered(call: Callable[[], object]) -> None:
    try:
        call()
    except RankscopeError as error:
        assert str(error).strip()
        assert "The reader failed" not in str(error), "what the worker says of any other exception"


def _reads(name: str) -> Callable[[bytes], None]:
    """A file of this name with these bytes is read to its end: every event and every further table."""

    def call(data: bytes) -> None:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
            path = Path(folder) / name
            path.write_bytes(data)
            reader = find_reader(path)
            for identity in identities(reader, path):
                reading = reader.open(path, identity.part)
                for events in reading.batches():
                    with closing(events):
                        events.columns()
                for _, batch in reading.further():
                    _select(batch)
                reading.clock_base_ns()

    return call


def _select(batch: Batch) -> None:
    """Read a batch of a further table as the store does."""
    try:
        _connection.execute(batch.select()).fetchall()
    except (duckdb.IOException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error:
        _connection.execute(batch.select_repaired()).fetchall()
    finally:
        batch.close()


def _answers(path: Path, data: bytes) -> None:
    """Read a file or folder and make one report of it: which one depends on what was given, so all get their turn."""
    run = Run(ingest([path]))
    names = sorted(REPORTS)
    name = names[zlib.crc32(data) % len(names)]
    render(REPORTS[name].analyse(run, Scope(), None), "json", 80, False)


def _folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _kineto_seeds() -> list[bytes]:
    events = [
        slice_event("aten::mm", 10.0, 5.0, args={"External id": 1}),
        slice_event("ProfilerStep#1", 0.0, 50.0, cat="user_annotation"),
        kernel_event("gemm", 12.0, 4.0, args={"correlation": 7, "stream": 7, "device": 0}),
    ]
    header = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanosecond": 1}
    return [kineto_text(events, **header).encode(), json.dumps(events).encode(), b'{"traceEvents": [']


def _scan(data: bytes) -> None:
    """The scanner reads any bytes without fault, and its columns fit together."""
    columns = scanned(data)
    if columns is not None:
        plain(columns)


def _scan_values(data: bytes) -> None:
    """What the scanner reads, it reads as DuckDB does."""
    same_or_refused(events_text(Codes(data)))


def _scan_seeds() -> list[bytes]:
    whole = [seed.partition(b"[")[2].rpartition(b"]")[0] for seed in _kineto_seeds()]
    return [*whole, *(events_text(Codes(bytes(range(start, start + 90)))) for start in range(0, 160, 20))]


def _odd_kineto(data: bytes) -> None:
    """A well-formed trace whose events have every field, each with values that no profiler would write."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
        path = Path(folder) / "rank-0.json"
        path.write_text(json.dumps({"traceEvents": odd_events(Codes(data))}), encoding="utf-8")
        _answers(path, data)


_template: Path | None = None


def _odd_export(data: bytes) -> None:
    """An nsys export in which tables, columns and values were changed."""
    global _template
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
        if _template is None:
            _template = _export(Path(tempfile.mkdtemp(prefix="fuzz-", dir=_folder())))
        path = Path(shutil.copy(_template, Path(folder) / "rank_0.sqlite"))
        connection = sqlite3.connect(path)
        codes = Codes(data)
        while not codes.ended:
            try:
                connection.execute(*_change(connection, codes))
            except (sqlite3.Error, OverflowError, ValueError):
                continue
        connection.commit()
        connection.close()
        _answers(path, data)


def _change(connection: sqlite3.Connection, codes: Codes) -> tuple[str, tuple[Any, ...]]:
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if not tables:
        return "SELECT 1", ()
    table = codes.choice(tables)
    columns = [row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')]
    column, value = codes.choice(columns or ["start"]), codes.value()
    row = f"(SELECT rowid FROM {table} LIMIT 1 OFFSET {codes.number(4)})"
    match codes.number(8):
        case 0:
            return f"DROP TABLE {table}", ()
        case 1:
            return f'ALTER TABLE {table} DROP COLUMN "{column}"', ()
        case 2:
            return f'ALTER TABLE {table} RENAME COLUMN "{column}" TO "{codes.choice(["x", "end", "é"])}"', ()
        case 3:
            connection.execute(f"ALTER TABLE {table} RENAME TO moved")
            return f"CREATE VIEW {table} AS SELECT * FROM moved", ()
        case 4:
            return f"INSERT INTO {table} SELECT * FROM {table}", ()
        case _:
            return f'UPDATE {table} SET "{column}" = ? WHERE rowid = {row}', (value,)


def _export(folder: Path) -> Path:
    made = ExportFile(folder / "rank_0.sqlite").session(1_700_000_000_000_000_000)
    for number in range(3):
        made.call("cudaLaunchKernel", 100 * number, 100 * number + 10, number)
        made.kernel("gemm", 100 * number + 20, 100 * number + 90, number)
    made.environment(RANK="0", WORLD_SIZE="2").on_device(500, 0)
    return made.write()


_PAGE = 512


def _pages(data: bytes) -> None:
    """The pages of a sqlite file; its tables are taken to begin on the second and third page."""
    if native.functions is None:
        return
    with tempfile.TemporaryFile(dir=_folder()) as file:
        file.write(data)
        file.flush()
        address = (file.fileno(), _PAGE, _PAGE, len(data) // _PAGE)
        for root in (2, 3):
            with suppress(ValueError):
                leaves, last_rowids = native.functions.sqlite_leaves(address, root)
                assert len(memoryview(leaves)) * 2 == len(memoryview(last_rowids))
                wanted = ((-1, False), (0, False), (1, True), (2, False))
                native.functions.sqlite_rows(address, leaves, -(1 << 63), (1 << 63) - 1, wanted)


def _page_seeds() -> list[bytes]:
    seeds = []
    for rows in (3, 300):
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
            path = Path(folder) / "t.sqlite"
            with closing(sqlite3.connect(path)) as connection:
                connection.execute(f"PRAGMA page_size = {_PAGE}")
                connection.execute("CREATE TABLE t (a, b, c)")
                connection.execute("CREATE TABLE u (a, b)")
                values = [(number, "long " * (200 if number == 2 else 1), None) for number in range(rows)]
                connection.executemany("INSERT INTO t VALUES (?, ?, ?)", values)
                connection.execute("INSERT INTO u SELECT a * 100000, b FROM t")
                connection.commit()
            seeds.append(path.read_bytes())
    return seeds


def _pickles() -> list[bytes]:
    flight = dump([op("0", 1), op("0", 2, "send")], {"0": [0, 1]}, {"0": (2, 1)})
    snapshot: dict[str, Any] = {
        "segments": [
            {"device": 0, "address": 4096, "total_size": 64, "blocks": [{"size": 64, "state": "x"}]}
        ],
        "device_traces": [[{"action": "alloc", "addr": 4096, "size": 64, "stream": 0, "time_us": 1}]],
        "allocator_settings": {},
    }
    return [pickle.dumps(value) for value in (flight, snapshot)] + [json.dumps(flight).encode()]


def _nccl_seeds() -> list[bytes]:
    ops = [Op("AllReduce", 1, 8192, 10, 100), Op("Send", 1, 8192, 10, 200, peer=1)]
    lines = [json.dumps(inspector_line(one, 0)).encode() for one in ops]
    dumps = [plugin_dump(0, ops, version=version).encode() for version in ("2.23", "2.28", "2.30")]
    return [b"\n".join(lines), prometheus_text(0, [("AllReduce", "4-5GB", 1.5, 2.5)]).encode(), *dumps]


def _ncu_csv() -> list[bytes]:
    head = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size"'
    raw = f'{head},"Device","CC","gpu__time_duration.sum"\n"","","","","","","","","","","","us"\n'
    row = '"0","7","python","host","gemm","1","7","(384, 1, 1)","(2, 66, 1)","0","9.0","75.6"\n'
    details = f'{head},"Section Name","Metric Name","Metric Unit","Metric Value"\n'
    return [(raw + row).encode(), details.encode()]


def _selectors(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    selector = parse_selector(text)
    identity = Identity(3, 1, 64, 8, 0, "fuzz")
    selector.selects(identity)
    selector.matching(identity)
    selector.matches_none(identity)


def _schedules(data: bytes) -> None:
    codes = Codes(data)
    cycle = {
        name: codes.signed()
        for name in ("skip_first", "wait", "warmup", "active", "repeat")
        if codes.number(2)
    }
    signal = codes.text() if codes.number(2) else None
    steps = codes.text() if codes.number(2) else None
    when = choose_when(cycle, steps=steps, window=None, signal=signal)
    if isinstance(when, Schedule):
        for step in range(40):
            when.action(step)
    steps_window(codes.rest())


def _manifests(data: bytes) -> None:
    """A run folder whose manifests are strange; its trace is good."""
    rank, run, split = data.partition(b"\n---\n")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
        path = Path(folder) / "rank-00000.pt.trace.json"
        path.write_bytes(_kineto_seeds()[0])
        (Path(folder) / "rank-00000.rankscope.json").write_bytes(rank)
        if split:
            (Path(folder) / "rankscope.json").write_bytes(run)
        _answers(Path(folder), data)


def _manifest_seeds() -> list[bytes]:
    window = {"index": 0, "kind": "torch", "state": "whole", "file": "rank-00000.pt.trace.json", "bytes": 7}
    window |= {"first_step": 2, "last_step": 4, "start": {"unix_ns": 1}, "end": {"unix_ns": 2}}
    rank = {
        "rank": 0,
        "world_size": 2,
        "host": "n0",
        "state": "done",
        "windows": [window],
        "clock": [],
        "notes": [],
    }
    return [json.dumps(rank).encode() + b"\n---\n" + json.dumps({"command": ["python", "x.py"]}).encode()]


def _store_files(data: bytes) -> None:
    """A store whose index or segment manifest is strange."""
    index, segment, split = data.partition(b"\n---\n")
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
        path = Path(folder) / "rank-0.json"
        path.write_bytes(_kineto_seeds()[0])
        store = ingest([path]).store
        if index:
            (store / "store.json").write_bytes(index)
        if split:
            next(store.rglob("segment.json")).write_bytes(segment)
        _answers(path, data)


def _store_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
        path = Path(folder) / "rank-0.json"
        path.write_bytes(_kineto_seeds()[0])
        store = ingest([path]).store
        return [
            (store / "store.json").read_bytes() + b"\n---\n" + next(store.rglob("segment.json")).read_bytes()
        ]


def _texts(data: bytes) -> None:
    """Small texts that users and files give: amounts, kernels' names, launchers' variables, sites, lists, baselines."""
    kind, text = data[:1], data[1:].decode("utf-8", "replace")
    match kind[0] % 6 if kind else 0:
        case 0:
            parse_bytes(text)
        case 1:
            parse_count(text)
        case 2:
            for shorten in (function_name, template_name, short_name):
                shorten(text)
        case 3:
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
            detect(dict(zip(names, text.split("\n"), strict=False)))
        case 4:
            parse_site(text, "fuzz")
        case _:
            with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_folder()) as folder:
                path = Path(folder) / "file"
                path.write_bytes(data[1:])
                for read in (load_baseline, read_kernels):
                    _answered(partial(read, path))


TARGETS: dict[str, Target] = {
    "kineto": Target(_reads("rank-0.json"), _kineto_seeds),
    "kineto-gz": Target(_reads("rank-0.json.gz"), lambda: [gzip.compress(one) for one in _kineto_seeds()]),
    "kineto-values": Target(_odd_kineto, lambda: [bytes(range(200)), bytes(200)]),
    "scan": Target(_scan, _scan_seeds),
    "scan-values": Target(_scan_values, lambda: [bytes(range(200)), bytes(200)]),
    "nsys": Target(_reads("rank_0.sqlite"), lambda: [_export(Path(tempfile.mkdtemp())).read_bytes()]),
    "nsys-values": Target(_odd_export, lambda: [bytes([table, 1, 8, 0, 7]) for table in range(6)]),
    "sqlite-pages": Target(_pages, _page_seeds),
    "nsys-stream": Target(_reads("rank_0.qdstrm"), lambda: [b"QDSTRM\x00\x00"]),
    "ncu": Target(_reads("rank_0.csv"), _ncu_csv),
    "pickle": Target(_reads("rank-0.pickle"), _pickles),
    "flight": Target(_reads("nccl_trace_rank_0"), _pickles),
    "nccl": Target(_reads("node-pid77.log"), _nccl_seeds),
    "manifests": Target(_manifests, _manifest_seeds),
    "store": Target(_store_files, _store_seeds),
    "selectors": Target(_selectors, lambda: [b"0,8-15", b"local:0@nodes:0-1", b"all", b"node:1"]),
    "schedules": Target(_schedules, lambda: [b"\x01\x02\x01\x03\x01\x04\x01\x05\x01\x06\x00\x0110:14\x00"]),
    "parameters": Target(parameters, lambda: [bytes([route, 0, 1, 0]) for route in range(14)]),
    "sql": Target(sql, lambda: [line.encode() for line in (*HARMLESS, *HARMFUL)[::8]]),
    "texts": Target(
        _texts, lambda: [b"\x0010 GiB", b"\x011e3", b"\x02void f<g<1>>(int)", b"\x030\n2", b"\x04{}"]
    ),
}
