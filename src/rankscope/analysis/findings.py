"""All findings of all reports, in one order."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import PROBLEMS, Column, Finding, Result, Unit
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.faults.report import nothing_compared
from rankscope.analysis.limits import limits_of
from rankscope.analysis.questions import QUESTIONS
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run

_COLUMNS: tuple[tuple[str, Unit, str], ...] = (
    ("kind", "", "fault: its peers do better; health: something broke, or is in doubt; limit: saved at most"),
    ("severity", "", "info, warning or critical; of a limit: limit"),
    (
        "cost_ns",
        "ns",
        "what would be saved per step (without steps: in the window) if it were gone, in addition to the findings "
        "that claim before it; null: not known",
    ),
    ("alone_ns", "ns", "the same without other findings: what whatif says"),
    ("subject", "", "of a fault: whose it is"),
    ("steps", "", "of a fault: in which steps; null: in all"),
    ("report", "", "where the table behind it is"),
    ("title", "", "the finding"),
    ("evidence", "", "what it rests on"),
    ("hint", "", "the next step"),
    ("ranks", "", "whom it is about"),
    ("start_ns", "ns", "where it can be looked at, from the run's start"),
    ("end_ns", "ns", ""),
)
_SHOWN = ("severity", "cost_ns", "report", "title")
COLUMNS = tuple(
    Column(name, unit, text, for_machines=name not in _SHOWN, at_end=name == "title")
    for name, unit, text in _COLUMNS
)

_EVIDENCE_OF = {"hang.flight_recorder": "hang"}
"""Reports of which the findings are part of another's."""


def collect(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """The findings of all reports, with their costs, in the order in which they are listed; 'ok' is left out."""
    return _collect(run, scope.in_run(run))


@once_per_run
def _collect(run: Run, scope: Scope) -> tuple[Finding, ...]:
    findings = [
        finding
        for report in QUESTIONS.values()
        if report.finds and report.is_recorded(run)
        for finding in report.analyse(run, scope, None).findings
        if finding.severity != "ok"
    ]
    critical = {finding.report for finding in findings if finding.severity == "critical"}
    findings = [finding for finding in findings if _EVIDENCE_OF.get(finding.report) not in critical]
    faults = sorted((finding for finding in findings if finding.kind != "limit"), key=_order)
    if cut_ranks(run):  # what they lack cannot be replayed
        return tuple(faults)
    return (*faults, *limits_of(run, scope, findings))


def _order(finding: Finding) -> tuple[int, int]:
    """Critical without a cost, then by cost, then problems without one."""
    if finding.cost_ns:
        return 1, -finding.cost_ns
    return 0 if finding.severity == "critical" else 2 if finding.severity in PROBLEMS else 3, 0


def with_listed_findings(run: Run, scope: Scope, result: Result) -> Result:
    """Limits have their costs from the whole collection; what is evidence of another one is not listed."""
    if not any(finding.kind == "limit" for finding in result.findings):
        return result
    listed = [finding for finding in collect(run, scope) if finding.report == result.name]
    notes = result.notes
    if len(listed) < sum(finding.severity != "ok" for finding in result.findings):
        notes += ("left out: a finding that is evidence of another one (-r findings)",)
    return replace(result, findings=tuple(listed), notes=notes)


def asked() -> list[str]:
    """The names of the reports that can have findings."""
    return [report.name for report in QUESTIONS.values() if report.finds]


def findings(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per finding."""
    collected = collect(run, scope)
    rows = [
        {
            "kind": finding.kind,
            "severity": finding.severity,
            "cost_ns": finding.cost_ns,
            "alone_ns": finding.alone_ns,
            "subject": finding.subject or None,
            "steps": as_ranges([*finding.steps]) or None,
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
    unanswered = [
        name
        for name in asked()
        if not (report := QUESTIONS[name]).is_recorded(run) or report.analyse(run, scope, None).unanswered
    ]
    nothing = "no report can be answered from this recording" if len(unanswered) == len(asked()) else ""
    if not rows and not nothing and (reason := nothing_compared(run, scope)):
        nothing = f"nothing to compare with: {reason}"
    return Result(
        "findings",
        "What was found",
        scope.window,
        COLUMNS,
        rows,
        collected,
        notes,
        facts={"unanswered": unanswered, "checked": [name for name in asked() if name not in unanswered]},
        unknown=nothing,
    )
