"""The summary as one terminal screen: the verdict, the costliest faults, limits, ranks, kernels, and next commands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankscope.analysis.core.result import Column, Finding, Result, argv
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.text.run_words import RunWords, named, shell_words
from rankscope.units import format_ns, format_together
from rankscope.views.columns import fields
from rankscope.views.findings import advice_lines, apart, command_lines, share_of
from rankscope.views.table import grid
from rankscope.views.terminal import BOLD, DIM, SEVERITY_STYLES, paint
from rankscope.views.text import clean, hang

_MOST_FINDINGS = 3
_MOST_LINES = 3
"""Of the facts of a finding; -r findings has more."""
_MOST_RANKS = 4
_MOST_KERNELS = 3
_PROSE_WIDTH = 100
_LEAST_WIDTH = 40


@dataclass(frozen=True)
class Screen:
    """The content of the screen."""

    run: RunWords
    """The run as the user typed it, so that the suggested commands can be copied."""
    subject: str
    summary: Result
    kernels: Result
    findings: Sequence[Finding]
    doubts: Sequence[Finding] = ()


def screen(content: Screen, width: int, color: bool) -> str:
    """Blocks separated by blank lines, laid out for 80 columns and about 24 lines."""
    width = max(width, _LEAST_WIDTH)
    prose = min(width, _PROSE_WIDTH)
    each = "per step" if any(row["steps"] for row in content.summary.rows) else "in total"
    problems, limits = apart(content.findings)
    verdict = content.summary.facts["verdict"]
    doubtful = "; ".join(clean(doubt.title) for doubt in content.doubts)
    painted = (
        (f"In doubt: {doubtful}." if doubtful else "", SEVERITY_STYLES["warning"]),
        (clean(verdict), BOLD),
        (clean(content.summary.title) + ".", "" if verdict else BOLD),
        (clean(f"{content.subject} · {content.summary.window}"), DIM),
    )
    # Each page is named once: beside its first finding, and for the largest limit in the heading of the limits.
    pages = {finding.page for finding in problems[:_MOST_FINDINGS] if finding.accuses}
    page = next((limit.page for limit in limits if limit.page not in pages), "")
    blocks = [
        [paint(line, style, color) for text, style in painted for line in hang("", text, prose)],
        _problems(problems, each, prose, color),
        _limits(limits, content.summary.facts["mean_step_ns"], each, prose, page),
        _ranks(content.summary, width, color),
        _kernels(content.kernels, width, color),
        _next(content, len(problems), len(limits), prose, color),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _problems(findings: Sequence[Finding], each: str, width: int, color: bool) -> list[str]:
    lines: list[str] = []
    explained = {""}
    # The verdict is its title: only its subject is repeated.
    first = next((finding for finding in findings if finding.accuses), None)
    for number, finding in enumerate(findings[:_MOST_FINDINGS], 1):
        # The title of a fault has its cost.
        cost = (
            f", {format_ns(finding.cost_ns, 1)} {each}" if finding.cost_ns and finding.kind != "fault" else ""
        )
        subject = finding.subject
        if finding.kind == "health" and finding.ranks:
            subject = rank_words(finding.ranks)
        title = clean(subject if subject and finding is first else finding.title)
        if finding.accuses and finding.page not in explained:
            explained.add(finding.page)
            title += f" (rankscope help {finding.page})"
        word = f"{number}. {finding.severity}"
        text = hang(f"{word}{cost}: ", title, width)
        if len(text) > 1:  # indenting by the length of the first words would leave too little room
            text = hang("", f"{word}{cost}: {title}", width)
            text[1:] = hang("   ", " ".join(text[1:]), width)
        text[0] = paint(word, SEVERITY_STYLES[finding.severity], color) + text[0][len(word) :]
        lines += [
            *text,
            *(line for fact in finding.lines[:_MOST_LINES] for line in hang("   ", clean(fact), width)),
        ]
        lines += advice_lines("   → ", finding, width)
    return lines


def _limits(limits: Sequence[Finding], step_ns: float | None, each: str, width: int, page: str) -> list[str]:
    """A line for each: what it saves at most, in the unit of the step, which share of it that is, and its name. `page`
    explains the largest that no other does."""
    if not limits:
        return []
    costs = format_together([step_ns or 0, *(limit.cost_ns or 0 for limit in limits)])[1:]
    shares = [share_of(limit) for limit in limits]
    room = [max(map(len, texts)) for texts in (costs, shares)]
    lines = [f"Limits, at most {each}{page and f' (rankscope help {page})'}:"]
    for limit, *texts in zip(limits, costs, shares, strict=True):
        aligned = [f"{text:>{size}}  " for text, size in zip(texts, room, strict=True) if size]
        lines += hang(f"   {''.join(aligned)}", clean(limit.uncapitalised), width)
    return lines


def _ranks(summary: Result, width: int, color: bool) -> list[str]:
    """All ranks if they are few; otherwise the lowest, median and highest value of each column."""
    if not summary.rows:
        return []
    if all(row["step_ns"] is None for row in summary.rows):  # memory snapshots, cut files
        known = [each for each in summary.columns if any(row[each.name] is not None for row in summary.rows)]
        summary = replace(summary, columns=tuple(known))
    if len(summary.rows) <= _MOST_RANKS:
        return grid(fields(summary), width, color)[0]
    from statistics import median  # late: for many ranks only

    of_ranks = [column for column in summary.columns if column.name != "rank"]
    values: dict[str, list[Any]] = {
        column.name: [row[column.name] for row in summary.rows if row[column.name] is not None]
        for column in of_ranks
    }
    rows = [
        {"of": label, **{name: pick(numbers) if numbers else None for name, numbers in values.items()}}
        for label, pick in (("lowest", min), ("median", median), ("highest", max))
    ]
    columns = (Column("of", title="Ranks"), *of_ranks)
    return grid(fields(replace(summary, columns=columns, rows=rows)), width, color)[0]


def _kernels(kernels: Result, width: int, color: bool) -> list[str]:
    """The first few kernels, with the main columns: of a trace, or of ncu."""
    if not kernels.rows:
        return []
    wanted = {
        "name",
        "time_pct",
        "total_ns",
        "instances",
        "avg_ns",
        "duration_ns",
        "compute_pct",
        "memory_pct",
    }
    columns = tuple(
        replace(column, title="Kernel") if column.name == "name" else column
        for column in kernels.columns
        if column.name in wanted
    )
    return grid(fields(replace(kernels, columns=columns, rows=kernels.rows[:_MOST_KERNELS])), width, color)[0]


def _next(content: Screen, problems: int, limits: int, width: int, color: bool) -> list[str]:
    lines = [line for note in content.summary.notes for line in hang("· ", clean(note), width)]
    more = problems - _MOST_FINDINGS
    all_of = f"all findings ({more} more), with evidence" if more > 0 else "the findings, with evidence"
    wanted = [("stats RUN -r findings", all_of)] if problems or limits else []
    if any(finding.kind == "fault" for finding in content.findings):
        wanted.append(("whatif RUN", "what mending the faults saves"))
    wanted += [
        ("view RUN", "the timeline of all ranks"),
        ("stats RUN -r list", "all reports"),
        ("doctor RUN", "check the quality of the trace"),
    ]
    commands = [
        (named(argv(f"rankscope {command}"), {"RUN": content.run}), reason) for command, reason in wanted
    ]
    # Each with its purpose beside it, or above it where a line would be too long.
    texts = [(shell_words(command), reason) for command, reason in commands]
    room = max(len(text) for text, _ in texts)
    beside = [f"  {text:<{room}}   {reason}" for text, reason in texts]
    if max(map(len, beside)) > width:
        beside = [
            line
            for command, reason in commands
            for line in (f"  {reason}:", *command_lines(command, "    ", width))
        ]
    return [paint(line, DIM, color) for line in (*lines, *beside)]
