"""Dumps of NCCL's profiler plugin: collectives with algorithm, protocol, channels and the times of their kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_files import GPU_NS, WORLD, Op, plugin_dump
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.doubts import understood
from rankscope.analysis.questions import QUESTIONS
from rankscope.errors import RankError
from rankscope.readers import find_reader, looks_like_a_trace
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

LATE_US = 200
SMALL = "0xbeef"


def program(rank: int, comm: str = WORLD) -> list[Op]:
    """Rank 1 is late; AllReduce and AllGather have the same sequence numbers, as NCCL counts them."""
    late = LATE_US * (rank == 1)
    return [
        Op(function, seq, 1 << 20, 500 - late, 1000 + 2000 * seq + 1000 * place + late, comm=comm)
        for seq in range(3)
        for place, function in enumerate(("AllReduce", "AllGather"))
    ]


def report(name: str, run: Run) -> Result:
    return QUESTIONS[name].analyse(run, Scope(), None)


def write(folder: Path, rank: int, text: str, comm: str = WORLD) -> Path:
    path = folder / f"nccl_{int(comm, 16)}_{rank}.json"
    path.write_text(text)
    return path


def two_ranks(folder: Path, version: str = "2.30") -> Run:
    for rank in range(2):
        write(folder, rank, plugin_dump(rank, program(rank), version=version))
    return Run(ingest([folder]))


@pytest.mark.parametrize("version", ["2.28", "2.30"])
def test_operations_and_kernels_come_back(version: str, tmp_path: Path) -> None:
    run = two_ranks(tmp_path, version)
    assert {entry.format for entry in run.segments} == {"nccl_plugin"}
    assert sum(entry.manifest["reading"]["events_lost"] for entry in run.segments) == 0
    rows = run.rows(
        "SELECT rank, function, seq, rank_bytes, dtype, algorithm, protocol, channels, duration_ns, "
        "completed_ns - started_ns, communicator FROM nccl ORDER BY rank, created_ns"
    )
    assert rows == [
        (
            rank,
            op.function,
            op.seq,
            op.bytes,
            "float32",
            "RING",
            "SIMPLE",
            2,
            op.took_us * 1000,
            op.took_us * 1000,
            WORLD,
        )
        for rank in range(2)
        for op in program(rank)
    ]
    assert run.start_unix_ns // 10**9 == GPU_NS // 10**9  # the GPU's clock is a wall clock
    ((calls, proxies),) = run.rows(
        "SELECT count(*) FILTER (category = 'nccl_coll_api'), count(*) FILTER (category = 'nccl_proxy') FROM slices"
    )
    assert (calls, proxies) == (12, 24)


def test_the_late_rank_and_the_bandwidth(tmp_path: Path) -> None:
    run = two_ranks(tmp_path)
    rows = {row["rank"]: row for row in report("stragglers", run).rows}
    assert rows[1]["last_count"] == 6 and rows[1]["caused_wait_ns"] == 6 * LATE_US * 1000
    found = report("collectives.nccl", run)
    bandwidth = {row["kind"]: (row["bytes"], row["ranks"], row["transfer_busbw_gb_s"]) for row in found.rows}
    assert bandwidth == {
        "all_reduce": (1 << 20, 2, pytest.approx((1 << 20) / 3e5)),
        "all_gather": (2 << 20, 2, pytest.approx((1 << 20) / 3e5)),
    }
    assert any("size of a communicator" in note for note in found.notes)
    assert not report("breakdown", run).rows


def test_doctor_knows_the_categories(tmp_path: Path) -> None:
    path = write(tmp_path, 0, plugin_dump(0, program(0)))
    assert understood(Run(ingest([path])), Scope()).unknown == ()


def test_without_kernels_nobody_is_called_late(tmp_path: Path) -> None:
    """NCCL 2.23 has none, and its data types are numbers. The event of a collective ends with its launch."""
    run = two_ranks(tmp_path, "2.23")
    assert run.rows("SELECT DISTINCT dtype, channels, duration_ns, started_ns FROM nccl") == [
        ("float32", 2, None, None)
    ]
    assert [(row["kind"], row["count"], row["dur_ns"]) for row in report("collectives.nccl", run).rows] == [
        ("all_gather", 3, None),
        ("all_reduce", 3, None),
    ]
    assert any("cannot say who arrives late" in note for note in report("collectives.nccl", run).notes)
    assert not report("stragglers", run).rows


@pytest.mark.slow
def test_the_rank_of_a_small_communicator_is_that_of_its_process(tmp_path: Path) -> None:
    """Ranks 1 and 2 of the job are 0 and 1 of another communicator."""
    for rank in range(3):
        write(tmp_path, rank, plugin_dump(rank, program(rank)))
    for small, rank in ((0, 1), (1, 2)):
        text = plugin_dump(small, program(small, SMALL), pid=1000 + rank)
        write(tmp_path, small, text, SMALL)
    run = Run(ingest([tmp_path]))
    found = run.rows("SELECT DISTINCT rank, communicator, communicator_rank FROM nccl ORDER BY ALL")
    assert found == [(0, WORLD, 0), (1, WORLD, 1), (1, SMALL, 0), (2, WORLD, 2), (2, SMALL, 1)]
    write(tmp_path, 7, plugin_dump(7, program(7, SMALL), pid=5), SMALL)
    (problem,) = ingest([tmp_path]).problems
    assert isinstance(problem, RankError) and "cannot tell the rank" in str(problem)


def test_other_chrome_traces_are_not_dumps(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.json"
    path.write_text('[{"name": "a", "cat": "cpu_op", "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]')
    assert find_reader(path).name == "kineto"
    dump = tmp_path / "nccl-node-0-77.txt"
    dump.write_text(plugin_dump(0, program(0)))
    assert looks_like_a_trace(dump) and find_reader(dump).name == "nccl_plugin"


@pytest.mark.slow
def test_damaged_dumps(tmp_path: Path) -> None:
    whole = plugin_dump(0, program(0)).encode()
    cut = tmp_path / "cut.json"
    cut.write_bytes(whole[: int(len(whole) * 0.6)])
    run = Run(ingest([cut]))
    ((count,),) = run.rows("SELECT count(*) FROM nccl")
    assert 0 < count < 6 and run.segments[0].manifest["reading"]["damage"]
    lines = whole.split(b"\n")
    lines.insert(
        4,
        b'{"name": "AllReduce", "cat": "COLL", "ph": "b", "id": 9, "ts": 1, "args": {"Count": "x", "Rank": []}},',
    )
    lines.insert(8, b"\xff\x00{garbage},")
    lines.insert(
        9,
        b'{"name": "KernelCh", "cat": "GPU", "ph": "b", "id": 0, "ts": -5, "args": {"StartGpuClk": 1e300}},',
    )
    bad = tmp_path / "bad.json"
    bad.write_bytes(b"\n".join(lines))
    run = Run(ingest([bad]))
    assert run.segments[0].manifest["reading"]["events_lost"] >= 1
    report("collectives.nccl", run)
    report("collectives", run)
