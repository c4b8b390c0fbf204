"""Sends and receives are paired as a simulation of the ranks posted them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from message_rows import Kernel, expected, program, table
from rankscope.store.arrays import NONE
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.collectives.matching import match_collectives, pair_messages


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
