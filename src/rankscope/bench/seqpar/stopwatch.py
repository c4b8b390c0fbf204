"""Times of parts: by the host clock on a CPU, by device events on a GPU."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any


class Stopwatch:
    """In each iteration, ``start`` and then a ``lap`` after each part; ``laps`` after the loop.

    On a GPU the events are queued and read after the loop, so nothing waits inside it.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._rows: list[list[Any]] = []

    def start(self) -> None:
        self._rows.append([self._mark()])

    def lap(self) -> None:
        self._rows[-1].append(self._mark())

    def reset(self) -> None:
        self._rows.clear()

    def laps(self) -> list[list[int]]:
        """Nanoseconds of each part, one list per iteration. The device must be idle."""
        return [[self._between(begin, end) for begin, end in pairwise(row)] for row in self._rows]

    def _mark(self) -> Any:
        if self._device.type == "cpu":
            return time.perf_counter_ns()
        import torch

        event = getattr(torch, self._device.type).Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begin: Any, end: Any) -> int:
        if self._device.type == "cpu":
            return int(end - begin)
        nanoseconds: int = round(begin.elapsed_time(end) * 1e6)
        return nanoseconds
