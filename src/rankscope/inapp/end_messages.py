"""The messages at the end of a captured rank: what was captured, or why nothing was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankscope.capture.plan import Plan
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.schedule import EveryStep, OnRequest, OnSignal, ScheduleFunction, TimeWindow
from rankscope.capture.selector import parse_selector
from rankscope.capture.summary import cycles, ranks_of
from rankscope.units import format_bytes, format_ns


def nothing_captured(plan: Plan, steps: int, optimizer_calls: Mapping[str, int]) -> str:
    """Why a selected rank has no trace, and what to do about it."""
    if isinstance(plan.when, TimeWindow):
        return f"nothing was captured: the script ended before --after {plan.when.after_s:g} s had passed"
    if isinstance(plan.when, OnSignal):
        return f"nothing was captured: no SIG{plan.when.signal} arrived while the script ran"
    if plan.step_on and plan.step_on not in optimizer_calls:
        seen = ", ".join(optimizer_calls) or "none"
        return (
            f"nothing was captured: no optimizer named {plan.step_on} stepped (seen: {seen}); see --step-on"
        )
    if not steps:
        if isinstance(plan.when, OnRequest):
            return (
                "no telemetry was kept: no optimizer stepped (rankscope.mark_step() in the loop marks a step)"
            )
        if plan.tool != "torch":
            return "no step was marked: no optimizer stepped (rankscope.mark_step() in the loop marks one)"
        return "nothing was captured: no optimizer stepped; for a loop without one give --after 10s --for 5s"
    if isinstance(plan.when, EveryStep | OnRequest):
        return "no step was marked: the run ended in its first step"
    if isinstance(plan.when, ScheduleFunction):
        return f"nothing was captured: the schedule function recorded none of the {steps} steps"
    first = plan.when.first_recorded_step
    return f"nothing was captured: the script ended after {steps} steps, recording begins with step {first}"


def captured(plan: Plan, files: RankFiles) -> str:
    """Which steps, how large, how long training was paused, and the next command."""
    windows: list[dict[str, Any]] = [
        window for window in files.manifest["windows"] if window["state"] != "lost"
    ]
    if not windows:
        return f"no trace could be written to {files.folder}"
    size = format_bytes(sum(window.get("bytes", 0) for window in windows), 1)
    # By the selection: another rank may not have written anything yet.
    recorded = parse_selector(plan.ranks).matching(files.identity) or 1
    ranks = ranks_of(recorded, files.identity.world_size or 1)
    longest = max(windows, key=lambda window: int(window["stall_ns"]))
    export = longest["stall_ns"] - longest["stop_ns"]
    return (
        f"captured {cycles(windows)} ({size}) of {ranks}. "
        f"Training was paused for at most {format_ns(longest['stall_ns'], 2)} "
        f"(stop {format_ns(longest['stop_ns'], 2)} by torch, export {format_ns(export, 2)}). "
        f"Next: rankscope stats {files.folder}"
    )
