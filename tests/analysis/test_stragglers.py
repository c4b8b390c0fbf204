"""Who waits for the planted straggler, how long, and in which part of its time it is late; as the faults say."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import DATA, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.blame import range_argmax
from rankscope.analysis.across_ranks.main_thread import gap_between, gaps
from rankscope.analysis.across_ranks.time_split import OWN, PARTS, own_times, step_times
from rankscope.analysis.core.host_spans import program_frame
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.stragglers import _charged, _counted_once, caused_waits, causes_of_ranks
from rankscope.store.arrays import NONE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic import Plan, Straggler, write


def ask(run: Run, scope: Scope | None = None) -> Result:
    return REPORTS["stragglers"].analyse(run, scope or Scope(), None)


def planted(plan: Plan, folder: Path) -> tuple[Run, Any]:
    truth = write(plan, folder)
    return Run(ingest([folder])), truth


@pytest.mark.slow
@pytest.mark.parametrize("cause", ["compute", "host", "copy", "dataloader"])
def test_a_planted_straggler_comes_back_with_its_cause(cause: str, tmp_path: Path) -> None:
    plan = Plan(ranks=4, events_per_rank=3_000, steps=4, straggler=Straggler(2, cause, 5_000_000))
    run, truth = planted(plan, tmp_path / "run")
    result = ask(run)
    rows = {row["rank"]: row for row in result.rows}
    for expected in truth["stragglers"]:
        for name in ("last_count", "own_wait_ns"):
            assert rows[expected["rank"]][name] == expected[name], (expected["rank"], name)
        # A rank is charged with at most its excess over its peers.
        assert rows[expected["rank"]]["caused_wait_ns"] <= expected["caused_wait_ns"]
    assert rows[2]["caused_wait_ns"] == pytest.approx(truth["straggler"]["caused_wait_ns"], rel=0.01)
    assert rows[2]["cause"] == cause
    assert rows[2][f"{cause}_ns"] == pytest.approx(4 * 5_000_000, rel=0.15)
    assert not result.findings and causes_of_ranks(run, Scope()) == {2: cause}
    check_steps(run, cause)
    check_window(run, truth)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 24])
def test_from_two_ranks_to_many(ranks: int, tmp_path: Path) -> None:
    plan = Plan(ranks=ranks, events_per_rank=1_300, steps=3, straggler=Straggler(1, "host", 5_000_000))
    run, truth = planted(plan, tmp_path / "run")
    result = ask(run)
    top = result.rows[0]
    assert (top["rank"], top["cause"]) == (1, "host")
    assert top["caused_wait_ns"] == pytest.approx(truth["stragglers"][1]["caused_wait_ns"], rel=0.01)


@pytest.mark.slow
def test_blame_goes_back_through_a_chain_of_waiting(tmp_path: Path) -> None:
    """Rank 2 is late for its tensor-parallel peer 3; so 3 is late for its data-parallel peer 1."""
    plan = Plan(
        ranks=4,
        events_per_rank=6_000,
        steps=4,
        tensor_parallel=2,
        straggler=Straggler(2, "compute", 5_000_000),
    )
    run, truth = planted(plan, tmp_path / "run")
    direct = {row["rank"]: row["caused_wait_ns"] for row in truth["stragglers"]}
    assert direct[3] > 15_000_000  # 3 comes last to its data-parallel collective, four times by some 5 ms
    result = ask(run)
    rows = {row["rank"]: row for row in result.rows}
    assert rows[3]["cause"] == "waiting"
    assert rows[3]["caused_wait_ns"] < 0.2 * direct[3]
    # Of the waits that go back to rank 2, each counts as long as it is slower than its peers: 5 ms in each step.
    assert rows[2]["caused_wait_ns"] == pytest.approx(3 * 4 * 5_000_000, rel=0.02)
    assert sum(row["caused_wait_ns"] for row in result.rows) <= sum(direct.values())
    assert causes_of_ranks(run, Scope()) == {2: "compute"}


@pytest.mark.slow
def test_missing_sequence_numbers(tmp_path: Path) -> None:
    """One rank's file has none: order gives them; the answer is the same."""
    plan = Plan(ranks=4, events_per_rank=3_000, steps=4, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, tmp_path / "run")
    for rank in (1, 3):
        file = tmp_path / "run" / truth["ranks"][rank]["file"]
        file.write_text(re.sub(r'"Seq": \d+,? ?', "", file.read_text()))
    run = Run(ingest([tmp_path / "run"]))
    assert set(run.collectives.seq[run.collectives.rank == 1]) == {NONE}
    rows = {row["rank"]: row for row in ask(run).rows}
    assert run.collectives.unmatched == ()
    for expected in truth["stragglers"]:
        waited = expected["caused_wait_ns"]
        assert rows[expected["rank"]]["caused_wait_ns"] == pytest.approx(waited, rel=0.01, abs=50_000)


@pytest.mark.slow
def test_no_sequence_numbers_and_no_steps_at_all(tmp_path: Path) -> None:
    """And one rank began to record later: the first common pattern is the anchor."""
    plan = Plan(ranks=3, events_per_rank=6_000, steps=3, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, tmp_path / "run")
    for rank in truth["ranks"]:
        file = tmp_path / "run" / rank["file"]
        text = re.sub(r'"Seq": \d+,? ?', "", file.read_text())
        file.write_text(re.sub(r"ProfilerStep#|Optimizer.step#", "something else ", text))
    first = tmp_path / "run" / truth["ranks"][0]["file"]
    kernels = re.findall(
        r'\n  \{\n    "ph": "X", "cat": "kernel", "name": "ncclDev.*?\n  \},', first.read_text(), re.S
    )
    text = first.read_text()
    for kernel in sorted(kernels, key=lambda event: float(re.search(r'"ts": ([\d.]+)', event)[1]))[:3]:  # type: ignore[index]
        text = text.replace(kernel, "", 1)
    first.write_text(text)
    run = Run(ingest([tmp_path / "run"]))
    assert run.rows("SELECT count(*) FROM steps") == [(0,)]
    per_rank = len(truth["collectives"])
    sizes = np.bincount(run.collectives.match[run.collectives.match != NONE]).tolist()
    assert sizes.count(3) == per_rank - 3
    result = ask(run)
    assert result.rows[0]["rank"] == 2 and result.rows[0]["cause"] == "compute"
    assert any("no steps" in note for note in result.notes)


@pytest.mark.slow
def test_a_rank_that_leaves_early(tmp_path: Path) -> None:
    """Its recording ends two steps before the others': what it shares with them is still answered."""
    plan = Plan(ranks=4, events_per_rank=3_000, steps=4, straggler=Straggler(2, "compute", 5_000_000))
    truth = write(plan, tmp_path / "run")
    file = tmp_path / "run" / truth["ranks"][3]["file"]
    trace = json.loads(file.read_text())
    end_us = truth["ranks"][3]["steps"][2]["start_ns"] / 1000
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("ts", 0) < end_us]
    file.write_text(json.dumps(trace))
    run = Run(ingest([tmp_path / "run"]))
    result = ask(run)
    assert result.rows[0]["rank"] == 2 and causes_of_ranks(run, Scope()) == {2: "compute"}
    sizes = np.bincount(run.collectives.match[run.collectives.match != NONE]).tolist()
    planned = [c["step"] for c in truth["collectives"]]
    assert len(sizes) == len(planned)
    assert sizes.count(4) == sum(step < 4 for step in planned) and sizes.count(3) == sum(
        step >= 4 for step in planned
    )


@pytest.mark.slow
def test_half_of_the_ranks_missing_is_said(tmp_path: Path) -> None:
    plan = Plan(
        ranks=4, events_per_rank=3_000, steps=4, straggler=Straggler(2, "compute", 5_000_000), missing=(1, 3)
    )
    run, _ = planted(plan, tmp_path / "run")
    result = ask(run)
    assert result.rows[0]["rank"] == 2
    assert any("no file for ranks 1,3" in note for note in result.notes)


@pytest.mark.slow
def test_one_rank_alone_is_told_what_to_record(tmp_path: Path) -> None:
    run, _ = planted(Plan(ranks=2, events_per_rank=3_000, steps=3, missing=(1,)), tmp_path / "run")
    result = ask(run)
    assert any("one rank" in note and "--ranks all" in note for note in result.notes)


@pytest.mark.slow
@pytest.mark.parametrize("told_by", ["time", "job"])
def test_ranks_of_different_runs_are_not_compared(told_by: str, tmp_path: Path) -> None:
    plan = Plan(ranks=4, events_per_rank=2_000, steps=3)
    truth = write(plan, tmp_path / "run")
    for rank in truth["ranks"]:
        file = tmp_path / "run" / rank["file"]
        text = file.read_text()
        second = rank["rank"] >= 2
        if told_by == "time" and second:  # recorded an hour later
            base = str(truth["clocks"][rank["rank"]]["base_time_ns"])
            text = text.replace(base, str(int(base) + 3_600_000_000_000))
        if told_by == "job":  # as capture writes it
            job = json.dumps({"job": "B" if second else "A"})
            text = text.replace('"displayTimeUnit"', f'"rankscope": {job},\n  "displayTimeUnit"', 1)
        file.write_text(text)
    run = Run(ingest([tmp_path / "run"]))
    result = ask(run)
    assert any("ranks 0-1 and ranks 2-3 are not from one run" in note for note in result.notes)
    assert set(np.bincount(run.collectives.match)) == {2}


def check_window(run: Run, truth: Any) -> None:
    inside = [c for c in truth["collectives"] if c["step"] in (3, 4) and c["last_rank"] == 2]
    row = ask(run, Scope(steps=(3, 4))).rows[0]
    assert row["last_count"] == len(inside)
    waited = sum(sum(c["wait_ns"]) for c in inside)
    assert row["caused_wait_ns"] == pytest.approx(waited, rel=0.01, abs=50_000)


def check_steps(run: Run, cause: str) -> None:
    """Row by row: the same rank and cause, and no more waiting than it is late, for each of those who wait."""
    rows = REPORTS["stragglers"].analyse(run, Scope(), "step").rows
    assert {(row["last_rank"], row["cause"]) for row in rows} == {(2, cause)}
    for row in rows:
        assert 0 < row["caused_wait_ns"] <= (len(run.ranks) - 1) * row["excess_ns"]
    assert sum(row["caused_wait_ns"] for row in rows) == ask(run).rows[0]["caused_wait_ns"]


@pytest.mark.slow
def test_the_real_straggler(open_real: Callable[[Path], Run]) -> None:
    """docs/definitions.md: rank 2, cause compute; the others wait 10.5-12.2 ms a step, 11.3 on average, of 17.2."""
    run = open_real(DATA / "seqpar-gloo4-slow2")
    result = ask(run)
    top = result.rows[0]
    assert (top["rank"], top["cause"], top["last_count"]) == (2, "compute", 6)
    check_steps(run, "compute")
    for step in range(2, 8):
        part = ask(run, Scope(steps=(step, step))).rows[0]
        assert part["rank"] == 2
        assert 10.5e6 <= part["caused_wait_ns"] / 3 <= 12.2e6


def test_the_gap_of_a_late_host_is_that_of_its_main_thread(tmp_path: Path) -> None:
    """The busiest thread is another one; the annotation and the Python function around the gap are named."""
    events = [
        slice_event("ProfilerStep#1", 0, 40_000, cat="user_annotation"),
        slice_event("aten::copy_", 100, 50),
        slice_event("slow_extra", 200, 30_100, cat="user_annotation"),
        slice_event("train.py(12): wait_for_disk", 250, 30_020, cat="python_function", args={"Python id": 1}),
        slice_event("socket.py(692): readinto", 260, 30_010, cat="python_function", args={"Python id": 2}),
        slice_event("<built-in method recv_into>", 270, 30_000, cat="python_function", args={"Python id": 3}),
        slice_event("aten::view", 30_400, 20),
        slice_event("autograd::engine::evaluate_function: MmBackward0", 30_500, 9_000, tid=3),
        *(slice_event("aten::mm", 100 + 300 * number, 200, tid=2) for number in range(100)),
    ]
    run = open_trace(write_kineto(tmp_path / "rank-0.pt.trace.json", events))
    times = gaps(run, 0, [(0, 40_000_000)])
    totals = times.totals()
    gap = gap_between(run, 0, times, max(totals, key=lambda ops: totals[ops]))
    assert gap.count == 1
    assert 30_000_000 < gap.dur_ns < 30_300_000
    assert (gap.before, gap.after) == ("aten::copy_", "aten::view")
    assert gap.annotation == "slow_extra" and gap.line == "train.py(12): wait_for_disk"


def test_the_frame_of_the_program_is_named() -> None:
    inner, library = "<built-in method recv_into>", "socket.py(692): readinto"
    assert (
        program_frame([inner, library, "helpers/net.py(2): receive", "train.py(9): main"])
        == "helpers/net.py(2): receive"
    )
    assert program_frame(
        [inner, "/opt/lib/python3.12/site-packages/x/y.py(1): f", "/home/me/a.py(3): g"]
    ).startswith("/home")
    assert program_frame([inner, library, "torch/optim/sgd.py(9): step"]) == library
    assert (program_frame([inner]), program_frame([])) == (inner, "")


def test_own_times_are_those_beyond_the_median_of_the_others(open_real: Callable[[Path], Run]) -> None:
    """All four ranks do the same work."""
    run = open_real(DATA / "seqpar-gloo4-slow2")
    scope = Scope().in_run(run)
    own, (ranks, steps, parts) = own_times(run, scope), step_times(run, scope)
    assert (own.ranks, own.steps) == (ranks, steps)
    for part, name in enumerate(OWN):
        times = parts[PARTS.index(name)]
        for rank in range(4):
            usual = np.median(np.delete(times, rank, axis=0), axis=0)
            assert own.of_parts[part, rank] == pytest.approx(np.maximum(times[rank] - usual, 0))
    assert (own.excess == own.of_parts.sum(axis=0)).all() and (own.excess.argmax(axis=0) == 2).all()
    assert {own.cause(2, step) for step in range(len(own.steps))} == {"compute"}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_each_moment_of_waiting_counts_once(waits: list[tuple[int, int, int]]) -> None:
    """For the wait that ends last, moment by moment; of those that end together for any of them."""
    rank, start, took = np.array(waits, dtype=np.int64).reshape(-1, 3).T
    end = start + took
    alone = _counted_once(rank, start, end)
    ends: dict[int, int] = {}
    for who in range(3):
        for moment in range(80):
            open_now = (rank == who) & (start <= moment) & (moment < end)
            if open_now.any():
                last = int(end[open_now].max())
                ends[100 * who + last] = ends.get(100 * who + last, 0) + 1
    counted: dict[int, int] = {}
    for key, value in zip((100 * rank + end).tolist(), alone.tolist(), strict=True):
        counted[key] = counted.get(key, 0) + value
    assert (alone >= 0).all() and {key: value for key, value in counted.items() if value} == ends


tables = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3), min_size=1
)


@given(tables)
def test_waits_are_charged_to_the_step_that_made_them(rows: list[list[tuple[int, int]]]) -> None:
    """By pair and step: at most what the one is late in it, and what the other waits then and in the next step."""
    waited, allowed = np.array(rows, dtype=np.int64).transpose(2, 0, 1)
    charged = _charged(waited, allowed)
    assert (charged <= allowed).all() and (charged >= np.minimum(waited, allowed)).all()
    assert (
        charged.cumsum(axis=1) <= np.append(waited, 0 * waited[:, :1], axis=1).cumsum(axis=1)[:, 1:]
    ).all()
    assert (charged[:, -1] <= waited[:, -1]).all()


def test_no_wait_is_charged_beyond_what_its_cause_is_late(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    scope = Scope().in_run(run)
    own, caused = own_times(run, scope), caused_waits(run, scope)
    for (step, causing, waiting), waited in zip(caused.groups.tolist(), caused.waited.tolist(), strict=True):
        assert causing != waiting and 0 < waited <= own.excess[own.ranks.index(causing), step]


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
def test_range_argmax(values: list[int], data: st.DataObject) -> None:
    ends = st.integers(0, len(values))
    ranges = data.draw(st.lists(st.tuples(ends, ends), max_size=8))
    low = np.array([a for a, _ in ranges], dtype=np.int64)
    high = np.array([b for _, b in ranges], dtype=np.int64)
    found = range_argmax(np.array(values, dtype=np.int64), low, high)
    for (a, b), place in zip(ranges, found.tolist(), strict=True):
        if a >= b:
            assert place == NONE
        else:
            assert a <= place < b and values[place] == max(values[a:b])
