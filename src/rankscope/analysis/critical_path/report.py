"""The critical path: the chain of dependencies from the start of the first step to the last end, over all ranks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.core.advice import (
    framework,
    how_to_record,
    less_host_time,
    load_faster,
    read_later,
    together,
)
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.host_labels import covering_names
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.notes import left_out, unrecorded_note
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.slice_counts import has_launches, runs_on_cpu
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
_ONE_RANK_PCT = 60.0
"""Of the path: a rank that has more is named. Chosen, not measured."""
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
    "copy": "Make copies asynchronous: pinned memory and non_blocking=True.",
    "between": "Check what the training loop does between steps.",
}
_ON_HOST = "work on the host"
"""What the critical path of a run without GPU events or launches consists of: what waits for the host is not known."""


def _hint(run: Run, kind: str) -> str:
    fewer = ", ".join([*together(run), "fewer and larger kernels"])
    ways = ", ".join(less_host_time(run))
    if kind == "host" and runs_on_cpu(run):
        return f"Reduce the work of the host: {ways}."
    if kind == "host" and not has_gpu(run, Scope()):
        return (
            "What the host waits for is not known: the file is cut, and has no GPU events. Record it again."
        )
    if kind == "host" and has_launches(run):
        return f"Reduce host time: {ways}. Predict the gain: rankscope whatif RUN --no-gaps"
    if kind == "dataloader":
        return load_faster(run)
    if kind == "sync":
        return f"Remove synchronisation from the loop: {read_later(run)}."
    if kind == "launch":
        return f"Reduce launch time: {fewer}."
    if kind in ("host", "gap") and not has_launches(run):
        return f"Launches were not recorded, so what the GPU waits for is not known: {how_to_record(run, 'launches')}."
    if kind == "gap":
        return f"Reduce the gaps: {fewer}."
    if kind == "copy" and framework(run) == "jax":
        return "Copy less: keep arrays on the device, and put the next batch there ahead of time (jax.device_put)."
    return _HINTS[kind]


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
    notes = [*left_out(run, scope), *graph.notes]
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
    # Where kernels were lost, the path only seems to be on the host; a doubt of the run says so.
    findings = () if kernels_end_in(run, scope) else tuple(_findings(run, graph, rows))
    facts = {"unrecorded_ns": unrecorded}
    return Result(
        "critical", "The critical path", scope.window, columns, rows, findings, tuple(notes), facts=facts
    )


def _pieces(run: Run, graph: Graph) -> list[tuple[int, int, str, int]]:
    """Of the path: class, rank, name and time."""
    path = critical_path(graph)
    names, labels = host_labels(run, graph, path)
    keys, piece = number_rows([path.kind, path.rank, labels])
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, piece, path.end - path.start)
    pairs = zip(keys.tolist(), sums.tolist(), strict=True)
    return [(kind, rank, names[name], ns) for (kind, rank, name), ns in pairs]


def _findings(run: Run, graph: Graph, rows: list[dict[str, Any]]) -> list[Finding]:
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
    is_known = has_gpu(run, Scope()) and has_launches(run)
    bound_by = _BOUND_BY[kind] if kind != "host" or is_known else _ON_HOST
    findings = [
        Finding(
            "info",
            f"The critical path is {bound_by} ({100 * most / total:.0f} %)",
            f"{shares}; the largest part: {top['name'] or kind} on rank {top['rank']}, {100 * top['ns'] / total:.1f} %",
            ranks=(top["rank"],),
            span=graph.window,
            hint=_hint(run, kind),
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
