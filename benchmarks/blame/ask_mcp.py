"""The answer of a scripted assistant to a case, through `rankscope mcp` alone and without SQL.

It has the question, the guide and the tools: it finds a question in the guide's table, calls the tool that stands there
and reads the field that stands there (benchmarks/exam/scripted_client.py). A wrong answer is a fault of the guide, of a
tool or of a report, not of a model.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1] / "exam"))

from rankscope.agents.guide import guide_table
from scripted_client import call_of, read

FIRST = "What costs most?"
FIRST_RANKS = "Which ranks is the first finding about?"
WHO = "Which rank delays the others?"
WHY = "Why is that rank late?"
SAVES = "What would be saved in a step if it were as fast as the others?"
MISSING = "Which rank is missing in a hang?"
GROWS = "Does memory grow?"


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
    """Asks as an assistant would: who is late, why, at what cost; else a hang, a stage, memory."""
    _, (ranks,) = await ask(WHO)
    if ranks:
        _, (cause,) = await ask(WHY)
        _, (saved_ns,) = await ask(SAVES)
        ms = saved_ns / 1e6 if saved_ns is not None else None
        who = "rank" if len(ranks) == 1 else "node"
        return {"who": who, "ranks": sorted(ranks), "cause": cause, "ms_per_step": ms}
    _, (missing,) = await ask(MISSING)
    if missing:
        return {"who": "rank", "ranks": sorted(missing), "cause": "hang"}
    _, (report, cost_ns, title) = await ask(FIRST)
    _, (first_ranks,) = await ask(FIRST_RANKS)
    if report == "bubbles" and first_ranks:
        cost_ms = cost_ns / 1e6 if cost_ns is not None else None
        return {
            "who": "stage",
            "ranks": sorted(first_ranks),
            "cause": "stages",
            "ms_per_step": cost_ms,
            "why": title,
        }
    outcome, (_, reason) = await ask(GROWS)
    grown = re.search(r"of rank (\d+) grows", reason or "")
    if outcome == "problem" and grown:
        return {"who": "rank", "ranks": [int(grown[1])], "cause": "memory"}
    uneven = report in ("stragglers", "imbalance")
    cost = {"ms_per_step": cost_ns / 1e6} if uneven and cost_ns is not None else {}
    return {"who": "nobody", "ranks": [], "cause": "uneven" if uneven else "none", **cost}
