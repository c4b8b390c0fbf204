"""Files of different runs: they are told apart, refused, and with `mix` never on one time axis."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from conftest import kernel_event, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.errors import MixedRunsError
from rankscope.store.index import Index, SegmentEntry
from rankscope.store.ingest import Ingested
from rankscope.timeline.run import Run, open_run

NOON = 1_760_000_000 * 10**9
MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def trace(
    folder: Path, rank: int, at: int = NOON, *, name: str = "", first_step: int = 0, **header: Any
) -> Path:
    """Three steps of 1 ms, each with a kernel."""
    events = []
    for step in range(3):
        begin = 1000 * step
        events += [
            slice_event(f"ProfilerStep#{first_step + step}", begin, 1000, cat="user_annotation"),
            slice_event(
                "cudaLaunchKernel", begin + 10, 5, cat="cuda_runtime", args={"correlation": step + 1}
            ),
            kernel_event("gemm", begin + 100, 800, correlation=step + 1),
        ]
    info = {"distributedInfo": {"rank": rank, **header.pop("info", {})}}
    path = folder / f"{name or 'a'}-rank{rank}-{first_step}.json"
    return write_kineto(path, events, baseTimeNanoseconds=at, **info, **header)


def test_one_run(tmp_path: Path) -> None:
    """Several ranks; several cycles hours apart, of which one rank has only the second; no ids."""
    for rank in (0, 1):
        trace(tmp_path, rank, NOON + rank * MINUTE // 2)
    for rank in (0, 1, 2):
        trace(tmp_path, rank, NOON + 10 * HOUR - rank * MINUTE // 4, first_step=10)
    run = open_run([tmp_path])
    assert len(run.runs) == 1 and run.ranks == [0, 1, 2]


def test_ranks_recorded_minutes_apart_are_one_run(tmp_path: Path) -> None:
    trace(tmp_path, 0)
    trace(tmp_path, 1, NOON + 40 * MINUTE)
    assert len(open_run([tmp_path]).runs) == 1


def test_the_same_job_is_one_run_whatever_the_rest(tmp_path: Path) -> None:
    """An elastic restart: another host, another world size, another day."""
    trace(tmp_path, 0, rankscope={"job": "7"}, info={"world_size": 8}, host_name="a")
    trace(
        tmp_path,
        0,
        NOON + 3 * DAY,
        rankscope={"job": "7"},
        info={"world_size": 6},
        host_name="b",
        first_step=9,
    )
    trace(tmp_path, 1, NOON + 5 * HOUR, rankscope={"job": "7"})
    assert len(open_run([tmp_path]).runs) == 1


def test_files_without_a_wall_clock_are_one_run(tmp_path: Path) -> None:
    trace(tmp_path, 0, 0)
    trace(tmp_path, 1, 50 * HOUR)
    assert len(open_run([tmp_path]).runs) == 1


def rank_folder(parent: Path, name: str, rank: int, job: str) -> Path:
    """As `rankscope profile -o PARENT/%q{PMI_RANK}` leaves it."""
    folder = parent / name
    folder.mkdir(parents=True)
    trace(folder, rank, name="rank")
    (folder / "rankscope.json").write_text(json.dumps({"format": 1, "job": job}))
    (folder / f"rank-{rank:05d}.rankscope.json").write_text(json.dumps({"rank": rank, "windows": []}))
    return folder


@pytest.mark.slow
def test_a_folder_for_each_rank_of_a_job_is_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in (0, 1):
        rank_folder(tmp_path, str(rank), rank, "77")
    assert open_run([tmp_path]).ranks == [0, 1]
    assert main(["stats", str(tmp_path), "-q"]) == 0
    assert "2 ranks, 3 steps" in capsys.readouterr().out


@pytest.mark.parametrize("second", [("b", 1, "78"), ("b", 0, "77")])
def test_a_folder_of_several_runs_lists_them(
    second: tuple[str, int, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two jobs, or twice the same rank."""
    rank_folder(tmp_path, "a", 0, "77")
    name, rank, job = second
    rank_folder(tmp_path, name, rank, job)
    assert main(["stats", str(tmp_path), "-q"]) == 1
    said = capsys.readouterr().err
    assert f"rankscope: {tmp_path} has 2 runs below it, and no trace of its own" in said
    assert f"{tmp_path}/a: job 77, rank 0\n    {tmp_path}/b: job {job}, rank {rank}\n" in said
    assert f"Open one: rankscope stats {tmp_path}/a" in said


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"rank": 1, "at": NOON + 39 * DAY}, "recorded 39 days apart"),
        ({"rank": 1, "at": NOON + 2 * HOUR}, "recorded 2 hours apart"),
        ({"rank": 0, "at": NOON + 3 * DAY}, "recorded 3 days apart"),
        ({"rank": 1, "info": {"world_size": 4}}, "world sizes 2 and 4"),
        ({"rank": 1, "rankscope": {"job": "B"}}, "different jobs"),
        ({"rank": 0, "at": NOON + 5 * MINUTE, "host_name": "node-b"}, "rank 0 on two hosts"),
        ({"rank": 0, "at": NOON + 5 * MINUTE, "deviceProperties": [{"id": 0, "name": "V100"}]},
         "rank 0 on two kinds of GPU"),
    ],
)  # fmt: skip
def test_files_of_two_runs_are_refused(second: dict[str, Any], why: str, tmp_path: Path) -> None:
    first: dict[str, Any] = {"rankscope": {"job": "A"}} if "rankscope" in second else {}
    properties = [{"id": 0, "name": "H100"}]
    trace(tmp_path, 0, info={"world_size": 2}, host_name="node-a", deviceProperties=properties, **first)
    trace(tmp_path, **{"name": "b", "info": {"world_size": 2}, **second})
    with pytest.raises(MixedRunsError, match="2 different runs") as caught:
        open_run([tmp_path])
    assert f"They differ: {why}." in caught.value.why
    assert "a-rank0-0.json" in caught.value.hint and "--mix" in caught.value.hint
    with pytest.raises(MixedRunsError):  # also when nothing has to be read
        open_run([tmp_path])
    assert len(open_run([tmp_path], mix=True).runs) == 2


def test_the_groups_are_named(tmp_path: Path) -> None:
    for rank in range(6):
        trace(tmp_path, rank, info={"world_size": 8})
    stranger = trace(tmp_path, 0, NOON + 39 * DAY, name="b", info={"world_size": 8})
    run = open_run([tmp_path])
    assert run.ranks == [*range(6)] and [str(problem) for problem in run.problems] == [
        f"{stranger} is not used\n  It is of another run than the other files: recorded 39 days apart.\n"
        f"  Open it alone: rankscope stats {stranger}"
    ]
    trace(tmp_path, 1, NOON + 39 * DAY, name="b", info={"world_size": 8})
    with pytest.raises(MixedRunsError) as caught:
        open_run([tmp_path])
    assert caught.value.why.splitlines()[1:] == [
        "    ranks 0-5 of 8, 2025-10-09 08:53 UTC: a-rank0-0.json, a-rank1-0.json, a-rank2-0.json, a-rank3-0.json "
        "and 2 more",
        "    ranks 0-1 of 8, 2025-11-17 08:53 UTC: b-rank0-0.json, b-rank1-0.json",
    ]


@pytest.mark.parametrize(("reader", "rank"), [("nsys", 0), ("flight", 3), ("memory", 0)])
def test_files_of_other_tools_do_not_count(reader: str, rank: int, tmp_path: Path) -> None:
    """A report of nsys that is set aside may be of an earlier run, a dump may have been written days later."""
    run = open_run([trace(tmp_path, 0)])
    traced = run.segments[0]
    manifest = {**traced.manifest, "reader": reader, "clock_base_ns": NOON + 9 * DAY}
    both = Index([traced, SegmentEntry(rank, 1, "", manifest, traced.build)])
    assert len(Run(Ingested(run.store, both, (), ())).runs) == 1


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed")
    trace(folder, 0)
    trace(folder, 1)
    trace(folder, 1, NOON + 39 * DAY, name="b")
    trace(folder, 2, NOON + 39 * DAY, name="b")
    return folder


def test_mixed_runs_follow_each_other(mixed: Path) -> None:
    run = open_run([mixed], mix=True)
    assert run.rows("SELECT rank, segment, shift_ns FROM segments ORDER BY ALL") == [
        (0, 0, 0), (1, 0, 0), (1, 1, 3_000_000), (2, 0, 3_000_000),
    ]  # fmt: skip
    assert run.rows("SELECT max(end_ns) FROM steps") == [(6_000_000,)]


@pytest.mark.slow
def test_no_report_covers_the_time_between_mixed_runs(mixed: Path) -> None:
    """39 days are 3,369,600 s: no figure, cost or text may contain anything of that size."""
    run = open_run([mixed], mix=True)
    for report in REPORTS.values():
        result = report.analyse(run, Scope(), None)
        times = [column.name for column in result.columns if column.unit == "ns"]
        assert all(row[name] is None or abs(row[name]) <= 12_000_000 for row in result.rows for name in times)
        assert all((finding.cost_ns or 0) <= 1_000_000 for finding in result.findings)
        assert "3,36" not in f"{result.title}{result.findings}{result.notes}"


def test_ranks_of_one_job_recorded_hours_apart_have_no_path_between(tmp_path: Path) -> None:
    trace(tmp_path, 0, rankscope={"job": "7"})
    trace(tmp_path, 1, NOON + 30 * HOUR, rankscope={"job": "7"})
    result = REPORTS["critical"].analyse(open_run([tmp_path]), Scope(), None)
    assert sum(row["ns"] for row in result.rows if row["class"] != "unrecorded") <= 6_000_000
    assert all("s of 108,000 s" not in finding.evidence for finding in result.findings)


def test_the_command_line(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(mixed), "-q"]) == 1
    said = capsys.readouterr().err
    assert "rankscope: the files are of 2 different runs" in said and "--mix" in said
    assert main(["ingest", str(mixed), "-q"]) == 1
    capsys.readouterr()
    assert main(["stats", str(mixed), "-q", "--mix"]) == 0
    assert capsys.readouterr().out.startswith("In doubt: files of 2 runs")


def test_public_traces_of_different_runs(shared: Path, tmp_path: Path) -> None:
    files = [shared / "public/hta" / name for name in ("sampled_rank-0.json.gz", "nccl_data.json.gz")]
    with pytest.raises(MixedRunsError, match="2 different runs") as caught:
        open_run(files, cache=tmp_path)
    assert "world sizes 2 and 128" in caught.value.why


@pytest.mark.slow
def test_a_snapshot_of_another_clock_does_not_stretch_the_run(tmp_path: Path) -> None:
    """Its times count from the boot of the machine, those of the trace from 1970: half a century would lie between."""
    entry = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 10, "frames": []}
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry]]}))
    trace(tmp_path, 0)
    run = open_run([tmp_path])
    assert [run.shift_ns(entry) for entry in run.segments] == [0, 0]
    assert [(found.begin_ns, found.has_wall_clock) for found in run.runs] == [(NOON, True)]
