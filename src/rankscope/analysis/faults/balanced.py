"""What the pieces of work would take in a balanced run (docs/definitions.md, "Balance").

All that a rank itself spends takes part: compute, copies, loading data, the host. What it waits and what a transfer
takes do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.targets import Targets, evened_targets, in_passes, peer_groups
from rankscope.analysis.graph.events import NONE
from rankscope.analysis.graph.pieces import Pieces
from rankscope.store.arrays import Floats, number_rows, unique_values
from rankscope.timeline.run import Run

Balance = Literal["ranks", "stages", "all"]
BALANCES: tuple[Balance, ...] = ("ranks", "stages", "all")


@once_per_run
def balanced_targets(run: Run, scope: Scope, what: Balance) -> Targets:
    """ranks: the work of one class between two communications takes the mean over the ranks of its stage.
    stages: also, a micro-batch forward or backward takes the mean over stages. all: also the mean over micro-batches
    and steps."""
    targets = evened_targets(run, scope, of_all_kinds=True)
    if what == "ranks":
        return targets
    pieces = targets.pieces
    scale = targets.scale.copy()
    outside = (pieces.step != NONE) | (not pieces.graph.steps)
    used, (step, batch, phase, stage), _ = in_passes(run, scope, pieces, outside)
    places, place = number_rows([stage, pieces.kind[used], phase, step, batch, pieces.rank[used]])
    passes, of_pass = number_rows([*places[:, :5].T])
    of_ranks = np.bincount(place, weights=pieces.took[used] * scale[used])
    took: Floats = np.bincount(of_pass, weights=of_ranks) / np.bincount(of_pass)
    factor = _evened([*passes[:, 1:].T], took, least=len(unique_values(stage)))
    if what == "all":
        factor *= _evened([*passes[:, :3].T], took * factor)
        outside[used] = False
        scale = _evened_steps(run, pieces, scale, np.flatnonzero(outside))
    scale[used] *= factor[of_pass][place]
    return replace(targets, scale=scale)


def _evened(alike: Sequence[Ints], took: Floats, least: int = 1) -> Floats:
    """By entry: the mean of those that are alike, so many of them at least, over its own time."""
    _, group = number_rows(alike)
    count = np.bincount(group)
    mean = np.bincount(group, weights=took) / np.maximum(count, 1)
    return np.where((count[group] >= least) & (took > 0), mean[group] / np.maximum(took, 1), 1.0)


def _evened_steps(run: Run, pieces: Pieces, scale: Floats, used: Ints) -> Floats:
    """With these pieces, which are in no pass, at the mean over steps."""
    group = peer_groups(run, pieces.graph.ranks)
    columns = (group[pieces.rank], pieces.stretch, pieces.kind, pieces.step, pieces.rank)
    stretches, stretch = number_rows([column[used] for column in columns])
    took: Floats = np.bincount(stretch, weights=pieces.took[used] * scale[used]).astype(float)
    scale[used] *= _evened([*stretches[:, :3].T], took)[stretch]
    return scale
