"""What the host did in each stretch of host time on the critical path.

A host node carries the name of what comes next (the op of a launch). The time before it is labelled with the outermost
op that covers its middle; outside ops with the annotation that covers it; else with 'outside any op, before NAME'.
"""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.device_events import vocabulary
from rankscope.analysis.core.host_spans import rank_annotations
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.critical_path.graph.nodes import NONE, Graph
from rankscope.analysis.critical_path.path import PATH_CLASSES, CriticalPath
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

    for number in np.unique(path.rank[pieces]).tolist():
        mine = pieces[path.rank[pieces] == number]
        middle = (path.start[mine] + path.end[mine]) // 2
        for at, text in zip(mine.tolist(), _covering(run, graph.ranks[number], middle), strict=True):
            label[at] = code(text or f"outside any op, before {graph.names[path.name[at]]}")
    return names, label


def _covering(run: Run, rank: int, time: Ints) -> list[str]:
    """The op, else the annotation, that covers each moment on any thread; '' where none does."""
    texts = vocabulary(run, "cpu_op")
    ops = run.arrays(
        """SELECT track::BIGINT AS track, start_ns AS start, start_ns + greatest(dur_ns, 0) AS end, n.code AS name
           FROM (FROM slices WHERE category = 'cpu_op' AND op IS NULL AND rank = ?) s
           JOIN (SELECT unnest(?::VARCHAR[]) AS name, unnest(range(?)) AS code) n ON n.name = s.name
           ORDER BY start_ns""",
        [rank, texts, len(texts)],
    )
    found = _latest(ops["track"], ops["start"], ops["end"], ops["name"], time)
    marked = rank_annotations(run, rank)
    order = np.argsort(marked.start, kind="stable")
    around = _latest(marked.track[order], marked.start[order], marked.end[order], marked.name[order], time)
    return [
        texts[op] if op != NONE else marked.names[note] if note != NONE else ""
        for op, note in zip(found.tolist(), around.tolist(), strict=True)
    ]


def _latest(track: Ints, start: Ints, end: Ints, name: Ints, time: Ints) -> Ints:
    """For each moment the name of the slice around it that started last; NONE where there is none.

    Slices are sorted by start. On one thread, the one that started last before a moment may have ended while an outer
    one goes on, so the outer ones are tried too.
    """
    best, begun = np.full(len(time), NONE), np.full(len(time), np.iinfo(np.int64).min)
    for thread in np.unique(track).tolist():
        mine = np.flatnonzero(track == thread)
        for level in _levels(start[mine], end[mine]):
            own = mine[level]
            at = np.searchsorted(start[own], time, side="right") - 1
            inside = (at >= 0) & (end[own[np.maximum(at, 0)]] > time)
            later = inside & (start[own[np.maximum(at, 0)]] >= begun)
            best[later], begun[later] = name[own[at[later]]], start[own[at[later]]]
    return best


def _levels(start: Ints, end: Ints) -> list[Ints]:
    """Slices of one thread, sorted by start, by depth of nesting: those of a level do not overlap."""
    depths = np.zeros(len(start), dtype=np.int64)
    stack: list[int] = []
    for i, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while stack and stack[-1] <= begin:
            stack.pop()
        depths[i] = len(stack)
        stack.append(stop)
    return [np.flatnonzero(depths == depth) for depth in range(int(depths.max(initial=-1)) + 1)]
