"""The critical path: from the last end back to the start of the window, each time by what was waited for."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.graph.events import DEVICE_CLASSES, NONE, PATH_CLASSES
from rankscope.analysis.graph.graph import Graph
from rankscope.records import dataclass
from rankscope.store.separate_runs import SESSION_GAP_NS

_COMM, _HOST, _UNRECORDED, _LAUNCH, _GAP = map(
    PATH_CLASSES.index, ("comm", "host", "unrecorded", "launch", "gap")
)
_WAY_ORDER = (_GAP, *range(len(DEVICE_CLASSES)), _LAUNCH, *range(len(DEVICE_CLASSES), _LAUNCH))
"""A way from the host to the device, backwards: along the stream, the launch, the host."""


@dataclass(frozen=True)
class CriticalPath:
    """Pieces of the path, in reverse order: each starts where the next one ends."""

    kind: Ints
    """Index into PATH_CLASSES."""
    rank: Ints
    name: Ints
    """Index into Graph.names; NONE for many small pieces."""
    start: Ints
    end: Ints


def critical_path(graph: Graph) -> CriticalPath:
    """Walk from the last end back to the start of the window."""
    low, high = graph.window
    inside = np.flatnonzero(graph.inside)
    if not len(inside):
        none = np.empty(0, dtype=np.int64)
        return CriticalPath(none, none, none, none, none)
    first_way = np.full(len(graph.rank), NONE)
    first_way[graph.to[::-1]] = np.arange(len(graph.to))[::-1]
    matched = graph.match != NONE
    arrived = np.arange(len(graph.rank))
    arrived[matched] = graph.collectives.last[graph.match[matched]]
    way = first_way[arrived]
    following = np.where(way != NONE, graph.origin[way], NONE) if len(graph.origin) else way
    points, point = list[int](), int(inside[graph.end[inside].argmax()])
    after, end = following.data, graph.end.data  # memoryviews: faster to index than arrays
    for _ in range(len(after)):  # in case of a cycle
        if point == NONE or (points and end[point] <= low):
            break
        points.append(point)
        point = after[point]
    chain = np.array(points, dtype=np.int64)
    at, way = arrived[chain], way[chain]
    spent = (
        np.stack([np.where(way != NONE, time[way], 0) for time in graph.work.spent])
        if len(graph.to)
        else np.zeros((len(PATH_CLASSES), len(chain)), dtype=np.int64)
    )
    # By point of the path: its own time, then its way backwards.
    kind = np.concatenate([[_COMM], _WAY_ORDER])
    kinds = np.tile(kind, (len(chain), 1))
    kinds[:, 0] = graph.kind[chain]
    begins = (
        graph.start[at][:, None]
        - np.concatenate(
            [np.zeros((1, len(chain)), dtype=np.int64), np.cumsum(spent[list(_WAY_ORDER)], axis=0)]
        ).T
    )
    on_device = ~graph.on_host[at]
    names = np.tile(np.where(on_device, graph.name[at], graph.name[chain])[:, None], len(kind))
    names[:, 0] = graph.name[chain]
    names[:, 1 + _WAY_ORDER.index(0) : 1 + _WAY_ORDER.index(_LAUNCH)] = NONE
    # Where clocks disagree, a piece is cut to length 0 rather than negative.
    start = np.minimum.accumulate(np.clip(begins.reshape(-1), low, max(low, high)))
    ends = np.concatenate([[high], start])[:-1]
    ranks = np.tile(graph.rank[at][:, None], len(kind))
    ranks[:, 0] = graph.rank[chain]
    columns = [kinds.reshape(-1), ranks.reshape(-1), names.reshape(-1), start, ends]
    shown = np.flatnonzero(ends > start)
    columns = [column[shown] for column in columns]
    if start[-1] > low:
        # A rank that begins later than this was recorded later: nothing is known of its time before.
        kind_of_rest = _UNRECORDED if start[-1] - low > SESSION_GAP_NS else _HOST
        rest = (kind_of_rest, graph.rank[at[-1]], graph.name[at[-1]], low, start[-1])
        columns = [np.append(column, value) for column, value in zip(columns, rest, strict=True)]
    return CriticalPath(*columns)
