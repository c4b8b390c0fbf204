"""Replay a run with some durations changed, to predict when everything would have happened.

One pass over the nodes in the order in which they happened, one rank at a time, until that rank has to wait for a
collective that the others have not reached. This is a loop over events, because each start depends on an end just
computed; it is linear, and a million nodes take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import (
    HOST_CLASSES,
    NONE,
    Graph,
    Mask,
    follow,
    latest_end_between,
)

_UNKNOWN = None


@dataclass(frozen=True)
class Durations:
    """The durations that a scenario may change; all times follow from them."""

    device: Ints
    """Of each device node; for collectives see transfer."""
    host: Ints
    """Host time before each host node."""
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

    def length(self, graph: Graph) -> int:
        """From the first step of a rank to its last event, by its own clock, cycle by cycle; the longest of a rank."""
        on_host, on_device, cycles = _cycles(graph)
        groups = len(graph.ranks) * cycles
        marks = (graph.host.step != NONE) & ~graph.host.is_end
        first = np.full(groups, np.iinfo(np.int64).max)
        last = np.full(groups, np.iinfo(np.int64).min)
        if marks.any():
            np.minimum.at(first, on_host[marks], self.host[marks])
        else:
            np.minimum.at(first, on_host, self.host)
            np.minimum.at(first, on_device, self.start)
        np.maximum.at(last, on_host, self.host)
        np.maximum.at(last, on_device, self.end)
        there = (first != np.iinfo(np.int64).max) & (last != np.iinfo(np.int64).min)
        took = np.where(there, last - np.where(there, first, 0), 0)
        return int(took.reshape(len(graph.ranks), cycles).sum(axis=1).max(initial=0))


def _cycles(graph: Graph) -> tuple[Ints, Ints, int]:
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


def recorded(graph: Graph) -> Durations:
    """The recorded durations: replaying them gives the recorded times."""
    host = graph.host
    steps = np.where(host.before != NONE, host.time - follow(host.before, host.time, 0), 0)
    waits = np.ones(len(host.time), dtype=bool)
    return Durations(graph.device.end - graph.device.start, steps, graph.collectives.transfer.copy(), waits)


class _Replay:
    """The state of a replay. Plain lists, because reading single elements of an array is slow."""

    def __init__(self, graph: Graph, durations: Durations) -> None:
        device, host, matched = graph.device, graph.host, graph.collectives
        launch, stream, other = graph.constraints()
        latest = np.maximum(np.maximum(launch, stream), other)
        caused = (device.launch != NONE) | (device.before != NONE) | (device.other != NONE)
        self.residual = np.where(caused, device.start - latest, 0).tolist()
        self.caused = caused.tolist()
        self.lag = {
            name: getattr(graph.lags, name)[device.rank].tolist() for name in ("launch", "stream", "other")
        }
        self.launch, self.before, self.other = (
            array.tolist() for array in (device.launch, device.before, device.other)
        )
        self.meets = np.where(
            (device.match != NONE) & (matched.members[np.maximum(device.match, 0)] > 1)
            if len(matched.members)
            else np.zeros(len(device.match), dtype=bool),
            device.match,
            NONE,
        ).tolist()
        self.took, self.steps = durations.device.tolist(), durations.host.tolist()
        self.transfer = durations.transfer.tolist()
        self.old_start, self.old_host = device.start.tolist(), host.time.tolist()
        self._prepare_host(graph, durations)
        self._prepare_collectives(graph)
        self.start: list[int | None] = [_UNKNOWN] * len(device.start)
        self.end: list[int | None] = [_UNKNOWN] * len(device.start)
        self.host: list[int | None] = [_UNKNOWN] * len(host.time)

    def _prepare_host(self, graph: Graph, durations: Durations) -> None:
        host, device = graph.host, graph.device
        waits = host.target != NONE
        is_sync = host.kind == HOST_CLASSES.index("sync")
        target = host.target.copy()
        quiet = np.flatnonzero(is_sync & ~waits)
        if len(quiet) and len(device.end):
            # These calls did not wait, but with slower kernels they would.
            low = np.full(len(quiet), int(device.end.min()) - 1)
            target[quiet] = latest_end_between(
                device.rank, device.end, host.rank[quiet], low, host.time[quiet]
            )
        passed = host.time - follow(target, device.end, 0)
        lag = np.where(waits, passed, np.minimum(passed, graph.lags.sync[host.rank]))
        target = np.where(durations.waits, target, NONE)
        self.target, self.waits, self.sync_lag = target.tolist(), waits.tolist(), lag.tolist()
        self.host_before = host.before.tolist()
        self.closes, self.opens = host.match.tolist(), host.opens.tolist()

    def _prepare_collectives(self, graph: Graph) -> None:
        """The offset of each member's end from the end of the collective: clock differences and time to return."""
        device, host, matched = graph.device, graph.host, graph.collectives
        count = len(matched.transfer)
        done = np.zeros(count, dtype=np.int64)
        known = matched.last != NONE
        on_device, on_host = known & ~matched.on_host, known & matched.on_host
        done[on_device] = device.end[matched.last[on_device]]
        done[on_host] = host.time[matched.last[on_host]] + matched.transfer[on_host]
        self.shift = (device.end - done[np.maximum(device.match, 0)] if count else device.end).tolist()
        closing = np.where(host.match != NONE, host.time - done[np.maximum(host.match, 0)] if count else 0, 0)
        self.close_shift = closing.tolist()
        # The start of a host collective gets the offset of its end on the same rank, where there is one.
        opening = np.zeros(len(host.time), dtype=np.int64)
        ends = {
            (r, m): s
            for r, m, s in zip(host.rank.tolist(), host.match.tolist(), closing.tolist(), strict=True)
            if m != NONE
        }
        for node in np.flatnonzero(host.opens != NONE).tolist():
            opening[node] = ends.get((int(host.rank[node]), int(host.opens[node])), 0)
        self.open_shift = opening.tolist()
        self.members = matched.members.tolist()
        self.arrived, self.latest = [0] * count, [np.iinfo(np.int64).min // 2] * count
        self.done: list[int | None] = [_UNKNOWN] * count
        self.inside: list[list[int]] = [[] for _ in range(count)]

    def play_device(self, node: int) -> bool:
        """False when the time of one of its causes is not known yet."""
        if self.start[node] is None:
            best = None
            for cause, times, lag in (
                (self.launch[node], self.host, self.lag["launch"]),
                (self.before[node], self.end, self.lag["stream"]),
                (self.other[node], self.end, self.lag["other"]),
            ):
                if cause == NONE:
                    continue
                time = times[cause]
                if time is None:
                    return False
                best = time + lag[node] if best is None else max(best, time + lag[node])
            self.start[node] = self.old_start[node] if best is None else best + self.residual[node]
        started = self.start[node]
        assert started is not None
        match = self.meets[node]
        if match == NONE:
            self.end[node] = started + self.took[node]
        else:
            self.inside[match].append(node)
            self._arrive(match, started - self.shift[node])
        return True

    def play_host(self, node: int) -> bool:
        if self.host_before[node] == NONE:
            now: int = self.old_host[node]
        else:
            before = self.host[self.host_before[node]]
            if before is None:
                return False
            closes = self.closes[node]
            if closes != NONE:
                done = self.done[closes]
                if done is None:
                    return False
                now = max(before, done + self.close_shift[node])
            elif self.target[node] != NONE:
                ended = self.end[self.target[node]]
                if ended is None:
                    return False
                chain = before if self.waits[node] else before + self.steps[node]
                now = max(chain, ended + self.sync_lag[node])
            else:
                now = before + self.steps[node]
        self.host[node] = now
        if self.opens[node] != NONE:
            self._arrive(self.opens[node], now - self.open_shift[node])
        return True

    def _arrive(self, match: int, when: int) -> None:
        self.arrived[match] += 1
        self.latest[match] = max(self.latest[match], when)
        if self.arrived[match] == self.members[match]:
            done = self.latest[match] + self.transfer[match]
            self.done[match] = done
            for node in self.inside[match]:
                self.end[node] = done + self.shift[node]


def replay(graph: Graph, durations: Durations) -> Times | None:
    """The times with these durations; None when ranks wait for each other in a cycle."""
    player = _Replay(graph, durations)
    hosts = len(graph.host.time)
    time = np.concatenate([graph.host.time, graph.device.start])
    rank = np.concatenate([graph.host.rank, graph.device.rank])
    is_device = np.arange(len(time)) >= hosts
    order = np.lexsort((np.arange(len(time)), is_device, time, rank))
    bounds = np.searchsorted(rank[order], np.arange(len(graph.ranks) + 1))
    queues = [order[low:high].tolist() for low, high in pairwise(bounds.tolist())]
    at = [0] * len(queues)
    moved = True
    while moved:
        moved = False
        for number, queue in enumerate(queues):
            place = at[number]
            while place < len(queue):
                node = queue[place]
                ready = player.play_host(node) if node < hosts else player.play_device(node - hosts)
                if not ready:
                    break
                place += 1
            moved |= place > at[number]
            at[number] = place
    if any(place < len(queue) for place, queue in zip(at, queues, strict=True)) or None in player.end:
        return None
    return Times(*(np.array(values, dtype=np.int64) for values in (player.start, player.end, player.host)))
