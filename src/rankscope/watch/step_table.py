"""The telemetry of several ranks as arrays: a row for each step, a column for each rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rankscope.records import dataclass

Numbers = NDArray[np.float64]

TO_SIGMA = 1.4826
"""The standard deviation of a normal distribution, by its median absolute deviation."""


@dataclass(frozen=True)
class StepTable:
    """The ranks of one role."""

    steps: NDArray[np.int64]
    """In ascending order."""
    ranks: NDArray[np.int64]
    nodes: tuple[str, ...]
    """Of each rank."""
    values: dict[str, Numbers]
    """By field of the ring file, steps x ranks; NaN where a number is not known."""
    role: str = ""
    before: int = 0
    """So many rows at the beginning are from before an alarm that is still open; the next steps may be missing."""
    stages: tuple[int | None, ...] = ()
    """Of each rank, the pipeline stage; None where that is not known."""

    def __getitem__(self, field: str) -> Numbers:
        return self.values[field]

    def rows(self, wanted: slice) -> StepTable:
        values = {field: numbers[wanted] for field, numbers in self.values.items()}
        return replace(self, steps=self.steps[wanted], values=values, before=0)

    def last(self, count: int) -> StepTable:
        return self.rows(slice(max(len(self.steps) - count, 0), None))

    def after(self, earlier: StepTable) -> StepTable:
        """These rows behind earlier ones of the same ranks."""
        values = {field: np.concatenate([earlier[field], self[field]]) for field in self.values}
        steps = np.concatenate([earlier.steps, self.steps])
        return replace(self, steps=steps, values=values, before=len(earlier.steps))

    @property
    def stages_alone(self) -> bool:
        """Whether some ranks have a pipeline stage for themselves: none does the same work."""
        ranks = Counter(self.stages)
        return len(ranks) > 1 and None not in ranks and min(ranks.values()) == 1

    def by_stage(self) -> list[StepTable]:
        """Tables of ranks that do the same work; this one, where stages are not known or ranks are alone in them."""
        stages = dict.fromkeys(self.stages)
        if len(stages) < 2 or None in stages or self.stages_alone:
            return [self]
        return [
            self._of([column for column, other in enumerate(self.stages) if other == stage])
            for stage in stages
        ]

    def _of(self, columns: list[int]) -> StepTable:
        return replace(
            self,
            ranks=self.ranks[columns],
            nodes=tuple(self.nodes[column] for column in columns),
            values={field: numbers[:, columns] for field, numbers in self.values.items()},
            stages=tuple(self.stages[column] for column in columns),
        )


def low_median(values: Numbers, axis: int = 0) -> Numbers:
    """The median without NaN; of an even count the lower of the two in the middle, so that of two ranks the faster
    one is the measure of the other."""
    ordered = np.sort(values, axis=axis)
    count = np.isfinite(ordered).sum(axis=axis, keepdims=True)
    return np.take_along_axis(ordered, np.maximum((count - 1) // 2, 0), axis).squeeze(axis)


def middle(values: Numbers) -> float:
    """The same of all numbers; NaN of none."""
    return float(low_median(values.ravel())) if values.size else float("nan")


def sigma(residuals: Numbers) -> float:
    """The spread of numbers around 0, as a standard deviation that outliers do not change."""
    return TO_SIGMA * middle(np.abs(residuals))
