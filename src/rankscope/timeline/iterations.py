"""Iterations of a job without steps, such as serving: the sequence of kernels that its busiest stream repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import ITERATIONS
from rankscope.store.arrays import NONE, Ints, number_rows
from rankscope.timeline.nesting import follow
from rankscope.timeline.recording import Recording
from rankscope.timeline.slices import Links, SliceColumns, Steps

LEAST_REPEATS, LEAST_SHARE = 3, 0.6
"""Of a sequence that counts as iterations; the share is of the busy time of its stream."""
_NEAR = 64
"""Kernels that are compared for all periods at once."""
_MOST_PERIODS = 256
"""That are tried, the shortest first. More are left where nearly all kernels have one name."""
_CLEAR_GAP = 2
"""An iteration begins at the longest pause between launches, where that is so many times the one at which the first
repeat begins."""


def find_iterations(recording: Recording, slices: SliceColumns, links: Links) -> Steps:
    """The repeats of the shortest sequence of kernels on the busiest stream, as ranges of the host's time."""
    kernels = np.flatnonzero(slices.category == recording.code("kernel"))
    events, places = recording.events, recording.events.places(slices.event[kernels])
    streams, stream = number_rows([events.at(name, places).astype(np.int64) for name in ("device", "stream")])
    busy = np.bincount(stream, slices.duration[kernels], len(streams) + 1)
    # A stream that only communicates may be the busiest, because its kernels wait.
    names = np.unique(np.stack([stream, slices.name[kernels]]), axis=1)[0]
    busy *= np.bincount(names, minlength=len(busy)) > 1
    kernels = kernels[stream == busy.argmax()]
    launch = links.launch[kernels]
    time = np.where(launch == NONE, slices.time[kernels], follow(launch, slices.time))
    order = np.lexsort((slices.time[kernels], time))
    kernels, time = kernels[order], time[order]
    repeats = find_repeats(slices.name[kernels], slices.duration[kernels], time)
    if repeats is None:
        nothing = np.empty(0, dtype=np.int64)
        return Steps(nothing, nothing, nothing, "")
    begin, period, end = repeats
    starts = time[begin : end - period + 1 : period]
    # The last one ends when the next kernel is launched, if that is not much later than in the others.
    after = begin + len(starts) * period
    last = starts[-1] + round(float(np.median(np.diff(starts))))
    ends = np.append(starts[1:], max(min([last, *time[after : after + 1]]), time[after - 1] + 1))
    return Steps(np.arange(len(starts)), starts, ends, ITERATIONS)


def find_repeats(names: NDArray[Any], weights: Ints, time: Ints) -> tuple[int, int, int] | None:
    """Begin, period, and end of the repeats of the shortest sequence that is repeated at least 3 times in a row, which
    together have 60 % of the weight. It has two different names, and each repeat is launched later than the one before:
    the layers in one CUDA graph are no iterations.

    `time` is of the launches, in order.
    """
    total = np.append(0, np.cumsum(np.maximum(weights, 0)))
    least, most = LEAST_SHARE * total[-1], len(names) // LEAST_REPEATS
    if not least:
        return None
    # Whatever has 60 % of the weight contains what is between 40 and 60 %. There the rarest name tells the periods.
    low = int(np.searchsorted(total, total[-1] - least, side="right")) - 1
    high = max(low + 1, int(np.searchsorted(total, least)))
    anchor = low + int(np.bincount(names)[names[low:high]].argmin())
    periods = np.unique(np.abs(np.flatnonzero(names == names[anchor]) - anchor))
    periods = periods[(periods > 1) & (periods <= most)]
    around = np.pad(names, most, constant_values=-1)
    for index in range(low, min(high, low + _NEAR)):
        again = around[most + index + np.stack([periods, -periods])] == names[index]
        periods = periods[again.any(axis=0)]
    for period in periods[:_MOST_PERIODS].tolist():
        breaks = np.flatnonzero(names[period:] != names[:-period])
        for start in (anchor, anchor - period):
            at = int(np.searchsorted(breaks, start))
            begin, end = int([-1, *breaks][at]) + 1, int([*breaks, len(names) - period][at]) + period
            is_long = start >= begin and end - begin >= LEAST_REPEATS * period
            if is_long and total[end] - total[begin] >= least and len(set(names[begin : begin + period])) > 1:
                begin += _natural_begin(time[begin:end], period)
                if (np.diff(time[begin : end - period + 1 : period]) > 0).all():
                    return begin, period, end
    return None


def _natural_begin(time: Ints, period: int) -> int:
    """How many kernels after the begin of a run its first whole iteration begins: at the longest pause of the launches,
    if it is clear, and 3 repeats are left."""
    gaps = np.diff(time, prepend=time[0])[: len(time) // period * period].reshape(-1, period)
    typical = np.median(gaps, axis=0)[: len(time) - LEAST_REPEATS * period + 1]
    best = int(typical.argmax())
    return best if typical[best] > _CLEAR_GAP * typical[0] else 0
