"""How a rank's time is classified: the one place that decides it. Reports, charts and the viewer select from here.

Each moment of a rank's window belongs to the first of these that applies (docs/definitions.md, "Breakdown"):

    compute        a compute kernel runs; on a rank without a GPU, any thread is in an op and does not wait
    waiting        a collective, send or receive runs, and the rank waits in it for another rank
    communication  a collective, send or receive runs, on the device or on the host
    copy           a copy or a fill of device memory runs
    data_loading   the training loop waits for a batch
    idle           none of these

All devices of a rank count together. The classes of GPU events are those of `device_events`. A collective on the host
begins when the synchronising calls at its start have ended: until then the rank waits for its own GPU. A wait for
another rank is known where a collective is matched across ranks: its first (duration - transfer).

A rank has a GPU if its files contain GPU events, in the window or not (`device_events.gpu_ranks`). The compute of a
rank that has none is that of its host.

The window of a rank are its steps, or where there are none its recordings (`step_times.windows`).
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import (
    CLASSES,
    KEPT_EVENTS,
    device_events,
    gpu_ranks,
    ranks_read_together,
)
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, intersect, join, subtract, union
from rankscope.analysis.core.names import vocabulary
from rankscope.analysis.core.rollups import events_by_rank
from rankscope.analysis.core.scope import Scope
from rankscope.model import (
    COMMUNICATING_OP_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    SYNC_CALL_PATTERN,
    WAITING_PATTERN,
)
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows, starts_group
from rankscope.timeline.nesting import nest
from rankscope.timeline.run import Run

Steps = tuple[int, int] | None


class Parts(NamedTuple):
    """A window of one rank, split: these sets are disjoint and together they are the window."""

    compute: Intervals
    waiting: Intervals
    communication: Intervals
    copy: Intervals
    data_loading: Intervals
    idle: Intervals


@dataclass(frozen=True)
class RankActivity:
    """When one rank computes, communicates and copies, over all that was recorded of it. The first three overlap."""

    has_gpu: bool
    compute: Intervals
    communication: Intervals
    copy: Intervals
    exposed_communication: Intervals
    """Without the time in which the rank also computes."""
    exposed_copy: Intervals
    """Without the time in which the rank also computes or communicates."""

    @property
    def busy(self) -> Intervals:
        """When the rank does any of these."""
        return join(self.compute, self.exposed_communication, self.exposed_copy)

    def parts(self, window: Intervals, waiting: Intervals = EMPTY, data_loading: Intervals = EMPTY) -> Parts:
        """The window, split. `waiting`: from `waiting_times`; `data_loading`: from `host_spans.dataloader_spans`."""
        compute, comm, copy = (
            intersect(times, window)
            for times in (self.compute, self.exposed_communication, self.exposed_copy)
        )
        wait, idle = intersect(comm, waiting), subtract(window, self.busy)
        loading = intersect(idle, data_loading)
        return Parts(compute, wait, subtract(comm, wait), copy, loading, subtract(idle, loading))


def rank_activity(run: Run, rank: int, near: Steps = None) -> RankActivity:
    """The activity of a rank, made once for all reports.

    `near`: only work that was launched in these steps. Who needs one step of a large run reads no others.
    """
    activities = _activities(run)
    if (rank, near) not in activities:
        if sum(events_by_rank(run).get(other, 0) for other, _ in activities) > KEPT_EVENTS:
            activities.clear()
        if rank in gpu_ranks(run):
            events = device_events(run, rank, Scope(steps=near))
            kinds = [events.kind == kind for kind in range(len(CLASSES))]
            work = {rank: [union(events.start[mine], events.end[mine]) for mine in kinds]}
        else:
            without = [other for other in run.ranks if other not in gpu_ranks(run)]
            ranks = ranks_read_together(
                run, rank, [other for other in without if (other, near) not in activities]
            )
            work = {other: [ops, EMPTY, EMPTY] for other, ops in _host_work(run, Scope(ranks, near)).items()}
        for other, (compute, on_device, copy) in work.items():
            comm = join(on_device, host_collectives(run)[other])
            activities[other, near] = RankActivity(
                has_gpu=other in gpu_ranks(run),
                compute=compute,
                communication=comm,
                copy=copy,
                exposed_communication=subtract(comm, compute),
                exposed_copy=subtract(copy, join(compute, comm)),
            )
    return activities[rank, near]


@once_per_run
def _activities(run: Run) -> dict[tuple[int, Steps], RankActivity]:
    """By rank and the steps that were read; `rank_activity` fills it, up to KEPT_EVENTS."""
    return {}


@once_per_run
def waiting_times(run: Run) -> dict[int, Intervals]:
    """By rank, when it waits for another rank: the first (duration - transfer) of each matched collective."""
    collectives = waits(run)
    waited = collectives.wait > 0
    start = collectives.rows.start[waited]
    columns = {"rank": collectives.rows.rank[waited], "start": start, "end": start + collectives.wait[waited]}
    return {rank: union(**times) for rank, times in split_by_rank(columns, run.ranks).items()}


@once_per_run
def host_collectives(run: Run) -> dict[int, Intervals]:
    """By rank, its collectives on the host, from the end of the synchronising calls at their start."""
    if not any(re.search(HOST_COLLECTIVE_PATTERN, name) for name in vocabulary(run, "user_annotation")):
        return dict.fromkeys(run.ranks, EMPTY)
    columns = run.arrays(f"""
        WITH collectives AS (
            SELECT rank, segment, id, start_ns, dur_ns FROM slices
            WHERE category = 'user_annotation' AND regexp_matches(name, '{HOST_COLLECTIVE_PATTERN}')
        ), children AS (
            SELECT c.rank, c.segment, c.id, k.start_ns, k.start_ns + k.dur_ns AS end_ns,
                   regexp_matches(k.name, '{SYNC_CALL_PATTERN}') AS waits
            FROM collectives c
            JOIN slices k ON k.rank = c.rank AND k.segment = c.segment AND k.parent = c.id
        ), work AS (
            SELECT rank, segment, id, min(start_ns) AS work_ns FROM children WHERE NOT waits GROUP BY ALL
        ), waiting AS (
            SELECT k.rank, k.segment, k.id, max(k.end_ns) AS ready_ns
            FROM children k
            LEFT JOIN work w ON w.rank = k.rank AND w.segment = k.segment AND w.id = k.id
            WHERE k.waits AND (w.work_ns IS NULL OR k.start_ns < w.work_ns) GROUP BY ALL
        )
        SELECT c.rank::BIGINT AS rank, greatest(c.start_ns, coalesce(w.ready_ns, c.start_ns)) AS start,
               c.start_ns + greatest(c.dur_ns, 0) AS end
        FROM collectives c
        LEFT JOIN waiting w ON w.rank = c.rank AND w.segment = c.segment AND w.id = c.id
    """)
    return {rank: union(**times) for rank, times in split_by_rank(columns, run.ranks).items()}


def self_times(track: Ints, start: Ints, end: Ints) -> tuple[Ints, Intervals]:
    """The times of nested slices without those of the slices inside them: the index of the slice of each interval, and
    the intervals. Those of one track are disjoint."""
    nesting = nest(track, start, end)
    parent, order = nesting.parent.astype(np.int64), nesting.order.astype(np.int64)
    inner = order[parent[order] != NONE]
    inner = inner[np.argsort(parent[inner], kind="stable")]  # by parent, then by start
    above = parent[inner]
    # A slice has an interval from its start to its first inner slice, and one behind each inner slice.
    until, behind = end.copy(), end[above]
    first = starts_group([above]) if len(inner) else np.zeros(0, dtype=bool)
    until[above[first]] = start[inner[first]]
    same = np.flatnonzero(~first)
    behind[same - 1] = start[inner[same]]
    index = np.concatenate([np.arange(len(start)), above])
    return index, Intervals(np.concatenate([start, end[inner]]), np.concatenate([until, behind]))


def _host_work(run: Run, scope: Scope) -> dict[int, Intervals]:
    """By rank, when any thread is in an op and does not wait: the self time of ops, without waits for data.

    The self time of an op that waits, or that starts communication, is no work. Nor is, while the rank communicates,
    that of an op which contains others and is none of ATen's: autograd calls functions that wait for a collective.
    """
    columns = run.arrays(f"""
        SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, track::BIGINT AS track, start_ns AS start,
               start_ns + greatest(dur_ns, 0) AS end, name LIKE 'aten::%' AS is_aten,
               regexp_matches(name, '{WAITING_PATTERN}|{COMMUNICATING_OP_PATTERN}') AS waits
        FROM slices WHERE category = 'cpu_op' AND {scope.where()}
    """)
    work = {}
    for rank, ops in split_by_rank(columns, scope.ranks_in(run)).items():
        _, track = number_rows([ops["segment"], ops["track"]])
        op, times = self_times(track, ops["start"], ops["end"])
        contains = np.bincount(op, minlength=len(track)) > 1
        calls_others, works = (contains & ~ops["is_aten"])[op], ~ops["waits"][op]
        always, at_times = (
            union(times.start[used], times.end[used]) for used in (works & ~calls_others, works & calls_others)
        )
        busy = join(always, subtract(at_times, host_collectives(run)[rank]))
        work[rank] = subtract(busy, dataloader_spans(run, rank))
    return work
