"""Short kernels: how many each op launches, and whether launching them takes longer than running them."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import fewer_kernels
from rankscope.analysis.core.device_events import COMPUTE, UNKNOWN, DeviceEvents, device_events
from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import gpu_notes, no_lines
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.severity import mean_on, that_matter
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run

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


class ShortKernels(NamedTuple):
    """The short kernels that one op and line launched."""

    op: str | None
    source: str | None
    short: int
    total_ns: int
    launch_ns: int
    kernels: int
    """All its compute kernels."""


@kept_per_rank("short", list[ShortKernels])
def rank_short(run: Run, scope: Scope) -> dict[int, list[ShortKernels]]:
    """Of the ranks with compute kernels."""
    records = {}
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope)
        if len(events := events.pick(events.kind == COMPUTE)):
            records[rank] = [*_groups(events, all_names(run))]
    return records


def _groups(events: DeviceEvents, names: list[str]) -> Iterator[ShortKernels]:
    duration = events.end - events.start
    is_short = duration < SHORT_NS
    # One call of a CUDA graph launches many kernels and costs once.
    launched = np.flatnonzero(is_short & (events.launch_start != UNKNOWN))
    _, first = np.unique((events.segment[launched] << 48) | events.launch[launched], return_index=True)
    launch = np.zeros_like(duration)
    launch[launched[first]] = (events.launch_end - events.launch_start)[launched[first]]
    keys, group = number_rows([events.op, events.line])
    columns = (
        np.bincount(group, weights=weights).astype(np.int64).tolist()
        for weights in (is_short, duration * is_short, launch, None)
    )
    texts = [*names, None]
    for (op, line), *sums in zip(keys.tolist(), *columns, strict=True):
        yield ShortKernels(texts[op], texts[line], *sums)


def short_kernels(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per op (--by: line of Python, or rank) that launches short kernels."""
    key = by or "op"
    by_rank = {
        rank: summed((rank if key == "rank" else getattr(group, key), group[2:]) for group in groups)
        for rank, groups in rank_short(run, scope).items()
    }
    sums = summed(item for groups in by_rank.values() for item in groups.items())
    rows = [
        {
            key: name,
            "count": count,
            "count_pct": 100 * count / kernels,
            "total_ns": total,
            "avg_ns": total / count,
            "launch_ns": launch,
        }
        for name, (count, total, launch, kernels) in sums.items()
        if count
    ]
    rows.sort(key=lambda row: (-row["launch_ns"], -row["count"], str(row[key])))
    inside, notes = gpu_notes(run, scope, "kernels", kind="COMPUTE")
    if inside and not rows:
        notes.append(f"no compute kernel is shorter than {SHORT_NS // 1000} µs")
    elif inside and key == "source" and all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (Column(key, help="origin of the launches", at_end=key != "rank"), *_MEASURES)
    title, unknown = f"Kernels under {SHORT_NS // 1000} µs", "" if inside else None
    limits = _limits(run, scope, by_rank) if key == "op" else ()
    return Result(
        "idle.short_kernels", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown
    )


def _limits(run: Run, scope: Scope, by_rank: dict[int, dict[Any, list[int]]]) -> tuple[Finding, ...]:
    """The ops whose short kernels take longest to launch: one kernel a step instead would be launched once."""
    steps, ops = max(steps_in(run, scope), 1), dict[str | None, dict[int, list[int]]]()
    for rank, groups in by_rank.items():
        for op, (count, total, launch, _) in groups.items():
            if count > steps and launch > total:
                ops.setdefault(op, {})[rank] = [count, total, launch]
    limits = []
    for op, of_op in ops.items():
        less = {rank: launch * (1 - steps / count) for rank, (count, _, launch) in of_op.items()}
        if matter := that_matter(run, scope, less):
            most_ns, mine = max(matter.values()) / steps, {rank: of_op[rank] for rank in matter}
            limits.append((-most_ns, _limit(run, scope, op, mine, most_ns)))
    return tuple(limit for _, limit in sorted(limits, key=itemgetter(0))[:_MAX_LIMITS])


def _limit(run: Run, scope: Scope, op: str | None, by_rank: dict[int, list[int]], most_ns: float) -> Finding:
    ranks = tuple(sorted(by_rank))
    count, total, _ = map(sum, zip(*by_rank.values(), strict=True))
    key = {"op": op} if len(by_rank) == len(scope.ranks_in(run)) else {}
    return Finding(
        "limit",
        f"Small kernels {f'of {op}' if op else 'outside any op'}",
        ranks=ranks,
        advice=f"Launch fewer and larger kernels: {', '.join(fewer_kernels(run))}.",
        facts=(
            mean_on(run, scope, "launching_ns", {rank: launch for rank, (*_, launch) in by_rank.items()}),
            Fact("run_ns", round(total / count), "ns", "mean"),
            Fact("kernels", count, "count", f"under {SHORT_NS // 1000} µs", ranks, key),
        ),
        remedy=Remedy("host gaps gone", most_ns=most_ns),
        names=(op,) if op else (),
    )
