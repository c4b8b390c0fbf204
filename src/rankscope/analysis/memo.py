"""What several reports of one run start from is worked out once: a result kept as long as its run is open."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

T = TypeVar("T")


def once_per_run(compute: Callable[[Run, Scope], T]) -> Callable[[Run, Scope], T]:
    """Remember what `compute` gave for a run and the scope last asked for."""
    known: WeakKeyDictionary[Run, tuple[Scope, T]] = WeakKeyDictionary()

    @wraps(compute)
    def remembered(run: Run, scope: Scope) -> T:
        last = known.get(run)
        if last is None or last[0] != scope:
            last = (scope, compute(run, scope))
            known[run] = last
        return last[1]

    return remembered
