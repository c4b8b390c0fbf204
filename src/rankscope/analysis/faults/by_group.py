"""Reports with a row for each node, or for each group of ranks along an axis of parallelism, instead of each rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rankscope.analysis.across_ranks.collectives import collectives
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.report import Analyse
from rankscope.analysis.core.result import Column, Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.stragglers import COLUMNS as STRAGGLER_COLUMNS
from rankscope.analysis.faults.stragglers import stragglers, stragglers_by_step
from rankscope.analysis.within_rank.breakdown import COLUMNS as BREAKDOWN_COLUMNS
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run

_RANKS = Column("ranks", help="its ranks in scope")
_GROUP_COLUMNS = {
    "node": (Column("node", help="name of the host"), _RANKS),
    "group": (
        Column("axis", help="pp, dp, ep, cp or tp, as in the report layout"),
        Column("group", help="a pipeline stage, or the first rank of a process group"),
        _RANKS,
    ),
}
_NO_NODES = "the hosts of the ranks are not recorded: rankscope profile records them"
_NO_GROUPS = "no process group was recognised as pp, dp, ep, cp or tp (-r layout.groups lists them)"


def _groups(run: Run, scope: Scope, by: str) -> dict[tuple[str, ...], list[int]]:
    """By the columns that name them, ranks that share a row: the nodes of the ranks in scope; or, axis by axis, the
    stages of the pipeline and the process groups."""
    members: dict[tuple[str, ...], list[int]] = {}
    for rank in scope.ranks_in(run):
        keys: list[tuple[str, ...]]
        if by == "node":
            keys = [(run.hosts[rank],)] if rank in run.hosts else []
        else:
            layout = layout_of(run, Scope())
            stage = f"stage {layout.stage(rank)}"
            keys = [
                (axis, stage if axis == "pp" else f"of rank {layout.group_of(rank, axis)[0]}")
                for axis in layout.axes
            ]
        for key in keys:
            members.setdefault(key, []).append(rank)
    return members


Combine = Callable[[Sequence[Row]], dict[str, Any]]
"""From the rows of the ranks of a group to the columns of its row."""


def _with_groups(analyse: Analyse, columns: Sequence[Column], combine: Combine, order: str) -> Analyse:
    """A report with rows by rank that can also have them by node and group, by the column `order`."""

    def analysed(run: Run, scope: Scope, by: str | None) -> Result:
        result = analyse(run, scope, None)
        if by is None:
            return result
        of_rank = {row["rank"]: row for row in result.rows if row.get("step") is None}
        names = [column.name for column in _GROUP_COLUMNS[by]]
        rows: list[dict[str, Any]] = []
        for key, ranks in _groups(run, scope, by).items():
            members = [of_rank[rank] for rank in ranks if rank in of_rank]
            if members:
                rows.append(dict(zip(names, (*key, as_ranges(ranks)), strict=True)) | combine(members))
        axes = list(dict.fromkeys(row.get("axis") for row in rows))
        rows.sort(key=lambda row: (axes.index(row.get("axis")), -row[order]))
        missing = () if rows else (_NO_NODES if by == "node" else _NO_GROUPS,)
        return replace(
            result, columns=(*_GROUP_COLUMNS[by], *columns), rows=rows, notes=(*result.notes, *missing)
        )

    return analysed


def _mean(rows: Sequence[Row], name: str) -> int | None:
    """Over the rows that have it."""
    values = [int(row[name]) for row in rows if row[name] is not None]
    return round(sum(values) / len(values)) if values else None


def _sum(values: Sequence[int | None]) -> int | None:
    """Not known where one is not."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


_TIMES = (
    "span_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "exposed_wait_ns",
    "exposed_copy_ns",
    "idle_ns",
)


def _breakdown_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over the ranks."""
    comm = sum(row["comm_ns"] for row in rows)
    hidden = sum(row["comm_ns"] * (row["overlap_pct"] or 0.0) for row in rows)
    return {name: _mean(rows, name) for name in _TIMES} | {"overlap_pct": hidden / comm if comm else None}


_WORST_COLUMNS = (
    Column("worst_rank", help="the rank that caused most of the waiting"),
    Column("worst_caused_wait_ns", "ns", "the part of it", title="Of it"),
)
_SUMS = (
    "last_count", "caused_wait_ns", "own_wait_ns", "compute_ns", "host_ns", "copy_ns", "dataloader_ns",
    "waiting_ns", "link_ns",
)  # fmt: skip


def _stragglers_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over the ranks, and the rank that caused most of the waiting."""
    worst = max(rows, key=lambda row: (row["caused_wait_ns"], -row["rank"]))
    return {name: _sum([row[name] for row in rows]) for name in _SUMS} | {
        "worst_rank": worst["rank"],
        "worst_caused_wait_ns": worst["caused_wait_ns"],
        "cause": worst["cause"],
    }


breakdown_by = _with_groups(
    breakdown,
    [column for column in BREAKDOWN_COLUMNS if column.name not in ("rank", "step")],
    _breakdown_of,
    "compute_ns",
)
"""The breakdown of each rank and step; by node or group, the means over their ranks."""

_OF_STRAGGLERS = [column for column in STRAGGLER_COLUMNS if column.name != "rank"]

_stragglers_by_group = _with_groups(
    stragglers, [*_OF_STRAGGLERS[:3], *_WORST_COLUMNS, *_OF_STRAGGLERS[3:]], _stragglers_of, "caused_wait_ns"
)


def stragglers_by(run: Run, scope: Scope, by: str | None) -> Result:
    """The stragglers rank by rank; by node or group, the sums over their ranks and the worst of them; by step, the last
    rank of each."""
    return stragglers_by_step(run, scope) if by == "step" else _stragglers_by_group(run, scope, by)


_COLLECTIVE_COLUMNS = (
    Column("axis", help="pp, dp, ep, cp, tp, world or other, as in the report groups"),
    Column("kind"),
    Column("dtype"),
    Column("bytes", "bytes", "message size S, as in the report without --by", decimals=0),
    Column("groups", "count", "process groups of this axis that ran it"),
    Column("count", "count", "number of calls on a rank; the largest over the groups"),
    Column("transfer_ns", "ns", "mean over the groups"),
    Column("wait_ns", "ns", "mean over the groups"),
    Column("slowest_group", help="the group with the longest transfer"),
    Column("slowest_transfer_ns", "ns", "its transfer", title="Its transfer"),
    Column("slowest_members", help="its ranks", minor=True, at_end=True),
)


def collectives_by(run: Run, scope: Scope, by: str | None) -> Result:
    """The collectives; by group, those of one axis, kind, data type and size share a row."""
    result = collectives(run, scope)
    if by is None:
        return result
    groups = layout_of(run, Scope()).groups
    axis_of = {(group.name, as_ranges(list(group.ranks))): group.axis for group in groups}
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in result.rows:
        axis = axis_of.get((row["group"], row["members"]), "other")
        members.setdefault((axis, row["kind"], row["dtype"], row["bytes"]), []).append(row)
    rows = [_of_groups(key, group) for key, group in members.items()]  # the largest total first, as before
    return replace(result, columns=_COLLECTIVE_COLUMNS, rows=rows)


def _of_groups(key: tuple[Any, ...], rows: Sequence[Row]) -> dict[str, Any]:
    slowest = max(rows, key=lambda row: row["transfer_ns"] or 0)
    return dict(zip(("axis", "kind", "dtype", "bytes"), key, strict=True)) | {
        "groups": len({(row["group"], row["members"]) for row in rows}),
        "count": max(row["count"] for row in rows),
        **{name: _mean(rows, name) for name in ("transfer_ns", "wait_ns")},
        "slowest_group": slowest["group"],
        "slowest_transfer_ns": slowest["transfer_ns"],
        "slowest_members": slowest["members"],
    }
