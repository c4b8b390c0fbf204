"""For each matched collective, send and receive: the transfer time, how long each rank waited, and for whom.

`run.collectives` has those of all ranks, and which belong together. The waits of collectives are computed from
durations alone, so the clocks of the ranks need not agree. A send and its receive end together like a collective,
unless the send is small and leaves early; that, and when a kernel of several messages could begin, is known by the
aligned clocks (docs/definitions.md, "Point-to-point").
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.scope import Scope
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask, number_rows, unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Peers:
    """The kernels that a send or receive may wait for: it moves data once all of them have started."""

    entry: Ints
    peer: Ints
    """The entry that it may wait for. A send that left early waits for none."""
    shift: Ints
    """Added to the start of `peer`, it is the time on the clock of `entry`."""

    def pick(self, used: Mask) -> Peers:
        """Those between the chosen entries, which are numbered anew."""
        number, both = np.cumsum(used) - 1, used[self.entry] & used[self.peer]
        return Peers(number[self.entry[both]], number[self.peer[both]], self.shift[both])


@dataclass(frozen=True)
class Waits:
    """Arrays by entry of `rows`, or by match. Waits are known for the kinds that all ranks leave together, and for
    sends and receives."""

    rows: Collectives
    wait: Ints
    """By entry: duration minus transfer; NONE without a match, or where the kind has no known waits."""
    waited_for: Ints
    """By entry: the entry whose arrival ended the wait; NONE where it did not wait, or where that is not known."""
    peers: Peers
    transfer: Ints
    """By match: the shortest duration without waiting; NONE where the kind has no known waits."""
    last: Ints
    """By match: the entry that did not wait; NONE when no rank is known to have waited."""
    ranks: Ints
    """By match: the number of its ranks in this run."""
    whole: NDArray[np.bool_]
    """By match: whether every rank of its group is in this run."""
    step: Ints
    """By match: its step (the smallest where ranks disagree), or NONE."""

    @property
    def entry_transfer(self) -> Ints:
        """By entry: its duration without waiting; 0 where that is not known."""
        rows = self.rows
        timed = self.wait != NONE
        met = timed & (rows.match != NONE)
        timed[met] = self.ranks[rows.match[met]] > 1
        return np.where(timed, rows.duration - self.wait, 0)


def waits(run: Run, scope: Scope | None = None) -> Waits:
    """The waits of the steps in scope; always of all ranks, so that the last rank does not depend on the scope."""
    every = _all_waits(run)
    return every if scope is None or scope.steps is None else _within(every, *scope.steps)


@once_per_run
def _all_waits(run: Run) -> Waits:
    rows = run.collectives
    count = rows.count
    together = (rows.match != NONE) & rows.together
    at = rows.match[together]
    transfer = _least(at, rows.duration[together], count)
    wait = np.full(len(rows.rank), NONE)
    wait[together] = rows.duration[together] - transfer[at]
    peers = _peers(run, rows)
    waited_for = _wait_for_peers(rows, peers, wait)
    alone = (rows.match != NONE) & rows.point_to_point & (wait != NONE)
    least = _least(rows.match[alone], (rows.duration - wait)[alone], count)
    ranks = np.bincount(rows.match[rows.match != NONE], minlength=count)
    size = np.array([group.size or NONE for group in rows.groups], dtype=np.int64)
    matched = np.flatnonzero(rows.match != NONE)
    expected = np.full(count, NONE)
    expected[rows.match[matched]] = np.where(rows.point_to_point[matched], 2, size[rows.group[matched]])
    step = _least(
        rows.match[matched], np.where(rows.step[matched] == NONE, _NEVER, rows.step[matched]), count
    )
    last = _last(rows, wait, count)
    waited = np.flatnonzero((wait > 0) & rows.together)
    waited_for[waited] = last[rows.match[waited]]
    return Waits(
        rows=rows,
        wait=wait,
        waited_for=waited_for,
        peers=peers,
        transfer=np.where(transfer != NONE, transfer, least),
        last=last,
        ranks=ranks,
        whole=(expected == NONE) | (ranks >= expected),
        step=np.where(step == _NEVER, NONE, step),
    )


_AGREE_NS = 200_000
"""The two ends of a message differ by this much or by three times the error of the clocks: else the send left early."""
_NEVER = np.iinfo(np.int64).max


def _peers(run: Run, rows: Collectives) -> Peers:
    """For each matched send and receive the kernels that it may wait for."""
    sends, recvs = rows.sends, rows.recvs
    if len(sends) == 0:
        return Peers(sends, sends, sends)
    slack, is_aligned = _clock_slack(run, rows)
    slack = np.maximum(slack[sends], slack[recvs])
    single = rows.match[sends] != NONE
    agree = np.abs(rows.end[sends] - rows.end[recvs]) <= slack
    agree |= ~(is_aligned[sends] & is_aligned[recvs])
    agree &= single
    # A send that had ended when the receive began left early. Of a single pair, the ends tell it.
    held = np.where(single, agree, rows.start[recvs] <= rows.end[sends] + slack)
    entry, peer = np.concatenate([recvs, sends[held]]), np.concatenate([sends, recvs[held]])
    ends_agree = np.concatenate([agree, agree[held]])
    ends, latest = rows.end[entry] - rows.end[peer], rows.end[entry] - rows.start[peer]
    shift = np.where(ends_agree, ends, np.minimum(latest, 0))
    distinct, _ = number_rows([entry, peer, shift])
    return Peers(*distinct.T)


def _clock_slack(run: Run, rows: Collectives) -> tuple[Ints, Mask]:
    """By entry: how far apart the ends of a message may be, and whether the clock of its rank is aligned."""
    ranks = unique_values(rows.rank)
    clocks = [run.clocks.of(rank) for rank in ranks.tolist()]
    slack = np.array([max(_AGREE_NS, 3 * (clock.error_ns or 0)) for clock in clocks], dtype=np.int64)
    is_aligned = np.array([clock.method != "wall clock" for clock in clocks], dtype=bool)
    of_entry = np.searchsorted(ranks, rows.rank)
    return slack[of_entry], is_aligned[of_entry]


def _wait_for_peers(rows: Collectives, peers: Peers, wait: Ints) -> Ints:
    """Fill in the waits of sends and receives. Returns the entry that each of them waited for."""
    waited_for = np.full(len(wait), NONE)
    wait[rows.sends] = wait[rows.recvs] = 0
    ready = rows.start[peers.peer] + peers.shift
    late = np.clip(ready - rows.start[peers.entry], 0, rows.duration[peers.entry])
    np.maximum.at(wait, peers.entry, late)
    # The peer that started last; of several the first.
    last = np.flatnonzero((late > 0) & (late == wait[peers.entry]))[::-1]
    waited_for[peers.entry[last]] = peers.peer[last]
    return waited_for


def _least(match: Ints, value: Ints, count: int) -> Ints:
    """The smallest value of each match; NONE where there is none."""
    least = np.full(count, _NEVER)
    np.minimum.at(least, match, value)
    seen = np.zeros(count, dtype=bool)
    seen[match] = True
    return np.where(seen, least, NONE)


def _last(rows: Collectives, wait: Ints, count: int) -> Ints:
    """The entry of each match that did not wait; NONE when all arrived at once."""
    last = np.full(count, NONE)
    # Of ranks that arrived together, the lowest.
    first = np.flatnonzero((wait == 0) & (rows.match != NONE))[::-1]
    last[rows.match[first]] = first
    waited = np.zeros(count, dtype=bool)
    waited[rows.match[(wait > 0) & (rows.match != NONE)]] = True
    return np.where(waited, last, NONE)


def _within(every: Waits, first: int, final: int) -> Waits:
    """Select the matches of these steps, and the sends and receives of these steps that have none."""
    rows = every.rows
    inside = (every.step >= first) & (every.step <= final)
    match, number = rows.match.copy(), np.where(inside, np.cumsum(inside) - 1, NONE)
    match[match != NONE] = number[match[match != NONE]]
    used = match != NONE
    used |= (rows.match == NONE) & (every.wait != NONE) & (rows.step >= first) & (rows.step <= final)
    entry = np.append(np.where(used, np.cumsum(used) - 1, NONE), NONE)  # that of NONE is the last
    return Waits(
        rows=replace(rows.pick(used), match=match[used]),
        wait=every.wait[used],
        waited_for=entry[every.waited_for[used]],
        peers=every.peers.pick(used),
        transfer=every.transfer[inside],
        last=entry[every.last[inside]],
        ranks=every.ranks[inside],
        whole=every.whole[inside],
        step=every.step[inside],
    )
