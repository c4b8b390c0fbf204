"""Tables drawn as cells: they agree with the reports beside them, and with counting by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA
from pipeline_traces import PipelinePlan, write_pipeline
from rankscope.analysis.across_ranks.time_split import own_times
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults import rank_matrices
from rankscope.analysis.faults.rank_matrices import arrival_skew, lateness_by_step, traffic, who_waited
from rankscope.analysis.faults.stragglers import stragglers
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE
from rankscope.timeline.run import Run, open_run

SLOW = DATA / "seqpar-gloo4-slow2"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("pipeline")
    write_pipeline(PipelinePlan(stages=2, data=2, tensor=2, micro_batches=2), folder / "run")
    return open_run([folder / "run"], cache=folder / "cache")


@pytest.mark.parametrize("steps", [None, (3, 5)])
def test_a_column_of_waits_is_the_wait_that_a_rank_caused(
    open_real: Callable[[Path], Run], steps: tuple[int, int] | None
) -> None:
    run = open_real(SLOW)
    scope = Scope(steps=steps).in_run(run)
    by_cause: Counter[str] = Counter()
    for row in who_waited(run, scope).rows:
        by_cause[row["waited_for"]] += row["wait_ns"]
        assert row["rank"] != row["waited_for"]
    caused = {str(row["rank"]): row["caused_wait_ns"] for row in stragglers(run, scope).rows}
    assert {rank: ns for rank, ns in caused.items() if ns} == dict(by_cause)
    assert by_cause.most_common(1)[0][0] == "2"


def test_lateness_is_the_excess_of_each_rank_and_step(open_real: Callable[[Path], Run]) -> None:
    run = open_real(SLOW)
    scope = Scope().in_run(run)
    result, own = lateness_by_step(run, scope), own_times(run, scope)
    assert result.facts["late"] == ["2"]
    assert [row["excess_ns"] for row in result.rows] == [
        round(excess) for of_rank in own.excess.tolist() for excess in of_rank
    ]
    worst = {
        step: max(result.rows, key=lambda row: (row["step"] == step, row["excess_ns"])) for step in own.steps
    }
    assert {row["rank"] for row in worst.values()} == {"2"}
    some = lateness_by_step(run, Scope(ranks=frozenset({1, 2}), steps=(3, 4)))
    assert {(row["rank"], row["step"]) for row in some.rows} == {("1", 3), ("1", 4), ("2", 3), ("2", 4)}


def test_many_ranks_share_rows(open_real: Callable[[Path], Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = open_real(SLOW)
    scope = Scope().in_run(run)
    each = lateness_by_step(run, scope).rows
    total = sum(row["wait_ns"] for row in who_waited(run, scope).rows)
    monkeypatch.setattr(rank_matrices, "MOST_ROWS", 2)
    shared = lateness_by_step(run, scope)
    assert list(dict.fromkeys(row["rank"] for row in shared.rows)) == ["0-1", "2-3"]
    for row in shared.rows:
        members = row["rank"].split("-")
        assert row["excess_ns"] == max(
            other["excess_ns"] for other in each if other["rank"] in members and other["step"] == row["step"]
        )
    assert sum(row["wait_ns"] for row in who_waited(run, scope).rows) == total
    assert shared.facts["late"] == ["2-3"]


def counted_bytes(run: Run) -> dict[tuple[int, int], float]:
    """Entry by entry, with the factors of nccl-tests written out."""
    entries = run.collectives
    total: dict[tuple[int, int], float] = {}
    for send, recv in entries.pairs.T.tolist():
        pair = int(entries.rank[send]), int(entries.rank[recv])
        total[pair] = total.get(pair, 0) + int(entries.bytes[send])
    for at in range(len(entries.rank)):
        members = entries.groups[entries.group[at]].ranks or ()
        times = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(KINDS[entries.kind[at]], 0)
        for peer in members:
            if peer != entries.rank[at] and times:
                pair = int(entries.rank[at]), peer
                total[pair] = total.get(pair, 0) + times * int(entries.bytes[at]) / len(members)
    return total


@pytest.mark.slow
def test_bytes_against_counting(open_real: Callable[[Path], Run], pipeline: Run) -> None:
    for run in (open_real(SLOW), pipeline):
        rows = traffic(run, Scope()).rows
        expected = counted_bytes(run)
        assert {(int(row["sender"]), int(row["receiver"])) for row in rows} == set(expected)
        for row in rows:
            assert row["bytes"] == pytest.approx(expected[int(row["sender"]), int(row["receiver"])], abs=1)
    assert len(pipeline.collectives.sends), "messages were counted"
    few = traffic(pipeline, Scope(ranks=frozenset({0, 1})))
    assert {row["sender"] for row in few.rows} <= {"0", "1"} >= {row["receiver"] for row in few.rows}


def test_skew_against_counting(open_real: Callable[[Path], Run], pipeline: Run) -> None:
    for run in (open_real(SLOW), pipeline):
        all_waits = waits(run)
        longest: dict[int, int] = {}
        for match, wait in zip(all_waits.rows.match.tolist(), all_waits.wait.tolist(), strict=True):
            if NONE not in (match, wait):
                longest[match] = max(longest.get(match, 0), wait)
        result = arrival_skew(run, Scope())
        assert sum(row["count"] for row in result.rows) == len(longest)
        assert sum(row["skew_ns"] for row in result.rows) == sum(longest.values())
        for low, high in {(row["low_ns"], row["high_ns"]) for row in result.rows}:
            inside = sum(low <= skew < high for skew in longest.values())
            assert inside == sum(row["count"] for row in result.rows if row["low_ns"] == low)
    slow = [row for row in arrival_skew(open_real(SLOW), Scope()).rows if row["low_ns"] >= 5_000_000]
    assert {row["last_rank"] for row in slow} == {2}


def test_one_rank_has_no_matrix(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "gpt-h200-stack")
    for table in (lateness_by_step, who_waited, traffic, arrival_skew):
        result = table(run, Scope())
        assert not result.rows and result.notes, result.name
