"""Iterations of a job without steps, such as serving: the sequence of kernels that its busiest stream repeats."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.store.arrays import NONE, Ints, number_rows
from rankscope.timeline.nesting import follow
from rankscope.timeline.recording import Recording
from rankscope.timeline.slices import Links, SliceColumns, Steps

LEAST_REPEATS, LEAST_SHARE = 3, 0.6
"""Of a sequence that counts as iterations; the share is of the busy time of its stream."""
_NEAR = 64
"""Kernels beside the rarest one that are compared for all periods at once."""
_CLEAR_GAP = 2
"""An iteration begins at the longest pause between launches, where that is so many times the one at which the first
repeat begins."""


def find_iterations(recording: Recording, slices: SliceColumns, links: Links) -> Steps:
    """The repeats of the shortest sequence of kernels on the busiest stream, as ranges of the host's time."""
    nothing = np.empty(0, dtype=np.int64)
    none = Steps(nothing, nothing, nothing, "")
    kernels = np.flatnonzero(slices.category == recording.code("kernel"))
    if len(kernels) < 2 * LEAST_REPEATS:
        return none
    events, places = recording.events, recording.events.places(slices.event[kernels])
    streams, stream = number_rows([events.at(name, places).astype(np.int64) for name in ("device", "stream")])
    busy = np.bincount(stream, np.maximum(slices.duration[kernels], 0), len(streams))
    # A stream that only communicates may be the busiest, because its kernels wait.
    busy *= (
        np.bincount(np.unique(np.stack([stream, slices.name[kernels]]), axis=1)[0], minlength=len(streams))
        > 1
    )
    kernels = kernels[stream == busy.argmax()]
    launch = links.launch[kernels]
    time = np.where(launch == NONE, slices.time[kernels], follow(launch, slices.time))
    order = np.lexsort((slices.time[kernels], time))
    kernels, launch, time = kernels[order], launch[order], time[order]
    repeats = find_repeats(slices.name[kernels], np.maximum(slices.duration[kernels], 0), time)
    if repeats is None:
        return none
    first, period, end = repeats
    begins = np.arange(first, end - period + 1, period)
    after = begins[-1] + period
    # The last one ends when the next kernel is launched, but is not much longer than the others.
    last = int(follow(launch[after - 1 : after], slices.end)[0]) if launch[after - 1] != NONE else 0
    last = max(last, int(time[after - 1]) + 1)
    if after < len(time):
        longest = int(np.diff(time[begins]).max())
        last = max(last, min(int(time[after]), int(time[begins[-1]]) + longest))
    starts = time[begins]
    return Steps(np.arange(len(begins)), starts, np.append(starts[1:], last), "iterations")


def find_repeats(names: NDArray[Any], weights: Ints, time: Ints) -> tuple[int, int, int] | None:
    """Begin, period, and end of the repeats of the shortest sequence that is repeated at least 3 times in a row, which
    together have 60 % of the weight. It has two different names, and each repeat is launched later than the one before:
    the layers in one CUDA graph are no iterations.

    `time` is of the launches, in order.
    """
    total = np.cumsum(weights)
    if not len(total) or total[-1] <= 0:
        return None
    # Whatever has 60 % of the weight contains what is between 40 and 60 %. There the rarest name tells the periods.
    low = int(np.searchsorted(total, (1 - LEAST_SHARE) * total[-1], side="right"))
    high = int(np.searchsorted(total, LEAST_SHARE * total[-1]))
    anchor = low + int(np.bincount(names)[names[low : high + 1]].argmin())
    away = np.flatnonzero(names == names[anchor]) - anchor
    for direction, near in (
        (1, range(max(low, anchor - _NEAR), anchor)),
        (-1, range(anchor + 1, min(high, anchor + _NEAR) + 1)),
    ):
        for index in near:
            # In this direction the run goes on for as long as at the anchor, or longer.
            there = np.clip(index + away, 0, len(names) - 1)
            away = away[(away * direction <= 0) | (names[there] == names[index])]
    periods = np.unique(np.abs(away))
    for period in periods[(periods > 1) & (periods <= len(names) // LEAST_REPEATS)].tolist():
        for start in (anchor, anchor - period):
            run = _run_at(names, start, period)
            if run is None or run[1] - run[0] < LEAST_REPEATS * period:
                continue
            begin, end = run
            weight = total[end - 1] - (total[begin - 1] if begin else 0)
            if weight < LEAST_SHARE * total[-1] or (names[begin : begin + period] == names[begin]).all():
                continue
            begin = _natural_begin(time[begin:end], period) + begin
            if (np.diff(time[begin : end - period + 1 : period]) > 0).all():
                return begin, period, end
    return None


def _run_at(names: NDArray[Any], start: int, period: int) -> tuple[int, int] | None:
    """Begin and end of the longest stretch around `start` in which every name comes again after `period` names."""
    if start < 0 or start + period >= len(names) or names[start] != names[start + period]:
        return None
    begin, end, width = start, start + 1, 1024
    while end < len(names) - period:
        piece = names[end : end + width]
        same = piece[: len(names) - period - end] == names[end + period : end + period + width]
        if not same.all():
            end += int(same.argmin())
            break
        end, width = end + len(same), 2 * width
    width = 1024
    while begin > 0:
        first = max(begin - width, 0)
        same = names[first:begin] == names[first + period : begin + period]
        if not same.all():
            begin -= int(same[::-1].argmin())
            break
        begin, width = first, 2 * width
    return begin, end + period


def _natural_begin(time: Ints, period: int) -> int:
    """How many kernels after the begin of a run its first whole iteration begins: at the longest pause of the launches,
    if it is clear, and 3 repeats are left."""
    gaps = np.diff(time, prepend=time[0])[: len(time) // period * period].reshape(-1, period)
    typical = np.median(gaps, axis=0)[: len(time) - LEAST_REPEATS * period + 1]
    best = int(typical.argmax())
    return best if typical[best] > _CLEAR_GAP * typical[0] else 0
