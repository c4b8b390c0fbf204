"""Bandwidth, waits and sizes of collectives: planted ones come back; fits and baselines say what is slow."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DATA, kernel_event, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.collectives import SizeFit, fit_sizes, small_calls
from rankscope.analysis.core.machine import Machine, load_baseline
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import scenario_of
from rankscope.analysis.graph.graph import graph_of
from rankscope.analysis.questions import QUESTIONS
from rankscope.collective_kinds import bus_factor
from rankscope.errors import UsageError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write

NCCL_TESTS = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   4100 on   node01 device  0 [0x07] NVIDIA H200
#  Rank  1 Group  0 Pid   4101 on   node01 device  1 [0x0f] NVIDIA H200
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    20.00   52.43   52.43      0    19.80   52.96   52.96      0
     4194304       1048576     float     sum      -1    80.00   52.43   52.43      0    79.10   53.03   53.03      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 52.4288
"""


def ask(run: Run, scope: Scope | None = None) -> Result:
    return REPORTS["collectives"].analyse(run, scope or Scope(), None)


@pytest.mark.slow
def test_planted_collectives_come_back(tmp_path: Path) -> None:
    plan = Plan(
        ranks=4, events_per_rank=5_000, steps=3, tensor_parallel=2, straggler=Straggler(2, "host", 3_000_000)
    )
    truth = write(plan, tmp_path / "run")
    rows = ask(Run(ingest([tmp_path / "run"]))).rows
    planned: dict[tuple[str, str, int], list[Any]] = {}
    for entry in truth["collectives"]:
        planned.setdefault((entry["group"], entry["kind"], entry["bytes"]), []).append(entry)
    found = {(row["group"], row["kind"], row["bytes"]): row for row in rows}
    assert set(found) == set(planned)
    for key, entries in planned.items():
        row, transfers = found[key], [entry["transfer_ns"] for entry in entries]
        assert (row["count"], row["ranks"]) == (len(entries), 2)
        assert row["transfer_ns"] == round(np.mean(transfers))
        assert row["wait_ns"] == round(np.mean([entry["wait_ns"] for entry in entries]))
        assert row["algbw_gb_s"] == pytest.approx(key[2] / np.median(transfers))
        factor = bus_factor(key[1], 2)
        assert factor is not None and row["busbw_gb_s"] == pytest.approx(row["algbw_gb_s"] * factor)
        assert row["dtype"] == {"Float": "float32", "BFloat16": "bfloat16"}[entries[0]["dtype"]]


@pytest.mark.slow
def test_hidden_share_is_that_of_the_breakdown(tmp_path: Path) -> None:
    """One group, one stream: what is hidden of all collectives together is the breakdown's overlap."""
    truth = write(Plan(ranks=2, events_per_rank=5_000, steps=3), tmp_path / "run")
    rows = ask(Run(ingest([tmp_path / "run"])), Scope(ranks=frozenset({1}))).rows
    hidden = sum(row["hidden_pct"] / 100 * row["dur_ns"] * row["count"] for row in rows)
    whole = truth["ranks"][1]["breakdown"][0]
    assert hidden == pytest.approx(whole["overlap_ns"], rel=1e-5)


@pytest.mark.slow
def test_one_rank_gives_durations_and_says_what_is_missing(open_real: Callable[[Path], Run]) -> None:
    result = ask(open_real(DATA / "seqpar-gloo4-slow2" / "rank-0-of-4.json.gz"))
    assert [row["transfer_ns"] for row in result.rows] == [None, None]
    assert all(row["dur_ns"] > 0 and row["busbw_gb_s"] is None for row in result.rows)
    assert any("--ranks all" in note for note in result.notes)


def test_real_gloo(open_real: Callable[[Path], Run]) -> None:
    rows = {row["kind"]: row for row in ask(open_real(DATA / "seqpar-gloo4-slow2")).rows}
    scatter = rows["reduce_scatter"]
    assert (scatter["bytes"], scatter["ranks"], scatter["count"]) == (1 << 20, 4, 6)
    assert scatter["wait_ns"] == pytest.approx(202_685_856 / 24, abs=1)
    assert scatter["busbw_gb_s"] == pytest.approx(scatter["algbw_gb_s"] * 3 / 4)


def unbalanced_run(folder: Path) -> Run:
    """Two ranks, three all_to_allv each; rank 1 sends three times as much as rank 0."""
    for rank in range(2):
        events: list[Any] = []
        for i in range(3):
            elements = 1_000 * (1 + 2 * rank)
            meta = {
                "Collective name": "all_to_allv",
                "Process Group Name": "0",
                "Process Group Ranks": "[0, 1]",
                "Group size": 2,
                "Seq": i,
                "dtype": "Float",
                "In msg nelems": elements,
                "Out msg nelems": 4_000 - elements,
                "In split size": f"[{elements // 2}, {elements // 2}]",
            }
            kernel = kernel_event(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 100 * i, 50 - 10 * rank
            )
            kernel["args"].update(meta)
            events.append(kernel)
        write_kineto(folder / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    return Run(ingest([folder]))


def test_unbalanced_all_to_all(tmp_path: Path) -> None:
    result = ask(unbalanced_run(tmp_path))
    (row,) = result.rows
    assert (row["kind"], row["count"], row["bytes"]) == ("all_to_all", 3, 8_000)
    assert row["imbalance"] == pytest.approx(1.5)
    assert (row["transfer_ns"], row["wait_ns"]) == (40_000, 5_000)
    run = unbalanced_run(tmp_path / "more")
    run.collectives.in_elements[run.collectives.rank == 1] *= 3
    assert ask(run).rows[0]["imbalance"] == pytest.approx(1.8, abs=0.05)


def test_baselines_in_both_forms(tmp_path: Path) -> None:
    text = tmp_path / "all_reduce_perf.txt"
    text.write_text(NCCL_TESTS)
    theirs = load_baseline(text)
    assert theirs.time_ns("all_reduce", 2, 1 << 20) == 20_000
    assert theirs.time_ns("all_reduce", 2, 1 << 21) == pytest.approx(40_000)
    assert theirs.busbw_gb_s("all_reduce", 2, 1 << 20) == pytest.approx(52.43, abs=0.01)
    assert theirs.time_ns("all_reduce", 4, 1 << 20) is None  # another number of ranks
    assert theirs.time_ns("all_reduce", 2, 1 << 30) is None  # beyond what was measured
    ours = tmp_path / "ours.json"
    rows = [
        {"kind": "all_reduce", "bytes": 1 << 20, "ranks": 2, "dtype": "float32", "time_us": 20.0},
        {"kind": "all_gather", "bytes": 1 << 20, "ranks": 4, "dtype": "float32", "busbw_gb_s": 75.0},
        {"kind": "barrier", "bytes": None, "ranks": 4, "note": "no size"},
    ]
    ours.write_text(json.dumps(rows))
    assert load_baseline(ours).time_ns("all_reduce", 2, 1 << 20) == 20_000
    assert load_baseline(ours).busbw_gb_s("all_gather", 4, 1 << 20) == pytest.approx(75.0)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', "hello\n", NCCL_TESTS.replace("#  Rank", "# R")])
def test_a_baseline_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "all_reduce_perf.txt"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        load_baseline(file)
    assert caught.value.why and caught.value.hint


def test_a_baseline_names_what_is_slower_than_the_baseline(tmp_path: Path) -> None:
    truth = write(Plan(ranks=2, events_per_rank=3_000, steps=3), tmp_path / "run")
    large = max(truth["collectives"], key=lambda entry: entry["bytes"])
    file = tmp_path / "bench.json"
    alone = {
        "kind": large["kind"],
        "bytes": large["bytes"],
        "ranks": 2,
        "time_us": large["transfer_ns"] / 3e3,
    }
    file.write_text(json.dumps([alone]))
    scope = Scope(machine=Machine(baseline=load_baseline(file)))
    result = QUESTIONS["collectives"].analyse(Run(ingest([tmp_path / "run"])), scope, None)
    row = next(r for r in result.rows if (r["kind"], r["bytes"]) == (large["kind"], large["bytes"]))
    assert row["baseline_pct"] == pytest.approx(100 / 3, rel=0.05)
    slow = [finding for finding in result.findings if finding.fact("baseline_pct")]
    assert slow and {finding.kind for finding in slow} == {"limit"}
    assert all(finding.remedy and finding.remedy.change == "calls faster" for finding in slow)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.floats(1_000, 100_000),
    st.floats(1, 500),
    st.lists(st.integers(10, 30), min_size=4, max_size=12, unique=True),
)
def test_the_fit_finds_latency_and_bandwidth(latency: float, bandwidth: float, powers: list[int]) -> None:
    sizes = [1 << power for power in powers]
    fit = fit_sizes(sizes, [latency + size / bandwidth for size in sizes])
    assert fit is not None
    assert fit.bandwidth == pytest.approx(bandwidth, rel=1e-3)
    assert fit.latency_ns == pytest.approx(latency, rel=1e-2, abs=1e-6 * max(sizes) / bandwidth)


def test_one_slow_size_is_flagged_and_does_not_bend_the_line() -> None:
    sizes = [1 << power for power in range(16, 27)]
    times = [10_000 + size / 100 for size in sizes]
    times[5] *= 3
    fit = fit_sizes(sizes, times)
    assert fit is not None
    assert [fit.is_outlier(size, time) for size, time in zip(sizes, times, strict=True)] == [
        i == 5 for i in range(11)
    ]


@pytest.mark.parametrize(
    ("calls", "size", "hidden", "is_small"),
    [(8, 1 << 16, 0.0, True), (2, 1 << 16, 0.0, False), (8, 1 << 26, 0.0, False), (8, 1 << 16, 99.0, False)],
)
def test_many_small_collectives_are_latency(calls: int, size: int, hidden: float, is_small: bool) -> None:
    """Eight a step of 64 kB, at 1 ms + S / 1 GB/s: 8 ms of latency, unless compute hides them."""
    steps, fit = 5, SizeFit(1e6, 1.0)
    row = {"group": "0", "kind": "all_reduce", "bytes": size, "count": calls * steps, "hidden_pct": hidden}
    row |= {"_median": fit.time_ns(size), "_ranks": (0, 1), "description": "dp"}
    finding = small_calls([row], fit, steps, 20e6, ["one call"])
    assert (finding is not None) == is_small
    if finding:
        latency = finding.fact("exposed_latency_ns")
        assert finding.title == "8 small all_reduce calls of group dp" and latency
        assert latency.value == 8_000_000 and finding.remedy and finding.remedy.most_bytes == 1_000_000


def test_many_small_calls_of_one_size_are_merged(tmp_path: Path) -> None:
    """61 a step of 1 kB and 20 µs, and one of 100 MB: merging the small ones spares 60 latencies."""
    for rank in (0, 1):
        events: list[Any] = []
        for step in range(3):
            begin = 5_000 * step
            events.append(slice_event(f"ProfilerStep#{step}", begin, 4_990, cat="user_annotation"))
            for number in range(62):
                size, took = (256, 20) if number < 61 else (25_000_000, 1_000)
                kernel = kernel_event("ncclDevKernel_AllReduce_Sum_f32", begin + 50 * number + 10, took)
                kernel["args"] |= {
                    "Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size,
                    "dtype": "Float", "Group size": 2, "Process Group Name": "0",
                    "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
                }  # fmt: skip
                events.append(kernel)
        write_kineto(tmp_path / f"rank-{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    run = Run(ingest([tmp_path]))
    (limit,) = QUESTIONS["collectives"].analyse(run, Scope(), None).findings
    assert limit.title == "61 small all_reduce calls of group default_pg" and limit.remedy
    assert limit.remedy.latency_ns == pytest.approx(20_000, rel=0.01) and limit.remedy.most_bytes is not None
    graph = graph_of(run, Scope().in_run(run))
    merged = scenario_of(run, limit.remedy).change(run, graph, graph.work)
    spared = graph.work.transfer - merged.transfer
    assert spared.sum() == pytest.approx(3 * 60 * 20_000, rel=0.01)
    assert not spared[graph.collectives.bytes > 1024].any()


def test_too_few_sizes_or_none_that_matters_give_no_fit() -> None:
    assert fit_sizes([1, 2], [1.0, 2.0]) is None
    assert fit_sizes([1, 2, 3], [5.0, 5.0, 5.0]) is None
