"""What a rank's host does at a moment: the op, else the annotation, around it."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.host_spans import outermost_ops, rank_annotations
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.store.arrays import NONE
from rankscope.timeline.run import Run


def covering_names(run: Run, rank: int, time: Ints) -> list[str]:
    """The op, else the annotation, that covers each moment on any thread; '' where none does."""
    texts = all_names(run)
    ops, annotations = (
        latest_around(spans.start[order], spans.end[order], spans.name[order], time).tolist()
        for spans in (outermost_ops(run, rank), rank_annotations(run, rank))
        for order in [np.lexsort((spans.track, spans.start))]
    )
    return [
        texts[op] if op != NONE else texts[note] if note != NONE else ""
        for op, note in zip(ops, annotations, strict=True)
    ]


def latest_around(start: Ints, end: Ints, name: Ints, time: Ints) -> Ints:
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
