"""Asks an assistant's questions about the recorded ordinary jobs, through `rankscope mcp` alone and without SQL.

    python benchmarks/exam/ordinary_ask.py FOLDER [--only svd,garbage]

The client is the exam's: it finds a question in the guide, calls the tool that stands there and reads the field. Each
job is asked the five questions of QUESTIONS, one call each, over the protocol, by the SDK's own client.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from ordinary_job import FAULTS
from ordinary_record import HEALTHY
from rankscope.agents.guide import guide_table
from scripted_client import call_of, read

WHO = "Which rank delays the others?"
EVERY_STEP = "Does it happen in every step?"
OPS = "Does a rank run ops that others do not?"
CPU = "Are ranks short of CPU?"
FIRST = "What costs most?"
QUESTIONS = (WHO, EVERY_STEP, OPS, CPU, FIRST)
"""One call each."""
MORE_OPS = ("evaluation", "svd", "tensor-parallel", "checkpoint", "compile")
SHORT_OF_CPU = {"few-cores": [0, 1, 2, 3], "taken-core": [2]}


@dataclass(frozen=True)
class Asked:
    """A job, a question and the values that were read."""

    job: str
    question: str
    values: tuple[Any, ...]
    right: bool | None
    """None where the truth says nothing."""


def is_right(name: str, question: str, values: Sequence[Any]) -> bool | None:
    """By what is planted."""
    fault = None if name.startswith(HEALTHY) else FAULTS[name]
    ranks = list(fault.ranks) if fault else []
    if question == WHO:
        return bool((values[0] or []) == ranks)
    if question == EVERY_STEP and fault and ranks:
        return bool(values[0]) == (fault.every > 1)
    if question == OPS:
        return bool(values[0] == (ranks[0] if name in MORE_OPS else None))
    if question == CPU:
        return bool(values[0] == SHORT_OF_CPU.get(name, []))
    return None


async def ask_all(folders: Sequence[Path]) -> list[Asked]:
    """Over stdin and stdout of `rankscope mcp`."""
    from mcp import Client, StdioServerParameters

    table = {row.question: row for row in guide_table()}
    program = StdioServerParameters(command=sys.executable, args=["-m", "rankscope", "mcp"])
    asked = []
    async with Client(program) as client:
        for folder in folders:
            await client.call_tool("open", {"path": str(folder)})
            name = folder.name.rsplit("-", 2)[0]
            for question in QUESTIONS:
                tool, given = call_of(table[question].tool)
                answer: Mapping[str, Any] = (
                    await client.call_tool(tool, {**given, "run": str(folder)})
                ).structured_content
                values = tuple(read(answer, path) for path in table[question].read)
                asked.append(Asked(folder.name, question, values, is_right(name, question, values)))
    return asked


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    args = parser.parse_args(argv)
    only = [name for name in args.only.split(",") if name]
    folders = sorted(path for path in args.folder.iterdir() if any(path.glob("rank-00003*")))
    folders = [path for path in folders if not only or path.name.rsplit("-", 2)[0] in only]
    asked = anyio.run(ask_all, folders)
    for each in asked:
        if each.right is False:
            print(f"wrong: {each.job}: {each.question} {each.values}")
    for question in QUESTIONS:
        judged = [each.right for each in asked if each.question == question and each.right is not None]
        if judged:
            print(f"{question} {sum(judged)} of {len(judged)}")
    print(f"{len(QUESTIONS)} calls a job, {len(folders)} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
