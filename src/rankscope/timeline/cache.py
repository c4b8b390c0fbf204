"""The cache of a run: answers that several reports need are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """Answers about one view of a run. The run replaces its cache when its view changes (clocks, a shifted time axis).

    The key is a function and its arguments. Of each function only the answer to the latest arguments is kept: this
    bounds the memory of a program that asks about many scopes.
    """

    def __init__(self) -> None:
        self._answers: dict[object, tuple[object, Any]] = {}

    def get(self, function: object, arguments: object, compute: Callable[[], T]) -> T:
        """The kept answer of `function` to `arguments`; `compute` makes it where there is none."""
        kept = self._answers.get(function)
        if kept is None or kept[0] != arguments:
            kept = self._answers[function] = (arguments, compute())
        answer: T = kept[1]
        return answer

    def __len__(self) -> int:
        """The number of kept answers."""
        return len(self._answers)
