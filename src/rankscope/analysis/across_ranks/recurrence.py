"""How often something happens that was seen in some steps only: by their numbers, and by telemetry of more steps."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rankscope.capture.telemetry_ring import FOLDER
from rankscope.timeline.run import Run
from rankscope.watch.rings import has_telemetry, read_whole, tables
from rankscope.watch.step_table import low_median

_PERIODS = 4
"""So many periods are enough to see that they repeat. Chosen, not measured."""
_LEAST_ACTIVE = 12
_SAME_DISTANCE = 0.8
"""Share of the distances that are equal where something happens every so many steps: noise adds and hides some."""


class Recurrence(NamedTuple):
    """What is known of it, as the end of the evidence, and the command that records enough to know more."""

    text: str
    hint: str = ""


def recurrence(
    run: Run, ranks: Collection[int], late: Collection[int], steps: Collection[int], excess_ns: float
) -> Recurrence:
    """Of ranks that are late by `excess_ns` in some of the recorded steps."""
    if (told := _by_telemetry(run, ranks, excess_ns)) is not None:
        return Recurrence(told)
    period, number = least_period(late, steps), len(steps)
    active = max(_PERIODS * period, _LEAST_ACTIVE) if period else _PERIODS * number
    hint = f"Record more steps to see how often it happens: rankscope profile --active {active}"
    if len(late) == 1:
        return Recurrence(
            f"seen once in {number} recorded steps: if it repeats, then every {period} steps or less often",
            hint,
        )
    if not period:
        return Recurrence(
            f"the {len(late)} steps are not equally far apart", hint if number < _LEAST_ACTIVE else ""
        )
    seen = number / period
    return Recurrence(
        f"it repeats every {period} steps; {number} recorded steps are {seen:.1f} periods",
        hint if seen < _PERIODS - 1 else "",
    )


def least_period(late: Collection[int], steps: Collection[int]) -> int:
    """The smallest period that explains in which of the recorded steps something happened; 0 where none does.

    All late steps are multiples of it apart, and no other recorded step is. Any longer distance than that between the
    first and the last step explains a single one.
    """
    first, others = min(late), [step for step in steps if step not in set(late)]
    for period in count(1):
        if any((step - first) % period for step in late):
            if period > max(late) - first:
                return 0
        elif all((step - first) % period for step in others):
            return period
        elif period > max(steps) - min(steps):
            return 0
    return 0


def telemetry_folder(run: Run) -> Path | None:
    """The run folder that holds the telemetry of these traces."""
    # Dumps of the flight recorder that ranks wrote in a hang are among the telemetry.
    sources = (entry.source.parent for entry in run.segments)
    folders = dict.fromkeys(folder.parent if folder.name == FOLDER else folder for folder in sources)
    return next((folder for folder in folders if has_telemetry(folder)), None)


def _by_telemetry(run: Run, ranks: Collection[int], excess_ns: float) -> str | None:
    """In how many steps of the telemetry these ranks need so much more than the median rank; None without telemetry."""
    folder = telemetry_folder(run)
    if folder is None:
        return None
    for table in tables(read_whole(folder)):
        columns = np.flatnonzero(np.isin(table.ranks, [*ranks]))
        if not len(columns) or len(table.ranks) < 2:
            continue
        work = table["own_ns"]
        excess = (work - low_median(work, 1)[:, None])[:, columns].max(axis=1)
        late = table.steps[np.nan_to_num(excess) > excess_ns / 2]
        return _how_often(late.tolist(), len(table.steps), excess_ns)
    return None


def _how_often(late: list[int], steps: int, excess_ns: float) -> str:
    if not late:
        return f"not seen in the {steps:,} steps of the telemetry"
    apart = np.diff(late)
    usual = int(np.bincount(apart).argmax()) if len(apart) else 0
    every = ""
    if len(apart) > 1 and (apart == usual).mean() >= _SAME_DISTANCE:
        every = f", every {usual} steps" if usual > 1 else ", one after the other"
    return f"the telemetry has it in {len(late):,} of {steps:,} steps{every}"
