"""The critical path: the chain of dependencies from the start of the first step to the last end, over all ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.host_spans import covering_names
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.notes import unrecorded_note
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.critical_path.savings import waits_by_rank
from rankscope.analysis.graph.events import PATH_CLASSES
from rankscope.analysis.graph.graph import Graph, graph_of
from rankscope.analysis.graph.path import CriticalPath, critical_path
from rankscope.store.arrays import number_rows, unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_rounded


def host_labels(run: Run, graph: Graph, path: CriticalPath) -> tuple[list[str], Ints]:
    """The names that pieces of the path have, and the index of each piece's name among them."""
    names = [*graph.names, SMALL]  # NONE is the last
    label = path.name % len(names)
    pieces = np.flatnonzero((path.kind == PATH_CLASSES.index("host")) & (path.end > path.start))
    codes: dict[str, int] = {}
    numbers = unique_values(path.rank[pieces]).tolist()
    run = part_of(run, frozenset(graph.ranks[number] for number in numbers))
    for number in numbers:
        mine = pieces[path.rank[pieces] == number]
        middle = (path.start[mine] + path.end[mine]) // 2
        for at, text in zip(mine.tolist(), covering_names(run, graph.ranks[number], middle), strict=True):
            text = text or f"outside any op, before {names[path.name[at]]}"
            label[at] = codes.setdefault(text, len(names) + len(codes))
    return [*names, *codes], label


COLUMNS = (
    Column("class", help="compute, comm, copy, launch, gap, host, dataloader, sync or between"),
    Column("rank"),
    Column("ns", "ns", "time on the path"),
    Column("pct", "percent", "share of the recorded window"),
    Column("name", help="small pieces of large runs have no names of their own", at_end=True),
)
SMALL = "small kernels and copies"


def critical(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The path by class, rank and name; the rows add up to the window, without what was not recorded."""
    columns = COLUMNS[:2] + COLUMNS[4:] + COLUMNS[2:4]  # the documented order: class, rank, name, ns, pct
    if len(run.runs) > 1:
        note = f"the files are of {len(run.runs)} runs: no path leads from one to another; open one of them"
        return Result("critical", "The critical path", scope.window, columns, [], notes=(note,))
    graph = graph_of(run, scope)
    pieces = _pieces(run, graph)
    low, high = graph.window
    unrecorded = sum(ns for kind, _, _, ns in pieces if PATH_CLASSES[kind] == "unrecorded")
    rows: list[dict[str, Any]] = [
        {"class": PATH_CLASSES[kind], "rank": graph.ranks[rank], "name": name, "ns": ns}
        | {"pct": 100 * ns / (high - low - unrecorded)}
        for kind, rank, name, ns in pieces
        if ns and PATH_CLASSES[kind] != "unrecorded"
    ]
    rows.sort(key=lambda row: (-row["ns"], row["class"], row["rank"], row["name"] or ""))
    notes = [*graph.notes]
    if unrecorded:
        notes.append(unrecorded_note(unrecorded))
    if not rows:
        notes.append("no GPU events and no steps in the window: there is no path")
    if len(graph.ranks) > 1 and not (graph.collectives.members > 1).any():
        notes.append("no collective is matched between these ranks: the path stays on one rank")
    slack = [(-ns, rank) for rank, ns in waits_by_rank(run, scope, graph.ranks).items() if ns]
    if slack:
        shown = ", ".join(f"rank {rank} {format_rounded('ns', -ns)}" for ns, rank in sorted(slack)[:4])
        more = f" and {len(slack) - 4} more ranks" if len(slack) > 4 else ""
        notes.append(f"slack (time waited inside collectives): {shown}{more}")
    facts = {"unrecorded_ns": unrecorded}
    return Result("critical", _title(rows), scope.window, columns, rows, notes=tuple(notes), facts=facts)


def _pieces(run: Run, graph: Graph) -> list[tuple[int, int, str, int]]:
    """Of the path: class, rank, name and time."""
    path = critical_path(graph)
    names, labels = host_labels(run, graph, path)
    keys, piece = number_rows([path.kind, path.rank, labels])
    sums = sums_by(piece, path.end - path.start)
    pairs = zip(keys.tolist(), sums.tolist(), strict=True)
    return [(kind, rank, names[name], ns) for (kind, rank, name), ns in pairs]


def _title(rows: list[dict[str, Any]]) -> str:
    """With the shares of its classes."""
    classes = Counter[str]()
    for row in rows:
        classes[row["class"]] += row["ns"]
    shares = [
        f"{name} {100 * ns / classes.total():.0f} %"
        for name, ns in classes.most_common()
        if ns >= LIMIT_SHARE * classes.total()
    ]
    return f"The critical path: {', '.join(shares)}" if shares else "The critical path"
