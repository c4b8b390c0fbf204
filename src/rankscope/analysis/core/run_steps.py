"""The table `steps` as arrays: nearly every report needs some of it, so it is read once a run."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.store.run import Run

Columns = dict[str, NDArray[np.int64]]


@once_per_run
def all_steps(run: Run) -> Columns:
    """Sorted by rank, end and step: rank, segment, step; start and stop on the host; begin and end of the step time."""
    return run.arrays(
        "SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, step::BIGINT AS step, start_ns AS start, "
        "start_ns + dur_ns AS stop, end_ns - time_ns AS begin, end_ns AS end FROM steps ORDER BY rank, end_ns, step"
    )


def in_order_of_start(columns: Columns) -> Columns:
    """By rank and start on the host."""
    order = np.lexsort((columns["start"], columns["rank"]))
    return {name: values[order] for name, values in columns.items()}
