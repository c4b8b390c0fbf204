"""Groups and peers of gloo jobs: what is planted comes back from the header, and from the times or not at all."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gloo_traces import GlooJob, Idle, Item, Op, Program, Recv, Reduce, Send, pipeline
from rankscope.store.arrays import NONE
from rankscope.timeline.collectives.inferred import assignments
from rankscope.timeline.collectives.table import calls_of, complete_groups, recorded_calls
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run

pytestmark = pytest.mark.usefixtures("without_workers")


def opened(job: GlooJob, folder: Path, **options: Any) -> Run:
    return Run(ingest([job.write(folder, **options)]))


def groups_of(run: Run) -> list[list[str]]:
    """By rank, the groups of its collectives in order."""
    rows = run.collectives
    return [[rows.groups[i].name for i in rows.group[rows.rank == rank]] for rank in range(len(run.ranks))]


def planted_groups(job: GlooJob) -> list[list[str]]:
    return [[described[1] for _, described, _ in rank.calls] for rank in job.ranks]


def grid(seed: int) -> GlooJob:
    """dp 2 x tp 2, with as many collectives in each group as the seed says; ranks differ in speed."""
    chance = random.Random(seed)
    groups = [(0, 1), (2, 3), (0, 2), (1, 3)]
    tensor, data, every = chance.randint(0, 3), chance.randint(1, 6), chance.choice([0, 0, 1, 2])
    slow = [chance.choice([1.0, 1.0, 1.3, 2.0]) for _ in range(4)]
    positions = [*["tensor"] * tensor, *["data"] * data, *["all"] * every]
    transfers = [chance.uniform(100, 300) for _ in positions]
    programs: list[Program] = []
    for rank in range(4):
        number = {"tensor": 1 + rank // 2, "data": 3 + rank % 2, "all": 0}
        programs.append(
            [
                [
                    item
                    for axis, transfer in zip(positions, transfers, strict=True)
                    for item in (Op(chance.uniform(300, 900) * slow[rank]), Reduce(number[axis], transfer))
                ]
                for _ in range(4)
            ]
        )
    return GlooJob(programs, groups, seed=seed)


@pytest.mark.slow
def test_groups_come_from_the_times_or_are_not_claimed(tmp_path: Path) -> None:
    told = 0
    for seed in range(5):
        job = grid(seed)
        rows = zip(groups_of(opened(job, tmp_path / str(seed))), planted_groups(job), strict=True)
        for names, planted in rows:
            assert all(
                name == truth or name.startswith("?") for name, truth in zip(names, planted, strict=True)
            )
            told += names == planted
    assert told >= 15  # of 20 ranks


def test_groups_that_the_times_do_not_tell_match_with_nobody(tmp_path: Path) -> None:
    """The ranks do the same in the same moment, whatever their groups."""
    programs: list[Program] = [[[Op(500), Reduce(1 + rank // 2)] * 2] * 3 for rank in range(4)]
    run = opened(GlooJob(programs, [(0, 1), (2, 3), (0, 2), (1, 3)], jitter_us=0), tmp_path)
    assert (run.collectives.match == NONE).all()
    assert [reason.why for reason in run.collectives.unmatched] == [
        "their process group is not recorded, and the times do not tell it"
    ]


def test_groups_of_the_same_ranks_match_all_the_same(tmp_path: Path) -> None:
    """As FSDP has them: that of all ranks is not used, that of the mesh has all ranks too."""
    programs: list[Program] = [[[Op(500 + 100 * rank), Reduce(1)] * 4] * 3 for rank in range(3)]
    run = opened(GlooJob(programs, [(0, 1, 2)]), tmp_path)
    assert groups_of(run) == [["1"] * 12] * 3
    assert (run.collectives.match != NONE).all()


@pytest.mark.parametrize("seed", range(2))
def test_the_header_tells_groups_numbers_and_sizes(seed: int, tmp_path: Path) -> None:
    job = grid(seed)
    run = opened(job, tmp_path, captured=True)
    rows = run.collectives
    assert groups_of(run) == planted_groups(job)
    for rank in range(4):
        assert rows.seq[rows.rank == rank].tolist() == [seq for _, _, seq in job.ranks[rank].calls]
    assert (rows.match != NONE).all() and set(rows.bytes.tolist()) == {400}


def peers_of(run: Run) -> list[list[int]]:
    return [run.collectives.peer[run.collectives.rank == rank].tolist() for rank in range(len(run.ranks))]


def planted_peers(job: GlooJob) -> list[list[int]]:
    return [[described[2] for _, described, _ in rank.calls] for rank in job.ranks]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("captured", [True, False])
def test_messages_find_their_peers(seed: int, captured: bool, tmp_path: Path) -> None:
    chance = random.Random(seed)
    stages = [chance.uniform(300, 2000) for _ in range(chance.randint(2, 5))]
    job = GlooJob(pipeline(stages, chance.randint(1, 4), 3), seed=seed)
    run = opened(job, tmp_path, captured=captured)
    assert peers_of(run) == planted_peers(job)
    rows = run.collectives
    assert (rows.match != NONE).all()
    assert (rows.rank[rows.sends] == rows.peer[rows.recvs]).all()
    assert np.bincount(rows.match).tolist() == [2] * len(rows.sends)


def test_peers_on_other_machines_are_not_guessed(tmp_path: Path) -> None:
    run = opened(GlooJob(pipeline([500, 500])), tmp_path, hosts=["a", "b"])
    assert set(run.collectives.peer.tolist()) == {NONE}
    assert run.collectives.unmatched[0].why == "point-to-point without a recorded peer"


@pytest.mark.slow
def test_peers_that_change_from_step_to_step_are_refused_or_right(tmp_path: Path) -> None:
    for seed in range(3):
        chance = random.Random(seed)
        steps: list[list[list[Item]]] = [[] for _ in range(4)]
        for _ in range(5):
            order = chance.sample(range(4), 4)
            of_rank: list[list[Item]] = [[Idle(chance.uniform(0, 300))] for _ in range(4)]
            for source, to in ((order[0], order[1]), (order[2], order[3])):
                of_rank[source].append(Send(to))
                of_rank[to].append(Recv(source))
            for rank in range(4):
                steps[rank].append(of_rank[rank])
        job = GlooJob(steps, seed=seed)
        for names, planted in zip(
            peers_of(opened(job, tmp_path / str(seed))), planted_peers(job), strict=True
        ):
            assert names == planted or set(names) == {NONE}


def brute_force(threads: int, groups: int) -> Iterator[dict[int, int]]:
    for way in product(range(groups), repeat=threads):
        if list(way) == sorted(way) and all(way.count(group) <= 2 for group in way):
            yield dict(enumerate(way))


@pytest.mark.parametrize(("threads", "groups"), [(0, 2), (1, 3), (3, 2), (4, 3), (5, 2), (5, 4)])
def test_assignments_are_all_that_keep_the_order(threads: int, groups: int) -> None:
    ways = [dict(way) for way in assignments(range(threads), groups)]
    assert sorted(map(str, ways)) == sorted(map(str, brute_force(threads, groups)))


def test_too_many_assignments_are_none() -> None:
    assert assignments(range(20), 30) == []


FIELD = {"since_unix_ns": 1000, "what": [["gloo:all_reduce", "1", None, "Float", 8]], "calls": [[5, 0, 3]]}


def test_a_call_in_the_header() -> None:
    header = {
        "distributedInfo": {"pg_config": [{"pg_name": "1", "pg_size": 2, "ranks": [0, 1]}]},
        "rankscope": {"collectives": FIELD},
    }
    (call,) = recorded_calls(header, 400)
    assert (call.time_ns, call.kind, call.dtype) == (5600, "all_reduce", "Float")
    assert call.columns == {
        "group_name": "1", "group_description": None, "group_ranks": "[0, 1]", "group_size": 2, "peer": None,
        "in_elements": 8, "seq": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        {"calls": [[5, 1, 3]]},
        {"calls": [[5, 0]]},
        {"calls": [["x", 0, 3]]},
        {"calls": 7},
        {"what": [["send"]]},
        {"since_unix_ns": None},
        {"calls": [[10**30, 0, 3]]},
    ],
)
def test_a_damaged_field_tells_nothing(damage: dict[str, Any]) -> None:
    assert recorded_calls({"rankscope": {"collectives": FIELD | damage}}, 0) == []
    assert recorded_calls(json.loads('{"rankscope": [1]}'), 0) == []


def test_calls_are_found_inside_and_after_their_time() -> None:
    field = {
        "since_unix_ns": 0,
        "what": [["gloo:all_reduce", "0", None, "Float", 1], ["send", "0", 3, "Float", 1]],
        "calls": [[1010, 0, 1], [2000, 1, None], [3030, 0, 2]],
    }
    calls = recorded_calls({"rankscope": {"collectives": field}}, 0)
    kinds = ["all_reduce", "send", "reduce_scatter", "send"]
    starts = np.array([1_000_000, 2_010_000, 3_000_000, 4_000_000])
    assert [call and call.columns["seq"] for call in calls_of(calls, kinds, starts)] == [1, None, 2, None]
    assert [call and call.columns["peer"] for call in calls_of(calls, kinds, starts)] == [None, 3, None, None]


def test_two_calls_in_one_op_are_not_claimed() -> None:
    field = {**FIELD, "calls": [[5, 0, 3], [6, 0, 4]]}
    calls = recorded_calls({"rankscope": {"collectives": field}}, 0)
    assert calls_of(calls, ["all_reduce"], np.array([0])) == [None]


def test_older_runs_of_a_thread_have_its_group_and_earlier_numbers() -> None:
    blank = dict.fromkeys(("group_name", "group_description", "group_ranks", "group_size", "seq"))
    told = {**blank, "group_name": "1", "group_size": 2}
    records = [
        {**blank, "kind": "all_reduce", "track": 7, "start_ns": 10},
        {**blank, "kind": "all_reduce", "track": 8, "start_ns": 20},
        {**blank, "kind": "all_reduce", "track": 9, "start_ns": 25},
        {**told, "kind": "all_reduce", "track": 8, "start_ns": 30, "seq": 5},
        {**told, "kind": "all_reduce", "track": 7, "start_ns": 40, "seq": 6},
        {**blank, "kind": "send", "track": 7, "start_ns": 5},
    ]
    complete_groups(records)
    assert [(r["group_name"], r["seq"]) for r in records] == [
        ("1", 3), ("1", 4), (None, None), ("1", 5), ("1", 6), (None, None)
    ]  # fmt: skip


def even(ranks: int) -> GlooJob:
    """Rank 1 takes longer; all meet."""
    programs: list[Program] = [
        [[Op(5000 if rank == 1 else 2000), Reduce(0)] * 3] * 3 for rank in range(ranks)
    ]
    return GlooJob(programs)


@pytest.mark.parametrize(
    ("hosts", "offsets", "planted", "shared"),
    [
        (["a"] * 4, [0, 0, 0, 0], [0, 0, 0, 0], 3),
        (["a"] * 4, [0, 0, 100, 0], [0, 0, 0, 0], 3),  # within a transfer: no proof
        (["a"] * 4, [0, 0, 9000, 0], [0, 0, 9000, 0], 0),  # impossible on one clock
        (["a", "a", "b", "b"], [0, 0, 9000, 9000], [0, 0, 9000, 9000], 2),
        ([""] * 4, [0, 0, 100, 0], [0, 0, 100, 0], 0),  # the machine is not recorded: measured as ever
    ],
)
def test_one_machine_has_one_clock(
    hosts: list[str], offsets: list[float], planted: list[float], shared: int, tmp_path: Path
) -> None:
    run = opened(even(4), tmp_path, hosts=hosts, offsets_us=offsets)
    measured = [clock.offset_ns / 1000 if clock.aligned else 0 for clock in run.clocks.ranks]
    assert measured == pytest.approx(planted, abs=20)
    assert [clock.method for clock in run.clocks.ranks].count("one host") == shared
    assert all(clock.residual_p50_ns is not None for clock in run.clocks.ranks)


def test_ranks_of_two_machines_share_the_offset_of_theirs(tmp_path: Path) -> None:
    run = opened(even(4), tmp_path, hosts=["a", "a", "b", "b"], offsets_us=[0, 0, 9000, 9000])
    assert run.clocks.of(2).ahead_ns(0) == run.clocks.of(3).ahead_ns(0)


def test_ranks_of_one_machine_that_never_meet_have_its_clock(tmp_path: Path) -> None:
    run = opened(GlooJob([[[Op(500)]] * 2] * 2), tmp_path)
    assert [clock.method for clock in run.clocks.ranks] == ["reference", "one host"]
