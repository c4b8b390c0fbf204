"""How much longer than its peers each rank takes in each step on its own, and in which part of its time.

The own time of a rank in a step is the step without its waiting inside collectives. Peers do the same work.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.time_split import PARTS, step_times
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import middle_of_others
from rankscope.analysis.core.scope import Scope
from rankscope.store.arrays import Floats
from rankscope.timeline.run import Run

OWN = tuple(name for name in PARTS if name != "waiting")


class OwnTimes(NamedTuple):
    """Of the steps that two ranks or more have."""

    ranks: tuple[int, ...]
    steps: tuple[int | None, ...]
    """(None,) in a run without steps: the window counts as one."""
    of_parts: Floats
    """[part, rank, step]: time beyond the median of the peers, by OWN; 0 where a rank or all its peers lack the
    step."""
    excess: Floats
    """[rank, step]: of all parts together."""

    def cause(self, rank: int, step: int) -> str | None:
        """The part with the largest excess, by the indices of rank and step."""
        parts = self.of_parts[:, rank, step]
        return OWN[int(parts.argmax())] if parts.max() > 0 else None


@once_per_run
def own_times(run: Run, scope: Scope) -> OwnTimes:
    """Of all ranks, in the steps in scope. A rank without peers is compared with all others."""
    ranks, every_step, split = step_times(run, scope)
    common = np.flatnonzero((~np.isnan(split[0])).sum(axis=0) > 1)
    own = split[[PARTS.index(name) for name in OWN]][:, :, common]
    times = own.swapaxes(1, 2)
    usual = np.full_like(times, np.nan)
    layout = layout_of(run, Scope())
    roles = [layout.work(rank) for rank in ranks]
    for role, count in Counter(roles).items():
        mine = [number for number, other in enumerate(roles) if other == role]
        low, high = middle_of_others(times if count == 1 else times[..., mine])
        middle = (low + high) / 2
        usual[..., mine] = middle[..., mine] if count == 1 else middle
    of_parts = np.maximum(np.nan_to_num(times - usual), 0).swapaxes(1, 2)
    return OwnTimes(ranks, tuple(every_step[at] for at in common.tolist()), of_parts, of_parts.sum(axis=0))
