"""Segments, schedules and balance: against brute force, and against the truth of simulated jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.event_replay import EventReplay, durations_of, events_of
from conftest import DATA, examples
from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.bubbles import Order, bubble_times, replay
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.schedule_picture import schedule_picture
from rankscope.analysis.across_ranks.segments import (
    BACKWARD,
    FORWARD,
    cut,
    segments,
)
from rankscope.analysis.core.device_events import COMM, COMPUTE, UNKNOWN, DeviceEvents
from rankscope.analysis.core.intervals import covered
from rankscope.analysis.core.result import NoteKind, Result, note_kind
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.imbalance import data_correlation
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import balanced, faults_mended, rank_at_median
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.faults.axes import Replays
from rankscope.analysis.faults.balanced import BALANCES, Balance, balanced_targets
from rankscope.analysis.faults.faults import faults_of
from rankscope.analysis.faults.targets import in_passes, pieces_of
from rankscope.cli import main
from rankscope.store.arrays import Floats
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.synthetic.cluster_trace import write_job
from rankscope_bench.synthetic.job import Fault, Job
from rankscope_bench.synthetic.pipeline import blocks


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_segments_are_cut_where_communication_is_launched(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(0, 30))
    columns = {field.name: np.zeros(count, dtype=np.int64) for field in fields(DeviceEvents)}
    columns["start"] = np.sort(random.integers(100, 200, count))
    columns["end"] = columns["start"] + random.integers(0, 20, count)
    columns["kind"] = random.integers(0, 3, count)
    columns["step"] = np.sort(random.integers(0, 2, count))
    columns["launch_start"] = np.where(random.random(count) < 0.9, random.integers(0, 100, count), UNKNOWN)
    events, autograd = DeviceEvents(**columns), random.integers(-1, 3, count)
    on_host = random.integers(0, 200, 3)

    listed = [
        (launch if launch != UNKNOWN else start, start, end, kind, step, phase)
        for launch, start, end, kind, step, phase in zip(
            *(columns[name].tolist() for name in ("launch_start", "start", "end", "kind", "step")),
            autograd.tolist(),
            strict=True,
        )
    ]
    ordered = sorted(listed, key=lambda event: event[:2])  # those that start together stay in their order
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    last: tuple[int, ...] = ()
    number = 0
    comm = [time for time, _, _, kind, *_ in ordered if kind == COMM] + on_host.tolist()
    for time, start, end, kind, step, phase in ordered:
        if kind == COMPUTE:
            key = (sum(other < time for other in comm), step, phase)
            number += key != last
            last = key
            groups.setdefault((number, *key), []).append((time, start, end))
    found = cut(events, on_host, autograd)
    names = ("cut", "step", "autograd", "launched", "start", "end", "duration_ns")
    assert list(zip(*(found[name].tolist() for name in names), strict=True)) == [
        (
            *key,
            members[0][0],
            min(start for _, start, _ in members),
            max(end for *_, end in members),
            len({moment for _, start, end in members for moment in range(start, end)}),
        )
        for (_, *key), members in groups.items()
    ]


def one_forward_one_backward(stages: int, batches: int) -> Order:
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, batches)
        order = [(FORWARD, 0, batch) for batch in range(ahead)]
        for batch in range(batches):
            order.append((BACKWARD, 0, batch))
            if batch + ahead < batches:
                order.append((FORWARD, 0, batch + ahead))
        orders.append(tuple(order))
    return tuple(orders)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(2, 5), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_a_schedule_is_its_longest_path(stages: int, batches: int, seed: int) -> None:
    order = one_forward_one_backward(stages, batches)
    times = np.random.default_rng(seed).integers(1, 50, (stages, 2)).astype(float)

    @cache
    def ends(stage: int, at: int) -> float:
        phase, _, batch = order[stage][at]
        peer = stage - 1 if phase == FORWARD else stage + 1
        before = [ends(stage, at - 1)] if at else []
        if 0 <= peer < stages:
            before.append(ends(peer, order[peer].index((phase, 0, batch))))
        return max(before, default=0.0) + float(times[stage, phase])

    replayed_ = replay(order, lambda stage, phase, chunk: times[stage, phase : phase + 1])
    assert replayed_ is not None
    assert replayed_.length[0] == max(ends(stage, 2 * batches - 1) for stage in range(stages))
    assert [each[0] for each in replayed_.busy] == (batches * times.sum(axis=1)).tolist()
    expected = [[ends(stage, at) for at in range(2 * batches)] for stage in range(stages)]
    assert [[end[0] for end in of_stage] for of_stage in replayed_.ends] == expected


def test_a_balanced_schedule_has_the_bubble_of_the_text_books() -> None:
    def same(stage: int, phase: int, chunk: int) -> Floats:
        return np.array([1.0 if phase == FORWARD else 2.0])

    replayed_ = replay(one_forward_one_backward(4, 8), same)
    assert replayed_ is not None and replayed_.length[0] == 3 * (8 + 4 - 1)
    # Each waits for what the other runs later.
    assert replay((((BACKWARD, 0, 0), (FORWARD, 0, 0)), ((FORWARD, 0, 0), (BACKWARD, 0, 0))), same) is None


Simulated = Callable[..., tuple[Run, dict[str, Any]]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """A job of two data-parallel ranks a stage, and its truth; each made once."""

    @cache
    def make(**job: Any) -> tuple[Run, dict[str, Any]]:
        folder = tmp_path_factory.mktemp("balance") / "run"
        truth = write_job(Job(**{"data": 2, "layers": 2, "steps": 4, **job}), folder)
        return Run(ingest([folder])), truth

    return make


UNEVEN = {"stages": 2, "micro_batches": 4, "schedule": "1f1b", "p2p": "batched", "stage_layers": (2, 4)}
INTERLEAVED = {"stages": 2, "micro_batches": 4, "schedule": "interleaved", "chunks": 2}
LENGTHS = {
    "stages": 2,
    "micro_batches": 4,
    "schedule": "1f1b",
    "steps": 6,
    "faults": (Fault("lengths", (0, 1, 2, 3), 3_000_000),),
}


def answer(run: Run, name: str, by: str | None = None) -> Result:
    return REPORTS[name].analyse(run, Scope(), by)


@pytest.mark.slow
@pytest.mark.parametrize("job", [UNEVEN, LENGTHS, INTERLEAVED], ids=["uneven", "lengths", "interleaved"])
def test_slowdown_is_that_of_the_simulation(simulated: Simulated, job: dict[str, Any]) -> None:
    run, truth = simulated(**job)
    expected = truth["balance"]
    rows = {(row["scope"], row["key"]): row for row in answer(run, "faults.imbalance").rows}
    for what in ("ranks", "stages", "all"):
        assert rows["run", what]["balanced_ns"] == pytest.approx(expected[f"{what}_ns"], rel=0.02)
    assert rows["run", "all"]["t_ns"] == pytest.approx(expected["t_ns"], rel=0.02)
    assert rows["run", "all"]["slowdown"] == pytest.approx(expected["slowdown"], rel=0.02)
    scope = Scope().in_run(run)
    savings = savings_of(run, scope)
    assert savings is not None
    events, graph = events_of(run, scope), savings.graph
    replay = EventReplay(events)
    for what in BALANCES:
        work = balanced(what).change(run, graph, graph.work)
        assert savings.length_with([balanced(what)]) == replay.length(durations_of(events, graph, work))


@pytest.mark.slow
@pytest.mark.parametrize("job", [UNEVEN, LENGTHS], ids=["uneven", "lengths"])
def test_balanced_work_is_that_of_plain_sums(simulated: Simulated, job: dict[str, Any]) -> None:
    """Each class of a stretch at the mean over ranks; then each pass at the mean over stages; then over micro-batches
    and steps, as is what lies in no pass."""
    run, _ = simulated(**job)
    scope = Scope().in_run(run)
    pieces, layout = pieces_of(run, scope), layout_of(run, Scope())
    whose = [layout.stage(pieces.graph.ranks[rank]) for rank in pieces.rank.tolist()]
    took = {at: float(ns) for at, ns in enumerate(pieces.took.tolist()) if pieces.step[at] >= 0}
    rank, step, stretch, kind = (
        getattr(pieces, name).tolist() for name in ("rank", "step", "stretch", "kind")
    )
    used, (_, batch, phase, _), _ = in_passes(run, scope, pieces, pieces.step >= 0)
    in_pass = {at: (batch[i], phase[i]) for i, at in enumerate(used.tolist())}

    def evened(
        whole: Callable[[int], Hashable],
        alike: Callable[[int], Hashable],
        chosen: Iterable[int],
        count: int = 0,
    ) -> None:
        """The sum of each whole at the mean of those that are alike; of so many, where some have none."""
        sums: dict[Hashable, float] = defaultdict(float)
        group = {}
        chosen = [*chosen]
        for at in chosen:
            sums[whole(at)] += took[at]
            group[whole(at)] = alike(at)
        totals: dict[Hashable, list[float]] = defaultdict(list)
        for each, total in sums.items():
            totals[group[each]].append(total)
        for at in chosen:
            same, total = totals[alike(at)], sums[whole(at)]
            took[at] *= sum(same) / (count or len(same)) / total if total else 1

    def check(what: Balance) -> None:
        scale = balanced_targets(run, scope, what).scale
        assert [scale[at] * pieces.took[at] for at in took] == pytest.approx([*took.values()], rel=1e-9)

    evened(
        lambda at: (whose[at], step[at], stretch[at], kind[at], rank[at]),
        lambda at: (whose[at], step[at], stretch[at], kind[at]),
        took,
        count=2,
    )
    check("ranks")
    evened(
        lambda at: (whose[at], kind[at], step[at], *in_pass[at]),
        lambda at: (kind[at], step[at], *in_pass[at]),
        in_pass,
    )
    check("stages")
    evened(
        lambda at: (whose[at], kind[at], step[at], *in_pass[at]),
        lambda at: (whose[at], kind[at], in_pass[at][1]),
        in_pass,
    )
    evened(
        lambda at: (whose[at], stretch[at], kind[at], step[at], rank[at]),
        lambda at: (whose[at], stretch[at], kind[at]),
        took.keys() - in_pass.keys(),
    )
    check("all")


@pytest.mark.slow
@pytest.mark.parametrize("what", BALANCES)
def test_balanced_work_is_moved_not_removed(simulated: Simulated, what: Balance) -> None:
    run, _ = simulated(**LENGTHS)
    targets = balanced_targets(run, Scope().in_run(run), what)
    assert targets.then.sum() == pytest.approx(targets.pieces.took.sum(), rel=1e-4)


@pytest.mark.slow
def test_whatif_imbalance_and_faults_have_the_same_figures(tmp_path: Path) -> None:
    write_job(Job(data=4, layers=2, steps=4, faults=(Fault("compute", (2,), 6_000_000),)), tmp_path / "run")
    run = Run(ingest([tmp_path / "run"]))
    scope = Scope().in_run(run)
    faults, replays = faults_of(run, scope), Replays(run, scope)
    asked = [faults_mended(), rank_at_median(2), *map(balanced, BALANCES)]
    saved = [row["saved_ns"] for row in whatif(run, Scope(), asked).rows]
    assert [fault.subjects[0].number for fault in faults.listed] == [2]
    assert saved[0] == round(faults.joint_ns) == whatif(run, Scope()).rows[0]["saved_ns"]
    assert saved[1] == pytest.approx(faults.listed[0].alone_ns, rel=0.01) == pytest.approx(6e6, rel=0.02)
    rows = {row["key"]: row for row in answer(run, "faults.imbalance").rows if row["scope"] == "run"}
    for what, by_whatif in zip(BALANCES, saved[2:], strict=False):
        assert rows[what]["t_ns"] - rows[what]["balanced_ns"] == by_whatif
    assert saved[2] == round(replays.saved_ns(balanced_targets(run, scope, "ranks")))


@pytest.mark.slow
def test_an_uneven_pipeline(simulated: Simulated) -> None:
    run, truth = simulated(**UNEVEN)
    result = answer(run, "bubbles")
    for row in (*result.rows, *answer(run, "bubbles", "rank").rows):
        parts = [row[f"{name}_ns"] for name in ("schedule", "stages", "rank", "rest")]
        assert sum(parts) == row["bubble_ns"] and min(parts) >= 0
    assert result.rows[0]["schedule_ns"] == pytest.approx(truth["balance"]["schedule_bubble_ns"], rel=0.03)
    assert result.rows[0]["stages_ns"] > 0.5 * result.rows[0]["bubble_ns"]
    shares = {(row["scope"], row["key"]): row["share"] for row in answer(run, "faults.imbalance").rows}
    assert shares["run", "all"] == 1 and shares["stage", "1"] > 0.5 > shares["stage", "0"]
    assert {scope for scope, _ in shares} == {"run", "stage", "rank"}


@pytest.mark.slow
@pytest.mark.parametrize("job", [INTERLEAVED, UNEVEN], ids=["interleaved", "uneven"])
def test_the_picture_of_a_schedule_is_the_planted_one(simulated: Simulated, job: dict[str, Any]) -> None:
    run, _ = simulated(**job)
    planted = Job(**{"data": 2, "layers": 2, "steps": 4, **job})
    picture = schedule_picture(run, Scope().in_run(run))
    step = picture.facts["step"]
    for stage in range(planted.stages):
        expected = [
            (each.phase, each.batch + 1, each.chunk + 1)
            for block in blocks(planted, stage)
            for each in block.passes
        ]
        for name in ("recorded", "ideal"):
            rows = [
                row
                for row in picture.rows
                if (row["schedule"], row["stage"]) == (name, stage) and row["micro_batch"]
            ]
            rows.sort(key=lambda row: row["start_ns"])
            assert [(row["kind"], row["micro_batch"], row["chunk"]) for row in rows] == expected
            ends = [row["start_ns"] + row["dur_ns"] for row in rows]
            assert all(end <= after["start_ns"] + 1 for end, after in zip(ends, rows[1:], strict=False)), (
                "in turn"
            )
    # The textbook's bubble, of the same length on all stages.
    chunks = max(row["chunk"] or 0 for row in picture.rows)
    ideal = [row for row in picture.rows if row["schedule"] == "ideal"]
    length = max(row["start_ns"] + row["dur_ns"] for row in ideal)
    for stage in range(planted.stages):
        idle = sum(row["dur_ns"] for row in ideal if (row["stage"], row["kind"]) == (stage, "bubble"))
        usual = (planted.stages - 1) / (chunks * planted.micro_batches + planted.stages - 1)
        assert idle / length == pytest.approx(usual, rel=0.01)
    # The bubbles are those of the report, here and in all that was recorded.
    by_rank = REPORTS["bubbles"].analyse(run, Scope(steps=(step, step)), "rank").rows
    times = bubble_times(run)
    for rank in {row["rank"] for row in picture.rows}:
        (expected_ns,) = (row["bubble_ns"] for row in by_rank if row["rank"] == rank)
        mine = [
            row
            for row in picture.rows
            if (row["schedule"], row["rank"], row["kind"]) == ("recorded", rank, "bubble")
        ]
        begin, end = picture.facts["begin_ns"], picture.facts["end_ns"]
        assert sum(row["dur_ns"] for row in mine) == pytest.approx(expected_ns, rel=0.02)
        assert (
            sum(row["dur_ns"] for row in mine) <= covered(times[rank], np.array([begin]), np.array([end]))[0]
        )


@pytest.mark.slow
def test_a_balanced_pipeline_is_not_told_to_move_layers(simulated: Simulated) -> None:
    run, _ = simulated(**INTERLEAVED)
    (finding,) = answer(run, "bubbles").findings
    assert (finding.kind, finding.title) == ("limit", "The schedule's own bubble") and not finding.ranks
    assert "more micro-batches" in finding.hint and "chunks of a stage: 2" in finding.lines
    assert {row["share"] for row in answer(run, "faults.imbalance").rows} == {None}  # under 1 % of a step
    parts = segments(run, Scope().in_run(run))
    of_rank = (parts.rank == 3) & (parts.step == 1) & (parts.position == 0) & (parts.phase == FORWARD)
    passes = list(zip(parts.micro_batch[of_rank].tolist(), parts.chunk[of_rank].tolist(), strict=True))
    assert passes == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]


@pytest.mark.slow
def test_whether_work_follows_the_data(simulated: Simulated) -> None:
    (lengths, _), (uneven, _) = simulated(**LENGTHS), simulated(**UNEVEN)
    phases, stages = data_correlation(lengths, Scope().in_run(lengths))
    assert phases is not None and phases > 0.95 and stages is not None and stages > 0.95
    (note,) = (note for note in answer(lengths, "faults.imbalance").notes if "follows the data" in note)
    assert note not in answer(uneven, "faults.imbalance").notes


@pytest.mark.slow
def test_whatif_states_what_it_cannot_explain(
    simulated: Simulated, open_real: Callable[[Path], Run], capsys: pytest.CaptureFixture[str]
) -> None:
    result = whatif(open_real(DATA / "gpt-h200"), Scope(), [balanced("all")])
    (note,) = (note for note in result.notes if note_kind(note) is NoteKind.UNEXPLAINED)
    assert "gaps" in note and "were kept" in note
    run, _ = simulated(**UNEVEN)
    result = whatif(run, Scope(), [balanced("stages")])
    rows = {row["what"]: row["saved_ns"] for row in result.rows}
    assert rows["stages balanced"] > 0
    assert main(["whatif", str(run.store.parent), "--balance", "ranks"]) == 0
    assert "ranks balanced" in capsys.readouterr().out
    assert main(["whatif", str(run.store.parent), "--bandwidth", "2x"]) == 0
    assert "bandwidth x2" in capsys.readouterr().out
