"""The table `steps` as arrays: nearly every report needs some of it, so it is read once a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.selection import Selection
from rankscope.records import dataclass
from rankscope.timeline.run import Run

Columns = dict[str, NDArray[np.int64]]
NO_STEP = -1
"""In arrays, the step of what lies in none."""
_TIMES = ("start", "stop", "begin", "end")


@dataclass(frozen=True)
class RankSteps:
    """The steps of one rank in order of their end. Times are in ns from the start of its first file."""

    segment: Ints
    step: Ints
    start: Ints
    """On the host."""
    stop: Ints
    begin: Ints
    """Of the step time."""
    end: Ints
    sources: tuple[str, ...]
    """What the steps of its files were told by."""


KEPT = "steps"


@kept_per_rank(KEPT, RankSteps, any_window=True)
def rank_steps(run: Run, scope: Selection) -> dict[int, RankSteps]:
    """Of the ranks that have steps."""
    columns = run.arrays(
        "SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, step::BIGINT AS step, start_ns AS start, "
        "start_ns + dur_ns AS stop, end_ns - time_ns AS begin, end_ns AS end, source "
        f"FROM steps WHERE {scope.where()} ORDER BY rank, end_ns, step"
    )
    records = {}
    for rank, rows in split_by_rank(columns, scope.ranks_in(run)).items():
        if len(rows["step"]):
            sources, origin = tuple(sorted(set(rows.pop("source").tolist()))), run.origin_ns(rank)
            rows |= {name: rows[name] - origin for name in _TIMES}
            records[rank] = RankSteps(**rows, sources=sources)
    return records


@once_per_run
def all_steps(run: Run) -> Columns:
    """Sorted by rank, end and step: rank, segment, step; start and stop on the host; begin and end of the step time."""
    columns = {name: [np.empty(0, dtype=np.int64)] for name in ("rank", "segment", "step", *_TIMES)}
    for rank, steps in rank_steps(run, Selection()).items():
        columns["rank"].append(np.full(len(steps.step), rank))
        columns["segment"].append(steps.segment)
        columns["step"].append(steps.step)
        for name in _TIMES:
            columns[name].append(getattr(steps, name) + run.origin_ns(rank))
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def in_order_of_start(columns: Columns) -> Columns:
    """By rank and start on the host."""
    order = np.lexsort((columns["start"], columns["rank"]))
    return {name: values[order] for name, values in columns.items()}
