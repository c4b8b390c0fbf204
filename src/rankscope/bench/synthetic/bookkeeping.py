"""The answers of one file, summed while it is written: GPU time by kernel, copy and collective.

The compute stream runs one kernel or copy at a time; only collectives, on their own streams, overlap with them.
So every figure is a sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankscope.bench.synthetic.template import Integers


def merged(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of intervals, as disjoint intervals in order."""
    union: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def _covered_before(times: Integers, start: Integers, end: Integers) -> Integers:
    """For each time, how much of the disjoint, sorted intervals is before it."""
    total = np.concatenate(([0], np.cumsum(end - start)))
    index = np.searchsorted(start, times, side="right")
    unfinished = np.where(index > 0, np.maximum(end[index - 1] - times, 0), 0)
    covered: Integers = total[index] - unfinished
    return covered


@dataclass
class StepBook:
    """One step of one rank, in recorded ns."""

    step: int
    collectives: Sequence[tuple[int, int]]
    first_ns: int | None = None
    last_ns: int = 0
    compute_ns: int = 0
    copy_ns: int = 0
    overlap_ns: int = 0
    copy_overlap_ns: int = 0

    def __post_init__(self) -> None:
        self.collectives = merged(self.collectives)
        self._edges = np.array(self.collectives, dtype=np.int64).reshape(-1, 2)
        for start, end in self.collectives:
            self._reach(start, end)

    def _reach(self, first: int, last: int) -> None:
        self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
        self.last_ns = max(last, self.last_ns)

    def add(self, start: Integers, end: Integers, *, is_compute: bool) -> None:
        """Add intervals of the compute stream, in order, each once."""
        if not len(start):
            return
        self._reach(int(start[0]), int(end[-1]))
        spent = int((end - start).sum())
        shared = _covered_before(self._edges[:, 1], start, end) - _covered_before(
            self._edges[:, 0], start, end
        )
        if is_compute:
            self.compute_ns += spent
            self.overlap_ns += int(shared.sum())
        else:
            self.copy_ns += spent
            self.copy_overlap_ns += int(shared.sum())

    @property
    def comm_ns(self) -> int:
        return sum(end - start for start, end in self.collectives)


def breakdown(step: int | None, books: Sequence[StepBook], span: int) -> dict[str, Any]:
    """The figures of docs/definitions.md for some steps that do not overlap in time and take `span` together."""
    compute = sum(book.compute_ns for book in books)
    comm = sum(book.comm_ns for book in books)
    copy = sum(book.copy_ns for book in books)
    overlap = sum(book.overlap_ns for book in books)
    copy_overlap = sum(book.copy_overlap_ns for book in books)
    exposed_comm, exposed_copy = comm - overlap, copy - copy_overlap
    # A copy that runs during a collective counts as communication: exposed_comm includes that time.
    return {
        "step": step,
        "span_ns": span,
        "compute_ns": compute,
        "comm_ns": comm,
        "copy_ns": copy,
        "exposed_comm_ns": exposed_comm,
        "exposed_copy_ns": exposed_copy,
        "idle_ns": span - compute - exposed_comm - exposed_copy,
        "overlap_ns": overlap,
        "overlap_pct": 100 * overlap / comm if comm else None,
    }


@dataclass
class RankBook:
    """The answers of one rank's file."""

    steps: list[StepBook] = field(default_factory=list)
    windows: list[dict[str, int]] = field(default_factory=list)
    """ProfilerSteps: step, start and duration."""
    kernels: dict[str, list[int]] = field(default_factory=dict)
    """By name: instances and total ns."""
    copies: dict[str, list[int]] = field(default_factory=dict)
    """The same for memcpy and memset."""
    phases: Counter[str] = field(default_factory=Counter)
    flops: Counter[str] = field(default_factory=Counter)
    peak_allocated_bytes: int = 0
    peak_at_ns: int = 0

    def count(self, name: str, category: str, instances: int, total_ns: int) -> None:
        row = (self.kernels if category == "kernel" else self.copies).setdefault(name, [0, 0])
        row[0] += instances
        row[1] += total_ns

    def _step_times(self) -> list[int]:
        """A step ends with its host range or its last GPU event, and begins where the one before ended."""
        times, before = [], self.windows[0]["start_ns"]
        for window, book in zip(self.windows, self.steps, strict=True):
            end = max(window["start_ns"] + window["dur_ns"], book.last_ns, before)
            times.append(end - before)
            before = end
        return times

    def truth(self) -> dict[str, Any]:
        times = self._step_times()
        gpu_events = sum(row[0] for rows in (self.kernels, self.copies) for row in rows.values())
        return {
            "steps": self.windows,
            "breakdown": [
                breakdown(None, self.steps, sum(times)),
                *(breakdown(book.step, [book], time) for book, time in zip(self.steps, times, strict=True)),
            ],
            "kernels": _table(self.kernels),
            "copies": _table(self.copies),
            "events": {
                "total": sum(self.phases.values()),
                "slices": self.phases["X"],
                "instants": self.phases["i"],
                "flows": self.phases["s"] + self.phases["f"],
                "metadata": self.phases["M"],
            },
            "launch_links": gpu_events,
            "flops": dict(self.flops),
            "peak_allocated_bytes": self.peak_allocated_bytes,
            "peak_at_ns": self.peak_at_ns,
        }


def _table(rows: dict[str, list[int]]) -> list[dict[str, Any]]:
    order = sorted(rows, key=lambda name: (-rows[name][1], name))
    return [{"name": name, "instances": rows[name][0], "total_ns": rows[name][1]} for name in order]
