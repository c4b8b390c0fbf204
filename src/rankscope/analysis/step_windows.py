"""When each rank's steps were, on the host; read once a run."""

from __future__ import annotations

from dataclasses import dataclass, fields
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.intervals import Ints
from rankscope.analysis.scope import Scope
from rankscope.store.run import Run


@dataclass(frozen=True)
class StepWindows:
    """A rank's steps in order of time."""

    step: Ints
    start: Ints
    end: Ints

    def pick(self, mask: slice | NDArray[np.bool_]) -> StepWindows:
        return StepWindows(*(getattr(self, f.name)[mask] for f in fields(self)))


_KNOWN: WeakKeyDictionary[Run, dict[int, StepWindows]] = WeakKeyDictionary()


def step_windows(run: Run, rank: int, scope: Scope) -> StepWindows:
    if run not in _KNOWN:
        found = run.arrays(
            "SELECT rank::BIGINT AS rank, step::BIGINT AS step, start_ns AS start, start_ns + dur_ns AS end "
            "FROM steps ORDER BY rank, start_ns"
        )
        rank_of = found.pop("rank")
        every = StepWindows(**found)
        _KNOWN[run] = {one: every.pick(slice(*np.searchsorted(rank_of, [one, one + 1]))) for one in run.ranks}
    mine = _KNOWN[run][rank]
    if scope.steps is None:
        return mine
    return mine.pick((mine.step >= scope.steps[0]) & (mine.step <= scope.steps[1]))
