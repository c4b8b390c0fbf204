"""A job while it runs: follow it, show it as text (a live view, lines for a log, JSON), act on its alarms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rankscope.ranges import rank_words
from rankscope.text.json_values import plain
from rankscope.text.plain_table import plain_table
from rankscope.text.visible_text import visible
from rankscope.units import Scale, choose_scale, format_rounded, shorten_middle
from rankscope.watch.alarms import CONFIRMED_AFTER_S, Alarm
from rankscope.watch.hang import Explain
from rankscope.watch.roles import role_lines
from rankscope.watch.state import (
    FINAL_STATES,
    JobWatcher,
    State,
    as_it_is,
    like_the_median,
    worst_ranks,
)

WIDTH = 80
_BARS = "▁▂▃▄▅▆▇█"
_NODE_WIDTH = 10
_SHORTEST_PAUSE_S = 0.05
_STATUS_SECONDS = 10.0
"""Between two lines about the state in a log."""
_HOOK_SECONDS = 10.0
_EARLIER = 3
"""Alarms that are over, which are shown."""
_BEHIND = 20
"""Steps: a rank whose file is older holds up the judging."""


def follow(
    run: Path,
    every_s: float,
    hang_after_s: float | None = None,
    *,
    once: bool = False,
    explain: Explain = as_it_is,
) -> Iterator[tuple[State, list[Alarm]]]:
    """The state of a job and its new alarms, again and again until the job has ended. It may not have begun yet."""
    watcher = JobWatcher(run, hang_after_s, explain, waits=not once)
    while True:
        started = time.monotonic()
        state, new = watcher.look()
        yield state, new
        if once or state["state"] in FINAL_STATES:
            return
        time.sleep(max(every_s - (time.monotonic() - started), _SHORTEST_PAUSE_S))


def tell(command: str, alarm: Alarm, state: State) -> str:
    """Run a shell command with the alarm as JSON on its stdin and as a line in RANKSCOPE_ALARM, the view in
    RANKSCOPE_VIEW, or POST the JSON to a URL; returns why that failed, or ""."""
    content = json.dumps({**alarm.to_dict(), "run": state["run"]}).encode()
    try:
        if command.startswith(("http://", "https://")):
            import urllib.request

            request = urllib.request.Request(command, content, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=_HOOK_SECONDS).close()
        else:
            # stdout is that of `rankscope watch`, and may be JSON
            stdout = sys.stderr.fileno()
            view = "\n".join(lines(state))
            environment = {**os.environ, "RANKSCOPE_ALARM": alarm.line(), "RANKSCOPE_VIEW": view}
            subprocess.run(
                command,
                shell=True,
                input=content,
                stdout=stdout,
                timeout=_HOOK_SECONDS,
                check=True,
                env=environment,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return f"{error}"
    return ""


def json_line(state: State, new: Sequence[Alarm]) -> str:
    """The whole state."""
    content = plain({**state, "new_alarms": [alarm.to_dict() for alarm in new]})
    return json.dumps(content, allow_nan=False) + "\n"


def whole_view(state: State, _new: Sequence[Alarm]) -> str:
    return "\n".join(lines(state)) + "\n"


class LogLines:
    """For a file or a pipe: a line about the state now and then, and a line for each alarm at once."""

    def __init__(self) -> None:
        self._printed = -_STATUS_SECONDS
        self._state = ""

    def __call__(self, state: State, new: Sequence[Alarm]) -> str:
        text = [alarm.line() for alarm in new]
        if state["state"] != self._state or time.monotonic() - self._printed >= _STATUS_SECONDS:
            self._printed, self._state = time.monotonic(), state["state"]
            text.insert(0, " · ".join(lines(state)[:2]))
        return "".join(f"{line}\n" for line in text)


class LiveView:
    """A view that is drawn over itself; only lines that have changed are written."""

    def __init__(self) -> None:
        self._drawn: list[str] = []

    def redraw(self, state: State, columns: int, rows: int) -> str:
        """The text for a terminal of this size."""
        shown = [visible(line)[:columns] for line in lines(state, columns)][: max(rows - 1, 1)]
        text = f"\033[{len(self._drawn)}A" if self._drawn else ""
        for index, line in enumerate(shown):
            same = index < len(self._drawn) and self._drawn[index] == line
            text += "\n" if same else f"\r\033[K{line}\n"
        self._drawn = shown
        return text + "\033[J"


def lines(state: State, width: int = WIDTH) -> list[str]:
    """What the view shows, one line each."""
    ranks = f"{state['alive_ranks']} of {state['world_size']} ranks alive"
    heading = f" · {state['state']} · {ranks} · step {state['last_step']:,}"
    if state["judged_step"] is not None and state["last_step"] - state["judged_step"] > _BEHIND:
        heading += f", judged to {state['judged_step']:,}"
    shown = [shorten_middle(Path(state["run"]).name, width - len(heading)) + heading]
    if step := state["step_ns"]:
        spread = f"{format_rounded('ns', step['p5'])} to {format_rounded('ns', step['p95'])}"
        shown.append(
            f"step {format_rounded('ns', step['median'])} (90 % of the last {step['steps']}: {spread})"
        )
    elif state["ranks"]:
        shown.append("step time: not known yet")
    else:
        shown.append("no telemetry yet: waiting for a job that was started with --watch")
    if state["trend_ns"]:
        shown.append(f"trend {sparkline(state['trend_ns'])}")
    if memory := state["memory_bytes"]:
        usual, most = (format_rounded("bytes", memory[key]) for key in ("median", "max"))
        shown.append(f"memory {usual} (most: {most}, rank {memory['rank']})")
    if off := [rank for rank in state["ranks"] if rank["off"]]:
        which = rank_words([rank["rank"] for rank in off])
        shown += textwrap.wrap(f"telemetry off on {which}: {off[0]['off']}", width, subsequent_indent="  ")
    shown += ["", *([] if state["alarms"] else ["no alarm"])]
    for alarm in state["alarms"]:
        shown += textwrap.wrap(f"{alarm['severity']}: {alarm['text']}", width, subsequent_indent="  ")
        shown += textwrap.wrap(alarm["hint"], width, initial_indent="  → ", subsequent_indent="    ")
    for alarm in state["suspicions"]:
        suspicion = f"suspicion (an alarm after {CONFIRMED_AFTER_S:g} s): {alarm['text']}"
        shown += textwrap.wrap(suspicion, width, subsequent_indent="  ")
    shown += [*role_lines(state["roles"]), *textwrap.wrap(state["bottleneck"], width, subsequent_indent="  ")]
    if count := len(state["ranks"]):
        worst = worst_ranks(state)
        scale = choose_scale("ns", (rank["excess_ns"] or 0 for rank in worst))
        rows = [_row(rank, scale) for rank in worst]
        headings = ("rank", "node", "phase", "cause", f"own ({scale.label})", "step", "ago (s)")
        shown += ["", *plain_table(headings, rows, left=4).splitlines()]
        shown.append(f"{like_the_median(state)} of {count} rank{'s' * (count != 1)} like the median")
    for alarm in reversed(state["past_alarms"][-_EARLIER:]):
        lasted = alarm["last_step"] > (alarm["since_step"] or 0)
        earlier = f"earlier: {alarm['text']}" + f", until step {alarm['last_step']}" * lasted
        shown += textwrap.wrap(earlier, width, subsequent_indent="  ")
    return shown


def sparkline(values: Sequence[float | None]) -> str:
    """Bars from 0 to twice the median: a long step does not flatten the others."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered or not ordered[len(ordered) // 2]:
        return ""
    top = 2 * ordered[len(ordered) // 2]

    def bar(value: float | None) -> str:
        return " " if value is None else _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)]

    return "".join(map(bar, values))


def _row(rank: dict[str, Any], scale: Scale) -> tuple[str, ...]:
    excess = rank["excess_ns"]
    return (
        str(rank["rank"]),
        shorten_middle(rank["node"], _NODE_WIDTH),
        rank["phase"],
        rank["cause"] or "",
        "" if excess is None else f"{'+' * (excess >= 0)}{scale.format(excess)}",
        str(rank["last_step"]),
        f"{rank['without_step_s'] + rank['age_s']:.0f}",
    )
