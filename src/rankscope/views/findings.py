"""Findings in text: limits beside what is wrong, and commands with the path of the run, on lines that can be pasted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankscope.analysis.core.result import Finding, Result, reworded
from rankscope.text.run_words import Runs, named, shell_word, with_paths
from rankscope.units import display_width, format_ns
from rankscope.views.text import clean, hang


def apart(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Faults and health, and the limits, each in the given order."""
    listed = list(findings)
    problems = [finding for finding in listed if finding.kind != "limit"]
    return problems, [finding for finding in listed if finding.kind == "limit"]


def share_of(limit: Finding) -> str:
    """'29 %', of the mean step; empty where it is not known."""
    return "" if limit.cost_pct is None else f"{limit.cost_pct:.0f} %"


def titled(finding: Finding) -> str:
    """The title; that of a limit has no figures: 'Data loading: up to 8.0 ms (29 %)'."""
    if finding.kind != "limit" or not finding.cost_ns:
        return finding.title
    share = share_of(finding)
    return f"{finding.title}: up to {format_ns(finding.cost_ns, 1)}" + (f" ({share})" if share else "")


def finding_with_paths(finding: Finding, runs: Runs) -> Finding:
    return replace(finding, command=named(finding.command, runs))


def result_with_paths(result: Result, runs: Runs) -> Result:
    """The result with the paths of the runs in its findings and notes, and in the hints that are rows."""
    rows = result.rows
    if any(column.name == "hint" for column in result.columns):
        rows = [{**row, "hint": with_paths(row["hint"], runs)} for row in rows]
    return replace(
        result,
        rows=rows,
        findings=tuple(finding_with_paths(finding, runs) for finding in result.findings),
        notes=tuple(reworded(note, with_paths(note, runs)) for note in result.notes),
    )


def advice_lines(first: str, finding: Finding, width: int) -> list[str]:
    """The advice after `first`, wrapped; a command that does not fit on the first line gets lines of its own."""
    whole = hang(first, clean(finding.hint), width)
    if len(whole) <= 1 or not finding.command:
        return whole
    indent = " " * display_width(first)
    return [
        *hang(first, clean(finding.advice.rstrip(".")) + ":", width),
        *command_lines(finding.command, indent, width),
    ]


def command_lines(command: Sequence[str], indent: str, width: int) -> list[str]:
    """The command in lines that a shell reads as one: they end in a backslash. A long path is not broken."""
    words = [shell_word(word) for word in command]
    whole = indent + " ".join(words)
    if display_width(whole) <= width:
        return [whole]
    lines = [indent + words[0]]
    for word in words[1:]:
        line = f"{lines[-1]} {word}"
        if display_width(line) > width - 2:
            lines[-1] += " \\"
            line = f"{indent}  {word}"
            lines.append(line)
        lines[-1] = line
    return lines
