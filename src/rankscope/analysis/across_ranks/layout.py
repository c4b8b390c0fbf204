"""The process groups, the kind of parallelism that each serves, and the position of every rank in the grid."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import Any, Literal

import numpy as np

from rankscope.analysis.core.advice import framework
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.result import Column, Fact, Finding, Result, left_out_note
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows, starts_group, unique_values
from rankscope.timeline.collectives.entries import Collectives, listed_groups
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
# DeepSpeed, FSDP). The first axis with a whole word in the name is chosen. Groups that span several axes, or part of
# one, are 'other'; their names are those of Megatron-core's parallel_state.
_NAME_WORDS: tuple[tuple[Axis, str], ...] = (
    ("world", r"default_?pg|world"),
    (
        "other",
        r"embedding|position|amax|tensor_and\w*|expert_tensor\w*|intra|inter|hierarchical|hybrid|tp_(?:dp|cp|ep|pp)\w*|"
        r"data_modulo\w*|optimizer_instance",
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
_SECOND_CHOICE = re.compile(r"(?i)expert|exp_dp|edp|gloo|_ag$")
"""Groups of an axis that the others are described by only where no other fits: experts', and copies of other groups."""
_MOST_FAMILIES = 6
"""Of an axis that are tried."""
_TOO_GENERAL = re.compile(r"(?:^|[^a-z])(?:parallel|group|model|pg|mesh)(?=$|[^a-z])")


@dataclass(frozen=True)
class ObservedGroup:
    """A process group as recorded in the files."""

    name: str
    description: str
    ranks: tuple[int, ...]
    kinds: Mapping[str, int]
    """Number of collectives of each kind that ran in it, on the recorded ranks."""
    axis: Axis = "other"
    """Of parallelism, once it is recognised."""
    basis: str = "nothing"
    """How the axis was recognised: name, traffic, shape, or nothing."""

    @property
    def is_open(self) -> bool:
        """Whether its axis must still be found."""
        return self.basis == "nothing" and self.size > 1

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def calls(self) -> int:
        return sum(self.kinds.values())

    @property
    def stride(self) -> int | None:
        """The distance between neighbouring ranks; None where it varies."""
        steps = {after - before for before, after in pairwise(self.ranks)}
        return steps.pop() if len(steps) == 1 else None


@dataclass(frozen=True)
class Layout:
    """The position of every rank along the axes of parallelism."""

    world: int
    axes: tuple[Axis, ...]
    """The axes of size 2 or more, outermost first."""
    sizes: Mapping[Axis, int]
    places: Mapping[int, Mapping[Axis, int]]
    """For each rank, its index along each axis."""
    groups: tuple[ObservedGroup, ...]
    notes: tuple[str, ...]
    roles: Mapping[int, str] = field(default_factory=dict)
    """Where a job has several."""

    def work(self, rank: int) -> tuple[str, int]:
        """Ranks that have the same do the same work: they have one role and one pipeline stage."""
        return self.roles.get(rank, ""), self.stage(rank)

    def stage(self, rank: int) -> int:
        """The pipeline stage of a rank; 0 without stages."""
        return self.places.get(rank, {}).get("pp", 0)

    def group_of(self, rank: int, axis: Axis) -> tuple[int, ...]:
        return self._groups_of.get((axis, rank), (rank,))

    @cached_property
    def _groups_of(self) -> dict[tuple[Axis, int], tuple[int, ...]]:
        """By axis and rank, the ranks of its group; of several groups the first."""
        return {(group.axis, rank): group.ranks for group in reversed(self.groups) for rank in group.ranks}


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
    groups = _by_shape(_without_model_groups([_recognised(group, world) for group in groups]))
    notes = []
    guessed = sorted({g.axis for g in groups if g.basis in ("traffic", "shape") and g.axis != "other"})
    if guessed:
        notes.append(
            f"the names of some groups do not state their purpose: {', '.join(guessed)} "
            f"{'are' if len(guessed) > 1 else 'is'} inferred from traffic, size and stride"
        )
    chosen = _one_family_an_axis(groups, world, notes)
    sizes = {axis: max((g.size for g in chosen if g.axis == axis), default=1) for axis in AXES}
    axes = tuple(axis for axis in AXES if sizes[axis] > 1)
    # The axes must multiply to the world size; expert groups lie inside the data-parallel ranks and do not count.
    size = prod(sizes[axis] for axis in axes if axis != "ep")
    if 1 < size < world and world % size == 0 and "dp" not in axes:
        sizes["dp"] = world // size
        notes.append(
            f"no group has all data-parallel copies: dp {sizes['dp']} is inferred from {world} ranks"
        )
        axes = tuple(axis for axis in AXES if axis in axes or axis == "dp")
    elif size != world and axes:
        shown = " x ".join(f"{axis} {sizes[axis]}" for axis in axes)
        notes.append(f"{shown} does not multiply to {world} ranks: some groups are missing or not recognised")
    # Those that the layout uses first: `group_of` takes them.
    used = {id(group) for group in chosen}
    groups = [*chosen, *(group for group in groups if id(group) not in used)]
    return Layout(world, axes, sizes, _places(chosen, axes, world), tuple(groups), tuple(notes))


def _recognised(group: ObservedGroup, world: int) -> ObservedGroup:
    """By its name; else by its traffic: mostly send and recv is a pipeline, mostly all_to_all are experts."""
    if group.basis != "nothing":
        return group
    axis = axis_from_name(group.description)
    if axis is None and not group.name.isdigit():
        axis = axis_from_name(group.name)
    if axis is not None:
        return replace(group, axis=axis, basis="name")
    if group.size == world and group.name == "0":
        return replace(group, axis="world", basis="shape")
    kinds, half = group.kinds, group.calls / 2
    if group.size > 1 and sum(kinds.get(kind, 0) for kind in ("send", "recv", "sendrecv")) > half:
        return replace(group, axis="pp", basis="traffic")
    if group.size > 1 and kinds.get("all_to_all", 0) > half:
        return replace(group, axis="ep", basis="traffic")
    return group


def _by_shape(groups: list[ObservedGroup]) -> list[ObservedGroup]:
    """Of the remaining groups, neighbouring ranks are tensor parallel (one node), and distant ranks data parallel."""
    taken = {group.axis for group in groups}
    open_strides = sorted({group.stride or 0 for group in groups if group.is_open})
    axis_of: dict[int, Axis] = {}
    for stride in open_strides:
        is_tensor = stride == 1 and "tp" not in taken and len(open_strides) > 1
        axis: Axis = "tp" if is_tensor else "dp"
        if axis not in taken:
            axis_of[stride] = axis
            taken.add(axis)
    return [
        replace(group, axis=axis_of[group.stride or 0], basis="shape")
        if group.is_open and (group.stride or 0) in axis_of
        else group
        for group in groups
    ]


def _without_model_groups(groups: list[ObservedGroup]) -> list[ObservedGroup]:
    """Beside TENSOR_MODEL_PARALLEL_GROUP, MODEL_PARALLEL_GROUP spans the tensor-parallel ranks of all stages."""
    of_tensors = [group for group in groups if "tensor" in group.description.lower()]
    if all(group.axis != "tp" for group in of_tensors):
        return groups
    return [
        replace(group, axis="other") if group.axis == "tp" and group not in of_tensors else group
        for group in groups
    ]


def _one_family_an_axis(groups: Sequence[ObservedGroup], world: int, notes: list[str]) -> list[ObservedGroup]:
    """Where several families serve an axis (Megatron has five for data parallelism), those that make up the world.

    Of several such choices, and where there is none, the most used families.
    """
    families: dict[Axis, list[list[ObservedGroup]]] = {}
    for axis in AXES:
        by_shape: dict[tuple[int, int | None, str], list[ObservedGroup]] = {}
        for group in groups:
            if group.axis == axis and group.size > 1:
                by_shape.setdefault((group.size, group.stride, group.description), []).append(group)
        if by_shape:
            families[axis] = sorted(
                by_shape.values(),
                key=lambda family: (
                    _SECOND_CHOICE.search(family[0].description) is not None,
                    -sum(group.calls for group in family),
                    -len(family),
                ),
            )
    chosen = _that_make_the_world(families, world)
    for axis, of_axis in families.items():
        best = chosen.get(axis)
        others = sorted({family[0].description or family[0].name for family in of_axis if family is not best})
        if best and others:
            notes.append(
                f"{axis}: the layout uses {best[0].description or 'groups of one size'}; "
                f"other groups of this axis: {', '.join(others[:3])}"
            )
    return [group for axis in AXES for group in chosen.get(axis, ())]


def _that_make_the_world(
    families: Mapping[Axis, list[list[ObservedGroup]]], world: int
) -> dict[Axis, list[ObservedGroup]]:
    """A family for each axis: sizes that multiply to the world, and no two ranks in one position.

    Without such data-parallel groups, those of the other axes: how often they fit into the world is then inferred.
    """
    counted: list[Axis] = [axis for axis in families if axis != "ep"]
    first = {axis: of_axis[0] for axis, of_axis in families.items()}
    ways = sorted(product(*(range(min(len(families[axis]), _MOST_FAMILIES)) for axis in counted)), key=sum)
    for way in ways:
        choice: dict[Axis, list[ObservedGroup]] = {
            axis: families[axis][number] for axis, number in zip(counted, way, strict=True)
        }
        if prod(family[0].size for family in choice.values()) == world and _are_apart(choice):
            return first | choice
    rest: dict[Axis, list[ObservedGroup]] = {axis: family for axis, family in first.items() if axis != "dp"}
    product_of_rest = prod(family[0].size for axis, family in rest.items() if axis != "ep")
    return rest if "dp" in first and product_of_rest > 1 and world % product_of_rest == 0 else first


def _are_apart(choice: Mapping[Axis, list[ObservedGroup]]) -> bool:
    """Whether no two ranks have the same index in the groups of all axes."""
    at: dict[int, list[tuple[Axis, int]]] = {}
    for axis, family in choice.items():
        for group in family:
            for number, rank in enumerate(group.ranks):
                at.setdefault(rank, []).append((axis, number))
    whole = [tuple(position) for position in at.values() if len(position) == len(choice)]
    return len(set(whole)) == len(whole)


def _places(
    chosen: Sequence[ObservedGroup], axes: tuple[Axis, ...], world: int
) -> dict[int, dict[Axis, int]]:
    """The index of a rank in its group is its index along the axis."""
    places: dict[int, dict[Axis, int]] = {rank: {} for rank in range(world)}
    for group in chosen:
        for number, rank in enumerate(group.ranks):
            places.setdefault(rank, {}).setdefault(group.axis, number)
    if "dp" in axes and not any(group.axis == "dp" for group in chosen):
        # No group lists the data-parallel copies: by rank among equal positions on the other axes.
        seen: Counter[tuple[int, ...]] = Counter()
        for rank in sorted(places):
            key = tuple(places[rank].get(axis, 0) for axis in axes if axis != "dp")
            places[rank]["dp"] = seen[key]
            seen[key] += 1
    return places


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


def stage_chains(rows: Collectives) -> list[tuple[int, ...]]:
    """The ranks of each pipeline in the order of its stages, from who sends to whom; none where the messages are not
    those of pipelines.

    The ranks that exchange messages form chains of equal length, or rings in which messages go both ways (the last
    stage of interleaved ones sends to the first). Of each, only the first stage begins a step with a send: in other
    rings (sequence parallelism) and exchanges, several do or none.
    """
    sent = {*zip(rows.rank[rows.sends].tolist(), rows.rank[rows.recvs].tolist(), strict=True)}
    neighbours: dict[int, set[int]] = {}
    for one, other in sent:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    begins = _begins_with_send(rows)
    chains = [
        _walk(rank, first_to, neighbours)
        for rank, first_to in sorted(begins.items())
        if len(neighbours[rank]) == 1 or all((other, rank) in sent for other in neighbours[rank])
    ]
    whole = sorted(rank for chain in chains for rank in chain) == sorted(neighbours)
    equal = len({len(chain) for chain in chains}) == 1
    return chains if whole and equal and len(chains) == len(begins) else []


def _walk(first: int, second: int, neighbours: Mapping[int, Set[int]]) -> tuple[int, ...]:
    """Along a chain or a ring, until it ends, closes or branches."""
    chain = [first, second]
    while len(neighbours[chain[-1]]) == 2:
        (further,) = neighbours[chain[-1]] - {chain[-2]}
        if further == first:
            break
        chain.append(further)
    return tuple(chain)


def _begins_with_send(rows: Collectives) -> dict[int, int]:
    """The ranks that begin most steps with a send, and to whom; of all that was recorded where there are no steps."""
    messages = np.unique(np.concatenate([rows.sends, rows.recvs]))
    time = np.where(rows.call_start[messages] != NONE, rows.call_start[messages], rows.start[messages])
    messages = messages[np.lexsort((time, rows.step[messages], rows.rank[messages]))]
    first = messages[starts_group([rows.rank[messages], rows.step[messages]])]
    is_send = rows.kind[first] == KINDS.index("send")
    only_sends = np.array([all(each.is_send for each in batch) for batch in rows.batches] + [False])
    is_send |= only_sends[rows.batch[first]]
    to = dict(zip(rows.sends.tolist(), rows.rank[rows.recvs].tolist(), strict=True))
    begins = {}
    for rank in unique_values(rows.rank[first]).tolist():
        mine = first[rows.rank[first] == rank]
        sends = is_send[rows.rank[first] == rank]
        if 2 * sends.sum() > len(mine):
            begins[rank] = Counter(to[entry] for entry in mine[sends].tolist()).most_common(1)[0][0]
    return begins


@once_per_run
def layout_of(run: Run, scope: Scope) -> Layout:
    """The layout of the whole run, from the groups in the file headers and in the collectives."""
    rows = run.collectives
    kinds: dict[tuple[str, tuple[int, ...]], Counter[str]] = {}
    described: dict[tuple[str, tuple[int, ...]], str] = {}
    listed = [group for entry in run.timelines for group in listed_groups(entry)]
    for group in (*listed, *rows.groups):
        if group.ranks:
            key = (group.name, tuple(group.ranks))
            kinds.setdefault(key, Counter())
            described[key] = described.get(key) or group.description
    pairs, pair = number_rows([rows.group, rows.kind])
    counts = np.bincount(pair, minlength=len(pairs))
    for (number, kind), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        group = rows.groups[number]
        if group.ranks:
            kinds[group.name, tuple(group.ranks)][KINDS[kind]] += count
    observed = [
        ObservedGroup(name, described[name, ranks], ranks, dict(counted))
        for (name, ranks), counted in kinds.items()
    ]
    sizes = [entry.world_size for entry in run.timelines]
    world = max([*sizes, max(run.ranks, default=0) + 1])
    if len(rows.sends) and not any(_recognised(group, world).axis == "pp" for group in observed):
        observed += [
            ObservedGroup("messages", "", chain, {}, "pp", "traffic") for chain in stage_chains(rows)
        ]
    return replace(infer_layout(observed, world), roles=run.roles)


def layout(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The grid of ranks; with --by rank one row for each rank."""
    found = layout_of(run, Scope())
    rows, columns = _grid(found)
    if by == "rank":
        columns = (Column("rank"), *(Column(axis, help=TITLES[axis]) for axis in found.axes))
        rows = [
            {"rank": rank, **{axis: at.get(axis) for axis in found.axes}}
            for rank, at in sorted(found.places.items())
        ]
    notes = _notes(run, found)
    missing = sorted(set(range(found.world)) - set(run.ranks))
    if missing:
        notes.append(f"no file for {rank_words(missing)}")
    ranks = f"{found.world} rank{'s' * (found.world != 1)}"
    shape = " x ".join(f"{axis} {found.sizes[axis]}" for axis in found.axes)
    facts = tuple(Fact("axis", TITLES[axis], "", axis) for axis in found.axes)
    finding = Finding("ok", f"{ranks}: {shape}", facts=facts)
    if not found.axes:
        counts = Counter(group.axis for group in found.groups)
        parts = counts if len(counts) == 1 else [f"{count} {axis}" for axis, count in counts.items()]
        groups = f"{counts.total()} process group{'s' * (counts.total() != 1)}: {', '.join(parts)}"
        advice = "No group was recognised as pp, dp, ep, cp or tp."
        finding = Finding("ok", f"{ranks}, {groups}", advice=advice)
    if not found.groups:  # unknown groups are not the same as one group: show nothing
        return Result("layout", "Layout of the ranks", scope.window, columns, [], notes=tuple(notes))
    return Result("layout", "Layout of the ranks", scope.window, columns, rows, (finding,), tuple(notes))


def _notes(run: Run, found: Layout) -> list[str]:
    recorded = ": torch 2.3 and later record them in the header" if framework(run) == "torch" else ""
    return [*found.notes, *([] if found.groups else [f"no process groups in the files{recorded}"])]


def _grid(ranks_layout: Layout) -> tuple[list[dict[str, Any]], tuple[Column, ...]]:
    """The innermost axis in columns, the others in rows; a cell holds one rank, or several at the same position."""
    inner: Axis | None = next(
        (axis for axis in reversed(AXES) if axis in ranks_layout.axes and axis != "ep"), None
    )
    if inner is None:
        return [{"ranks": as_ranges(sorted(ranks_layout.places))}], (Column("ranks"),)
    outer = [axis for axis in ranks_layout.axes if axis not in (inner, "ep")]
    cells: dict[tuple[int | None, ...], dict[int, list[int]]] = {}
    for rank, at in sorted(ranks_layout.places.items()):
        if inner in at:
            row = cells.setdefault(tuple(at.get(axis) for axis in outer), {})
            row.setdefault(at[inner], []).append(rank)
    width = ranks_layout.sizes[inner]
    rows = list[dict[str, Any]]()
    for key, row in sorted(cells.items(), key=lambda pair: tuple(-1 if x is None else x for x in pair[0])):
        shown = {i: ranks[0] if len(ranks) == 1 else as_ranges(ranks) for i, ranks in row.items()}
        places = {f"{inner}_{i}": shown.get(i) for i in range(width)}
        rows.append({**dict(zip(outer, key, strict=True)), **places})
    columns = (
        *(Column(axis, help=TITLES[axis], title=axis.upper()) for axis in outer),
        *(Column(f"{inner}_{i}", help=TITLES[inner], title=f"{inner} {i}") for i in range(width)),
    )
    return rows, columns


def groups(run: Run, scope: Scope, by: str | None = None) -> Result:
    """The process groups; groups of equal axis, size, stride and description share a row."""
    found, rows = layout_of(run, Scope()), run.collectives
    inside = scope.mask(rows.step, rows.rank)
    counts = np.bincount(rows.group[inside], minlength=len(rows.groups))
    times = sums_by(rows.group[inside], rows.duration[inside], len(rows.groups))
    numbers = defaultdict[tuple[str, tuple[int, ...]], list[int]](list)
    for number, group in enumerate(rows.groups):
        numbers[group.name, tuple(group.ranks or ())].append(number)
    families: dict[tuple[Any, ...], list[ObservedGroup]] = {}
    for observed in found.groups:
        family = (observed.axis, observed.size, observed.stride, observed.basis, observed.description)
        families.setdefault(family, []).append(observed)
    table = []
    for (axis, size, stride, basis, description), members in families.items():
        kinds: Counter[str] = Counter()
        for member in members:
            kinds.update(member.kinds)
        mine = [number for member in members for number in numbers[member.name, member.ranks]]
        table.append(
            {
                "axis": axis,
                "groups": len(members),
                "size": size,
                "stride": stride if size > 1 else None,
                "basis": basis,
                "collectives": int(counts[mine].sum()),
                "time_ns": int(times[mine].sum()),
                "kinds": ", ".join(f"{kind} {number}" for kind, number in kinds.most_common()) or None,
                "description": description or None,
            }
        )
    order = ("world", *AXES, "other")
    table.sort(key=lambda row: (order.index(row["axis"]), -row["collectives"], -row["size"]))
    notes = _notes(run, found)
    unnamed = sum(int(counts[i]) for i, group in enumerate(rows.groups) if not group.ranks)
    if unnamed:
        notes.append(left_out_note(f"{unnamed:,} collectives whose process group is not known"))
    return Result("layout.groups", "Process groups", scope.window, GROUP_COLUMNS, table, notes=tuple(notes))
