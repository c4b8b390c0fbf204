"""The process groups, the kind of parallelism that each serves, and the position of every rank in the grid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.parallelism import (
    AXES,
    TITLES,
    Axis,
    ClassifiedGroup,
    Layout,
    ObservedGroup,
    infer_layout,
)
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.ranges import as_ranges
from rankscope.store.arrays import number_rows
from rankscope.timeline.collectives.groups import header_groups
from rankscope.timeline.run import Run

GROUP_COLUMNS = (
    Column("axis", help="pp, dp, ep, cp, tp, world or other"),
    Column("groups", "count", "number of groups"),
    Column("size", help="ranks in each group"),
    Column("stride", help="distance between neighbouring ranks of a group; null where it varies"),
    Column("basis", help="how the axis was recognised: name, traffic or shape"),
    Column("collectives", "count", "collectives that ran in these groups on the recorded ranks"),
    Column("time_ns", "ns", "time inside these collectives, summed over the ranks"),
    Column("kinds", help="number of collectives of each kind"),
    Column("description", help="description given by the program", at_end=True),
)
_NO_GROUPS = "no process groups in the files: torch 2.3 and later record them in the header"


def _world_size(run: Run) -> int:
    sizes = [entry.world_size for entry in run.timelines]
    return max([*sizes, max(run.ranks, default=0) + 1])


@once_per_run
def layout_of(run: Run, scope: Scope) -> Layout:
    """The layout of the whole run, from the groups in the file headers and in the collectives."""
    rows = run.collectives
    kinds: dict[tuple[str, tuple[int, ...]], Counter[str]] = {}
    described: dict[tuple[str, tuple[int, ...]], str] = {}
    listed = [group for entry in run.timelines for group in header_groups(entry.manifest.get("header", {}))]
    for group in (*listed, *rows.groups):
        if group.ranks:
            key = (group.name, tuple(group.ranks))
            kinds.setdefault(key, Counter())
            described[key] = described.get(key) or group.description
    pairs, place_of = number_rows([rows.group, rows.kind])
    counts = np.bincount(place_of, minlength=len(pairs))
    for (place, kind), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        group = rows.groups[place]
        if group.ranks:
            kinds[group.name, tuple(group.ranks)][KINDS[kind]] += count
    observed = [
        ObservedGroup(name, described[name, ranks], ranks, dict(found))
        for (name, ranks), found in kinds.items()
    ]
    return infer_layout(observed, _world_size(run))


def layout(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The grid of ranks; with --by rank one row for each rank."""
    found = layout_of(run, Scope())
    rows, columns = _by_rank(found) if by == "rank" else _grid(found)
    notes = [*found.notes]
    if not found.groups:
        notes.append(_NO_GROUPS)
    missing = sorted(set(range(found.world)) - set(run.ranks))
    if missing:
        notes.append(f"no file for rank{'s' * (len(missing) > 1)} {as_ranges(missing)}")
    ranks = f"{found.world} rank{'s' * (found.world != 1)}"
    if found.axes:
        shape = " x ".join(f"{axis} {found.sizes[axis]}" for axis in found.axes)
        meaning = "; ".join(f"{axis}: {TITLES[axis]}" for axis in found.axes)
        finding = Finding("ok", f"{ranks}: {shape}", meaning)
    else:
        finding = Finding(
            "ok", f"{ranks}, {_group_counts(found)}", "no group was recognised as pp, dp, ep, cp or tp"
        )
    findings: tuple[Finding, ...] = (finding,)
    if not found.groups:  # unknown groups are not the same as one group: show nothing
        rows, findings = [], ()
    return Result("layout", "Layout of the ranks", scope.window, columns, rows, findings, tuple(notes))


def _group_counts(found: Layout) -> str:
    """'1 process group: world' or '3 process groups: 1 world, 2 other'."""
    counts = Counter(one.axis for one in found.groups)
    total = sum(counts.values())
    parts = counts if len(counts) == 1 else [f"{count} {axis}" for axis, count in counts.items()]
    return f"{total} process group{'s' * (total != 1)}: {', '.join(parts)}"


def _by_rank(found: Layout) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    columns = (Column("rank"), *(Column(axis, help=TITLES[axis]) for axis in found.axes))
    rows = [
        {"rank": rank, **{axis: place.get(axis) for axis in found.axes}}
        for rank, place in sorted(found.places.items())
    ]
    return rows, columns


def _grid(found: Layout) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    """The innermost axis in columns, the others in rows; a cell holds one rank, or several at the same position."""
    inner: Axis | None = next((axis for axis in reversed(AXES) if axis in found.axes and axis != "ep"), None)
    if inner is None:
        return [{"ranks": as_ranges(sorted(found.places))}], (Column("ranks"),)
    outer = [axis for axis in found.axes if axis not in (inner, "ep")]
    cells: dict[tuple[int | None, ...], dict[int, list[int]]] = {}
    for rank, place in sorted(found.places.items()):
        if inner in place:
            row = cells.setdefault(tuple(place.get(axis) for axis in outer), {})
            row.setdefault(place[inner], []).append(rank)
    width = found.sizes[inner]
    rows = [
        {
            **dict(zip(outer, key, strict=True)),
            **{f"{inner}_{i}": _cell(row.get(i)) for i in range(width)},
        }
        for key, row in sorted(cells.items(), key=lambda pair: tuple(-1 if x is None else x for x in pair[0]))
    ]
    columns = (
        *(Column(axis, help=TITLES[axis], title=axis.upper()) for axis in outer),
        *(Column(f"{inner}_{i}", help=TITLES[inner], title=f"{inner} {i}") for i in range(width)),
    )
    return rows, columns


def _cell(ranks: list[int] | None) -> int | str | None:
    if not ranks:
        return None
    return ranks[0] if len(ranks) == 1 else as_ranges(ranks)


def groups(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The process groups; groups of equal axis, size, stride and description share a row."""
    found = layout_of(run, Scope())
    rows = run.collectives
    time: Counter[tuple[str, tuple[int, ...]]] = Counter()
    count: Counter[tuple[str, tuple[int, ...]]] = Counter()
    inside = np.ones(len(rows.rank), dtype=bool)
    if scope.ranks is not None:
        inside &= np.isin(rows.rank, sorted(scope.ranks))
    if scope.steps is not None:
        inside &= (rows.step >= scope.steps[0]) & (rows.step <= scope.steps[1])
    counts = np.bincount(rows.group[inside], minlength=len(rows.groups))
    times = np.zeros(len(rows.groups), dtype=np.int64)
    np.add.at(times, rows.group[inside], rows.duration[inside])
    for place, group in enumerate(rows.groups):
        if group.ranks:
            key = (group.name, tuple(group.ranks))
            time[key] += int(times[place])
            count[key] += int(counts[place])
    families: dict[tuple[Any, ...], list[ClassifiedGroup]] = {}
    for one in found.groups:
        family = (one.axis, one.group.size, one.group.stride, one.basis, one.group.description)
        families.setdefault(family, []).append(one)
    table = []
    for (axis, size, stride, basis, description), members in families.items():
        kinds: Counter[str] = Counter()
        for one in members:
            kinds.update(one.group.kinds)
        keys = [(one.group.name, one.group.ranks) for one in members]
        table.append(
            {
                "axis": axis,
                "groups": len(members),
                "size": size,
                "stride": stride if size > 1 else None,
                "basis": basis,
                "collectives": sum(count[key] for key in keys),
                "time_ns": sum(time[key] for key in keys),
                "kinds": ", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or None,
                "description": description or None,
            }
        )
    order = {axis: place for place, axis in enumerate(("world", *AXES, "other"))}
    table.sort(key=lambda row: (order[row["axis"]], -row["collectives"], -row["size"]))
    notes = list(found.notes) if found.groups else [_NO_GROUPS]
    unnamed = sum(int(counts[i]) for i, group in enumerate(rows.groups) if not group.ranks)
    if unnamed:
        notes.append(f"left out: {unnamed:,} collectives whose process group is not known")
    return Result("groups", "Process groups", scope.window, GROUP_COLUMNS, table, notes=tuple(notes))
