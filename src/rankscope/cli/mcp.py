"""rankscope mcp: the answers as tools for an assistant, over stdio."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from rankscope.cli.options import add_options
from rankscope.errors import MissingPackageError

DESCRIPTION = "A Model Context Protocol server over stdio: every report, blame, diff and whatif as a tool."
EPILOG = """\
examples:
  rankscope mcp                 the assistant opens runs by their path
  rankscope mcp runs/a runs/b   two runs that it can ask about at once
  claude mcp add rankscope -- rankscope mcp runs/a
  rankscope mcp --guide > SKILL.md     for an assistant that reads files and runs commands

The assistant's program starts it and speaks MCP over stdin and stdout. It only reads; the store is made beside raw
traces, as every command does.
"""
_OPTIONS = """\
[RUN ...]  a folder with one trace per rank, or a trace file
--guide  print what the assistant is told, and stop: which report answers which question, and how to read it
--cache DIR  keep the store under DIR, not beside the traces
"""


def configure(parser: argparse.ArgumentParser) -> None:
    add_options(parser, _OPTIONS, run=Path, cache=Path)


def main(args: argparse.Namespace) -> int:
    if args.guide:
        from rankscope.agents.guide import guide_text

        print(guide_text(), end="")
        return 0
    if importlib.util.find_spec("mcp") is None:
        raise MissingPackageError(
            "rankscope mcp needs the package mcp",
            why="It is not installed in this Python.",
            hint="pip install 'rankscope[mcp]'",
        )
    from rankscope.agents.server import serve
    from rankscope.agents.tools import Tools

    tools = Tools(args.run, args.cache, lambda text: print(text, file=sys.stderr))
    try:
        serve(tools)
    finally:
        tools.close()
    return 0
