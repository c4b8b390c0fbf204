"""The name that was meant: today's name of a report, or the nearest one for an error about an unknown name."""

from __future__ import annotations

from collections.abc import Iterable

RENAMED_REPORTS = {
    "short": "short_kernels",
    "api": "runtime_api",
    "flight": "flight_recorder",
    "fragments": "fragmentation",
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
