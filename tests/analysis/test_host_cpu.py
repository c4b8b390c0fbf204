"""Are ranks short of CPU: planted in small gloo jobs of four ranks, with the header that the capture writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.explained import cause, explained
from conftest import slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

RANKS, STEPS = 4, 6
MS = 1_000_000
Late = Callable[[int, int], float]
"""By rank and step, how many ms later than usual it comes to the collective."""


def nobody(_rank: int, _step: int) -> float:
    return 0.0


def job(
    folder: Path,
    late: Late,
    host: Callable[[int], Mapping[str, Any] | None],
    events: Callable[[int, int, float], list[dict[str, Any]]] = lambda _rank, _step, _start: [],
    work_ms: float = 20.0,
) -> Run:
    """Each step: an op of `work_ms`, nothing while it is late, a short op, and an all_reduce of 2 ms at its end.

    `events` are added on the main thread, from where it begins to be late (µs).
    """
    starts = [0.0]
    for step in range(STEPS):
        latest = max(late(rank, step) for rank in range(RANKS))
        starts.append(starts[-1] + 1000 * (work_ms + latest + 3))
    for rank in range(RANKS):
        listed = []
        for step, (start, end) in enumerate(pairwise(starts)):
            idle = start + 1000 * work_ms + 10
            arrives = idle + 1000 * late(rank, step) + 500
            listed += [
                slice_event(f"ProfilerStep#{step}", start, end - start - 5, cat="user_annotation"),
                slice_event("aten::mm", start + 5, 1000 * work_ms),
                *events(rank, step, idle),
                slice_event("aten::add", arrives - 200, 100),
                slice_event("gloo:all_reduce", arrives, end - 10 - arrives, cat="user_annotation", tid=2),
            ]
        info = {"backend": "gloo", "rank": rank, "world_size": RANKS}
        group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": RANKS, "ranks": [*range(RANKS)]}
        recorded = host(rank)
        more = {"rank": rank, "host": "vm"} | ({"host_cpu": dict(recorded)} if recorded else {})
        write_kineto(
            folder / f"rank-{rank}.pt.trace.json",
            listed,
            schemaVersion=1,
            distributedInfo=info | {"pg_config": [group]},
            rankscope=more,
            baseTimeNanoseconds=1_700_000_000_000_000_000,
        )
    return Run(ingest([folder]))


def host_record(cores: list[int], wall_ms: float = 23.0, **columns: Any) -> dict[str, Any]:
    """What the capture writes. A column is a figure in ms for all steps, or one for each."""
    usual = {"wall_ns": wall_ms, "cpu_ns": 20.0, "process_ns": 21.0, "run_delay_ns": 0.0, "gc_ns": 0.0}
    threads = columns.pop("threads", {})
    busy = columns.pop("busy", None)
    values = {name: columns.get(name, usual[name]) for name in usual}
    steps = {name: _each(value) for name, value in values.items()}
    return {
        "cores": cores,
        "core_limit": None,
        "ranks_on_host": RANKS,
        "window_ns": sum(steps["wall_ns"]),
        "process_ns": sum(steps["process_ns"]),
        "busy_ns": None if busy is None else round(busy * sum(steps["wall_ns"])),
        "steps": {"step": [*range(STEPS)], **steps},
        "threads": {name: _each(value) for name, value in threads.items()},
        "native_threads": [],
    }


def _each(value: Any) -> list[int]:
    return [round(MS * each) for each in (value if isinstance(value, list) else [value] * STEPS)]


def late_rank_2(rank: int, _step: int) -> float:
    return 10.0 if rank == 2 else 0.0


@pytest.mark.slow
def test_ranks_that_share_too_few_cores_are_one_finding_and_nobody_is_accused(tmp_path: Path) -> None:
    def moving(rank: int, step: int) -> float:
        return 8.0 if rank == step % RANKS else 0.0

    run = job(tmp_path, moving, lambda _rank: host_record([0, 1], wall_ms=31.0, run_delay_ns=9.0, busy=1.9))
    (finding,) = REPORTS["host_cpu"].analyse(run, Scope(), None).findings
    assert finding.title.startswith("4 ranks share 2 cores: each waits 9.00 ms per step for a core (29 %)")
    assert finding.ranks == () and finding.facts[0].value == "contention"
    # 9 ms, and 9/29 of the time in the collective: at most the 2 ms in which it neither ran nor waited for a core.
    assert finding.cost_ns == pytest.approx(MS * (9 + 2 * 9 / 29), rel=0.02)
    assert not any(each.ranks for each in collect(run, Scope()) if each.severity in ("warning", "critical"))


def test_a_little_waiting_for_its_own_threads_is_no_finding(tmp_path: Path) -> None:
    run = job(tmp_path, nobody, lambda rank: host_record([rank], process_ns=23.0, run_delay_ns=2.5))
    result = REPORTS["host_cpu"].analyse(run, Scope(), None)
    assert result.findings == ()
    assert [row["run_delay_ns"] for row in result.rows] == [round(2.5 * MS) * STEPS] * RANKS
    assert {row["other_threads_ns"] for row in result.rows} == {3 * MS * STEPS}


def test_a_core_that_another_process_takes(tmp_path: Path) -> None:
    def host(rank: int) -> dict[str, Any]:
        delay = 10.0 if rank == 2 else 0.1
        return host_record([rank], wall_ms=33.0, run_delay_ns=delay, busy=1.0 if rank == 2 else 0.65)

    rank, answer = explained(job(tmp_path, late_rank_2, host))
    assert (rank, cause(answer)) == (2, "contention")
    assert answer.text == "it waits 9.90 ms per step for a core: other processes use 0.36 of its core 2"


def test_garbage_collection_in_some_steps(tmp_path: Path) -> None:
    def late(rank: int, step: int) -> float:
        return 60.0 if rank == 1 and step in (1, 4) else 0.0

    def host(rank: int) -> dict[str, Any]:
        return host_record([rank], gc_ns=[0.2, 59.0, 0.2, 0.2, 59.0, 0.2] if rank == 1 else 0.2)

    rank, answer = explained(job(tmp_path, late, host))
    assert (rank, cause(answer)) == (1, "host")
    assert answer.text == "garbage collection takes 58.8 ms in each of 2 steps"
    assert any(fact.quantity == "gc_per_step_ns" for fact in answer.facts)


def test_a_thread_with_the_gil(tmp_path: Path) -> None:
    def host(rank: int) -> dict[str, Any]:
        if rank != 2:
            return host_record([rank], wall_ms=33.0)
        # It shares its core with the thread, so it waits for a core as well: that is not the reason.
        return host_record(
            [rank], wall_ms=33.0, process_ns=32.0, run_delay_ns=6.0, threads={"tokenizer": 11.5}
        )

    rank, answer = explained(job(tmp_path, late_rank_2, host))
    assert (rank, cause(answer)) == (2, "host")
    assert answer.text == "thread tokenizer used 0.35 of a core" and "tokenizer" in answer.names


@pytest.mark.slow
def test_a_busy_thread_beside_a_training_thread_that_runs_is_not_the_reason(tmp_path: Path) -> None:
    def host(rank: int) -> dict[str, Any]:
        if rank != 2:
            return host_record([rank], wall_ms=33.0)
        return host_record([0, 1, 2], wall_ms=33.0, cpu_ns=30.0, process_ns=60.0, threads={"writer": 29.0})

    assert "writer" not in explained(job(tmp_path, late_rank_2, host))[1].text


@pytest.mark.slow
def test_compilation_with_the_loading_before_it(tmp_path: Path) -> None:
    def late(rank: int, step: int) -> float:
        return {1: 50.0, 4: 12.0}.get(step, 0.0) if rank == 3 else 0.0

    def events(rank: int, step: int, start: float) -> list[dict[str, Any]]:
        if rank != 3 or step not in (1, 4):
            return []
        begin = start + (38_000 if step == 1 else 500)  # the first call loads modules for 38 ms
        return [
            slice_event("aten::ones", begin - 200, 100),
            slice_event("dynamo", begin, 11_000),
            slice_event("_compile.compile_inner (dynamo_timed)", begin + 10, 10_000),
        ]

    rank, answer = explained(job(tmp_path, late, lambda _rank: None, events))
    assert (rank, cause(answer)) == (3, "host")
    assert answer.text == "torch.compile takes 48.8 ms in step 1, 11.3 ms in 1 other step"
    assert any(fact.quantity == "before_compile_ns" for fact in answer.facts)


@pytest.mark.slow
def test_rows_by_step_and_what_is_said_without_a_recording(tmp_path: Path) -> None:
    run = job(tmp_path / "with", nobody, lambda rank: host_record([rank], cpu_ns=[1.0, 2, 3, 4, 5, 6]))
    rows = REPORTS["host_cpu"].analyse(run, Scope(steps=(2, 3)), "step").rows
    assert [(row["rank"], row["step"], row["cpu_ns"] // MS) for row in rows if row["rank"] == 1] == [
        (1, None, 7),
        (1, 2, 3),
        (1, 3, 4),
    ]
    without = REPORTS["host_cpu"].analyse(
        job(tmp_path / "without", nobody, lambda _rank: None), Scope(), None
    )
    assert without.findings == () and "were not recorded" in without.unanswered


@pytest.mark.parametrize(
    "damage",
    [{"steps": {}}, {"cores": 7}, {"threads": {"a": [1]}}, {"busy_ns": "x"}],
)
def test_a_damaged_header_says_nothing(damage: dict[str, Any], tmp_path: Path) -> None:
    run = job(tmp_path, nobody, lambda rank: host_record([rank], run_delay_ns=20.0) | damage)
    assert REPORTS["host_cpu"].analyse(run, Scope(), None).rows == ()
