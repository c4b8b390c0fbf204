"""The options of commands that reach another machine."""

from __future__ import annotations

import argparse
import shlex

from rankscope.errors import UsageError


def add_remote_options(parser: argparse.ArgumentParser, title: str) -> None:
    add = parser.add_argument_group(title).add_argument
    add("--ssh", default="ssh", metavar="COMMAND", help="such as 'ssh -i KEY -J GATE' (default: ssh)")
    add(
        "--remote-rankscope",
        default="rankscope",
        metavar="COMMAND",
        help="over there, such as .venv/bin/rankscope or 'python3 -m rankscope' (default: rankscope)",
    )


def remote_program(args: argparse.Namespace) -> list[str]:
    words = shlex.split(args.remote_rankscope)
    if not words:
        raise UsageError("--remote-rankscope is empty", hint="Leave it out, or name the program over there.")
    return words


def as_argument(path: str) -> str:
    """A path that starts with a dash is still a path."""
    return f"./{path}" if path.startswith("-") else path
