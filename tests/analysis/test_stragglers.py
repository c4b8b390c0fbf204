"""The planted straggler comes back, with its cause; nobody is accused where nobody is slow."""

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
from rankscope.analysis.across_ranks.lateness import (
    OWN,
    Culprits,
    Lateness,
    _usual_on_other_nodes,
    _with_late_node,
    culprits,
)
from rankscope.analysis.across_ranks.main_thread import longest_gap
from rankscope.analysis.across_ranks.straggler_cause import _usual_gaps
from rankscope.analysis.core.host_spans import program_frame
from rankscope.analysis.core.result import Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.bench.synthetic import Plan, Straggler, write
from rankscope.store.arrays import NONE
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run


def ask(run: Run, scope: Scope | None = None) -> Result:
    return REPORTS["stragglers"].analyse(run, scope or Scope(), None)


def planted(plan: Plan, folder: Path) -> tuple[Run, Any]:
    truth = write(plan, folder)
    return Run(ingest([folder])), truth


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "names"),
    [
        ("compute", "its vectorized_gather_kernel takes 112"),
        ("host", "aten::embedding"),
        ("copy", "Memcpy HtoD"),
        ("dataloader", "enumerate(DataLoader)"),
    ],
)
def test_a_planted_straggler_comes_back_with_its_cause(cause: str, names: str, tmp_path: Path) -> None:
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
    (finding,) = result.findings
    assert finding.severity == "critical" and finding.ranks == (2,)
    assert finding.title.startswith("Rank 2 made 3 others wait")
    assert names in finding.title + finding.evidence
    facts = {fact.quantity: fact.value for fact in finding.facts}
    assert (facts["cause"], facts["waiting_ranks"], facts["worst_steps"]) == (cause, 3, 4)
    assert facts["wait_per_step_ns"] == pytest.approx(truth["straggler"]["caused_wait_ns"] / 3 / 4, rel=0.02)
    assert finding.remedy == Remedy("rank at median", ranks=(2,))
    assert finding.cost_ns == pytest.approx(5_000_000, rel=0.1)
    assert finding.span is not None and finding.span[1] - finding.span[0] > 4_000_000
    check_window(run, truth)


@pytest.mark.slow
def test_nobody_is_accused_where_nobody_is_slow(tmp_path: Path) -> None:
    run, _ = planted(Plan(ranks=3, events_per_rank=3_000, steps=3), tmp_path / "run")
    assert {finding.severity for finding in ask(run).findings} <= {"ok", "info"}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 24])
def test_from_two_ranks_to_many(ranks: int, tmp_path: Path) -> None:
    plan = Plan(ranks=ranks, events_per_rank=1_300, steps=3, straggler=Straggler(1, "host", 5_000_000))
    run, truth = planted(plan, tmp_path / "run")
    result = ask(run)
    top = result.rows[0]
    assert (top["rank"], top["cause"]) == (1, "host")
    assert top["caused_wait_ns"] == pytest.approx(truth["stragglers"][1]["caused_wait_ns"], rel=0.01)
    assert result.findings[0].severity == "critical"
    assert f"made {ranks - 1} other" in result.findings[0].title


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
    (finding,) = result.findings
    assert finding.ranks == (2,) and finding.severity == "critical"
    assert "made 3 others wait" in finding.title


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
    (finding,) = result.findings
    assert finding.ranks == (2,) and finding.severity == "critical" and "of the window" in finding.title


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
    assert result.rows[0]["rank"] == 2 and result.findings[0].ranks == (2,)
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
    assert result.findings == ()
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


@pytest.mark.slow
def test_the_real_straggler(open_real: Callable[[Path], Run]) -> None:
    """docs/definitions.md: rank 2, cause compute; the others wait 10.5-12.2 ms a step, 11.3 on average, of 17.2."""
    run = open_real(DATA / "seqpar-gloo4-slow2")
    result = ask(run)
    top = result.rows[0]
    assert (top["rank"], top["cause"], top["last_count"]) == (2, "compute", 6)
    (finding,) = result.findings
    assert finding.severity == "critical"
    assert finding.title == (
        "Rank 2 made 3 others wait 11.2 ms per step (65 %); slow_extra runs 12.8 ms on its GPU"
    )
    for step in range(2, 8):
        part = ask(run, Scope(steps=(step, step))).rows[0]
        assert part["rank"] == 2
        assert 10.5e6 <= part["caused_wait_ns"] / 3 <= 12.2e6


@pytest.mark.parametrize("name", ["seqpar-gloo4", "ddp-gloo4"])
def test_no_finding_above_info_where_nobody_is_slow(name: str, open_real: Callable[[Path], Run]) -> None:
    result = ask(open_real(DATA / name))
    assert {finding.severity for finding in result.findings} <= {"ok", "info"}


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
    gap = longest_gap(run, 0, (0, 40_000_000))
    assert gap is not None and gap.count == 1
    assert gap is not None and 30_000_000 < gap.dur_ns < 30_300_000
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


def test_lateness_is_not_named_for_noise_or_once() -> None:
    """Own time of four ranks in six steps, in ns of a step of 1 ms."""
    noise = np.array([[3, -2, 1, 0, -3, 2]] * 4) * 100.0
    noise[1::2] *= -1

    def named(own: np.ndarray[Any, Any]) -> Culprits:
        excess = np.zeros((len(OWN), *own.shape))
        excess[0] = own
        return culprits(Lateness((0, 1, 2, 3), tuple(range(6)), excess, 1e6, np.ones(4, dtype=bool)))

    assert named(noise) == Culprits()
    once, steady, moving = noise.copy(), noise.copy(), noise.copy()
    once[2, 3] += 0.05e6
    assert named(once).ranks == ()
    steady[2] += 0.02e6
    assert named(steady).ranks == (2,)
    moving[[0, 3, 1, 2, 0, 1], range(6)] += 0.2e6
    assert named(moving).moves and named(moving).ranks == ()


def low_middle(values: list[float]) -> float:
    ordered = sorted(value for value in values if value == value)
    return ordered[(len(ordered) - 1) // 2] if ordered else float("nan")


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.sampled_from("xyz"),
            st.lists(st.integers(0, 20) | st.just(float("nan")), min_size=2, max_size=2),
        ),
        min_size=2,
        max_size=9,
    )
)
def test_the_usual_time_of_a_rank_is_that_of_the_other_nodes(
    ranks: list[tuple[str, str, list[float]]],
) -> None:
    """Against the definition, by role and node; a rank may lack a step."""
    roles, names = [(role, 0) for role, _, _ in ranks], [node for _, node, _ in ranks]
    parts = np.array([[values for _, _, values in ranks]], dtype=float)
    usual = _usual_on_other_nodes(parts, roles, names)
    for number, (role, node, _) in enumerate(ranks):
        for step in range(2):
            of_nodes = [
                low_middle([values[step] for r, n, values in ranks if (r, n) == (role, other)])
                for other in set(names) - {node}
            ]
            mine = low_middle([values[step] for r, n, values in ranks if (r, n) == (role, node)])
            expected = low_middle(of_nodes) if mine == mine else float("nan")
            np.testing.assert_equal(usual[0, number, step], expected)


HOSTS = {rank: f"node{rank // 4}" for rank in range(8)}


def with_nodes(
    own: np.ndarray[Any, Any], hosts: dict[int, str], roles: list[tuple[str, int]] | None = None
) -> Culprits:
    """Own time of eight ranks in eight steps of 1 ms: who is late, with nodes compared as a whole."""
    parts = np.zeros((len(OWN), *own.shape))
    parts[OWN.index("host")] = own
    peers = np.array([np.median(np.delete(own, rank, axis=0), axis=0) for rank in range(8)])
    excess = np.zeros_like(parts)
    excess[OWN.index("host")] = own - peers
    late = Lateness(tuple(range(8)), tuple(range(8)), excess, 1e6, np.ones(8, dtype=bool))
    return culprits(_with_late_node(late, parts, roles or [("stage", 0)] * 8, hosts))


def test_a_node_is_late_when_most_of_its_ranks_are() -> None:
    source = np.random.default_rng(7)
    noise = source.normal(0, 5_000, (8, 8)) + 80_000 * (source.random((8, 8)) < 0.1)  # with pauses of hosts
    node, rank, moving = noise.copy(), noise.copy(), noise.copy()
    node[4:] += 30_000
    assert set(with_nodes(node, HOSTS).ranks) == {4, 5, 6, 7}
    assert with_nodes(node, HOSTS).own_ns == pytest.approx(30_000, rel=0.2)
    assert set(with_nodes(node, {}).ranks) != {4, 5, 6, 7}, "without names of nodes it is not told"
    stages = [("stage", rank // 4) for rank in range(8)]
    assert set(with_nodes(node, HOSTS, stages).ranks) != {4, 5, 6, 7}, "a stage has no peers on other nodes"
    rank[5] += 100_000
    assert with_nodes(rank, HOSTS).ranks == (5,), "a late rank does not make a late node"
    moving[source.integers(0, 8, 8), np.arange(8)] += 200_000
    for healthy in (noise, moving):
        assert with_nodes(healthy, HOSTS).ranks == ()


@pytest.mark.slow
def test_no_node_is_late_by_chance() -> None:
    """Two nodes judged by their own eight steps alone would be told apart in one of 60 such runs."""
    for seed in range(150):
        noise = np.random.default_rng(seed).normal(0, 40_000, (8, 8))
        assert len(with_nodes(noise, HOSTS).ranks) < 4


def test_ops_that_divide_a_gap_do_not_make_it_longer() -> None:
    """The peers sleep 12 ms between a and b. This rank sleeps as long and then runs x, which has a pause of 1 ms."""
    peers = [{("a", "b"): 12, ("b", "c"): 3}] * 3
    mine = {("a", "x"): 12, ("x", "x"): 1, ("x", "b"): 0, ("b", "c"): 3}
    assert _usual_gaps(mine, peers) == {("a", "x"): 12, ("x", "x"): 0, ("x", "b"): 0, ("b", "c"): 3}
    longer = {("a", "x"): 20, ("b", "c"): 3}
    assert _usual_gaps(longer, peers)["a", "x"] == 12, "a pause before x is longer than the gap of the peers"
    assert _usual_gaps({("a", "b"): 20, ("b", "c"): 3}, peers) == {("a", "b"): 12, ("b", "c"): 3}
    assert _usual_gaps(mine, [])["a", "x"] == 0


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
