"""What stands out among the collectives: sizes far slower than the others, or than alone; uneven all_to_all."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.across_ranks.size_fit import SizeFit
from rankscope.analysis.core.result import Finding, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods
from rankscope.store.run import Run
from rankscope.units import format_bytes, format_ns, format_value

_SLOW_PCT = 70.0
"""Of the bandwidth measured alone."""
_UNEVEN = 1.5
"""The fullest rank over the mean."""
_WARNING_SHARE = 0.05
"""Of a step that it must cost to be more than a remark."""


def collective_findings(
    run: Run, scope: Scope, rows: list[dict[str, Any]], fits: dict[tuple[str, str], SizeFit]
) -> tuple[Finding, ...]:
    steps = [period for period in periods(run, Scope(steps=scope.steps)) if period.step is not None]
    count = len({period.step for period in steps}) or 1
    step_ns = sum(period.dur_ns for period in steps) / len(steps) if steps else 0.0
    found = []
    for row in rows:
        fit = fits.get((row["group"], row["kind"]))
        what = (
            f"{row['kind']} of {format_bytes(row['bytes'])} in group {row['group']}" if row["bytes"] else ""
        )
        if fit and row["_median"] and row["bytes"] and fit.is_far(row["bytes"], row["_median"]):
            cost = (row["_median"] - fit.time_ns(row["bytes"])) * row["count"] / count
            found.append(_far(row, fit, what, cost, step_ns))
        if (row.get("baseline_pct") or 100.0) < _SLOW_PCT:
            cost = row["_median"] * (1 - row["baseline_pct"] / 100) * row["count"] / count
            found.append(_slower_than_alone(scope, row, what, cost, step_ns))
        if (row["imbalance"] or 1.0) > _UNEVEN:
            cost = (row["transfer_ns"] or 0) * (1 - 1 / row["imbalance"]) * row["count"] / count
            found.append(_uneven(row, cost, step_ns))
    return tuple(sorted(found, key=lambda finding: -finding.cost_ns))


def _severity(cost_ns: float, step_ns: float) -> Severity:
    return "warning" if step_ns and cost_ns > _WARNING_SHARE * step_ns else "info"


def _far(row: dict[str, Any], fit: SizeFit, what: str, cost: float, step_ns: float) -> Finding:
    expected = fit.time_ns(row["bytes"])
    return Finding(
        _severity(cost, step_ns),
        f"{what} takes {row['_median'] / expected:.1f}x what its other sizes suggest",
        f"{format_ns(row['_median'], 1)}, where {format_ns(fit.latency_ns, 1)} + S / "
        f"{format_value('GB/s', fit.bandwidth)} gives {format_ns(expected, 1)}; {row['count']} of them",
        ranks=row["_ranks"],
        hint="Try another size (bucket_cap_mb, FSDP's unit), or NCCL_ALGO and NCCL_PROTO for this one",
        cost_ns=round(cost),
    )


def _slower_than_alone(scope: Scope, row: dict[str, Any], what: str, cost: float, step_ns: float) -> Finding:
    baseline = scope.machine.baseline
    source = baseline.source if baseline else ""
    return Finding(
        _severity(cost, step_ns),
        f"{what} reaches {row['baseline_pct']:.0f} % of the bandwidth it has alone",
        f"busbw {format_value('GB/s', row['busbw_gb_s'])} here, "
        f"{format_value('GB/s', row['baseline_busbw_gb_s'])} in {source}",
        ranks=row["_ranks"],
        hint="Compute that runs at the same time takes its share: see -r overlap; else look at the network's load",
        cost_ns=round(cost),
    )


def _uneven(row: dict[str, Any], cost: float, step_ns: float) -> Finding:
    return Finding(
        _severity(cost, step_ns),
        f"all_to_all in group {row['group']} is uneven: its fullest rank moves {row['imbalance']:.1f}x the mean",
        f"{row['count']} of them, {format_ns(row['transfer_ns'] or 0, 1)} each",
        ranks=row["_ranks"],
        hint="All wait for the fullest rank: balance the experts, or cap what each may get",
        cost_ns=round(cost),
    )
