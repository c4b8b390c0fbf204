"""Whether uneven work follows the data: long sequences and popular experts, not slow machines."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.across_ranks.segments import BACKWARD, FORWARD, Segments, segments
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import KINDS
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Floats, Ints, Mask, number_rows
from rankscope.timeline.run import Run

_FOLLOWS = 0.8
_LEAST_PASSES = 8
"""Fewer micro-batches than this correlate by chance."""
_LEAST_SPREAD = 0.005
"""Durations that vary by less than this share of their mean, as a standard deviation, are equal."""


@dataclass(frozen=True)
class DataCorrelation:
    """How the durations of micro-batches correlate, each relative to the mean of its rank and phase."""

    phases: float | None
    """Forward and backward of the same micro-batch; None where there are too few, or all are equal."""
    stages: float | None
    """The same micro-batch on different stages; None without stages."""

    @property
    def follows(self) -> bool | None:
        """Whether the work follows the data; None where that is not known."""
        if self.phases is None:
            return None
        return self.phases > _FOLLOWS and (self.stages is None or self.stages > _FOLLOWS)


def data_notes(run: Run, scope: Scope) -> list[str]:
    """What the data say about uneven work."""
    notes = []
    if data_correlation(run, scope).follows:
        notes.append(
            "the work follows the data: forward and backward of a micro-batch are long together (assign sequences to "
            "ranks by their length, or pack them)"
        )
    return [*notes, *expert_load(run, scope)]


@once_per_run
def data_correlation(run: Run, scope: Scope) -> DataCorrelation:
    return correlation_of(segments(run, scope))


def correlation_of(parts: Segments) -> DataCorrelation:
    passes = parts.pick(parts.micro_batch != NONE)
    if not len(passes.rank):
        return DataCorrelation(None, None)
    places, number = number_rows([passes.rank, passes.phase, passes.step, passes.micro_batch, passes.stage])
    total = np.bincount(number, weights=passes.duration_ns)
    rank, phase, step, micro_batch, stage = places.T
    _, alike = number_rows([rank, phase])
    mean = np.bincount(alike, weights=total) / np.bincount(alike)
    relative = total / np.maximum(mean[alike], 1) - 1
    forward, backward = phase == FORWARD, phase == BACKWARD
    both = _paired([rank, step, micro_batch], forward, backward, relative)
    pairs = []
    # The stages of a pipeline have the same micro-batches; ranks are paired by their order within the stage.
    ranks, of_rank = number_rows([stage, rank])
    within_stage = np.arange(len(ranks)) - np.searchsorted(ranks[:, 0], ranks[:, 0])
    for number_of_stage in np.unique(stage)[1:].tolist():
        first, other = stage == stage.min(), stage == number_of_stage
        pairs.append(_paired([within_stage[of_rank], phase, step, micro_batch], first, other, relative))
    across = np.concatenate(pairs, axis=1) if pairs else np.zeros((2, 0))
    return DataCorrelation(_correlation(both), _correlation(across))


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


def expert_load(run: Run, scope: Scope) -> list[str]:
    """How much the rank that receives most in all_to_all does; nothing where they are equal or not recorded."""
    rows = waits(run, scope).rows
    used = (rows.kind == KINDS.index("all_to_all")) & (rows.out_elements > 0)
    if not used.any():
        return []
    places, number = number_rows([rows.group[used], rows.rank[used]])
    received = np.bincount(number, weights=rows.out_elements[used])
    _, group = number_rows([places[:, 0]])
    mean = np.bincount(group, weights=received) / np.bincount(group)
    ratio = received / mean[group]
    worst = int(ratio.argmax())
    if ratio[worst] < 1 + _LEAST_SPREAD:
        return []
    return [f"rank {places[worst, 1]} receives {ratio[worst]:.2f} times the mean of its group in all_to_all"]
