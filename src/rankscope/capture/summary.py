"""The messages at the end of a captured job or rank: what was captured and what it cost, or why nothing was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rankscope.capture.plan import Plan
from rankscope.capture.rank_files import RankFiles
from rankscope.capture.run_folder import rank_manifests, remove_if_empty
from rankscope.capture.schedule import EveryStep, OnRequest, OnSignal, ScheduleFunction, TimeWindow
from rankscope.capture.selector import parse_selector
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.text.run_words import shell_word, short_path
from rankscope.units import format_bytes, format_rounded

Windows = list[tuple[int, dict[str, Any]]]
# A line that names more cycles than this is not read.
_MOST_CYCLES = 6


def summary(folder: Path, plan: Plan, status: int = 0) -> str | None:
    """The message, or None when there is nothing to report. A run folder without any rank is removed."""
    manifests = list(rank_manifests(folder))
    if not folder.is_dir():
        return f"the run folder {short_path(folder)} was removed, and the traces with it"
    if not manifests:
        remove_if_empty(folder)
        under = f"ran under {plan.tool}" if plan.tool != "torch" else "trained with torch"
        lines = [f"nothing was captured: no selected rank (--ranks {plan.ranks}) of the command {under}"]
        if plan.tool == "torch":
            needs = "rankscope captures Python processes that import torch; it is not loaded under python -I, -S or -E."
            lines.append(f"The command failed before that: status {status}." if status else needs)
        return "\n  ".join([*lines, "See what would run: rankscope profile --dry-run ..."])
    windows = [(manifest["rank"], window) for manifest in manifests for window in manifest["windows"]]
    # A rank that was killed leaves a window without its end.
    written = [
        (rank, window)
        for rank, window in windows
        if window.get("state") in ("whole", "partial") and "bytes" in window
    ]
    rings = len(list((folder / FOLDER).glob("*.ring")))  # --watch
    show = f"rankscope stats {short_path(folder)} -r telemetry"
    telemetry = f"telemetry of {_plural(rings, 'rank')}: {show}" if rings else None
    if plan.quiet or not (written or telemetry):
        return None
    if not written:
        return telemetry
    noun = "trace" if plan.tool == "torch" else f"{plan.tool} report"
    world = max((manifest.get("world_size") or 0 for manifest in manifests), default=0)
    parts = [_amount(written, noun, world)]
    if plan.tool == "torch":
        parts.append(_longest_pause(window for _, window in written))
    parts += [telemetry] if telemetry is not None else []
    return "\n  ".join([*parts, f"Next: rankscope stats {short_path(folder)}"])


def ranks_of(recorded: int, world: int) -> str:
    """ "4 of 4 ranks", and what a part of the ranks cannot show."""
    if world <= recorded:
        return f"{recorded} of {_plural(recorded, 'rank')}"
    return (
        f"{recorded} of {_plural(world, 'rank')}: stragglers cannot be judged; --ranks all records every rank"
    )


def cycles(windows: Iterable[dict[str, Any]]) -> str:
    """The steps of every cycle, such as "steps 2-4, 7-9"; empty where no steps are known."""
    counted = [window for window in windows if window.get("first_step") is not None]
    if not counted:
        return ""
    steps = sorted({(window["first_step"], window["last_step"]) for window in counted})
    spans = [str(first) if first == last else f"{first}-{last}" for first, last in steps]
    more = len(spans) - _MOST_CYCLES
    named = ", ".join(spans[:_MOST_CYCLES]) + (f" and {more} more cycles" if more > 0 else "")
    return f"{'step' if named.isdecimal() else 'steps'} {named}"


def _amount(windows: Windows, noun: str, world: int) -> str:
    ranks = {rank for rank, _ in windows}
    no_steps = "no steps found"
    if any(window.get("steps") == "not counted" for _, window in windows):
        no_steps = "steps not counted (the process was killed)"
    partial = sum(window["state"] == "partial" for _, window in windows)
    parts = [
        _plural(len(windows), noun),
        cycles(window for _, window in windows) or no_steps,
        format_bytes(sum(window["bytes"] for _, window in windows), 1),
        *([f"{partial} partial"] if partial else []),
        ranks_of(len(ranks), world),
    ]
    return ", ".join(parts)


def has_traces(folder: Path) -> bool:
    return any(window.get("bytes") for manifest in rank_manifests(folder) for window in manifest["windows"])


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def nothing_captured_by_rank(plan: Plan, steps: int, optimizer_calls: Mapping[str, int]) -> str:
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
    return (
        f"nothing was captured: the script ended after {_plural(steps, 'step')}, recording begins with step {first}. "
        f"To record all of them: --steps 0:{steps - 1}"
    )


def captured_by_rank(plan: Plan, files: RankFiles) -> str:
    """Which steps, how large, how long training was paused, and the next command."""
    windows: list[dict[str, Any]] = [
        window for window in files.manifest["windows"] if window["state"] != "lost"
    ]
    if not windows:
        return f"no trace could be written to {files.folder}"
    size = format_bytes(sum(window.get("bytes", 0) for window in windows), 1)
    # By the selection: another rank may not have written anything yet.
    recorded = parse_selector(plan.ranks).matching(files.identity) or [0]
    ranks = ranks_of(len(recorded), files.identity.world_size or 1)
    return (
        f"captured {cycles(windows)} ({size}) of {ranks}. {_longest_pause(windows)} "
        f"Next: rankscope stats {shell_word(files.folder)}"
    )


def _longest_pause(windows: Iterable[dict[str, Any]]) -> str:
    pauses = ((window.get("stall_ns", 0), window.get("stop_ns", 0)) for window in windows)
    pause_ns, stop_ns = max(pauses)
    whole, torchs, ours = (format_rounded("ns", part) for part in (pause_ns, stop_ns, pause_ns - stop_ns))
    return f"Training was paused for at most {whole}: {torchs} by torch, {ours} by rankscope."
