"""The state of a job as lines of text: the live view in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankscope.text.plain_table import plain_table
from rankscope.units import format_rounded, shorten_middle
from rankscope.watch.state import State, like_the_median, worst_ranks

WIDTH = 80
_BARS = "▁▂▃▄▅▆▇█"
_NODE_WIDTH = 10


def lines(state: State, width: int = WIDTH) -> list[str]:
    """What the view shows, one line each."""
    found = [_heading(state, width), _steps(state), *_trend(state), *_memory(state), ""]
    found += _alarms(state, width)
    if state["ranks"]:
        found += ["", *_ranks(state).splitlines()]
        ordinary, shown = like_the_median(state), len(state["ranks"])
        found.append(f"{ordinary} of {shown} rank{'s' * (shown != 1)} like the median")
    return found


def _heading(state: State, width: int) -> str:
    ranks = f"{state['alive_ranks']} of {state['world_size']} ranks alive"
    text = f" · {state['state']} · {ranks} · step {state['last_step']:,}"
    return shorten_middle(Path(state["run"]).name, width - len(text)) + text


def _steps(state: State) -> str:
    step = state["step_ns"]
    if not step:
        return "step time: not known yet"
    spread = f"{format_rounded('ns', step['p5'])} to {format_rounded('ns', step['p95'])}"
    return f"step {format_rounded('ns', step['median'])} (90 % of the last {step['steps']}: {spread})"


def _trend(state: State) -> list[str]:
    return [f"trend {sparkline(state['trend_ns'])}"] if state["trend_ns"] else []


def sparkline(values: Sequence[float | None]) -> str:
    """Bars from 0 to twice the median: a long step does not flatten the others."""
    known = sorted(value for value in values if value is not None)
    if not known or not known[len(known) // 2]:
        return ""
    top = 2 * known[len(known) // 2]

    def bar(value: float | None) -> str:
        return " " if value is None else _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)]

    return "".join(map(bar, values))


def _memory(state: State) -> list[str]:
    memory = state["memory_bytes"]
    if not memory:
        return []
    usual, most = (format_rounded("bytes", memory[key]) for key in ("median", "max"))
    return [f"memory {usual} (most: {most}, rank {memory['rank']})"]


def _alarms(state: State, width: int) -> list[str]:
    if not state["alarms"]:
        return ["no alarm"]
    found = []
    for alarm in state["alarms"]:
        found += textwrap.wrap(f"{alarm['severity']}: {alarm['text']}", width, subsequent_indent="  ")
        found += textwrap.wrap(alarm["hint"], width, initial_indent="  → ", subsequent_indent="    ")
    return found


def _ranks(state: State) -> str:
    rows = [_row(rank) for rank in worst_ranks(state)]
    return plain_table(("rank", "node", "phase", "cause", "own work", "step", "ago"), rows, left=4)


def _row(rank: dict[str, Any]) -> tuple[str, ...]:
    excess = rank["excess_ns"]
    return (
        str(rank["rank"]),
        shorten_middle(rank["node"], _NODE_WIDTH),
        rank["phase"],
        rank["cause"] or "",
        "" if excess is None else f"{'+' * (excess >= 0)}{format_rounded('ns', excess)}",
        str(rank["last_step"]),
        f"{rank['without_step_s']:.0f} s",
    )
