"""Time that the training loop waits for data in each step, and how much of it the GPU is idle."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import framework, how_to_record, load_faster
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.host_spans import dataloader_spans, loading_line
from rankscope.analysis.core.intervals import covered, subtract
from rankscope.analysis.core.notes import no_steps
from rankscope.analysis.core.rank_activity import rank_activity
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.analysis.core.severity import mean_on, that_matter
from rankscope.analysis.core.step_times import windows
from rankscope.records import dataclass
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("step", help="null: a whole recording, for a trace without steps"),
    Column("waits", "count", "number of waits for a batch"),
    Column("wait_ns", "ns", "host time in the DataLoader"),
    Column("step_ns", "ns", "time of the step, host and GPU"),
    Column("wait_pct", "percent", "share of the step"),
    Column("gpu_idle_ns", "ns", "part of the wait in which the GPU is idle; null without a GPU", "GPU idle"),
)


class WindowWaits(NamedTuple):
    """The waits in one window."""

    step: int | None
    waits: int
    wait_ns: int
    step_ns: int
    gpu_idle_ns: int | None


@dataclass(frozen=True)
class RankWaits:
    """The waits of one rank for data."""

    windows: tuple[WindowWaits, ...]
    longest: tuple[int, int]
    """In ns from the start of its first file."""
    has_gpu: bool

    @property
    def lost_ns(self) -> int:
        """What the waits may cost."""
        return sum((window.gpu_idle_ns or 0) if self.has_gpu else window.wait_ns for window in self.windows)


@kept_per_rank("dataloader", RankWaits)
def rank_waits(run: Run, scope: Scope) -> dict[int, RankWaits]:
    """Of the ranks that wait."""
    records = {}
    for rank in scope.ranks_in(run):
        waits, window = dataloader_spans(run, rank), windows(run, scope).of(rank)
        if not len(waits.start):
            continue
        middle = (waits.start + waits.end) // 2  # a wait may begin just before the step before it ends
        count = np.searchsorted(middle, window.end) - np.searchsorted(middle, window.start)
        gpu_idle: list[int | None] = [None] * len(window)
        if has_gpu := rank in gpu_ranks(run):
            idle_waits = subtract(waits, rank_activity(run, rank).busy)
            gpu_idle = covered(idle_waits, window.start, window.end).tolist()
        columns = (count, covered(waits, window.start, window.end), window.ns)
        steps = (None if step == NO_STEP else step for step in window.step.tolist())
        rows = zip(steps, *(column.tolist() for column in columns), gpu_idle, strict=True)
        at, origin = int(np.argmax(waits.end - waits.start)), run.origin_ns(rank)
        longest = int(waits.start[at]) - origin, int(waits.end[at]) - origin
        records[rank] = RankWaits(tuple(WindowWaits(*row) for row in rows), longest, has_gpu)
    return records


def dataloader(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and step."""
    rows: list[dict[str, Any]] = []
    for rank, waits in rank_waits(run, scope).items():
        for window in waits.windows:
            values = {"rank": rank, **window._asdict()}
            values["wait_pct"] = 100 * window.wait_ns / window.step_ns if window.step_ns else None
            rows.append({column.name: values[column.name] for column in COLUMNS})
    notes = []
    if not rows:
        by_torch = "torch records them for its DataLoader with ProfilerActivity.CPU. For another loader, "
        notes.append(
            f"no waits for data in the window; {by_torch if framework(run) == 'torch' else ''}"
            f"annotate them with DataLoader in the name: {how_to_record(run, 'annotations')}"
        )
    elif scope.steps is None:
        notes.append(no_steps(run))
    limits = _limits(run, scope) if scope.steps is not None else ()
    return Result("dataloader", "Waits for data", scope.window, COLUMNS, rows, limits, tuple(notes))


def _limits(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """What counts is the idle time of the GPU: a wait costs nothing while it works. Without a GPU it is the wait."""
    records = rank_waits(run, scope)
    lost = that_matter(run, scope, {rank: waits.lost_ns for rank, waits in records.items()})
    if not lost:
        return ()
    rank = max(lost, key=lost.__getitem__)
    (start, end), origin, line = records[rank].longest, run.origin_ns(rank), loading_line(run, rank)
    quantity = "gpu_waits_for_data_ns" if records[rank].has_gpu else "wait_for_data_ns"
    finding = Finding(
        "limit",
        "Data loading",
        ranks=tuple(sorted(lost)),
        span=(start + origin, end + origin),
        advice=load_faster(run, line),
        facts=(mean_on(run, scope, quantity, lost), *([Fact("most_in", line)] if line else [])),
        remedy=Remedy("data ready"),
        names=(line,) if line else (),
    )
    return (finding,)
