"""What uneven work costs: the run against the same run with its compute spread evenly, and whose share it is.

T is the mean step, T_balanced what a replay with balanced compute segments takes (scenarios.balanced), and their
quotient S the slowdown of the OSDI'25 study on stragglers (docs/definitions.md, "Balance").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.data_imbalance import data_correlation, data_evidence
from rankscope.analysis.across_ranks.segments import BALANCES, PHASES, Segments, segments
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import Savings, savings_of
from rankscope.analysis.critical_path.scenarios import Scenario, balanced
from rankscope.analysis.critical_path.whatif import without_segments
from rankscope.store.arrays import Mask, unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_COLUMNS = (
    Column("scope", help="run, stage, rank, or op: a kind of work"),
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

Chosen = Callable[[Segments], Mask]


def imbalance(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each way to balance the run, then for each stage, the worst ranks and each kind of work."""
    notes = left_out(run, scope)
    title = "Imbalance: what uneven work costs, per step"
    savings = savings_of(run, scope)
    parts = segments(run, scope)
    if savings is None or not len(parts.rank):
        notes.append("nothing to balance: no compute was recorded in the window")
        return Result("imbalance", title, scope.window, _COLUMNS, [], notes=tuple(notes))
    notes += without_segments(run, savings.graph)
    rows = _rows(savings, parts)
    findings = _findings(run, scope, rows)
    return Result("imbalance", title, scope.window, _COLUMNS, rows, findings, tuple(notes))


def _rows(savings: Savings, parts: Segments) -> list[dict[str, Any]]:
    cases: list[tuple[str, str, Scenario]] = [("run", what, balanced(what)) for what in BALANCES]
    stages = unique_values(parts.stage).tolist()
    if len(stages) > 1:
        cases += [("stage", str(stage), balanced("all", _of_stage(stage))) for stage in stages]
    cases += [("rank", str(rank), balanced("all", _of_rank(rank))) for rank in _worst_ranks(parts)]
    present = unique_values(parts.phase).tolist()
    cases += [("op", PHASES[phase], balanced("all", _of_phase(phase))) for phase in present]
    cases.append(("op", "transfer", balanced("all", _nothing, transfers=True)))
    step = savings.step_ns
    savings_of_cases = [savings.saved_ns([scenario]) for _, _, scenario in cases]
    whole = savings_of_cases[BALANCES.index("all")]
    rows = []
    for (kind, key, _), saved in zip(cases, savings_of_cases, strict=True):
        rest = step - saved
        rows.append(
            {
                "scope": kind,
                "key": key,
                "t_ns": round(step),
                "balanced_ns": round(rest),
                "slowdown": step / rest if rest > 0 else None,
                "share": saved / whole if whole >= _LEAST_SHARE * step and whole > 0 else None,
            }
        )
    return rows


def _of_stage(stage: int) -> Chosen:
    return lambda parts: parts.stage == stage


def _of_rank(rank: int) -> Chosen:
    return lambda parts: parts.rank == rank


def _of_phase(phase: int) -> Chosen:
    return lambda parts: parts.phase == phase


def _nothing(parts: Segments) -> Mask:
    return np.zeros(len(parts.rank), dtype=bool)


def _worst_ranks(parts: Segments) -> list[int]:
    """Those that compute longest beyond the balanced time, the worst first."""
    ranks, number = np.unique(parts.rank, return_inverse=True)
    excess = np.bincount(number.reshape(-1), weights=parts.duration_ns - parts.balanced_ns("all"))
    worst = np.argsort(-excess, kind="stable")[:_MOST_RANKS]
    return [int(ranks[at]) for at in worst if excess[at] > 0]


def _findings(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """S and where it comes from, with the facts about the data. What to do about it say bubbles and stragglers."""
    whole = next(row for row in rows if (row["scope"], row["key"]) == ("run", "all"))
    saved, slowdown = whole["t_ns"] - whole["balanced_ns"], whole["slowdown"]
    if whole["share"] is None or slowdown is None:
        return ()
    parts = [row for row in rows if row["scope"] != "run" and row["share"] is not None]
    largest = {
        kind: max((row for row in parts if row["scope"] == kind), key=lambda row: row["share"], default=None)
        for kind in ("stage", "rank", "op")
    }
    # Alone, a stage may save more than all together, in which others take over its work.
    told = [
        f"{kind} {row['key']} {100 * min(row['share'], 1):.0f} %"
        for kind, row in largest.items()
        if row is not None and row["share"] > _LEAST_SHARE
    ]
    evidence = (
        f"S = {slowdown:.2f}: {format_rounded('ns', saved)} of {format_rounded('ns', whole['t_ns'])} per step"
    )
    if told:
        evidence += f"; share of {', of '.join(told)}"
    of_run = {"scope": "run", "key": "all"}
    facts = [
        Fact("t_ns", whole["t_ns"], "ns", "the run, per step", row=of_run),
        Fact("balanced_ns", whole["balanced_ns"], "ns", "the run, per step", row=of_run),
        Fact("slowdown", slowdown, "", "the run", row=of_run),
    ]
    data = data_evidence(run, scope)
    return (
        Finding(
            "info",
            f"Uneven work makes a step {slowdown:.2f}x as long as a balanced one",
            evidence + data.text,
            hint=data.hint or "Balance one thing at a time: rankscope whatif RUN --balance ranks",
            facts=(*facts, *data_correlation(run, scope).facts(), *data.facts),
        ),
    )
