"""Cost of the profiler, as far as the trace shows it: its overhead events and recorded Python stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rankscope.analysis.core.device_events import slice_counts
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import EMPTY, intersect, length, union
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded, named_ranks
from rankscope.analysis.core.step_times import windows
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run

SHARE_INFO, SHARE_WARNING, SHARE_CRITICAL = 0.02, 0.10, 0.30
"""Shares of the step time."""
FRAMES_PER_OP = 0.25
"""Python frames per op from which stacks count as recorded. Each frame costs about a microsecond."""

COLUMNS = (
    Column("rank"),
    Column("name", help="kind of overhead", at_end=True),
    Column("calls", "count"),
    Column("total_ns", "ns"),
    Column("max_ns", "ns", "longest event"),
    Column("in_steps_ns", "ns", "part of the total inside steps, with overlapping events counted once"),
    Column("step_pct", "percent", "that part as a share of the step time"),
)


def overhead(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and kind of overhead."""
    rows: list[dict[str, Any]] = []
    records = rank_overhead(run, scope)
    for rank, record in records.items():
        for kind in record.kinds:
            share = 100 * kind.in_steps_ns / record.step_ns if record.step_ns else None
            rows.append({"rank": rank, **kind._asdict(), "step_pct": share})
            rows[-1]["in_steps_ns"] = kind.in_steps_ns if record.step_ns else None
    notes = []
    if not rows:
        notes.append(
            "the trace has no events of category 'overhead'. The profiler still has a cost; a run without it shows "
            "how much"
        )
    every = (*_finding(records, len(scope.ranks_in(run))), *_stacks(run, scope))
    return Result("overhead", "Profiler overhead", scope.window, COLUMNS, rows, every, tuple(notes))


class OverheadKind(NamedTuple):
    """The overhead events of one name."""

    name: str
    calls: int
    total_ns: int
    max_ns: int
    in_steps_ns: int


@dataclass(frozen=True)
class RankOverhead:
    """The overhead of one rank, most time first."""

    kinds: tuple[OverheadKind, ...]
    in_steps_ns: int
    """Of all kinds together."""
    step_ns: int
    """0 without steps."""


@kept_per_rank("overhead", RankOverhead)
def rank_overhead(run: Run, scope: Scope) -> dict[int, RankOverhead]:
    """Of the ranks with overhead events."""
    if not any(category.lower() == "overhead" for category in slice_counts(run, Scope())):
        return {}
    events = run.arrays(
        "SELECT rank::BIGINT AS rank, name, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE lower(category) = 'overhead' AND {scope.where()}"
    )
    records = {}
    for rank, columns in split_by_rank(events, unique_values(events["rank"]).tolist()).items():
        names, start, stop = columns["name"], columns["start"], columns["stop"]
        steps = windows(run, scope).of(rank).intervals if scope.steps is not None else EMPTY
        kinds = []
        for name in sorted(set(names.tolist())):
            mine = names == name
            time = (stop - start)[mine]
            inside = length(intersect(union(start[mine], stop[mine]), steps))
            kinds.append(OverheadKind(name, len(time), int(time.sum()), int(time.max()), inside))
        kinds.sort(key=lambda kind: (-kind.total_ns, kind.name))
        inside = length(intersect(union(start, stop), steps))
        records[rank] = RankOverhead(tuple(kinds), inside, length(steps))
    return records


def _finding(records: Mapping[int, RankOverhead], ranks_in_scope: int) -> tuple[Finding, ...]:
    """About the worst rank, with all ranks that lose as large a share of their steps that it is said."""
    shares = {
        rank: record.in_steps_ns / record.step_ns
        for rank, record in records.items()
        if graded(record.in_steps_ns, record.step_ns, SHARE_INFO)
    }
    if not shares:
        return ()
    ranks, rank = sorted(shares), max(shares, key=shares.__getitem__)
    record, share, most = records[rank], shares[rank], records[rank].kinds[0]
    several, mine = len(ranks) > 1, (f"rank {rank}, all kinds", (rank,), {"rank": rank})
    facts = [
        Fact("in_steps_ns", record.in_steps_ns, "ns", *mine),
        Fact("step_pct", 100 * share, "percent", *mine),
        Fact("total_ns", most.total_ns, "ns", most.name, (rank,), {"rank": rank, "name": most.name}),
    ]
    return (
        Finding(
            graded(record.in_steps_ns, record.step_ns, SHARE_INFO, SHARE_WARNING, SHARE_CRITICAL) or "info",
            f"Profiler overhead on {named_ranks(ranks, ranks_in_scope)}: {'up to ' * several}{100 * share:.0f} % of "
            "the step time",
            ranks=tuple(ranks),
            advice="Record fewer steps at a time, add a warm-up step, and leave out stacks and shapes.",
            facts=tuple(facts),
        ),
    )


def _stacks(run: Run, scope: Scope) -> list[Finding]:
    """Recording stacks slows the host, so such a trace shows more idle time than the job has without them."""
    counts = slice_counts(run, scope)
    frames, ops = counts.get("python_function", 0), counts.get("cpu_op", 0)
    if frames == 0 or frames < FRAMES_PER_OP * ops:
        return []
    return [
        Finding(
            "info",
            f"Python stacks were recorded ({frames:,} frames, {ops:,} ops), which slows the host",
            advice="Host times and host-bound idle time include this cost. For timings, record again without stacks "
            "(leave out --with-stack).",
            facts=(Fact("frames", frames, "count", "all ranks"), Fact("ops", ops, "count", "all ranks")),
        )
    ]
