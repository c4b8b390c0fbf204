"""What a roofline says one should do: float32 beside idle tensor cores, products far below their roof."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.ceilings import ceilings
from rankscope.analysis.core.result import Finding, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods, step_count
from rankscope.store.run import Run
from rankscope.units import format_ns, format_value

# Large products reach about this much of the roof in practice; below half of it something is the matter.
_GOOD_PCT = 80.0
_POOR_PCT = 40.0
# Of a step: below this a finding is not worth a line, above that it is a warning.
_LEAST_SHARE, _WARNING_SHARE = 0.02, 0.10


def findings(run: Run, scope: Scope, rows: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """Costs are per step and rank."""
    spans = periods(run, scope)
    ranks = sorted({period.rank for period in spans})
    share_of = step_count(run, scope) * max(1, len(ranks))
    step_ns = sum(period.dur_ns for period in spans) / max(1, len(spans))
    found = []
    roofs = ceilings(run, scope)
    for row in rows:
        time_ns = row["device_ns"] / share_of
        tf32 = roofs[ranks[0]].peaks.get("tf32") if ranks else None
        peak = roofs[ranks[0]].peak(row["dtype"]) if ranks else None
        if row["dtype"] == "float32" and tf32 and peak and tf32 > peak and row["bound"] == "compute":
            found.append(_float32(row, time_ns, step_ns, peak, tf32, ranks))
        elif row["pct_of_roof"] is not None and row["pct_of_roof"] < _POOR_PCT:
            found.append(_far_below(row, time_ns, step_ns, ranks))
    return tuple(sorted((f for f in found if f), key=lambda finding: -finding.cost_ns))


def _severity(cost_ns: float, step_ns: float) -> Severity | None:
    share = cost_ns / step_ns if step_ns else 0.0
    return None if share < _LEAST_SHARE else "warning" if share > _WARNING_SHARE else "info"


def _float32(
    row: dict[str, Any], time_ns: float, step_ns: float, peak: float, tf32: float, ranks: list[int]
) -> Finding | None:
    cost = time_ns * (1 - peak / tf32)
    severity = _severity(cost, step_ns)
    if severity is None:
        return None
    return Finding(
        severity,
        f"{row['name']} runs in float32 without tensor cores: {format_ns(time_ns)} of a {format_ns(step_ns)} step",
        f"Its peak is {format_value('flop/s', peak)} there and {format_value('flop/s', tf32)} with TF32; "
        f"{row['calls']:,} calls reach {format_value('flop/s', row['flop_s'])}.",
        tuple(ranks),
        hint='torch.set_float32_matmul_precision("high") allows TF32; bfloat16 autocast is faster still.',
        cost_ns=round(cost),
    )


def _far_below(row: dict[str, Any], time_ns: float, step_ns: float, ranks: list[int]) -> Finding | None:
    cost = time_ns * (1 - row["pct_of_roof"] / _GOOD_PCT)
    severity = _severity(cost, step_ns)
    if severity is None:
        return None
    limit = "the memory's bandwidth" if row["bound"] == "memory" else "the peak"
    return Finding(
        severity,
        f"{row['name']} ({row['dtype']}) reaches {row['pct_of_roof']:.0f} % of its roof in {format_ns(time_ns)} of a "
        f"{format_ns(step_ns)} step",
        f"{row['calls']:,} calls do {format_value('flop/s', row['flop_s'])}; its roof is {limit}. "
        f"At {_GOOD_PCT:.0f} % of it a step would be {format_ns(cost)} shorter.",
        tuple(ranks),
        hint="Small or odd sizes are the usual reason: rankscope stats RUN -r roofline --by shape",
        cost_ns=round(cost),
    )
