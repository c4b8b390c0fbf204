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
from rankscope.analysis.core.severity import OnRank, graded, of_the_worst
from rankscope.analysis.core.step_times import windows
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

SHORT_NS = 10_000
"""A launch costs the host 5 to 10 µs under the profiler (median 8.2 µs on the H200 traces), so a shorter kernel can
end before the next one is launched."""
LEAST_COST = 0.05
"""Share of the span: launch time minus run time of the short kernels."""

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
    findings: list[OnRank] = []
    inside, steps = 0, steps_in(run, scope)
    by_rank = _by_launcher(run, scope, "line") if key == "source" else rank_short(run, scope)
    for rank, record in by_rank.items():
        sums = record.sums
        inside += sums.kernels
        findings += _finding(run, rank, sums, record.span, steps)
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
    worst = of_the_worst(findings, len(scope.ranks_in(run)))
    return Result("short_kernels", title, scope.window, columns, rows, worst, tuple(notes), unknown=unknown)


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


def _finding(run: Run, rank: int, sums: GroupSums, span: int, steps: int) -> list[OnRank]:
    excess = sums.launch_ns - sums.total_ns
    severity = graded(excess, span, LEAST_COST)
    if severity is None:
        return []
    steps = max(steps, 1)
    per_step = " per step" if steps > 1 else ""
    subject = f"rank {rank}"

    def title(whose: str, up_to: str) -> str:
        count = f"{'About ' if up_to else ''}{sums.short / steps:,.0f} kernels"
        return (
            f"{count}{per_step} of {whose} are under {SHORT_NS // 1000} µs: "
            f"{format_rounded('ns', sums.launch_ns / steps)} to launch, "
            f"{format_rounded('ns', sums.total_ns / steps)} to run"
        )

    finding = Finding(
        severity,
        title(subject, ""),
        f"rank {rank}: {sums.short:,} of {sums.kernels:,} compute kernels",
        (rank,),
        hint=f"Launch fewer and larger kernels: {', '.join(fewer_kernels(run))}.",
        facts=(
            Fact("count", sums.short, "count", subject, (rank,)),
            Fact("kernels", sums.kernels, "count", subject, (rank,)),
            Fact("total_ns", sums.total_ns, "ns", subject, (rank,)),
            Fact("launch_ns", sums.launch_ns, "ns", subject, (rank,)),
        ),
        remedy=Remedy("host gaps gone"),
    )
    return [OnRank(rank, excess / span, finding, title)]
