"""The process groups, the kind of parallelism that each serves, and the position of every rank in the grid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import Column, Finding, Result, left_out_note
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows
from rankscope.store.separate_runs import world_size_of
from rankscope.timeline.collectives.groups import header_groups
from rankscope.timeline.run import Run

Axis = Literal["world", "pp", "dp", "cp", "ep", "tp", "other"]
AXES: tuple[Axis, ...] = ("pp", "dp", "ep", "cp", "tp")
"""Outermost first, in the usual order of rank numbers."""
TITLES = {
    "world": "all ranks",
    "pp": "pipeline stages",
    "dp": "data parallel",
    "ep": "expert parallel",
    "cp": "context or sequence parallel",
    "tp": "tensor parallel",
    "other": "not recognised",
}

# Words in the group names of the frameworks (torch's DeviceMesh: mesh_tp; Megatron: TENSOR_MODEL_PARALLEL_GROUP;
# DeepSpeed, FSDP). The first axis with a whole word in the name is chosen.
_NAME_WORDS: tuple[tuple[Axis, str], ...] = (
    ("world", r"default_?pg|world"),
    (
        "other",
        r"embedding|position|amax|tensor_and_data|tensor_and_context|intra_partial|inter_partial|tp_dp|tp_cp",
    ),
    (
        "dp",
        r"expert_data|edp|exp_dp|dp_shard|dp_replicate|dp_cp|dp|ddp|fsdp|hsdp|data|replicate|shard|zero|grad",
    ),
    ("ep", r"ep|expert|experts|moe"),
    ("pp", r"pp|pipe|pipeline|stage"),
    ("cp", r"cp|context|sp|sequence|ulysses|ring"),
    ("tp", r"tp|mp|tensor|model|col|row"),
)
_TOO_GENERAL = re.compile(r"(?:^|[^a-z])(?:parallel|group|model|pg|mesh)(?=$|[^a-z])")


@dataclass(frozen=True)
class ObservedGroup:
    """A process group as recorded in the files."""

    name: str
    description: str
    ranks: tuple[int, ...]
    kinds: Mapping[str, int]
    """Number of collectives of each kind that ran in it, on the recorded ranks."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def stride(self) -> int | None:
        """The distance between neighbouring ranks; None where it varies."""
        steps = {after - before for before, after in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else None


@dataclass(frozen=True)
class ClassifiedGroup:
    """A group with its axis of parallelism."""

    group: ObservedGroup
    axis: Axis
    basis: str
    """How the axis was recognised: name, traffic, shape, or nothing."""


@dataclass(frozen=True)
class Layout:
    """The position of every rank along the axes of parallelism."""

    world: int
    axes: tuple[Axis, ...]
    """The axes of size 2 or more, outermost first."""
    sizes: Mapping[Axis, int]
    places: Mapping[int, Mapping[Axis, int]]
    """For each rank, its index along each axis."""
    groups: tuple[ClassifiedGroup, ...]
    notes: tuple[str, ...]

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank; 0 without stages."""
        return self.places.get(rank, {}).get("pp", 0)

    def group_of(self, rank: int, axis: Axis) -> tuple[int, ...]:
        return self._groups_of.get((axis, rank), (rank,))

    @cached_property
    def _groups_of(self) -> dict[tuple[Axis, int], tuple[int, ...]]:
        """By axis and rank, the ranks of its group; of several groups the first."""
        return {
            (one.axis, rank): one.group.ranks for one in reversed(self.groups) for rank in one.group.ranks
        }


def axis_from_name(text: str) -> Axis | None:
    """The axis that a group's name or description states, if any."""
    words = re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower())
    # 'model' alone means tensor parallel; in PIPELINE_MODEL_PARALLEL_GROUP it means nothing.
    bare = _TOO_GENERAL.sub("_", f"_{words}_")
    for candidate in (bare, f"_{words}_"):
        for axis, names in _NAME_WORDS:
            if re.search(rf"(?:^|[^a-z])(?:{names})(?:$|[^a-z])", candidate):
                return axis
    return None


def infer_layout(groups: Sequence[ObservedGroup], world: int) -> Layout:
    """Assign an axis to every group and a position to every rank."""
    found = [_by_name(group, world) for group in groups]
    found = _by_traffic(found)
    found = _by_shape(found)
    notes: list[str] = []
    guessed = sorted({one.axis for one in found if one.basis in ("traffic", "shape") and one.axis != "other"})
    if guessed:
        notes.append(
            f"the names of some groups do not state their purpose: {', '.join(guessed)} "
            f"{'are' if len(guessed) > 1 else 'is'} inferred from traffic, size and stride"
        )
    chosen = _one_family_an_axis(found, notes)
    sizes = {axis: max((one.group.size for one in chosen if one.axis == axis), default=1) for axis in AXES}
    axes = tuple(axis for axis in AXES if sizes[axis] > 1)
    axes, sizes = _completed(axes, dict(sizes), world, notes)
    return Layout(world, axes, sizes, _places(chosen, axes, sizes, world), tuple(found), tuple(notes))


def _by_name(group: ObservedGroup, world: int) -> ClassifiedGroup:
    axis = axis_from_name(group.description) or (
        axis_from_name(group.name) if not group.name.isdigit() else None
    )
    if axis is not None:
        return ClassifiedGroup(group, axis, "name")
    if group.size == world and group.name == "0":
        return ClassifiedGroup(group, "world", "shape")
    return ClassifiedGroup(group, "other", "nothing")


def _by_traffic(found: list[ClassifiedGroup]) -> list[ClassifiedGroup]:
    """Mostly send and recv: a pipeline. Mostly all_to_all: experts."""

    def judged(one: ClassifiedGroup) -> ClassifiedGroup:
        if one.basis != "nothing" or one.group.size < 2:
            return one
        kinds = one.group.kinds
        between = kinds.get("send", 0) + kinds.get("recv", 0) + kinds.get("sendrecv", 0)
        if between > sum(kinds.values()) / 2:
            return ClassifiedGroup(one.group, "pp", "traffic")
        if kinds.get("all_to_all", 0) > sum(kinds.values()) / 2:
            return ClassifiedGroup(one.group, "ep", "traffic")
        return one

    return [judged(one) for one in found]


def _by_shape(found: list[ClassifiedGroup]) -> list[ClassifiedGroup]:
    """Of the remaining groups, neighbouring ranks are tensor parallel (one node), and distant ranks data parallel."""
    taken = {one.axis for one in found}
    open_strides = sorted(
        {one.group.stride or 0 for one in found if one.basis == "nothing" and one.group.size > 1}
    )
    names: dict[int, Axis] = {}
    for stride in open_strides:
        is_tensor = stride == 1 and "tp" not in taken and len(open_strides) > 1
        axis: Axis = "tp" if is_tensor else "dp"
        if axis not in taken:
            names[stride] = axis
            taken.add(axis)
    return [
        ClassifiedGroup(one.group, names[one.group.stride or 0], "shape")
        if one.basis == "nothing" and one.group.size > 1 and (one.group.stride or 0) in names
        else one
        for one in found
    ]


def _one_family_an_axis(found: Sequence[ClassifiedGroup], notes: list[str]) -> list[ClassifiedGroup]:
    """Choose the most used family where several serve one axis (Megatron has five for data parallelism)."""
    chosen = []
    for axis in AXES:
        families: dict[tuple[int, int | None, str], list[ClassifiedGroup]] = {}
        for one in found:
            if one.axis == axis and one.group.size > 1:
                key = (one.group.size, one.group.stride, one.group.description)
                families.setdefault(key, []).append(one)
        if not families:
            continue
        best = max(families.values(), key=_weight)
        chosen += best
        if len(families) > 1:
            rest = [one.group for family in families.values() if family is not best for one in family]
            others = sorted({group.description or group.name for group in rest})
            notes.append(
                f"{axis}: the layout uses {best[0].group.description or 'groups of one size'}; "
                f"other groups of this axis: {', '.join(others[:3])}"
            )
    return chosen


def _weight(family: Sequence[ClassifiedGroup]) -> tuple[int, int]:
    return sum(sum(one.group.kinds.values()) for one in family), len(family)


def _completed(
    axes: tuple[Axis, ...], sizes: dict[Axis, int], world: int, notes: list[str]
) -> tuple[tuple[Axis, ...], dict[Axis, int]]:
    """The axes must multiply to the world size; expert groups lie inside the data-parallel ranks and do not count."""
    product = 1
    for axis in axes:
        product *= 1 if axis == "ep" else sizes[axis]
    if product == world:
        return axes, sizes
    if product and world % product == 0 and "dp" not in axes and product > 1:
        sizes["dp"] = world // product
        notes.append(f"no data-parallel group is known: dp {sizes['dp']} is inferred from {world} ranks")
        return tuple(axis for axis in AXES if axis in axes or axis == "dp"), sizes
    if axes:
        shown = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
        notes.append(f"{shown} does not multiply to {world} ranks: some groups are missing or not recognised")
    return axes, sizes


def _places(
    chosen: Sequence[ClassifiedGroup], axes: tuple[Axis, ...], sizes: Mapping[Axis, int], world: int
) -> dict[int, dict[Axis, int]]:
    """The index of a rank in its group is its index along the axis."""
    places: dict[int, dict[Axis, int]] = {rank: {} for rank in range(world)}
    for one in chosen:
        for number, rank in enumerate(one.group.ranks):
            places.setdefault(rank, {}).setdefault(one.axis, number)
    for axis in axes:
        if axis == "dp" and not any(one.axis == "dp" for one in chosen):
            _number_copies(places, [other for other in axes if other != "dp"])
    return places


def _number_copies(places: dict[int, dict[Axis, int]], others: Sequence[Axis]) -> None:
    """Number the data-parallel copies where no group lists them: by rank among equal positions on the other axes."""
    seen: Counter[tuple[int, ...]] = Counter()
    for rank in sorted(places):
        key = tuple(places[rank].get(axis, 0) for axis in others)
        places[rank]["dp"] = seen[key]
        seen[key] += 1


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
    sizes = [world_size_of(entry) for entry in run.timelines]
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
        notes.append(f"no file for {rank_words(missing)}")
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
        {**dict(zip(outer, key, strict=True)), **{f"{inner}_{i}": _cell(row.get(i)) for i in range(width)}}
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
        notes.append(left_out_note(f"{unnamed:,} collectives whose process group is not known"))
    return Result("groups", "Process groups", scope.window, GROUP_COLUMNS, table, notes=tuple(notes))
