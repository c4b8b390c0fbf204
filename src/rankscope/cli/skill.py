"""rankscope skill: the guide for assistants."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  rankscope skill > SKILL.md     for an assistant that reads files and runs commands
  rankscope mcp RUN              the same answers as tools
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a guide for assistants: which report answers which question, and how to read it."
    )
    parser.epilog = EXAMPLES


def main(args: argparse.Namespace) -> int:
    from rankscope.agents.guide import guide_text

    print(guide_text(), end="")
    return 0
