"""All reports."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.report import Report
from rankscope.analysis.findings import findings, of_one_report
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.summary import summary

_OVERVIEWS = (
    Report("summary", "How long is a step, what is it made of, and what was found?", summary),
    Report("findings", "What costs most, and what can be done about it?", findings),
)

REPORTS = {
    **{report.name: replace(report, analyse=once_per_run(report.analyse)) for report in _OVERVIEWS},
    **{name: of_one_report(report) if report.finds else report for name, report in QUESTIONS.items()},
}
"""Every report by its name, in the order in which they are listed."""
