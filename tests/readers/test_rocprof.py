"""ROCm's profilers: rocpd of both schemas and rocprofv3's JSON say the same of the same activity; damage is counted."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conftest import open_trace
from event_rows import event_rows
from rankscope import native
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doctor import doctor
from rankscope.errors import NotATraceError, RankscopeError, ReadError
from rankscope.readers import find_reader, identities
from rankscope.readers.base import ReadReport
from rankscope.readers.rocprof import tool_json as rocprof_json
from rankscope.timeline.run import Run
from rocprof_files import (
    HIP,
    HSA,
    RANGE,
    RCCL,
    Activity,
    Block,
    Call,
    Copy,
    KernelRun,
    RocpdWriter,
    tool_json,
    write_rocpd,
    write_tool_json,
)

pytestmark = pytest.mark.usefixtures("without_workers")

Write = Callable[[Path, Activity], Path]

FORMATS: dict[str, Write] = {
    "rocpd schema 3": lambda folder, activity: write_rocpd(folder / "results.db", activity, 3),
    "rocpd schema 4": lambda folder, activity: write_rocpd(folder / "results.db", activity, 4),
    "json": lambda folder, activity: write_tool_json(folder / "x_results.json", activity),
    "json with indent": lambda folder, activity: write_tool_json(folder / "x_results.json", activity, 2),
}
every_format = pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)

STEP = Activity(
    kernels=[
        KernelRun("gemm", 1_000, 1_500, call=11),
        KernelRun(
            "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", 1_600, 2_600, call=14, stream=2
        ),
    ],
    copies=[Copy("HtoD", 500, 700, 4096, call=12)],
    calls=[
        Call(HIP, "hipMemcpyAsync", 400, 450, 12),
        Call(HIP, "hipLaunchKernel", 900, 950, 11),
        Call(HSA, "hsa_signal_store_screlease", 910, 920, 17),
        Call(RCCL, "ncclAllReduce", 1_500, 1_650, 13, args={"count": "1024", "datatype": "ncclBfloat16"}),
        Call(HIP, "hipExtLaunchKernel", 1_510, 1_560, 14),
        Call(RANGE, "roctxThreadRangeA", 300, 2_000, 15, message="ProfilerStep#7"),
        Call(RANGE, "roctxProcessRangeA", 350, 3_000, 18, message="crossing"),
        Call(RANGE, "roctxMarkA", 350, 350, 16, message="a mark"),
    ],
    blocks=[
        Block(100, 0x1000, 4096),
        Block(200, 0x2000, 100, device=None),
        Block(300, 0x1000),
        Block(310, 0x9000),
    ],
    counters={0: {"SQ_WAVES": 12.5, "GRBM_COUNT": 7.0}},
)


def read(path: Path, part: str = "") -> tuple[list[dict[str, Any]], ReadReport]:
    """The events of a file, and what was lost."""
    reading = find_reader(path).open(path, part)
    rows = []
    for batch in reading.batches():
        rows += event_rows(batch.columns())
        batch.close()
    return rows, reading.report


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Without the names of threads, which JSON does not have."""
    return sorted(json.dumps(row, sort_keys=True) for row in rows if row["ph"] != "M")


def some_activity(count: int) -> Activity:
    """Kernels, copies and calls with random times on several streams and devices."""
    chance = random.Random(7)
    names = [f"kernel_{number}<float, {number}>" for number in range(9)]
    kernels, copies, calls = [], [], []
    for number in range(1, count + 1):
        start = chance.randrange(10**12, 2 * 10**12)
        end = start + chance.randrange(1, 10**6)
        calls.append(
            Call(HIP, chance.choice(["hipLaunchKernel", "hipMemcpyAsync"]), start - 900, start - 400, number)
        )
        if calls[-1].name == "hipLaunchKernel":
            device, stream = chance.randrange(2), chance.randrange(4)
            kernels.append(KernelRun(chance.choice(names), start, end, number, device, stream))
        else:
            size = chance.randrange(10**9)
            copies.append(Copy(chance.choice(["HtoD", "DtoH", "DtoD"]), start, end, size, number))
    return Activity(kernels, copies, calls)


def sums(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Count and total of the last value, by the others."""
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for *key, value in rows:
        found[tuple(key)].append(value)
    return {key: (len(values), sum(values)) for key, values in found.items()}


@every_format
def test_counts_and_sums_are_those_of_a_recount(tmp_path: Path, write: Write) -> None:
    activity = some_activity(400)
    rows, report = read(write(tmp_path, activity))
    assert (report.events_lost, report.events_repaired, report.damage) == (0, 0, "")
    kernels = [row for row in rows if row["category"] == "kernel"]
    assert sums([(r["name"], r["device"], r["stream"], r["dur_ns"]) for r in kernels]) == sums(
        [(run.name, run.device, run.stream, run.end - run.start) for run in activity.kernels]
    )
    copies = [row for row in rows if row["category"] == "gpu_memcpy"]
    assert sums([(r["name"], r["bytes"]) for r in copies]) == sums(
        [(f"Memcpy {copy.direction}", copy.size) for copy in activity.copies]
    )
    starts = {row["correlation"]: row["ts_ns"] for row in rows if row["category"] == "cuda_runtime"}
    assert starts == {call.number: call.start for call in activity.calls}
    assert {row["correlation"]: row["ts_ns"] for row in kernels} == {
        run.call: run.start for run in activity.kernels
    }


@pytest.mark.parametrize("write", list(FORMATS.values())[1:], ids=list(FORMATS)[1:])
def test_the_formats_say_the_same(tmp_path: Path, write: Write) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, _ = read(FORMATS["rocpd schema 3"](tmp_path / "a", STEP))
    other, _ = read(write(tmp_path / "b", STEP))
    assert comparable(first) == comparable(other)
    assert len(comparable(first)) == 16


@every_format
def test_without_the_c_part_the_events_are_the_same(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, STEP)
    with_c, _ = read(path)
    monkeypatch.setattr(native, "functions", None)
    assert comparable(read(path)[0]) == comparable(with_c)


@every_format
def test_batches_outlive_the_pass_over_the_file(tmp_path: Path, write: Write) -> None:
    """Threads read them while the reading goes on, and may be later than its end."""
    path = write(tmp_path, STEP)
    later = []
    for batch in [*find_reader(path).open(path).batches()]:
        later += event_rows(batch.columns())
        batch.close()
    assert comparable(later) == comparable(read(path)[0])


@pytest.mark.slow
@every_format
def test_an_event_means_what_it_means_in_kineto(tmp_path: Path, write: Write) -> None:
    """Launches, steps, collectives, memory and counters through the store."""
    run = open_trace(write(tmp_path, STEP))
    assert run.rows(
        "SELECT g.name, l.name, g.step, g.device, g.stream FROM gpu g JOIN slices l ON l.id = g.launch "
        "ORDER BY g.start_ns"
    ) == [
        ("Memcpy HtoD", "hipMemcpyAsync", 7, 0, 1),
        ("gemm", "hipLaunchKernel", 7, 0, 1),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "hipExtLaunchKernel", 7, 0, 2),
    ]
    assert run.rows(
        "SELECT kind, dur_ns, in_elements, out_elements, dtype, step FROM collectives WHERE place = 'device'"
    ) == [("all_reduce", 1_000, 1024, 1024, "bfloat16", 7)]
    assert run.rows(
        "SELECT bytes, allocated_bytes, device_type, device FROM instants WHERE name = '[memory]'"
    ) == [
        (4096, 4096, 1, 0),
        (100, 100, 0, -1),
        (-4096, 0, 1, 0),
    ]
    assert run.rows("SELECT name, value FROM counters ORDER BY name") == [
        ("GRBM_COUNT", 7.0),
        ("SQ_WAVES", 12.5),
    ]
    assert run.rows("SELECT name FROM instants WHERE category = 'user_annotation'") == [("a mark",)]
    assert run.rows(
        "SELECT DISTINCT t.tid FROM tracks t JOIN slices USING (track) WHERE name = 'crossing'"
    ) == [("71 start/end ranges",)]


def test_kernels_without_a_trace_come_from_their_counters(tmp_path: Path) -> None:
    content = tool_json(STEP)
    content["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"] = []
    path = tmp_path / "x_results.json"
    path.write_text(json.dumps(content))
    rows, _ = read(path)
    assert [(row["name"], row["dur_ns"]) for row in rows if row["category"] == "kernel"] == [("gemm", 500)]


def test_without_streams_a_queue_is_one(tmp_path: Path) -> None:
    content = tool_json(STEP)
    for record in content["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]:
        del record["stream_id"]
    path = tmp_path / "x_results.json"
    path.write_text(json.dumps(content))
    assert {row["stream"] for row in read(path)[0] if row["category"] == "kernel"} == {3}


def test_the_rank_comes_from_variables_the_output_name_or_the_file_name(tmp_path: Path) -> None:
    told = Activity(STEP.kernels, environment={"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "16"})
    named = Activity(STEP.kernels, output=("out/%hostname%_r%rank%_%pid%", "out/node1_r12_70"))
    plain = Activity(STEP.kernels)
    files = {
        write_rocpd(tmp_path / "a_results.db", told): (5, "recorded environment", 16),
        write_rocpd(tmp_path / "b_results.db", named): (12, "recorded output name", None),
        write_tool_json(tmp_path / "c_results.json", named): (12, "recorded output name", None),
        write_rocpd(tmp_path / "rank-3_results.db", plain): (3, "file name", None),
        write_tool_json(tmp_path / "rank_4_results.json", plain): (4, "file name", None),
        write_tool_json(tmp_path / "d_results.json", plain): (None, "", None),
    }
    found = {path: identities(find_reader(path), path)[0] for path in files}
    assert {path: (one.rank, one.rank_source, one.world_size) for path, one in found.items()} == files


@pytest.mark.slow
def test_processes_of_one_file_become_their_ranks(tmp_path: Path) -> None:
    writer = RocpdWriter(tmp_path / "node.db")
    for rank in (1, 0):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        kernels = [KernelRun(f"of rank {rank}", 1_000, 2_000, device=rank)]
        writer.write(Activity(kernels, pid=70 + rank, environment=variables))
    run = open_trace(writer.close())
    assert run.rows("SELECT rank, name, device FROM gpu ORDER BY rank") == [
        (0, "of rank 0", 0),
        (1, "of rank 1", 1),
    ]


@pytest.mark.slow
def test_processes_of_one_rank_keep_their_launches_apart(tmp_path: Path) -> None:
    writer = RocpdWriter(tmp_path / "node.db", schema=4)
    for pid in (70, 71):
        launch = Call(HIP, f"hipLaunchKernel of {pid}", 900, 950, 11)
        writer.write(Activity([KernelRun(f"of {pid}", 1_000, 2_000, call=11)], calls=[launch], pid=pid))
    run = open_trace(writer.close())
    assert run.rows("SELECT g.name, l.name FROM gpu g JOIN slices l ON l.id = g.launch ORDER BY 1") == [
        ("of 70", "hipLaunchKernel of 70"),
        ("of 71", "hipLaunchKernel of 71"),
    ]
    assert run.rows("SELECT count(*) FROM tracks WHERE kind = 'stream'") == [(2,)]
    values = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
    assert values["rocpd databases with merged processes"] == "1"


def test_doctor_warns_of_recorded_variables_and_the_store_has_none(tmp_path: Path) -> None:
    secret = Activity(STEP.kernels, environment={"HF_TOKEN": "hf_very_secret"})
    run = open_trace(write_rocpd(tmp_path / "rank-0_results.db", secret))
    values = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
    assert values["rocpd databases with the job's environment"] == "1 of 1"
    stored = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix != ".db"]
    assert stored
    assert not any(b"hf_very_secret" in file.read_bytes() for file in stored)


@pytest.mark.slow
def test_json_cut_off_anywhere_gives_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "x_results.json"
    whole = json.dumps(tool_json(STEP), separators=(",", ":")).encode()
    kernels: list[int] = []
    for size in range(25, len(whole), 149):
        path.write_bytes(whole[:size])
        try:
            rows, report = read(path)
        except RankscopeError as error:
            assert error.why and error.hint
            continue
        assert report.damage
        kernels.append(sum(row["category"] == "kernel" for row in rows))
    assert kernels == sorted(kernels)
    assert set(kernels) == {0, 1, 2}


def test_gzip_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "x_results.json.gz"
    path.write_bytes(gzip.compress(write_tool_json(tmp_path / "x", some_activity(900)).read_bytes())[:-2000])
    rows, report = read(path)
    assert "gzip" in report.damage
    assert len(rows) > 300


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], None], int, int]] = {
    "time that is text": (lambda record: record.update(start_timestamp="soon"), 1, 1),
    "time beyond 64 bits": (lambda record: record.update(start_timestamp=10**30), 1, 1),
    "no time": (lambda record: record.pop("start_timestamp"), 2, 0),
    "negative time": (lambda record: record.update(start_timestamp=-5), 2, 0),
    "kernel that is unknown": (lambda record: record["dispatch_info"].update(kernel_id=99), 2, 0),
    "kernel that is a list": (lambda record: record["dispatch_info"].update(kernel_id=[1]), 2, 0),
    "no dispatch": (lambda record: record.pop("dispatch_info"), 2, 0),
    "dispatch that is a number": (lambda record: record.update(dispatch_info=7), 2, 0),
    "grid of zeros": (
        lambda record: record["dispatch_info"].update(workgroup_size={"x": 0, "y": -1, "z": 1}),
        2,
        0,
    ),
    "more than is read": (lambda record: record.update(more={"deep": [[{"size": 1}]], "list": [1]}), 2, 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_record_costs_itself_only(
    tmp_path: Path, damage: tuple[Callable[[dict[str, Any]], None], int, int]
) -> None:
    change, kept, lost = damage
    content = tool_json(STEP)
    change(content["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0])
    path = tmp_path / "x_results.json"
    path.write_text(json.dumps(content))
    rows, report = read(path)
    assert report.events_lost == lost
    assert Counter(row["category"] for row in rows)["kernel"] == kept
    assert Counter(row["category"] for row in rows)["cuda_runtime"] == 3


@pytest.mark.parametrize(
    "text",
    ['{"size":1,', "\x00\x01\x02", "[" * 100_000, '{"size":' + "9" * 5_000, '"' + "x" * 100_000, "}]},{{"],
    ids=["half a record", "control bytes", "nesting", "digits", "text", "brackets"],
)
def test_garbage_between_records_is_counted(tmp_path: Path, text: str) -> None:
    whole = json.dumps(tool_json(STEP), separators=(",", ":"))
    place = whole.index("},{", whole.index('"kernel_dispatch":[')) + 2
    path = tmp_path / "x_results.json"
    path.write_text(whole[:place] + text + whole[place:])
    rows, report = read(path)
    assert report.events_lost or report.damage
    assert [row["name"] for row in rows if row["category"] == "kernel"][:1] == ["gemm"]


def test_damaged_names_do_not_cost_the_records(tmp_path: Path) -> None:
    whole = json.dumps(tool_json(STEP), separators=(",", ":"))
    path = tmp_path / "x_results.json"
    path.write_text(whole.replace('"code_objects":[]', '"code_objects":[}'))
    rows, report = read(path)
    assert "damaged" in report.damage
    assert "gemm" in {row["name"] for row in rows}


@pytest.mark.slow
@every_format
def test_hostile_names(tmp_path: Path, write: Write) -> None:
    names = [
        'a "quoted" }]},{"size": name',
        "tab\tand\nline",
        "\u202eright to left",
        "émile",
        "x" * 10_000_000,
    ]
    activity = Activity([KernelRun(name, 1_000, 2_000) for name in names])
    rows, report = read(write(tmp_path, activity))
    found = [row["name"] for row in rows if row["category"] == "kernel"]
    assert [name[:50] for name in found] == [name[:50] for name in names]
    assert max(map(len, found)) <= 100_000
    assert report.events_lost == 0


def test_values_of_another_type_in_a_database(tmp_path: Path) -> None:
    writer = RocpdWriter(tmp_path / "x.db").write(STEP)
    writer.sql("UPDATE TABLE(kernel_dispatch) SET start = 'soon' WHERE kernel_id = 5")
    writer.sql("UPDATE TABLE(region) SET tid = 1.5, name_id = 10000 WHERE rowid = 1")
    writer.sql("UPDATE TABLE(info_kernel_symbol) SET sgpr_count = x'ff', display_name = NULL")
    writer.sql("UPDATE TABLE(info_process) SET environment = '[1', extdata = x'00'")
    rows, report = read(writer.close())
    assert report.events_repaired == 2
    assert {row["ts_ns"] for row in rows if row["category"] == "kernel"} == {None, 1_600}


def test_tables_and_columns_that_a_version_does_not_have(tmp_path: Path) -> None:
    writer = RocpdWriter(tmp_path / "x.db").write(STEP)
    for table in ("info_thread", "info_agent", "arg", "memory_allocate", "pmc_event", "event", "metadata"):
        writer.sql(f"DROP VIEW rocpd_{table}").sql(f"DROP TABLE TABLE({table})")
    writer.sql("ALTER TABLE TABLE(kernel_dispatch) DROP COLUMN stream_id")
    rows, _ = read(writer.close())
    assert {
        (row["name"], row["stream"]) for row in rows if row["category"] == "kernel" and row["dur_ns"] == 500
    } == {("gemm", 3)}


@pytest.mark.slow
def test_a_database_cut_off_or_scribbled_over_is_an_error(tmp_path: Path) -> None:
    path = write_rocpd(tmp_path / "x.db", some_activity(300))
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(12):
        size = chance.randrange(1, len(whole))
        scribbled = bytearray(whole)
        scribbled[size : size + 4000] = chance.randbytes(4000)
        for content in (whole[:size], bytes(scribbled[: len(whole)])):
            path.write_bytes(content)
            try:
                read(path)
            except RankscopeError as error:
                assert error.why and error.hint


def test_views_are_not_read(tmp_path: Path) -> None:
    """A view may compute anything, for any time."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE rocpd_string (id INTEGER PRIMARY KEY, string TEXT)")
        connection.execute(
            "CREATE VIEW rocpd_region AS WITH RECURSIVE n AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT * FROM n"
        )
    connection.close()
    with pytest.raises(NotATraceError):
        find_reader(path)


def test_a_database_of_rocmprofiledata_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.rpd"
    with closing(sqlite3.connect(path)) as connection, connection:
        for table in ("rocpd_op", "rocpd_api", "rocpd_string"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    connection.close()
    with pytest.raises(NotATraceError, match="rocmProfileData") as error:
        find_reader(path)
    assert "rpd2tracing" in error.value.hint


def test_a_file_without_records_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x_results.json"
    path.write_text('{"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}')
    with pytest.raises(ReadError, match="no records") as error:
        read(path)
    assert error.value.hint


def test_a_bomb_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocprof_json, "_MOST_BEFORE_RECORDS", 1 << 20)
    monkeypatch.setattr(rocprof_json, "_BLOCK_BYTES", 1 << 18)
    path = tmp_path / "x_results.json.gz"
    kernels = b'{"size":1,"kernel_id":2},' * 100_000
    path.write_bytes(gzip.compress(b'{"rocprofiler-sdk-tool":[{"kernel_symbols":[' + kernels))
    with pytest.raises(ReadError, match="no records") as error:
        read(path)
    assert "1 MiB" in error.value.why


def test_blocks_are_cut_between_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    activity = some_activity(200)
    path = write_tool_json(tmp_path / "x_results.json", activity)
    whole, _ = read(path)
    monkeypatch.setattr(rocprof_json, "_BLOCK_BYTES", 2_000)
    pieces, report = read(path)
    assert comparable(pieces) == comparable(whole)
    assert not report.damage and not report.events_lost


def test_doctor_understands_every_event(tmp_path: Path) -> None:
    run: Run = open_trace(FORMATS["rocpd schema 3"](tmp_path, STEP))
    values = {row["check"]: row["value"] for row in doctor(run, Scope()).rows}
    assert values["events understood"].startswith("100")
    assert "Python (3 of 7 batches)" in values["read by"]
