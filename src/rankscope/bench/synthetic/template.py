"""The text of a block of work as one %-template, which numpy fills for many blocks at once.

A block is a row of host points (moments in time order) and, for each section of the file, one format string with
its points, spans and counters. tree_compiler makes templates from trees of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rankscope.bench.synthetic import kineto_text as text

Integers = npt.NDArray[np.int64]

SECTIONS = ("ops", "memory", "python", "gpu", "annotations")


@dataclass(frozen=True, kw_only=True)
class Section:
    """The text one block adds to one section of the file."""

    form: str
    columns: int
    times: Integers
    """Rows: column, point, shift in ns."""
    spans: Integers
    """Rows: column, first point, last point, extra ns."""
    rates: Integers
    """Rows: column, bytes, first point, last point."""
    counters: Mapping[str, Integers]
    """By name, rows: column, offset."""
    events: int
    indexed: int
    """How many of its events have an Ev Idx."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """A compiled block."""

    sections: Mapping[str, Section]
    thread: str
    increments: Integers
    """Shortest time from each host point to the next, in ns."""
    launch_points: Integers
    gpu_ns: Integers
    gpu_names: Sequence[str]
    gpu_categories: Sequence[str]
    pauses: Mapping[str, int]
    """Host point that ends each labelled pause."""
    gpu_labels: Mapping[str, int]
    step_point: int
    """Host point at which an annotation begins that ends with the step, or -1."""
    sync_point: int
    """Host point that waits until the GPU is idle, or -1."""
    collective_point: int
    """Host point at which the NCCL kernel is launched, or -1."""
    strides: Mapping[str, int]
    """How far each counter advances from one block to the next."""
    memory: Integers
    """Rows: host point, bytes allocated by the block so far."""
    flops: Mapping[str, int]
    phases: Mapping[str, int]
    """Events of one block by ph."""
    given: tuple[str, ...]
    """Names of points that are not computed within the block, in the order in which they are appended."""

    @property
    def events(self) -> int:
        return sum(self.phases.values())

    @property
    def is_compute(self) -> npt.NDArray[np.bool_]:
        return np.array([category == "kernel" for category in self.gpu_categories], dtype=bool)

    def bound(self, tokens: Mapping[str, str]) -> Template:
        """The template with the placeholders of one rank replaced."""
        sections = {}
        for name, section in self.sections.items():
            form = section.form
            for key, value in tokens.items():
                form = form.replace(text.token(key), value.replace("%", "%%"))
            sections[name] = replace(section, form=form)
        return replace(self, sections=sections)


def render(section: Section, points: Integers, bases: Mapping[str, int], strides: Mapping[str, int]) -> str:
    """The text of len(points) blocks: each row formatted with the section's format string."""
    blocks = np.arange(len(points), dtype=np.int64)[:, None]
    cells = np.empty((len(points), section.columns), dtype=np.int64)
    columns, at, shift = section.times
    _put_microseconds(cells, columns, points[:, at] + shift)
    columns, first, last, extra = section.spans
    _put_microseconds(cells, columns, points[:, last] - points[:, first] + extra)
    columns, nbytes, first, last = section.rates
    if len(columns):
        whole, rest = np.divmod(nbytes, duration := np.maximum(points[:, last] - points[:, first], 1))
        cells[:, columns] = whole
        cells[:, columns + 1] = rest * 10**9 // duration
    for name, (columns, offsets) in section.counters.items():
        stride = section.indexed if name == "event" else strides.get(name, 0)
        cells[:, columns] = bases[name] + offsets + stride * blocks
    form = section.form
    return "".join([form % tuple(row) for row in cells.tolist()])


def _put_microseconds(cells: Integers, columns: Integers, nanoseconds: Integers) -> None:
    whole = nanoseconds // text.NANOSECONDS_PER_TICK
    cells[:, columns] = whole
    cells[:, columns + 1] = nanoseconds - whole * text.NANOSECONDS_PER_TICK
