"""The name that was meant: today's name of a report, or the nearest one for an error about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable

_FOLDED = (
    "breakdown.phases", "idle.gaps", "idle.launches", "idle.short_kernels", "idle.syncs", "kernels.families",
    "ops.annotations", "ops.runtime_api", "faults.imbalance", "stragglers.op_differences",
    "stragglers.micro_batches", "collectives.nccl", "layout.groups", "memory.allocators", "memory.fragmentation",
    "hang.flight_recorder",
)  # fmt: skip
"""Tables that were reports of their own until version 0.2, by the name after the dot."""
RENAMED_REPORTS = {name.partition(".")[2]: name for name in _FOLDED} | {
    "short": "idle.short_kernels",
    "api": "ops.runtime_api",
    "flight": "hang.flight_recorder",
    "fragments": "memory.fragmentation",
}
"""Names of reports until version 0.2, which are accepted for one release, and those of today."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """'Did you mean stragglers? ', or '' if no name is like it. Of --report-format both halves may be meant."""
    from difflib import get_close_matches  # late: only errors need it

    word = word.lower().lstrip("-")
    names = {name.lower().lstrip("-"): name for name in choices}
    close = get_close_matches(word, names, 2, 0.6)
    if not close and len(word) > 2:
        close = [name for name in names if name.startswith(word)]
    close = [name for name in close if name in word] or close[:1]
    return f"Did you mean {' or '.join(map(names.__getitem__, close))}? " if close else ""
