"""Pairs the sends of each rank with the receives of the others.

The messages from one rank to another are received in the order in which they were sent, whatever their tags: NCCL has
no tags. They are counted by process group. Where the two ranks call the groups by different names, the two ends alone
tell which messages belong together.
"""

from __future__ import annotations

import numpy as np

from rankscope.collective_kinds import KINDS, POINT_TO_POINT
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask, count_before, number_rows
from rankscope.timeline.collectives.entries import Collectives


@dataclass(frozen=True)
class Pairs:
    """Matched messages: the entries of their sends and of their receives."""

    sends: Ints
    recvs: Ints
    alone: Mask
    """Neither of the two kernels has another message."""


@dataclass(frozen=True)
class _Messages:
    """One side of a message each."""

    entry: Ints
    is_send: Mask
    peer: Ints
    group: Ints
    """A number for each name of a group."""

    def pick(self, mask: Mask) -> _Messages:
        return _Messages(self.entry[mask], self.is_send[mask], self.peer[mask], self.group[mask])


def pair_messages(entries: Collectives, session: Ints) -> Pairs:
    """The pairs, by the start of their sends. Only messages of one recording session match."""
    messages = _messages(entries)
    per_entry = np.bincount(messages.entry, minlength=len(entries.rank))
    messages = messages.pick((messages.peer != NONE) & (messages.peer != entries.rank[messages.entry]))
    if len(messages.entry) == 0:
        return Pairs(messages.entry, messages.entry, messages.is_send)
    entry, is_send = messages.entry, messages.is_send
    rank = entries.rank[entry]
    source, target = (np.where(is_send, *ends) for ends in ((rank, messages.peer), (messages.peer, rank)))
    _, ends = number_rows([session[entry], source, target])
    _, lane = number_rows([ends, _group(ends, messages)])
    lanes = int(lane.max()) + 1
    sent, received = (np.bincount(lane[side], minlength=lanes) for side in (is_send, ~is_send))
    equal = (sent == received)[lane]
    numbered = (np.bincount(lane, weights=entries.seq[entry] == NONE, minlength=lanes) == 0)[lane]
    order = np.empty(len(entry), dtype=np.int64)
    when = np.where(equal & numbered, entries.seq[entry], entries.start[entry])
    order[np.lexsort((np.arange(len(entry)), entries.start[entry], when))] = np.arange(len(entry))
    # Where one rank has recorded more, its messages are counted within each step, and only in steps that both have.
    in_steps = (np.bincount(lane, weights=entries.step[entry] == NONE, minlength=lanes) == 0)[lane]
    step = np.where(~equal & in_steps, entries.step[entry], NONE)
    cells, cell = number_rows([lane, step])
    sent, received = (np.bincount(cell[side], minlength=len(cells)) for side in (is_send, ~is_send))
    usable = (step == NONE) | (sent == received)[cell]
    nth = count_before([cell, is_send.astype(np.int64)], order)
    by_key = np.lexsort((~is_send, nth, cell))
    by_key = by_key[usable[by_key]]
    first, second = by_key[:-1], by_key[1:]
    same = (cell[first] == cell[second]) & (nth[first] == nth[second])
    sends, recvs = entry[first[same]], entry[second[same]]
    by_time = np.lexsort((recvs, sends, entries.start[sends]))
    sends, recvs = sends[by_time], recvs[by_time]
    return Pairs(sends, recvs, (per_entry[sends] == 1) & (per_entry[recvs] == 1))


def _messages(entries: Collectives) -> _Messages:
    """Every send and receive; those of one kernel in the order of their calls."""
    names: dict[str, int] = {}
    single = np.flatnonzero(
        np.isin(entries.kind, [KINDS.index(kind) for kind in POINT_TO_POINT]) & (entries.batch == NONE)
    )
    of_group = np.array(
        [names.setdefault(group.name, len(names)) for group in entries.groups], dtype=np.int64
    )
    batched = np.flatnonzero(entries.batch != NONE)
    sizes = np.array([len(batch) for batch in entries.batches], dtype=np.int64)
    members = [message for batch in entries.batches for message in batch]
    is_send = np.array([message.is_send for message in members], dtype=bool)
    peer = np.array([message.peer for message in members], dtype=np.int64)
    group = np.array([names.setdefault(message.group, len(names)) for message in members], dtype=np.int64)
    count = sizes[entries.batch[batched]]
    first = (np.cumsum(sizes) - sizes)[entries.batch[batched]]
    at = np.repeat(first - np.cumsum(count) + count, count) + np.arange(int(count.sum()))
    return _Messages(
        np.concatenate([single, np.repeat(batched, count)]),
        np.concatenate([entries.kind[single] == KINDS.index("send"), is_send[at]]),
        np.concatenate([entries.peer[single], peer[at]]),
        np.concatenate([of_group[entries.group[single]], group[at]]),
    )


def _group(ends: Ints, messages: _Messages) -> Ints:
    """The group of each message; NONE between two ranks that have no name of a group in common."""
    cells, cell = number_rows([ends, messages.group])
    sent, received = (
        np.bincount(cell[side], minlength=len(cells)) > 0 for side in (messages.is_send, ~messages.is_send)
    )
    agree = np.zeros(int(ends.max()) + 1, dtype=bool)
    agree[cells[sent & received, 0]] = True
    return np.where(agree[ends], messages.group, NONE)
