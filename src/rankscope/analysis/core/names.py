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


@once_per_run
def _names(run: Run) -> _Names:
    """One pass over all slices."""
    table = run.arrays("SELECT category, name, code FROM internal.names ORDER BY category, code")
    if len(table["code"]) == 0:
        return _Names([], {})
    texts = np.empty(int(table["code"].max()) + 1, dtype=object)
    texts[table["code"]] = table["name"]
    firsts = np.flatnonzero(table["category"][1:] != table["category"][:-1]) + 1
    parts = np.split(table["code"], firsts)
    return _Names(texts.tolist(), dict(zip(table["category"][[0, *firsts]].tolist(), parts, strict=True)))


def all_names(run: Run) -> list[str]:
    """By their number."""
    return _names(run).texts


def name_codes(run: Run, *categories: str) -> Ints:
    """The numbers of the names that occur in some categories, in ascending order."""
    codes = _names(run).codes
    parts = [codes[category] for category in categories if category in codes]
    if len(parts) == 1:
        return parts[0]
    return unique_values(np.concatenate([np.empty(0, dtype=np.int64), *parts]))


def vocabulary(run: Run, *categories: str) -> list[str]:
    """The names that occur in some categories, sorted: regular expressions are matched with these, not with events."""
    texts = all_names(run)
    return [texts[code] for code in name_codes(run, *categories).tolist()]


def categories(run: Run) -> list[str]:
    """The categories that occur."""
    return list(_names(run).codes)


def sql_names(names: Sequence[str]) -> str:
    """For IN (…); nothing matches an empty list."""
    return sql_texts(names) or "NULL"
