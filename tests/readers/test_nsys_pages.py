"""Events read from the pages of an nsys export are those that sqlite reads, value by value."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import examples
from event_rows import event_rows
from nsys_files import ExportFile, thread
from rankscope import native
from rankscope.readers.columns import IN_C, SQLITE, EventColumns
from rankscope.readers.nsys.reader import NSYS, NsysBatch

pytestmark = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")

FILES = ["gpt-h200/gpt.sqlite", "seqpar-gloo2/seq_rank0.sqlite", "seqpar-gloo2/seq_rank1.sqlite"]
DEVICE = "start end deviceId contextId greenContextId streamId correlationId globalPid"
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{DEVICE} demangledName registersPerThread gridX gridY gridZ blockX blockY blockZ "
    "staticSharedMemory dynamicSharedMemory localMemoryPerThread graphNodeId",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{DEVICE} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{DEVICE} bytes copyKind srcKind dstKind srcDeviceId dstDeviceId migrationCause",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{DEVICE} bytes memKind value",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{DEVICE} syncType eventId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel",
    "PROFILER_OVERHEAD": "start end globalTid nameId returnValue",
    "GPU_METRICS": "timestamp typeId metricId value",
    "NVTX_EVENTS": "start end eventType globalTid endGlobalTid textId text category domainId jsonText",
}
SMALL = st.one_of(st.none(), st.integers(0, 3))
TIMES = st.one_of(st.none(), st.integers(-5, 5), st.integers(0, 1 << 50))
THREADS = st.sampled_from([None, 0, thread(), thread(tid=501), thread(600), thread(601, 602)])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("start", "end", "timestamp", "correlationId"), TIMES),
    **dict.fromkeys(("globalPid", "globalTid", "endGlobalTid"), THREADS),
    "bytes": st.one_of(st.none(), st.integers(0, 9), st.integers(0, 1 << 40)),
    "streamId": st.sampled_from([None, 0, 7, 0xFFFFFFFF]),
    "eventType": st.sampled_from([None, 34, 39, 59, 60, 70, 71, 75, 33]),
    "text": st.sampled_from([None, "", "ProfilerStep#3", "a mark", 'é"\\\n\t', "\x01 and \x7f"]),
    "jsonText": st.sampled_from([None, '{"a": 1}', "\u2028"]),
}
STRINGS = ("cudaLaunchKernel_v7000", "cuLaunchKernel", "void gemm<1>(float*)")


def compared(path: Path, part: str = "") -> Counter[str]:
    """Read all batches both ways; counts what read them where pages may."""
    ways: Counter[str] = Counter()
    for batch in NSYS.open(path, part).batches():
        columns, by_sqlite = batch.columns(), read_by_sqlite(batch)
        ways[columns.read_by] += 1
        assert event_rows(columns) == event_rows(by_sqlite), batch.source.table
        batch.close()
    return ways


def read_by_sqlite(batch: NsysBatch) -> EventColumns:
    columns = replace(batch, piece=replace(batch.piece, pages=None)).columns()
    assert columns.read_by == SQLITE
    return columns


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_real_exports(name: str, dataset: Callable[[str], Path]) -> None:
    ways = compared(dataset(f"nsys/{name}"))
    assert ways[IN_C] >= 5 and not ways[SQLITE]


def test_a_real_export_of_an_old_version(shared: Path) -> None:
    path = shared / "public/pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite"
    assert compared(path)[IN_C] >= 4


@pytest.mark.slow
@settings(
    max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=st.sampled_from(sorted(COLUMNS)),
    data=st.data(),
    merged=st.booleans(),
    missing=st.integers(0, 30),
)
def test_rows_of_any_values(
    table: str, data: st.DataObject, merged: bool, missing: int, tmp_path: Path
) -> None:
    """Nulls everywhere, times that are open or reversed, several processes, a column that a version does not have."""
    columns = COLUMNS[table].split()
    if missing < len(columns):
        del columns[missing]
    rows = data.draw(
        st.lists(st.tuples(*(VALUES.get(column, SMALL) for column in columns)), min_size=1, max_size=12)
    )
    path = tmp_path / "a.sqlite"
    path.unlink(missing_ok=True)
    file = ExportFile(path)
    for text in STRINGS:
        file.string(text)
    file.table(table, " ".join(f'"{column}"' for column in columns), rows)
    file.table("TARGET_INFO_GPU_METRICS", "metricId metricName", [(1, "SMs Active")])
    file.table("MPI_OTHER_EVENTS", "start", [])  # without one of these it is no export
    file.table("ANALYSIS_DETAILS", "duration", [(3,)])
    if merged:
        file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", [(500,), (600,)])
    file.write()
    compared(path)


def test_rows_of_another_rank_are_left_out(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "node0.sqlite")
    for pid in (600, 601):
        file.kernel(f"of {pid}", 10, 30, 7, pid).call("cudaLaunchKernel_v7000", 1, 5, 7, thread(pid))
    file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", [(600,), (601,)])
    for rank in ("4", "5"):
        file.process_environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="8", TORCHELASTIC_RUN_ID="x")
    path = file.write()
    parts = [identity.part for identity in NSYS.identify_parts(path)]
    assert len(parts) == 2
    for part in parts:
        assert compared(path, part) == Counter({IN_C: 2})
        batches = list(NSYS.open(path, part).batches())
        assert [len(batch.columns()) for batch in batches] == [1, 1]
        for batch in batches:
            batch.close()


@pytest.mark.parametrize("column", ["start", "end", "deviceId", "correlationId"])
@pytest.mark.parametrize("value", ["oops", 1.5, (1 << 63) - 1])
def test_sqlite_reads_what_the_pages_do_not_give(column: str, value: object, tmp_path: Path) -> None:
    """A row that is unusual takes its piece with it, and no other piece."""
    path = ExportFile(tmp_path / "a.sqlite").kernel("k", 1, 2).kernel("k", 3, 4).call("launch", 1, 2).write()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{column}" = ? WHERE start = 3', (value,))
    connection.close()
    reading = NSYS.open(path)
    kernels, calls = reading.batches()
    assert kernels.columns().read_by == (IN_C if isinstance(value, int) else SQLITE)
    assert calls.columns().read_by == IN_C
    assert len(kernels.columns()) == 2 and event_rows(kernels.columns()) == event_rows(
        read_by_sqlite(kernels)
    )
    is_out_of_range = isinstance(value, int) and column != "deviceId"
    assert bool(reading.report.events_repaired) == (is_out_of_range or not isinstance(value, int))
    for batch in (kernels, calls):
        batch.close()


def test_rates_are_rounded_half_away_from_zero(tmp_path: Path) -> None:
    """Halves of a millionth, among others."""
    times_and_sizes = [(2_000_000, size) for size in (1, 3, 5)]
    times_and_sizes += [(stop, size) for stop in (3, 7, 1_048_576, -5) for size in (1, 12_345_677, 10**9)]
    rows = [(0, stop, 0, 1, 7, size, 1) for stop, size in times_and_sizes]
    file = ExportFile(tmp_path / "a.sqlite")
    file.table("CUPTI_ACTIVITY_KIND_MEMCPY", "start end deviceId contextId streamId bytes copyKind", rows)
    path = file.write()
    assert compared(path) == Counter({IN_C: 1})
    (batch,) = NSYS.open(path).batches()
    rates = [row["args"]["memory bandwidth (GB/s)"] for row in event_rows(batch.columns())]
    millionth = Decimal("0.000001")
    assert rates == [
        float((Decimal(size) / stop).quantize(millionth, ROUND_HALF_UP)) for stop, size in times_and_sizes
    ]


def test_rows_that_share_their_arguments_share_one_text(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite")
    for number in range(50):
        file.kernel(f"k{number % 2}", number, number + 1, number)
    (batch,) = NSYS.open(file.write()).batches()
    shared = batch.columns().shared_args
    batch.close()
    assert shared is not None and len(shared.texts) == 1 and shared.codes.tolist() == [0] * 50


def test_names_among_many_strings(tmp_path: Path) -> None:
    """With CPU sampling most strings are symbols: only those that a table refers to are looked up."""
    file = ExportFile(tmp_path / "a.sqlite").kernel("gemm", 1, 2).call("cudaLaunchKernel_v7000", 1, 2)
    for number in range(5):
        file.string(f"symbol {number}")
    file.table("ThreadNames", "nameId globalTid", [(file.string("trainer"), thread())])
    path = file.write()
    assert compared(path) == Counter({IN_C: 3})
    batches = list(NSYS.open(path).batches())
    named = [
        (row["name"], row["args"].get("name")) for batch in batches for row in event_rows(batch.columns())
    ]
    assert sorted(named, key=str) == [("cudaLaunchKernel", None), ("gemm", None), ("thread_name", "trainer")]
    for batch in batches:
        batch.close()
