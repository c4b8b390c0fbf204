"""The critical path in the plainest way, one step at a time: what the fast one must agree with, piece by piece."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np

from analysis.event_replay import RunEvents
from rankscope.analysis.graph.events import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    PATH_CLASSES,
    DeviceNodes,
    HostNodes,
    Lags,
    previous_on_stream,
)
from rankscope.analysis.graph.graph import Graph, MatchedCollectives
from rankscope.analysis.graph.path import critical_path
from rankscope.store.separate_runs import SESSION_GAP_NS


class Piece(NamedTuple):
    """A stretch of the path."""

    kind: str
    rank: int
    name: str
    start: int
    end: int


def pieces(graph: Graph) -> list[Piece]:
    path = critical_path(graph)
    columns = (path.kind, path.rank, path.name, path.start, path.end)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [
        Piece(PATH_CLASSES[kind], graph.ranks[rank], graph.names[name], *times)
        for kind, rank, name, *times in rows
    ]


def plain_walk(events: RunEvents) -> list[Piece]:
    """Back from the last end, cause by cause. Pieces meet end to end; those without a length are left out."""
    device, host, devices = events.device, events.host, len(events.device.rank)
    low, high = events.window
    start, rank, name = (
        np.concatenate([getattr(device, one), getattr(host, other)]).tolist()
        for one, other in (("start", "time"), ("rank", "rank"), ("name", "name"))
    )
    end = np.concatenate([device.end, host.time + events.opened_ns]).tolist()
    match = np.concatenate([device.match, host.opens]).tolist()
    cause_of = _causes(events)
    path: list[Piece] = []
    time = high

    def step_to(when: int, kind: str, by: int, named: int) -> int:
        """A piece from `when` to now; clocks that disagree never make one negative."""
        reached = min(max(when, low), time)
        if reached < time:
            path.append(Piece(kind, events.ranks[rank[by]], events.names[name[named]], reached, time))
        return reached

    node = max(range(len(end)), key=lambda each: (end[each], -rank[each], -start[each], -each), default=NONE)
    first = node
    for _ in range(len(end)):
        if node == NONE or time <= low:
            break
        first = _last_member(events, match[node], node)
        is_comm = node >= devices or match[node] != NONE
        time = step_to(start[first], "comm" if is_comm else DEVICE_CLASSES[device.kind[node]], node, node)
        kind, node = cause_of[first]
        if node != NONE:
            time = step_to(end[node], kind, first, first)
    if time > low and first != NONE:
        # A rank that begins much later than the window was recorded later.
        step_to(low, "unrecorded" if time - low > SESSION_GAP_NS else "host", first, first)
    return path


def _causes(events: RunEvents) -> list[tuple[str, int]]:
    """Of each node, device nodes first: what it waited for, and the class of the time since that."""
    device, host, devices = events.device, events.host, len(events.device.rank)
    causes = []
    constraints = np.stack(events.constraints()).T.tolist()
    nodes = np.stack(
        [np.where(device.launch != NONE, device.launch + devices, NONE), device.before, device.other]
    )
    for bounds, of_node in zip(constraints, nodes.T.tolist(), strict=True):
        which = bounds.index(max(bounds))
        causes.append((("launch", "gap", "gap")[which], of_node[which]))
    opener = {
        (rank, match): node
        for node, (rank, match) in enumerate(zip(host.rank.tolist(), host.opens.tolist(), strict=True))
    }
    for node, (rank, before, match) in enumerate(
        zip(host.rank.tolist(), host.before.tolist(), host.match.tolist(), strict=True)
    ):
        if match != NONE:
            causes.append(("gap", devices + opener[rank, match]))
        elif before == NONE:
            causes.append(("", NONE))
        elif host.target[node] != NONE:
            causes.append(("sync", int(host.target[node])))
        elif host.opens[before] != NONE:  # the thread of the collective is busy until it ends
            causes.append(("", NONE))
        else:
            causes.append((HOST_CLASSES[host.kind[node]], devices + before))
    return causes


def _last_member(events: RunEvents, match: int, node: int) -> int:
    """Who came last to the collective of a node: the node itself where it is none, or came last."""
    matched = events.collectives
    if match == NONE or not events.meets[match] or matched.last[match] == NONE:
        return node
    return int(matched.last[match]) + len(events.device.rank) * int(matched.on_host[match])


def random_events(seed: int) -> RunEvents:
    """Causes, collectives and clocks as they come, also such as no program has; but never a circle.

    Nodes happen in turns. A cause is of an earlier turn; the members of a collective share one.
    """
    source = random.Random(seed)
    ranks, turns = source.randint(1, 3), source.randint(1, 12)
    device: list[dict[str, Any]] = []
    host: list[dict[str, Any]] = []
    collectives: list[dict[str, Any]] = []

    def earlier(nodes: list[dict[str, Any]], rank: int, now: int) -> dict[str, Any] | None:
        # What follows the start of a host collective on its thread waits for its end.
        before = [
            node
            for node in nodes
            if node["rank"] == rank and node["turn"] < now and node.get("opens", NONE) == NONE
        ]
        return source.choice(before) if before and source.random() < 0.8 else None

    for turn in range(turns):
        kind = source.choice(("device", "device", "host", "host", "device collective", "host collective"))
        is_collective = "collective" in kind
        match = len(collectives) if is_collective else NONE
        members, name = source.randint(1, ranks) if is_collective else 1, source.randrange(5)
        if is_collective:
            collectives.append({"on_host": kind == "host collective", "members": members})
        for rank in source.sample(range(ranks), members):
            row: dict[str, Any] = {"rank": rank, "name": name, "step": NONE, "match": NONE, "turn": turn}
            now = 1_000 * turn + source.randint(0, 900)
            if kind in ("device", "device collective"):
                row |= {"start": now, "end": now + source.randint(0, 4_000), "match": match}
                row |= {
                    "kind": 1 if is_collective else source.randrange(3),
                    "stream": 2 * rank + source.randrange(2),
                }
                row |= {"launch": earlier(host, rank, turn), "other": earlier(device, rank, turn)}
                device.append(row)
                continue
            row |= {"time": now, "kind": source.randrange(4), "opens": match, "target": None, "is_end": 0}
            row |= {
                "before": earlier(host, rank, turn),
                "took": source.randint(0, 4_000) if is_collective else 0,
            }
            opened = [node["opens"] for node in host if node["opens"] != NONE and node["rank"] == rank]
            if kind == "host" and row["before"]:
                if opened and source.random() < 0.5:
                    row["match"] = source.choice(opened)
                elif source.random() < 0.3:
                    row["target"] = earlier(device, rank, turn)
            host.append(row)
    for rows, time in ((device, "start"), (host, "time")):
        rows.sort(key=lambda row: (row["rank"], row[time]))
    places = {id(row): place for rows in (device, host) for place, row in enumerate(rows)}
    for row in (*device, *host):
        row |= {
            cause: places.get(id(row.get(cause)), NONE) for cause in ("launch", "other", "before", "target")
        }
    nodes = _columns(device, DeviceNodes)
    nodes["before"] = previous_on_stream(nodes["stream"])
    moments = _columns(host, HostNodes)
    moments["is_end"] = moments["is_end"].astype(bool)
    lags = Lags(*(np.array([source.randint(0, 50) for _ in range(ranks)]) for _ in range(4)))
    opened_ns = np.array([row["took"] for row in host], dtype=np.int64)
    none = np.full(len(collectives), NONE)
    last = [_shortest(number, device, host) for number in range(len(collectives))]
    on_host, size = (
        np.array([matched[key] for matched in collectives], dtype=np.int64) for key in ("on_host", "members")
    )
    matched = MatchedCollectives(
        none, np.array(last, dtype=np.int64), on_host.astype(bool), size, none, none, none
    )
    ends = [*nodes["end"].tolist(), *(moments["time"] + opened_ns).tolist()]
    return RunEvents(
        tuple(range(ranks)), [str(number) for number in range(5)], DeviceNodes(**nodes), HostNodes(**moments), lags,
        matched, (source.randint(0, 8_000), max(ends)), (), opened_ns,
    )  # fmt: skip


def _shortest(number: int, device: list[dict[str, Any]], host: list[dict[str, Any]]) -> int:
    """Of a collective, the member that waited least; of several that of the lowest rank."""
    took = {place: row["end"] - row["start"] for place, row in enumerate(device) if row["match"] == number}
    took |= {place: row["took"] for place, row in enumerate(host) if row["opens"] == number}
    return min(took, key=lambda place: took[place])


def _columns(rows: list[dict[str, Any]], kind: type) -> dict[str, Any]:
    return {key: np.array([row[key] for row in rows], dtype=np.int64) for key in kind.__annotations__}
