"""Sends and receives are paired as a simulation of the ranks posted them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE
from rankscope.timeline.collectives.entries import Collectives, Message
from rankscope.timeline.collectives.groups import Group
from rankscope.timeline.collectives.loading import match_collectives
from rankscope.timeline.collectives.messages import pair_messages


@dataclass
class Kernel:
    """One kernel of a rank; a message is (direction, peer, group, number)."""

    rank: int
    start: int
    step: int
    batched: bool
    messages: list[tuple[str, int, str, int]] = field(default_factory=list)


def table(kernels: list[Kernel], names: dict[int, dict[str, str]] | None = None) -> Collectives:
    """The entries of these kernels; `names`: what each rank calls its groups."""
    kernels = sorted(kernels, key=lambda kernel: (kernel.rank, kernel.start))
    names = names or {}

    def name(rank: int, group: str) -> str:
        return names.get(rank, {}).get(group, group)

    groups = [Group(each) for each in sorted({name(k.rank, m[2]) for k in kernels for m in k.messages})]
    listed = [group.name for group in groups]
    batches: list[tuple[Message, ...]] = []
    columns: dict[str, list[int]] = {key: [] for key in ("kind", "peer", "batch", "group")}
    for kernel in kernels:
        direction, peer, group, _ = kernel.messages[0]
        columns["group"].append(listed.index(name(kernel.rank, group)))
        columns["kind"].append(KINDS.index("sendrecv" if kernel.batched else direction))
        columns["peer"].append(NONE if kernel.batched else peer)
        columns["batch"].append(len(batches) if kernel.batched else NONE)
        if kernel.batched:
            batches.append(
                tuple(Message(m[0] == "send", m[1], name(kernel.rank, m[2])) for m in kernel.messages)
            )
    none, zero = np.full(len(kernels), NONE), np.zeros(len(kernels), dtype=np.int64)
    start = np.array([kernel.start for kernel in kernels], dtype=np.int64)
    arrays: dict[str, Any] = {key: np.array(values, dtype=np.int64) for key, values in columns.items()}
    return Collectives(
        rank=np.array([kernel.rank for kernel in kernels], dtype=np.int64), segment=zero, slice=np.arange(len(kernels)),
        track=zero, dtype=none, bytes=none, seq=none, step=np.array([k.step for k in kernels], dtype=np.int64),
        start=start, end=start + 1, on_device=np.ones(len(kernels), dtype=bool), call=none, call_start=none,
        in_elements=none, out_elements=none, match=none, sends=none[:0], recvs=none[:0], groups=tuple(groups),
        dtypes=(), batches=tuple(batches), **arrays,
    )  # fmt: skip


def program(seed: int) -> list[Kernel]:
    """Ranks that post messages of several lanes in any order, some in batches, in steps."""
    rng = random.Random(seed)
    ranks, steps = rng.randint(2, 5), rng.randint(1, 3)
    posted: dict[tuple[str, int, str, int], int] = {}
    kernels: list[Kernel] = []
    clock = [rng.randint(0, 50) for _ in range(ranks)]
    for step in range(steps):
        waiting: list[list[tuple[str, int, str]]] = [[] for _ in range(ranks)]
        for _ in range(rng.randint(0, 12)):
            a, b = rng.sample(range(ranks), 2)
            group = rng.choice(["x", "y"])
            waiting[a].append(("send", b, group))
            waiting[b].append(("recv", a, group))
        for rank, messages in enumerate(waiting):
            rng.shuffle(messages)
            while messages:
                batched = rng.random() < 0.5
                size = rng.randint(1, 4) if batched else 1
                clock[rank] += rng.randint(1, 9)
                kernel = Kernel(rank, clock[rank], step, batched)
                for direction, peer, group in messages[:size]:
                    lane = (direction, peer, group, rank)
                    kernel.messages.append((direction, peer, group, posted.get(lane, 0)))
                    posted[lane] = posted.get(lane, 0) + 1
                del messages[:size]
                kernels.append(kernel)
    return kernels


def expected(kernels: list[Kernel]) -> set[tuple[int, int]]:
    """By brute force: every send and every receive are compared."""
    kernels = sorted(kernels, key=lambda kernel: (kernel.rank, kernel.start))
    sides = [(at, kernel.rank, message) for at, kernel in enumerate(kernels) for message in kernel.messages]
    return {
        (a, b)
        for a, sender, (direction, target, group, number) in sides
        for b, receiver, (other, source, its_group, its_number) in sides
        if (direction, other) == ("send", "recv")
        and (sender, target, group, number) == (source, receiver, its_group, its_number)
    }


def pairs_of(entries: Collectives) -> set[tuple[int, int]]:
    found_pairs = pair_messages(entries, np.zeros(len(entries.rank), dtype=np.int64))
    return set(zip(found_pairs.sends.tolist(), found_pairs.recvs.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_pairs_are_those_of_the_simulation(seed: int) -> None:
    kernels = program(seed)
    if not kernels:
        return
    entries = table(kernels)
    assert pairs_of(entries) == expected(kernels)
    matched = match_collectives(entries, np.zeros(len(entries.rank), dtype=np.int64))
    one_each = {pair for pair in expected(kernels) if all(is_single(kernels, at) for at in pair)}
    numbers = matched.match[matched.match != NONE].tolist()
    assert sorted(numbers) == sorted([*range(len(one_each)), *range(len(one_each))])
    assert all(matched.match[send] == matched.match[recv] != NONE for send, recv in one_each)
    assert matched.pairs.shape == (
        2,
        sum(k.messages[i][0] == "send" for k in kernels for i in range(len(k.messages))),
    )


def is_single(kernels: list[Kernel], at: int) -> bool:
    ordered = sorted(kernels, key=lambda kernel: (kernel.rank, kernel.start))
    return len(ordered[at].messages) == 1


@pytest.mark.parametrize("seed", range(20))
def test_groups_that_each_rank_names_otherwise_are_told_by_their_ends(seed: int) -> None:
    kernels = [
        replace(kernel, messages=[(*message[:2], "x", message[3]) for message in kernel.messages])
        for kernel in program(seed)
    ]
    counted: dict[tuple[int, str, int], int] = {}
    for kernel in sorted(kernels, key=lambda kernel: (kernel.rank, kernel.start)):
        for index, (direction, peer, group, _) in enumerate(kernel.messages):
            lane = (kernel.rank, direction, peer)
            kernel.messages[index] = (direction, peer, group, counted.get(lane, 0))
            counted[lane] = counted.get(lane, 0) + 1
    if kernels:
        entries = table(kernels, {rank: {"x": f"x{rank}"} for rank in range(5)})
        assert pairs_of(entries) == expected(kernels)


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_recorded_fewer_steps_is_aligned_by_them(seed: int) -> None:
    kernels = program(seed)
    recorded = [kernel for kernel in kernels if kernel.rank != 0 or kernel.step != 0]
    if recorded:
        entries = table(recorded)
        between_others = pairs_of(entries)
        assert between_others <= expected(recorded)
        both = {kernel.step for kernel in recorded if kernel.rank == 0}
        wanted = {
            pair
            for pair in expected(recorded)
            if all(int(entries.step[at]) in both or entries.rank[at] != 0 for at in pair)
        }
        assert between_others == wanted


def test_what_is_not_named_is_matched_with_nobody() -> None:
    kernels = [
        Kernel(rank, 10 * at, 0, True, [("send", 1 - rank, "x", at)]) for rank in (0, 1) for at in range(3)
    ]
    entries = table(kernels)
    unnamed = replace(entries, batch=np.full(6, NONE), batches=())
    matched = match_collectives(unnamed, np.zeros(6, dtype=np.int64))
    assert matched.count == 0 and matched.pairs.shape == (2, 0)
    assert [(each.why, each.count, each.ranks) for each in matched.unmatched] == [
        ("a batch of sends and receives without recorded calls", 6, (0, 1))
    ]


def test_a_part_of_the_entries_keeps_the_messages_between_them() -> None:
    kernels = program(7)
    entries = table(kernels)
    matched = match_collectives(entries, np.zeros(len(entries.rank), dtype=np.int64))
    part = matched.of_ranks([0, 1])
    names = {(int(part.slice[a]), int(part.slice[b])) for a, b in part.pairs.T.tolist()}
    inside = {(a, b) for a, b in expected(kernels) if {int(entries.rank[a]), int(entries.rank[b])} <= {0, 1}}
    assert names == inside and inside
