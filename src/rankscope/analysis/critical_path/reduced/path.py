"""The critical path of a reduced graph: by class and rank, without the names of kernels."""

from __future__ import annotations

from collections import Counter

import numpy as np

from rankscope.analysis.critical_path.graph.nodes import NONE
from rankscope.analysis.critical_path.path import PATH_CLASSES
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph
from rankscope.collective_kinds import KINDS
from rankscope.store.separate_runs import SESSION_GAP_NS

_COMM, _HOST, _UNRECORDED = map(PATH_CLASSES.index, ("comm", "host", "unrecorded"))

Piece = tuple[int, int, str | None]
"""Class, rank, and the kind of a collective."""


def reduced_path(graph: ReducedGraph) -> Counter[Piece]:
    """The time of each piece on the path, from the last end back to the start of the window."""
    found: Counter[Piece] = Counter()
    inside = np.flatnonzero(graph.inside)
    if not len(inside):
        return found
    low, high = graph.window
    first_way = np.full(len(graph.rank), NONE)
    first_way[graph.to[::-1]] = np.arange(len(graph.to))[::-1]
    matched = graph.collectives
    spent = graph.work.spent
    at = int(inside[graph.end[inside].argmax()])
    now = high
    for _ in range(len(graph.rank)):  # in case of a cycle
        if now <= low:
            break
        match = int(graph.match[at])
        arrived = int(matched.last[match]) if match != NONE else at
        name = KINDS[matched.kind[match]] if match != NONE else None
        begun = max(int(graph.start[arrived]), low)
        found[_COMM if match != NONE else int(graph.kind[at]), int(graph.rank[at]), name] += now - begun
        now, at = begun, arrived
        way = int(first_way[at])
        if way == NONE:
            break
        origin, rank = int(graph.origin[way]), int(graph.rank[at])
        if not graph.inside[origin]:  # the rest of the way to the start of the window is not known by class
            break
        begun = int(graph.end[origin])
        for kind, times in enumerate(spent):
            took = int(times[way])
            # Of a way that begins before the window, each class counts by the same share.
            found[kind, rank, None] += took if begun >= low else took * (now - low) // (now - begun)
        now, at = begun, origin
    if now > low:
        # A rank that begins later than this was recorded later: nothing is known of its time before.
        kind = _UNRECORDED if now - low > SESSION_GAP_NS else _HOST
        found[kind, int(graph.rank[at]), None] += now - low
    return +found
