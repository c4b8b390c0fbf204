"""Whether uneven work follows the data: long sequences, not slow machines."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.across_ranks.segments import BACKWARD, FORWARD, segments
from rankscope.analysis.core.scope import Scope
from rankscope.store.arrays import NONE, Floats, Ints, Mask, number_rows
from rankscope.timeline.run import Run

_FOLLOWS = 0.8
_LEAST_PASSES = 8
"""Fewer micro-batches than this correlate by chance."""
_LEAST_SPREAD = 0.005
"""Durations that vary by less than this share of their mean, as a standard deviation, are equal."""


def data_notes(run: Run, scope: Scope) -> list[str]:
    """What the data say about uneven work."""
    phases, stages = data_correlation(run, scope)
    if phases is None or phases <= _FOLLOWS or (stages is not None and stages <= _FOLLOWS):
        return []
    return [
        "the work follows the data: forward and backward of a micro-batch are long together (assign sequences to "
        "ranks by their length, or pack them)"
    ]


def data_correlation(run: Run, scope: Scope) -> tuple[float | None, float | None]:
    """How the durations of micro-batches correlate, each relative to the mean of its rank and phase: forward and
    backward of the same one, and the same one on different stages. None where there are too few, or all are equal."""
    passes = segments(run, scope)
    passes = passes.pick(passes.micro_batch != NONE)
    if not len(passes.rank):
        return None, None
    places, number = number_rows([passes.rank, passes.phase, passes.step, passes.micro_batch, passes.stage])
    total = np.bincount(number, weights=passes.duration_ns)
    rank, phase, step, micro_batch, stage = places.T
    _, alike = number_rows([rank, phase])
    mean = np.bincount(alike, weights=total) / np.bincount(alike)
    relative = total / np.maximum(mean[alike], 1) - 1
    both = _paired([rank, step, micro_batch], phase == FORWARD, phase == BACKWARD, relative)
    # The stages of a pipeline have the same micro-batches; ranks are paired by their order within the stage.
    ranks, of_rank = number_rows([stage, rank])
    within_stage = (np.arange(len(ranks)) - np.searchsorted(ranks[:, 0], ranks[:, 0]))[of_rank]
    pairs = [np.zeros((2, 0))] + [
        _paired([within_stage, phase, step, micro_batch], stage == stage.min(), stage == other, relative)
        for other in np.unique(stage)[1:]
    ]
    return _correlation(both), _correlation(np.concatenate(pairs, axis=1))


def _paired(keys: list[Ints], first: Mask, second: Mask, value: Floats) -> Floats:
    """[2, pair]: the values of those entries of `first` and `second` that have the same keys."""
    _, key = number_rows(keys)
    a, b = np.flatnonzero(first), np.flatnonzero(second)
    _, at, of = np.intersect1d(key[a], key[b], return_indices=True)
    return np.stack([value[a[at]], value[b[of]]])


def _correlation(pairs: Floats) -> float | None:
    if pairs.shape[1] < _LEAST_PASSES or (pairs.std(axis=1) < _LEAST_SPREAD).any():
        return None
    a, b = pairs - pairs.mean(axis=1, keepdims=True)
    return float((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()))
