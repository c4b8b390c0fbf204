"""The content of a report, independent of HTML or Markdown: the headline, findings, and one section per report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from rankscope.analysis.across_ranks.schedule_picture import schedule_picture
from rankscope.analysis.across_ranks.step_picture import step_picture
from rankscope.analysis.core.ceilings import device_names
from rankscope.analysis.core.intervals import length
from rankscope.analysis.core.result import PROBLEMS, SEVERITIES, Fact, Finding, Result, Severity
from rankscope.analysis.core.rollups import fits_in_memory
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.core.step_times import run_step_times
from rankscope.analysis.diff.two_runs import by_unit
from rankscope.analysis.findings import collect, with_listed_findings
from rankscope.analysis.health.doctor import doctor, grade
from rankscope.analysis.health.doubts import doubts, world_size
from rankscope.analysis.questions import QUESTIONS, TOPICS
from rankscope.analysis.run_info import facts
from rankscope.analysis.summary import summary
from rankscope.errors import RankscopeError
from rankscope.model import TIMELINE_FORMATS
from rankscope.ranges import as_ranges
from rankscope.text.run_words import Runs, RunWords, shell_word, shell_words
from rankscope.timeline.run import Run
from rankscope.units import format_bytes, format_ns, format_pair
from rankscope.views.charts import Chart, NothingToDrawError, charts_beside, memory_chart, rank_heatmap
from rankscope.views.charts.heatmap import NARROW, USUAL, WIDE, step_picture_chart
from rankscope.views.charts.report_charts import change
from rankscope.views.charts.schedule import schedule
from rankscope.views.findings import apart, finding_with_paths, result_with_paths
from rankscope.views.report.one_line import one_line
from rankscope.views.text import sentence

Drawn = TypeVar("Drawn", "Chart", "Picture")
_LEAST_ROWS = 100
# The ranks in findings of these reports are the cause; in those of other reports they are examples.
_NAME_RANKS = ("faults", "hang.flight_recorder")
# Detailed reports. With many ranks they cover a few, evenly spread, and the rank that others wait for most. A note in
# the section and its command name these ranks.
_OF_FEW_RANKS = (
    "ops", "roofline", "mfu", "idle.gaps", "breakdown.phases", "idle.syncs", "idle.short_kernels", "idle.launches",
    "dataloader", "overhead", "memory.allocators",
)  # fmt: skip
_MANY_RANKS = 16
_FEW_RANKS = 8
_VERDICTS = ("slower", "faster", "likely", "new", "gone", "unclear", "same")
CHANGES = "What changed"
"""The topic of the comparison with another run."""


@dataclass(frozen=True)
class Figure:
    """One number at the top of the report, with its label."""

    value: str
    label: str
    colour: str = ""


@dataclass(frozen=True)
class Picture:
    """A chart for a phone, a screen and a wide screen."""

    narrow: Chart
    usual: Chart
    wide: Chart

    @staticmethod
    def of(draw: Callable[[float], Chart]) -> Picture:
        """`draw` takes the width."""
        return Picture(*map(draw, (NARROW, USUAL, WIDE)))


@dataclass(frozen=True)
class Headline:
    """The first screen: what was found, what it costs, where it can be seen, and what to do."""

    title: str
    detail: str
    more: str = ""
    """What a step consists of, where the title is about something else."""
    facts: Mapping[str, Fact] = field(default_factory=dict)
    """As a finding states them."""
    change: str = ""
    """'-62 %': what a step could save, or what changed between two runs."""
    change_note: str = ""
    judged: str = ""
    """'worse' or 'better' for a change between two runs; a possible saving is neither."""
    picture: Picture | None = None
    advice: str = ""
    commands: tuple[tuple[str, str], ...] = ()
    """What a command is for, and the command."""


@dataclass(frozen=True)
class Section:
    """One report as charts and table, with the command that computes it."""

    name: str
    question: str
    result: Result
    charts: tuple[Chart, ...]
    command: str
    topic: str = ""
    line: str = ""
    """Its result in one line."""

    @property
    def empty(self) -> bool:
        return not self.result.rows and not self.charts

    @property
    def severity(self) -> Severity | None:
        """Of its worst finding; None without one."""
        severities = [finding.severity for finding in self.result.findings]
        return max(severities, key=SEVERITIES.index, default=None)


@dataclass(frozen=True)
class Content:
    """The content of a report."""

    title: str
    subtitle: str
    headline: Headline
    doubts: tuple[Finding, ...]
    figures: tuple[Figure, ...]
    findings: tuple[Finding, ...]
    """In the order of `stats`; of two runs, those of the comparison first."""
    step_ns: float | None
    """The mean step, of which costs are shares; None in a run without steps."""
    heatmap: Chart | None
    sections: tuple[Section, ...]
    facts: dict[str, list[tuple[str, str]]]
    words: str
    """The run and the scope, as arguments of a command."""
    command: str
    """The command that made this report."""

    @property
    def lists(self) -> dict[str, list[Finding]]:
        """The findings by what they are; without empty lists."""
        problems, limits = apart(self.findings)
        lists = {
            "Changes": [finding for finding in problems if finding.report == "diff"],
            "Faults": [finding for finding in problems if finding.report != "diff"],
            "Limits": limits,
        }
        return {heading: findings for heading, findings in lists.items() if findings}


@dataclass(frozen=True)
class Request:
    """The run and the scope of a report, and how commands name them."""

    run: Run
    scope: Scope
    name: str
    path: str = "RUN"
    ranks: tuple[str, ...] = ()
    """'--ranks', '0-7', or empty for all."""
    window: tuple[str, ...] = ()
    """'--steps', '3:5', or '--window', 'file', or empty."""
    base: str = ""
    """The path of the run it is compared with."""

    @property
    def words(self) -> str:
        """'RUN --steps 3:5'."""
        return shell_words((self.path, *self.ranks, *self.window))

    @property
    def runs(self) -> Runs:
        """For the commands in findings, which name the ranks that they are about."""
        new = RunWords((self.path,), self.window)
        return {"RUN": new, "NEW": new, "BASE": RunWords((self.base,), self.window)}


def build(request: Request, compared: Result | None = None) -> Content:
    """Run all reports. A report without data has a note that says why."""
    request = replace(request, scope=request.scope.in_run(request.run))
    run, scope, runs = request.run, request.scope, request.runs
    sections: list[Section] = []
    for name, topic in report_order():
        few = _few_ranks(request, sections) if name in _OF_FEW_RANKS else None
        asked = request
        if few:
            some = replace(scope, ranks=frozenset(few))
            asked = replace(request, scope=some, ranks=("--ranks", as_ranges(few)))
        sections.append(_section(asked, name, topic, few, scope))
    findings = [finding_with_paths(finding, runs) for finding in collect(run, scope)]
    overview = summary(run, scope)
    if compared is None:
        headline = _headline(request, findings, overview)
    else:
        compared = result_with_paths(compared, runs)
        sections = [*_change_sections(request, compared), *sections]
        headline = _change_headline(request, compared)
        findings = [*(each for each in compared.findings if each.severity != "ok"), *findings]
    blamed = {
        rank
        for finding in findings
        if finding.report in _NAME_RANKS and finding.severity in PROBLEMS
        for rank in finding.ranks
    }
    return Content(
        title=request.name,
        subtitle=_subtitle(run, scope) + (f" · against {shell_word(request.base)}" if request.base else ""),
        headline=headline,
        doubts=doubts(run, scope),
        figures=tuple(_figures(overview, list(run_step_times(run, scope).values()))),
        findings=tuple(findings),
        step_ns=overview.facts["mean_step_ns"],
        heatmap=_drawn(lambda: rank_heatmap(run, scope, blamed)),
        sections=tuple(sections),
        facts=facts(run, scope),
        words=request.words,
        command=f"rankscope report {shell_words([request.base]) + ' ' if request.base else ''}{request.words}",
    )


def report_order() -> list[tuple[str, str]]:
    """The names of the reports that have a section, with their topics, in order."""
    return [(report.name, topic) for topic, reports in TOPICS.items() for report in reports]


def saving(finding: Finding, step_ns: float | None) -> str:
    """'saves 10.6 of 17.2 ms a step': what a finding costs, of the mean step; a limit 'saves up to' that."""
    if not finding.cost_ns:
        return ""
    saves = "saves up to" if finding.kind == "limit" else "saves"
    if step_ns is None or finding.cost_ns > step_ns:
        return f"{saves} {format_ns(finding.cost_ns, 1)}{' a step' if step_ns is not None else ' in total'}"
    return f"{saves} {format_pair(finding.cost_ns, step_ns)} a step"


def _saving_on_average(finding: Finding, overview: Result) -> str:
    """The median step is shown beside it; where the mean differs, it says which one it is."""
    mean, median = overview.facts["mean_step_ns"], overview.facts["step_ns"]
    text = saving(finding, mean)
    differs = mean is not None and median is not None and format_ns(mean, 1) != format_ns(median, 1)
    return f"{text} on average" if text and differs else text


def _headline(request: Request, findings: list[Finding], overview: Result) -> Headline:
    """The verdict, and the costliest finding of warning or above; without one, what a step consists of."""
    worst = next((finding for finding in findings if finding.severity in PROBLEMS), None)
    look = ("Look closer", f"rankscope view {shell_word(request.path)}")
    if not _is_traced(request.run):
        look = ("All findings", f"rankscope stats {shell_word(request.path)} -r findings")
    verdict = overview.facts.get("verdict")
    parts = sentence(overview.title)
    if worst is None:
        title, detail = (verdict, parts) if verdict else (parts, "")
        return Headline(title, detail, picture=_picture(request, None), commands=(look,))
    step_ns = overview.facts["mean_step_ns"]
    share = worst.cost_ns / step_ns if worst.cost_ns and step_ns else None
    estimate = (
        [("Estimate the gain", f"rankscope whatif {request.runs['RUN']}")] if worst.kind == "fault" else []
    )
    return Headline(
        verdict or worst.headline,
        "" if verdict else sentence(worst.why),
        parts,
        worst.stated,
        f"-{100 * share:.0f} %" if share is not None and share <= 1 else "",
        _saving_on_average(worst, overview),
        picture=_picture(request, worst),
        advice=sentence(worst.advice),
        commands=(look, *estimate, *_command_of(worst)),
    )


def _command_of(finding: Finding, what: str = "Command") -> list[tuple[str, str]]:
    return [(what, shell_words(finding.command))] if finding.command else []


def _picture(request: Request, finding: Finding | None) -> Picture | None:
    """The step in which a finding shows best, or the schedule of a pipeline; of memory snapshots alone, the memory over
    time."""
    if not _is_traced(request.run):
        return _drawn(lambda: Picture.of(partial(memory_chart, request.run, request.scope)))
    if finding is None or finding.report == "bubbles":
        ranks = finding.ranks if finding else ()
        passes = schedule_picture(request.run, request.scope, ranks[0] if ranks else None)
        drawn = _drawn(lambda: Picture.of(lambda width: schedule(passes, width, ranks)))
        if drawn:
            return drawn
    step = step_picture(request.run, request.scope, finding)
    if step is None or not any(row.end_ns - row.start_ns > length(row.parts.idle) for row in step.rows):
        return None
    return Picture.of(lambda width: step_picture_chart(step, width))


def _drawn(make: Callable[[], Drawn]) -> Drawn | None:
    """A chart, or None where there is nothing to draw."""
    try:
        return make()
    except NothingToDrawError:
        return None


def _change_headline(request: Request, compared: Result) -> Headline:
    """What changed between two runs: the step time first, and what had been predicted."""
    commands = (
        ("Look closer", f"rankscope view {shell_words([request.base, request.path])}"),
        ("All rows", f"rankscope diff {shell_word(request.base)} {request.words}"),
    )
    if not compared.findings:
        return Headline("Nothing can be compared.", " ".join(compared.notes), commands=commands)
    kept = next((finding for finding in compared.findings if finding.fact("predicted_pct")), None)
    first = next(finding for finding in compared.findings if finding is not kept)
    before, after, changed = (first.fact(name) for name in ("base", "new", "change_pct"))
    number = note = ""
    if before and after and changed and isinstance(changed.value, (int, float)):
        number = f"{changed.value:+.1f} %"
        note = f"{format_ns(float(before.value or 0), 1)} before, {format_ns(float(after.value or 0), 1)} now"
    return Headline(
        first.title,
        sentence(kept.title) if kept else "",
        "",
        (kept.stated if kept else {}) | first.stated,
        number,
        note,
        judged="worse" if number.startswith("+") and first.severity != "ok" else "better",
        picture=_drawn(lambda: Picture.of(lambda width: change(compared, width))),
        advice=sentence(first.advice),
        commands=(*commands, *_command_of(first), *(_command_of(kept, kept.advice) if kept else ())),
    )


def _change_sections(request: Request, compared: Result) -> list[Section]:
    command = f"rankscope diff {shell_word(request.base)} {request.words}"
    question = "What changed against the base, and is it more than noise?"
    sections = []
    for name, part in zip(("diff", "diff-memory"), by_unit(compared), strict=False):
        counts = Counter(row["verdict"] for row in part.rows)
        line = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in _VERDICTS if counts[verdict])
        sections.append(Section(name, question, part.head(_LEAST_ROWS), (), command, CHANGES, line))
    return sections


def _few_ranks(request: Request, sections: list[Section]) -> list[int] | None:
    """The ranks that detailed reports cover; None for all."""
    ranks = request.scope.ranks_in(request.run)
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


def _section(request: Request, name: str, topic: str, few: list[int] | None, scope: Scope) -> Section:
    """Of `few` ranks, but with its findings about all of them (`scope`)."""
    report = QUESTIONS[name]
    command = f"rankscope stats {request.words} -r {name}"
    try:
        result = report.analyse(request.run, request.scope, None)
        result = with_listed_findings(request.run, scope, result)
    except RankscopeError as error:
        # One failed report must not prevent the others.
        result = Result(name, name, request.scope.window, (), [], notes=(" ".join(str(error).split()),))
    charts = tuple(charts_beside(result, request.run, request.scope, scope))
    line = one_line(result)
    if few:
        note = f"of {len(few)} ranks, {as_ranges(few)}; the command without --ranks covers all"
        result = replace(result, notes=(note, *result.notes))
    shown = result_with_paths(result.head(max(_LEAST_ROWS, len(request.run.ranks))), request.runs)
    return Section(name, report.question, shown, charts, command, topic, line)


def _subtitle(run: Run, scope: Scope) -> str:
    ranks, steps = scope.ranks_in(run), step_numbers(run, scope)
    world = world_size(run) if len(run.runs) == 1 else 0
    of = f" of {world:,}" if world > 1 else ""
    parts = [
        f"{len(ranks):,}{of} ranks ({as_ranges(ranks)})" if len(ranks) > 1 else f"rank {ranks[0]}{of}",
        f"steps {as_ranges(steps)}" if steps else "no steps",
        *(["whole file"] if scope.steps is None else []),
    ]
    parts += sorted(set(device_names(run, scope).values()) - {""})
    # The checks of a large run would take as long as all reports together.
    if _is_traced(run) and fits_in_memory(run):
        parts.append(f"trace grade {grade([finding.severity for finding in doctor(run, Scope()).findings])}")
    return " · ".join(parts)


def _is_traced(run: Run) -> bool:
    return any(entry.format in TIMELINE_FORMATS for entry in run.segments)


def _figures(overview: Result, steps: list[float]) -> list[Figure]:
    """The main numbers, those of the summary; what was not recorded is left out."""
    facts = overview.facts
    figures = []
    if facts["step_ns"] is not None:
        low, high = format_ns(min(steps), 1), format_ns(max(steps), 1)
        number, _, unit = low.partition(" ")
        spread = f"{number if high.endswith(f' {unit}') else low} to {high}" if low != high else "all alike"
        label = f"median of {len(steps):,} steps ({spread})" if len(steps) > 1 else "step, the only one"
        figures.append(Figure(format_ns(facts["step_ns"], 1), label))
    elif facts["span_ns"]:
        figures.append(Figure(format_ns(facts["span_ns"], 1), "longest recording of a rank"))
    parts = [("compute_pct", "compute", "compute")]
    if facts["exposed_wait_pct"]:
        parts += [
            ("transfer_pct", "exposed transfer", "comm"),
            ("exposed_wait_pct", "waiting for another rank", "wait"),
        ]
    elif facts["exposed_comm_pct"]:  # how much of it is waiting is not known
        parts.append(("exposed_comm_pct", "exposed communication", "comm"))
    for name, label, colour in (*parts, ("idle_pct", "idle", "idle")):
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
