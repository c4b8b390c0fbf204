"""Iterations of jobs without steps, inferred from what the busiest stream repeats."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conftest import examples, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.samples import Measure, Samples, for_equal_work
from rankscope.analysis.diff.two_runs import diff
from rankscope.analysis.findings import collect
from rankscope.analysis.summary import subject
from rankscope.timeline.iterations import find_repeats
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


def by_brute_force(names: list[int], weights: list[int]) -> tuple[int, set[tuple[int, int]]] | None:
    """The shortest period, and the begins and ends of the runs that have it."""
    for period in range(2, len(names) // 3 + 1):
        runs = set()
        for begin in range(len(names)):
            end = begin + period
            while end < len(names) and names[end] == names[end - period]:
                end += 1
            is_longest = begin == 0 or names[begin - 1] != names[min(begin - 1 + period, len(names) - 1)]
            is_long = end - begin >= 3 * period and len(set(names[begin : begin + period])) > 1
            if is_long and is_longest and sum(weights[begin:end]) * 10 >= 6 * sum(weights):
                runs.add((begin, end))
        if runs:
            return period, runs
    return None


@st.composite
def sequences(draw: st.DrawFn) -> list[int]:
    """Repeats of a sequence, perhaps of sequences of sequences, in the middle of something else."""
    names = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    for _ in range(draw(st.integers(0, 2))):
        names = names * draw(st.integers(1, 5)) + draw(st.lists(st.integers(0, 4), max_size=3))
    around = st.lists(st.integers(0, 4), max_size=6)
    return (draw(around) + names + draw(around))[:70]


@settings(max_examples=examples(2000))
@given(names=sequences(), weight=st.lists(st.integers(0, 9), min_size=70, max_size=70))
@example(names=[0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1, 0], weight=[0, 0, 0, 0, 0, 0, 0, 0, 0, 6, 0, 4])
def test_the_repeats_are_those_of_brute_force(names: list[int], weight: list[int]) -> None:
    weights = weight[: len(names)]
    time = list(range(0, 10 * len(names), 10))
    expected = by_brute_force(names, weights) if sum(weights) else None
    got = find_repeats(*(np.array(column, dtype=np.int64) for column in (names, weights, time)))
    if expected is None:
        assert got is None
    else:
        assert got is not None
        begin, period, end = got
        assert period == expected[0]
        assert (begin, end) in expected[1]


def repeats(names: str, time: list[int] | None = None) -> tuple[int, int, int] | None:
    codes = np.array([ord(name) - ord("a") for name in names], dtype=np.int64)
    times = np.arange(len(names)) * 10 if time is None else np.array(time, dtype=np.int64)
    return find_repeats(codes, np.ones(len(names), dtype=np.int64), times)


def test_the_layers_of_an_iteration_are_no_iterations() -> None:
    """xyxyxy is in each of four iterations, but no row of them has 60 % of the time."""
    assert repeats("exyxyxyxyh" * 4) == (0, 10, 40)


def test_layers_in_one_graph_are_no_iterations() -> None:
    """All kernels of a CUDA graph have one launch."""
    assert repeats("xyxyxyxy", [0] * 8) is None
    assert repeats("xyxyxyxy" * 4, [at // 8 for at in range(32)]) == (0, 8, 32)


@pytest.mark.parametrize("names", ["aaaaaaaaaaaa", "abcdefgh", "ababcdcdefef", ""])
def test_what_is_no_iteration(names: str) -> None:
    """One kernel again and again, nothing twice, and three things twice."""
    assert repeats(names) is None


def test_an_iteration_begins_at_the_pause() -> None:
    """The recording starts in the middle of one: c is the last of it, and the host waits after it."""
    time = [at * 10 + 500 * ((at + 2) // 3) for at in range(13)]
    assert repeats("cabcabcabcabc", time) == (1, 3, 13)


def serving(count: int, *, period_us: float = 1000.0, first: int = 0) -> list[dict[str, Any]]:
    """Decode iterations of an engine without steps: two kernels and a copy back."""
    events: list[dict[str, Any]] = []
    for i in range(count):
        at = period_us * i
        for number, (name, dur) in enumerate((("attention", 300.0), ("gemm", 400.0), ("sample", 100.0))):
            launch = {"correlation": 10 * i + number + 1}
            events.append(
                slice_event("cudaLaunchKernel", at + 20 * number, 5.0, cat="cuda_runtime", args=launch)
            )
            events.append(
                kernel_event(name, at + 100 + 300 * number, dur / 2, correlation=10 * i + number + 1)
            )
    return events


def test_a_trace_without_steps_has_iterations(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "trace.json", serving(12)))
    assert run.rows("SELECT count(*), any_value(source), min(time_ns), max(time_ns) FROM steps")[0][:2] == (
        12, "iterations",
    )  # fmt: skip
    assert {time for (time,) in run.rows("SELECT time_ns FROM steps WHERE step BETWEEN 1 AND 10")} == {
        1_000_000
    }
    assert run.rows("SELECT step, count(*) FROM gpu GROUP BY 1 ORDER BY 1") == [
        (step, 3) for step in range(12)
    ]


def answer(run: Run, report: str, scope: Scope | None = None) -> Result:
    return REPORTS[report].analyse(run, (scope or Scope()).in_run(run), None)


def test_the_summary_says_that_iterations_are_inferred(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "trace.json", serving(12)))
    result = answer(run, "summary")
    assert result.title.startswith("An inferred iteration takes 1.0 ms: 40 % compute")
    assert subject(run, Scope().in_run(run), result) == "1 rank, 12 inferred iterations"
    assert any(
        "inferred iterations" in note for note in answer(run, "breakdown").notes + answer(run, "faults").notes
    )
    whole = answer(run, "summary", Scope(whole_file=True))
    assert whole.title.startswith("11.7 ms were recorded, without steps")
    assert not any("iterations" in note for note in whole.notes)


def write_job(folder: Path, numbers: bool, first_of_rank_1: int) -> Run:
    """Rank 2 of four computes 300 µs longer in each of 12 iterations; the others wait in NCCL. The host runs ahead."""
    for rank in range(4):
        events: list[dict[str, Any]] = []
        for i in range(first_of_rank_1 if rank == 1 else 0, 12):
            at, own = 500 + 940.0 * i, 700.0 if rank == 2 else 400.0
            metadata: dict[str, Any] = {
                "Collective name": "allreduce", "In msg nelems": 1024 + i, "Out msg nelems": 1024 + i, "dtype": "Float",
                "Group size": 4, "Process Group Name": "0", "Process Group Ranks": "[0, 1, 2, 3]",
            }  # fmt: skip
            metadata |= {"Seq": i} if numbers else {}
            kernels: list[tuple[str, float, float, dict[str, Any]]] = [
                ("gemm", at + 20, own, {}),
                ("norm", at + 20 + own, 50.0, {}),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 70 + own, 850 - own, metadata),
            ]
            for number, (name, start, dur, args) in enumerate(kernels):
                call = 10 * i + number + 1
                launch = {"correlation": call}
                events.append(
                    slice_event("cudaLaunchKernel", 30.0 * i + 5 * number, 4, cat="cuda_runtime", args=launch)
                )
                events.append(kernel_event(name, start, dur, correlation=call, **args))
        info = {"backend": "nccl", "rank": rank, "world_size": 4}
        write_kineto(folder / f"rank-{rank}.json", events, distributedInfo=info, baseTimeNanoseconds=10**18)
    return Run(ingest([folder]))


def test_the_late_rank_is_found_without_steps(tmp_path: Path) -> None:
    run = write_job(tmp_path, True, 0)
    faults = [finding for finding in collect(run, Scope().in_run(run)) if finding.accuses]
    assert [finding.ranks for finding in faults] == [(2,)]
    assert faults[0].cost_ns == pytest.approx(300_000, rel=0.1)


def test_collectives_without_numbers_are_not_matched_by_inferred_iterations(tmp_path: Path) -> None:
    """Rank 1 began to record two iterations later: its first one is the third of the others."""
    run = write_job(tmp_path, False, 2)
    rows = run.collectives
    ends = {
        (match, round(end / 10_000))
        for match, end in zip(rows.match.tolist(), rows.end.tolist(), strict=True)
    }
    assert len(ends) == 12 and len(rows.match) == 46


def test_iterations_count_only_where_all_ranks_have_them(tmp_path: Path) -> None:
    """Else the figures would be of some ranks; and no result that was kept before the other rank came is used."""
    write_kineto(tmp_path / "rank-0.json", serving(12), distributedInfo={"rank": 0, "world_size": 2})
    alone = Run(ingest([tmp_path]))
    assert answer(alone, "summary").title.startswith("An inferred iteration")
    other = [kernel_event(f"k{i}", 100.0 * i, 50.0) for i in range(20)]
    write_kineto(tmp_path / "rank-1.json", other, distributedInfo={"rank": 1, "world_size": 2})
    run = Run(ingest([tmp_path]))
    assert run.rows("SELECT count(*) FROM steps") == [(0,)]
    rows = answer(run, "breakdown").rows
    assert [row["step"] for row in rows] == [None, None]
    assert rows[0]["span_ns"] == answer(alone, "breakdown", Scope(whole_file=True)).rows[0]["span_ns"]


def mixed(path: Path, calls: int, window_us: float) -> Run:
    """Requests in no order: each of three kernels is called so often in this time."""
    kernels = [("attention", 150.0), ("gemm", 200.0), ("sample", 50.0)] * calls
    random.Random(3).shuffle(kernels)
    step = (window_us - kernels[-1][1]) / (len(kernels) - 1)
    return open_trace(
        write_kineto(path, [kernel_event(name, step * i, dur) for i, (name, dur) in enumerate(kernels)])
    )


@pytest.mark.parametrize("regular", [True, False])
def test_less_work_in_equal_time(tmp_path: Path, regular: bool) -> None:
    """Two windows of equal length, in which the kernels are called 68 and 60 times and take as long each."""
    if regular:
        traces = [(serving(68), "a"), (serving(60, period_us=1000 * 68 / 60), "b")]
        runs = [open_trace(write_kineto(tmp_path / f"{name}.json", events)) for events, name in traces]
    else:
        runs = [mixed(tmp_path / f"{calls}.json", calls, 68_000.0) for calls in (68, 60)]
        assert not any(run.rows("SELECT 1 FROM steps") for run in runs)
    base, new = runs
    result = diff(base, new, Scope())
    what = "an inferred iteration takes 133 µs longer" if regular else "equal work takes 9.07 ms longer"
    assert result.findings[0].title.startswith(f"12 % less work per second: {what} (+13.3 %)")
    kernels = {
        row["key"]: (row["change_pct"], row["verdict"]) for row in result.rows if row["report"] == "kernels"
    }
    assert kernels == dict.fromkeys(("attention", "gemm", "sample"), (pytest.approx(0, abs=1e-6), "same"))
    back = diff(new, base, Scope())
    assert back.findings[0].title.startswith("13 % more work per second")


def test_equal_work_is_that_of_a_rank() -> None:
    """Twice as many ranks call each kernel twice as often."""
    span = Measure("breakdown", "span")
    base = Samples([-1], 2, {span: [100.0]}, calls={"a": (10, 50.0), "b": (10, 20.0), "gone": (5, 5.0)})
    new = Samples([-1], 4, {span: [100.0]}, calls={"a": (10, 50.0), "b": (10, 20.0), "new": (9, 9.0)})
    assert for_equal_work(base, new).values == {span: [pytest.approx(200.0)]}
    assert for_equal_work(base, Samples([-1], 4, {span: [100.0]})).values == {span: [100.0]}


def test_runs_whose_iterations_differ_are_compared_by_work(tmp_path: Path) -> None:
    """Two kernels more in each iteration of the second: its iterations are no measure of equal work."""
    base = open_trace(write_kineto(tmp_path / "a.json", serving(20)))
    longer = [
        *serving(20),
        *(kernel_event("verify", 1000.0 * i + 90 + k, 5.0) for i in range(20) for k in range(2)),
    ]
    new = open_trace(write_kineto(tmp_path / "b.json", longer))
    result = diff(base, new, Scope())
    assert result.window == "whole file, for equal work"
    assert any(row["key"] == "verify" and row["verdict"] == "new" for row in result.rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gpt-graph-h200", "gpt-h200-stack", "graph-captured-h200", "hf-trainer-h200"]
)
def test_recorded_jobs_whose_steps_are_taken_away(
    name: str, dataset: Callable[[str], Path], tmp_path: Path
) -> None:
    """The median of the inferred iterations is that of the steps."""
    (source,) = (
        path
        for path in dataset(name).iterdir()
        if ".pt.trace.json" in path.name or path.name.endswith("json.gz")
    )
    data = source.read_bytes()
    trace = json.loads(gzip.decompress(data) if source.suffix == ".gz" else data, strict=False)
    medians = []
    for without in ((), ("ProfilerStep#", "Optimizer.step#")):
        events = [
            event for event in trace["traceEvents"] if not str(event.get("name")).startswith(without or "\0")
        ]
        path = tmp_path / f"{len(without)}.json"
        path.write_text(json.dumps(trace | {"traceEvents": events}))
        rows = open_trace(path).rows("SELECT median(time_ns), any_value(source) FROM steps")
        medians.append(rows[0])
    assert [source for _, source in medians] == ["profiler", "iterations"]
    assert medians[1][0] == pytest.approx(medians[0][0], rel=0.03)
