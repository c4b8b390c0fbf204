"""nsys exports: every row arrives, whatever columns the version has; whose it is; what is refused."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from event_rows import event_rows
from nsys_files import ExportFile, thread
from rankscope.analysis.across_ranks.main_thread import main_thread
from rankscope.analysis.core.device_events import kernels_end_in
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.report import critical
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.health.doubts import doubts
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.analysis.within_rank.idle import idle
from rankscope.analysis.within_rank.syncs import syncs
from rankscope.cli import main
from rankscope.errors import NotATraceError, RankError, ReadError
from rankscope.model import EVENTS
from rankscope.readers.nsys.reader import NSYS
from rankscope.store.ingest import IngestProgress, Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run, open_run

pytestmark = pytest.mark.usefixtures("without_workers")

Open = Callable[[Path], Run]

TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "gpu_memcpy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "gpu_memset",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "cuda_sync",
    "PROFILER_OVERHEAD": "overhead",
}


def read_events(path: Path) -> Callable[[str], list[tuple[Any, ...]]]:
    """The events of a file in this process: a function that answers SQL."""
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("CREATE TABLE events (" + ", ".join(f"{f.name} {f.type}" for f in EVENTS.fields) + ")")
    marks = ", ".join(f"${name}" for name in EVENTS.columns)
    for batch in NSYS.open(path).batches():
        for row in event_rows(batch.columns()):
            values = {name: row[name] for name in EVENTS.columns} | {"args": json.dumps(row["args"])}
            connection.execute(f"INSERT INTO events VALUES ({marks})", values)
        batch.close()
    return lambda sql: connection.execute(sql).fetchall()


def open_export_file(path: Path, tmp_path: Path) -> Run:
    return Run(ingest([path], Options(cache=tmp_path / "cache")))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "nsys/gpt-h200/gpt.sqlite",
        "nsys/seqpar-gloo2/seq_rank0.sqlite",
        "public/pipit/saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
    ],
)
def test_every_row_of_a_real_export_arrives_to_the_nanosecond(
    name: str, dataset: Callable[[str], Path], open_real: Open
) -> None:
    path = dataset(name)
    run = open_real(path)
    source = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    for table, category in TABLES.items():
        there = source.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        sums = f'SELECT count(*), sum("start"), sum("end" - "start") FROM {table}'
        expected = source.execute(sums).fetchone() if there else (0, None, None)
        ((count, start, duration),) = run.rows(
            f"SELECT count(*), sum(ts_ns)::BIGINT, sum(dur_ns)::BIGINT FROM events WHERE category = '{category}'"
        )
        assert (count, start, duration) == expected, table
    calls = source.execute(
        'SELECT count(*), sum("end" - "start") FROM CUPTI_ACTIVITY_KIND_RUNTIME'
    ).fetchone()
    source.close()
    assert run.rows(
        "SELECT count(*), sum(dur_ns)::BIGINT FROM events WHERE category IN ('cuda_runtime', 'cuda_driver')"
    ) == [calls]
    source.close()


@pytest.mark.slow
def test_two_ranks_of_one_job_share_an_axis(dataset: Callable[[str], Path], open_real: Open) -> None:
    """Both ranks leave each step's collectives together, so their later steps begin within a fraction of a ms."""
    run = open_real(dataset("nsys/seqpar-gloo2"))
    assert run.ranks == [0, 1]
    starts = run.rows(
        "SELECT step, max(start_ns) - min(start_ns) FROM steps WHERE step > 0 GROUP BY step ORDER BY step"
    )
    assert [step for step, _ in starts] == [1, 2, 3]
    assert all(apart < 200_000 for _, apart in starts)
    assert run.rows("SELECT DISTINCT rank_source FROM segments") == [("file name",)]


@pytest.mark.slow
def test_a_kernel_finds_its_launch_and_the_step_around_it(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite").session(1_000_000)
    file.kernel("k", 900, 1000, 5).call("cudaLaunchKernel_v7000", 100, 150, 5)
    file.table(
        "NVTX_EVENTS",
        "start end eventType text globalTid textId domainId",
        [(50, 200, 59, "step 3", thread(), None, 0)],
    )
    run = open_export_file(file.write(), tmp_path)
    assert run.rows(
        "SELECT g.name, l.name, g.step FROM gpu g JOIN slices l ON l.id = g.launch AND l.rank = g.rank"
    ) == [("k", "cudaLaunchKernel", 3)]
    assert run.segments[0].unix_origin_ns == 1_000_050


def test_negative_times_and_foreign_bytes_are_kept(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite").kernel("k", -500, -400, 1).kernel("k", 10, 20, 2)
    file.call("cudaLaunchKernel_v7000", -900, -800, 1)
    file.table(
        "NVTX_EVENTS",
        "start end eventType text globalTid textId domainId",
        [(-1000, -100, 59, None, thread(), file.string(b'caf\xe9 "x"\n'), 0)],
    )
    ask = read_events(file.write())
    assert ask("SELECT ts_ns, dur_ns FROM events WHERE category = 'kernel' ORDER BY 1") == [
        (-500, 100),
        (10, 10),
    ]
    assert ask("SELECT name FROM events WHERE category = 'user_annotation'") == [('caf\ufffd "x"\n',)]


def test_ranges_of_all_kinds_and_their_domains(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite")
    main, other = thread(), thread(tid=501)
    file.table(
        "NVTX_EVENTS",
        "start end eventType text globalTid endGlobalTid textId domainId",
        [
            (0, None, 75, "NCCL", main, None, None, 3),
            (10, 100, 59, "ncclAllReduce", main, None, None, 3),
            (20, 300, 60, "crossing", main, other, None, 0),
            (40, None, 34, "a mark", main, None, None, 0),
            (50, None, 59, "never closed", main, None, None, 0),
            (5, None, 39, "trainer", main, None, None, 0),
        ],
    )
    ask = read_events(file.write())
    rows = ask(
        "SELECT name, ph, dur_ns, args->>'domain', args->>'style', (args->>'open')::BOOL FROM events "
        "WHERE category = 'user_annotation' AND ph <> 'M' ORDER BY ts_ns"
    )
    assert rows == [
        ("ncclAllReduce", "X", 90, "NCCL", "PushPop", None),
        ("crossing", "X", 280, None, "StartEnd", None),
        ("a mark", "i", None, None, None, None),
        ("never closed", "X", 250, None, "PushPop", True),
    ]
    assert ask("SELECT tid, args->>'name' FROM events WHERE name = 'thread_name'") == [("500", "trainer")]


def test_the_rank_comes_from_the_recorded_variables_before_the_name(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "report_9.sqlite").kernel("k", 1, 2)
    file.environment(OMPI_COMM_WORLD_RANK="3", OMPI_COMM_WORLD_SIZE="8", SLURM_PROCID="0", SLURM_STEP_ID="1")
    identity = NSYS.identify(file.write())
    assert (identity.rank, identity.world_size, identity.rank_source) == (3, 8, "recorded environment")


def test_without_variables_a_trailing_number_is_the_rank(tmp_path: Path) -> None:
    identity = NSYS.identify(ExportFile(tmp_path / "report_2.sqlite").kernel("k", 1, 2).write())
    assert (identity.rank, identity.rank_source) == (2, "file name")


@pytest.mark.slow
def test_several_processes_of_one_report_become_their_ranks(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "node0.sqlite")
    for pid, kernel in ((600, "of four"), (601, "of five")):
        file.kernel(kernel, 10, 30, 7, pid).call("cudaLaunchKernel_v7000", 1, 5, 7, thread(pid))
    file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", [(600,), (601,)])
    for rank in ("4", "5"):
        file.process_environment(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="8", TORCHELASTIC_RUN_ID="x")
    path = file.write()
    run = open_export_file(path, tmp_path)
    assert run.rows("SELECT rank, name FROM gpu ORDER BY rank") == [(4, "of four"), (5, "of five")]
    assert run.rows("SELECT DISTINCT rank_source FROM segments")[0][0].startswith("recorded environment")
    again = ingest([path], Options(cache=tmp_path / "cache"))
    assert again.read == ()


def two_processes(path: Path, *command: str, kernel: str = "gemm", devices: tuple[int, int] = (1, 0)) -> Path:
    """Processes 600 and 601 with a kernel each; no environment was recorded."""
    file = ExportFile(path)
    for pid in (600, 601):
        file.kernel(f"{kernel} of {pid}", 10, 30, 7, pid).call("cudaLaunchKernel_v7000", 1, 5, 7, thread(pid))
    contexts = list(zip((600, 601), devices, strict=True))
    file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId deviceId", contexts)
    for pid, device in contexts:
        file.on_device(pid, device)
    return (file.command(*command) if command else file).write()


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (("torchrun", "--nproc-per-node", "2", "train.py"), [0, 1]),
        (("/opt/bin/torchrun", "--nproc_per_node=2", "--node-rank=3", "--nnodes=4", "train.py"), [6, 7]),
        (("python3", "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py"), [0, 1]),
        (("mpirun", "-np", "2", "python3", "train.py"), [0, 1]),
        (("accelerate", "launch", "--num_processes", "2", "train.py"), [0, 1]),
    ],
)
def test_the_command_of_a_launcher_tells_that_processes_are_ranks(
    command: tuple[str, ...], ranks: list[int], tmp_path: Path
) -> None:
    """In order of their devices: process 601 is on device 0."""
    path = two_processes(tmp_path / "node.sqlite", *command)
    parts = NSYS.identify_parts(path)
    assert [(part.rank, part.rank_source) for part in parts] == [(rank, "recorded command") for rank in ranks]
    run = open_export_file(path, tmp_path)
    named = run.rows("SELECT rank, name FROM gpu ORDER BY rank")
    assert named == [(ranks[0], "gemm of 601"), (ranks[1], "gemm of 600")]


def test_processes_on_one_device_are_ranks_in_order_of_start(tmp_path: Path) -> None:
    command = ("torchrun", "--standalone", "--nproc-per-node=2", "train.py")
    run = open_export_file(two_processes(tmp_path / "node.sqlite", *command, devices=(0, 0)), tmp_path)
    assert run.rows("SELECT rank, name FROM gpu ORDER BY rank") == [(0, "gemm of 600"), (1, "gemm of 601")]


@pytest.mark.parametrize("command", [(), ("python3", "train.py")])
def test_processes_on_devices_of_their_own_are_ranks(command: tuple[str, ...], tmp_path: Path) -> None:
    path = two_processes(tmp_path / "node.sqlite", *command)
    assert [(part.rank, part.part) for part in NSYS.identify_parts(path)] == [(0, "rank 0"), (1, "rank 1")]
    assert NSYS.open(path, "rank 0").header["processes"] == [601]


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ((), (0, 0)),
        (("python3", "train.py"), (0, 0)),
        (("torchrun", "--nproc-per-node=4", "train.py"), (1, 0)),
    ],
)
def test_processes_of_unknown_rank_are_merged_and_it_is_said(
    command: tuple[str, ...], devices: tuple[int, int], tmp_path: Path
) -> None:
    path = two_processes(tmp_path / "report.sqlite", *command, devices=devices)
    said: list[str] = []
    run = Run(ingest([path], Options(cache=tmp_path / "cache"), IngestProgress(say=said.append)))
    assert run.rows("SELECT rank, count(*) FROM gpu GROUP BY 1") == [(0, 2)]
    assert any("report.sqlite has 2 processes that use CUDA" in text for text in said)
    found = [finding for finding in doctor(run, Scope()).findings if "are read as one rank" in finding.title]
    assert len(found) == 1 and found[0].severity == "warning" and found[0].facts[0].value == 2


def test_a_report_of_two_ranks_that_is_given_one_rank_keeps_both_processes(tmp_path: Path) -> None:
    path = two_processes(tmp_path / "node.sqlite", "torchrun", "--nproc-per-node=2", "train.py")
    run = Run(ingest([path], Options(cache=tmp_path / "cache", ranks={path: 5})))
    assert run.rows("SELECT rank, count(*) FROM gpu GROUP BY 1") == [(5, 2)]


def test_a_rank_with_child_processes_is_not_called_merged(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "rank.sqlite")
    for pid in (600, 601):
        file.kernel("k", 10, 30, 7, pid)
    file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", [(600,), (601,)])
    file.environment(RANK="3", WORLD_SIZE="8", LOCAL_RANK="3", TORCHELASTIC_RUN_ID="x")
    path = file.write()
    assert [part.rank for part in NSYS.identify_parts(path)] == [3]
    assert "mergedProcesses" not in NSYS.open(path).header


def test_mpi_says_which_process_is_which_rank(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "node.sqlite")
    file.table(
        "MPI_COLLECTIVES_EVENTS",
        "start end globalTid textId commHandle rootRank size recvSize",
        [(10, 30, thread(pid), file.string("MPI_Allreduce"), 1, None, 1600, 800) for pid in (700, 701)],
    )
    file.table("MPI_RANKS", "globalTid rank", [(thread(700), 1), (thread(701), 0)])
    path = file.write()
    parts = NSYS.identify_parts(path)
    assert [(part.rank, part.rank_source) for part in parts] == [(0, "MPI rank"), (1, "MPI rank")]
    assert [NSYS.open(path, part.part).header["processes"] for part in parts] == [[701], [700]]


@pytest.mark.slow
def test_counters_memory_and_whole_graphs(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite")
    file.table("GPU_METRICS", "timestamp typeId metricId value", [(10, 256, 1, 40), (20, 256, 1, 90)])
    file.table("TARGET_INFO_GPU_METRICS", "typeId metricId metricName", [(256, 1, "SMs Active")])
    file.table(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "start end deviceId contextId streamId correlationId globalPid graphId graphExecId",
        [(5, 25, 0, 1, 7, 3, thread(), 11, 12)],
    )
    file.table(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        "start globalPid deviceId address bytes memoryOperationType name",
        [
            (1, thread(), 0, 64, 100, 0, None),
            (2, thread(), 0, 65, 50, 0, None),
            (3, thread(), 0, 64, 100, 1, None),
        ],
    )
    run = open_export_file(file.write(), tmp_path)
    assert run.rows("SELECT name, value FROM counters ORDER BY ts_ns") == [
        ("SMs Active", 40.0),
        ("SMs Active", 90.0),
    ]
    assert run.rows("SELECT name, dur_ns, class FROM gpu") == [("CUDA graph 12", 20, "COMPUTE")]
    assert run.rows("SELECT bytes, reserved_bytes FROM instants ORDER BY ts_ns") == [
        (100, 100),
        (50, 150),
        (-100, 50),
    ]


@pytest.mark.slow
def test_values_that_are_not_numbers_cost_only_themselves(tmp_path: Path) -> None:
    file = ExportFile(tmp_path / "a.sqlite").kernel("good", 1, 2)
    path = file.kernel("bad", 3, 4).write()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET \"end\" = 'oops' WHERE start = 3")
    connection.close()
    run = open_export_file(path, tmp_path)
    assert run.rows("SELECT name, dur_ns FROM events WHERE category = 'kernel' ORDER BY ts_ns") == [
        ("good", 1),
        ("bad", None),
    ]
    assert run.segments[0].manifest["reading"]["events_repaired"] == 1


def test_a_foreign_sqlite_is_named_and_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE cookies (id)")
    connection.close()
    with pytest.raises(NotATraceError, match="neither an nsys export") as error:
        open_export_file(path, tmp_path)
    assert "cookies" in error.value.why and "nsys export" in error.value.hint


@pytest.mark.slow
def test_a_report_without_events_is_empty_for_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a program that nsys was to trace for CUDA only, on a node without a driver."""
    asked = [("PROCESS_0:COLLECT_CUDA_TRACE", "true"), ("PROCESS_0:COLLECT_NVTX_TRACE", "false")]
    for rank in (0, 1):
        export = ExportFile(tmp_path / f"rank{rank}.sqlite").table("ANALYSIS_DETAILS", "duration", [(1000,)])
        export.table("META_DATA_CAPTURE", "name value", asked)
        export.table("ThreadNames", "nameId globalTid", [(export.string("python"), thread())])
        if rank:
            export.kernel("gemm", 100, 200)
        export.write()
    run = open_run([tmp_path])
    assert [entry.rank for entry in run.used] == [0, 1]
    assert next(doubt.title for doubt in doubts(run, Scope())) == "no events of rank 0"
    assert main(["stats", str(tmp_path), "-q"]) == 0
    assert "nsys recorded none (CUDA was traced, NVTX was not traced)" in capsys.readouterr().out.replace(
        "\n ", ""
    )


def test_a_truncated_and_a_scribbled_export_are_refused(
    tmp_path: Path, dataset: Callable[[str], Path]
) -> None:
    whole = dataset("nsys/gpt-h200/gpt.sqlite").read_bytes()
    cut = tmp_path / "cut.sqlite"
    cut.write_bytes(whole[:200_000])
    with pytest.raises(ReadError, match="cannot be read as sqlite") as error:
        open_export_file(cut, tmp_path)
    assert "200,000 bytes" in error.value.why
    scribbled = tmp_path / "scribbled.sqlite"
    scribbled.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(ReadError):
        open_export_file(scribbled, tmp_path)


@pytest.mark.slow
def test_an_empty_export_among_good_ones_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ExportFile(folder / "rank_0.sqlite").kernel("k", 1, 2).write()
    (folder / "rank_1.sqlite").write_bytes(b"")
    ingested = ingest([folder], Options(cache=tmp_path / "cache"))
    assert [entry.rank for entry in ingested.index.segments] == [0]
    assert "is empty" in str(ingested.problems[0])


def test_two_exports_that_do_not_say_their_rank_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for name in ("a", "b"):
        ExportFile(folder / f"{name}.sqlite").kernel("k", 1, 2).write()
    with pytest.raises(RankError, match="cannot tell the rank"):
        open_export_file(folder, tmp_path)


def test_names_are_found_wherever_a_version_keeps_them(tmp_path: Path) -> None:
    """No demangled kernel names, texts and domains only by id, calls without a class."""
    file = ExportFile(tmp_path / "a.sqlite")
    file.table(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "start end deviceId streamId correlationId shortName",
        [(10, 20, 0, 7, 1, file.string("short"))],
    )
    file.call("cuLaunchKernel", 1, 2, 1).call("cudaMemcpyAsync_v3020", 3, 4)
    rows = [
        (0, None, 75, thread(), file.string("NCCL"), 5),
        (1, 9, 59, thread(), file.string("ncclBroadcast"), 5),
    ]
    file.table("NVTX_EVENTS", "start end eventType globalTid textId domainId", rows)
    ask = read_events(file.write())
    assert ask("SELECT category, name, args->>'domain' FROM events ORDER BY ts_ns, name") == [
        ("cuda_driver", "cuLaunchKernel", None),
        ("user_annotation", "ncclBroadcast", "NCCL"),
        ("cuda_runtime", "cudaMemcpyAsync", None),
        ("kernel", "short", None),
    ]


def test_two_processes_of_one_rank_keep_their_launches_apart(tmp_path: Path) -> None:
    """Each process counts correlations from 1, and both have a stream 7."""
    file = ExportFile(tmp_path / "rank_0.sqlite")
    for pid, name in ((600, "first"), (601, "second")):
        file.kernel(name, 10, 30, 7, pid).call(f"{name}Launch", 1, 5, 7, thread(pid))
    file.table("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", [(600,), (601,)])
    ask = read_events(file.write())
    assert ask(
        "SELECT k.name, l.name, k.tid FROM events k JOIN events l USING (correlation) "
        "WHERE k.category = 'kernel' AND l.category = 'cuda_driver' ORDER BY 1"
    ) == [("first", "firstLaunch", "7"), ("second", "secondLaunch", "7 of process 601")]


def marked_run(tmp_path: Path, kernels: Sequence[int]) -> Run:
    """Four steps marked as start/end ranges, the last left open; one kernel in each of the given steps."""
    file = ExportFile(tmp_path / "a.sqlite").session(1_000_000)
    for step in range(4):
        start = 1000 * step
        file.call("cudaStreamSynchronize_v3020", start + 10, start + 20, 10 + step)
        if step in kernels:
            file.call("cudaLaunchKernel_v7000", start + 100, start + 150, 1 + step)
            file.kernel("k", start + 200, start + 300, 1 + step)
    ends = [1000, 2000, 3000, 5000]
    rows = [(1000 * n, end, 60, f"ProfilerStep#{n}", thread(), None, 0) for n, end in enumerate(ends)]
    file.table("NVTX_EVENTS", "start end eventType text globalTid textId domainId", rows)
    file.table("ANALYSIS_DETAILS", "duration startTime stopTime", [(5000, 0, 5000)])
    return open_export_file(file.write(), tmp_path)


@pytest.mark.slow
def test_steps_marked_as_crossing_ranges(tmp_path: Path) -> None:
    run = marked_run(tmp_path, range(4))
    assert run.rows("SELECT step FROM steps ORDER BY 1") == [(0,), (1,), (2,)], "the fourth never ended"
    assert run.rows("SELECT name FROM slices WHERE category = 'unfinished_step'") == [("ProfilerStep#3",)]
    thread_of_calls = run.rows("SELECT DISTINCT segment, track FROM slices WHERE category = 'cuda_runtime'")
    assert [main_thread(run, 0)] == thread_of_calls, "not the track of the ranges beside it"
    assert kernels_end_in(run, Scope()) == {}


@pytest.mark.parametrize(
    ("open_until", "said", "unfinished"),
    [(4_200_000, 5, []), (4_700_000, 0, ["unfinished step 3"]), (5_000_000, 0, [])],
)
def test_a_step_that_nsys_ended_itself_is_none(
    open_until: int, said: int, unfinished: list[str], tmp_path: Path
) -> None:
    """Known by the time, which is one of two, or by the range with which the job said so."""
    file = ExportFile(tmp_path / "a.sqlite").session(1_000_000)
    spans = [(f"ProfilerStep#{n}", 1_000_000 * n, 1_000_000 * (n + 1)) for n in range(3)]
    spans += [
        ("ProfilerStep#3", 3_000_000, open_until),
        *((name, 3_500_000, 3_500_000) for name in unfinished),
    ]
    rows = [(start, end, 60, name, thread(), None, 0) for name, start, end in spans]
    file.table("NVTX_EVENTS", "start end eventType text globalTid textId domainId", rows)
    file.table("ANALYSIS_DETAILS", "duration startTime stopTime", [(5_000_000, 0, 5_000_000)])
    file.table("META_DATA_CAPTURE", "name value", [("RUN_DURATION_MS", str(said))] if said else [])
    run = open_export_file(file.write(), tmp_path)
    assert run.rows("SELECT step FROM steps ORDER BY 1") == [(0,), (1,), (2,)]


@pytest.mark.slow
@pytest.mark.parametrize(("kernels", "said"), [((0,), "no kernels of rank 0 after step 0"), ((), None)])
def test_kernels_that_nsys_lost_are_a_doubt(
    tmp_path: Path, kernels: tuple[int, ...], said: str | None
) -> None:
    """Without a kernel and without a copy there is no GPU, and no doubt."""
    run = marked_run(tmp_path, kernels)
    assert [doubt.title for doubt in doubts(run, Scope()) if "kernels" in doubt.title] == (
        [said] if said else []
    )
    assert [row["rank"] for row in breakdown(run, Scope()).rows] == []
    if said:
        assert [report(run, Scope()).findings for report in (idle, syncs, critical)] == [(), (), ()]


def test_two_processes_on_two_gpus_of_a_public_report(shared: Path, tmp_path: Path) -> None:
    """FastVideo on two H100 (nsys-ai): nothing tells the ranks but the devices."""
    report = shared / "public/nsys-ai/h100_2gpu_1s.sqlite"
    run = Run(ingest([report], Options(cache=tmp_path)))
    rows = run.rows(
        "SELECT rank, device, count(*) FROM gpu WHERE category = 'kernel' GROUP BY ALL ORDER BY ALL"
    )
    assert rows == [(0, 0, 1721), (1, 1, 1721)]
