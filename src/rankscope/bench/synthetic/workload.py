"""The layers, collectives and fillers that give the requested number of events, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankscope.bench.synthetic import layer_work, step_work
from rankscope.bench.synthetic.plan import Plan
from rankscope.bench.synthetic.rank_identity import identity_of, tail_events
from rankscope.bench.synthetic.step_work import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER, CollectiveKind
from rankscope.bench.synthetic.template import Template
from rankscope.bench.synthetic.tree_compiler import compile_tree
from rankscope.errors import UsageError

MAIN, AUTOGRAD = "main_tid", "autograd_tid"
KINDS = {kind.kind: kind for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE)}
FIRST_STEP = 2  # as after one idle and one warm-up step
KERNEL_GAP_NS = 900
_MOST_BUCKETS = 8
_ACTIVATION_BUDGET = 96 * 2**30  # of the H200's 140 GiB
_WEIGHTS_BYTES = 3 * 2**30
_BUS_BYTES_PER_NS = 300  # sizes are chosen for this bandwidth, whatever the plan's is
_FIRST_COUNTERS = {"external": 1, "correlation": 7001, "python": 1, "sequence": 1170, "flow": 1}
_FIRST_ADDRESS = 140_264_135_983_104
_FIRST_COLLECTIVE = 41


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A collective that every rank runs once per step, in its own group of the axis."""

    kind: CollectiveKind
    axis: str
    ordinal: int
    """Its number in the step."""
    axis_ordinal: int
    """Its number among those of its axis, which NCCL's sequence number counts."""
    group_size: int
    elements: int
    """Per rank: its input to an all_gather, its output of a reduce_scatter, or the buffer of an all_reduce."""
    latency_ns: int
    bus_gb_s: float

    @property
    def total_elements(self) -> int:
        return self.elements if self.kind is ALL_REDUCE else self.elements * self.group_size

    @property
    def nbytes(self) -> int:
        """S in the convention of nccl-tests."""
        return self.total_elements * self.kind.element_bytes

    @property
    def in_elements(self) -> int:
        return self.elements if self.kind is ALL_GATHER else self.total_elements

    @property
    def out_elements(self) -> int:
        return self.elements if self.kind is REDUCE_SCATTER else self.total_elements

    @property
    def transfer_ns(self) -> int:
        """Shortest transfer: the latency, and the bus traffic of a ring."""
        if not self.bus_gb_s:
            return self.latency_ns
        traffic = self.nbytes * _bus_factor(self.kind, self.group_size)
        return self.latency_ns + int(traffic // (self.group_size * self.bus_gb_s))


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a step: some blocks of one template, one after another on one thread."""

    template: str
    blocks: int = 1
    first_layer: int = 0
    waits_for: tuple[int, ...] = ()
    """Ordinals of the collectives that must have ended before its first kernel starts."""
    collective: Collective | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What runs in which order, and how it is numbered; the same for every rank."""

    templates: Mapping[str, Template]
    layers: int
    steps: tuple[tuple[Part, ...], ...]
    numbering: tuple[tuple[Mapping[str, int], ...], ...]
    """By step and part: the value of each counter at the part's first block."""
    peak_allocated_bytes: int
    reserved_bytes: int
    correlations: int
    """The next correlation id after all steps."""

    def collectives(self) -> list[Collective]:
        """The collectives of one step; all steps have the same."""
        return [part.collective for part in self.steps[0] if part.collective]


def _bus_factor(kind: CollectiveKind, group_size: int) -> int:
    """nccl-tests' busbw factor times the group's size."""
    return (2 if kind is ALL_REDUCE else 1) * (group_size - 1)


def _bucket_elements(kind: CollectiveKind, group_size: int, wanted_ns: int) -> int:
    """Elements per rank whose transfer takes about this long."""
    nbytes = wanted_ns * _BUS_BYTES_PER_NS * group_size // _bus_factor(kind, group_size)
    share = 1 if kind is ALL_REDUCE else group_size
    elements = nbytes // (kind.element_bytes * share)
    return min(max(elements // 1024 * 1024, 1024), 2**28)


def _templates(unit: int, *, with_stack: bool) -> dict[str, Template]:
    buffers = layer_work.Buffers(unit)

    templates = {
        "prologue": compile_tree(step_work.prologue(), thread=MAIN, with_stack=with_stack),
        "forward": compile_tree(
            layer_work.forward_layer(buffers), thread=MAIN, with_stack=with_stack, layer_stride=1
        ),
        "loss": compile_tree(step_work.loss(), thread=MAIN, with_stack=with_stack),
        "backward": compile_tree(
            layer_work.backward_layer(buffers), thread=AUTOGRAD, with_stack=with_stack, layer_stride=-1
        ),
        "epilogue": compile_tree(step_work.epilogue(), thread=MAIN, with_stack=with_stack),
        "filler": compile_tree(step_work.filler(), thread=MAIN, with_stack=with_stack),
    }
    for kind in KINDS.values():
        for thread in (MAIN, AUTOGRAD):
            tree = step_work.collective(kind)
            templates[f"{kind.kind}.{thread}"] = compile_tree(tree, thread=thread, with_stack=with_stack)
    return templates


class _StepBuilder:
    """Arranges the parts of a step; collectives overlap with compute as far as the plan's groups allow."""

    def __init__(self, plan: Plan, templates: Mapping[str, Template], layers: int) -> None:
        self.plan, self.templates = plan, templates
        self.parts: list[Part] = [Part(template="prologue")]
        self.ordinals = 0
        self.axis_ordinals: Counter[str] = Counter()
        buckets = min(layers, _MOST_BUCKETS)
        sizes = [layers // buckets + (i < layers % buckets) for i in range(buckets)]
        tensor_parallel = plan.tensor_parallel is not None
        self._forward(sizes, tensor_parallel=tensor_parallel)
        self._backward(list(reversed(sizes)), layers, tensor_parallel=tensor_parallel)

    def _gpu_ns(self, template: str, blocks: int) -> int:
        ns = self.templates[template].gpu_ns
        return blocks * int(ns.sum() + KERNEL_GAP_NS * len(ns))

    def _collective(self, kind: CollectiveKind, axis: str, thread: str, wanted_ns: int) -> list[int]:
        """Add a collective and return its ordinal; a group of one rank has none."""
        size = len(self.plan.groups(axis)[0].ranks)
        if size == 1:
            return []
        collective = Collective(
            kind=kind,
            axis=axis,
            ordinal=self.ordinals,
            axis_ordinal=self.axis_ordinals[axis],
            group_size=size,
            elements=_bucket_elements(kind, size, wanted_ns),
            latency_ns=self.plan.latency_ns,
            bus_gb_s=self.plan.bus_gb_s,
        )
        self.parts.append(Part(template=f"{kind.kind}.{thread}", collective=collective))
        self.ordinals += 1
        self.axis_ordinals[axis] += 1
        return [collective.ordinal]

    def _forward(self, sizes: list[int], *, tensor_parallel: bool) -> None:
        """Tensor parallel: each bucket waits for the previous collective. Otherwise two buckets are in flight, but
        all wait for the first: a late rank is visible there once, and afterwards the ranks run in step."""
        started: list[int] = []
        layer = 0
        for bucket, size in enumerate(sizes):
            behind = 1 if tensor_parallel or bucket == 1 else 2
            waits_for = tuple(started[bucket - behind : bucket - behind + 1]) if bucket >= behind else ()
            self.parts.append(Part(template="forward", blocks=size, first_layer=layer, waits_for=waits_for))
            layer += size
            gpu_ns = self._gpu_ns("forward", size)
            if tensor_parallel:
                kind = (ALL_GATHER, REDUCE_SCATTER)[bucket % 2]
                started += self._collective(kind, "tensor", MAIN, gpu_ns * 15 // 100)
            else:
                started += self._collective(ALL_GATHER, "world", MAIN, gpu_ns * 60 // 100)
        all_at_once = tensor_parallel or len(sizes) == 1
        self.parts.append(Part(template="loss", waits_for=tuple(started[-1:]) if all_at_once else ()))

    def _backward(self, sizes: list[int], layers: int, *, tensor_parallel: bool) -> None:
        """Gradients are reduced while the next bucket is computed; the optimizer waits for all of them."""
        layer = layers - 1
        kind, axis = (ALL_REDUCE, "data") if tensor_parallel else (REDUCE_SCATTER, "world")
        for size in sizes:
            self.parts.append(Part(template="backward", blocks=size, first_layer=layer))
            layer -= size
            self._collective(kind, axis, AUTOGRAD, self._gpu_ns("backward", size) * 55 // 100)
        self._collective(ALL_REDUCE, axis, MAIN, 1)
        self.parts.append(Part(template="epilogue", waits_for=tuple(range(self.ordinals))))


def build(plan: Plan) -> Workload:
    """Choose the size of the model so that each file has exactly the requested number of events."""
    templates = _templates(layer_work.FULL_UNIT, with_stack=plan.with_stack)
    tail = len(tail_events(identity_of(plan, 0), start_ns=0, end_ns=0, correlation=0))
    shortest, rest = divmod(plan.events_per_rank - tail, plan.steps)
    layers = _layers_that_fit(plan, templates, shortest)
    if layers == 0:
        least = _events(templates, _StepBuilder(plan, templates, 1).parts)
        raise UsageError(
            f"{plan.events_per_rank} events a rank are too few for {plan.steps} steps",
            why=f"One layer, its collectives and the optimizer take {least} events a step.",
            hint=f"Give --events {least * plan.steps + tail} or more, or fewer --steps",
        )
    unit = _activation_bytes(layers)
    if unit < layer_work.FULL_UNIT:
        templates = _templates(unit, with_stack=plan.with_stack)
    parts = _StepBuilder(plan, templates, layers).parts
    used = _events(templates, parts)
    steps = []
    for step in range(plan.steps):
        missing = shortest + (step < rest) - used
        steps.append((*parts, Part(template="filler", blocks=missing)) if missing else tuple(parts))
    return _numbered(templates, layers, tuple(steps))


def _events(templates: Mapping[str, Template], parts: Sequence[Part]) -> int:
    return sum(part.blocks * templates[part.template].events for part in parts)


def _layers_that_fit(plan: Plan, templates: Mapping[str, Template], events: int) -> int:
    def step_events(layers: int) -> int:
        return _events(templates, _StepBuilder(plan, templates, layers).parts)

    layers = 0
    while layers < _MOST_BUCKETS and step_events(layers + 1) <= events:
        layers += 1
    if layers == _MOST_BUCKETS:  # from here on a layer adds its own events and no collective
        layer = templates["forward"].events + templates["backward"].events
        layers += (events - step_events(layers)) // layer
    return layers


def _activation_bytes(layers: int) -> int:
    """The unit of a layer's buffers: its real size, or less so that all layers fit into the GPU's memory."""
    full = layer_work.FULL_UNIT
    units = -(-layer_work.Buffers(full).layer_bytes // full)
    return min(full, max(_ACTIVATION_BUDGET // (layers * units) // 1024 * 1024, 1024))


def _numbered(
    templates: Mapping[str, Template], layers: int, steps: tuple[tuple[Part, ...], ...]
) -> Workload:
    """Compute the first values of every part's counters."""
    running = dict(_FIRST_COUNTERS, allocated=_WEIGHTS_BYTES)
    collectives = Counter(part.collective.axis for part in steps[0] if part.collective)
    peak = _WEIGHTS_BYTES
    numbering: list[list[dict[str, int]]] = []
    for step, parts in enumerate(steps):
        step_frame = running["python"]
        numbering.append([])
        for part in parts:
            template = templates[part.template]
            strides = template.strides
            layer = step * layers + part.first_layer
            bases = {
                **running,
                "step": FIRST_STEP + step,
                "step_frame": step_frame,
                "layer": part.first_layer,
                "sequence": _FIRST_COUNTERS["sequence"] + layer * abs(strides["sequence"]),
                "flow": _FIRST_COUNTERS["flow"] + layer * abs(strides["flow"]),
                "address": _FIRST_ADDRESS + (1 + part.first_layer) * abs(strides["address"]),
            }
            if part.collective:
                of_axis = step * collectives[part.collective.axis] + part.collective.axis_ordinal
                bases["collective_sequence"] = _FIRST_COLLECTIVE + of_axis
                bases["in_nelems"] = part.collective.in_elements
                bases["out_nelems"] = part.collective.out_elements
            if len(template.memory):
                ends = (0, (part.blocks - 1) * strides["allocated"])
                peak = max(peak, running["allocated"] + max(ends) + int(template.memory[:, 1].max()))
            numbering[-1].append(bases)
            for counter in ("external", "correlation", "python", "allocated"):
                running[counter] += part.blocks * strides[counter]
    reserved = -(-peak // 2**21) * 2**21
    for bases in (bases for step_bases in numbering for bases in step_bases):
        bases["reserved"] = reserved
    return Workload(
        templates=templates,
        layers=layers,
        steps=steps,
        numbering=tuple(tuple(step_bases) for step_bases in numbering),
        peak_allocated_bytes=peak,
        reserved_bytes=reserved,
        correlations=running["correlation"],
    )
