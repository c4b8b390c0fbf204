"""The guide for assistants, guide.md: which tool or command answers which question, and how to read the answer."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.records import dataclass

_FILE = Path(__file__).with_name("guide.md")
_ROW = re.compile(
    r"\| (?P<question>[^|]+\?) \| `(?P<tool>[^|]+)` \| `(?P<command>[^|]+)` \| (?P<read>[^|]+) \|"
)


@dataclass(frozen=True)
class Advice:
    """One line of the guide's table."""

    question: str
    tool: str
    """'report(name="mfu")'."""
    command: str
    """The same on the command line."""
    read: tuple[str, ...]
    """Where the answer is in the object."""


def guide_text() -> str:
    return _FILE.read_text(encoding="utf-8")


def guide_for_tools() -> str:
    """The guide for an assistant that has the tools: its rules, and the table without the commands."""
    _, _, text = guide_text().split("---\n", 2)
    rules = text.partition("\n## ")[0].strip()
    lines = [f"- {row.question} {row.tool}: {', '.join(row.read)}" for row in guide_table()]
    return "\n".join([rules, "", "Question, tool and where to read the answer:", "", *lines]) + "\n"


def guide_table() -> list[Advice]:
    """The lines of the guide's table, in order."""
    rows = (_ROW.fullmatch(line) for line in guide_text().splitlines())
    return [
        Advice(row["question"], row["tool"], row["command"], tuple(re.findall(r"`([^`]+)`", row["read"])))
        for row in rows
        if row
    ]
