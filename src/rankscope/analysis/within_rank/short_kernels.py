"""Short kernels: how many each op launches, and whether launching them takes longer than running them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import fewer_kernels
from rankscope.analysis.core.device_events import COMPUTE, UNKNOWN, DeviceEvents, device_events, steps_in
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu, no_lines
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.core.step_times import windows
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

SHORT_NS = 10_000
"""A launch costs the host 5 to 10 µs under the profiler (median 8.2 µs on the H200 traces), so a shorter kernel can
end before the next one is launched."""
_MAX_LIMITS = 3

_MEASURES = (
    Column("count", "count", f"compute kernels under {SHORT_NS // 1000} µs"),
    Column("count_pct", "percent", "share of all compute kernels of the row"),
    Column("total_ns", "ns", "time of the short kernels on the device"),
    Column("avg_ns", "ns", "mean duration of the short kernels"),
    Column(
        "launch_ns",
        "ns",
        "host time in the calls that launched them; a call that launched several counts once",
    ),
)


class GroupSums(NamedTuple):
    """The short kernels that one op or line launched."""

    name: str | None
    short: int
    total_ns: int
    launch_ns: int
    kernels: int
    """All its compute kernels."""


@dataclass(frozen=True)
class RankShort:
    """The short kernels of one rank, by what launched them."""

    groups: tuple[GroupSums, ...]
    span: int
    """The length of the window."""

    @property
    def sums(self) -> GroupSums:
        columns = zip(*(group[1:] for group in self.groups), strict=True)
        return GroupSums(None, *(sum(column) for column in columns))


@kept_per_rank("short", RankShort)
def rank_short(run: Run, scope: Scope) -> dict[int, RankShort]:
    """By op, of the ranks with compute kernels."""
    return _by_launcher(run, scope, "op")


def _by_launcher(run: Run, scope: Scope, column: Literal["op", "line"]) -> dict[int, RankShort]:
    names = all_names(run)
    records = {}
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope)
        events = events.pick(events.kind == COMPUTE)
        if len(events):
            groups = _groups(events, getattr(events, column), names)
            records[rank] = RankShort(tuple(groups), windows(run, rank, scope).span)
    return records


def short_kernels(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per op (--by: line of Python, or rank) that launches short kernels."""
    key = {"rank": "rank", "source": "source"}.get(by or "", "op")
    groups: dict[Any, dict[str, Any]] = {}
    inside = 0
    by_rank = _by_launcher(run, scope, "line") if key == "source" else rank_short(run, scope)
    for rank, record in by_rank.items():
        sums = record.sums
        inside += sums.kernels
        for group in (sums,) if key == "rank" else record.groups:
            name = rank if key == "rank" else group.name
            row = groups.setdefault(name, dict.fromkeys(("count", "total_ns", "launch_ns", "all"), 0))
            for column, value in zip(row, group[1:], strict=True):
                row[column] += value
    rows = [
        {
            key: name,
            "count": row["count"],
            "count_pct": 100 * row["count"] / row["all"],
            "total_ns": row["total_ns"],
            "avg_ns": row["total_ns"] / row["count"],
            "launch_ns": row["launch_ns"],
        }
        for name, row in groups.items()
        if row["count"]
    ]
    rows.sort(key=lambda row: (-row["launch_ns"], -row["count"], str(row[key])))
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside, "kernels", kind="COMPUTE")
    if not inside:
        notes.append(no_gpu(run))
    elif not rows:
        notes.append(f"no compute kernel is shorter than {SHORT_NS // 1000} µs")
    elif key == "source" and all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (Column(key, help="origin of the launches", at_end=key != "rank"), *_MEASURES)
    title, unknown = f"Kernels under {SHORT_NS // 1000} µs", "" if inside else None
    limits = _limits(run, scope, by_rank) if key == "op" else ()
    return Result("short_kernels", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown)


def _groups(events: DeviceEvents, codes: Ints, names: list[str]) -> Iterator[GroupSums]:
    """For each code the count, run time and launch time of its short kernels, and the count of all its kernels."""
    duration = events.end - events.start
    is_short = duration < SHORT_NS
    # One call of a CUDA graph launches many kernels and costs once.
    launched = np.flatnonzero(is_short & (events.launch_start != UNKNOWN))
    _, first = np.unique((events.segment[launched] << 48) | events.launch[launched], return_index=True)
    launch = np.zeros_like(duration)
    launch[launched[first]] = (events.launch_end - events.launch_start)[launched[first]]
    distinct, group = np.unique(codes, return_inverse=True)
    columns = (
        np.bincount(group, weights=weights, minlength=len(distinct)).astype(np.int64).tolist()
        for weights in (is_short, duration * is_short, launch, None)
    )
    for code, *sums in zip(distinct.tolist(), *columns, strict=True):
        yield GroupSums(None if code == UNKNOWN else names[code], *sums)


def _limits(run: Run, scope: Scope, by_rank: dict[int, RankShort]) -> tuple[Finding, ...]:
    """The ops whose short kernels take longest to launch: one kernel a step instead would be launched once."""
    steps, ops = steps_in(run, scope), dict[str | None, dict[int, GroupSums]]()
    spared: dict[str | None, dict[int, float]] = {}
    for rank, record in by_rank.items():
        for group in record.groups:
            calls = group.short / max(steps, 1)
            less = group.launch_ns * (1 - 1 / calls) if calls > 1 and group.launch_ns > group.total_ns else 0
            if less > 0 and less >= LIMIT_SHARE * record.span:
                ops.setdefault(group.name, {})[rank] = group
                spared.setdefault(group.name, {})[rank] = less
    most = sorted(ops, key=lambda op: -max(spared[op].values()))[:_MAX_LIMITS]
    return tuple(_limit(run, scope, op, ops[op], max(spared[op].values()) / max(steps, 1)) for op in most)


def _limit(run: Run, scope: Scope, op: str | None, by_rank: dict[int, GroupSums], most_ns: float) -> Finding:
    steps, ranks = steps_in(run, scope), tuple(sorted(by_rank))
    launched = {rank: group.launch_ns for rank, group in by_rank.items()}
    count, total = (sum(getattr(group, name) for group in by_rank.values()) for name in ("short", "total_ns"))
    key, everywhere = {"op": op}, len(by_rank) == len(scope.ranks_in(run))
    return Finding(
        "limit",
        f"Small kernels {f'of {op}' if op else 'outside any op'}",
        f"{count:,} kernels under {SHORT_NS // 1000} µs run {format_rounded('ns', total / count)} on average; to "
        f"launch them takes {mean_on(launched, len(scope.ranks_in(run)), steps)}",
        ranks,
        hint=f"Launch fewer and larger kernels: {', '.join(fewer_kernels(run))}.",
        facts=(
            Fact("count", count, "count", "all ranks", ranks, key),
            Fact("launch_ns", sum(launched.values()), "ns", "all ranks", ranks, key),
        )
        if everywhere
        else (),
        remedy=Remedy("host gaps gone", most_ns=most_ns),
        names=(op,) if op else (),
    )
