"""What keeps runs of many ranks quick gives the figures that the whole computation gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from rankscope.analysis.across_ranks import heatmap
from rankscope.analysis.across_ranks import time_split as time_splits
from rankscope.analysis.across_ranks.heatmap import rank_times, time_maps
from rankscope.analysis.across_ranks.time_split import TimeSplit, time_split
from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.grouping import middle_of_others
from rankscope.analysis.core.intervals import Intervals, Ints, length, share_of
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.stragglers import stragglers
from rankscope.analysis.questions import QUESTIONS
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.charts import heatmap as heatmap_chart
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

OpenAgain = Callable[[], Run]


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> OpenAgain:
    """Opens the same run, with nothing computed yet."""
    folder = tmp_path_factory.mktemp("large")
    job = Job(
        data=2, tensor=2, steps=3, layers=2, offset_ns=1_000_000, seed=3,
        faults=(Fault("compute", (2,), 2_000_000),),
    )  # fmt: skip
    write_traces(job, simulate(job), folder)
    ingested = ingest([folder])
    return lambda: Run(ingested)


@pytest.mark.slow
def test_lengths_between_collectives_are_enough(again: OpenAgain, monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(sets: Sequence[Intervals], bounds: Ints, inside: Intervals) -> Sequence[Intervals]:
        return sets

    reduced = again()
    found = time_split(reduced)
    monkeypatch.setattr(time_splits, "_reduced", whole)
    exact = again()
    exact.from_events = True
    assert _same(found, time_split(exact))
    kept, events = (time_splits.busy(run, Scope())[0] for run in (reduced, exact))
    assert 0 < len(kept.compute.start) < len(events.compute.start)
    assert found.of_periods.sum() == found.periods.span


def _same(a: TimeSplit, b: TimeSplit) -> bool:
    names = ("of_periods", "opened", "of_entries", "hidden")
    return (a.periods.start == b.periods.start).all() and all(
        (getattr(a, name) == getattr(b, name)).all() for name in names
    )


@pytest.mark.slow
def test_ranks_at_a_time_do_not_matter(again: OpenAgain, monkeypatch: pytest.MonkeyPatch) -> None:
    found = time_split(again())
    monkeypatch.setattr(time_splits, "_RANKS_AT_ONCE", 3)
    assert _same(found, time_split(again()))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_the_middle_of_the_others(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 6, (40, count)).astype(float)
    values[np.random.default_rng(1).random(values.shape) < 0.2] = np.nan
    low, high = middle_of_others(values)
    for row, one, two in zip(values, low, high, strict=True):
        for place in range(count):
            others = np.delete(row, place)
            others = np.sort(others[~np.isnan(others)])
            if np.isnan(row[place]) or not len(others):
                assert np.isnan(one[place])
            else:
                assert one[place] == others[(len(others) - 1) // 2]
                assert (one[place] + two[place]) / 2 == np.median(others)


@pytest.mark.slow
def test_a_part_of_a_run_is_on_the_time_axis_of_all(again: OpenAgain) -> None:
    run = again()
    part = run.only([1, 3], on_its_axis=True)
    times = "SELECT rank, id, start_ns FROM gpu WHERE rank IN (1, 3) ORDER BY ALL"
    assert part.ranks == [1, 3] and part.rows(times) == run.rows(times)
    assert set(part.collectives.rank.tolist()) == {1, 3}
    assert part.clocks is run.clocks, "a part neither measures clocks nor stores them"


@pytest.mark.slow
def test_many_ranks_share_rows_of_the_heat_map(again: OpenAgain, monkeypatch: pytest.MonkeyPatch) -> None:
    run, scope = again(), Scope(steps=(0, 2))
    (exact,) = rank_times(run, scope, [2])
    maps = time_maps(run, scope)
    low, high = (time + run.origin_ns(2) for time in (maps[2].low, maps[2].high))
    edges = np.linspace(low, high, 40).astype(np.int64)
    shares = maps[2].shares(edges - run.origin_ns(2))
    for row, name in zip(shares, CLASSES, strict=True):
        assert np.abs(row - share_of(getattr(exact, name), edges)).max() < 0.05, "within the resolution"
    busy = sum(length(getattr(exact, name)) for name in CLASSES)
    assert maps[2].idle_ns == high - low - busy
    monkeypatch.setattr(heatmap_chart, "_MOST_ROWS", 3)
    monkeypatch.setattr(heatmap_chart, "_MOST_LATE_ROWS", 1)
    chart = heatmap_chart.rank_heatmap(run, scope, [2])
    assert "4 ranks in 2 rows, the latest first; late ranks above" in chart.subtitle
    places = [chart.body.index(f">{label}<") for label in ("rank 2", "ranks 2-3", "ranks 0-1")]
    assert places == sorted(places), "by lateness"
    monkeypatch.setattr(heatmap_chart, "_MOST_ROWS", 4)
    assert "the latest ranks first" not in heatmap_chart.rank_heatmap(run, scope).subtitle
    monkeypatch.setattr(heatmap_chart, "_SORTED_FROM", 3)
    chart = heatmap_chart.rank_heatmap(run, scope)
    assert "the latest ranks first" in chart.subtitle
    assert chart.body.index(">rank 2<") == min(chart.body.index(f">rank {rank}<") for rank in range(4))


def test_ranks_of_a_node_share_a_row(again: OpenAgain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "hosts", {0: "a", 1: "b", 2: "a", 3: "b"})
    assert heatmap.buckets(again(), [0, 1, 2, 3], 2) == {"a": [0, 2], "b": [1, 3]}
    assert list(heatmap.buckets(again(), [0, 1, 2, 3], 1)) == ["ranks 0-3"], "too many nodes"


def by(run: Run, report: str, key: str) -> Result:
    return QUESTIONS[report].analyse(run, Scope(), key)


def test_a_row_for_each_node(again: OpenAgain, monkeypatch: pytest.MonkeyPatch) -> None:
    run = again()
    monkeypatch.setattr(Run, "hosts", {0: "a", 1: "a", 2: "b", 3: "b"})
    each = {
        row["rank"]: row
        for row in QUESTIONS["breakdown"].analyse(run, Scope(), None).rows
        if row["step"] is None
    }
    rows = by(run, "breakdown", "node").rows
    assert [(row["node"], row["ranks"]) for row in rows] == [("b", "2-3"), ("a", "0-1")], "most compute first"
    assert rows[0]["compute_ns"] == round((each[2]["compute_ns"] + each[3]["compute_ns"]) / 2)
    assert min(each[0]["overlap_pct"], each[1]["overlap_pct"]) <= rows[1]["overlap_pct"]
    late = by(run, "stragglers", "node")
    assert late.rows[0]["node"] == "b" and late.rows[0]["worst_rank"] == 2
    caused = [row["caused_wait_ns"] for row in stragglers(run, Scope(steps=(0, 2))).rows]
    assert sum(row["caused_wait_ns"] for row in late.rows) == sum(caused)
    monkeypatch.setattr(Run, "hosts", {})
    assert any(
        "hosts of the ranks are not recorded" in note for note in by(again(), "breakdown", "node").notes
    )


def test_a_row_for_each_group(again: OpenAgain) -> None:
    run = again()
    groups = {(row["axis"], row["ranks"]) for row in by(run, "stragglers", "group").rows}
    assert groups == {("dp", "0,2"), ("dp", "1,3"), ("tp", "0-1"), ("tp", "2-3")}
    rows = by(run, "collectives", "group").rows
    assert {(row["axis"], row["groups"]) for row in rows} >= {("tp", 2), ("dp", 2)}
    each = QUESTIONS["collectives"].analyse(run, Scope(), None).rows
    slowest = max(row["transfer_ns"] for row in each)
    assert max(row["slowest_transfer_ns"] for row in rows) == slowest


def test_pipeline_stages_are_groups(tmp_path: Path) -> None:
    job = Job(data=2, stages=2, steps=2, layers=1, micro_batches=2, seed=1)
    write_traces(job, simulate(job), tmp_path)
    rows = by(Run(ingest([tmp_path])), "breakdown", "group").rows
    assert {(row["axis"], row["group"], row["ranks"]) for row in rows} == {
        ("pp", "stage 0", "0-1"),
        ("pp", "stage 1", "2-3"),
        ("dp", "of rank 0", "0-1"),
        ("dp", "of rank 2", "2-3"),
    }
