"""The names of a run's slices, numbered: arrays hold the numbers, and the texts exist once.

A number is the place of a name among all names of the run in alphabetical order. The store's table internal.names has
the numbers for SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.intervals import Ints
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class _Names:
    texts: list[str]
    """Every name once, in alphabetical order."""
    codes: dict[str, Ints]
    """By category, the numbers of its names in ascending order."""
    slices: dict[str, int]
    """By category, the number of its slices, the most frequent first."""


@once_per_run
def _names(run: Run) -> _Names:
    """One pass over all slices."""
    found = run.arrays("SELECT category, name, code, occurrences FROM internal.names ORDER BY category, code")
    texts = np.empty(int(found["code"].max()) + 1 if len(found["code"]) else 0, dtype=object)
    texts[found["code"]] = found["name"]
    firsts = np.flatnonzero(found["category"][1:] != found["category"][:-1]) + 1
    parts = np.split(found["code"], firsts) if len(texts) else []
    categories = found["category"][[0, *firsts.tolist()]].tolist() if len(texts) else []
    counts = np.add.reduceat(found["occurrences"], [0, *firsts.tolist()]).tolist() if len(texts) else []
    by_count = sorted(zip(categories, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return _Names(texts.tolist(), dict(zip(categories, parts, strict=True)), dict(by_count))


def all_names(run: Run) -> list[str]:
    """By their number."""
    return _names(run).texts


def name_codes(run: Run, *categories: str) -> Ints:
    """The numbers of the names that occur in some categories, in ascending order."""
    codes = _names(run).codes
    found = [codes[category] for category in categories if category in codes]
    return (
        found[0] if len(found) == 1 else unique_values(np.concatenate([np.empty(0, dtype=np.int64), *found]))
    )


def vocabulary(run: Run, *categories: str) -> list[str]:
    """The names that occur in some categories, sorted: regular expressions are matched with these, not with events."""
    texts = all_names(run)
    return [texts[code] for code in name_codes(run, *categories).tolist()]


def categories(run: Run) -> list[str]:
    """The categories that occur."""
    return list(_names(run).codes)


def category_counts(run: Run) -> dict[str, int]:
    """The number of slices of each category, the most frequent first."""
    return _names(run).slices


def sql_names(names: Sequence[str]) -> str:
    """For IN (…); nothing matches an empty list."""
    return sql_texts(names) or "NULL"
