"""The step of every GPU event, and when each step begins and ends: the one definition of a step's time.

Works on one cycle: the window of one trace file. docs/definitions.md, section "Steps", says the same in words.

The host may run far ahead of the GPU, so a step's host range can be a hundredth of the work it launches. A step ends
with its host range, its last GPU event, or the step before, whichever is latest, and begins where the step before
ended. The step times of a cycle therefore add up to its stepped window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rankscope.store.arrays import NONE, Ints


@dataclass(frozen=True)
class StepTimes:
    """One entry a step, in the order of their host ranges."""

    begin: Ints
    end: Ints
    """begin[i + 1] == end[i]: steps fill the cycle's window without a gap."""


def steps_of_gpu_events(host_start: Ints, host_end: Ints, launch: Ints, start: Ints) -> Ints:
    """For each GPU event the index of its step, or NONE.

    `launch` is when the call that launched an event started, NONE where that call is not in the file. An event
    belongs to the step in which its launch lies; a launch between two host ranges to the earlier one; a launch before
    the first or after the last range to none. An event without a launch counts by its own start, unless that lies
    before the first event that was launched in a step: then it is backlog, given to the GPU before the recording.
    """
    launched = launch != NONE
    index = _step_at(host_start, host_end, np.where(launched, launch, start))
    in_step = launched & (index != NONE)
    if in_step.any():
        index[~launched & (start < start[in_step].min())] = NONE
    return index


def _step_at(host_start: Ints, host_end: Ints, time: Ints) -> Ints:
    if len(host_start) == 0:
        return np.full(len(time), NONE)
    index = np.searchsorted(host_start, time, side="right") - 1
    index[time >= host_end[-1]] = NONE
    return np.where(index < 0, NONE, index)


def step_times(
    host_start: Ints, host_end: Ints, step: Ints, launch: Ints, start: Ints, end: Ints
) -> StepTimes:
    """When each step begins and ends. `step`, `launch`, `start` and `end` describe the cycle's GPU events."""
    if len(host_start) == 0:
        empty = np.empty(0, dtype=np.int64)
        return StepTimes(empty, empty)
    stop = host_end.copy()
    inside = step != NONE
    np.maximum.at(stop, step[inside], end[inside])
    stop = np.maximum.accumulate(stop)
    first = _first_begin(host_start, step, launch, start, end)
    return StepTimes(np.concatenate([[min(first, stop[0])], stop[:-1]]), stop)


def _first_begin(host_start: Ints, step: Ints, launch: Ints, start: Ints, end: Ints) -> int:
    """The start of the first host range; later where the GPU was still busy with the backlog."""
    launched = launch != NONE
    in_step = start[launched & (step != NONE)]
    before = launch < host_start[0]
    without_launch = start < in_step.min() if len(in_step) else np.zeros(len(start), dtype=bool)
    backlog = end[np.where(launched, before, without_launch)]
    if len(backlog) == 0:
        return int(host_start[0])
    of_first_step = start[step == 0]
    limit = min(int(backlog.max()), int(of_first_step.min())) if len(of_first_step) else int(backlog.max())
    return max(int(host_start[0]), limit)
