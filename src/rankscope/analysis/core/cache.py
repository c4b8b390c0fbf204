"""What several reports of one run start from is worked out once: a result kept as long as its run is open."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from rankscope.store.run import Run

T = TypeVar("T")


def once_per_run(compute: Callable[..., T]) -> Callable[..., T]:
    """Remember what `compute` gave for a run and what was last asked of it: a scope, and what a report is asked by."""
    known: WeakKeyDictionary[Run, tuple[tuple[Any, ...], T]] = WeakKeyDictionary()

    @wraps(compute)
    def remembered(run: Run, *asked: Any) -> T:
        last = known.get(run)
        if last is None or last[0] != asked:
            last = (asked, compute(run, *asked))
            known[run] = last
        return last[1]

    return remembered
