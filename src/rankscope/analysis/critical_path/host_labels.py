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
from rankscope.analysis.critical_path.graph.nodes import NONE, Graph
from rankscope.analysis.critical_path.path import PATH_CLASSES, CriticalPath
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run


def host_labels(run: Run, graph: Graph, path: CriticalPath) -> tuple[list[str], Ints]:
    """The names that pieces of the path have, and the index of each piece's name among them."""
    label = path.name.copy()
    pieces = np.flatnonzero((path.kind == PATH_CLASSES.index("host")) & (path.end > path.start))
    codes: dict[str, int] = {}
    numbers = unique_values(path.rank[pieces]).tolist()
    run = part_of(run, frozenset(graph.ranks[number] for number in numbers))
    for number in numbers:
        mine = pieces[path.rank[pieces] == number]
        middle = (path.start[mine] + path.end[mine]) // 2
        for at, text in zip(mine.tolist(), _covering(run, graph.ranks[number], middle), strict=True):
            text = text or f"outside any op, before {graph.names[path.name[at]]}"
            label[at] = codes.setdefault(text, len(graph.names) + len(codes))
    return [*graph.names, *codes], label


def _covering(run: Run, rank: int, time: Ints) -> list[str]:
    """The op, else the annotation, that covers each moment on any thread; '' where none does."""
    texts = all_names(run)
    ops, annotations = (
        _latest(spans.start[order], spans.end[order], spans.name[order], time).tolist()
        for spans in (outermost_ops(run, rank), rank_annotations(run, rank))
        for order in [np.lexsort((spans.track, spans.start))]
    )
    return [
        texts[op] if op != NONE else texts[note] if note != NONE else ""
        for op, note in zip(ops, annotations, strict=True)
    ]


def _latest(start: Ints, end: Ints, name: Ints, time: Ints) -> Ints:
    """For each moment the name of the slice around it that started last; NONE where there is none.

    Slices are sorted by start. Of those that have started, the last one that has not ended is found in a binary tree
    over their ends: a node has the latest end of the two below it.
    """
    levels = [end]
    while len(levels[-1]) > 1:
        below = np.append(levels[-1], np.iinfo(np.int64).min)  # so that the last one has a neighbour
        levels.append(np.maximum(below[:-1:2], below[1::2]))
    node = np.searchsorted(start, time, side="right")  # the first one that has not started
    height = np.full(len(time), NONE)
    for level, latest in enumerate(levels):
        is_right = (height == NONE) & (node % 2 == 1)
        covers = is_right.copy()
        covers[is_right] = latest[node[is_right] - 1] > time[is_right]
        height[covers] = level
        node[covers] -= 1
        node[height == NONE] >>= 1
    for level in range(len(levels) - 2, -1, -1):
        above = np.flatnonzero(height > level)
        right = np.minimum(2 * node[above] + 1, len(levels[level]) - 1)
        is_right = levels[level][right] > time[above]
        node[above] = np.where(is_right, right, 2 * node[above])
    names = np.full(len(time), NONE)
    names[height != NONE] = name[node[height != NONE]]
    return names
