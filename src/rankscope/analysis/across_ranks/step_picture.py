"""One step on several ranks, to be drawn: what each did when, who waited, at which collective the last arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.host_spans import dataloader_spans
from rankscope.analysis.core.intervals import Intervals, intersect, union
from rankscope.analysis.core.rank_activity import Parts, rank_activity, waiting_times
from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods, run_step, run_step_times
from rankscope.collective_kinds import KINDS
from rankscope.records import dataclass
from rankscope.store.arrays import NONE
from rankscope.text.names import bare_name
from rankscope.timeline.run import Run

Kind = Literal["compute", "comm", "wait", "copy", "idle"]

MOST_RANKS = 12
_MOST_CULPRITS = 4
_BRIDGED = 0.01
"""Pauses of less than this share of the step do not end a stretch."""
_NAMED_SHARE = 0.8
"""An annotation or kernel that fills this share of a stretch gives it its name."""


@dataclass(frozen=True)
class Stretch:
    """A part of a rank's time that gets a label."""

    label: str
    """'waits', 'loads data', or the name of what is computed."""
    kind: Kind
    """What it mostly consists of: the colour behind the label."""
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class RankStep:
    """The step of one rank, from start_ns to end_ns."""

    rank: int
    start_ns: int
    end_ns: int
    parts: Parts
    is_culprit: bool
    on_host: bool
    """The rank has no GPU events, so compute is that of the host."""
    stretch: Stretch | None = None


@dataclass(frozen=True)
class Arrival:
    """The last arrival at a collective that others waited in."""

    rank: int
    at_ns: int
    kind: str


@dataclass(frozen=True)
class StepPicture:
    """Some ranks in one step; times in ns from the run's start."""

    step: int
    rows: tuple[RankStep, ...]
    ranks: int
    """How many ranks have this step; more than there are rows in a large run."""
    arrival: Arrival | None
    clock_error_ns: int | None
    """How far apart the clocks of these ranks may still be; None where that is not known."""


def step_picture(run: Run, scope: Scope, finding: Finding | None) -> StepPicture | None:
    """The step in which a finding shows best; without one the longest. None in a run without steps."""
    step = _step(run, scope, finding)
    if step is None:
        return None
    windows = periods(run, Scope(scope.ranks, (step, step)))
    times = zip(windows.start.tolist(), windows.end.tolist(), strict=True)
    of_rank = dict(zip(windows.rank.tolist(), times, strict=True))
    blames = finding is not None and finding.kind == "fault"
    culprits = tuple(rank for rank in finding.ranks if rank in of_rank) if finding and blames else ()
    arrival, peers = _arrival(run, step, culprits)
    if arrival and arrival.rank not in of_rank:
        arrival = None
    ranks = _chosen(sorted(of_rank), culprits, arrival, peers)
    part = part_of(run, frozenset(ranks))
    cause = finding.fact("cause") if finding and culprits else None
    rows = [_row(run, part, rank, of_rank[rank], step, rank in culprits) for rank in ranks]
    return StepPicture(
        step,
        tuple(_marked(part, row, str(cause.value) if cause else "", arrival) for row in rows),
        len(of_rank),
        arrival,
        _clock_error(run, ranks),
    )


def _clock_error(run: Run, ranks: Sequence[int]) -> int | None:
    if run.clock_mode == "raw" or len(ranks) < 2:
        return None
    errors = [clock.error_ns for clock in map(run.clocks.of, ranks) if clock.method != "reference"]
    measured = [error for error in errors if error is not None]
    return max(measured) if measured and len(measured) == len(errors) else None


def _step(run: Run, scope: Scope, finding: Finding | None) -> int | None:
    times = run_step_times(run, scope)
    if finding is not None and finding.span is not None:
        begin, steps = finding.span[0], periods(run, scope)
        around = steps.step[(steps.start <= begin) & (begin < steps.end)]
        if len(around) and steps.has_steps:
            return int(around[0])
    late = {step: time for step, time in times.items() if finding is not None and step in finding.steps}
    usual = {step: time for step, time in times.items() if step not in run_step(run, scope).left_out}
    return max(late or usual, key=times.__getitem__, default=None)


def _arrival(run: Run, step: int, culprits: Sequence[int]) -> tuple[Arrival | None, list[int]]:
    """At the collective of the longest wait in the step, one for a culprit if there is one; and who took part."""
    every = waits(run)
    rows, match_of = every.rows, every.rows.match
    waited = np.flatnonzero(every.waited_for != NONE)
    in_step = np.where(
        match_of[waited] != NONE, np.append(every.step, NONE)[match_of[waited]], rows.step[waited]
    )
    waited = waited[in_step == step]
    if culprits:
        late = np.isin(rows.rank[every.waited_for[waited]], culprits)
        for_them = late & ~np.isin(rows.rank[waited], culprits)
        waited = waited[for_them] if for_them.any() else waited
    if len(waited) == 0:
        return None, []
    longest = waited[every.wait[waited].argmax()]
    last, match = every.waited_for[longest], match_of[longest]
    arrival = Arrival(int(rows.rank[last]), int(rows.start[last]), KINDS[rows.kind[last]])
    members = np.flatnonzero(match_of == match) if match != NONE else np.array([longest, last])
    return arrival, sorted(set(rows.rank[members].tolist()))


def _chosen(
    ranks: list[int], culprits: tuple[int, ...], arrival: Arrival | None, peers: list[int]
) -> list[int]:
    """All ranks if they are few; else the culprits, ranks that waited with them, and others, evenly spread."""
    if len(ranks) <= MOST_RANKS:
        return ranks
    chosen = {*culprits[:_MOST_CULPRITS], *([arrival.rank] if arrival else [])}
    for pool in ([rank for rank in peers if rank in ranks], ranks):
        others = [rank for rank in pool if rank not in chosen]
        room = MOST_RANKS - len(chosen)
        if others and room > 0:
            chosen.update(others[:: -(-len(others) // room)])
    return sorted(chosen)


def _row(run: Run, part: Run, rank: int, times: tuple[int, int], step: int, is_culprit: bool) -> RankStep:
    """`part` has the events of the rank, `run` knows for whom it waits."""
    # A neighbouring step's kernels can run inside the window of this one.
    activity = rank_activity(part, rank, (step - 1, step + 1))
    window = union(np.array(times[:1]), np.array(times[1:]))
    parts = activity.parts(window, waiting_times(run)[rank])
    return RankStep(rank, *times, parts, is_culprit, on_host=not activity.has_gpu)


def _marked(run: Run, row: RankStep, cause: str, arrival: Arrival | None) -> RankStep:
    """With a label on what made a culprit late, or on the longest wait of another rank."""
    parts = row.parts
    if not row.is_culprit:
        return replace(row, stretch=_longest(row, parts.waiting, "wait", "waits"))
    # What happens after its arrival did not make it late.
    late = arrival is not None and arrival.rank == row.rank
    end = max(arrival.at_ns, row.start_ns) if arrival and late else row.end_ns
    before = Intervals(np.array([row.start_ns]), np.array([end]))
    if cause == "compute":
        stretch = _longest(row, intersect(parts.compute, before), "compute", "computes")
        return replace(row, stretch=_named(run, row, stretch) if stretch else None)
    kind: Kind
    if cause == "dataloader":
        times, kind, label = intersect(dataloader_spans(run, row.rank), before), "idle", "loads data"
    elif cause == "copy":
        times, kind, label = intersect(parts.copy, before), "copy", "copies"
    elif cause == "link":
        times, kind, label = parts.communication, "comm", "transfers"
    elif cause == "host":
        times, kind, label = intersect(parts.idle, before), "idle", "runs nothing"
    else:
        return row
    return replace(row, stretch=_longest(row, times, kind, label))


def _longest(row: RankStep, times: Intervals, kind: Kind, label: str) -> Stretch | None:
    """The longest stretch of these times; short pauses do not end it, where they are a small part of it."""
    if len(times.start) == 0:
        return None
    for pause in (int(_BRIDGED * (row.end_ns - row.start_ns)), 0):
        joined = union(times.start, times.end + pause)
        spans = joined.end - joined.start - pause
        number = np.searchsorted(joined.start, times.start, side="right") - 1
        spans[np.bincount(number, times.end - times.start) < _NAMED_SHARE * spans] = 0
        if spans.any():
            break
    longest = int(spans.argmax())
    return Stretch(label, kind, int(joined.start[longest]), int(joined.end[longest]) - pause)


def _named(run: Run, row: RankStep, stretch: Stretch) -> Stretch:
    """With the innermost annotation of the program that fills it, else its main kernel or op."""
    begin, end = stretch.start_ns, stretch.end_ns
    overlap = f"sum(least(start_ns + dur_ns, {end}) - greatest(start_ns, {begin}))"
    inside = f"rank = {row.rank} AND start_ns < {end} AND start_ns + dur_ns > {begin}"
    category = "user_annotation" if row.on_host else "gpu_user_annotation"
    annotations = (
        f"SELECT name, {overlap} FROM slices WHERE category = '{category}' AND {inside} AND "
        "NOT regexp_matches(name, '^(ProfilerStep#|nccl:|gloo:)') GROUP BY name ORDER BY avg(dur_ns)"
    )
    work = "slices WHERE category = 'cpu_op'" if row.on_host else "gpu WHERE class = 'COMPUTE'"
    names = f"SELECT name, {overlap} FROM {work} AND {inside} GROUP BY name ORDER BY 2 DESC LIMIT 1"
    for name, time in [*run.rows(annotations), *run.rows(names)]:
        if time >= _NAMED_SHARE * (end - begin):
            return replace(stretch, label=bare_name(name))
    return stretch
