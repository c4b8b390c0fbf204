"""GPU idle time: the gaps between events, the launch that ends each, and the cause of each nanosecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import add, itemgetter
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import ahead_of_gpu, framework, how_to_record, in_the_optimizer
from rankscope.analysis.core.device_events import (
    UNKNOWN,
    DeviceEvents,
    device_events,
    gpu_ranks,
    kernels_end_in,
)
from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.host_spans import dataloader_spans, rank_annotations, sync_spans
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, intersect, subtract, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_notes, no_lines
from rankscope.analysis.core.rank_activity import host_collectives
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.severity import mean_on, that_matter
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.phases import PHASES, partition_of
from rankscope.records import dataclass
from rankscope.store.arrays import Mask, number_rows
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
    queued: Mask
    """The next event was launched already when the idle time began, or its launch is not in the file."""
    causes: Ints
    """[cause, gap]: its idle time, by CAUSES."""


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
        return sums_by(gap, pieces.end - pieces.start, len(start))

    idle = subtract(Intervals(start, end), busy)
    loading, idle = intersect(idle, dataloader), subtract(idle, dataloader)
    # Work that was queued already does not wait for the host.
    sync = intersect(sync, Intervals(start[late_launch], end[late_launch]))
    waiting, idle = intersect(idle, sync), subtract(idle, sync)
    bound = by_gap(intersect(idle, Intervals(start[late_launch], launch[late_launch])))
    latency = by_gap(intersect(idle, Intervals(launch[late_launch], end[late_launch])))
    other = by_gap(idle) - bound - latency
    causes = np.stack([bound, latency, by_gap(waiting), by_gap(loading), other])
    return Gaps(start, end, before, ~late_launch, causes)


def _gaps_by_device(run: Run, scope: Scope) -> Iterator[tuple[int, int, DeviceEvents, Gaps]]:
    """Rank, device and its events, also those outside the window: a gap may end with one of them."""
    for rank in scope.ranks_in(run):
        window = windows(run, scope).of(rank)
        if rank not in gpu_ranks(run) or not window:
            continue
        on_host, dataloader = host_collectives(run)[rank], dataloader_spans(run, rank)
        for device, events in device_events(run, rank, scope.only_ranks()).devices():
            gaps = find_gaps(events, window.intervals, on_host, dataloader, sync_spans(run, rank))
            yield rank, device, events, gaps


def waits_for_host(run: Run, rank: int, scope: Scope) -> Intervals:
    """When all devices of a rank are idle and the next event was not launched yet when that began."""
    events = device_events(run, rank, scope.only_ranks())
    on_host = host_collectives(run)[rank]
    gaps = find_gaps(events, windows(run, scope).of(rank).intervals, on_host, EMPTY, EMPTY)
    return subtract(Intervals(gaps.start[~gaps.queued], gaps.end[~gaps.queued]), on_host)


class GapGroup(NamedTuple):
    """The gaps of a device that launches of one kind end."""

    within: str | None
    op: str | None
    source: str | None
    gaps: int
    without_launch: int
    """Those that end with an event that has no launch in the file."""
    causes: tuple[int, ...]
    """By CAUSES."""
    longest: tuple[int, int, int]
    """Its idle time, start and end; in ns from the start of the rank's first file."""

    @property
    def host_late(self) -> int:
        """The idle time before launches that come late, without waits for data and synchronising calls."""
        return sum(self.causes[:2])

    def plus(self, other: GapGroup) -> GapGroup:
        return self._replace(
            gaps=self.gaps + other.gaps,
            without_launch=self.without_launch + other.without_launch,
            causes=tuple(map(add, self.causes, other.causes)),
            longest=max(self.longest, other.longest),
        )


def _sum(groups: Iterable[GapGroup]) -> GapGroup:
    return reduce(GapGroup.plus, groups, GapGroup(None, None, None, 0, 0, (0,) * len(CAUSES), (0, 0, 0)))


@kept_per_rank("idle", list[tuple[int, list[GapGroup]]])
def rank_gaps(run: Run, scope: Scope) -> dict[int, list[tuple[int, list[GapGroup]]]]:
    """By device, of the ranks with GPU events and a window."""
    by_rank: dict[int, list[tuple[int, list[GapGroup]]]] = {}
    for rank, device, events, gaps in _gaps_by_device(run, scope):
        by_rank.setdefault(rank, []).append((device, [*_groups(run, rank, scope, events, gaps)]))
    return by_rank


def _groups(run: Run, rank: int, scope: Scope, events: DeviceEvents, gaps: Gaps) -> Iterator[GapGroup]:
    if len(gaps.start) == 0:
        return
    before, ends, names = gaps.before, gaps.before != UNKNOWN, all_names(run)
    op, line, time = (
        np.where(ends, column[before], UNKNOWN) for column in (events.op, events.line, events.launch_start)
    )
    # The annotation around the launch, or else the phase.
    track = np.where(time == UNKNOWN, UNKNOWN, events.launch_track[before])
    annotation = rank_annotations(run, rank).at(track, time)
    phase = partition_of(run, rank, scope.only_ranks()).at(time)
    within = np.where(annotation != UNKNOWN, annotation, len(names) + phase)
    texts = [*names, *PHASES, None]
    keys, group = number_rows([np.where(time == UNKNOWN, UNKNOWN, within), op, line])
    idle, origin = gaps.causes.sum(axis=0), run.origin_ns(rank)
    order = np.lexsort((idle, group))
    longest = order[np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)]
    without = sums_by(group, ends & (time == UNKNOWN))
    causes = (sums_by(group, of_cause) for of_cause in gaps.causes)
    spans = (idle[longest], gaps.start[longest] - origin, gaps.end[longest] - origin)
    columns = (keys, np.bincount(group), without, np.stack([*causes], axis=1), np.stack(spans, axis=1))
    for of_group, count, lost, by_cause, span in zip(*(each.tolist() for each in columns), strict=True):
        of_launch = [texts[code] for code in of_group]
        yield GapGroup._make((*of_launch, count, lost, tuple(by_cause), tuple(span)))


def _by_key(groups: Iterable[tuple[Any, GapGroup]]) -> dict[Any, GapGroup]:
    sums: dict[Any, GapGroup] = {}
    for key, group in groups:
        sums[key] = sums[key].plus(group) if key in sums else group
    return sums


def gaps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per annotation or phase and op (--by source: per line), the most idle time first."""
    keys = {"rank": ("rank", "within", "op"), "source": ("source",)}.get(by or "", ("within", "op"))
    sums = _by_key(
        (tuple(rank if key == "rank" else getattr(group, key) for key in keys), group)
        for rank, devices in rank_gaps(run, scope).items()
        for _, groups in devices
        for group in groups
    )
    total = sum(sum(group.causes) for group in sums.values())
    rows = [
        dict(zip(keys, key, strict=True))
        | {
            "idle_ns": sum(group.causes),
            "idle_pct": 100 * sum(group.causes) / total if total else 0.0,
            "gaps": group.gaps,
            "max_ns": group.longest[0],
            "cause": max(zip(group.causes, CAUSES, strict=True), key=itemgetter(0))[1],
        }
        for key, group in sums.items()
    ]
    rows.sort(key=lambda row: (-row["idle_ns"], *(str(row[key]) for key in keys)))
    inside, notes = gpu_notes(run, scope)
    if inside and not rows:
        notes.append("no gaps: the GPU is never idle")
    elif inside and by is None and all(row["op"] is None for row in rows):
        notes.append(f"the trace has no ops; {how_to_record(run, 'host')}")
    elif inside and by == "source" and all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*(_KEYS[key] for key in keys), *_MEASURES)
    unknown = "" if inside else None
    return Result(
        "idle.gaps", "Idle gaps of the GPU", scope.window, columns, rows, notes=tuple(notes), unknown=unknown
    )


def gap_words(run: Run, rank: int, span: tuple[int, int]) -> str | None:
    """'2.09 ms idle: host bound before aten::gather', of the gap with this span; None where there is none."""
    for _, _, events, gaps in _gaps_by_device(run, Scope(ranks=frozenset([rank]))):
        for at in np.flatnonzero((gaps.start == span[0]) & (gaps.end == span[1])).tolist():
            cause = CAUSES[int(gaps.causes[:, at].argmax())].replace("_", " ")
            before = int(gaps.before[at])
            op = UNKNOWN if before == UNKNOWN else int(events.op[before])
            where = "" if op == UNKNOWN else f" before {all_names(run)[op]}"
            return f"{format_rounded('ns', span[1] - span[0])} idle: {cause}{where}"
    return None


COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("host_bound_ns", "ns", "before the call that launches the next event"),
    Column("launch_latency_ns", "ns", "from the start of that call to the start of the event"),
    Column("sync_ns", "ns", "the host is in a synchronising call, and nothing is queued"),
    Column("dataloader_ns", "ns", "the host waits for a batch"),
    Column("other_ns", "ns", "the next event is already launched, or its launch is not in the file"),
)


def idle(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and device."""
    rows: list[dict[str, Any]] = []
    late: dict[int, list[GapGroup]] = {}
    without_launch, lost = 0, kernels_end_in(run, scope)
    for rank, devices in rank_gaps(run, scope).items():
        for device, groups in devices:
            whole = _sum(groups)
            rows.append({"rank": rank, "device": None if device == UNKNOWN else device})
            rows[-1] |= {f"{cause}_ns": time for cause, time in zip(CAUSES, whole.causes, strict=True)}
            without_launch += whole.without_launch
            # Where kernels were lost, the GPU only seems idle, and a doubt of the run says so.
            if rank not in lost and 2 * whole.without_launch < whole.gaps:
                late[rank] = max(late.get(rank, []), groups, key=lambda each: _sum(each).host_late)
    _, notes = gpu_notes(run, scope)
    if without_launch:
        notes.append(
            f"{without_launch:,} gaps end with a GPU event that has no launch in the file; they count as 'other': "
            f"{how_to_record(run, 'launches')}"
        )
    waited = that_matter(run, scope, {rank: _sum(each).host_late for rank, each in late.items()})
    limits = (_limit(run, scope, waited, {rank: late[rank] for rank in waited}),) if waited else ()
    return Result("idle", "Why the GPU is idle", scope.window, COLUMNS, rows, limits, tuple(notes))


def _limit(run: Run, scope: Scope, waited: dict[int, float], late: dict[int, list[GapGroup]]) -> Finding:
    """No GPU waits for a launch. Of each rank, its device that waits most."""
    rank = max(waited, key=waited.__getitem__)
    regions = _by_key((group.within, group) for group in late[rank])
    name, region = max(regions.items(), key=lambda item: item[1].host_late)
    lines = _by_key((group.source, group) for group in late[rank] if group.source is not None)
    line = max(lines, key=lambda line: lines[line].host_late, default=None)
    steps, origin = steps_in(run, scope), run.origin_ns(rank)
    place = (
        "the step" if name == "forward" and framework(run) == "jax" else _PHASE_NAMES.get(name or "", name)
    )

    def waits(group: GapGroup, before: str) -> Fact:
        time, each = group.host_late / max(steps, 1), ", per step" * (steps > 0)
        return Fact("launch_wait_ns", round(time), "ns", f"rank {rank}, before {before}{each}", (rank,))

    return Finding(
        "limit",
        "Host gaps",
        ranks=tuple(sorted(late)),
        span=(region.longest[1] + origin, region.longest[2] + origin),
        advice=_hint(run, _sum(map(_sum, late.values())), name),
        facts=(
            mean_on(run, scope, "launch_wait_ns", waited),
            waits(
                region, "events without a recorded launch" if name is None else f"work launched in {place}"
            ),
            *([waits(lines[line], f"launches at {line}")] if line else []),
        ),
        remedy=Remedy("host gaps gone"),
        names=tuple(filter(None, (None if name in _PHASE_NAMES else name, line))),
    )


def _hint(run: Run, late: GapGroup, where: str | None) -> str:
    """Data loading and synchronising calls come first where they are the larger part."""
    first, (_, _, syncs, loading, _) = "", late.causes
    if loading > late.host_late or where == "dataloader":
        first = "Load data faster first (-r dataloader). "
    elif syncs > late.host_late:
        first = "Remove synchronising calls first (-r idle.syncs). "
    if where and where.lower().startswith("optim") and (ways := in_the_optimizer(run)):
        return f"{first}Launch less in the optimizer: {', '.join(ways)}. -r idle.gaps shows where."
    ways = ahead_of_gpu(run)
    return f"{first}Keep the host ahead of the GPU: {', '.join(ways)}. -r idle.gaps,idle.short_kernels shows where."


_PHASE_NAMES = {
    "dataloader": "data loading",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "recompute": "the recomputation",
    "optimizer": "the optimizer step",
    "other": "an unannotated region",
}
