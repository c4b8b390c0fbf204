"""What uneven work costs: the run against the same run with its work spread evenly, and whose share it is.

T is the mean step, T_balanced what a replay of balanced work takes (scenarios.balanced), and their quotient S the
slowdown of the OSDI'25 study on stragglers (docs/definitions.md, "Balance").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.data_imbalance import data_notes
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import Scenario, balanced
from rankscope.analysis.faults.balanced import BALANCES, balanced_targets
from rankscope.timeline.run import Run

_COLUMNS = (
    Column("scope", help="run, stage or rank"),
    Column("key", help="what is balanced; of a stage or rank its number", title="Balanced"),
    Column("t_ns", "ns", "mean step as recorded", title="T"),
    Column("balanced_ns", "ns", "predicted step with only this balanced", title="T balanced"),
    Column("slowdown", "", "S: T divided by T balanced", decimals=3),
    Column(
        "share",
        "",
        "part of T - T balanced (all) that this alone saves; null where that is under 1 % of T",
        decimals=3,
    ),
)
_LEAST_SHARE = 0.01
"""Below this part of T there is too little to divide."""
_MOST_RANKS = 8
"""How many ranks are replayed on their own: those with the most time over the balanced one."""


def imbalance(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each way to balance the run, then for each stage and the worst ranks."""
    notes = []
    title = "Imbalance: what uneven work costs, per step"
    savings = savings_of(run, scope)
    rows: list[dict[str, Any]] = []
    if savings is None:
        notes.append("nothing to balance: no work was recorded in the window")
    else:
        cases = _cases(run, savings.graph.scope)
        step, saved = savings.step_ns, [savings.saved_ns([scenario]) for *_, scenario in cases]
        whole = saved[BALANCES.index("all")]
        for (kind, key, _), saved_ns in zip(cases, saved, strict=True):
            rest = round(step) - round(saved_ns)
            rows.append(
                {
                    "scope": kind,
                    "key": key,
                    "t_ns": round(step),
                    "balanced_ns": rest,
                    "slowdown": step / rest if rest > 0 else None,
                    "share": saved_ns / whole if whole >= _LEAST_SHARE * step and whole > 0 else None,
                }
            )
        notes += data_notes(run, savings.graph.scope)
    return Result("faults.imbalance", title, scope.window, _COLUMNS, rows, notes=tuple(notes))


def _cases(run: Run, scope: Scope) -> list[tuple[str, str, Scenario]]:
    targets = balanced_targets(run, scope, "all")
    pieces, ranks, layout = targets.pieces, targets.pieces.graph.ranks, layout_of(run, Scope())
    stages: dict[int, list[int]] = {}
    for rank in ranks:
        stages.setdefault(layout.stage(rank), []).append(rank)
    excess = np.bincount(pieces.rank, weights=pieces.took - targets.then, minlength=len(ranks))
    worst = [ranks[at] for at in np.argsort(-excess, kind="stable")[:_MOST_RANKS] if excess[at] > 0]
    return [
        *(("run", what, balanced(what)) for what in BALANCES),
        *(
            ("stage", str(stage), balanced("all", members))
            for stage, members in sorted(stages.items())
            if len(stages) > 1
        ),
        *(("rank", str(rank), balanced("all", [rank])) for rank in worst),
    ]
