"""Single collectives: those that cost the ranks most waiting, and one of them on all its ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import blame
from rankscope.analysis.across_ranks.comparison_notes import comparison_notes
from rankscope.analysis.across_ranks.time_split import PARTS
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.errors import UsageError
from rankscope.store.arrays import NONE
from rankscope.timeline.run import Run

_WORST = (
    Column("collective", help="its number: all ranks have the same"),
    Column("kind"),
    Column("group", help="its process group"),
    Column("step"),
    Column("bytes", "bytes", "message size"),
    Column("ranks", "count", "that took part and were recorded"),
    Column("transfer_ns", "ns", "from the arrival of the last rank to the end"),
    Column("wait_ns", "ns", "waiting of all its ranks together"),
    Column("last_rank", help="arrived last"),
    Column("cause", help="what the last rank spent more time on than the median of the others"),
    Column("blamed_rank", help="where the chain of waiting began"),
)
_MOST_ROWS = 500
_ARRIVALS = (
    Column("rank"),
    Column("arrives_ns", "ns", "after the first rank, on aligned clocks"),
    Column("wait_ns", "ns", "until the last rank arrived"),
    Column("dur_ns", "ns"),
    Column("start_ns", "ns", "from the run's start"),
)


def worst_collectives(run: Run, scope: Scope) -> Result:
    """One row for each matched collective of the steps in scope, those with most waiting first."""
    scope = scope.in_run(run)
    found = waits(run)
    rows = found.rows
    known = np.flatnonzero(found.wait != NONE)
    waited = np.bincount(rows.match[known], weights=found.wait[known], minlength=rows.count)
    there, first = np.unique(rows.match[known], return_index=True)
    inside = np.ones(len(there), dtype=bool)
    if scope.steps is not None:
        inside = (found.step[there] >= scope.steps[0]) & (found.step[there] <= scope.steps[1])
    order = np.flatnonzero(inside)[np.argsort(-waited[there[inside]], kind="stable")]
    table = [
        _described(run, found, int(known[first[at]]), int(waited[there[at]]))
        for at in order[:_MOST_ROWS].tolist()
    ]
    notes = comparison_notes(run, scope)
    if len(order) > _MOST_ROWS:
        notes.append(f"left out: {len(order) - _MOST_ROWS:,} collectives with less waiting")
    title = "Collectives, by the time ranks wait in them"
    return Result("collective", title, scope.window, _WORST, table, notes=tuple(notes))


def one_collective(run: Run, number: int) -> Result:
    """One row for each rank, in order of arrival; the facts are the row of `worst_collectives`."""
    found = waits(run)
    rows = found.rows
    members = np.flatnonzero(rows.match == number) if number >= 0 else np.zeros(0, dtype=np.int64)
    if len(members) == 0:
        raise UsageError(
            f"there is no collective {number}",
            why=f"Collectives that were matched across ranks have the numbers 0 to {rows.count - 1:,}."
            if rows.count
            else "No collective of this run was matched across ranks.",
            hint="Without a number, the collectives in which ranks wait longest are listed.",
        )
    members = members[np.argsort(rows.start[members], kind="stable")]
    first = int(rows.start[members[0]])
    table = [
        {
            "rank": int(rows.rank[at]),
            "arrives_ns": int(rows.start[at]) - first,
            "wait_ns": _known(found.wait[at]),
            "dur_ns": int(rows.end[at] - rows.start[at]),
            "start_ns": int(rows.start[at]),
        }
        for at in members.tolist()
    ]
    waited = sum(row["wait_ns"] or 0 for row in table)
    facts = _described(run, found, int(members[0]), waited)
    return Result(
        "collective",
        f"{facts['kind']} {number} on {len(table)} ranks",
        "whole file" if facts["step"] is None else f"step {facts['step']}",
        _ARRIVALS,
        table,
        facts=facts,
    )


def _described(run: Run, found: Waits, at: int, waited: int) -> dict[str, Any]:
    """The collective of an entry."""
    rows, why = found.rows, blame(run)
    match = int(rows.match[at])
    group = rows.groups[rows.group[at]]
    last, cause = int(found.last[match]), int(why.cause[match])
    return {
        "collective": match,
        "kind": KINDS[rows.kind[at]],
        "group": group.description or group.name,
        "step": _known(found.step[match]),
        "bytes": _known(rows.bytes[at]),
        "ranks": int(found.ranks[match]),
        "transfer_ns": _known(found.transfer[match]),
        "wait_ns": waited,
        "last_rank": None if last == NONE else int(rows.rank[last]),
        "cause": None if cause == NONE else PARTS[cause],
        "blamed_rank": _known(why.rank[match]),
    }


def _known(value: Any) -> int | None:
    return None if value == NONE else int(value)
