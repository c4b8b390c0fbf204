"""What the run's time hangs on: the chain of causes that leads from the first step's start to the last end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.collective_waits import waits
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.backtrack import PATH_CLASSES, Path, walk
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.store.arrays import number_rows
from rankscope.store.run import Run
from rankscope.units import format_ns

COLUMNS = (
    Column("class", help="compute, comm, copy, launch, gap, host, dataloader, sync or between"),
    Column("rank"),
    Column("ns", "ns", "on the path"),
    Column("pct", "percent", "of the window"),
    Column("name", at_end=True),
)
_ONE_RANK_PCT = 60.0
_HINTS = {
    "compute": "Make these kernels faster: rankscope stats RUN -r roofline says how far they are from the limit.",
    "comm": "Hide the transfers behind compute, or move less: rankscope whatif RUN --hide-comm says what it is worth.",
    "host": "The host is late: torch.compile, CUDA graphs or fewer small ops; rankscope whatif RUN --no-gaps.",
    "dataloader": "Data comes late: more workers, pin_memory, prefetch_factor.",
    "sync": "The host waits for the device: take .item(), .cpu() and print(loss) out of the loop.",
    "launch": "The device waits for launches: CUDA graphs, or fewer and larger kernels.",
    "copy": "Copies are on the path: pinned memory and non_blocking=True.",
    "gap": "Kernels follow each other with gaps: fewer and larger kernels, or CUDA graphs.",
    "between": "Time between steps: what does the loop do there?",
}


def critical(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The path by class, rank and name; it adds up to the window."""
    graph = graph_of(run, scope)
    low, high = graph.window
    total = high - low
    rows = _rows(graph, walk(graph), total)
    notes = [*left_out(run, scope), *graph.notes]
    if not rows:
        notes.append("no GPU events and no steps in the window: nothing hangs on anything")
    if len(graph.ranks) > 1 and not (graph.meetings.members > 1).any():
        notes.append("no collective is matched between these ranks: the path stays on one of them")
    slack = _slack(run, scope)
    if slack:
        notes.append(f"slack, waited for others inside collectives: {slack}")
    columns = (
        COLUMNS[:2] + COLUMNS[4:] + COLUMNS[2:4]
    )  # the order of docs/definitions.md: class, rank, name, ns, pct
    findings = tuple(_findings(graph, rows, total))
    return Result("critical", "The critical path", scope.window, columns, rows, findings, tuple(notes))


def _rows(graph: Graph, path: Path, total: int) -> list[dict[str, Any]]:
    """What each class, rank and name has of the path, the most first."""
    keys, place = number_rows([path.kind, path.rank, path.name])
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, place, path.end - path.start)
    rows: list[dict[str, Any]] = [
        {
            "class": PATH_CLASSES[kind],
            "rank": graph.ranks[rank],
            "name": graph.names[name],
            "ns": ns,
            "pct": 100 * ns / total,
        }
        for (kind, rank, name), ns in zip(keys.tolist(), sums.tolist(), strict=True)
        if ns
    ]
    rows.sort(key=lambda row: (-row["ns"], row["class"], row["rank"], row["name"]))
    return rows


def _slack(run: Run, scope: Scope) -> str:
    """What each rank waited, summed; the most relaxed first."""
    found = waits(run, scope)
    known = found.wait > 0
    if not known.any():
        return ""
    ranks, place = np.unique(found.rows.rank[known], return_inverse=True)
    total = np.bincount(place.reshape(-1), weights=found.wait[known]).astype(np.int64)
    order = np.argsort(-total)[:4]
    shown = ", ".join(f"rank {ranks[i]} {format_ns(int(total[i]))}" for i in order)
    return shown + (f" and {len(ranks) - 4} more ranks" if len(ranks) > 4 else "")


def _findings(graph: Graph, rows: list[dict[str, Any]], total: int) -> list[Finding]:
    if not rows:
        return []
    steps = max(len(graph.steps), 1)
    classes, ranks = Counter[str](), Counter[int]()
    for row in rows:
        classes[row["class"]] += row["ns"]
        ranks[row["rank"]] += row["ns"]
    ((kind, most),) = classes.most_common(1)
    shares = ", ".join(f"{name} {100 * ns / total:.1f} %" for name, ns in classes.most_common())
    top = next(row for row in rows if row["class"] == kind)
    findings = [
        Finding(
            "info",
            f"The critical path is {100 * most / total:.0f} % {kind}",
            f"{shares}; the largest part: {top['name']} on rank {top['rank']}, {top['pct']:.1f} %",
            ranks=(top["rank"],),
            span=graph.window,
            hint=_HINTS[kind],
            cost_ns=most // steps,
        )
    ]
    ((rank, ns),) = ranks.most_common(1)
    if len(graph.ranks) > 1 and 100 * ns / total >= _ONE_RANK_PCT:
        severity: Severity = "info"
        findings.append(
            Finding(
                severity,
                f"Rank {rank} carries {100 * ns / total:.0f} % of the critical path",
                f"{format_ns(ns)} of {format_ns(total)}; the other {len(graph.ranks) - 1} carry the rest",
                ranks=(rank,),
                span=graph.window,
                hint=f"See what it would be worth: rankscope whatif RUN --rank {rank}=median"
                if len(graph.ranks) > 2
                else "See what it would be worth: rankscope whatif RUN",
                cost_ns=ns // steps,
            )
        )
    return findings
