"""Pipeline stages from who sends to whom, where the messages run in a group of other ranks too."""

from __future__ import annotations

import numpy as np

from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import NONE, number_rows
from rankscope.timeline.collectives.entries import Collectives


def stage_chains(rows: Collectives) -> list[tuple[int, ...]]:
    """The ranks of each pipeline in the order of its stages; none where the messages are not those of pipelines.

    The ranks that exchange messages form chains of equal length, and in each chain only the first stage begins a step
    with a send. A ring (sequence parallelism) has no end, and in an exchange all ranks send first.
    """
    links = {
        (min(a, b), max(a, b))
        for a, b in zip(rows.rank[rows.sends].tolist(), rows.rank[rows.recvs].tolist(), strict=True)
    }
    neighbours: dict[int, set[int]] = {}
    for a, b in links:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    begins = _share_of_steps_begun_with_send(rows)
    firsts = [
        rank for rank in sorted(neighbours) if len(neighbours[rank]) == 1 and begins.get(rank, 0.0) > 0.5
    ]
    chains = [_walk(rank, neighbours) for rank in firsts]
    whole = sorted(rank for chain in chains for rank in chain) == sorted(neighbours)
    equal = len({len(chain) for chain in chains}) == 1
    only_first = all(begins.get(rank, 0.0) < 0.5 for chain in chains for rank in chain[1:])
    return chains if whole and equal and only_first else []


def _walk(first: int, neighbours: dict[int, set[int]]) -> tuple[int, ...]:
    """From an end along the chain, until it ends or branches."""
    chain, rank = [first], first
    while True:
        further = neighbours[rank] - set(chain)
        if len(further) != 1 or len(neighbours[rank]) > 2:
            return tuple(chain)
        rank = further.pop()
        chain.append(rank)


def _share_of_steps_begun_with_send(rows: Collectives) -> dict[int, float]:
    """By rank: of its steps, or of all its messages where there are no steps."""
    messages = np.unique(np.concatenate([rows.sends, rows.recvs]))
    time = np.where(rows.call_start[messages] != NONE, rows.call_start[messages], rows.start[messages])
    messages = messages[np.lexsort((time, rows.step[messages], rows.rank[messages]))]
    cells, cell = number_rows([rows.rank[messages], rows.step[messages]])
    _, first = np.unique(cell, return_index=True)
    is_send = rows.kind[messages[first]] == KINDS.index("send")
    only_sends = np.array([all(each.is_send for each in batch) for batch in rows.batches] + [False])
    is_send |= only_sends[rows.batch[messages[first]]]
    ranks = cells[:, 0]
    return {int(rank): float(is_send[ranks == rank].mean()) for rank in np.unique(ranks)}
