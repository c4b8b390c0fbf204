"""The gaps between the events of a GPU: each nanosecond of idle time has one cause, each gap a launch that ends it.

`gaps` reports them by that launch: its annotation or phase, op and line of Python. The causes are reported in idle.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.device_events import UNKNOWN, DeviceEvents, device_events, gpu_ranks
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.host_spans import dataloader_spans, rank_annotations, sync_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, intersect, subtract, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu, no_lines
from rankscope.analysis.core.rank_activity import host_collectives
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.phases import PHASES, partition_of
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

CAUSES = ("host_bound", "launch_latency", "sync", "dataloader", "other")
"""Names as in the output; docs/reports/idle.md defines them."""
_KEYS = {
    "rank": Column("rank"),
    "within": Column(
        "within", help="annotation around the launch that ends the gap, or else its phase", at_end=True
    ),
    "op": Column("op", help="op around that launch", at_end=True),
    "source": Column("source", help="line of Python around that launch", at_end=True),
}
_MEASURES = (
    Column("idle_ns", "ns", "idle time in gaps that such a launch ends"),
    Column("idle_pct", "percent", "share of all idle time"),
    Column("gaps", "count", "number of gaps"),
    Column("max_ns", "ns", "the longest gap"),
    Column("cause", help="largest cause of this idle time; see the idle report"),
)


@dataclass(frozen=True)
class Gaps:
    """Stretches of the window in which no event runs on a device, each up to the next event, split by cause."""

    start: Ints
    end: Ints
    before: Ints
    """Index of the next event; UNKNOWN where there is none."""
    queued: NDArray[np.bool_]
    """The next event was launched already when the idle time began, or its launch is not in the file."""
    host_bound: Ints
    launch_latency: Ints
    sync: Ints
    dataloader: Ints
    other: Ints


def find_gaps(
    events: DeviceEvents, window: Intervals, busy: Intervals, dataloader: Intervals, sync: Intervals
) -> Gaps:
    """The gaps of one device in the window. Time in `busy` (collectives on the host) is not idle."""
    start, end = subtract(window, union(events.start, events.end))
    following = np.searchsorted(events.start, end, side="left")
    has_next, had_before = following < len(events), following > 0
    after, earlier = np.minimum(following, len(events) - 1), np.maximum(following - 1, 0)
    # What follows in the rank's next recording does not end a gap of this one.
    has_next &= (events.start[after] == end) | (events.segment[after] == events.segment[earlier])
    before = np.where(has_next, following, UNKNOWN)
    last_end = np.maximum.accumulate(events.end)
    previous = np.where(had_before, last_end[earlier], np.iinfo(np.int64).min)
    launch = np.where(has_next, events.launch_start[after], end)
    late_launch = ~has_next | ((launch != UNKNOWN) & (launch > previous))
    launch = np.clip(launch, start, end)

    def by_gap(pieces: Intervals) -> Ints:
        gap = np.searchsorted(start, pieces.start, side="right") - 1
        return np.bincount(gap, weights=pieces.end - pieces.start, minlength=len(start)).astype(np.int64)

    idle = subtract(Intervals(start, end), busy)
    loading, idle = intersect(idle, dataloader), subtract(idle, dataloader)
    # Work that was queued already does not wait for the host.
    sync = intersect(sync, Intervals(start[late_launch], end[late_launch]))
    waiting, idle = intersect(idle, sync), subtract(idle, sync)
    bound = by_gap(intersect(idle, Intervals(start[late_launch], launch[late_launch])))
    latency = by_gap(intersect(idle, Intervals(launch[late_launch], end[late_launch])))
    other = by_gap(idle) - bound - latency
    return Gaps(start, end, before, ~late_launch, bound, latency, by_gap(waiting), by_gap(loading), other)


@dataclass(frozen=True)
class DeviceIdle:
    """The events and gaps of one device of one rank."""

    rank: int
    device: int
    events: DeviceEvents
    """All of the device, also those outside the window: a gap may end with one of them."""
    inside: int
    """The number of events in the window."""
    gaps: Gaps
    span: int
    """The length of the window."""


def idle_by_device(run: Run, scope: Scope) -> Iterator[DeviceIdle]:
    """Rank by rank, device by device."""
    for rank in scope.ranks_in(run):
        window = windows(run, rank, scope)
        if rank not in gpu_ranks(run) or len(window.step) == 0:
            continue
        on_host, dataloader = host_collectives(run)[rank], dataloader_spans(run, rank)
        for device, events in device_events(run, rank, scope.only_ranks()).devices():
            gaps = find_gaps(events, window.intervals, on_host, dataloader, sync_spans(run, rank))
            inside = len(events) if scope.steps is None else int(np.isin(events.step, window.step).sum())
            yield DeviceIdle(rank, device, events, inside, gaps, window.span)


def waits_for_host(run: Run, rank: int, scope: Scope) -> Intervals:
    """When all devices of a rank are idle and the next event was not launched yet when that began."""
    events = device_events(run, rank, scope.only_ranks())
    on_host = host_collectives(run)[rank]
    gaps = find_gaps(events, windows(run, rank, scope).intervals, on_host, EMPTY, EMPTY)
    return subtract(Intervals(gaps.start[~gaps.queued], gaps.end[~gaps.queued]), on_host)


class GapGroup(NamedTuple):
    """The gaps that launches of one kind end."""

    key: tuple[str | None, ...]
    gaps: int
    longest_ns: int
    longest_span: tuple[int, int]
    """In ns from the start of the rank's first file."""
    causes: dict[str, int]


@dataclass(frozen=True)
class RankGaps:
    """The gaps of one rank, by annotation or phase and op."""

    groups: tuple[GapGroup, ...]


@kept_per_rank("gaps", RankGaps)
def rank_gaps(run: Run, scope: Scope) -> dict[int, RankGaps]:
    """Of the ranks with GPU events and a window."""
    groups: dict[int, list[GapGroup]] = {}
    for device in idle_by_device(run, scope):
        groups.setdefault(device.rank, []).extend(gap_groups(run, scope, device, ("within", "op")))
    return {rank: RankGaps(tuple(of_rank)) for rank, of_rank in groups.items()}


def gaps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per annotation or phase and op (--by source: per line), the most idle time first."""
    keys = {"rank": ("rank", "within", "op"), "source": ("source",)}.get(by or "", ("within", "op"))
    if by == "source":
        devices = idle_by_device(run, scope)
        of_ranks = [(device.rank, [*gap_groups(run, scope, device, ("source",))]) for device in devices]
    else:
        of_ranks = [(rank, [*record.groups]) for rank, record in rank_gaps(run, scope).items()]
    by_key: dict[tuple[Any, ...], list[GapGroup]] = {}
    for rank, groups in of_ranks:
        for group in groups:
            by_key.setdefault((rank, *group.key) if by == "rank" else group.key, []).append(group)
    rows = []
    for key, groups in by_key.items():
        causes = {cause: sum(group.causes[cause] for group in groups) for cause in CAUSES}
        row = dict(zip(keys, key, strict=True)) | {"idle_ns": sum(causes.values()), "idle_pct": 0.0}
        row |= {
            "gaps": sum(group.gaps for group in groups),
            "max_ns": max(group.longest_ns for group in groups),
        }
        rows.append(row | {"cause": max(causes, key=causes.__getitem__)})
    if total := sum(row["idle_ns"] for row in rows):
        for row in rows:
            row["idle_pct"] = 100 * row["idle_ns"] / total
    rows.sort(key=lambda row: (-row["idle_ns"], *(str(row[key]) for key in keys)))
    inside = sum(count.events for count in gpu_counts(run, scope))
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not inside:
        notes.append(no_gpu(run))
    elif not rows:
        notes.append("no gaps: the GPU is never idle")
    elif by is None and all(row["op"] is None for row in rows):
        notes.append(f"the trace has no ops; {how_to_record(run, 'host')}")
    elif by == "source" and all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*(_KEYS[key] for key in keys), *_MEASURES)
    unknown = "" if inside else None
    return Result(
        "gaps", "Idle gaps of the GPU", scope.window, columns, rows, notes=tuple(notes), unknown=unknown
    )


def gap_groups(run: Run, scope: Scope, device: DeviceIdle, keys: tuple[str, ...]) -> Iterator[GapGroup]:
    """The gaps of one device, grouped by `keys`: any of within, op, source."""
    spans, events = device.gaps, device.events
    if len(spans.start) == 0:
        return
    before, texts = spans.before, [*all_names(run), None]
    ends = before != UNKNOWN
    codes: dict[str, tuple[Ints, list[Any]]] = {
        "op": (np.where(ends, events.op[before], UNKNOWN), texts),
        "source": (np.where(ends, events.line[before], UNKNOWN), texts),
    }
    if "within" in keys:
        codes["within"] = _launch_context(run, scope, device)
    groups, group = number_rows([codes[key][0] for key in keys])
    parts = np.stack([getattr(spans, cause) for cause in CAUSES])
    totals = [np.bincount(group, weights=part, minlength=len(groups)).astype(np.int64) for part in parts]
    idle, origin = parts.sum(axis=0), run.origin_ns(device.rank)
    order = np.lexsort((idle, group))
    longest = order[np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)]
    columns = (np.bincount(group), idle[longest], spans.start[longest] - origin, spans.end[longest] - origin)
    rows = zip(*(column.tolist() for column in (groups, *columns, *totals)), strict=True)
    for numbers, count, longest_ns, start, end, *causes in rows:
        key = tuple(codes[name][1][code] for name, code in zip(keys, numbers, strict=True))
        yield GapGroup(key, count, longest_ns, (start, end), dict(zip(CAUSES, causes, strict=True)))


def gap_words(run: Run, rank: int, span: tuple[int, int]) -> str | None:
    """'2.09 ms idle: host bound before aten::gather', of the gap with this span; None where there is none."""
    for device in idle_by_device(run, Scope(ranks=frozenset([rank]))):
        at = np.flatnonzero((device.gaps.start == span[0]) & (device.gaps.end == span[1]))
        if not len(at):
            continue
        parts = {cause: int(getattr(device.gaps, cause)[at[0]]) for cause in CAUSES}
        cause = max(parts, key=parts.__getitem__).replace("_", " ")
        before = int(device.gaps.before[at[0]])
        op = UNKNOWN if before == UNKNOWN else int(device.events.op[before])
        where = "" if op == UNKNOWN else f" before {all_names(run)[op]}"
        return f"{format_rounded('ns', span[1] - span[0])} idle: {cause}{where}"
    return None


def _launch_context(run: Run, scope: Scope, device: DeviceIdle) -> tuple[Ints, list[Any]]:
    """The annotation around the launch that ends each gap, or else the phase: (index of each, texts)."""
    events, before = device.events, device.gaps.before
    time = np.where(before != UNKNOWN, events.launch_start[before], UNKNOWN)
    track = np.where(time == UNKNOWN, UNKNOWN, events.launch_track[before])
    annotation = rank_annotations(run, device.rank).at(track, time)
    phase = partition_of(run, device.rank, scope.only_ranks()).at(time)
    names = all_names(run)
    index = np.where(annotation != UNKNOWN, annotation, len(names) + phase)
    return np.where(time == UNKNOWN, len(names) + len(PHASES), index), [*names, *PHASES, None]
