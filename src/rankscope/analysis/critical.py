"""What the run's time hangs on: the chain of causes that leads from the first step's start to the last end."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.graph import DEVICE_CLASSES, HOST_CLASSES, NONE, Graph
from rankscope.analysis.graph_build import graph_of
from rankscope.analysis.matching import waits
from rankscope.analysis.notes import left_out
from rankscope.analysis.result import Column, Finding, Result, Severity
from rankscope.analysis.scope import Scope
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


class Piece(NamedTuple):
    """A stretch of the path."""

    kind: str
    rank: int
    name: int
    start: int
    end: int


def critical(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The path by class, rank and name; it adds up to the window."""
    graph = graph_of(run, scope)
    path = walk(graph)
    low, high = graph.window
    total = high - low
    sums: Counter[tuple[str, int, int]] = Counter()
    for piece in path:
        sums[piece.kind, piece.rank, piece.name] += piece.end - piece.start
    rows: list[dict[str, Any]] = [
        {
            "class": kind,
            "rank": graph.ranks[rank],
            "name": graph.names[name],
            "ns": ns,
            "pct": 100 * ns / total,
        }
        for (kind, rank, name), ns in sums.items()
        if ns
    ]
    rows.sort(key=lambda row: (-row["ns"], row["class"], row["rank"], row["name"]))
    notes = [*left_out(run, scope), *graph.notes]
    if not rows:
        notes.append("no GPU events and no steps in the window: nothing hangs on anything")
    if len(graph.ranks) > 1 and not (graph.meetings.members > 1).any():
        notes.append("no collective is matched between these ranks: the path stays on one of them")
    slack = _slack(run, scope)
    if slack:
        notes.append(f"slack, waited for others inside collectives: {slack}")
    columns = COLUMNS[:2] + COLUMNS[4:] + COLUMNS[2:4]  # as NUMBERS has it: class, rank, name, ns, pct
    findings = tuple(_findings(graph, rows, total))
    return Result("critical", "The critical path", scope.window, columns, rows, findings, tuple(notes))


def walk(graph: Graph) -> list[Piece]:
    """Back from the last end, cause by cause. Visits the path and nothing else; pieces meet end to end."""
    device, host = graph.device, graph.host
    low, high = graph.window
    bind, cause = _binding(graph)
    path: list[Piece] = []
    time = high
    node, on_device = _last_node(graph)

    def step_to(when: int, kind: str, rank: int, name: int) -> int:
        """A piece from `when` to now; clocks that disagree never make one negative."""
        reached = min(max(when, low), time)
        path.append(Piece(kind, rank, name, reached, time))
        return reached

    while node != NONE and time > low:
        if on_device:
            rank, name = int(device.rank[node]), int(device.name[node])
            first = _last_member(graph, int(device.match[node]), node)
            kind = DEVICE_CLASSES[device.kind[node]]
            time = step_to(int(device.start[first]), kind, rank, name)
            node, rank = first, int(device.rank[first])
            how, by = bind[node], int(cause[node])
            if how == NONE:
                break
            if how == 0:
                time = step_to(int(host.time[by]), "launch", rank, int(device.name[node]))
                node, on_device = by, False
            else:
                time = step_to(int(device.end[by]), "gap", rank, int(device.name[node]))
                node = by
            continue
        rank, name = int(host.rank[node]), int(host.name[node])
        if host.target[node] != NONE:
            node = int(host.target[node])
            time = step_to(int(device.end[node]), "sync", rank, name)
            on_device = True
        elif host.match[node] != NONE:
            opener = int(graph.meetings.last[host.match[node]])
            time = step_to(int(host.time[opener]), "comm", rank, name)
            node = int(host.before[opener])
            if node != NONE:
                time = step_to(int(host.time[node]), _host_kind(graph, opener), int(host.rank[opener]), name)
        else:
            before = int(host.before[node])
            if before == NONE:
                break
            time = step_to(int(host.time[before]), _host_kind(graph, node), rank, name)
            node = before
    if time > low and path:
        last = path[-1]
        step_to(low, "host", last.rank, last.name)
    return path


def _host_kind(graph: Graph, node: int) -> str:
    return HOST_CLASSES[graph.host.kind[node]]


def _binding(graph: Graph) -> tuple[Any, Any]:
    """What each device node's start hung on: 0 its launch, 1 its stream, 2 another stream; and that node."""
    launch, stream, other = graph.constraints()
    stack = np.stack([launch, stream, other])
    bind = stack.argmax(axis=0) if stack.shape[1] else np.zeros(0, dtype=np.int64)
    nodes = np.stack([graph.device.launch, graph.device.before, graph.device.other])
    cause = np.take_along_axis(nodes, bind[None, :], axis=0)[0] if len(bind) else bind
    return np.where(cause == NONE, NONE, bind), cause


def _last_node(graph: Graph) -> tuple[int, bool]:
    device_end = int(graph.device.end.max()) if len(graph.device.end) else NONE
    host_end = int(graph.host.time.max()) if len(graph.host.time) else NONE
    if device_end == NONE and host_end == NONE:
        return NONE, True
    if device_end > host_end:
        return int(graph.device.end.argmax()), True
    return int(graph.host.time.argmax()), False


def _last_member(graph: Graph, match: int, node: int) -> int:
    """Who came last to the collective of a device node: the node itself where it is none, or came last."""
    met = graph.meetings
    if match == NONE or met.members[match] < 2 or met.last[match] == NONE or met.on_host[match]:
        return node
    return int(met.last[match])


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
