"""The summary as one terminal screen: the verdict, the costliest findings, ranks, kernels, and next commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rankscope.analysis.core.result import NOTHING_FOUND, Column, Doubt, Finding, NoteKind, Result, note_kind
from rankscope.records import dataclass
from rankscope.units import format_ns
from rankscope.views.columns import fields
from rankscope.views.commands import command_lines, pieces
from rankscope.views.table import grid
from rankscope.views.terminal import BOLD, DIM, SEVERITY_STYLES, paint
from rankscope.views.text import clean, hang

_MOST_FINDINGS = 3
_MOST_RANKS = 4
_MOST_KERNELS = 3
_PROSE_WIDTH = 100
_LEAST_WIDTH = 40


@dataclass(frozen=True)
class Screen:
    """The content of the screen."""

    run: str
    """The run as the user typed it, so that the suggested commands can be copied."""
    subject: str
    summary: Result
    kernels: Result
    findings: Sequence[Finding]
    doubts: Sequence[Doubt] = ()


def screen(content: Screen, width: int, color: bool) -> str:
    """Blocks separated by blank lines, laid out for 80 columns and about 24 lines."""
    width = max(width, _LEAST_WIDTH)
    prose = min(width, _PROSE_WIDTH)
    has_steps = any(row["steps"] for row in content.summary.rows)
    doubtful = "; ".join(clean(doubt.text) for doubt in content.doubts)
    painted = (
        (f"In doubt: {doubtful}." if doubtful else "", SEVERITY_STYLES["warning"]),
        (clean(content.summary.title) + ".", BOLD),
        (clean(f"{content.subject} · {content.summary.window}"), DIM),
    )
    blocks = [
        [paint(line, style, color) for text, style in painted for line in hang("", text, prose)],
        _findings(content, "per step" if has_steps else "in total", prose, color),
        _ranks(content.summary, width, color),
        _kernels(content.kernels, width, color),
        _next(content, prose, color),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _findings(content: Screen, each: str, width: int, color: bool) -> list[str]:
    lines: list[str] = []
    for number, finding in enumerate(content.findings[:_MOST_FINDINGS], 1):
        up_to = "" if finding.reachable else "up to "
        cost = f", {up_to}{format_ns(finding.cost_ns, 1)} {each}" if finding.cost_ns else ""
        word = f"{number}. {finding.severity}"
        text = hang(f"{word}{cost}: ", clean(finding.title), width)
        if len(text) > 1:  # indenting by the length of the first words would leave too little room
            text = hang("", f"{word}{cost}: {clean(finding.title)}", width)
            text[1:] = hang("   ", " ".join(text[1:]), width)
        text[0] = paint(word, SEVERITY_STYLES[finding.severity], color) + text[0][len(word) :]
        lines += [*text, *_advice(finding, width)]
    return lines or hang("", NOTHING_FOUND, width)


def _advice(finding: Finding, width: int) -> list[str]:
    """The first sentences of the hint that fit on one line, and the report to look at; a command on its own line."""
    hint = clean(finding.hint) or "See its table."
    command = next((piece for piece, is_command in pieces(hint) if is_command), "")
    prose = hint.partition(command)[0] if command else hint
    table = f" (-r {finding.report})"
    text = _first_clauses(prose.strip(), width - 5 - len(table))
    if command and prose.rstrip().endswith(":") and not text.endswith(":"):
        command = ""  # what announces it does not fit
    if text.endswith(":"):
        return [*hang("   → ", text, width), *command_lines(command, "     ", width)]
    lines = hang("   → ", text.rstrip(".;"), width)
    if len(lines[-1]) + len(table) <= width:
        return [*lines[:-1], lines[-1] + table]
    return [*lines, f"    {table}"]


def _first_clauses(text: str, room: int) -> str:
    """As many clauses as fit on one line, at least the first. `-r findings` shows all of them."""
    first, *clauses = re.split(r"(?<=[.;])\s+", text)
    for clause in clauses:
        if len(first) + 1 + len(clause) > room:
            break
        first = f"{first} {clause}"
    return first


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


def _next(content: Screen, width: int, color: bool) -> list[str]:
    notes = [note for note in content.summary.notes if note_kind(note) is not NoteKind.NO_FINDINGS]
    lines = [line for note in notes for line in hang("· ", clean(note), width)]
    more = len(content.findings) - _MOST_FINDINGS
    what = f"all findings ({more} more), with evidence" if more > 0 else "the findings, with evidence"
    lines += _next_commands(content.run, what if content.findings else "", width)
    return [paint(line, DIM, color) for line in lines]


def _next_commands(run: str, findings: str, width: int) -> list[str]:
    """Each with its purpose beside it, or above it where the line would be too long."""
    commands = [(f"rankscope stats {run} -r findings", findings)] if findings else []
    commands += [
        (f"rankscope view {run}", "the timeline of all ranks"),
        (f"rankscope stats {run} -r list", "all reports"),
        (f"rankscope doctor {run}", "check the quality of the trace"),
    ]
    room = max(len(command) for command, _ in commands)
    lines = [f"  {command:<{room}}   {reason}" for command, reason in commands]
    if max(map(len, lines)) <= width:
        return lines
    return [
        line
        for command, reason in commands
        for line in (f"  {reason}:", *command_lines(command, "    ", width))
    ]
