"""Planted clocks come back through files, store and report; what is not aligned is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.store.derived import CLOCKS, path_of
from rankscope.timeline import clock_fit
from rankscope.timeline.clock_fit import fit_many
from rankscope.timeline.clocks import RankClock, _at_start
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, write
from rankscope_bench.synthetic.cluster import Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

_UNIX_START_NS = 1_794_701_458_600_000_000  # of synthetic traces: when true time is 0


def ask(run: Run) -> Any:
    """The report, with its rows by rank."""
    result = REPORTS["clocks"].analyse(run, Scope(), None)
    return replace(result, rows=sorted(result.rows, key=lambda row: row["rank"]))


def true_offsets(run: Run, truth: Any) -> dict[int, float]:
    """By how much each clock is ahead at the run's start, which is not quite true time 0."""
    reference = next(entry for entry in run.timelines if entry.rank == 0)
    start = reference.unix_origin_ns - run.shift_ns(reference) - _UNIX_START_NS
    return {c["rank"]: c["offset_ns"] + c["drift_ppb"] * 1e-9 * start for c in truth["clocks"]}


@pytest.mark.slow
@pytest.mark.parametrize("tensor_parallel", [None, 2])
def test_planted_clocks_come_back(tensor_parallel: int | None, tmp_path: Path) -> None:
    plan = Plan(
        ranks=4,
        events_per_rank=5_000,
        max_offset_ns=5_000_000,
        max_drift_ppm=50.0,
        tensor_parallel=tensor_parallel,
    )
    truth = write(plan, tmp_path / "run")
    run = Run(ingest([tmp_path / "run"]))
    rows = {row["rank"]: row for row in ask(run).rows}
    expected = true_offsets(run, truth)
    for clock in truth["clocks"]:
        row = rows[clock["rank"]]
        assert abs(row["offset_ns"] - expected[clock["rank"]]) < 1_000  # and in fact:
        assert abs(row["offset_ns"] - expected[clock["rank"]]) <= (row["error_ns"] or 0)
        assert row["drift_ppm"] == pytest.approx(clock["drift_ppb"] / 1000, abs=0.1)
    assert max(row["residual_p95_ns"] for row in rows.values()) <= 2


@pytest.mark.slow
def test_the_views_are_on_one_axis(tmp_path: Path) -> None:
    """Ends of the same collective, 5 ms apart by wall clock, are within what drift leaves inside a file."""
    plan = Plan(ranks=4, events_per_rank=5_000, max_offset_ns=5_000_000, max_drift_ppm=50.0)
    write(plan, tmp_path / "run")
    ingested = ingest([tmp_path / "run"])
    ends = "max(start_ns + dur_ns) - min(start_ns + dur_ns)"
    spread = f"SELECT max(s) FROM (SELECT {ends} AS s FROM collectives GROUP BY seq)"
    assert Run(ingested, clocks="raw").rows(spread)[0][0] > 5_000_000
    run = Run(ingested)
    assert run.rows(spread)[0][0] < 5_000
    assert run.rows("SELECT min(start_ns) >= 0 FROM slices") == [(True,)]
    assert run.rows("SELECT count(*) FROM segments WHERE abs(ahead_ns) > 1000") == [(3,)]
    # durations and all that follows from them are as recorded
    total = "SELECT rank, sum(dur_ns), max(start_ns) - min(start_ns) FROM slices GROUP BY rank ORDER BY rank"
    assert run.rows(total) == Run(ingested, clocks="raw").rows(total)


@pytest.mark.slow
def test_with_noise_the_truth_lies_within_the_stated_error(tmp_path: Path) -> None:
    plan = Plan(
        ranks=4, events_per_rank=5_000, max_offset_ns=5_000_000, max_drift_ppm=50.0, leave_noise_ns=20_000
    )
    truth = write(plan, tmp_path / "run")
    run = Run(ingest([tmp_path / "run"]))
    expected = true_offsets(run, truth)
    for row in ask(run).rows[1:]:
        assert 1_000 < row["error_ns"] < 40_000
        assert abs(row["offset_ns"] - expected[row["rank"]]) <= row["error_ns"] + 50e-6 * 60e6
        assert 1_000 < row["residual_p50_ns"] < 20_000


def few_collectives(folder: Path, count: int, ahead_us: float, ranks: int = 2) -> Run:
    """NCCL all_reduces whose ends differ by the clock of the last rank."""
    for rank in range(ranks):
        events = []
        for i in range(count):
            late = ahead_us * (rank == ranks - 1)
            kernel = kernel_event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1000 * i + late, 50)
            kernel["args"] |= {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Process Group Ranks": str(list(range(ranks))),
                "Group size": ranks,
                "Seq": i,
                "dtype": "Float",
                "In msg nelems": 1000,
                "Out msg nelems": 1000,
            }
            events.append(kernel)
        write_kineto(
            folder / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": ranks}
        )
    return Run(ingest([folder]))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_collectives_are_no_evidence_of_an_error(count: int, ranks: int, tmp_path: Path) -> None:
    """They fit exactly: a residual of 0 is not an error of 3 ns."""
    result = ask(few_collectives(tmp_path, count, 2_000, ranks))
    row = result.rows[-1]
    assert row["offset_ns"] == pytest.approx(2_000_000, abs=10)
    assert [row[name] for name in ("error_ns", "residual_p50_ns", "residual_p95_ns", "drift_ppm")] == [
        None
    ] * 4
    assert (row["collectives"], row["method"]) == (count, "collectives, error unknown")
    assert any(f"({count} per rank) fit exactly" in note for note in result.notes)


def test_an_offset_within_the_usual_spread_is_not_applied_without_evidence(tmp_path: Path) -> None:
    run = few_collectives(tmp_path, 1, 20)
    assert ask(run).rows[1]["method"] == "wall clock, too few collectives"
    assert [run.shift_ns(entry) for entry in run.timelines] == [0, 20_000]  # as recorded


def test_four_collectives_have_an_error(tmp_path: Path) -> None:
    row = ask(few_collectives(tmp_path, 4, 2_000)).rows[1]
    assert row["error_ns"] is not None and row["residual_p50_ns"] <= 1 and row["method"] == "collectives"


@pytest.mark.slow
def test_the_fit_is_kept_and_may_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Plan(ranks=2, events_per_rank=3_000, steps=3, max_offset_ns=1_000_000), tmp_path / "run")
    ingested = ingest([tmp_path / "run"])
    first = Run(ingested).clocks
    kept = path_of(ingested.store, CLOCKS)
    assert kept.is_file()
    with monkeypatch.context() as patch:
        patch.setattr("rankscope.timeline.clocks.measure", lambda *_: pytest.fail("measured again"))
        assert Run(ingested).clocks == first
    kept.write_text("{ not json")
    assert Run(ingested).clocks == first
    kept.unlink()
    assert Run(ingested).clocks == first


@pytest.mark.slow
def test_ranks_that_share_no_collective_are_named(tmp_path: Path) -> None:
    write(Plan(ranks=4, events_per_rank=5_000, tensor_parallel=2, missing=(1, 2)), tmp_path / "apart")
    result = ask(Run(ingest([tmp_path / "apart"])))  # 0 and 3 are in no group together
    assert [row["method"] for row in result.rows] == ["reference", "wall clock"]
    assert result.rows[1]["offset_ns"] is None
    assert any("not aligned: rank 3" in note for note in result.notes)


def test_gloo_tells_less_than_the_wall_clock_of_one_machine(open_real: Callable[[Path], Run]) -> None:
    result = ask(open_real(DATA / "seqpar-gloo4-slow2"))
    for row in result.rows[1:]:
        assert row["method"] == "wall clock, confirmed"
        assert 30_000 < row["error_ns"] < 1_000_000 and abs(row["offset_ns"]) < row["error_ns"]
    assert any("not applied" in note for note in result.notes)


def test_one_rank_has_no_clock_to_compare_with(open_real: Callable[[Path], Run]) -> None:
    result = ask(open_real(DATA / "seqpar-gloo4-slow2" / "rank-0-of-4.json.gz"))
    assert result.rows == () and any("one rank" in note for note in result.notes)


def test_nsys_reports_stand_on_one_axis_by_their_wall_clocks(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run]
) -> None:
    """No collective is in them (gloo, no NVTX): utcEpochNs alone, and it is said."""
    run = open_real(dataset("nsys/seqpar-gloo2"))
    starts: dict[int, list[int]] = {}
    for step, start in run.rows("SELECT step, start_ns FROM steps WHERE step > 0"):
        starts.setdefault(step, []).append(start)
    assert sorted(starts) == [1, 2, 3]
    assert all(abs(a - b) < 200_000 for a, b in starts.values())  # each step begins with an all_gather's end
    result = ask(run)
    assert [row["method"] for row in result.rows] == ["reference", "wall clock"]
    assert any("not aligned: rank 1" in note for note in result.notes)
    waits = REPORTS["stragglers"].analyse(run, Scope(), None)
    assert any("--tool torch" in note for note in waits.notes)


def test_a_drift_that_is_not_applied_adds_to_the_error() -> None:
    """The offset is that at the run's start, 0.4 s before the middle of the collectives."""
    clock = RankClock(
        1, "collectives", 0, drift_ppm=2.0, drift_error_ppm=3.0, error_ns=900, aligned=True,
        center_ns=400_000_000, center_offset_ns=5_000.0,
    )  # fmt: skip
    assert _at_start(clock, 0).offset_ns == 5_000
    assert _at_start(clock, 0).error_ns == 900 + 2_000
    applied = replace(clock, applied_drift_ppm=2.0)
    assert _at_start(applied, 0).offset_ns == 5_000 - 800
    assert _at_start(applied, 0).error_ns == 900 + 1_200
    assert _at_start(replace(clock, error_ns=None), 0).error_ns is None


@pytest.mark.slow
def test_planted_offsets_of_a_cluster_lie_within_their_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(data=4, tensor=2, steps=2, layers=2, offset_ns=3_000_000, drift_ppb=20_000, seed=4)
    write_traces(job, simulate(job), tmp_path)
    clock_fits = partial(fit_many, at_once=3)
    monkeypatch.setattr(clock_fit, "fit_many", clock_fits)
    monkeypatch.setattr(clock_fit, "_MOST_IN_CLUSTER", 2)
    run = Run(ingest([tmp_path]))
    for row in ask(run).rows[1:]:
        assert abs(row["offset_ns"] - job.clocks[row["rank"]].offset_ns) <= row["error_ns"]
