"""What the host did in each stretch of host time on the critical path.

A host node carries the name of what comes next (the op of a launch). The time before it is labelled with the outermost
op that covers its middle; outside ops with the annotation that covers it; else with 'outside any op, before NAME'.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.host_spans import outermost_ops, rank_annotations
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.critical_path.graph.nodes import NONE, Graph, Mask
from rankscope.analysis.critical_path.path import PATH_CLASSES, CriticalPath
from rankscope.store.arrays import unique_values
from rankscope.store.run import Run


def host_labels(run: Run, graph: Graph, path: CriticalPath) -> tuple[list[str], Ints]:
    """The names that pieces of the path have, and the index of each piece's name among them."""
    names = list(graph.names)
    label = path.name.copy()
    pieces = np.flatnonzero((path.kind == PATH_CLASSES.index("host")) & (path.end > path.start))
    known: dict[str, int] = {}

    def code(text: str) -> int:
        if text not in known:
            known[text] = len(names)
            names.append(text)
        return known[text]

    numbers = unique_values(path.rank[pieces]).tolist()
    run = part_of(run, frozenset(graph.ranks[number] for number in numbers))
    for number in numbers:
        mine = pieces[path.rank[pieces] == number]
        middle = (path.start[mine] + path.end[mine]) // 2
        for at, text in zip(mine.tolist(), _covering(run, graph.ranks[number], middle), strict=True):
            label[at] = code(text or f"outside any op, before {graph.names[path.name[at]]}")
    return names, label


def _covering(run: Run, rank: int, time: Ints) -> list[str]:
    """The op, else the annotation, that covers each moment on any thread; '' where none does."""
    texts = all_names(run)
    found, around = (
        _latest(spans.track[order], spans.start[order], spans.end[order], spans.name[order], time).tolist()
        for spans in (outermost_ops(run, rank), rank_annotations(run, rank))
        for order in [np.argsort(spans.start, kind="stable")]
    )
    return [
        texts[op] if op != NONE else texts[note] if note != NONE else ""
        for op, note in zip(found, around, strict=True)
    ]


def _latest(track: Ints, start: Ints, end: Ints, name: Ints, time: Ints) -> Ints:
    """For each moment the name of the slice around it that started last; NONE where there is none.

    Slices are sorted by start. On one thread, the one that started last before a moment may have ended while an outer
    one goes on, so all levels of nesting are tried.
    """
    best, begun = np.full(len(time), NONE), np.full(len(time), np.iinfo(np.int64).min)
    for thread in unique_values(track).tolist():
        left = np.flatnonzero(track == thread)
        while len(left):
            outer = _outermost(end[left], start[left])
            own, left = left[outer], left[~outer]
            at = np.searchsorted(start[own], time, side="right") - 1
            inside = (at >= 0) & (end[own[np.maximum(at, 0)]] > time)
            later = inside & (start[own[np.maximum(at, 0)]] >= begun)
            best[later], begun[later] = name[own[at[later]]], start[own[at[later]]]
    return best


def _outermost(end: Ints, start: Ints) -> Mask:
    """Slices, sorted by start, that begin after all earlier ones have ended: they do not overlap."""
    reach = np.maximum.accumulate(end)
    found = np.ones(len(start), dtype=bool)
    found[1:] = start[1:] >= reach[:-1]
    return found
