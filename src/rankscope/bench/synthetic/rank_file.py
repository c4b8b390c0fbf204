"""One rank's file, in Kineto's order: per thread its ops, then its allocations; then the GPU; then names.

Every section goes through the whole timeline again: more arithmetic, but memory does not grow with the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from rankscope.bench.synthetic import kineto_text as text
from rankscope.bench.synthetic import rank_identity
from rankscope.bench.synthetic.bookkeeping import RankBook, StepBook
from rankscope.bench.synthetic.plan import Plan
from rankscope.bench.synthetic.template import Integers, Template, render
from rankscope.bench.synthetic.timeline import Chunk, Timeline, recorded
from rankscope.bench.synthetic.workload import AUTOGRAD, FIRST_STEP, MAIN, Part

_HOST_SECTIONS = (
    ("ops", AUTOGRAD),
    ("memory", AUTOGRAD),
    ("ops", MAIN),
    ("memory", MAIN),
    ("python", MAIN),
)


class RankFile:
    """Writes the file of one rank and collects its answers."""

    def __init__(self, timeline: Timeline, rank: int, file_name: str) -> None:
        self.timeline, self.rank, self.file_name = timeline, rank, file_name
        self.plan: Plan = timeline.plan
        self.workload = timeline.workload
        self.clock = self.plan.clocks()[rank]
        self.identity = rank_identity.identity_of(self.plan, rank)
        self.book = RankBook()
        self._event_index = 0
        self._bound = self._bind_templates()

    def pieces(self) -> Iterator[str]:
        """The text, in pieces of a few megabytes at most. ``book`` is complete at the end."""
        yield rank_identity.header(self.identity, self.clock.base_time_ns, with_stack=self.plan.with_stack)
        for section, thread in _HOST_SECTIONS:
            at_ops = section == "ops" and thread == MAIN
            yield from self._section(section, thread, self._note_window if at_ops else None)
        self._open_books()
        yield from self._section("gpu", None, self._count_gpu)
        yield from self._section("annotations")
        yield self._tail()

    def _bind_templates(self) -> dict[tuple[str, str], Template]:
        """Templates by name and axis, bound to this rank's process, device and groups."""
        own = self.identity.tokens()
        bound = {}
        for part in (part for parts in self.workload.steps for part in parts):
            tokens, axis = own, ""
            if part.collective:
                axis, kind = part.collective.axis, part.collective.kind
                group = next(group for group in self.plan.groups(axis) if self.rank in group.ranks)
                tokens = own | rank_identity.group_tokens(
                    group, axis, self.rank, kind.metadata_name, kind.dtype
                )
            if (part.template, axis) not in bound:
                bound[part.template, axis] = self.workload.templates[part.template].bound(tokens)
        return bound

    def _template(self, part: Part) -> Template:
        return self._bound[part.template, part.collective.axis if part.collective else ""]

    def _section(
        self,
        name: str,
        thread: str | None = None,
        visit: Callable[[int, Part, Template, Chunk], None] | None = None,
    ) -> Iterator[str]:
        for step, parts in enumerate(self.workload.steps):
            for index, part in enumerate(parts):
                template = self._template(part)
                section = template.sections[name]
                if not section.events or (thread and template.thread != thread):
                    continue
                for chunk in self.timeline.chunks(self.rank, step, index):
                    points = self._points(step, part, template, chunk)
                    bases = self._bases(step, index, template, chunk.first_block)
                    yield render(section, points, bases, template.strides)
                    self._event_index += len(points) * section.indexed
                    if name == "memory":
                        self._watch_memory(template, points, bases)
                    if visit:
                        visit(step, part, template, chunk)

    def _bases(self, step: int, index: int, template: Template, first_block: int) -> Mapping[str, int]:
        bases = dict(self.workload.numbering[step][index], event=self._event_index)
        if first_block:
            for counter, stride in template.strides.items():
                bases[counter] += first_block * stride
        return bases

    def _points(self, step: int, part: Part, template: Template, chunk: Chunk) -> Integers:
        """All points of a template, in its order, in this rank's recorded time."""
        times, rank = self.timeline.steps[step], self.rank
        columns = [chunk.host, chunk.gpu_start, chunk.gpu_end]
        for name in template.given:
            moment = (
                getattr(times, name)[part.collective.ordinal, rank]
                if part.collective
                else getattr(times, name)[rank]
            )
            columns.append(np.full((len(chunk.host), 1), moment, dtype=np.int64))
        return recorded(self.clock, np.concatenate(columns, axis=1))

    def _watch_memory(self, template: Template, points: Integers, bases: Mapping[str, int]) -> None:
        at, change = template.memory.T
        blocks = np.arange(len(points), dtype=np.int64)[:, None]
        allocated = bases["allocated"] + change + blocks * template.strides["allocated"]
        block, which = np.unravel_index(int(allocated.argmax()), allocated.shape)
        if allocated[block, which] > self.book.peak_allocated_bytes:
            self.book.peak_allocated_bytes = int(allocated[block, which])
            self.book.peak_at_ns = int(points[block, at[which]])

    def _open_books(self) -> None:
        """Steps, flops and event counts follow from the plan; collectives are known from the timeline."""
        for step, (parts, times) in enumerate(zip(self.workload.steps, self.timeline.steps, strict=True)):
            rows = np.stack((times.collective_start[:, self.rank], times.collective_end[:, self.rank]))
            start, end = recorded(self.clock, rows).tolist()
            self.book.steps.append(StepBook(FIRST_STEP + step, list(zip(start, end, strict=True))))
            for part in parts:
                template = self._template(part)
                for name, flops in template.flops.items():
                    self.book.flops[name] += part.blocks * flops
                for phase, events in template.phases.items():
                    self.book.phases[phase] += part.blocks * events
                if part.collective:
                    at = part.collective.ordinal
                    self.book.count(part.collective.kind.kernel, "kernel", 1, end[at] - start[at])

    def _count_gpu(self, step: int, part: Part, template: Template, chunk: Chunk) -> None:
        if not len(template.gpu_ns):
            return
        start, end = recorded(self.clock, chunk.gpu_start), recorded(self.clock, chunk.gpu_end)
        is_compute = template.is_compute
        book = self.book.steps[step]
        book.add(start[:, is_compute].ravel(), end[:, is_compute].ravel(), is_compute=True)
        book.add(start[:, ~is_compute].ravel(), end[:, ~is_compute].ravel(), is_compute=False)
        totals = (end - start).sum(axis=0).tolist()
        for name, category, total in zip(template.gpu_names, template.gpu_categories, totals, strict=True):
            self.book.count(name, category, len(start), total)

    def _note_window(self, step: int, part: Part, template: Template, chunk: Chunk) -> None:
        """The ProfilerStep annotation begins inside the prologue and ends with the step."""
        if template.step_point >= 0:
            window = (chunk.host[0, template.step_point], self.timeline.steps[step].step_end[self.rank])
            start, end = recorded(self.clock, np.array(window, dtype=np.int64)).tolist()
            self.book.windows.append({"step": FIRST_STEP + step, "start_ns": start, "dur_ns": end - start})

    def _tail(self) -> str:
        last = int(self.timeline.steps[-1].step_end[self.rank])
        start, end = recorded(self.clock, np.array([0, last + 20_000])).tolist()
        events = rank_identity.tail_events(
            self.identity, start_ns=start, end_ns=end, correlation=self.workload.correlations
        )
        for event in events:
            self.book.phases[event.partition('"ph": "')[2][0]] += 1
        return "".join(events) + text.footer(self.file_name)
