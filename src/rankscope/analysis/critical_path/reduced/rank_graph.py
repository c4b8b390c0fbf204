"""The reduced graph of each rank, made from its events and kept in the store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import chunks, kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.build import build_graph
from rankscope.analysis.critical_path.graph.nodes import DEVICE_CLASSES, HOST_CLASSES, NONE, Graph
from rankscope.analysis.critical_path.reduced.ways import Ways, points_of, ways_between
from rankscope.analysis.critical_path.replay import recording_cycles
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class RankGraph:
    """Points in order of their start, and the ways between them. Times count from run.origin_ns(rank)."""

    segment: Ints
    """Of a collective; NONE for other points."""
    slice: Ints
    """Id of a collective in its segment; NONE for other points."""
    step: Ints
    cycle: Ints
    """The recording of the rank that it is in."""
    start: Ints
    end: Ints
    kind: Ints
    """Class of the time from start to end, an index into PATH_CLASSES."""
    on_host: Ints
    fixed: Ints
    """1 where a recording begins: what was before is not known, so it stays where it is."""
    ways: Ints
    """By point: the number of ways that lead to it. The first determined its recorded time."""
    origin: Ints
    """By way, as the next two: the point where it begins."""
    sync: Ints
    """The synchronising call on the way that waited for the device: an index into `syncs`, or NONE."""
    classes: Ints
    """The classes in which it spends time: bit N for the class N of PATH_CLASSES."""
    spent: Ints
    """The times in these classes, way by way: most have two or three of ten."""
    syncs: tuple[str, ...]
    lost: int
    """GPU events without a launch in the file."""


@kept_per_rank("graph", RankGraph)
def rank_graphs(run: Run, scope: Scope) -> dict[int, RankGraph]:
    """Ranks with events in the window."""
    found: dict[int, RankGraph] = {}
    rows = run.own_collectives()
    if scope.steps is not None:
        rows = rows.pick((rows.step >= scope.steps[0]) & (rows.step <= scope.steps[1]))
    for chunk in chunks(run, scope.ranks_in(run)):
        own = rows.of_ranks(chunk)
        # Each collective is a match of its own: what it is matched with on other ranks is not asked here.
        alone = replace(own, match=np.arange(len(own.rank)))
        part = replace(scope, ranks=frozenset(chunk))
        found |= _of_graph(run, build_graph(run, part, alone, len(own.rank)), alone)
    return found


def _of_graph(run: Run, graph: Graph, rows: Collectives) -> dict[int, RankGraph]:
    device, host = graph.device, graph.host
    is_point = points_of(graph)
    if not is_point.any():
        return {}
    start = np.concatenate([device.start, host.time])
    end = np.concatenate([device.end, host.time])
    entry = np.concatenate([device.match, host.opens])
    end = np.where(entry != NONE, rows.end[np.maximum(entry, 0)], end) if len(rows.rank) else end
    ways = ways_between(graph, is_point, end)
    rank = np.concatenate([device.rank, host.rank])
    points = np.flatnonzero(is_point)
    points = points[np.lexsort((points, start[points], rank[points]))]
    place = np.full(len(is_point), NONE)
    place[points] = np.arange(len(points))
    firsts = np.searchsorted(rank[points], np.arange(len(graph.ranks) + 1))
    order = np.argsort(place[ways.to], kind="stable")
    ways = Ways(place[ways.to[order]], place[ways.origin[order]], ways.sync[order], ways.spent[:, order])
    way_firsts = np.searchsorted(ways.to, firsts)
    on_host, on_device, most = recording_cycles(graph)
    of_host = points >= len(device.rank)
    unrecorded = np.concatenate(
        [np.zeros(len(device.rank), dtype=bool), host.kind == HOST_CLASSES.index("unrecorded")]
    )
    known = entry[points] != NONE
    columns = {
        "segment": np.where(known, _of_rows(rows.segment, entry[points]), NONE),
        "slice": np.where(known, _of_rows(rows.slice, entry[points]), NONE),
        "step": np.concatenate([device.step, _steps_of(graph)])[points],
        "cycle": np.concatenate([on_device, on_host])[points] % most,
        "start": start[points],
        "end": end[points],
        "kind": np.concatenate([device.kind, len(DEVICE_CLASSES) + host.kind])[points],
        "on_host": of_host.astype(np.int64),
        "fixed": unrecorded[points].astype(np.int64),
    }
    lost = np.bincount(device.rank[device.launch == NONE], minlength=len(graph.ranks))
    found = {}
    for number, of_rank in enumerate(graph.ranks):
        mine, own = slice(*firsts[number : number + 2]), slice(*way_firsts[number : number + 2])
        if mine.start == mine.stop:
            continue
        values = {name: column[mine] for name, column in columns.items()}
        for name in ("start", "end"):
            values[name] = values[name] - run.origin_ns(of_rank)
        names = unique_values(ways.sync[own])
        names = names[names != NONE]
        sync = np.where(ways.sync[own] == NONE, NONE, np.searchsorted(names, ways.sync[own]))
        spends = ways.spent[:, own].T != 0
        found[of_rank] = RankGraph(
            **values,
            ways=np.bincount(ways.to[own] - mine.start, minlength=mine.stop - mine.start),
            origin=ways.origin[own] - mine.start,
            sync=sync,
            classes=spends @ (1 << np.arange(spends.shape[1])),
            spent=ways.spent[:, own].T[spends],
            syncs=tuple(graph.names[name] for name in names.tolist()),
            lost=int(lost[number]),
        )
    return found


def _of_rows(column: Ints, entry: Ints) -> Ints:
    return column[np.maximum(entry, 0)] if len(column) else np.full(len(entry), NONE)


def _steps_of(graph: Graph) -> Ints:
    """By host node, the step that began last on its rank; NONE before the first."""
    host = graph.host
    begins = (host.step != NONE) & ~host.is_end
    last = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), NONE))
    known = (last != NONE) & (host.rank[last] == host.rank)
    return np.where(known, host.step[last], NONE)
