"""The waits of sends and receives by the definition, one kernel at a time, on random kernels."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from message_rows import Kernel, expected, program, table
from rankscope.analysis.core.collective_waits import waits
from rankscope.store.arrays import NONE
from rankscope.timeline.clocks import Clocks, RankClock
from rankscope.timeline.collectives.matching import match_collectives
from rankscope.timeline.run import AnswerCache


def timed(seed: int) -> tuple[list[Kernel], list[RankClock]]:
    """A random program with times that overlap, and clocks of which some are not aligned."""
    rng = random.Random(seed)
    kernels = [
        replace(kernel, start=kernel.start * 40_000, duration=rng.choice([1_000, 300_000, 900_000]))
        for kernel in program(seed)
    ]
    ranks = max((kernel.rank for kernel in kernels), default=0) + 6
    methods: Any = ["collectives", "collectives", "collectives", "wall clock"]
    errors = [None, 1_000, 150_000]
    return sorted(kernels, key=lambda kernel: (kernel.rank, kernel.start)), [
        RankClock(rank, rng.choice(methods), 0, error_ns=rng.choice(errors)) for rank in range(ranks)
    ]


def wait_of(kernels: list[Kernel], clocks: list[RankClock], at: int, partners: list[tuple[str, int]]) -> int:
    """By the definition (docs/definitions.md, "Point-to-point")."""
    kernel = kernels[at]
    end = kernel.start + kernel.duration
    ready = [kernel.start]
    for direction, number in partners:
        other = kernels[number]
        other_end = other.start + other.duration
        both = (clocks[kernel.rank], clocks[other.rank])
        slack = max(200_000, *(3 * (clock.error_ns or 0) for clock in both))
        if len(kernel.messages) == len(other.messages) == 1:
            unknown = any(clock.method == "wall clock" for clock in both)
            if unknown or abs(end - other_end) <= slack:
                return kernel.duration - min(kernel.duration, other.duration)
            if direction == "send":
                return 0
        elif direction == "send" and other.start > end + slack:
            continue
        ready.append(other.start)
    return min(max(ready) - kernel.start, kernel.duration)


@pytest.mark.parametrize("seed", range(60))
def test_waits_are_those_of_the_definition(seed: int) -> None:
    kernels, clocks = timed(seed)
    if not kernels:
        return
    rows = match_collectives(table(kernels), np.zeros(len(kernels), dtype=np.int64))
    run: Any = SimpleNamespace(collectives=rows, clocks=Clocks(tuple(clocks)), cache=AnswerCache())
    found_waits = waits(run)
    partners: dict[int, list[tuple[str, int]]] = {}
    for send, recv in expected(kernels):
        partners.setdefault(send, []).append(("send", recv))
        partners.setdefault(recv, []).append(("recv", send))
    for at in range(len(kernels)):
        wanted = wait_of(kernels, clocks, at, partners[at]) if at in partners else NONE
        assert found_waits.wait[at] == wanted
        late = found_waits.waited_for[at]
        assert (late != NONE) == (wanted > 0)
        assert late == NONE or late in [number for _, number in partners[at]]
    # Everything ends when the last of its peers has started, plus its transfer.
    ready = rows.start.copy()
    peers = found_waits.peers
    np.maximum.at(ready, peers.entry, rows.start[peers.peer] + peers.shift)
    known = found_waits.wait != NONE
    assert (ready + found_waits.entry_transfer)[known].tolist() == rows.end[known].tolist()
