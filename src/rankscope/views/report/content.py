"""The content of a report, independent of HTML or Markdown: verdict, findings, and one section per report."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.two_runs import by_unit
from rankscope.analysis.findings import collect
from rankscope.analysis.health.doubts import Doubt, doubts
from rankscope.analysis.questions import QUESTIONS
from rankscope.analysis.run_info import facts
from rankscope.analysis.summary import summary
from rankscope.errors import RankscopeError
from rankscope.model import TIMELINE_FORMATS
from rankscope.ranges import as_ranges
from rankscope.store.run import Run
from rankscope.units import format_bytes, format_ns
from rankscope.views.charts import CHARTS, Chart, NothingToDrawError, chart_in_run, rank_heatmap

# The main sections, in order. The other reports follow in the order of the registry.
MAIN = (
    "breakdown", "steps", "overlap", "collectives", "stragglers", "critical", "idle", "kernels", "ops", "memory",
    "roofline",
)  # fmt: skip
_LEAST_ROWS = 100
# The ranks in findings of these reports are the cause; in those of other reports they are examples.
_NAME_RANKS = ("stragglers", "flight")
# Detailed reports. With many ranks they cover a few, evenly spread, and the rank that others wait for most. A note in
# the section and its command name these ranks.
_OF_FEW_RANKS = (
    "ops", "roofline", "mfu", "gaps", "phases", "syncs", "short", "launches", "dataloader", "overhead", "allocators",
)  # fmt: skip
_MANY_RANKS = 16
_FEW_RANKS = 8


@dataclass(frozen=True)
class Figure:
    """One number at the top of the report, with its label."""

    value: str
    label: str
    colour: str = ""


@dataclass(frozen=True)
class Section:
    """One report as chart and table, with the command that computes it."""

    name: str
    question: str
    result: Result
    chart: Chart | None
    command: str
    main: bool

    @property
    def empty(self) -> bool:
        return not self.result.rows and self.chart is None


@dataclass(frozen=True)
class Content:
    """The content of a report."""

    title: str
    subtitle: str
    verdict: str
    evidence: str
    doubts: tuple[Doubt, ...]
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    heatmap: Chart | None
    sections: tuple[Section, ...]
    facts: dict[str, list[tuple[str, str]]]
    words: str
    """The run and the scope, as arguments of a command."""
    command: str
    """The command that made this report."""


@dataclass(frozen=True)
class Request:
    """The run and the scope of a report, and how commands name them."""

    run: Run
    scope: Scope
    name: str
    words: str = "RUN"
    """The run and the scope, as arguments of a command: 'RUN --steps 3:5'."""
    base: str = ""
    """The run it is compared with, as an argument of a command."""


def build(request: Request, compared: Result | None = None) -> Content:
    """Run all reports. A report without data has a note that says why."""
    request = replace(request, scope=request.scope.in_run(request.run))
    run, scope = request.run, request.scope
    sections: list[Section] = []
    for name in report_order():
        few = _few_ranks(request, sections) if name in _OF_FEW_RANKS else None
        sections.append(_section(_narrowed(request, few) if few else request, name, few))
    if compared is not None:
        command = f"rankscope diff {request.base} {request.words}"
        question = "What changed against the base, and is it more than noise?"
        sections = [
            *(
                Section(name, question, part.head(_LEAST_ROWS), None, command, main=True)
                for name, part in zip(("diff", "diff-memory"), by_unit(compared), strict=False)
            ),
            *sections,
        ]
    findings = [one.finding for one in collect(run, scope)]
    if compared is not None:
        findings = [*(one for one in compared.findings if one.severity != "ok"), *findings]
    bad = [finding for finding in findings if finding.severity in ("warning", "critical")]
    results = {section.name: section.result for section in sections}
    worst = bad[0] if bad else None
    blamed = {rank for name in _NAME_RANKS if name in results for rank in _blamed(results[name])}
    return Content(
        title=request.name,
        subtitle=_subtitle(run, scope) + (f" · against {request.base}" if request.base else ""),
        verdict=worst.title if worst else "No problems found.",
        evidence=_sentence(worst) if worst else _without_warnings(findings),
        doubts=doubts(run, scope),
        figures=tuple(_figures(summary(run, scope))),
        findings=tuple(findings),
        heatmap=_heatmap(run, scope, blamed),
        sections=tuple(sections),
        facts=facts(run, scope),
        words=request.words,
        command=" ".join(filter(None, ("rankscope report", request.base, request.words))),
    )


def report_order() -> list[str]:
    """The names of the reports that have a section, in order."""
    main = [name for name in MAIN if name in QUESTIONS]
    return [*main, *(name for name in QUESTIONS if name not in MAIN)]


def _few_ranks(request: Request, sections: list[Section]) -> list[int] | None:
    """The ranks that detailed reports cover; None for all."""
    ranks = _ranks(request)
    if len(ranks) <= _MANY_RANKS:
        return None
    waited_for = [
        (row["caused_wait_ns"], row["rank"])
        for section in sections
        if section.name == "stragglers"
        for row in section.result.rows
        if row["caused_wait_ns"]
    ]
    spread = ranks[:: -(-len(ranks) // (_FEW_RANKS - 1))]
    return sorted({*spread, *(rank for _, rank in sorted(waited_for)[-1:])})


def _ranks(request: Request) -> list[int]:
    asked = request.scope.ranks
    return [rank for rank in request.run.ranks if asked is None or rank in asked]


def _narrowed(request: Request, ranks: list[int]) -> Request:
    words = re.sub(r" --ranks \S+", "", request.words) + f" --ranks {as_ranges(ranks)}"
    return replace(request, scope=replace(request.scope, ranks=frozenset(ranks)), words=words)


def _section(request: Request, name: str, few: list[int] | None) -> Section:
    report = QUESTIONS[name]
    command = f"rankscope stats {request.words} -r {name}"
    try:
        result = report.analyse(request.run, request.scope, None)
    except RankscopeError as error:
        # One failed report must not prevent the others.
        result = Result(name, name, request.scope.window, (), [], notes=(" ".join(str(error).split()),))
    chart = _chart(request, result)
    if few:
        note = f"of {len(few)} ranks, {as_ranges(few)}; the command without --ranks covers all"
        result = replace(result, notes=(note, *result.notes))
    shown = result.head(max(_LEAST_ROWS, len(request.run.ranks)))
    # Without a timeline the main sections would be empty: a dump, a snapshot or an ncu report comes first instead.
    traced = any(entry.format in TIMELINE_FORMATS for entry in request.run.segments)
    return Section(name, report.question, shown, chart, command, name in MAIN and traced)


def _chart(request: Request, result: Result) -> Chart | None:
    try:
        return chart_in_run(result, request.run, request.scope) if result.name in CHARTS else None
    except NothingToDrawError:
        return None


def _heatmap(run: Run, scope: Scope, alarming: set[int]) -> Chart | None:
    try:
        return rank_heatmap(run, scope, alarming)
    except NothingToDrawError:
        return None


def _blamed(result: Result) -> set[int]:
    """The ranks that warnings name."""
    return {
        rank
        for finding in result.findings
        if finding.severity in ("warning", "critical")
        for rank in finding.ranks
    }


def _sentence(finding: Finding) -> str:
    parts = (
        part if part.endswith((".", "!", "?")) else f"{part}."
        for part in (finding.evidence, finding.hint)
        if part
    )
    return " ".join(parts)


def _without_warnings(findings: list[Finding]) -> str:
    count = sum(finding.severity == "info" for finding in findings)
    if not count:
        return "No report has a warning."
    return f"No report has a warning; {count} finding{'s' * (count > 1)} for information."


def _subtitle(run: Run, scope: Scope) -> str:
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    parts = [f"{len(ranks):,} ranks ({as_ranges(ranks)})" if len(ranks) > 1 else f"rank {ranks[0]}"]
    steps = [
        step for (step,) in run.rows(f"SELECT DISTINCT step FROM steps WHERE {scope.where()} ORDER BY step")
    ]
    parts.append(f"steps {as_ranges(steps)}" if steps else "no steps")
    if scope.steps is None:
        parts.append("whole file")
    return " · ".join(parts)


def _figures(overview: Result) -> list[Figure]:
    """The main numbers, those of the summary; what was not recorded is left out."""
    facts = overview.facts
    figures = []
    if facts["step_ns"] is not None:
        figures.append(Figure(format_ns(facts["step_ns"], 1), f"step, median of {facts['steps']:,}"))
    elif facts["span_ns"]:
        figures.append(Figure(format_ns(facts["span_ns"], 1), "longest recording of a rank"))
    for name, label, colour in (
        ("compute_pct", "compute", "compute"),
        ("transfer_pct", "exposed transfer", "comm"),
        ("exposed_wait_pct", "waiting for another rank", "wait"),
        ("idle_pct", "idle", "idle"),
    ):
        if facts[name] is not None:
            figures.append(Figure(f"{facts[name]:.1f} %", label, colour))
    shares = [row["mfu_pct"] for row in overview.rows if row["mfu_pct"] is not None]
    if shares:
        of = "" if len(shares) == len(overview.rows) else f" of {len(shares)} ranks"
        figures.append(Figure(f"{sum(shares) / len(shares):.1f} %", f"MFU{of}"))
    peaks = [row["peak_allocated_bytes"] for row in overview.rows if row["peak_allocated_bytes"]]
    if peaks:
        figures.append(Figure(format_bytes(max(peaks), 1), "peak memory allocated"))
    return figures
