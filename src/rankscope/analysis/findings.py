"""All findings of all reports, in one order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import SEVERITIES, Column, Finding, Result, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import QUESTIONS
from rankscope.store.run import Run
from rankscope.units import format_rounded

NOTHING_FOUND = "No findings (-r findings lists the reports that were checked)"


@dataclass(frozen=True)
class Found:
    """A finding and the report it comes from."""

    report: str
    finding: Finding


_COLUMNS: tuple[tuple[str, Unit, str], ...] = (
    ("severity", "", "info, warning or critical"),
    ("cost_ns", "ns", "what it costs a step, or the window where there are no steps; null: not in time"),
    ("report", "", "where the table behind it is"),
    ("title", "", "the finding"),
    ("evidence", "", "what it rests on"),
    ("hint", "", "the next step"),
    ("ranks", "", "whom it is about"),
    ("start_ns", "ns", "where it can be looked at, from the run's start"),
    ("end_ns", "ns", ""),
)
COLUMNS = tuple(Column(name, unit, text, for_machines=True) for name, unit, text in _COLUMNS)


_DEFECTS = ("warning", "critical")


@once_per_run
def collect(run: Run, scope: Scope) -> tuple[Found, ...]:
    """Runs every report that can have findings; 'ok' is left out."""
    found = [
        Found(report.name, finding)
        for report in QUESTIONS.values()
        if report.finds
        for finding in report.analyse(run, scope, None).findings
        if finding.severity != "ok"
    ]
    return tuple(ordered(found))


def ordered(found: Iterable[Found]) -> list[Found]:
    """The order of findings everywhere: stragglers of warning or above, then by severity, then by cost.

    A straggler comes first because it explains others: the time its peers wait for it is their exposed communication.
    """
    return sorted(_without_waiting(list(found)), key=_order)


def _without_waiting(found: list[Found]) -> list[Found]:
    """Subtract the cost of stragglers from exposed communication: their finding counts that waiting already."""
    late = [one.finding for one in found if one.report == "stragglers" and one.finding.severity in _DEFECTS]
    if not late:
        return found
    worst = max(late, key=lambda finding: finding.cost_ns or 0)
    return [Found(one.report, _less(one.finding, worst)) if one.report == "overlap" else one for one in found]


def _less(exposed: Finding, late: Finding) -> Finding:
    waiting = min(late.cost_ns or 0, exposed.cost_ns or 0)
    whom = "a late rank" if len(late.ranks) != 1 else f"rank {late.ranks[0]}"
    return replace(
        exposed,
        evidence=f"{exposed.evidence}; {format_rounded('ns', waiting)} of it is waiting for {whom}",
        cost_ns=(exposed.cost_ns or 0) - waiting,
    )


def _order(found: Found) -> tuple[bool, int, int, str]:
    finding = found.finding
    explains = found.report == "stragglers" and finding.severity in _DEFECTS
    return not explains, -SEVERITIES.index(finding.severity), -(finding.cost_ns or 0), finding.title


def asked() -> list[str]:
    """The names of the reports that can have findings."""
    return [report.name for report in QUESTIONS.values() if report.finds]


def findings(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per finding."""
    collected = collect(run, scope)
    rows = [
        {
            "severity": one.finding.severity,
            "cost_ns": one.finding.cost_ns or None,
            "report": one.report,
            "title": one.finding.title,
            "evidence": one.finding.evidence,
            "hint": one.finding.hint,
            "ranks": one.finding.ranks,
            "start_ns": one.finding.span[0] if one.finding.span else None,
            "end_ns": one.finding.span[1] if one.finding.span else None,
        }
        for one in collected
    ]
    looked = f"reports checked: {', '.join(asked())}"
    notes = (looked,) if rows else (f"nothing found; {looked}",)
    all_findings = tuple(one.finding for one in collected)
    return Result("findings", "What was found", scope.window, COLUMNS, rows, all_findings, notes)
