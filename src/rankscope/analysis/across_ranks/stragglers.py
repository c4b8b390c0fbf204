"""Which rank makes the others wait, how long, and why it is late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import Blame, blame
from rankscope.analysis.across_ranks.comparison_notes import comparison_notes
from rankscope.analysis.across_ranks.rank_activity import PARTS
from rankscope.analysis.across_ranks.straggler_cause import straggler_cause
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Axis, Ints, union
from rankscope.analysis.core.result import Column, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods
from rankscope.store.arrays import NONE, number_rows
from rankscope.store.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("last_count", "count", "collectives at which it arrived last", title="Last"),
    Column(
        "caused_wait_ns",
        "ns",
        "time that other ranks waited because of it, summed over them",
        title="Caused wait",
    ),
    Column("own_wait_ns", "ns", "time that it waited for other ranks", title="Own wait"),
    Column(
        "compute_ns",
        "ns",
        "extra compute time before those collectives, over the median of the other ranks",
    ),
    Column("host_ns", "ns", "extra time in none of the other classes: the host is late"),
    Column("copy_ns", "ns", "extra time in copies", minor=True),
    Column("dataloader_ns", "ns", "extra time waiting for data", minor=True),
    Column("waiting_ns", "ns", "extra time in other collectives", minor=True),
    Column("cause", "", "the largest of these", at_end=True),
)

WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.25
LEAST_STEPS = 3
_LEAST_SHARE = 0.01
"""Waits below this share of a step are not reported."""


@dataclass(frozen=True)
class CausedWait:
    """How long one rank made the others wait, over all steps."""

    rank: int
    waiting_ranks: int
    per_step_ns: float
    """Per waiting rank and step; time spent waiting in two collectives at once counts once."""
    share: float
    """per_step_ns as a share of a step."""
    worst_steps: int
    """Steps in which it caused more waiting than any other rank."""
    steps: int

    @property
    def severity(self) -> Severity:
        often = self.worst_steps >= LEAST_STEPS and 2 * self.worst_steps > self.steps
        if often and self.share > CRITICAL_SHARE:
            return "critical"
        if often and self.share > WARNING_SHARE:
            return "warning"
        return "info" if self.share >= _LEAST_SHARE else "ok"


def stragglers(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank, by the wait it caused."""
    found, why = waits(run), blame(run)
    used = _in_scope(found, scope)
    rows = _rows(found, why, used, scope)
    worst = _worst(run, scope, found, why, used)
    findings = _findings(run, scope, found, why, used, worst)
    notes = comparison_notes(run, scope)
    if not used.any():
        notes.append(
            "waiting times are not known: no all_reduce, all_gather, reduce_scatter, all_to_all or barrier in the "
            "window was matched across ranks"
        )
    elif worst is None:
        notes.append("the wait per step is not known: no steps in the window, or no rank waited in one")
    return Result("stragglers", "Stragglers", scope.window, COLUMNS, rows, findings, tuple(notes))


def _in_scope(found: Waits, scope: Scope) -> Any:
    """By match: whether its waits are known and it lies in the window."""
    used = found.transfer != NONE
    if scope.steps is not None:
        used &= (found.step >= scope.steps[0]) & (found.step <= scope.steps[1])
    return used


def _rows(found: Waits, why: Blame, used: Any, scope: Scope) -> list[dict[str, Any]]:
    entries = found.rows
    ranks = np.unique(entries.rank)
    count = int(ranks.max(initial=-1)) + 1
    at = (
        np.flatnonzero((found.wait != NONE) & used[entries.match])
        if len(used)
        else np.empty(0, dtype=np.int64)
    )
    own = _sums(entries.rank[at], found.wait[at], count)
    total = _sums(entries.match[at], found.wait[at], len(used))
    blamed = np.flatnonzero(used & (why.rank != NONE))
    caused = _sums(why.rank[blamed], total[blamed], count)
    last = np.flatnonzero(used & (found.last != NONE))
    last_rank = entries.rank[found.last[last]]
    lasts = np.bincount(last_rank, minlength=count)
    parts = {name: _sums(last_rank, why.excess[i, last], count) for i, name in enumerate(PARTS)}
    rows = []
    for rank in ranks.tolist():
        if scope.ranks is not None and rank not in scope.ranks:
            continue
        spent = {name: int(parts[name][rank]) for name in PARTS}
        cause = max(spent, key=lambda name: spent[name])
        rows.append(
            {
                "rank": rank,
                "last_count": int(lasts[rank]),
                "caused_wait_ns": int(caused[rank]),
                "own_wait_ns": int(own[rank]),
                **{
                    f"{name}_ns": spent[name] for name in ("compute", "host", "copy", "dataloader", "waiting")
                },
                "cause": cause if spent[cause] else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"]))


def _sums(index: Ints, value: Ints, count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, index, value)
    return total


def _worst(run: Run, scope: Scope, found: Waits, why: Blame, used: Any) -> CausedWait | None:
    """The rank that caused most waiting; None when there are no steps or no rank waited."""
    numbers, mean = _steps(run, Scope(steps=scope.steps))
    entries = found.rows
    at = np.flatnonzero((found.wait > 0) & (entries.match != NONE))
    at = at[
        used[entries.match[at]]
        & (why.rank[entries.match[at]] != NONE)
        & (found.step[entries.match[at]] != NONE)
    ]
    if not numbers or len(at) == 0:
        return None
    match = entries.match[at]
    step = np.minimum(np.searchsorted(numbers, found.step[match]), len(numbers) - 1)
    groups, group = number_rows([step, why.rank[match], entries.rank[at]])
    waited = _waited(entries.start[at], found.wait[at], group, len(groups))
    causing = groups[:, 1]
    table = np.zeros((len(numbers), int(causing.max()) + 1), dtype=np.int64)
    np.add.at(table, (groups[:, 0], causing), waited)
    worst = table.argmax(axis=1)
    rank = int(table.sum(axis=0).argmax())
    waiting = len(np.unique(groups[(causing == rank) & (groups[:, 2] != rank), 2]))
    per_step = float(table[:, rank].sum()) / max(waiting, 1) / len(numbers)
    return CausedWait(
        rank=rank,
        waiting_ranks=waiting,
        per_step_ns=per_step,
        share=per_step / mean if mean else 0.0,
        worst_steps=int(((worst == rank) & (table.max(axis=1) > 0)).sum()),
        steps=len(numbers),
    )


def _waited(start: Ints, wait: Ints, group: Ints, count: int) -> Ints:
    """How long each group waited; overlapping waits count once."""
    end = start + wait
    axis = Axis.over(start, end, count)
    return axis.lengths(union(axis.place(start, group), axis.place(end, group)))


def _steps(run: Run, everyone: Scope) -> tuple[list[int], float]:
    """The step numbers, and the mean step time: the host's, or the GPU's where that is more than 10 % longer."""
    host = run.rows(f"SELECT step, dur_ns FROM steps WHERE {everyone.where()}")
    if not host:
        return [], 0.0
    on_host = float(np.mean([duration for _, duration in host]))
    with_gpu = float(np.mean([period.dur_ns for period in periods(run, everyone)]))
    return sorted({step for step, _ in host}), with_gpu if with_gpu > 1.1 * on_host else on_host


def _findings(
    run: Run, scope: Scope, found: Waits, why: Blame, used: Any, worst: CausedWait | None
) -> tuple[Finding, ...]:
    if worst is None:
        return ()
    if worst.severity == "ok":
        wait = f"{format_rounded('ns', worst.per_step_ns)} per step ({100 * worst.share:.1f} %)"
        return (Finding("ok", "No straggler", f"the longest wait is for rank {worst.rank}: {wait}"),)
    blamed = np.flatnonzero(used & (why.rank == worst.rank) & (found.last != NONE))
    cause = straggler_cause(run, scope, found, why, np.unique(why.root[blamed]), worst.rank, worst.steps)
    others = f"{worst.waiting_ranks} other{'s' * (worst.waiting_ranks != 1)}"
    wait = f"{format_rounded('ns', worst.per_step_ns)} per step ({100 * worst.share:.0f} %)"
    title = f"Rank {worst.rank} made {others} wait {wait}"
    evidence = f"it caused the largest wait in {worst.worst_steps} of {worst.steps} steps"
    return (
        Finding(
            worst.severity,
            f"{title}; {cause.title}" if cause.title else title,
            f"{evidence}; {cause.evidence}" if cause.evidence else evidence,
            ranks=(worst.rank,),
            span=_span(found, blamed),
            hint=cause.hint,
            cost_ns=round(worst.per_step_ns),
        ),
    )


def _span(found: Waits, blamed: Ints) -> tuple[int, int] | None:
    """The collective with the longest wait that this rank caused."""
    rows = found.rows
    at = np.flatnonzero(np.isin(rows.match, blamed) & (found.wait != NONE))
    if len(at) == 0:
        return None
    longest = at[found.wait[at].argmax()]
    return int(rows.start[longest]), int(rows.end[longest])
