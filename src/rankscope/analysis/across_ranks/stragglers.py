"""Which rank keeps the others waiting, what that costs, and why it is late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import Blame, blame
from rankscope.analysis.across_ranks.collective_waits import Waits, waits
from rankscope.analysis.across_ranks.comparison_notes import across_notes
from rankscope.analysis.across_ranks.rank_activity import PARTS
from rankscope.analysis.across_ranks.straggler_cause import reason
from rankscope.analysis.core.intervals import Axis, Ints, union
from rankscope.analysis.core.result import Column, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods
from rankscope.store.arrays import NONE, number_rows
from rankscope.store.run import Run
from rankscope.units import format_ns

COLUMNS = (
    Column("rank"),
    Column("last_count", "count", "collectives it came last to", title="Last"),
    Column("caused_wait_ns", "ns", "what it made others wait, summed over them", title="Caused wait"),
    Column("own_wait_ns", "ns", "what it waited for others", title="Own wait"),
    Column("compute_ns", "ns", "before the collectives it came last to: GPU busy longer than the median's"),
    Column("host_ns", "ns", "GPU idle longer, the host late"),
    Column("copy_ns", "ns", "copies longer", minor=True),
    Column("dataloader_ns", "ns", "waiting longer for data", minor=True),
    Column("waiting_ns", "ns", "waiting longer in another collective", minor=True),
    Column("cause", "", "the largest of these", at_end=True),
)

WARNING_SHARE, CRITICAL_SHARE = 0.10, 0.25
LEAST_STEPS = 3
_NOTHING_SHARE = 0.01
"""Below this share of a step nobody would look."""


@dataclass(frozen=True)
class Toll:
    """What one rank made the others wait, over all steps."""

    rank: int
    waiting_ranks: int
    per_step_ns: float
    """Per waiting rank and step, on the clock: waiting in two collectives at once is waiting once."""
    share: float
    """Of a step."""
    worst_steps: int
    """Steps in which no rank caused more."""
    steps: int

    @property
    def severity(self) -> Severity:
        often = self.worst_steps >= LEAST_STEPS and 2 * self.worst_steps > self.steps
        if often and self.share > CRITICAL_SHARE:
            return "critical"
        if often and self.share > WARNING_SHARE:
            return "warning"
        return "info" if self.share >= _NOTHING_SHARE else "ok"


def stragglers(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank, who cost the others most first."""
    found, why = waits(run), blame(run)
    used = _in_scope(found, scope)
    rows = _rows(found, why, used, scope)
    toll = _toll(run, scope, found, why, used)
    findings = _findings(run, scope, found, why, used, toll)
    notes = across_notes(run, scope)
    if not used.any():
        notes.append(
            "no collective in the window was matched across ranks: nobody can be said to wait for another"
        )
    elif toll is None:
        notes.append(
            "no steps in the window: what waiting costs a step cannot be told (rankscope profile marks them)"
        )
    return Result(
        "stragglers", "Who keeps the others waiting", scope.window, COLUMNS, rows, findings, tuple(notes)
    )


def _in_scope(found: Waits, scope: Scope) -> Any:
    """By match: does it tell who waited, and lie in the window?"""
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


def _toll(run: Run, scope: Scope, found: Waits, why: Blame, used: Any) -> Toll | None:
    """Of the rank that cost the others most; None without steps or without anybody who waited."""
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
    culprit = groups[:, 1]
    table = np.zeros((len(numbers), int(culprit.max()) + 1), dtype=np.int64)
    np.add.at(table, (groups[:, 0], culprit), waited)
    worst = table.argmax(axis=1)
    rank = int(table.sum(axis=0).argmax())
    waiting = len(np.unique(groups[(culprit == rank) & (groups[:, 2] != rank), 2]))
    per_step = float(table[:, rank].sum()) / max(waiting, 1) / len(numbers)
    return Toll(
        rank=rank,
        waiting_ranks=waiting,
        per_step_ns=per_step,
        share=per_step / mean if mean else 0.0,
        worst_steps=int(((worst == rank) & (table.max(axis=1) > 0)).sum()),
        steps=len(numbers),
    )


def _waited(start: Ints, wait: Ints, group: Ints, count: int) -> Ints:
    """How long each group waited: collectives in flight at the same time wait for the same rank only once."""
    end = start + wait
    axis = Axis.over(start, end, count)
    return axis.lengths(union(axis.place(start, group), axis.place(end, group)))


def _steps(run: Run, everyone: Scope) -> tuple[list[int], float]:
    """The steps, and how long one takes: on the host, unless the GPU lags behind it by more than a tenth."""
    host = run.rows(f"SELECT step, dur_ns FROM steps WHERE {everyone.where()}")
    if not host:
        return [], 0.0
    on_host = float(np.mean([duration for _, duration in host]))
    with_gpu = float(np.mean([period.dur_ns for period in periods(run, everyone)]))
    return sorted({step for step, _ in host}), with_gpu if with_gpu > 1.1 * on_host else on_host


def _findings(
    run: Run, scope: Scope, found: Waits, why: Blame, used: Any, toll: Toll | None
) -> tuple[Finding, ...]:
    if toll is None:
        return ()
    if toll.severity == "ok":
        cost = f"{format_ns(toll.per_step_ns, 1)} a step ({100 * toll.share:.1f} %)"
        most = f"rank {toll.rank} costs the others most, {cost}"
        return (Finding("ok", "No rank keeps the others waiting", most),)
    blamed = np.flatnonzero(used & (why.rank == toll.rank) & (found.last != NONE))
    told = reason(run, scope, found, why, np.unique(why.root[blamed]), toll.rank, toll.steps)
    others = f"{toll.waiting_ranks} other{'s' * (toll.waiting_ranks != 1)}"
    title = f"Rank {toll.rank} made {others} wait {format_ns(toll.per_step_ns, 1)} per step ({100 * toll.share:.0f} %)"
    evidence = f"it caused the largest wait in {toll.worst_steps} of {toll.steps} steps"
    return (
        Finding(
            toll.severity,
            f"{title}; {told.text}" if told.text else title,
            f"{evidence}; {told.evidence}" if told.evidence else evidence,
            ranks=(toll.rank,),
            span=_span(found, blamed),
            hint=told.hint,
            cost_ns=round(toll.per_step_ns),
        ),
    )


def _span(found: Waits, blamed: Ints) -> tuple[int, int] | None:
    """The collective with the longest wait of all that this rank caused."""
    rows = found.rows
    at = np.flatnonzero(np.isin(rows.match, blamed) & (found.wait != NONE))
    if len(at) == 0:
        return None
    longest = at[found.wait[at].argmax()]
    return int(rows.start[longest]), int(rows.end[longest])
