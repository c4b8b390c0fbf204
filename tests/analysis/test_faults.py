"""What is planted is named, priced and explained; what moves, and what is healthy, accuses nobody."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults import Fault as Found
from rankscope.analysis.faults import Faults, faults_of
from rankscope.analysis.faults.axes import QUIET, Axis, Replays, link_axis, rank_axis, step_axis
from rankscope.analysis.faults.naming import _moving, _recurs
from rankscope.analysis.faults.targets import _median_of_others, level_cut, longest_cut, one_factor, pieces_of
from rankscope.analysis.graph import reduce
from rankscope.analysis.graph.events import NONE
from rankscope.analysis.graph.graph import graph_of
from rankscope.analysis.graph.pieces import aligned_steps
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.exam.cases import all_cases, plant
from rankscope_bench.synthetic.balance import balance, balanced_durations
from rankscope_bench.synthetic.cluster import Fault, Job, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces

MS = 1_000_000
ALL = (0, 1, 2, 3)
JOB = Job(data=4, layers=2, kernels=2, steps=6, seed=3)
EIGHT = replace(JOB, steps=8)
LONG = replace(JOB, steps=12)
GRID = replace(JOB, tensor=2)
PIPELINE = Job(
    data=2, stages=4, schedule="1f1b", p2p="batched", micro_batches=4, norm_ns=40_000, layers=1, steps=3, seed=3
)  # fmt: skip
SINGLE_STAGES = replace(PIPELINE, data=1)
SHARDED = Job(
    data=4, model="gpt", sharded=True, layers=2, micro_batches=1, bus_gb_s=300.0, latency_ns=12_000, steps=6, seed=1
)  # fmt: skip
HOST_BOUND = replace(JOB, kernels=12, forward_ns=48_000, bucket_ns=60_000)
EXPERTS = replace(JOB, expert_ns=700_000)

Runs = Callable[[Job], Run]
Names = dict[int, str]
"""Who is named, and the class of the cause; of a cause that the test looks at more closely, also how."""


class In(Fault):
    """In these steps, and `ns` longer in each."""

    steps: tuple[int, ...] = ()

    def in_step(self, step: int) -> int:
        return self.ns * (step in self.steps)


def in_steps(ranks: Iterable[int], ns: int, *steps: int, kind: str = "host") -> Fault:
    """A pause of the host."""
    fault = In(kind, tuple(ranks), ns)
    object.__setattr__(fault, "steps", steps)
    return fault


def with_faults(job: Job, *faults: Fault) -> Job:
    return replace(job, faults=faults)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The run of a job, simulated once."""
    known: dict[str, Run] = {}

    def run_of(job: Job) -> Run:
        name = repr((job, [getattr(fault, "steps", ()) for fault in job.faults]))
        if name not in known:
            folder = tmp_path_factory.mktemp("faults")
            write_traces(job, simulate(job), folder)
            known[name] = Run(ingest([folder]))
        return known[name]

    return run_of


def ask(run: Run, scope: Scope | None = None) -> Faults:
    return faults_of(run, scope or Scope().in_run(run))


def said(answer: Faults, axis: str = "rank") -> Names:
    return {
        each.number: each.cause.kind
        for fault in answer.listed
        if fault.axis == axis
        for each in fault.subjects
    }


def only(answer: Faults) -> Found:
    (fault,) = answer.listed
    return fault


def without(job: Job, *kept: int) -> float:
    """The step where only these faults are left. Without size they leave all random numbers as they are."""
    faults = [
        fault if number in kept else replace(fault, ns=0, every=0) for number, fault in enumerate(job.faults)
    ]
    return step_ns(simulate(replace(job, faults=tuple(faults))))


# The arithmetic


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), min_size=1, max_size=12),
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.booleans(),
)
def test_the_median_of_the_others_counts_who_is_missing_as_nothing(
    entries: list[tuple[int, int]], members: list[int], with_itself: bool
) -> None:
    place, value = np.array(entries, dtype=np.int64).T
    found = _median_of_others(place, value, np.array(members)[place], with_itself=with_itself)
    for at, (where, mine) in enumerate(entries):
        others = [v for i, (p, v) in enumerate(entries) if p == where and (with_itself or i != at)]
        there = len(others) + (not with_itself)
        others += [0] * (members[where] - there)
        assert found[at] == (np.rint(np.median(others)) if others else mine)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
)
def test_what_is_too_much_is_cut_from_the_longest(pieces: list[tuple[int, int]], too_much: list[int]) -> None:
    stretch, excess = np.array(pieces, dtype=np.int64).T
    taken = longest_cut(stretch, excess, np.array(too_much))
    for number, wanted in enumerate(too_much):
        mine = stretch == number
        assert taken[mine].sum() == min(wanted, excess[mine].sum())
    for at, (number, much) in enumerate(pieces):
        assert 0 <= taken[at] <= much
        if taken[at] < much:  # nothing is taken from shorter ones then
            assert not taken[(stretch == number) & (excess < much)].any()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=12),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
)
def test_the_longest_are_cut_to_one_level(pieces: list[tuple[int, int]], too_much: list[int]) -> None:
    stretch, excess = np.array(pieces, dtype=np.int64).T
    left = excess - level_cut(stretch, excess, np.array(too_much))
    for number, wanted in enumerate(too_much):
        mine = stretch == number
        if not mine.any():
            continue
        level = left[mine].max()
        assert (left[mine] == np.minimum(excess[mine], level)).all()
        lost = (excess - left)[mine].sum()
        # The level is a whole number.
        assert min(wanted, excess[mine].sum()) <= lost < wanted + mine.sum()


@pytest.mark.slow
def test_a_place_is_the_nth_piece_of_its_name_in_a_stretch(runs: Runs) -> None:
    pieces = pieces_of(runs(CULPRITS["different sizes"][0]), Scope(steps=(1, 2)))
    used = np.flatnonzero(pieces.step != NONE)
    place = pieces.places(used, pieces.rank, pieces.stretch)
    seen: dict[tuple[int, ...], int] = {}
    number: dict[tuple[int, ...], int] = {}
    launched = pieces.graph.launched[pieces.point[used]]
    for at in np.argsort(launched, kind="stable").tolist():
        piece = used[at]
        what = (pieces.stretch[piece], pieces.kind[piece], pieces.is_own[piece], pieces.name[piece])
        whose = (pieces.rank[piece], pieces.step[piece], *what)
        seen[whose] = seen.get(whose, -1) + 1
        assert number.setdefault((*what, seen[whose]), place[at]) == place[at]
    assert len({*number.values()}) == len(number)


@pytest.mark.slow
@pytest.mark.parametrize("job", [GRID, PIPELINE], ids=["grid", "pipeline"])
@settings(max_examples=5, deadline=None)
@given(ahead=st.lists(st.integers(0, 9), min_size=8, max_size=8))
def test_ranks_may_count_steps_differently(runs: Runs, job: Job, ahead: list[int]) -> None:
    run = runs(job)
    graph = graph_of(run, Scope().in_run(run))
    steps = np.where(graph.step != NONE, graph.step + np.array(ahead)[graph.rank], NONE)
    assert (aligned_steps(replace(graph, step=steps)) == aligned_steps(graph)).all()


@given(
    st.integers(4, 20),
    st.integers(1, 10),
    st.data(),
    st.lists(st.floats(0.95, 1.05), min_size=20, max_size=20),
)
def test_what_comes_every_few_steps_recurs(
    steps: int, period: int, data: st.DataObject, noise: list[float]
) -> None:
    first = data.draw(st.integers(0, period - 1))
    late = range(first, steps, period)
    assume(len(late) >= 2)
    values = np.zeros(steps)
    values[late] = np.array(noise)[late]
    assert _recurs(values, 1.0)
    if len(late) > 3 and period > 1:
        values[late[len(late) // 2]] = 0
        assert not _recurs(values, 1.0)


@pytest.mark.parametrize("late", [(3,), (0, 1), (3, 4), (1, 2, 7), (0, 4, 6, 11)])
def test_what_comes_now_and_then_does_not(late: tuple[int, ...]) -> None:
    values = np.zeros(12)
    values[[*late]] = 1.0
    assert not _recurs(values, 1.0)
    assert not _recurs(np.array([1.0, 0.1] * 6) * np.arange(12), 100.0)


def test_one_factor_of_most_of_the_time() -> None:
    took, usual = np.array([150, 30, 0, 20]), np.array([100, 20, 0, 20])
    assert one_factor(took, usual) == pytest.approx(200 / 140)
    assert one_factor(took, usual, of=500.0) is None  # most is something else
    assert one_factor(usual, usual) is None


PLANTED = with_faults(
    replace(GRID, steps=4),
    Fault("host", (5,), 2 * MS),
    Fault("link", (2,), MS),
    in_steps(range(8), 4 * MS, 2),
)


@pytest.mark.slow
@pytest.mark.parametrize("make", [rank_axis, link_axis, step_axis])
def test_margins_are_those_of_leaving_each_out_by_itself(runs: Runs, make: Callable[[Replays], Axis]) -> None:
    run = runs(PLANTED)
    replays = Replays(run, Scope().in_run(run))
    axis = make(replays)
    assert axis.value_ns > 0
    for subject in axis.subjects:
        others = [other for other in axis.subjects if other != subject]
        alone = axis.margin_ns(subject)
        assert alone == pytest.approx(axis.value_ns - axis.alone_ns(others))
        found = axis.margins_ns[subject]
        assert found == alone or (found == 0 and alone < QUIET * replays.step_ns)
        # A step costs no more than it would with all others as they were.
        assert (axis.by_step.get(subject, np.zeros(1)) / replays.steps <= alone + 1).all()


# What is planted

CULPRITS: dict[str, tuple[Job, dict[int, str]]] = {
    "each elsewhere": (
        with_faults(
            JOB,
            Fault("compute", (0,), 6 * MS),
            Fault("compute", (1,), 6 * MS),
            Fault("host", (2,), 6 * MS),
            Fault("dataloader", (3,), 6 * MS),
        ),
        {0: "compute", 1: "compute", 2: "host", 3: "dataloader"},
    ),
    "different sizes": (
        with_faults(
            JOB,
            Fault("copy", (1,), 3 * MS),
            Fault("host", (2,), MS),
            Fault("dataloader", (3,), 2 * MS, every=2),
        ),
        {1: "copy", 2: "host", 3: "dataloader"},
    ),
    "alternating": (
        with_faults(EIGHT, Fault("compute", (1,), 3 * MS, every=2), Fault("host", (2,), 3 * MS, every=3)),
        {1: "compute", 2: "host"},
    ),
    "neither alone": (
        with_faults(JOB, Fault("compute", (1,), 4 * MS), Fault("throttle", (2,), 4 * MS)),
        {1: "compute", 2: "compute"},
    ),
    "garbage collection": (with_faults(EIGHT, Fault("gc", (2,), 3 * MS)), {2: "host"}),
    "one step": (with_faults(LONG, in_steps([2], 6 * MS, 4)), {2: "host"}),
    "uneven steps": (with_faults(LONG, in_steps([2], 6 * MS, 1, 5, 6, 9)), {2: "host"}),
    "steady beside one step": (
        with_faults(LONG, Fault("compute", (1,), 2 * MS), in_steps([2], 6 * MS, 4)),
        {1: "compute", 2: "host"},
    ),
    "a core": (with_faults(HOST_BOUND, Fault("contention", (1,), 500_000)), {1: "host"}),
    "sharded": (with_faults(SHARDED, Fault("host", (2,), 2 * MS)), {2: "host"}),
    "expert": (with_faults(EXPERTS, Fault("experts", (2,), 3 * MS)), {2: "compute"}),
    "pipeline": (with_faults(PIPELINE, Fault("compute", (2,), 4 * MS)), {2: "compute"}),
    "interleaved": (
        with_faults(
            replace(PIPELINE, schedule="interleaved", chunks=2, layers=2), Fault("throttle", (3,), 5 * MS)
        ),
        {3: "compute"},
    ),
    "no twin, compute": (with_faults(SINGLE_STAGES, Fault("compute", (2,), 4 * MS)), {2: "compute"}),
    "no twin, host": (with_faults(SINGLE_STAGES, Fault("host", (2,), 12 * MS)), {2: "host"}),
    "no twin, data": (with_faults(SINGLE_STAGES, Fault("dataloader", (0,), 6 * MS)), {0: "dataloader"}),
    "two ranks": (with_faults(replace(JOB, data=2), Fault("host", (1,), 3 * MS)), {1: "host"}),
}


def check_costs(run: Run, answer: Faults) -> None:
    """They add up to what is saved with all of them mended."""
    replays = Replays(run, Scope().in_run(run))
    assert all(fault.cost_ns > 0 for fault in answer.listed)
    assert sum(fault.cost_ns for fault in answer.listed) == pytest.approx(answer.joint_ns)
    assert answer.joint_ns == pytest.approx(replays.saved_ns(answer.mended))


@pytest.mark.slow
@pytest.mark.parametrize("name", CULPRITS)
def test_late_ranks_are_named_with_what_they_cost(runs: Runs, name: str) -> None:
    job, expected = CULPRITS[name]
    answer = ask(runs(job))
    assert {fault.axis for fault in answer.listed} == {"rank"} and said(answer) == expected
    step, healthy = step_ns(simulate(job)), without(job)
    assert answer.joint_ns == pytest.approx(step - healthy, rel=0.03, abs=0.005 * step)
    margins = {each.number: each for fault in answer.listed for each in fault.subjects}
    for number, fault in enumerate(job.faults):
        true = without(job, number) - healthy if len(job.faults) > 1 else step - healthy
        culprit = margins[fault.ranks[0]]
        assert culprit.margin_ns == pytest.approx(true, rel=0.08, abs=0.01 * step)
        assert culprit.cause.explained_ns >= 0.75 * culprit.margin_ns


@pytest.mark.parametrize(
    ("name", "rank", "how", "text"),
    [
        ("each elsewhere", 0, "extra", "reduce_kernel"),
        ("each elsewhere", 3, "longer", "waiting for data"),
        ("different sizes", 1, "longer", "Memcpy HtoD"),
        ("neither alone", 2, "slower", "backward"),
        ("a core", 1, "slower", "aten::mm"),
        ("expert", 2, "longer", "grouped_gemm"),
    ],
)
def test_the_cause_says_how_and_what(runs: Runs, name: str, rank: int, how: str, text: str) -> None:
    answer = ask(runs(CULPRITS[name][0]))
    (found,) = (each for fault in answer.listed for each in fault.subjects if each.number == rank)
    assert found.cause.how == how
    assert any(text in each for each in found.cause.names), found.cause.names


def test_the_steps_in_which_a_rank_is_late(runs: Runs) -> None:
    for name, expected in (
        ("alternating", {1: (1, 3, 5, 7), 2: (2, 5)}),
        ("uneven steps", {2: (1, 5, 6, 9)}),
        ("one step", {2: (4,)}),
    ):
        answer = ask(runs(CULPRITS[name][0]))
        assert {e.number: e.late_steps for f in answer.listed for e in f.subjects} == expected


HALVES = {
    "compute": with_faults(JOB, Fault("compute", (1, 3), 3 * MS)),
    "host": with_faults(replace(JOB, data=8, steps=4), Fault("host", (0, 2, 4, 6), 3 * MS)),
    "node": with_faults(
        replace(JOB, data=8, steps=4, ranks_per_node=4), Fault("throttle", (4, 5, 6, 7), 2 * MS)
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HALVES)
def test_half_of_the_ranks(runs: Runs, name: str) -> None:
    job = HALVES[name]
    fault = only(ask(runs(job)))
    assert {each.number for each in fault.subjects} == {*job.faults[0].ranks}
    assert fault.cost_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        with_faults(
            Job(data=4, tensor=4, layers=1, kernels=2, steps=3, seed=1, ranks_per_node=4),
            Fault("throttle", (4, 5, 6, 7), 2 * MS),
        ),
        with_faults(
            replace(PIPELINE, stages=2, data=2, tensor=4, layers=1, kernels=1, steps=3, ranks_per_node=4, seed=1),
            Fault("throttle", (12, 13, 14, 15), 8 * MS),
            Fault("compute", (1,), 6 * MS),
        ),
    ],
    ids=["alone", "beside a rank"],
)  # fmt: skip
def test_a_node_whose_clocks_are_low(runs: Runs, job: Job) -> None:
    """All kernels of its ranks are longer by one factor; a late rank elsewhere is a fault of its own."""
    answer = ask(runs(job))
    subjects = [each for fault in answer.listed for each in fault.subjects]
    how = {each.number: (each.cause.kind, each.cause.how) for each in subjects}
    expected = dict.fromkeys(job.faults[0].ranks, ("compute", "slower"))
    expected |= {rank: ("compute", "extra") for other in job.faults[1:] for rank in other.ranks}
    assert how == expected and len(answer.listed) == len(job.faults)
    slow = [each.cause.factor for each in subjects if each.cause.how == "slower"]
    assert min(factor or 0 for factor in slow) > 1.3
    assert answer.joint_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.03)


LINKS = {
    "data": with_faults(GRID, Fault("link", (3,), 3 * MS)),
    "tensor": with_faults(replace(GRID, data=2, tensor=4), Fault("link", (6,), 3 * MS)),
    "now and then": with_faults(JOB, Fault("link", (2,), 3 * MS, every=3)),
    "stages": with_faults(replace(PIPELINE, stages=2, tensor=2), Fault("link", (5,), 5 * MS)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LINKS)
def test_a_slow_link_is_that_of_its_groups(runs: Runs, name: str) -> None:
    job = LINKS[name]
    run = runs(job)
    fault = only(ask(run))
    assert (fault.axis, {each.cause.kind for each in fault.subjects}) == ("link", {"transfer"})
    for each in fault.subjects:
        assert job.faults[0].ranks[0] in (run.collectives.groups[each.number].ranks or ())
    assert fault.cost_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.03)


@pytest.mark.slow
def test_one_slow_step_of_all_ranks(runs: Runs) -> None:
    job = with_faults(LONG, in_steps(ALL, 6 * MS, 7))
    fault = only(ask(runs(job)))
    assert (fault.axis, [each.number for each in fault.subjects]) == ("step", [7])
    assert fault.cost_ns == pytest.approx(MS / 2, rel=0.03)


@pytest.mark.slow
def test_a_late_rank_and_a_slow_step(runs: Runs) -> None:
    job = with_faults(LONG, Fault("compute", (2,), 2 * MS), in_steps(ALL, 6 * MS, 7))
    answer = ask(runs(job))
    assert [fault.axis for fault in answer.listed] == ["rank", "step"]
    assert said(answer) == {2: "compute"} and said(answer, "step") == {7: "host"}
    assert answer.joint_ns == pytest.approx(2.5 * MS, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "layers"), [(PIPELINE, (1, 1, 2, 1)), (SINGLE_STAGES, (1, 1, 1, 2))], ids=["twins", "no twins"]
)
def test_a_stage_with_more_layers_costs_what_moving_them_saves(
    runs: Runs, job: Job, layers: tuple[int, ...]
) -> None:
    uneven = replace(job, stage_layers=layers)
    fault = only(ask(runs(uneven)))
    (stage,) = fault.subjects
    assert (fault.axis, stage.number) == ("stage", layers.index(2))
    assert (stage.cause.kind, stage.cause.how) == ("compute", "extra")
    times = balance(uneven)
    assert fault.cost_ns == pytest.approx(times["ranks_ns"] - times["stages_ns"], rel=0.03)


class LongThird(Job):
    """The third micro-batch is one and a half times as long."""

    def length(self, step: int, batch: int, data: int) -> float:
        return 1.5 if batch == 2 else 1.0


class LongLast(Job):
    """The last one, which sends its gradients in backward."""

    def length(self, step: int, batch: int, data: int) -> float:
        return 2.0 if batch == self.batches - 1 else 1.0


class LongElsewhere(Job):
    """Another one in each step, the same on all ranks."""

    def length(self, step: int, batch: int, data: int) -> float:
        return 2.0 if batch == 3 * step % self.batches else 1.0


class LongOnOneRank(Job):
    def length(self, step: int, batch: int, data: int) -> float:
        return 2.0 if (batch, data) == (2, 1) else 1.0


def as_long(kind: type[Job], job: Job) -> Job:
    return kind(**{field.name: getattr(job, field.name) for field in fields(job)})


SCHEDULES = {
    "1f1b": PIPELINE,
    "no twins": SINGLE_STAGES,
    "gpipe": replace(PIPELINE, schedule="gpipe", p2p="separate"),
    "interleaved": replace(PIPELINE, schedule="interleaved", chunks=2, layers=2),
    "eight": replace(PIPELINE, micro_batches=8, steps=6),
    "two stages": replace(PIPELINE, stages=2, tensor=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_micro_batch_that_is_long_on_all_ranks(runs: Runs, name: str) -> None:
    job = SCHEDULES[name]
    long = as_long(LongThird, job)
    fault = only(ask(runs(long)))
    (batch,) = fault.subjects
    assert (fault.axis, batch.number) == ("position", 3)
    assert batch.cause.kind == "compute"
    if name != "gpipe":  # the replay of its messages is shorter than the simulation
        assert fault.cost_ns == pytest.approx(step_ns(simulate(long)) - step_ns(simulate(job)), rel=0.03)


@pytest.mark.slow
def test_the_last_micro_batch_is_compared_too(runs: Runs) -> None:
    fault = only(ask(runs(as_long(LongLast, PIPELINE))))
    assert (fault.axis, [each.number for each in fault.subjects]) == ("position", [4])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [LongElsewhere, LongOnOneRank])
def test_a_micro_batch_is_not_named(runs: Runs, kind: type[Job]) -> None:
    """Where it is another one in each step, or long on a few ranks only."""
    assert not said(ask(runs(as_long(kind, replace(PIPELINE, steps=8)))), "position")


MOVING = {
    "moving": with_faults(JOB, Fault("moving", ALL, 4 * MS)),
    "experts": with_faults(EXPERTS, Fault("experts", ALL, 3 * MS)),
    "lengths": with_faults(JOB, Fault("lengths", ALL, 4 * MS)),
    "in turn": with_faults(
        EIGHT, *(Fault("host", (rank,), round(8 * MS / every), every=every) for rank, every in enumerate((5, 6, 7, 8)))
    ),
    "sharded": with_faults(
        replace(SHARDED, steps=8),
        *(Fault("host", (rank,), round(8 * MS / every), every=every) for rank, every in enumerate((5, 6, 7, 8))),
    ),
    "every third step by chance": with_faults(
        EIGHT,
        *(
            in_steps([rank], 3 * MS, *steps, kind="compute")
            for rank, steps in enumerate([(2, 4), (0, 3, 6), (5,), (1, 7)])
        ),
    ),
    "one more often than two others": with_faults(
        EIGHT, *(in_steps([rank], 3 * MS, *steps, kind="compute") for rank, steps in enumerate([(2, 5, 7), (3,), (4,)]))
    ),
}  # fmt: skip


HOST_BOUND_STAGES = replace(
    HOST_BOUND, data=1, stages=4, kernels=16, layers=2, sum_ns=20_000, send_ns=20_000, offset_ns=MS
)  # fmt: skip
SLOW_STAGES = {
    "a device": (with_faults(SINGLE_STAGES, Fault("throttle", (2,), 6 * MS)), 2, "compute"),
    "a node": (with_faults(replace(PIPELINE, ranks_per_node=2), Fault("throttle", (4, 5), 6 * MS)), 2, "compute"),
    "a core": (with_faults(HOST_BOUND_STAGES, Fault("contention", (1,), 1_600_000)), 1, "host"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_STAGES)
def test_a_stage_that_is_slow_costs_what_its_repair_saves(runs: Runs, name: str) -> None:
    job, number, kind = SLOW_STAGES[name]
    fault = only(ask(runs(job)))
    (stage,) = fault.subjects
    assert (fault.axis, stage.number, stage.cause.kind, stage.cause.how) == ("stage", number, kind, "slower")
    assert fault.cost_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.05)


@pytest.mark.slow
def test_pieces_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in large runs, where only the longest have one."""
    monkeypatch.setattr(reduce, "is_large", lambda run: True)
    monkeypatch.setattr(reduce, "_LARGEST", 64)
    job, number, _ = SLOW_STAGES["a node"]
    write_traces(job, simulate(job), tmp_path)
    fault = only(ask(Run(ingest([tmp_path]))))
    assert (fault.subjects[0].number, fault.subjects[0].cause.how) == (number, "slower")
    assert fault.cost_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.08)


@pytest.mark.slow
def test_layers_cost_what_moving_them_saves_where_stages_turn_round(runs: Runs) -> None:
    """A pass begins when its message has come, also where that was there long before."""
    uneven = replace(HEALTHY["gpipe"], norm_ns=0, stages=2, stage_layers=(4, 2))
    moved = step_ns(simulate(uneven)) - step_ns(simulate(uneven, balanced_durations(uneven, "stages")))
    assert only(ask(runs(uneven))).cost_ns == pytest.approx(moved, rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 6])
def test_a_slow_core_among_pauses_now_and_then(runs: Runs, ranks: int) -> None:
    pauses = [in_steps([rank], 300_000, rank, rank + 1) for rank in (0, 3) if rank < ranks]
    slow = replace(HOST_BOUND, data=ranks, steps=6)
    answer = ask(runs(with_faults(slow, Fault("contention", (1,), 500_000), *pauses)))
    assert said(answer) == {1: "host"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVING)
def test_what_moves_accuses_nobody(runs: Runs, name: str) -> None:
    job = MOVING[name]
    fault = only(ask(runs(job)))
    assert fault.moves and not fault.subjects and len({*fault.turns}) > 1
    if name in ("lengths", "experts"):
        times = balance(job)
        expected = times["t_ns"] - times["ranks_ns"]
    else:
        expected = step_ns(simulate(job)) - without(job)
    assert fault.cost_ns == pytest.approx(expected, rel=0.08)
    if name in ("in turn", "sharded"):  # the last four steps have one culprit each
        assert fault.turns[4:] == (0, 1, 2, 3)


@pytest.mark.slow
def test_lengths_of_two_that_do_the_same_accuse_nobody(runs: Runs) -> None:
    """In a step one of two has more work as a whole; but its micro-batches are now longer, now shorter."""
    (case,) = (each for each in all_cases(102) if each.name == "lengths-15%-pp4dp2-1f1b-0")
    planted = plant(case)
    fault = only(ask(runs(planted.job)))
    assert fault.moves and fault.varies
    assert fault.cost_ns == pytest.approx(planted.cost_ns, rel=0.08)


HEALTHY = {
    "data": replace(JOB, noise_pct=4.0),
    "grid": GRID,
    "sharded": SHARDED,
    "experts": EXPERTS,
    "host-bound": HOST_BOUND,
    "pipeline": PIPELINE,
    "no twins": SINGLE_STAGES,
    "interleaved": replace(PIPELINE, schedule="interleaved", chunks=2, layers=2),
    "gpipe": replace(PIPELINE, schedule="gpipe", p2p="separate"),
    "all alike": with_faults(JOB, Fault("dataloader", ALL, 3 * MS)),
    "every sixth step": with_faults(LONG, Fault("compute", ALL, 3 * MS, every=6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_where_all_are_alike_nobody_is_named(runs: Runs, name: str) -> None:
    answer = ask(runs(HEALTHY[name]))
    assert (answer.listed, answer.joint_ns) == ((), 0.0)


@pytest.mark.slow
def test_what_belongs_to_the_job_is_noted(runs: Runs) -> None:
    (note,) = ask(runs(HEALTHY["every sixth step"])).notes
    assert re.fullmatch(r"One step in 6 takes 1[78]\.\d ms longer on all ranks: .+\.", note), note
    (note,) = ask(runs(with_faults(LONG, in_steps(ALL, 6 * MS, 0)))).notes
    assert re.fullmatch(r"Step 0, the first of its recording, takes (5\.9|6\.0)\d ms longer\.", note), note
    assert not ask(runs(JOB)).notes


NODE = replace(JOB, data=8, steps=4, ranks_per_node=4)


@pytest.mark.slow
def test_a_node_and_a_rank_are_two_faults(runs: Runs) -> None:
    """The rank waits for the slow GPUs; it is late for a reason of its own."""
    job = with_faults(NODE, Fault("throttle", (4, 5, 6, 7), 4 * MS), Fault("host", (1,), 2 * MS))
    answer = ask(runs(job))
    node, rank = sorted(answer.listed, key=lambda fault: -len(fault.subjects))
    assert [each.ranks for each in node.nodes] == [(4, 5, 6, 7)] and not rank.nodes
    assert [each.number for each in rank.subjects] == [1]
    assert answer.joint_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.03)


@pytest.mark.slow
def test_reasons_that_do_not_hide_each_other_are_two_faults(runs: Runs) -> None:
    """Rank 1 is late in every step, and rank 2 in one: who is mended first changes little."""
    first, second = ask(runs(CULPRITS["steady beside one step"][0])).listed
    assert ([each.number for each in first.subjects], first.subjects[0].cause.kind) == ([1], "compute")
    assert ([each.number for each in second.subjects], second.subjects[0].late_steps) == ([2], (4,))


@pytest.mark.slow
def test_a_steady_rank_that_others_hide_in_turn(runs: Runs) -> None:
    """Mending it alone saves nothing: in each step another rank pauses for longer."""
    turns = [in_steps([rank], 3 * MS, step) for step, rank in enumerate((2, 3, 4, 5, 6, 7))]
    job = with_faults(replace(JOB, data=8, steps=6), Fault("compute", (1,), 2 * MS), *turns)
    answer = only(ask(runs(job)))
    assert answer.moves and answer.cost_ns == pytest.approx(3 * MS, rel=0.05)


@pytest.mark.slow
def test_half_of_the_ranks_late_in_the_same_steps_take_no_turns(runs: Runs) -> None:
    late = (4, 5, 6, 7)
    answer = ask(runs(with_faults(replace(NODE, steps=8), in_steps(late, 3 * MS, 1, 2, 4, 5, 7))))
    assert sorted(said(answer)) == [*late] and not any(fault.moves for fault in answer.listed)


def test_a_whole_run_is_no_node(runs: Runs) -> None:
    assert only(ask(runs(with_faults(JOB, Fault("compute", (1, 2), 3 * MS))))).nodes == ()


def test_what_a_subject_costs_in_each_step(runs: Runs) -> None:
    for fault in ask(runs(CULPRITS["alternating"][0])).listed:
        for each in fault.subjects:
            late = [each.by_step[step] for step in each.late_steps]
            assert sum(each.by_step) == pytest.approx(sum(late), abs=0.05 * sum(late))
            assert sum(late) / len(each.by_step) == pytest.approx(each.margin_ns, rel=0.05)


def test_the_slow_groups_of_a_link(runs: Runs) -> None:
    run = runs(LINKS["data"])
    (link,) = only(ask(run)).subjects
    names = {run.collectives.groups[group].ranks for group in link.groups}
    assert len(names) == 2 and all(3 in (ranks or ()) for ranks in names)


@pytest.mark.parametrize(("turns", "moves"), [("1111.2", False), ("112.33", True)])
def test_what_is_compared_with_itself_moves_where_nobody_has_most_turns(turns: str, moves: bool) -> None:
    by_step = {rank: np.array([0.1 * (turn == str(rank)) for turn in turns]) for rank in (1, 2, 3)}
    axis = SimpleNamespace(
        by_step=by_step,
        replays=SimpleNamespace(step_ns=1.0, steps=len(turns)),
        value_ns=0.08,
        lone={1, 2, 3},
        subjects=(1, 2, 3),
        below_share=lambda _: 0.0,
        main_class=lambda _: "compute",
        is_diffuse=lambda _: False,
        swings=lambda *_: False,
    )
    assert _moving(cast(Axis, axis), take_turns=True).moves == moves


def test_an_example_of_what_moves(runs: Runs) -> None:
    for name in MOVING:
        fault = only(ask(runs(MOVING[name])))
        assert fault.varies == (name in ("lengths", "experts"))
        assert fault.example and fault.example.late_steps
        for step in fault.example.late_steps:
            assert fault.turns[step] in (fault.example.number, None) or name not in ("moving", "in turn")


# What is recorded

LATE = with_faults(JOB, Fault("compute", (2,), 3 * MS))


def test_one_step_is_enough(runs: Runs) -> None:
    run, steps = runs(LATE), (3, 3)
    fault = only(ask(run, Scope(steps=steps)))
    assert [each.number for each in fault.subjects] == [2]
    assert fault.cost_ns == pytest.approx(3 * MS, rel=0.03)
    assert not ask(run, Scope(ranks=frozenset({2}))).listed  # alone there is nobody to compare with
    assert not ask(runs(JOB), Scope(steps=steps)).listed


def rewritten(job: Job, folder: Path, change: Callable[[int, str], str]) -> Run:
    """The run with other words in the trace of each rank."""
    write_traces(job, simulate(job), folder)
    for rank, path in enumerate(sorted(folder.glob("*.json.gz"))):
        with gzip.open(path, "rt") as file:
            text = file.read()
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.write(change(rank, text))
    return Run(ingest([folder]))


@pytest.mark.slow
def test_work_whose_launches_were_not_recorded_hides_nobody(tmp_path: Path) -> None:
    """Kernels on a stream that never pauses: of each time something ended there just before."""

    def with_busy_stream(_: int, text: str) -> str:
        trace = json.loads(text)
        events = trace["traceEvents"]
        kernel = next(event for event in events if event.get("cat") == "kernel")
        first, last = (limit(event["ts"] for event in events if "dur" in event) for limit in (min, max))
        events += [
            kernel | {"tid": 99, "name": "busy", "ts": at, "dur": 6.5}
            | {"args": {**kernel["args"], "stream": 99, "correlation": 10**7 + round(at)}}
            for at in np.arange(first, last, 7.0).tolist()
        ]  # fmt: skip
        return json.dumps(trace)

    job = with_faults(JOB, Fault("host", (2,), 4 * MS))
    answer = ask(rewritten(job, tmp_path, with_busy_stream))
    assert said(answer) == {2: "host"}
    assert answer.joint_ns == pytest.approx(step_ns(simulate(job)) - without(job), rel=0.03)


def test_a_last_kernel_without_its_launch(tmp_path: Path) -> None:
    def event(category: str, name: str, start: int, took: int, **args: int) -> dict[str, object]:
        on = {"pid": 0, "tid": 7} if category == "kernel" else {"pid": 1, "tid": 1}
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": took, "args": args, **on}

    events = [
        event("cpu_op", "aten::mm", 0, 10),
        event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        event("kernel", "gemm", 10, 100, device=0, stream=7, correlation=1),
        event("kernel", "launched_before", 200, 120, device=0, stream=7, correlation=0),
    ]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": events}))
    assert not ask(Run(ingest([trace]))).listed


def test_ranks_whose_step_numbers_differ(tmp_path: Path) -> None:
    def renumbered(rank: int, text: str) -> str:
        return re.sub(r"ProfilerStep#(\d+)", lambda step: f"ProfilerStep#{int(step[1]) + 7 * rank}", text)

    job = with_faults(JOB, Fault("compute", (2,), 3 * MS, every=3))
    (subject,) = only(ask(rewritten(job, tmp_path, renumbered))).subjects
    assert (subject.number, subject.late_steps) == (2, (2, 5))
    assert subject.margin_ns == pytest.approx(3 * MS, rel=0.03)


@pytest.mark.parametrize("job", [LATE, JOB], ids=["late", "healthy"])
def test_without_steps_the_file_is_one(job: Job, tmp_path: Path) -> None:
    run = rewritten(job, tmp_path, lambda _, text: re.sub(r"ProfilerStep#|Optimizer\.step#", "part ", text))
    answer = ask(run)
    if job.faults:
        (subject,) = only(answer).subjects
        assert (subject.number, subject.cause.kind) == (2, "compute")
        assert answer.joint_ns / answer.step_ns == pytest.approx(3 / 8.6, rel=0.05)
    else:
        assert not answer.listed


def test_two_of_many_ranks(tmp_path: Path) -> None:
    job = with_faults(replace(JOB, data=16, steps=3), Fault("compute", (5,), 3 * MS))
    write_traces(job, simulate(job), tmp_path)
    for rank, path in enumerate(sorted(tmp_path.glob("*.json.gz"))):
        if rank not in (3, 5):
            path.unlink()
    fault = only(ask(Run(ingest([tmp_path]))))
    assert [each.number for each in fault.subjects] == [5]
    assert fault.cost_ns == pytest.approx(3 * MS, rel=0.03)


def test_clocks_that_differ_change_nothing(runs: Runs) -> None:
    answer = ask(runs(replace(LATE, offset_ns=50 * MS, drift_ppb=20_000)))
    assert said(answer) == {2: "compute"}
    assert answer.joint_ns == pytest.approx(3 * MS, rel=0.03)


def test_the_order_of_faults_is_by_cost(runs: Runs) -> None:
    for job in (PLANTED, *(CULPRITS[name][0] for name in ("a core", "each elsewhere"))):
        run = runs(job)
        answer = ask(run)
        margins = [[each.margin_ns for each in fault.subjects] for fault in answer.listed]
        assert all(a >= b for each in margins for a, b in pairwise(each))
        assert 0 < answer.joint_ns < answer.step_ns
        check_costs(run, answer)


def recorded(path: Path, cache: Path) -> Faults:
    return ask(Run(ingest([path], Options(cache=cache))))


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize("name", ["seqpar-gloo4", "ddp-gloo4", "seqpar-nccl1-bf16"])
def test_healthy_recordings(name: str, dataset: Callable[[str], Path], tmp_path: Path) -> None:
    answer = recorded(dataset(name), tmp_path)
    assert answer.joint_ns < 0.05 * answer.step_ns


@pytest.mark.slow
def test_a_recorded_rank_that_computes_more(dataset: Callable[[str], Path], tmp_path: Path) -> None:
    (subject,) = only(recorded(dataset("seqpar-gloo4-slow2"), tmp_path)).subjects
    assert (subject.number, subject.cause.kind, subject.cause.how) == (2, "compute", "extra")
    assert subject.margin_ns == pytest.approx(10.6 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("name", "cause", "cost_ns"), [("ddp-none", "", 0.0), ("ddp-host", "host", 30.3 * MS), ("ddp-gpu", "compute", 0.0)]
)  # fmt: skip
def test_ranks_over_real_nccl(name: str, cause: str, cost_ns: float, shared: Path, tmp_path: Path) -> None:
    answer = recorded(shared / "kineto" / "nccl4" / name, tmp_path)
    assert said(answer) == ({2: cause} if cause else {})
    if cost_ns:
        assert answer.joint_ns == pytest.approx(cost_ns, rel=0.02)
