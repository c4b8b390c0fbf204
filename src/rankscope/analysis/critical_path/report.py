"""The critical path: the chain of dependencies from the start of the first step to the last end, over all ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.core.advice import together
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.analysis.critical_path.host_labels import host_labels
from rankscope.analysis.critical_path.path import PATH_CLASSES, find_critical_path
from rankscope.analysis.critical_path.reduced.path import reduced_path
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph, reduced_graph
from rankscope.analysis.critical_path.savings import REDUCED, is_large
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("class", help="compute, comm, copy, launch, gap, host, dataloader, sync or between"),
    Column("rank"),
    Column("name", help="null in large runs, except for collectives", at_end=True),
    Column("ns", "ns", "time on the path"),
    Column("pct", "percent", "share of the recorded window"),
)
_ONE_RANK_PCT = 60.0
_BOUND_BY = {
    "compute": "compute-bound",
    "comm": "communication-bound",
    "host": "host-bound",
    "dataloader": "bound by data loading",
    "sync": "bound by synchronising calls",
    "launch": "bound by kernel launches",
    "copy": "copy-bound",
    "gap": "bound by gaps between kernels",
    "between": "host-bound between steps",
}
_HINTS = {
    "compute": "Make these kernels faster. How far they are from the limit: rankscope stats RUN -r roofline",
    "comm": "Overlap the transfers with compute, or send less. Predict the gain: rankscope whatif RUN --hide-comm",
    "host": "Reduce host time: {together}fewer small ops. Predict the gain: rankscope whatif RUN --no-gaps",
    "dataloader": "Load data faster: more workers, pin_memory, prefetch_factor.",
    "sync": "Remove synchronisation from the loop: .item(), .cpu(), print(loss).",
    "launch": "Reduce launch time: {together}fewer and larger kernels.",
    "copy": "Make copies asynchronous: pinned memory and non_blocking=True.",
    "gap": "Reduce the gaps: {together}fewer and larger kernels.",
    "between": "Check what the training loop does between steps.",
}


def critical(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The path by class, rank and name; the rows add up to the window, without what was not recorded."""
    if len(run.runs) > 1:
        note = f"the files are of {len(run.runs)} runs: no path leads from one to another; open one of them"
        return Result("critical", "The critical path", scope.window, COLUMNS, [], notes=(note,))
    graph: Graph | ReducedGraph
    if is_large(run, scope):
        graph = reduced_graph(run, scope)
        times, how = reduced_path(graph), [REDUCED]
    else:
        graph = graph_of(run, scope)
        times, how = _path_times(run, graph), []
    pieces: list[dict[str, Any]] = [
        {"class": PATH_CLASSES[kind], "rank": graph.ranks[rank], "name": name, "ns": ns}
        for (kind, rank, name), ns in times.items()
    ]
    pieces.sort(key=lambda row: (-row["ns"], row["class"], row["rank"], row["name"] or ""))
    low, high = graph.window
    total = high - low
    unrecorded = sum(row["ns"] for row in pieces if row["class"] == "unrecorded")
    rows = [
        row | {"pct": 100 * row["ns"] / (total - unrecorded)}
        for row in pieces
        if row["class"] != "unrecorded"
    ]
    notes = [*left_out(run, scope), *how, *graph.notes]
    if unrecorded:
        notes.append(
            f"left out: {format_rounded('ns', unrecorded)} between the recordings of a rank, which is in no class"
        )
    if not rows:
        notes.append("no GPU events and no steps in the window: there is no path")
    if len(graph.ranks) > 1 and not (graph.collectives.members > 1).any():
        notes.append("no collective is matched between these ranks: the path stays on one rank")
    slack = _slack(run, scope)
    if slack:
        notes.append(f"slack (time waited inside collectives): {slack}")
    # Where kernels were lost, the path only seems to be on the host; a doubt of the run says so.
    findings = () if kernels_end_in(run, scope) else tuple(_findings(run, graph, rows))
    facts = {"unrecorded_ns": unrecorded}
    return Result(
        "critical", "The critical path", scope.window, COLUMNS, rows, findings, tuple(notes), facts=facts
    )


def _path_times(run: Run, graph: Graph) -> Counter[tuple[int, int, str | None]]:
    """The time of each class, rank and name on the path."""
    path = find_critical_path(graph)
    names, labels = host_labels(run, graph, path)
    keys, number = number_rows([path.kind, path.rank, labels])
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, number, path.end - path.start)
    times: Counter[tuple[int, int, str | None]] = Counter()
    for (kind, rank, name), ns in zip(keys.tolist(), sums.tolist(), strict=True):
        times[kind, rank, names[name]] += ns
    return +times


def _slack(run: Run, scope: Scope) -> str:
    """The total wait of each rank, largest first."""
    collectives = waits(run, scope)
    waited = collectives.wait > 0
    if not waited.any():
        return ""
    ranks, number = np.unique(collectives.rows.rank[waited], return_inverse=True)
    total = np.bincount(number.reshape(-1), weights=collectives.wait[waited]).astype(np.int64)
    order = np.argsort(-total)[:4]
    shown = ", ".join(f"rank {ranks[i]} {format_rounded('ns', int(total[i]))}" for i in order)
    return shown + (f" and {len(ranks) - 4} more ranks" if len(ranks) > 4 else "")


def _findings(run: Run, graph: Graph | ReducedGraph, rows: list[dict[str, Any]]) -> list[Finding]:
    if not rows:
        return []
    classes, ranks = Counter[str](), Counter[int]()
    for row in rows:
        classes[row["class"]] += row["ns"]
        ranks[row["rank"]] += row["ns"]
    total = classes.total()
    ((kind, most),) = classes.most_common(1)
    shares = ", ".join(f"{name} {100 * ns / total:.1f} %" for name, ns in classes.most_common())
    top = next(row for row in rows if row["class"] == kind)
    ways = "".join(f"{way}, " for way in together(run))
    findings = [
        Finding(
            "info",
            f"The critical path is {_BOUND_BY[kind]} ({100 * most / total:.0f} %)",
            f"{shares}; the largest part: {top['name'] or kind} on rank {top['rank']}, {100 * top['ns'] / total:.1f} %",
            ranks=(top["rank"],),
            span=graph.window,
            hint=_HINTS[kind].format(together=ways),
            facts=tuple(
                Fact(f"{name}_ns", ns, "ns", "the critical path", row={"class": name})
                for name, ns in classes.most_common()
            ),
            names=(top["name"],) if top["name"] else (),
        )
    ]
    ((rank, ns),) = ranks.most_common(1)
    if len(graph.ranks) > 1 and 100 * ns / total >= _ONE_RANK_PCT:
        findings.append(
            Finding(
                "info",
                f"{100 * ns / total:.0f} % of the critical path is on rank {rank}",
                f"{format_rounded('ns', ns)} of {format_rounded('ns', total)}",
                ranks=(rank,),
                span=graph.window,
                hint=f"Predict the gain: rankscope whatif RUN --rank {rank}=median",
                facts=(Fact("ns", ns, "ns", f"rank {rank}", (rank,), {"rank": rank}),),
            )
        )
    return findings
