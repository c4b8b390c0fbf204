"""Infer which kind of parallelism each process group serves, from its name, else from its traffic and its ranks.

Pure functions: observed groups in, a layout out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from rankscope.records import dataclass

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
