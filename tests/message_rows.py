"""Kernels with sends and receives as the entries of `Collectives`, random programs of them, and their pairs by brute
force."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE
from rankscope.timeline.collectives.entries import Collectives, Group, Message


@dataclass
class Kernel:
    """One kernel of a rank; a message is (direction, peer, group, number)."""

    rank: int
    start: int
    step: int
    batched: bool
    messages: list[tuple[str, int, str, int]] = field(default_factory=list)
    duration: int = 1


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
    end = start + np.array([kernel.duration for kernel in kernels], dtype=np.int64)
    arrays: dict[str, Any] = {key: np.array(values, dtype=np.int64) for key, values in columns.items()}
    return Collectives(
        rank=np.array([kernel.rank for kernel in kernels], dtype=np.int64), segment=zero, slice=np.arange(len(kernels)),
        track=zero, dtype=none, bytes=none, seq=none, step=np.array([k.step for k in kernels], dtype=np.int64),
        start=start, end=end, on_device=np.ones(len(kernels), dtype=bool), call=none, call_start=none,
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
