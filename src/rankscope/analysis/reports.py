"""All reports."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.questions import QUESTIONS
from rankscope.timeline.run import Run


@once_per_run
def _summary(run: Run, scope: Scope, by: str | None) -> Result:
    from rankscope.analysis.summary import summary

    return summary(run, scope)


@once_per_run
def _findings(run: Run, scope: Scope, by: str | None) -> Result:
    from rankscope.analysis.findings import findings

    return findings(run, scope)


def _with_listed_findings(report: Report) -> Report:
    """With its findings as they are among all findings of the run."""

    def analysed(run: Run, scope: Scope, by: str | None) -> Result:
        from rankscope.analysis.findings import with_listed_findings

        return with_listed_findings(run, scope, report.analyse(run, scope, by))

    return replace(report, analyse=analysed)


REPORTS = {
    "summary": Report("summary", "What is a step made of, and what was found?", _summary),
    "findings": Report("findings", "What costs most, and what can be done about it?", _findings),
    **{name: _with_listed_findings(report) if report.finds else report for name, report in QUESTIONS.items()},
}
"""Every report by its name, in the order in which they are listed."""
