"""Small random programs for several ranks, played in the plainest way: what the graph must agree with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.event_replay import RunEvents
from rankscope.analysis.graph.events import NONE, DeviceNodes, HostNodes, Lags, previous_on_stream
from rankscope.analysis.graph.graph import MatchedCollectives

LAUNCH, STREAM, OTHER, SYNC = 5_000, 1_000, 1_500, 3_000


@dataclass
class Item:
    """A launch on the host and what it puts on the device, or a synchronising call."""

    host: int
    """Time the host takes up to it."""
    took: int = 0
    stream: int = 0
    other: int | None = None
    """An earlier item of the same rank that it waits for."""
    collective: int | None = None
    sync: int | None = None
    """The item whose device work the call waits for; then nothing is launched."""


@dataclass
class Program:
    ranks: list[list[Item]]
    transfer: list[int]


def random_program(seed: int) -> Program:
    source = random.Random(seed)
    width = source.randint(1, 3)
    length = source.randint(2, 6)
    meets = {
        at: number
        for number, at in enumerate(at for at in range(length) if width > 1 and source.random() < 0.4)
    }
    ranks = []
    for _ in range(width):
        items: list[Item] = []
        for at in range(length):
            launched = [i for i, item in enumerate(items) if item.sync is None]
            host = source.randint(1_000, 90_000)
            if at not in meets and launched and source.random() < 0.2:
                items.append(Item(host, sync=source.choice(launched)))
                continue
            item = Item(
                host,
                took=source.randint(2_000, 300_000),
                stream=source.randint(0, 1),
                collective=meets.get(at),
            )
            others = [i for i in launched if items[i].stream != item.stream]
            if others and source.random() < 0.4:
                item.other = source.choice(others)
            items.append(item)
        ranks.append(items)
    return Program(ranks, [source.randint(5_000, 100_000) for _ in meets])


def play(program: Program) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """By rank and item: when the host gets there (a sync: when it returns), and start and end on the device."""
    width, length = len(program.ranks), len(program.ranks[0])
    host: list[list[int]] = [[] for _ in range(width)]
    device: list[list[tuple[int, int]]] = [[] for _ in range(width)]
    for at in range(length):
        starts = []
        for rank, items in enumerate(program.ranks):
            item = items[at]
            now = (host[rank][-1] if host[rank] else 0) + item.host
            if item.sync is not None:
                # the time the host takes is that up to the call; it returns when the device has done
                now = max(now, device[rank][item.sync][1] + SYNC)
            host[rank].append(now)
            causes = [now + LAUNCH]
            causes += [device[rank][i][1] + STREAM for i in _on_stream(items, at)[-1:]]
            if item.other is not None:
                causes.append(device[rank][item.other][1] + OTHER)
            starts.append(max(causes))
        for rank, items in enumerate(program.ranks):
            item, start = items[at], starts[rank]
            if item.sync is not None:
                device[rank].append((NONE, NONE))
            elif item.collective is None:
                device[rank].append((start, start + item.took))
            else:
                device[rank].append((start, max(starts) + program.transfer[item.collective]))
    return host, device


def _on_stream(items: list[Item], at: int) -> list[int]:
    return [i for i in range(at) if items[i].sync is None and items[i].stream == items[at].stream]


def events_of_program(program: Program) -> tuple[RunEvents, list[tuple[int, int]]]:
    """The events of a program as played, and for each device node its (rank, item)."""
    host, device = play(program)
    host_rows: list[dict[str, int]] = []
    device_rows: list[dict[str, int]] = []
    device_at: list[tuple[int, int]] = []
    place: dict[tuple[int, int], int] = {}
    for rank, items in enumerate(program.ranks):
        for at, item in enumerate(items):
            if item.sync is None:
                place[rank, at] = len(place)
    for rank, items in enumerate(program.ranks):
        for at, item in enumerate(items):
            before = (host[rank][at - 1] if at else 0) + item.host
            first = not host_rows or host_rows[-1]["rank"] != rank
            host_rows.append(_host_row(rank, before, 0, NONE, NONE if first else len(host_rows) - 1))
            if item.sync is not None:
                waited = host[rank][at] > before
                target = place[rank, item.sync] if waited else NONE
                host_rows.append(_host_row(rank, host[rank][at], 2, target, len(host_rows) - 1))
                continue
            start, end = device[rank][at]
            device_rows.append(
                {
                    "rank": rank, "step": NONE, "stream": 2 * rank + item.stream, "start": start, "end": end,
                    "kind": 0 if item.collective is None else 1, "name": at,
                    "launch": len(host_rows) - 1, "before": NONE,
                    "other": NONE if item.other is None else place[rank, item.other],
                    "match": NONE if item.collective is None else item.collective,
                }
            )  # fmt: skip
            device_at.append((rank, at))
    nodes = DeviceNodes(**_columns(device_rows))
    nodes = DeviceNodes(**{**vars(nodes), "before": previous_on_stream(nodes.stream)})
    moments = _columns(host_rows)
    moments["is_end"] = moments["is_end"].astype(bool)
    ranks = len(program.ranks)
    lags = Lags(*(np.full(ranks, lag) for lag in (LAUNCH, STREAM, OTHER, SYNC)))
    collectives = _matched_collectives(program, nodes)
    ends = [*nodes.end.tolist(), *moments["time"].tolist()]
    names = [str(i) for i in range(64)]
    events = RunEvents(
        tuple(range(ranks)), names, nodes, HostNodes(**moments), lags, collectives, (0, max(ends)), (),
        np.zeros(len(moments["time"]), dtype=np.int64),
    )  # fmt: skip
    return events, device_at


def _host_row(rank: int, time: int, kind: int, target: int, before: int) -> dict[str, int]:
    return {
        "rank": rank, "time": time, "kind": kind, "name": 63, "target": target, "before": before, "match": NONE,
        "opens": NONE, "step": NONE, "is_end": 0,
    }  # fmt: skip


def _columns(rows: list[dict[str, int]]) -> dict[str, Any]:
    return {key: np.array([row[key] for row in rows], dtype=np.int64) for key in rows[0]}


def _matched_collectives(program: Program, nodes: DeviceNodes) -> MatchedCollectives:
    count = len(program.transfer)
    last = np.full(count, NONE)
    for number in range(count):
        members = np.flatnonzero(nodes.match == number)
        last[number] = members[nodes.start[members].argmax()]
    one = np.zeros(count, dtype=np.int64)
    members = np.array([(nodes.match == number).sum() for number in range(count)], dtype=np.int64)
    transfer = np.array(program.transfer, dtype=np.int64)
    return MatchedCollectives(transfer, last, np.zeros(count, dtype=bool), members, one - 1, one, one)


def longest_path(program: Program) -> tuple[int, dict[str, int]]:
    """Every chain of causes from the beginning to the last end, by trying all: the longest, by class."""
    host, device = play(program)

    def to_host(rank: int, at: int) -> tuple[int, dict[str, int]]:
        """Until the host gets to the item (a sync: until it returns)."""
        item = program.ranks[rank][at]
        length, parts = to_host(rank, at - 1) if at else (0, {})
        found = [_longer(length, parts, "host", item.host)]
        if item.sync is not None:
            ended, chain = to_end(rank, item.sync)
            found.append(_longer(ended, chain, "sync", SYNC))
        return max(found, key=lambda one: one[0])

    def to_start(rank: int, at: int) -> tuple[int, dict[str, int]]:
        item = program.ranks[rank][at]
        found = [_longer(*to_host(rank, at), "launch", LAUNCH)]
        found += [_longer(*to_end(rank, i), "gap", STREAM) for i in _on_stream(program.ranks[rank], at)[-1:]]
        if item.other is not None:
            found.append(_longer(*to_end(rank, item.other), "gap", OTHER))
        return max(found, key=lambda one: one[0])

    def to_end(rank: int, at: int) -> tuple[int, dict[str, int]]:
        item = program.ranks[rank][at]
        if item.collective is None:
            return _longer(*to_start(rank, at), "compute", item.took)
        starts = [to_start(other, at) for other in range(len(program.ranks))]
        return _longer(*max(starts, key=lambda one: one[0]), "comm", program.transfer[item.collective])

    ends = []
    for rank, items in enumerate(program.ranks):
        for at, item in enumerate(items):
            ends.append(to_host(rank, at))
            if item.sync is None:
                ends.append(to_end(rank, at))
    assert max(ends, key=lambda one: one[0])[0] == max(
        [*(time for row in host for time in row), *(end for row in device for _, end in row)]
    )
    return max(ends, key=lambda one: one[0])


def _longer(length: int, parts: dict[str, int], kind: str, by: int) -> tuple[int, dict[str, int]]:
    return length + by, {**parts, kind: parts.get(kind, 0) + by}
