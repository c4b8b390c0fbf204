"""GPU idle time by the launch that ends each gap: its annotation or phase, op and line of Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.host_spans import rank_annotations
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import NO_GPU, gpu_outside_steps, left_out, no_lines
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.idle_causes import CAUSES, DeviceIdle, idle_by_device
from rankscope.analysis.within_rank.phases import PHASES, partition_of
from rankscope.records import dataclass
from rankscope.timeline.run import Run

_MEASURES = (
    Column("idle_ns", "ns", "idle time in gaps that such a launch ends"),
    Column("idle_pct", "percent", "share of all idle time"),
    Column("gaps", "count", "number of gaps"),
    Column("max_ns", "ns", "the longest gap"),
    Column("cause", help="largest cause of this idle time; see the idle report"),
)


@dataclass
class GapGroup:
    """Totals of the gaps that launches of one kind end."""

    gaps: int = 0
    longest: int = 0
    longest_span: tuple[int, int] = (0, 0)
    causes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))

    @property
    def idle(self) -> int:
        return sum(self.causes.values())

    @property
    def cause(self) -> str:
        return max(self.causes, key=lambda name: self.causes[name])


def gaps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per annotation or phase and op (--by source: per line), the most idle time first."""
    keys = {"rank": ("rank", "within", "op"), "source": ("source",)}.get(by or "", ("within", "op"))
    groups: dict[tuple[Any, ...], GapGroup] = {}
    inside = sum(count.events for count in gpu_counts(run, scope))
    for rank, named in _named_groups(run, scope, by):
        for key, group in named:
            _add(groups.setdefault((rank, *key) if by == "rank" else key, GapGroup()), group)
    total = sum(group.idle for group in groups.values())
    rows = [
        dict(zip(keys, key, strict=True))
        | {
            "idle_ns": group.idle,
            "idle_pct": 100 * group.idle / total if total else 0.0,
            "gaps": group.gaps,
            "max_ns": group.longest,
            "cause": group.cause,
        }
        for key, group in groups.items()
    ]
    rows.sort(key=lambda row: (-row["idle_ns"], *(str(row[key]) for key in keys)))
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside)
    if not inside:
        notes.append(NO_GPU)
    elif not rows:
        notes.append("no gaps: the GPU is never idle")
    elif by is None and all(row["op"] is None for row in rows):
        notes.append("the trace has no ops; torch.profiler records them (rankscope profile --tool torch)")
    elif by == "source" and all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*(_KEY_COLUMNS[key] for key in keys), *_MEASURES)
    unknown = "" if inside else None
    return Result(
        "gaps", "Idle gaps of the GPU", scope.window, columns, rows, notes=tuple(notes), unknown=unknown
    )


class NamedGap(NamedTuple):
    """The gaps that launches of one op in one annotation or phase end."""

    within: str | None
    op: str | None
    gaps: int
    longest_ns: int
    causes: dict[str, int]


@dataclass(frozen=True)
class RankGaps:
    """The gaps of one rank."""

    groups: tuple[NamedGap, ...]


@kept_per_rank("gaps", RankGaps)
def rank_gaps(run: Run, scope: Scope) -> dict[int, RankGaps]:
    """Of the ranks with GPU events and a window."""
    found: dict[int, list[NamedGap]] = {}
    for device in idle_by_device(run, scope):
        own = found.setdefault(device.rank, [])
        for (within, op), group in gap_groups(run, scope, device, ("within", "op")):
            own.append(NamedGap(within, op, group.gaps, group.longest, group.causes))
    return {rank: RankGaps(tuple(groups)) for rank, groups in found.items()}


def _named_groups(
    run: Run, scope: Scope, by: str | None
) -> Iterator[tuple[int, Iterable[tuple[tuple[Any, ...], GapGroup]]]]:
    """Rank by rank, groups by annotation or phase and op, or by line of Python."""
    if by == "source":
        for device in idle_by_device(run, scope):
            yield device.rank, gap_groups(run, scope, device, ("source",))
        return
    for rank, found in rank_gaps(run, scope).items():
        yield (
            rank,
            [((g.within, g.op), GapGroup(g.gaps, g.longest_ns, causes=g.causes)) for g in found.groups],
        )


_KEY_COLUMNS = {
    "rank": Column("rank"),
    "within": Column(
        "within", help="annotation around the launch that ends the gap, or else its phase", at_end=True
    ),
    "op": Column("op", help="op around that launch", at_end=True),
    "source": Column("source", help="line of Python around that launch", at_end=True),
}


def _add(group: GapGroup, more: GapGroup) -> None:
    group.gaps += more.gaps
    if more.longest > group.longest:
        group.longest, group.longest_span = more.longest, more.longest_span
    for cause, time in more.causes.items():
        group.causes[cause] += time


def gap_groups(
    run: Run, scope: Scope, found: DeviceIdle, keys: tuple[str, ...]
) -> Iterator[tuple[tuple[Any, ...], GapGroup]]:
    """The gaps of one device, grouped by `keys`: any of rank, within, op, source."""
    spans = found.gaps
    if len(spans.start) == 0:
        return
    events = found.events
    before, names = spans.before, all_names(run)
    ends = before != UNKNOWN
    codes: dict[str, tuple[Ints, list[Any]]] = {
        "rank": (np.zeros(len(before), dtype=np.int64), [found.rank]),
        "op": (np.where(ends, events.op[before], UNKNOWN), [*names, None]),
        "source": (np.where(ends, events.line[before], UNKNOWN), [*names, None]),
    }
    if "within" in keys:
        codes["within"] = _launch_context(run, scope, found, before)
    stacked = np.stack([codes[key][0] for key in keys], axis=1)
    groups, group = _unique_rows(stacked)
    count = len(groups)
    totals = {c: np.bincount(group, weights=getattr(spans, c), minlength=count) for c in CAUSES}
    idle = spans.idle
    order = np.lexsort((idle, group))
    last = np.append(np.flatnonzero(np.diff(group[order])), len(order) - 1)
    longest = order[last]
    gaps_in = np.bincount(group, minlength=count)
    for i, row in enumerate(groups.tolist()):
        key = tuple(codes[name][1][code] for name, code in zip(keys, row, strict=True))
        at = int(longest[i])
        yield (
            key,
            GapGroup(
                int(gaps_in[i]),
                int(idle[at]),
                (int(spans.start[at]), int(spans.end[at])),
                {cause: int(totals[cause][i]) for cause in CAUSES},
            ),
        )


def _unique_rows(rows: Ints) -> tuple[Ints, Ints]:
    """The distinct rows, and the index of each row among them. Faster than np.unique(axis=0), for small numbers."""
    key = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        key = key * (int(column.max()) + 2) + column + 1
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return rows[first], group


def _launch_context(run: Run, scope: Scope, found: DeviceIdle, which: Ints) -> tuple[Ints, list[Any]]:
    """The annotation around the launch of some events, or else the phase: (index of each, texts)."""
    events = found.events
    track = events.launch_track[which]
    time = np.where(which != UNKNOWN, events.launch_start[which], UNKNOWN)
    marked = rank_annotations(run, found.rank)
    number = marked.at(np.where(time == UNKNOWN, UNKNOWN, track), time)
    phase = partition_of(run, found.rank, scope.only_ranks()).at(time)
    names = all_names(run)
    index = np.where(number != UNKNOWN, number, len(names) + phase)
    index = np.where(time == UNKNOWN, len(names) + len(PHASES), index)
    return index, [*names, *PHASES, None]
