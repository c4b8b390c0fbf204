"""Compile a tree of work into a template: every event becomes text with slots, every moment a point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rankscope.bench.synthetic import kineto_text as text
from rankscope.bench.synthetic.kineto_text import Count, Event, Piece, Rate, Span, Time
from rankscope.bench.synthetic.template import SECTIONS, Integers, Section, Template
from rankscope.bench.synthetic.work_tree import (
    Call,
    CollectiveLaunch,
    Frame,
    GpuWork,
    Launch,
    Memory,
    Node,
    Op,
)

COMPUTE_STREAM = 7
# Provisional numbers of points that are not host points; _resolve gives their final places.
_GPU_START, _GPU_END, _GIVEN = 10**6, 2 * 10**6, 3 * 10**6
# Shortest times on the host, in ns: before an op, after its last child, before a CUDA call, a CUDA call, …
_OP_LEAD, _OP_TAIL, _CALL_LEAD, _CALL, _FRAME, _ALLOCATION = 1_300, 1_700, 900, 4_300, 150, 350
_ADDRESSES_PER_LAYER = 64
_BYTES_PER_ADDRESS = 1 << 28


def compile_tree(nodes: Sequence[Node], *, thread: str, with_stack: bool, layer_stride: int = 0) -> Template:
    """Compile a block. ``layer_stride``: +1 if blocks go up the layers, -1 if down (backward), 0 for no layer."""
    builder = _Builder(thread=text.token(thread), with_stack=with_stack)
    for node in nodes:
        builder.add(node)
    return builder.template(thread, layer_stride)


@dataclass(kw_only=True)
class _Builder:
    thread: str
    with_stack: bool
    events: dict[str, list[Event]] = field(default_factory=lambda: {name: [] for name in SECTIONS})
    indexed: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    increments: list[int] = field(default_factory=list)
    launches: list[tuple[int, GpuWork]] = field(default_factory=list)
    pauses: dict[str, int] = field(default_factory=dict)
    memory: list[tuple[int, int]] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    step_point: int = -1
    sync_point: int = -1
    collective_point: int = -1
    externals: int = 0
    sequences: int = 0
    correlations: int = 0
    frames: int = 0
    open_ops: list[int] = field(default_factory=list)
    open_frames: list[int] = field(default_factory=list)

    def add(self, node: Node) -> None:
        if isinstance(node, Op):
            self._op(node)
        elif isinstance(node, Frame):
            self._frame(node)
        elif isinstance(node, Launch):
            self._launch(node)
        elif isinstance(node, CollectiveLaunch):
            self._collective(node)
        elif isinstance(node, Call):
            self._call(node)
        elif isinstance(node, Memory):
            self._memory(node)
        else:
            end = self._point(node.ns)
            if node.label:
                self.pauses[node.label] = end

    def _point(self, ns: int) -> int:
        self.increments.append(ns)
        return len(self.increments) - 1

    def _outside(self, name: str) -> int:
        if name not in self.given:
            self.given.append(name)
        return _GIVEN + self.given.index(name)

    def _event(self, section: str, phase: str, event: Event) -> None:
        self.events[section].append(event)
        self.phases[phase] += 1

    def _index(self, section: str) -> Count:
        self.indexed[section] += 1
        return Count("event", self.indexed[section] - 1)

    def _op(self, node: Op) -> None:
        external, index = self.externals, self._index("ops")
        self.externals += 1
        start = self._point(_OP_LEAD)
        if node.lasts_for_step:
            self.step_point = start
        own: Event = []  # its text precedes that of its children, but its end is known only after them
        self._event("ops", "X", own)
        sequence = Count("sequence", node.sequence) if node.sequence >= 0 else None
        self.sequences = max(self.sequences, node.sequence + 1)
        if node.arrow:
            phase = "f" if node.role == "backward" else "s"
            arrow = text.flow(
                phase, "fwdbwd", Count("flow", node.sequence), text.PID, self.thread, Time(start)
            )
            self._event("ops", phase, arrow)
        # GPU work belongs to the innermost op, never to an annotation.
        self.open_ops.append(
            external if node.category == "cpu_op" or not self.open_ops else self.open_ops[-1]
        )
        first_launch = len(self.launches)
        for child in node.children:
            self.add(child)
        self.open_ops.pop()
        end = self._outside("step_end") if node.lasts_for_step else self._point(_OP_TAIL)
        args = text.op_args(Count("external", external), node.inputs, sequence, node.role, index)
        own += text.complete(
            node.category, node.name, text.PID, self.thread, Time(start), Span(start, end), args
        )
        if node.flops:
            self.flops["".join(map(str, node.name))] += node.flops
        if node.on_gpu:
            self._gpu_annotation(node, external, first_launch)

    def _gpu_annotation(self, node: Op, external: int, first_launch: int) -> None:
        """Kineto records it from 1 ns before the first GPU event to 1 ns after the last."""
        stream = str(COMPUTE_STREAM)
        if self.collective_point >= 0:
            first, last = self._outside("collective_start"), self._outside("collective_end")
            stream = text.token("stream")
        elif node.lasts_for_step:
            first, last = _GPU_START, self._outside("forward_end")
        else:
            first, last = _GPU_START + first_launch, _GPU_END + len(self.launches) - 1
        event = text.complete(
            "gpu_user_annotation",
            node.name,
            text.DEVICE,
            stream,
            Time(first, -1),
            Span(first, last, 2),
            ['"External id": ', Count("external", external)],
        )
        self._event("annotations", "X", event)

    def _frame(self, node: Frame) -> None:
        if not self.with_stack:
            for child in node.children:
                self.add(child)
            return
        identity, index = self.frames, self._index("python")
        self.frames += 1
        start = self._point(_FRAME)
        own: Event = []
        self._event("python", "X", own)
        self.open_frames.append(identity)
        for child in node.children:
            self.add(child)
        self.open_frames.pop()
        end = self._outside("step_end") if node.lasts_for_step else self._point(_FRAME)
        parent: Count | None = Count("step_frame")
        if self.open_frames:
            parent = Count("python", self.open_frames[-1])
        elif node.lasts_for_step:
            parent = None
        module = Count("layer") if node.is_module else None
        args = text.python_args(parent, Count("python", identity), module, index)
        own += text.complete(
            "python_function", node.name, text.PID, self.thread, Time(start), Span(start, end), args
        )

    def _runtime(self, name: str, cbid: int, category: str, *, launches: bool) -> tuple[int, list[Event]]:
        """A CUDA call and its flow, which starts at a call that starts GPU work and ends at one that does not."""
        start, end = self._point(_CALL_LEAD), self._point(_CALL)
        correlation = Count("correlation", self.correlations)
        args = text.runtime_args(Count("external", self.open_ops[-1]), cbid, correlation)
        call = text.complete(category, [name], text.PID, self.thread, Time(start), Span(start, end), args)
        phase = "s" if launches else "f"
        arrow = text.flow(phase, "ac2g", correlation, text.PID, self.thread, Time(start))
        self.correlations += 1
        self.phases.update(("X", phase))
        return start, [call, arrow]

    def _launch(self, node: Launch) -> None:
        correlation, work = Count("correlation", self.correlations), node.work
        at, call = self._runtime(node.call, node.cbid, node.category, launches=True)
        first, last = _GPU_START + len(self.launches), _GPU_END + len(self.launches)
        external, stream = Count("external", self.open_ops[-1]), str(COMPUTE_STREAM)
        if work.category == "kernel":
            args = text.kernel_args(stream, external, correlation, work.shape)
        else:
            args = text.copy_args(stream, external, correlation, Rate(work.nbytes, first, last))
        self._gpu_event(work.category, work.name, stream, first, last, args, correlation)
        self.events["gpu"] += call
        self.launches.append((at, work))

    def _collective(self, node: CollectiveLaunch) -> None:
        correlation, stream = Count("correlation", self.correlations), text.token("stream")
        at, call = self._runtime("cudaLaunchKernelExC", 430, "cuda_runtime", launches=True)
        first, last = self._outside("collective_start"), self._outside("collective_end")
        args = text.kernel_args(stream, Count("external", self.open_ops[-1]), correlation, node.shape)
        args += [
            f', "Collective name": "{text.token("collective")}", "In msg nelems": ',
            Count("in_nelems"),
            ', "Out msg nelems": ',
            Count("out_nelems"),
            f', "Group size": {text.token("group_size")}, "dtype": "{text.token("dtype")}", '
            '"In split size": "[]", "Out split size": "[]", '
            f'"Process Group Name": "{text.token("group_name")}", '
            f'"Process Group Description": "{text.token("group_description")}", '
            f'"Process Group Ranks": "{text.token("group_ranks")}", "Seq": ',
            Count("collective_sequence"),
        ]
        self._gpu_event("kernel", node.name, stream, first, last, args, correlation)
        self.events["gpu"] += call
        self.collective_point = at

    def _gpu_event(
        self, category: str, name: str, stream: str, first: int, last: int, args: list[Piece], flow: Count
    ) -> None:
        event = text.complete(category, [name], text.DEVICE, stream, Time(first), Span(first, last), args)
        self._event("gpu", "X", event)
        self._event("gpu", "f", text.flow("f", "ac2g", flow, text.DEVICE, stream, Time(first)))

    def _call(self, node: Call) -> None:
        start, events = self._runtime(node.name, node.cbid, "cuda_runtime", launches=False)
        self.events["gpu"] += events
        if node.waits_for_gpu:
            self.sync_point = start + 1

    def _memory(self, node: Memory) -> None:
        point = self._point(_ALLOCATION)
        total = (self.memory[-1][1] if self.memory else 0) + node.nbytes
        self.memory.append((point, total))
        event = text.memory_instant(
            self.thread,
            point,
            node.nbytes,
            Count("allocated", total),
            Count("address", node.slot * _BYTES_PER_ADDRESS),
            self._index("memory"),
        )
        self._event("memory", "i", event)

    def template(self, thread: str, layer_stride: int) -> Template:
        works = [work for _, work in self.launches]
        sections = {name: self._section(events, self.indexed[name]) for name, events in self.events.items()}
        return Template(
            sections=sections,
            thread=thread,
            increments=np.array(self.increments, dtype=np.int64),
            launch_points=np.array([at for at, _ in self.launches], dtype=np.int64),
            gpu_ns=np.array([work.ns for work in works], dtype=np.int64),
            gpu_names=[work.name for work in works],
            gpu_categories=[work.category for work in works],
            pauses=self.pauses,
            gpu_labels={work.label: i for i, work in enumerate(works) if work.label},
            step_point=self.step_point,
            sync_point=self.sync_point,
            collective_point=self.collective_point,
            strides={
                "external": self.externals,
                "correlation": self.correlations,
                "python": self.frames,
                "sequence": layer_stride * self.sequences,
                "flow": layer_stride * self.sequences,
                "layer": layer_stride,
                "address": layer_stride * _ADDRESSES_PER_LAYER * _BYTES_PER_ADDRESS,
                "allocated": self.memory[-1][1] if self.memory else 0,
            },
            memory=np.array(self.memory, dtype=np.int64).reshape(-1, 2),
            flops=self.flops,
            phases=self.phases,
            given=tuple(self.given),
        )

    def _resolve(self, point: int) -> int:
        """The place of a point in a row: host points, GPU starts, GPU ends, then points given from outside."""
        hosts, launches = len(self.increments), len(self.launches)
        if point >= _GIVEN:
            return hosts + 2 * launches + point - _GIVEN
        if point >= _GPU_END:
            return hosts + launches + point - _GPU_END
        return hosts + point - _GPU_START if point >= _GPU_START else point

    def _section(self, events: Sequence[Event], indexed: int) -> Section:
        form: list[str] = []
        times: list[tuple[int, ...]] = []
        spans: list[tuple[int, ...]] = []
        rates: list[tuple[int, ...]] = []
        counters: dict[str, list[tuple[int, ...]]] = {}
        column = 0
        for piece in (piece for event in events for piece in event):
            if isinstance(piece, str):
                form.append(piece.replace("%", "%%"))
            elif isinstance(piece, Count):
                form.append("%d")
                counters.setdefault(piece.counter, []).append((column, piece.offset))
                column += 1
            elif isinstance(piece, Rate):
                form.append("%d.%09d")
                rates.append((column, piece.nbytes, self._resolve(piece.start), self._resolve(piece.end)))
                column += 2
            else:
                form.append("%d.%03d")
                if isinstance(piece, Time):
                    times.append((column, self._resolve(piece.point), piece.shift_ns))
                else:
                    first, last = self._resolve(piece.start), self._resolve(piece.end)
                    spans.append((column, first, last, piece.extra_ns))
                column += 2
        return Section(
            form="".join(form),
            columns=column,
            times=_rows(times, 3),
            spans=_rows(spans, 4),
            rates=_rows(rates, 4),
            counters={name: _rows(rows, 2) for name, rows in counters.items()},
            events=len(events),
            indexed=indexed,
        )


def _rows(rows: Sequence[tuple[int, ...]], width: int) -> Integers:
    """The transposed rows: one array per field."""
    fields: Integers = np.array(rows, dtype=np.int64).reshape(-1, width).T
    return fields
