"""All findings of all reports, in one order."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import SEVERITIES, Column, Finding, Note, NoteKind, Result, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.costs import with_costs
from rankscope.analysis.questions import QUESTIONS
from rankscope.timeline.run import Run

NOTHING_FOUND = Note.of(NoteKind.NO_FINDINGS, "No findings (-r findings lists the reports that were checked)")


_COLUMNS: tuple[tuple[str, Unit, str], ...] = (
    ("severity", "", "info, warning or critical"),
    (
        "cost_ns",
        "ns",
        "what would be saved per step (without steps: in the window) if it were gone; null: not known",
    ),
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


def collect(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """Runs every report that can have findings; 'ok' is left out.

    The order everywhere: stragglers of warning or above, then by severity, then by cost. A straggler comes first
    because it explains others: the time its peers wait for it is their exposed communication.
    """
    return _collect(run, scope.in_run(run))


@once_per_run
def _collect(run: Run, scope: Scope) -> tuple[Finding, ...]:
    findings = [
        finding
        for report in QUESTIONS.values()
        if report.finds
        for finding in report.analyse(run, scope, None).findings
        if finding.severity != "ok"
    ]
    return tuple(with_costs(run, scope, findings, _precedence))


def _precedence(finding: Finding) -> int:
    if finding.report == "stragglers" and finding.severity in _DEFECTS:
        return -len(SEVERITIES)
    return -SEVERITIES.index(finding.severity)


def of_one_report(report: Report) -> Report:
    """The report with the costs of its findings."""

    def analysed(run: Run, scope: Scope, by: str | None) -> Result:
        result = report.analyse(run, scope, by)
        if not any(finding.remedy for finding in result.findings):
            return result
        priced = with_costs(run, scope.in_run(run), result.findings, _precedence)
        return replace(result, findings=tuple(priced))

    return replace(report, analyse=analysed)


def asked() -> list[str]:
    """The names of the reports that can have findings."""
    return [report.name for report in QUESTIONS.values() if report.finds]


def findings(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per finding."""
    collected = collect(run, scope)
    rows = [
        {
            "severity": finding.severity,
            "cost_ns": finding.cost_ns,
            "report": finding.report,
            "title": finding.title,
            "evidence": finding.evidence,
            "hint": finding.hint,
            "ranks": finding.ranks,
            "start_ns": finding.span[0] if finding.span else None,
            "end_ns": finding.span[1] if finding.span else None,
        }
        for finding in collected
    ]
    scope = scope.in_run(run)
    looked = f"reports checked: {', '.join(asked())}"
    notes = (looked,) if rows else (f"nothing found; {looked}",)
    unanswered = [name for name in asked() if QUESTIONS[name].analyse(run, scope, None).unanswered]
    nothing = "no report can be answered from this recording" if len(unanswered) == len(asked()) else ""
    return Result(
        "findings",
        "What was found",
        scope.window,
        COLUMNS,
        rows,
        collected,
        notes,
        facts={"unanswered": unanswered},
        unknown=nothing,
    )
