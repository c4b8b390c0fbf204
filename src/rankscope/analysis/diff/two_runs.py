"""The diff report: two runs compared measure by measure."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.result import Column, Finding, Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import FEW_CHANGE_PCT, Rules, compare
from rankscope.analysis.diff.findings import findings
from rankscope.analysis.diff.samples import collect, unit_of
from rankscope.timeline.run import Run

COLUMNS = (
    Column("report"),
    Column("key", at_end=True),
    Column(
        "base", help="mean per step and rank in ns, of the step time the median; for memory the peak in bytes"
    ),
    Column("new", help="the same for the second run"),
    Column("change_pct", "percent", "change relative to base; positive is slower"),
    Column(
        "p_value",
        title="p",
        help="probability that noise alone gives a difference as large: in the step time, or in any other row",
    ),
    Column("verdict", help="same, faster, slower, new or gone"),
)


def diff(base: Run, new: Run, scope: Scope, rules: Rules | None = None) -> Result:
    """One row for each measure, those that changed first."""
    rules = rules or Rules()
    comparison = compare(collect(base, scope, rules.reports), collect(new, scope, rules.reports), rules)
    steps = [len(samples.steps) if samples.has_steps else 0 for samples in (comparison.base, comparison.new)]
    counted = f"{steps[0]} steps against {steps[1]}" if all(steps) else "not all steps known"
    windows = list(dict.fromkeys(scope.in_run(run).window for run in (base, new)))
    window = f"{' against '.join(windows)}, {counted}"
    return Result(
        "diff",
        "What changed, per step and rank",
        window,
        COLUMNS,
        comparison.rows,
        findings=tuple(_placed(finding, window) for finding in findings(comparison)),
        notes=comparison.notes,
        facts={"likely": comparison.likely},
    )


def _placed(finding: Finding, window: str) -> Finding:
    facts = (replace(fact, report="diff", window=window) for fact in finding.facts)
    return replace(finding, facts=tuple(facts))


def by_unit(result: Result) -> list[Result]:
    """For display: times and sizes in separate tables with one unit each; report and key in one column."""
    parts = []
    for unit in ("ns", "bytes"):
        rows = [
            {**row, "what": f"{row['report']}: {row['key']}", "verdict": _shown_verdict(result, row)}
            for row in result.rows
            if unit_of(row["report"]) == unit
        ]
        if rows or (unit == "ns" and not result.rows):
            columns = tuple(
                replace(column, unit=unit) if column.name in ("base", "new") else column
                for column in result.columns
                if column.name not in ("report", "key")
            )
            parts.append(replace(result, columns=(*columns, Column("what", at_end=True)), rows=rows))
    for later in range(1, len(parts)):  # findings and notes only once
        parts[later] = replace(parts[later], title="Memory, highest rank", findings=(), notes=())
    return parts


def _shown_verdict(result: Result, row: Row) -> str:
    """'same' beside -52.6 % would contradict itself: the change is large, but the steps do not make it sure."""
    large = row["change_pct"] is not None and abs(row["change_pct"]) >= FEW_CHANGE_PCT
    if not large or row["verdict"] != "same":
        return str(row["verdict"])
    return "likely" if result.facts.get("likely") and row == result.rows[0] else "unclear"


def slower_rows(result: Result, over_pct: float, likely: bool = False) -> list[Row]:
    """Rows with the verdict slower (for memory: larger) by more than `over_pct`; with `likely` also the step time where
    it is likely slower."""
    return [
        row
        for row in result.rows
        if (row["verdict"] == "slower" and (row["change_pct"] is None or row["change_pct"] > over_pct))
        or (likely and row in likely_slower(result, over_pct))
    ]


def likely_slower(result: Result, over_pct: float) -> list[Row]:
    """The row of the step time, where it is likely slower by more than `over_pct` but too few steps are known."""
    if not result.facts.get("likely"):
        return []
    return [row for row in result.rows[:1] if row["change_pct"] is not None and row["change_pct"] > over_pct]
