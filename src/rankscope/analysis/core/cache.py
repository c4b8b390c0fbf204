"""Functions of a run whose answers are kept in the run's cache."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from rankscope.timeline.run import Run

P = ParamSpec("P")
T = TypeVar("T")


def once_per_run(function: Callable[Concatenate[Run, P], T]) -> Callable[Concatenate[Run, P], T]:
    """Keep the answer to the latest arguments in `run.cache`. Callers must not change what they get."""

    @wraps(function)
    def cached(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run.cache.get(function, (args, kwargs), lambda: function(run, *args, **kwargs))

    return cached
