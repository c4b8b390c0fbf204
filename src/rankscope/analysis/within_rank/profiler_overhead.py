"""What the profiler itself costs, where the trace tells: its own events, and the stacks it recorded."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.device_events import categories, ranks_in, vocabulary
from rankscope.analysis.core.intervals import Intervals, intersect, length, union
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded, of_the_worst
from rankscope.analysis.core.step_times import step_windows
from rankscope.store.run import Run
from rankscope.units import format_ns

SHARE_INFO, SHARE_WARNING, SHARE_CRITICAL = 0.02, 0.10, 0.30
"""Shares of the steps' time: beyond a tenth the trace shows the profiler, not the program."""
STACKS_PER_OP = 0.25
"""From one recorded Python frame for every four ops on, stacks were on; each costs a microsecond or so."""

COLUMNS = (
    Column("rank"),
    Column("name", help="what the profiler did", at_end=True),
    Column("calls", "count"),
    Column("total_ns", "ns"),
    Column("max_ns", "ns", "the longest"),
    Column("in_steps_ns", "ns", "of the total, inside steps"),
    Column("step_pct", "percent", "that as a share of the steps' time"),
)


def overhead(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank and kind of the profiler's own work."""
    rows: list[dict[str, Any]] = []
    findings: list[Finding] = []
    told = any(category.lower() == "overhead" for category in categories(run))
    for rank in ranks_in(run, scope) if told else ():
        own, share = _rows(run, rank, scope)
        rows += own
        findings += share
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "the trace has no events of category 'overhead': the profiler reported no work of its own, which does not "
            "mean that it cost nothing; compare with a run without it"
        )
    return Result(
        "overhead",
        "What the profiler costs",
        scope.window,
        COLUMNS,
        rows,
        (*of_the_worst(findings), *_stacks(run, scope)),
        tuple(notes),
    )


def _rows(run: Run, rank: int, scope: Scope) -> tuple[list[dict[str, Any]], list[Finding]]:
    events = run.arrays(
        "SELECT name, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE rank = {rank} AND lower(category) = 'overhead' AND {scope.where()}"
    )
    if len(events["start"]) == 0:
        return [], []
    windows = step_windows(run, rank, scope)
    steps = union(windows.start, windows.end)
    whole = length(steps)
    rows = []
    for name in sorted(set(events["name"].tolist())):
        mine = events["name"] == name
        start, stop = events["start"][mine], events["stop"][mine]
        inside = _inside(start, stop, steps)
        rows.append(
            {
                "rank": rank,
                "name": name,
                "calls": len(start),
                "total_ns": int((stop - start).sum()),
                "max_ns": int((stop - start).max()),
                "in_steps_ns": inside if whole else None,
                "step_pct": 100 * inside / whole if whole else None,
            }
        )
    rows.sort(key=lambda row: (-row["total_ns"], row["name"]))
    return rows, _finding(
        rank, rows, _inside(events["start"], events["stop"], steps), whole, len(steps.start)
    )


def _inside(start: Any, stop: Any, steps: Intervals) -> int:
    return length(intersect(union(start, stop), steps))


def _finding(rank: int, rows: list[dict[str, Any]], inside: int, whole: int, steps: int) -> list[Finding]:
    severity = graded(inside, whole, SHARE_INFO, SHARE_WARNING, SHARE_CRITICAL)
    if severity is None:
        return []
    most = rows[0]
    return [
        Finding(
            severity,
            f"The profiler's own work takes {100 * inside / whole:.0f} % of the steps' time",
            f"rank {rank}: {format_ns(inside)} in {steps} steps; the most: {most['name']}, "
            f"{format_ns(most['total_ns'])}",
            (rank,),
            hint="Record fewer steps at a time, warm up a step longer, and leave out stacks and shapes.",
            cost_ns=inside // max(steps, 1),
        )
    ]


def _stacks(run: Run, scope: Scope) -> list[Finding]:
    """Recording stacks slows the host: idle figures of such a trace are worse than the job's."""
    if not vocabulary(run, "python_function"):
        return []
    ((frames, ops),) = run.rows(
        "SELECT count(*) FILTER (category = 'python_function'), count(*) FILTER (category = 'cpu_op') "
        f"FROM slices WHERE {scope.where()}"
    )
    if frames == 0 or frames < STACKS_PER_OP * ops:
        return []
    return [
        Finding(
            "info",
            f"Python stacks were recorded, {frames:,} frames beside {ops:,} ops: the host was slower than without them",
            "Idle time that is host bound, and the host's times, include that.",
            hint="For figures to quote, record once more without with_stack (rankscope profile without --with-stack).",
        )
    ]
