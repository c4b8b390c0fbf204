"""The graph of a run gives what a replay event by event, and a walk along its causes, give."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.event_replay import (
    Durations,
    EventReplay,
    RunEvents,
    Times,
    durations_of,
    events_of,
    recorded,
    with_few_points,
)
from analysis.plain_walk import pieces, plain_walk
from pipeline_traces import PipelinePlan, write_pipeline
from rankscope import native
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.report import SMALL, critical
from rankscope.analysis.critical_path.savings import Savings, savings_of
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.faults.balanced import BALANCES
from rankscope.analysis.graph.events import DEVICE_CLASSES, HOST_CLASSES, NONE
from rankscope.analysis.graph.graph import Graph, graph_of
from rankscope.analysis.graph.replay import Part, Replay
from rankscope.errors import UsageError
from rankscope.store.arrays import grouped
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster import Fault, Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces

LATE_NS = 2_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ranks; rank 2 computes longer in every step."""
    folder = tmp_path_factory.mktemp("graph")
    job = Job(
        data=2, tensor=2, steps=3, layers=2, offset_ns=1_000_000, seed=6,
        faults=(Fault("compute", (2,), LATE_NS),),
    )  # fmt: skip
    write_traces(job, simulate(job), folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return Run(ingest([folder]))


@pytest.fixture
def few(folder: Path, tmp_path: Path) -> Run:
    """The same, with as few points as a graph has."""
    return with_few_points(Run(ingest([folder], Options(output=tmp_path))))


def by_class(run: Run, scope: Scope) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for row in critical(run, scope).rows:
        found[row["class"], row["rank"]] += row["ns"]
    return found


def check_windows(run: Run) -> None:
    """The path of the last steps is the end of that of all, also where it begins with events of steps before them."""
    scope = Scope().in_run(run)
    whole = pieces(graph_of(run, scope))
    if scope.steps is None:
        return
    start, last = scope.steps
    for first in range(start + 1, last + 1):
        graph = graph_of(run, Scope(steps=(first, last)))
        low, _ = graph.window
        assert pieces(graph) == [
            piece._replace(start=max(piece.start, low)) for piece in whole if piece.end > low
        ]


def check_as_recorded(run: Run, scope: Scope) -> None:
    """A replay without changes gives the recorded times, of every point."""
    graph = graph_of(run, scope)
    replay = Replay(graph)
    assert (replay.ends(replay.arrays(graph.work)) == graph.end[replay._points]).all()


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("points", ["run", "few"])
def test_a_replay_without_changes_gives_the_recorded_times(
    points: str, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(points)
    for steps in (None, (1, 2)):
        check_as_recorded(run, Scope(steps=steps).in_run(run))


needs_c = pytest.mark.skipif(native.functions is None, reason="the C parts were not built")


@needs_c
def test_the_part_in_c_replays_as_numpy_does(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(run, Scope(steps=(1, 2)))
    changes = [scenarios.hide_comm(), scenarios.no_gaps(), scenarios.syncs_gone(), scenarios.balanced("all")]
    works = [change.change(run, graph, graph.work) for change in changes]
    replay = Replay(graph)
    in_c = [replay.ends(replay.arrays(work)) for work in works]
    monkeypatch.setattr(native, "functions", None)
    replay = Replay(graph)
    for work, ends in zip(works, in_c, strict=True):
        assert (replay.ends(replay.arrays(work)) == ends).all()
    assert len({tuple(ends.tolist()) for ends in in_c}) == len(works)


@needs_c
@given(st.integers(1, 12).flatmap(lambda units: st.lists(st.tuples(*[st.integers(0, units - 1)] * 2))))
def test_the_level_of_a_unit_is_its_longest_chain_of_causes(ways: list[tuple[int, int]]) -> None:
    """Brute force: a unit in a cycle, or behind one, has chains that are longer than there are units."""
    units = 1 + max((max(way) for way in ways), default=0)
    causes = {unit: [cause for cause, effect in ways if effect == unit] for unit in range(units)}
    longest = [0] * units
    for _ in range(units + 1):
        longest = [max((1 + longest[cause] for cause in causes[unit]), default=0) for unit in range(units)]
    ordered = sorted(ways)
    first = np.searchsorted([cause for cause, _ in ordered], np.arange(units + 1))
    effects = np.array([effect for _, effect in ordered], dtype=np.int64)
    levels = np.frombuffer(native.functions.levels(first, effects), np.int64)
    assert levels.tolist() == [length if length < units else -1 for length in longest]


@given(st.lists(st.integers(0, 9)))
def test_entries_of_a_group_stay_in_their_order(groups: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for functions in {native.functions, None}:
            patch.setattr(native, "functions", functions)
            order, first = grouped(np.array(groups, dtype=np.int64), 10)
            assert order.tolist() == sorted(range(len(groups)), key=lambda entry: groups[entry])
            assert first.tolist() == [sum(group < limit for group in groups) for limit in range(11)]


@needs_c
def test_arrays_that_do_not_belong_together_are_refused() -> None:
    some, none = np.array([0, 1]), np.empty(0, dtype=np.int64)
    with pytest.raises(ValueError, match="groups"):
        native.functions.grouped(some, 1)
    with pytest.raises(ValueError, match="bounds"):
        native.functions.levels(some, np.array([7]))
    way, lane, no_lane = np.array([0]), np.zeros(1, dtype=np.int8), np.empty(0, dtype=np.int8)
    for origin, lanes, lane_of_way in (
        (9, 1, lane),
        (0, 1, lane + 1),
        (0, 0, lane),
        (0, 9, lane),
        (0, 1, no_lane),
    ):
        columns = (np.array([origin]), some, way, some, way, way, way, way, lane_of_way, lane)
        with pytest.raises(ValueError, match="belong"):
            native.functions.replay(np.zeros(9, dtype=np.int64), lanes, *columns)
    native.functions.replay(
        np.zeros(1, dtype=np.int64), 1, way, some, way, some, way, way, way, way, lane, lane
    )
    with pytest.raises(ValueError, match="belong"):
        native.functions.replay(none.copy(), 1, *[none] * 8, no_lane, no_lane)


@needs_c
def test_lanes_are_replays_of_their_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(run, Scope().in_run(run))
    replay = Replay(graph)
    recorded, other = (
        replay.arrays(work) for work in (graph.work, scenarios.no_gaps().change(run, graph, graph.work))
    )
    nothing = np.zeros(len(graph.ranks), dtype=np.int64)
    of_rank = graph.rank[replay.way_points], graph.rank[replay.unit_points]
    for lanes in (1, 3, 8, 11):
        parts = []
        for lane in range(lanes):
            ways, units = (np.flatnonzero((rank == lane % 4) & (lane < 4)) for rank in of_rank)
            parts.append(Part(ways, units, nothing))
        lengths = replay.lengths_ns(recorded, other, parts)
        for part, length in zip(parts, lengths, strict=True):
            mixed = replay.arrays(graph.work)
            mixed.weight[part.ways] = other.weight[part.ways]
            mixed.took[part.units] = other.took[part.units]
            assert replay.played_ns(mixed) == length
        with monkeypatch.context() as patch:
            patch.setattr(native, "functions", None)
            assert replay.lengths_ns(recorded, other, parts) == lengths


Change = Callable[[RunEvents, Durations], Durations]


def without_host_time(*classes: str) -> Change:
    codes = [HOST_CLASSES.index(name) for name in classes]
    return lambda events, durations: replace(
        durations, host=np.where(np.isin(events.host.kind, codes), 0, durations.host)
    )


def without_syncs(*names: str) -> Change:
    def change(events: RunEvents, durations: Durations) -> Durations:
        gone = events.host.kind == HOST_CLASSES.index("sync")
        if names:
            gone &= np.isin(events.host.name, [events.names.index(name) for name in names])
        return replace(durations, host=np.where(gone, 0, durations.host), waits=durations.waits & ~gone)

    return change


def without_transfers(events: RunEvents, durations: Durations) -> Durations:
    alone = (events.device.kind == DEVICE_CLASSES.index("comm")) & (events.device.match == NONE)
    return replace(durations, transfer=0 * durations.transfer, device=np.where(alone, 0, durations.device))


def kernels_faster(events: RunEvents, durations: Durations) -> Durations:
    twice = np.rint(durations.device / 2).astype(np.int64)
    return replace(durations, device=np.where(events.device.kind == 0, twice, durations.device))


def of_transfers(scenario: Scenario) -> Change:
    """They look at the collectives only, which both have."""
    change: Any = scenario.change
    return lambda events, durations: change(None, events, durations)


CHANGES: list[tuple[Scenario, Change]] = [
    (scenarios.hide_comm(), without_transfers),
    (scenarios.no_gaps(), without_host_time("host", "dataloader", "between")),
    (scenarios.host_ahead(), without_host_time("host", "between")),
    (scenarios.data_ready(), without_host_time("dataloader")),
    (scenarios.syncs_gone(), without_syncs()),
    (scenarios.kernel("", 2.0), kernels_faster),
    *((scenario, of_transfers(scenario)) for scenario in (scenarios.bandwidth(2.0),)),
]


def savings_in(run: Run, scope: Scope) -> Savings:
    savings = savings_of(run, scope)
    assert savings is not None and savings.off_ns == 0
    return savings


def check_savings(run: Run, slack: float = 0.0) -> None:
    """Every change saves what it saves where the run is replayed event by event; `slack` of this where the
    communication is hidden."""
    scope = Scope().in_run(run)
    savings, events = savings_in(run, scope), events_of(run, scope)
    replay = EventReplay(events)
    as_recorded = replay.play(recorded(events))
    assert as_recorded is not None and [*as_recorded] == [*Times.as_recorded(events)]
    syncs = [(scenarios.syncs_gone((name,)), without_syncs(name)) for name in sync_calls(savings.graph)]
    for scenario, change in [*CHANGES, *syncs]:
        expected = replay.length(change(events, recorded(events)))
        tolerance = slack * (savings.length - expected) if scenario.what == "communication hidden" else 0
        assert savings.length_with([scenario]) == pytest.approx(expected, rel=0, abs=tolerance), scenario.what
    for scenario in compared(run):  # what they change is in the points
        work = scenario.change(run, savings.graph, savings.graph.work)
        expected = replay.length(durations_of(events, savings.graph, work))
        assert savings.length_with([scenario]) == expected, scenario.what


def sync_calls(graph: Graph) -> set[str]:
    return {graph.names[name] for name in graph.name[graph.to[graph.is_sync]].tolist()}


def compared(run: Run) -> list[Scenario]:
    """Changes of work that is compared with that of other ranks."""
    ranks = run.ranks if len(run.ranks) > 1 else ()
    return [*map(scenarios.balanced, BALANCES), *map(scenarios.rank_at_median, ranks)]


def check_few_points(run: Run, few: Run) -> None:
    """A graph of few points gives nearly what one of all events gives: the noise of small kernels differs."""
    scope = Scope().in_run(run)
    whole, rest = savings_in(run, scope), savings_in(few, scope)
    assert len(rest.graph.rank) <= len(whole.graph.rank)
    syncs = [scenarios.syncs_gone((name,)) for name in sync_calls(whole.graph)]
    for change in [*(scenario for scenario, _ in CHANGES), *syncs]:
        assert rest.saved_ns([change]) == pytest.approx(whole.saved_ns([change]), rel=1e-4), change.what
    for change in compared(run):  # the most is 0.33 % of a step: nsys/gpt-h200 has 25 points for 2,603 events
        assert rest.saved_ns([change]) == pytest.approx(
            whole.saved_ns([change]), rel=0.02, abs=4e-3 * whole.step_ns
        ), change.what


def test_every_change_saves_what_a_replay_event_by_event_gives(run: Run) -> None:
    check_savings(run)


def test_so_it_does_with_few_points(run: Run, few: Run) -> None:
    check_few_points(run, few)


QUICK = ("ddp-gloo4", "seqpar-gloo4-slow2")
"""Hosts whose threads part and meet, and whose work becomes longer."""
RECORDED = ("seqpar-gloo4", "gpt-h200", "gpt-h200-stack", "gpt-graph-h200", "hf-trainer-h200", "captured-h200",
            "batched-p2p-h200", "seqpar-nccl1-bf16", "seqpar-nccl1-fp32", "nsys/gpt-h200",
            "nsys/seqpar-gloo2")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in RECORDED)])
def test_recorded_runs(name: str, dataset: Callable[[str], Path], tmp_path: Path) -> None:
    run, few = (Run(ingest([dataset(name)], Options(output=tmp_path / part))) for part in ("run", "few"))
    with_few_points(few)
    scope = Scope().in_run(run)
    for each in (run, few):
        check_as_recorded(each, scope)
    low, high = graph_of(run, scope).window
    expected = by_class(run, scope)
    found = {**dict.fromkeys(expected, 0), **by_class(few, scope)}
    assert found == pytest.approx(
        expected, abs=1e-3 * (high - low)
    )  # of two causes at one time, another is named
    assert pieces(graph_of(run, scope)) == plain_walk(events_of(run, scope))
    # The copy of a result to the device inside a host collective stays as long before its end as it was.
    check_windows(run)
    check_savings(run, slack=1e-3 if name == "ddp-gloo4" else 0.0)
    check_few_points(run, few)


def test_a_late_rank_costs_what_was_planted(run: Run, few: Run) -> None:
    for each in (run, few):
        saved = savings_in(each, Scope().in_run(each)).saved_ns([scenarios.rank_at_median(2)])
        assert saved == pytest.approx(LATE_NS, rel=0.02)


def test_small_kernels_have_the_same_share_everywhere(run: Run, few: Run) -> None:
    scope = Scope().in_run(run)
    events = events_of(run, scope)
    name = events.names[int(events.device.name[events.device.kind == 0][0])]
    whole, small = savings_in(run, scope), savings_in(few, scope)
    change = [scenarios.kernels([name], 2.0)]
    assert 0 < small.saved_ns(change) == pytest.approx(whole.saved_ns(change), rel=0.2)
    for savings in (whole, small):
        with pytest.raises(UsageError, match="no kernel has 'nothing like it'"):
            savings.saved_ns([scenarios.kernel("nothing like it", 2.0)])


@pytest.mark.parametrize("steps", [None, (0, 0)])
def test_the_path_has_the_same_classes(run: Run, few: Run, steps: tuple[int, int] | None) -> None:
    scope = Scope(steps=steps).in_run(run)
    assert pieces(graph_of(run, scope)) == plain_walk(events_of(run, scope))
    assert by_class(few, scope) == by_class(run, scope)
    names = {row["name"] for row in critical(few, scope).rows if row["class"] in ("compute", "copy")}
    assert SMALL in names


@pytest.mark.slow
def test_the_path_of_a_window_begins_with_what_came_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stage begins its step while the others compute backwards in the one before: that is no host time."""
    write_pipeline(PipelinePlan(stages=3, micro_batches=4, steps=2, slow_stage=1, slow_ns=900_000), tmp_path)
    run, few = (Run(ingest([tmp_path], Options(output=tmp_path / name))) for name in ("run", "few"))
    with_few_points(few)
    check_windows(run)
    for each in (run, few):
        low, high = graph_of(each, Scope(steps=(1, 1))).window
        classes = by_class(each, Scope(steps=(1, 1)))
        working = sum(ns for (kind, _), ns in classes.items() if kind in ("compute", "comm", "gap"))
        assert working > 0.99 * (high - low)


def test_predictions_of_a_large_run(run: Run, few: Run) -> None:
    scope = Scope().in_run(run)
    hidden = [scenarios.hide_comm()]
    assert whatif(few, scope, hidden).rows == whatif(run, scope, hidden).rows


def test_ranks_that_wait_in_a_cycle_are_not_replayed(run: Run) -> None:
    graph = graph_of(run, Scope().in_run(run))
    to, origin = np.concatenate([graph.to, graph.origin]), np.concatenate([graph.origin, graph.to])
    assert Replay(replace(graph, to=to, origin=origin)).has_cycle


def test_launches_into_a_full_queue_wait_for_the_device(tmp_path: Path) -> None:
    """The host launches as fast as the queue has room, so that what it seems to do is waiting for kernels."""
    depth, count, took, step = 8, 64, 1000, 10
    events: list[dict[str, Any]] = []
    now = 0
    for number in range(count):
        ends = max(now + step, (number - depth + 1) * took + step + 1) if number >= depth else now + step
        begin = max(now + step, number * took + step)
        shared = {"ph": "X", "pid": 0, "args": {"correlation": number + 1, "stream": 7, "device": 0}}
        events += [
            {
                **shared,
                "name": "cudaLaunchKernel",
                "cat": "cuda_runtime",
                "tid": 1,
                "ts": now,
                "dur": ends - now,
            },
            {**shared, "name": "gemm", "cat": "kernel", "tid": 7, "ts": begin, "dur": took},
        ]
        now = ends + 2
    trace = {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 1}}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    run = Run(ingest([tmp_path]))
    graph = graph_of(run, Scope().in_run(run))
    replay = Replay(graph)
    half = replace(graph.work, own_ns=graph.work.own_ns // 2)
    assert replay.length_ns(half) == pytest.approx(replay.length_ns(graph.work) / 2, rel=0.05)
