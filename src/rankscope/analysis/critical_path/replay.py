"""Replay a run with some durations changed, to predict when everything would have happened.

One pass over the nodes in the order in which they happened, one rank at a time, until that rank has to wait for a
collective or a message that the others have not reached. This is a loop over events, because each start depends on an
end just computed; it is linear, and a million nodes take seconds.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import (
    HOST_CLASSES,
    NONE,
    Graph,
    Mask,
    follow,
)
from rankscope.records import dataclass


@dataclass(frozen=True)
class Durations:
    """The durations that a scenario may change; all times follow from them."""

    device: Ints
    """Of each device node; for collectives see transfer."""
    host: Ints
    """Host time before each host node; of one that begins a recording, by how much it begins later."""
    transfer: Ints
    """Of each collective, from the arrival of the last rank."""
    waits: Mask
    """Of each host node: whether it waits for the device node that it waited for."""


@dataclass(frozen=True)
class Times:
    """Start and end of each device node, and the time of each host node."""

    start: Ints
    end: Ints
    host: Ints

    def length(self, graph: Graph) -> float:
        """From the first step of a rank to its last event, by its own clock, cycle by cycle; the mean over ranks."""
        on_host, on_device, cycles = recording_cycles(graph)
        groups = len(graph.ranks) * cycles
        marks = (graph.host.step != NONE) & ~graph.host.is_end
        first = np.full(groups, np.iinfo(np.int64).max)
        last = np.full(groups, np.iinfo(np.int64).min)
        if marks.any():
            np.minimum.at(first, on_host[marks], self.host[marks])
        else:
            np.minimum.at(first, on_host, self.host)
            np.minimum.at(first, on_device, self.start)
        events = (graph.host.step != NONE) | ~graph.host.is_end  # not the end of a recording
        np.maximum.at(last, on_host[events], self.host[events])
        np.maximum.at(last, on_device, self.end)
        there = (first != np.iinfo(np.int64).max) & (last != np.iinfo(np.int64).min)
        took = np.where(there, last - np.where(there, first, 0), 0).reshape(len(graph.ranks), cycles)
        present = there.reshape(len(graph.ranks), cycles).any(axis=1)
        return float(took[present].sum(axis=1).mean()) if present.any() else 0.0


def recording_cycles(graph: Graph) -> tuple[Ints, Ints, int]:
    """The recording cycle of each host and device node, as rank * cycles + cycle, and the largest number of cycles."""
    host, device = graph.host, graph.device
    starts = np.flatnonzero(host.kind == HOST_CLASSES.index("unrecorded"))
    if len(starts) == 0:
        return host.rank, device.rank, 1
    cycles = int(np.bincount(host.rank[starts]).max()) + 1
    width = int(max(host.time.max(), device.end.max(initial=0))) + 2
    begins = host.rank[starts] * width + host.time[starts]
    before = np.searchsorted(host.rank[starts], np.arange(len(graph.ranks)))

    def placed(rank: Ints, time: Ints) -> Ints:
        at: Ints = np.searchsorted(begins, rank * width + time, side="right") - before[rank]
        return rank * cycles + np.minimum(at, cycles - 1)

    return placed(host.rank, host.time), placed(device.rank, device.start), cycles


def begins_recording(graph: Graph) -> Mask:
    """By host node: whether nothing is known before it. A cycle begins when it did, however long the one before takes:
    what lies between is not known."""
    begins: Mask = (graph.host.before == NONE) | (graph.host.kind == HOST_CLASSES.index("unrecorded"))
    return begins


def recorded(graph: Graph) -> Durations:
    """The recorded durations: replaying them gives the recorded times."""
    host = graph.host
    steps = np.where(begins_recording(graph), 0, host.time - follow(host.before, host.time, 0))
    waits = np.ones(len(host.time), dtype=bool)
    return Durations(graph.device.end - graph.device.start, steps, graph.collectives.transfer.copy(), waits)


class Replay:
    """A graph that is replayed again and again. Plain lists: reading single elements of an array is slow."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        device, matched = graph.device, graph.collectives
        launch, stream, other = graph.constraints()
        latest = np.maximum(np.maximum(launch, stream), other)
        caused = (device.launch != NONE) | (device.before != NONE) | (device.other != NONE)
        # Without a cause, an event starts when it did.
        self._later = np.where(caused, device.start - latest, device.start).tolist()
        self._lags = [
            getattr(graph.lags, name)[device.rank].tolist() for name in ("launch", "stream", "other")
        ]
        self._causes = [array.tolist() for array in (device.launch, device.before, device.other)]
        meets = np.append(matched.meets, False)  # that of NONE is the last
        self._meets = np.where(meets[device.match], device.match, NONE).tolist()
        self._visits: dict[int, list[tuple[int, int]]] = {}
        visits = graph.visits
        for node, at, shift in zip(*(array.tolist() for array in vars(visits).values()), strict=True):
            self._visits.setdefault(node, []).append((at, shift))
        self._old_host = graph.host.time.tolist()
        self._prepare_host(graph)
        self._prepare_collectives(graph)
        self._queues = _queues(graph)

    def _prepare_host(self, graph: Graph) -> None:
        host = graph.host
        self._target, lag = graph.sync_targets
        self._waits, self._sync_lag = (host.target != NONE).tolist(), lag.tolist()
        self._host_before = np.where(begins_recording(graph), NONE, host.before).tolist()
        self._closes, self._opens = host.match.tolist(), host.opens.tolist()

    def _prepare_collectives(self, graph: Graph) -> None:
        """The offset of each member's end from the end of the collective: clock differences and time to return."""
        device, host, matched = graph.device, graph.host, graph.collectives
        count = len(matched.transfer)
        done = np.zeros(count, dtype=np.int64)
        has_last = matched.last != NONE
        on_device, on_host = has_last & ~matched.on_host, has_last & matched.on_host
        done[on_device] = device.end[matched.last[on_device]]
        done[on_host] = host.time[matched.last[on_host]] + matched.transfer[on_host]
        is_message = np.append(matched.is_message, False)
        alone = np.flatnonzero(is_message[device.match])
        done[device.match[alone]] = device.end[alone]
        begun = np.flatnonzero(is_message[host.opens])
        done[host.opens[begun]] = host.time[begun]
        visits = graph.visits
        times = np.concatenate([device.start, host.time])
        np.maximum.at(
            done, visits.at, times[visits.node] + visits.shift
        )  # of kernels never later than the end
        done[host.opens[begun]] += matched.transfer[host.opens[begun]]
        self._shift = (device.end - done[np.maximum(device.match, 0)] if count else device.end).tolist()
        closing = np.where(host.match != NONE, host.time - done[np.maximum(host.match, 0)] if count else 0, 0)
        self._close_shift = closing.tolist()
        # The start of a host collective gets the offset of its end on the same rank, where there is one.
        opening = np.zeros(len(host.time), dtype=np.int64)
        ends = {
            (r, m): s
            for r, m, s in zip(host.rank.tolist(), host.match.tolist(), closing.tolist(), strict=True)
            if m != NONE and not is_message[m]
        }
        for node in np.flatnonzero(host.opens != NONE).tolist():
            opening[node] = ends.get((int(host.rank[node]), int(host.opens[node])), 0)
        self._open_shift = opening.tolist()
        self._members = matched.members.tolist()

    def play(self, durations: Durations) -> Times | None:
        """The times with these durations; None when ranks wait for each other in a cycle."""
        hosts = len(self._old_host)
        state = _State(self, durations)
        at = [0] * len(self._queues)
        moved = True
        while moved:
            moved = False
            for number, queue in enumerate(self._queues):
                reached = state.play(queue, at[number], hosts)
                moved |= reached > at[number]
                at[number] = reached
        unfinished = any(reached < len(queue) for reached, queue in zip(at, self._queues, strict=True))
        if unfinished or None in state.end:
            return None
        return Times(*(np.array(values, dtype=np.int64) for values in (state.start, state.end, state.host)))


def _queues(graph: Graph) -> list[list[int]]:
    """The nodes of each rank in the order in which they happened: host nodes first, then device nodes."""
    hosts = len(graph.host.time)
    time = np.concatenate([graph.host.time, graph.device.start])
    rank = np.concatenate([graph.host.rank, graph.device.rank])
    is_device = np.arange(len(time)) >= hosts
    order = np.lexsort((np.arange(len(time)), is_device, time, rank))
    bounds = np.searchsorted(rank[order], np.arange(len(graph.ranks) + 1))
    return [order[low:high].tolist() for low, high in pairwise(bounds.tolist())]


class _State:
    """One replay: the times that are known so far."""

    def __init__(self, replay: Replay, durations: Durations) -> None:
        self.fixed = replay
        self.took, self.steps = durations.device.tolist(), durations.host.tolist()
        self.transfer = durations.transfer.tolist()
        self.target = np.where(durations.waits, replay._target, NONE).tolist()
        count = len(self.transfer)
        self.arrived, self.latest = [0] * count, [np.iinfo(np.int64).min // 2] * count
        self.done: list[int | None] = [None] * count
        self.inside: list[list[int]] = [[] for _ in range(count)]
        self.start: list[int | None] = [None] * len(self.took)
        self.end: list[int | None] = [None] * len(self.took)
        self.host: list[int | None] = [None] * len(self.steps)

    def play(self, queue: list[int], at: int, hosts: int) -> int:
        """Go on with a rank from here until it must wait for another; returns how far it got."""
        play_host, play_device = self._play_host, self._play_device
        while at < len(queue):
            node = queue[at]
            if not (play_host(node) if node < hosts else play_device(node - hosts)):
                break
            at += 1
        return at

    def _play_device(self, node: int) -> bool:
        """False when the time of one of its causes is not known yet."""
        fixed, end = self.fixed, self.end
        launch, before, other = fixed._causes
        lags = fixed._lags
        first = _NEVER
        if (cause := launch[node]) != NONE:
            when = self.host[cause]
            if when is None:
                return False
            first = when + lags[0][node]
        if (cause := before[node]) != NONE:
            when = end[cause]
            if when is None:
                return False
            if (when := when + lags[1][node]) > first:
                first = when
        if (cause := other[node]) != NONE:
            when = end[cause]
            if when is None:
                return False
            if (when := when + lags[2][node]) > first:
                first = when
        started = fixed._later[node] if first == _NEVER else first + fixed._later[node]
        self.start[node] = started
        match = fixed._meets[node]
        if match == NONE:
            end[node] = started + self.took[node]
        else:
            self.inside[match].append(node)
            self._arrive(match, started - fixed._shift[node])
        if node in fixed._visits:
            for at, shift in fixed._visits[node]:
                self._arrive(at, started + shift)
        return True

    def _play_host(self, node: int) -> bool:
        fixed = self.fixed
        if (preceding := fixed._host_before[node]) == NONE:
            now: int = fixed._old_host[node] + self.steps[node]
        else:
            before = self.host[preceding]
            if before is None:
                return False
            if (closes := fixed._closes[node]) != NONE:
                done = self.done[closes]
                if done is None:
                    return False
                now = max(before, done + fixed._close_shift[node])
            elif (target := self.target[node]) != NONE:
                ended = self.end[target]
                if ended is None:
                    return False
                chain = before if fixed._waits[node] else before + self.steps[node]
                now = max(chain, ended + fixed._sync_lag[node])
            else:
                now = before + self.steps[node]
        self.host[node] = now
        if (opens := fixed._opens[node]) != NONE:
            self._arrive(opens, now - fixed._open_shift[node])
            for at, shift in fixed._visits.get(node + len(self.took), ()):
                self._arrive(at, now + shift)
        return True

    def _arrive(self, match: int, when: int) -> None:
        self.arrived[match] += 1
        self.latest[match] = max(self.latest[match], when)
        if self.arrived[match] == self.fixed._members[match]:
            done = self.latest[match] + self.transfer[match]
            self.done[match] = done
            for node in self.inside[match]:
                self.end[node] = done + self.fixed._shift[node]


_NEVER = -(1 << 62)
