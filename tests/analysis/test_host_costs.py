"""What a late rank costs where the hosts compute and communicate (gloo): planted answers, and waits by brute force."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.event_replay import EventReplay, durations_of, events_of
from conftest import examples, open_trace
from gloo_traces import GlooJob, pipeline
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import balanced, rank_at_median
from rankscope.analysis.faults import faults_of
from rankscope.analysis.findings import collect
from rankscope.analysis.graph.build import host_waits
from rankscope.timeline.run import Run

MS = 1_000_000
Work = Callable[[int, int], int]
Spans = list[tuple[int, int, int]]


def brute_force(rank: int, start: int, end: int, ops: list[tuple[int, int, int]]) -> tuple[bool, int]:
    """Whether the host waited, and since when, nanosecond by nanosecond."""
    busy = {time for who, first, last in ops if who == rank for time in range(first, last)}
    resumed = end
    if end in busy:
        while resumed - 1 in busy:
            resumed -= 1
    stopped = resumed
    while stopped > start and stopped - 1 not in busy:
        stopped -= 1
    stopped = max(stopped, start)
    pause = resumed - stopped
    for late in (time for time in range(end - 1, start, -1) if time in busy and time - 1 not in busy):
        since = next(time for time in range(late, start - 1, -1) if time == start or time - 1 in busy)
        if late - since >= 20 * (end - late):
            return True, since
    return pause >= 0.1 * (end - start) and (resumed == end or pause > end - resumed), stopped


lengths = st.integers(0, 15) | st.integers(30, 60)
spans = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), lengths), max_size=8)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(spans, spans)
def test_a_wait_is_the_last_pause_of_the_host(
    comm: list[tuple[int, int, int]], ran: list[tuple[int, int, int]]
) -> None:
    """The collectives run on threads of their own; the ops that these run inside them count for nothing."""
    inside = [(rank, start, length // 2) for rank, start, length in comm if length > 1]
    ops = [(*op, 1) for op in ran] + [(*op, 7) for op in inside]
    columns = np.array(ops, dtype=np.int64).reshape(-1, 4).T
    of_ops = {
        "rank": columns[0], "segment": 0 * columns[0], "track": columns[3], "start": columns[1],
        "end": columns[1] + columns[2],
    }  # fmt: skip
    rank, start, length = np.array(comm, dtype=np.int64).reshape(-1, 3).T
    rows: Any = SimpleNamespace(
        rank=rank, segment=0 * rank, track=np.full(len(rank), 7), start=start, end=start + length
    )
    waited, stops = host_waits(rows, start, of_ops)
    listed = [(who, first, first + took) for who, first, took in ran]
    expected = [brute_force(who, first, first + took, listed) for who, first, took in comm]
    assert waited.tolist() == [answer for answer, _ in expected]
    since = {number: begin for number, (answer, begin) in enumerate(expected) if answer}
    for who in (0, 1):  # one after the other
        mine = sorted(
            (number for number in since if comm[number][0] == who), key=lambda at: sum(comm[at][1:])
        )
        for before, after in pairwise(mine):
            since[after] = max(since[after], sum(comm[before][1:]))
    assert stops[waited].tolist() == [*since.values()]


def write_job(
    folder: Path,
    steps: int,
    work: Work,
    after: Work,
    *,
    early_op_ns: int = 0,
    missing: dict[int, range] | None = None,
) -> Run:
    """Four ranks; a step is work, an all_reduce of 1 ms, and what follows it. `early_op_ns`: the ops after the
    all_reduce begin so long before the end of its annotation. `missing`: steps that a rank did not record."""
    now = [0] * 4
    events: list[list[dict[str, Any]]] = [[] for _ in range(4)]

    def add(rank: int, step: int, category: str, name: str, thread: int, start: int, end: int) -> None:
        if step not in (missing or {}).get(rank, ()):
            events[rank].append(
                {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start / 1000,
                 "dur": (end - start) / 1000, "args": {}}
            )  # fmt: skip

    for step in range(steps):
        began = now.copy()
        for rank in range(4):
            now[rank] += work(rank, step)
            add(rank, step, "cpu_op", "aten::mm", 90, began[rank] + 1000, now[rank])
            add(rank, step, "cpu_op", "c10d::allreduce_", 90, now[rank] + 1000, now[rank] + 2000)
        done = max(now) + MS
        for rank in range(4):
            add(rank, step, "user_annotation", "gloo:all_reduce", 91, now[rank] + 2000, done)
            now[rank] = done - early_op_ns + MS + after(rank, step)
            add(rank, step, "cpu_op", "aten::add_", 90, done - early_op_ns, now[rank] - 1000)
            add(rank, step, "user_annotation", f"ProfilerStep#{step}", 90, began[rank], now[rank])
    for rank, listed in enumerate(events):
        content = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": 4},
            "traceEvents": listed,
            "trace_id": f"job {rank}",
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return open_trace(folder)


def saved_ms(run: Run, rank: int, steps: tuple[int, int]) -> float:
    savings = savings_of(run, Scope(steps=steps))
    assert savings is not None
    assert savings.off_ns == 0
    return savings.saved_ns([rank_at_median(rank)]) / MS


@pytest.mark.parametrize("early_op_ns", [0, 200_000])
def test_the_saving_does_not_depend_on_the_window(early_op_ns: int, tmp_path: Path) -> None:
    """Rank 2 works 15 ms longer at the end of every step. An op that begins shortly before the annotation of the
    collective ends does not make the wait work of the host."""
    run = write_job(
        tmp_path,
        12,
        lambda rank, step: 10 * MS,
        lambda rank, step: 15 * MS * (rank == 2),
        early_op_ns=early_op_ns,
    )
    for window in ((2, 4), (5, 5), (1, 11)):
        assert saved_ms(run, 2, window) == pytest.approx(15, rel=0.03), window
        assert abs(saved_ms(run, 0, window)) < 0.1


def test_work_before_the_collective_is_saved_too(tmp_path: Path) -> None:
    run = write_job(tmp_path, 4, lambda rank, step: (10 + 8 * (rank == 1)) * MS, lambda rank, step: 0)
    assert saved_ms(run, 1, (0, 3)) == pytest.approx(8, rel=0.01)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("early_op_ns", [0, 200_000])
def test_the_graph_has_the_same_waits_as_the_events(early_op_ns: int, tmp_path: Path) -> None:
    def work(rank: int, step: int) -> int:
        return (10 + 8 * (rank == 1) + (step + rank) % 3) * MS

    run = write_job(tmp_path, 5, work, lambda rank, step: 0, early_op_ns=early_op_ns)
    scope = Scope(steps=(0, 4))
    events, savings = events_of(run, scope), savings_of(run, scope)
    assert savings is not None
    replay = EventReplay(events)
    for rank in range(4):
        changed = rank_at_median(rank).change(run, savings.graph, savings.graph.work)
        expected = replay.length(durations_of(events, savings.graph, changed))
        assert savings.length_with([rank_at_median(rank)]) == expected, rank


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("seed", range(4))
def test_uneven_work_costs_what_the_last_rank_takes_over_the_mean(seed: int, tmp_path: Path) -> None:
    batches = np.random.default_rng(seed).integers(1, 8, (4, 6)) * 5 * MS
    run = write_job(tmp_path, 6, lambda rank, step: int(batches[rank, step]), lambda rank, step: 0)
    savings = savings_of(run, Scope(steps=(0, 5)))
    assert savings is not None
    planted = float((batches.max(axis=0) - batches.mean(axis=0)).mean())
    assert savings.saved_ns([balanced("ranks")]) == pytest.approx(planted, rel=0.02)
    (fault,) = faults_of(run, Scope()).listed
    assert fault.moves and fault.varies and not fault.subjects
    assert fault.cost_ns == pytest.approx(planted, rel=0.02)
    finding = collect(run, Scope())[0]
    assert finding.title.startswith("The work of the ranks differs")
    assert (finding.severity, finding.subject) == ("critical", "each rank in turn")


@pytest.mark.slow
def test_ordinary_jitter_is_no_finding(tmp_path: Path) -> None:
    jitter = np.random.default_rng(2).normal(0, 0.05, (4, 10))
    run = write_job(
        tmp_path, 10, lambda rank, step: int((1 + jitter[rank, step]) * 20 * MS), lambda rank, step: 0
    )
    assert not [finding for finding in collect(run, Scope()) if finding.severity in ("warning", "critical")]


def test_a_step_that_nobody_else_recorded_stays_as_it_is(tmp_path: Path) -> None:
    """Ranks 1 to 3 stopped recording after step 2."""
    run = write_job(
        tmp_path,
        6,
        lambda rank, step: 10 * MS,
        lambda rank, step: 0,
        missing={rank: range(3, 6) for rank in (1, 2, 3)},
    )
    assert abs(saved_ms(run, 0, (0, 5))) < 0.1
    assert not faults_of(run, Scope(steps=(0, 5))).listed


@pytest.mark.slow
def test_a_wait_belongs_to_the_step_in_which_its_cause_is_late(tmp_path: Path) -> None:
    """Rank 2 works longer after the all_reduce of step 3: the others wait for it in step 4."""
    run = write_job(
        tmp_path, 6, lambda rank, step: 10 * MS, lambda rank, step: 15 * MS * ((rank, step) == (2, 3))
    )
    rows = REPORTS["stragglers"].analyse(run, Scope(), "step").rows
    assert [(row["step"], row["last_rank"], row["caused_wait_ns"]) for row in rows if row["last_rank"]] == [
        (3, 2, 3 * 15 * MS)
    ]


def test_the_mean_step_is_that_of_the_window(tmp_path: Path) -> None:
    run = write_job(tmp_path, 4, lambda rank, step: (10 + 60 * (step == 3)) * MS, lambda rank, step: 0)
    assert mean_step_ns(run, Scope(steps=(0, 3))) == pytest.approx(27 * MS, rel=0.01)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("slow", [1, 2])
def test_a_slow_stage_of_a_pipeline_over_gloo(slow: int, tmp_path: Path) -> None:
    """Sends and receives on the host wait for each other in the replay: it predicts the job with equal stages."""
    stages = [3000.0] * 4
    equal = GlooJob(pipeline(stages), jitter_us=0)
    stages[slow] = 5000.0
    job = GlooJob(pipeline(stages), jitter_us=0)
    run = open_trace(job.write(tmp_path / "slow", captured=True))
    savings = savings_of(run, Scope().in_run(run))
    assert savings is not None
    assert savings.off_ns == 0
    planted = 1000 * (job.step_us() - equal.step_us())
    # The other stage in the middle has the same messages.
    assert savings.saved_ns([rank_at_median(slow)]) == pytest.approx(planted, rel=0.05)
