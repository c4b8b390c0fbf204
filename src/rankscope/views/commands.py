"""Commands in findings and notes: with the path of the run in place of RUN, on lines that can be pasted."""

from __future__ import annotations

import re
from dataclasses import replace

from rankscope.analysis.core.result import Finding, Result, reworded
from rankscope.text.run_words import Runs, with_paths
from rankscope.units import display_width
from rankscope.views.text import clean, hang, sentence

_COMMAND = re.compile(
    r"rankscope (?:stats|whatif|report|chart|view|query|doctor|export|diff)"
    r"(?: [^\s'();]*'[^']*'| [^\s'();]*[^\s'(),;.:])+"
)
_WORD = re.compile(r"(?:[^\s']|'[^']*')+")


def finding_with_paths(finding: Finding, runs: Runs) -> Finding:
    return replace(finding, evidence=with_paths(finding.evidence, runs), hint=with_paths(finding.hint, runs))


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


def pieces(text: str) -> list[tuple[str, bool]]:
    """The text in pieces: (piece, whether it is a command)."""
    split, done = [], 0
    for match in _COMMAND.finditer(text):
        split += [(text[done : match.start()], False), (match[0], True)]
        done = match.end()
    return [(piece, is_command) for piece, is_command in (*split, (text[done:], False)) if piece.strip(" .")]


def advice_lines(first: str, text: str, width: int) -> list[str]:
    """`text` after `first`, wrapped; a command that does not fit on the first line gets lines of its own."""
    text = clean(text)
    whole = hang(first, text, width)
    if len(whole) <= 1:
        return whole
    indent = " " * display_width(first)
    lines: list[str] = []
    for piece, is_command in pieces(text):
        if is_command:
            lines += command_lines(piece, indent, width)
        else:
            lines += hang(indent if lines else first, piece.lstrip(" .)"), width)
    return lines


def command_lines(command: str, indent: str, width: int) -> list[str]:
    """The command in lines that a shell reads as one: they end in a backslash. A long path is not broken."""
    lines = [indent]
    for word in _WORD.findall(command):
        line = f"{lines[-1]} {word}" if lines[-1].strip() else indent + word
        if display_width(line) > width - 2 and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(f"{indent}  {word}")
        else:
            lines[-1] = line
    if len(lines) > 1 and display_width(indent + command) <= width:
        return [indent + command]
    return lines


def advice_and_commands(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The sentences of a hint, and its commands with what announces them: ('List its kernels', 'rankscope stats …')."""
    sentences: list[str] = []
    commands = []
    for piece, is_command in pieces(text):
        if not is_command:
            sentences += re.split(r"(?<=[.!?])\s+", piece.strip(" ."))
            continue
        announced = sentences and sentences[-1].endswith(":")
        commands.append((sentences.pop()[:-1] if announced else "See", piece))
    return " ".join(map(sentence, sentences)), commands
