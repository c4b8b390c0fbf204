"""The answer of a scripted assistant to a case, through `rankscope mcp` alone and without SQL.

It has the question, the guide and the tools: it finds a question in the guide's table, calls the tool that stands there
and reads the field that stands there (exam/scripted_client.py). A wrong answer is a fault of the guide, of a tool or of
a report, not of a model.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

from rankscope_bench.exam.fault_facts import cause_word
from rankscope_bench.exam.scripted_client import call_of, guide_table, read

WHO = "Which rank delays the others?"
WHY = "Why is that rank late?"
SAVES = "What would be saved in a step if it were as fast as the others?"
MISSING = "Which rank is missing in a hang?"
GROWS = "Does memory grow?"
FIRST_RANKS = "Which ranks is the first finding about?"
_OF_RANKS = ("rank", "node", "group", "stage", "all")
"""How the subject of a fault begins that names ranks."""


def ask_mcp(folder: Path) -> dict[str, Any]:
    return anyio.run(_ask, folder)


async def _ask(folder: Path) -> dict[str, Any]:
    from mcp import StdioServerParameters

    with tempfile.TemporaryDirectory() as store:
        words = ["-m", "rankscope", "mcp", "--cache", store]
        return await _ask_server(StdioServerParameters(command=sys.executable, args=words), folder)


async def _ask_server(program: Any, folder: Path) -> dict[str, Any]:
    from mcp import Client

    table = {row.question: row for row in guide_table()}
    async with Client(program) as client:
        await client.call_tool("open", {"path": str(folder)})

        async def ask(question: str) -> tuple[str, tuple[Any, ...]]:
            name, given = call_of(table[question].tool)
            result = await client.call_tool(name, {**given, "run": str(folder)})
            answer: Mapping[str, Any] = result.structured_content
            return str(answer["outcome"]), tuple(read(answer, path) for path in table[question].read)

        return await _answer(ask)


async def _answer(ask: Any) -> dict[str, Any]:
    """Asks as an assistant would: who is late, why, at what cost; else a hang, memory, uneven work."""
    _, (ranks, subject) = await ask(WHO)
    if subject:
        _, (cause,) = await ask(WHY)
        _, (saved_ns,) = await ask(SAVES)
        word = subject.partition(" ")[0].rstrip("s")
        cost = {"ms_per_step": saved_ns / 1e6} if saved_ns is not None else {}
        if word not in _OF_RANKS:
            return {"who": "nobody", "ranks": [], "cause": "uneven", **cost}
        who = "stage" if word == "stage" else "rank" if len(ranks) == 1 else "node"
        why = "stages" if who == "stage" else cause_word(cause or "")
        return {"who": who, "ranks": sorted(ranks), "cause": why, **cost}
    _, (missing,) = await ask(MISSING)
    if missing:
        return {"who": "rank", "ranks": sorted(missing), "cause": "hang"}
    grows, _ = await ask(GROWS)
    _, (first_ranks,) = await ask(FIRST_RANKS)
    if grows == "problem" and first_ranks:
        return {"who": "rank", "ranks": sorted(first_ranks), "cause": "memory"}
    return {"who": "nobody", "ranks": [], "cause": "none"}
