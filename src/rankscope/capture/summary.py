"""The message at the end of a captured job: which traces were written, what they cost, and the next command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rankscope.capture.plan import Plan
from rankscope.capture.run_folder import rank_manifests, remove_if_empty
from rankscope.ranges import as_ranges
from rankscope.units import format_bytes, format_ns

Windows = list[tuple[int, dict[str, Any]]]


def summary(folder: Path, plan: Plan) -> str | None:
    """The message, or None when there is nothing to report. A run folder without any rank is removed."""
    manifests = list(rank_manifests(folder))
    if not manifests:
        remove_if_empty(folder)
        return _nothing_captured(plan)
    windows = [(manifest["rank"], window) for manifest in manifests for window in manifest["windows"]]
    kept = [(rank, window) for rank, window in windows if window.get("state") in ("whole", "partial")]
    if not kept or plan.quiet:
        return None
    if plan.tool != "torch":
        parts = [_amount(kept, f"{plan.tool} report")]
    else:
        longest = max((window for _, window in kept), key=lambda window: int(window["stall_ns"]))
        export = longest["stall_ns"] - longest["stop_ns"]
        steps = f"steps {longest['first_step']}-{longest['last_step']}"
        parts = [
            _amount(kept, "trace", steps),
            f"Training was paused for at most {format_ns(longest['stall_ns'], 2)}: stop "
            f"{format_ns(longest['stop_ns'], 2)} (torch's own), export {format_ns(export, 2)}.",
        ]
    return "\n  ".join([*parts, f"Next: rankscope stats {short_path(folder)}"])


def _nothing_captured(plan: Plan) -> str:
    if plan.tool != "torch":
        lines = [
            f"nothing was captured: no selected rank (--ranks {plan.ranks}) of the command ran under {plan.tool}"
        ]
    else:
        lines = [
            f"nothing was captured: no selected rank (--ranks {plan.ranks}) of the command trained with torch",
            "rankscope captures Python processes; it is not loaded under python -I, -S or -E.",
        ]
    return "\n  ".join([*lines, "See what would run: rankscope profile --dry-run ..."])


def _amount(windows: Windows, noun: str, *more: str) -> str:
    ranks = sorted({rank for rank, _ in windows})
    partial = sum(window["state"] == "partial" for _, window in windows)
    size = format_bytes(sum(window["bytes"] for _, window in windows), 1)
    parts = [
        f"{_plural(len(windows), noun)} of {_plural(len(ranks), 'rank')} ({as_ranges(ranks)})",
        *more,
        size,
        *([f"{partial} partial"] if partial else []),
    ]
    return ", ".join(parts)


def has_traces(folder: Path) -> bool:
    return any(window.get("bytes") for one in rank_manifests(folder) for window in one["windows"])


def short_path(folder: Path) -> str:
    """Quoted for a shell; relative to the working directory when it is below that."""
    return shlex.quote(str(folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder))


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
