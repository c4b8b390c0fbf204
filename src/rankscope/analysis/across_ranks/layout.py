"""Who works with whom: process groups, what they are for, and every rank's place in the grid."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.parallelism import (
    AXES,
    TITLES,
    Axis,
    Layout,
    Recognised,
    Seen,
    recognise,
)
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.ranges import as_ranges
from rankscope.store.collectives.groups import header_groups
from rankscope.store.run import Run

GROUP_COLUMNS = (
    Column("axis", help="pp, dp, ep, cp, tp, world or other"),
    Column("groups", "count", "how many of them"),
    Column("size", help="ranks in each"),
    Column("stride", help="from one rank of a group to the next; null where it varies"),
    Column("basis", help="known by name, traffic or shape"),
    Column("collectives", "count", "that ran in them, on the ranks at hand"),
    Column("time_ns", "ns", "inside them, summed over the ranks"),
    Column("kinds", help="what ran"),
    Column("description", help="as the program calls them", at_end=True),
)
_NO_GROUPS = "no process groups in the files: torch >= 2.3 records them in the header; all ranks count as one"


def _world(run: Run) -> int:
    sizes: list[int] = []
    for entry in run.timelines:
        info = entry.manifest.get("header", {}).get("distributedInfo")
        if isinstance(info, dict) and isinstance(info.get("world_size"), int):
            sizes.append(info["world_size"])
    return max([*sizes, max(run.ranks, default=0) + 1])


@once_per_run
def layout_of(run: Run, scope: Scope) -> Layout:
    """The layout of the whole run; groups are known from the files' headers and from what ran."""
    rows = run.collectives
    kinds: dict[tuple[str, tuple[int, ...]], Counter[str]] = {}
    described: dict[tuple[str, tuple[int, ...]], str] = {}
    listed = [group for entry in run.timelines for group in header_groups(entry.manifest.get("header", {}))]
    for group in (*listed, *rows.groups):
        if group.ranks:
            key = (group.name, tuple(group.ranks))
            kinds.setdefault(key, Counter())
            described[key] = described.get(key) or group.description
    pairs, counts = np.unique(np.stack([rows.group, rows.kind]), axis=1, return_counts=True)
    for (place, kind), count in zip(pairs.T.tolist(), counts.tolist(), strict=True):
        group = rows.groups[place]
        if group.ranks:
            kinds[group.name, tuple(group.ranks)][KINDS[kind]] += count
    seen = [Seen(name, described[name, ranks], ranks, dict(found)) for (name, ranks), found in kinds.items()]
    return recognise(seen, _world(run))


def layout(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The grid of ranks; with --by rank one row a rank."""
    found = layout_of(run, Scope())
    rows, columns = _by_rank(found) if by == "rank" else _grid(found)
    shape = " x ".join(f"{axis} {found.sizes[axis]}" for axis in found.axes) or "one group"
    notes = [*found.notes]
    if not found.groups:
        notes.append(_NO_GROUPS)
    missing = sorted(set(range(found.world)) - set(run.ranks))
    if missing:
        notes.append(f"no file of rank{'s' * (len(missing) > 1)} {as_ranges(missing)}")
    finding = Finding(
        "ok",
        f"{found.world} rank{'s' * (found.world != 1)}: {shape}",
        "; ".join(f"{axis}: {TITLES[axis]}" for axis in found.axes) or "no groups but that of everybody",
    )
    findings: tuple[Finding, ...] = (finding,)
    if not found.groups:  # what is not told must not be denied: the ranks may be divided all the same
        rows, findings = [], ()
    return Result("layout", "Where the ranks stand", scope.window, columns, rows, findings, tuple(notes))


def _by_rank(found: Layout) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    columns = (Column("rank"), *(Column(axis, help=TITLES[axis]) for axis in found.axes))
    rows = [
        {"rank": rank, **{axis: place.get(axis) for axis in found.axes}}
        for rank, place in sorted(found.places.items())
    ]
    return rows, columns


def _grid(found: Layout) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    """The innermost axis goes across, the others down; a cell is a rank (or several, inside one place)."""
    inner: Axis | None = next((axis for axis in reversed(AXES) if axis in found.axes and axis != "ep"), None)
    if inner is None:
        everybody = {"ranks": as_ranges(sorted(found.places))}
        return [everybody], (Column("ranks"),)
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
    """The process groups, those alike in one row."""
    found = layout_of(run, Scope())
    rows = run.collectives
    time: Counter[tuple[str, tuple[int, ...]]] = Counter()
    count: Counter[tuple[str, tuple[int, ...]]] = Counter()
    inside = np.ones(len(rows.rank), dtype=bool)
    if scope.ranks is not None:
        inside &= np.isin(rows.rank, sorted(scope.ranks))
    if scope.steps is not None:
        inside &= (rows.step >= scope.steps[0]) & (rows.step <= scope.steps[1])
    for place, group in enumerate(rows.groups):
        mine = inside & (rows.group == place)
        if group.ranks:
            key = (group.name, tuple(group.ranks))
            time[key] += int(rows.duration[mine].sum())
            count[key] += int(mine.sum())
    families: dict[tuple[Any, ...], list[Recognised]] = {}
    for one in found.groups:
        alike = (one.axis, one.group.size, one.group.stride, one.basis, one.group.description)
        families.setdefault(alike, []).append(one)
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
    unnamed = int(sum(inside & np.isin(rows.group, [i for i, g in enumerate(rows.groups) if not g.ranks])))
    if unnamed:
        notes.append(f"left out: {unnamed:,} collectives whose group no file names")
    return Result("groups", "Process groups", scope.window, GROUP_COLUMNS, table, notes=tuple(notes))
