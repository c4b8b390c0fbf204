"""The time of each rank and step, split into compute, exposed communication, exposed copies and idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import kernels_end_in
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, covered, intersect, shifted
from rankscope.analysis.core.notes import unrecorded_note
from rankscope.analysis.core.rank_activity import rank_activity, waiting_times
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.core.step_times import windows
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column(
        "span_ns",
        "ns",
        "the step's time; of the whole file, from the first start to the last end of GPU events",
    ),
    Column("compute_ns", "ns", "time in which at least one compute kernel runs"),
    Column("comm_ns", "ns", "time in which at least one collective runs, hidden or not"),
    Column("exposed_comm_ns", "ns", "time in which a collective runs and no compute kernel does"),
    Column("exposed_wait_ns", "ns", "part of it in which the rank waits for another rank", "Of it waiting"),
    Column("exposed_copy_ns", "ns", "time in which only copies or fills run"),
    Column("idle_ns", "ns", "time in which nothing runs"),
    Column("overlap_pct", "percent", "share of communication that overlaps with compute"),
)


@dataclass(frozen=True)
class RankParts:
    """The windows of one rank and their parts: an entry a window, times in ns from the start of its first file.

    compute + exposed_comm + exposed_copy + idle = end - start, exactly.
    """

    step: Ints
    start: Ints
    end: Ints
    compute: Ints
    comm: Ints
    exposed_comm: Ints
    exposed_copy: Ints
    exposed: Intervals
    """When a collective runs and no compute kernel does, within the windows."""
    has_gpu: bool
    """If not, the work of its host counts."""
    anything: bool
    """Whether it has any work."""

    @property
    def span(self) -> int:
        return int((self.end - self.start).sum())

    @property
    def idle(self) -> Ints:
        return self.end - self.start - self.compute - self.exposed_comm - self.exposed_copy

    def rows(self, rank: int, waiting: Ints, by_step: bool) -> Iterator[dict[str, Any]]:
        """For the whole window, then by step. `waiting` is the part of exposed_comm in which it waits for a rank."""
        columns = {
            "span_ns": self.end - self.start,
            "compute_ns": self.compute,
            "comm_ns": self.comm,
            "exposed_comm_ns": self.exposed_comm,
            "exposed_wait_ns": waiting,
            "exposed_copy_ns": self.exposed_copy,
            "idle_ns": self.idle,
        }
        values = np.stack(list(columns.values()))
        sums: dict[int | None, list[int]] = {None: values.sum(axis=1).tolist()}
        if by_step:
            order = np.argsort(self.step, kind="stable")
            steps = self.step[order]
            first = np.flatnonzero(np.diff(steps, prepend=steps[0] - 1))
            of_steps = np.add.reduceat(values[:, order], first, axis=1).T.tolist()
            sums |= dict(zip(steps[first].tolist(), of_steps, strict=True))
        for step, times in sums.items():
            row = dict(zip(columns, times, strict=True))
            comm, exposed = row["comm_ns"], row["exposed_comm_ns"]
            overlap_pct = 100 * (comm - exposed) / comm if comm else None
            yield {"rank": rank, "step": step, **row, "overlap_pct": overlap_pct}


@kept_per_rank("breakdown", RankParts)
def rank_parts(run: Run, scope: Scope) -> dict[int, RankParts]:
    """Of the ranks that have a window. One at a time, to hold the events of one rank in memory."""
    parts = {}
    for rank in scope.ranks_in(run):
        window, origin = windows(run, scope).of(rank), run.origin_ns(rank)
        if not window:
            continue
        activity = rank_activity(run, rank)
        exposed = activity.exposed_communication
        compute, comm, exposed_comm, exposed_copy = (
            covered(times, window.start, window.end)
            for times in (activity.compute, activity.communication, exposed, activity.exposed_copy)
        )
        parts[rank] = RankParts(
            step=window.step,
            start=window.start - origin,
            end=window.end - origin,
            compute=compute,
            comm=comm,
            exposed_comm=exposed_comm,
            exposed_copy=exposed_copy,
            exposed=shifted(intersect(exposed, window.intervals), -origin),
            has_gpu=activity.has_gpu,
            anything=len(activity.busy.start) > 0,
        )
    return parts


@once_per_run
def exposed_wait_times(run: Run, scope: Scope) -> dict[int, Intervals]:
    """By rank, when it waits for another rank in exposed communication; in ns from the run's start.

    That is known where a collective was matched across ranks: until the last rank has arrived. It is not where a part
    of the matches may be lost.
    """
    waiting, cut = waiting_times(run), cut_ranks(run)
    return {
        rank: EMPTY if cut else intersect(shifted(parts.exposed, run.origin_ns(rank)), waiting[rank])
        for rank, parts in rank_parts(run, scope).items()
    }


@once_per_run
def exposed_waits(run: Run, scope: Scope) -> dict[int, Ints]:
    """By rank, how much of these times lies in each of its windows."""
    times = exposed_wait_times(run, scope)
    return {
        rank: covered(shifted(times[rank], -run.origin_ns(rank)), parts.start, parts.end)
        for rank, parts in rank_parts(run, scope).items()
    }


@once_per_run
def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for the whole window, then one per rank and step."""
    rows: list[dict[str, Any]] = []
    on_host, empty = [], []
    lost = kernels_end_in(run, scope)
    waits_of = exposed_waits(run, scope)
    parts_of = rank_parts(run, scope)
    for rank, parts in parts_of.items():
        if rank in lost:  # a doubt of the run says why
            continue
        if not parts.anything:
            empty.append(rank)
            continue
        if not parts.has_gpu:
            on_host.append(rank)
        rows += parts.rows(rank, waits_of[rank], scope.steps is not None)
    rows.sort(key=lambda row: (row["step"] is not None, row["rank"], row["step"] or 0))
    # Time between the cycles of a rank, of the rank with most of it: it was not recorded, so it is in no class.
    between = (int(parts.end[-1] - parts.start[0]) - parts.span for parts in parts_of.values())
    unrecorded = max(between, default=0)
    notes: list[str] = []
    if unrecorded:
        notes.append(unrecorded_note(unrecorded))
    for ranks, missing, means in (
        (
            on_host,
            "",
            "compute is the time in ops on the host that do not wait, the span is that of the steps",
        ),
        (empty, " and no ops", "what the time was spent on is not known"),
    ):
        if ranks:
            whose = "" if len(ranks) == len(scope.ranks_in(run)) else f" of ranks {as_ranges(ranks)}"
            notes.append(f"no GPU events{missing}{whose}: {means}")
    facts = {"unrecorded_ns": unrecorded}
    return Result(
        "breakdown", "Where the time went", scope.window, COLUMNS, rows, notes=tuple(notes), facts=facts
    )
