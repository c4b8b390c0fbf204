"""What uneven work costs: the run against the same run with its work spread evenly, and whose share it is.

T is the mean step, T_balanced what a replay of balanced work takes (scenarios.balanced), and their quotient S the
slowdown of the OSDI'25 study on stragglers (docs/definitions.md, "Balance").
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.segments import BACKWARD, FORWARD, segments
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import Scenario, balanced
from rankscope.analysis.faults.balanced import BALANCES, balanced_targets
from rankscope.store.arrays import NONE, Floats, Ints, Mask, number_rows
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
_FOLLOWS = 0.8
"""Uneven work that correlates by more follows the data: long sequences, not slow machines."""
_LEAST_PASSES = 8
"""Fewer micro-batches than this correlate by chance."""
_LEAST_SPREAD = 0.005
"""Durations that vary by less than this share of their mean, as a standard deviation, are equal."""


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


def data_notes(run: Run, scope: Scope) -> list[str]:
    """What the data say about uneven work."""
    phases, stages = data_correlation(run, scope)
    if phases is None or phases <= _FOLLOWS or (stages is not None and stages <= _FOLLOWS):
        return []
    return [
        "the work follows the data: forward and backward of a micro-batch are long together (assign sequences to "
        "ranks by their length, or pack them)"
    ]


def data_correlation(run: Run, scope: Scope) -> tuple[float | None, float | None]:
    """How the durations of micro-batches correlate, each relative to the mean of its rank and phase: forward and
    backward of the same one, and the same one on different stages. None where there are too few, or all are equal."""
    passes = segments(run, scope)
    passes = passes.pick(passes.micro_batch != NONE)
    if not len(passes.rank):
        return None, None
    places, number = number_rows([passes.rank, passes.phase, passes.step, passes.micro_batch, passes.stage])
    total = np.bincount(number, weights=passes.duration_ns)
    rank, phase, step, micro_batch, stage = places.T
    _, alike = number_rows([rank, phase])
    mean = np.bincount(alike, weights=total) / np.bincount(alike)
    relative = total / np.maximum(mean[alike], 1) - 1
    both = _paired([rank, step, micro_batch], phase == FORWARD, phase == BACKWARD, relative)
    # The stages of a pipeline have the same micro-batches; ranks are paired by their order within the stage.
    ranks, of_rank = number_rows([stage, rank])
    within_stage = (np.arange(len(ranks)) - np.searchsorted(ranks[:, 0], ranks[:, 0]))[of_rank]
    pairs = [np.zeros((2, 0))] + [
        _paired([within_stage, phase, step, micro_batch], stage == stage.min(), stage == other, relative)
        for other in np.unique(stage)[1:]
    ]
    return _correlation(both), _correlation(np.concatenate(pairs, axis=1))


def _paired(keys: list[Ints], first: Mask, second: Mask, value: Floats) -> Floats:
    """[2, pair]: the values of those entries of `first` and `second` that have the same keys."""
    _, key = number_rows(keys)
    a, b = np.flatnonzero(first), np.flatnonzero(second)
    _, at, of = np.intersect1d(key[a], key[b], return_indices=True)
    return np.stack([value[a[at]], value[b[of]]])


def _correlation(pairs: Floats) -> float | None:
    if pairs.shape[1] < _LEAST_PASSES or (pairs.std(axis=1) < _LEAST_SPREAD).any():
        return None
    a, b = pairs - pairs.mean(axis=1, keepdims=True)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
