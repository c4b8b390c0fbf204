"""The guide for assistants, guide.md: which tool or command answers which question, and how to read the answer."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).with_name("guide.md")


def guide_text() -> str:
    return _FILE.read_text(encoding="utf-8")


def guide_for_tools() -> str:
    """The guide for an assistant that has the tools: its rules, and the table without the commands."""
    rules, _, tables = guide_text().split("---\n", 2)[2].partition("\n## ")
    rows = [line.strip("| ").split(" | ") for line in tables.splitlines() if "? | " in line]
    lines = [f"- {question} {tool}: {read}".replace("`", "") for question, tool, _, read in rows]
    return "\n".join([rules.strip(), "", "Question, tool and where to read the answer:", "", *lines]) + "\n"
