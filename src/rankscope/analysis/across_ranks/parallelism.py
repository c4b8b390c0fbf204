"""Which process group serves which kind of parallelism: by what it is called, else by what runs in it.

Pure: groups and what is known of them in, a layout out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Axis = Literal["world", "pp", "dp", "cp", "ep", "tp", "other"]
AXES: tuple[Axis, ...] = ("pp", "dp", "ep", "cp", "tp")
"""Outermost first, as ranks are usually counted."""
TITLES = {
    "world": "everybody",
    "pp": "pipeline stages",
    "dp": "data parallel",
    "ep": "experts",
    "cp": "context or sequence parallel",
    "tp": "tensor parallel",
    "other": "not recognised",
}

# What frameworks call their groups (torch's DeviceMesh: mesh_tp; Megatron: TENSOR_MODEL_PARALLEL_GROUP;
# DeepSpeed, FSDP); the first that a name holds decides. Words, not parts of words.
_CALLED: tuple[tuple[Axis, str], ...] = (
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
_PATTERNS = tuple((axis, re.compile(rf"(?:^|[^a-z])(?:{words})(?:$|[^a-z])")) for axis, words in _CALLED)
_TOO_GENERAL = re.compile(r"(?:^|[^a-z])(?:parallel|group|model|pg|mesh)(?=$|[^a-z])")


@dataclass(frozen=True)
class Seen:
    """A process group as the files tell it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    kinds: Mapping[str, int]
    """How many collectives of each kind ran in it, on the ranks at hand."""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def stride(self) -> int | None:
        """The distance between neighbours; None where it is not the same for all."""
        steps = {after - before for before, after in zip(self.ranks, self.ranks[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else None


@dataclass(frozen=True)
class Recognised:
    """A group, what it is for, and how that is known."""

    group: Seen
    axis: Axis
    basis: str
    """name, traffic, shape, or nothing."""


@dataclass(frozen=True)
class Layout:
    """Where every rank stands."""

    world: int
    axes: tuple[Axis, ...]
    """Those there are more than one of, outermost first."""
    sizes: Mapping[Axis, int]
    places: Mapping[int, Mapping[Axis, int]]
    """By rank, its number along each axis."""
    groups: tuple[Recognised, ...]
    notes: tuple[str, ...]

    def group_of(self, rank: int, axis: Axis) -> tuple[int, ...]:
        for one in self.groups:
            if one.axis == axis and rank in one.group.ranks:
                return one.group.ranks
        return (rank,)


def called(text: str) -> Axis | None:
    """What a name or description says; None when it says nothing."""
    words = re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower())
    # PIPELINE_MODEL_PARALLEL_GROUP: 'model' alone means tensor, beside another word it means nothing.
    bare = _TOO_GENERAL.sub("_", f"_{words}_")
    for candidate in (bare, f"_{words}_"):
        for axis, pattern in _PATTERNS:
            if pattern.search(candidate):
                return axis
    return None


def recognise(groups: Sequence[Seen], world: int) -> Layout:
    """Give every group an axis and every rank a place."""
    found = [_by_name(group, world) for group in groups]
    found = _by_traffic(found)
    found = _by_shape(found)
    notes: list[str] = []
    guessed = sorted({one.axis for one in found if one.basis in ("traffic", "shape") and one.axis != "other"})
    if guessed:
        notes.append(
            f"no name tells what some groups are for; {', '.join(guessed)} "
            f"{'are' if len(guessed) > 1 else 'is'} inferred from traffic, sizes and strides"
        )
    chosen = _one_family_an_axis(found, notes)
    sizes = {axis: max((one.group.size for one in chosen if one.axis == axis), default=1) for axis in AXES}
    axes = tuple(axis for axis in AXES if sizes[axis] > 1)
    axes, sizes = _completed(axes, dict(sizes), world, notes)
    return Layout(world, axes, sizes, _places(chosen, axes, sizes, world), tuple(found), tuple(notes))


def _by_name(group: Seen, world: int) -> Recognised:
    axis = called(group.description) or (called(group.name) if not group.name.isdigit() else None)
    if axis is not None:
        return Recognised(group, axis, "name")
    if group.size == world and group.name == "0":
        return Recognised(group, "world", "shape")
    return Recognised(group, "other", "nothing")


def _by_traffic(found: list[Recognised]) -> list[Recognised]:
    """Sends and receives make a pipeline, all_to_all makes experts."""

    def judged(one: Recognised) -> Recognised:
        if one.basis != "nothing" or one.group.size < 2:
            return one
        kinds = one.group.kinds
        between = kinds.get("send", 0) + kinds.get("recv", 0) + kinds.get("sendrecv", 0)
        if between > sum(kinds.values()) / 2:
            return Recognised(one.group, "pp", "traffic")
        if kinds.get("all_to_all", 0) > sum(kinds.values()) / 2:
            return Recognised(one.group, "ep", "traffic")
        return one

    return [judged(one) for one in found]


def _by_shape(found: list[Recognised]) -> list[Recognised]:
    """Of what is left: neighbours are a tensor group (they share a node), ranks farther apart hold copies."""
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
        Recognised(one.group, names[one.group.stride or 0], "shape")
        if one.basis == "nothing" and one.group.size > 1 and (one.group.stride or 0) in names
        else one
        for one in found
    ]


def _one_family_an_axis(found: Sequence[Recognised], notes: list[str]) -> list[Recognised]:
    """Several kinds of groups may serve one axis (Megatron has five for data): the one most used stands for it."""
    chosen = []
    for axis in AXES:
        families: dict[tuple[int, int | None, str], list[Recognised]] = {}
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
                f"also there: {', '.join(others[:3])}"
            )
    return chosen


def _weight(family: Sequence[Recognised]) -> tuple[int, int]:
    return sum(sum(one.group.kinds.values()) for one in family), len(family)


def _completed(
    axes: tuple[Axis, ...], sizes: dict[Axis, int], world: int, notes: list[str]
) -> tuple[tuple[Axis, ...], dict[Axis, int]]:
    """The axes must multiply to the world; experts live inside the data-parallel ranks and do not count."""
    product = 1
    for axis in axes:
        product *= 1 if axis == "ep" else sizes[axis]
    if product == world:
        return axes, sizes
    if product and world % product == 0 and "dp" not in axes and product > 1:
        sizes["dp"] = world // product
        notes.append(f"no data-parallel group is known; {sizes['dp']} copies follow from {world} ranks")
        return tuple(axis for axis in AXES if axis in axes or axis == "dp"), sizes
    if axes:
        shown = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
        notes.append(f"{shown} does not make {world} ranks: some groups are not known")
    return axes, sizes


def _places(
    chosen: Sequence[Recognised], axes: tuple[Axis, ...], sizes: Mapping[Axis, int], world: int
) -> dict[int, dict[Axis, int]]:
    """A rank's number in its group is its number along the axis."""
    places: dict[int, dict[Axis, int]] = {rank: {} for rank in range(world)}
    for one in chosen:
        for number, rank in enumerate(one.group.ranks):
            places.setdefault(rank, {}).setdefault(one.axis, number)
    for axis in axes:
        if axis == "dp" and not any(one.axis == "dp" for one in chosen):
            _number_copies(places, [other for other in axes if other != "dp"])
    return places


def _number_copies(places: dict[int, dict[Axis, int]], others: Sequence[Axis]) -> None:
    """Copies without a group of their own: the first rank with a place is copy 0, the next copy 1, ..."""
    seen: Counter[tuple[int, ...]] = Counter()
    for rank in sorted(places):
        key = tuple(places[rank].get(axis, 0) for axis in others)
        places[rank]["dp"] = seen[key]
        seen[key] += 1
