"""What has been read of a trace so far: for each of its tracks, how busy it is over time.

While a large file is read, the page draws this. It is made from the columns of each batch as they pass, in the threads
that read them, and is rough: slices inside each other count as one, clocks are not aligned, and a track is a pair of
pid and tid. The tables of the run replace it.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import COLLECTIVE_NAME_PATTERN, LAUNCH_CATEGORIES
from rankscope.readers.columns import NULL, EventColumns
from rankscope.store.arrays import number_rows
from rankscope.viewer.answers import KINDS

BINS = 1024
_MOST_TRACKS = 48
_FARTHEST_NS = 3600 * 10**9
"""From the middle of the first batch: events elsewhere have no usable time."""
_KIND_OF_CATEGORY = {
    "kernel": "compute",
    "gpu_memcpy": "copy",
    "gpu_memset": "copy",
    "cpu_op": "op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "annotation",
    "python_function": "python",
    **dict.fromkeys(LAUNCH_CATEGORIES, "runtime"),
}
_ON_DEVICE = ("compute", "comm", "copy")
_COMMUNICATION = re.compile(COLLECTIVE_NAME_PATTERN)

Key = tuple[str, str, str]
"""pid, tid and kind."""


class GrowingPicture:
    """Filled by the threads that read, asked by those that serve."""

    def __init__(self) -> None:
        self.batches = 0
        self._lock = threading.Lock()
        self._rows: dict[Key, int] = {}
        self._busy = np.zeros((0, BINS))
        self._middle: int | None = None
        self._begin, self._step = 0, 1
        """Bin n is from _begin + n * _step on."""

    def add(self, columns: EventColumns) -> None:
        """The slices of a batch."""
        timed = np.flatnonzero((columns.time != NULL) & (columns.duration > 0))
        if not len(timed):
            return
        time, duration = columns.time[timed], columns.duration[timed]
        keys, number = _keys(columns, timed)
        with self._lock:
            if self._middle is None:
                self._middle = int(np.median(time))
            near = np.abs(time - self._middle) < _FARTHEST_NS
            time, duration, number = time[near], np.minimum(duration[near], _FARTHEST_NS), number[near]
            if not len(time):
                return
            self._make_room(int(time.min()), int((time + duration).max()))
            rows = np.array([self._rows.setdefault(key, len(self._rows)) for key in keys])
            self._busy = np.vstack([self._busy, np.zeros((len(self._rows) - len(self._busy), BINS))])
            first = (time - self._begin) / self._step
            self._busy += coverage(rows[number], first, first + duration / self._step, len(self._rows))
            self.batches += 1

    def _make_room(self, begin: int, end: int) -> None:
        """So that a time range lies in the bins: they begin earlier, and become twice as long as often as needed."""
        if not self.batches:
            self._begin = begin
        begin, end = min(begin, self._begin), max(end, self._last())
        while (
            before := -(-(self._begin - begin) // self._step)
        ) * self._step + end - self._begin > BINS * self._step:
            halves = self._busy.reshape(-1, BINS // 2, 2).mean(axis=2)
            self._busy = np.hstack([halves, np.zeros_like(halves)])
            self._step *= 2
        self._busy = np.hstack([np.zeros((len(self._busy), before)), self._busy])[:, :BINS]
        self._begin -= before * self._step

    def _last(self) -> int:
        """One past the last bin with something in it."""
        used = np.flatnonzero(self._busy.any(axis=0))
        return self._begin + self._step * (int(used[-1]) + 1 if len(used) else 1)

    def answer(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The busiest tracks, those of GPUs first: of each bin how busy it is (of 255), and the kind of most of it."""
        with self._lock:
            busy, rows = self._busy.copy(), dict(self._rows)
            begin, end = self._begin, self._last()
            used = -(-(end - begin) // self._step)
        tracks: dict[tuple[str, str], NDArray[Any]] = {}
        for (pid, tid, kind), row in rows.items():
            kinds = tracks.setdefault((pid, tid), np.zeros((len(KINDS), used)))
            kinds[KINDS.index(kind)] = busy[row, :used]
        device = [KINDS.index(kind) for kind in _ON_DEVICE]
        on_device = {key: bool(kinds[device].any()) for key, kinds in tracks.items()}
        order = sorted(tracks, key=lambda key: (not on_device[key], -tracks[key].sum()))[:_MOST_TRACKS]
        shown = [tracks[key] for key in order]
        return (
            {
                "begin_ns": begin,
                "end_ns": end,
                "bins": used,
                "kinds": list(KINDS),
                "labels": [f"{'stream' if on_device[key] else 'thread'} {key[1]}" for key in order],
            },
            {
                "busy": _bytes([np.ceil(np.minimum(kinds.sum(axis=0), 1) * 255) for kinds in shown]),
                "kind": _bytes([kinds.argmax(axis=0) for kinds in shown]),
            },
        )


def _bytes(rows: list[NDArray[Any]]) -> NDArray[np.uint8]:
    return np.concatenate([np.zeros(0), *rows]).astype(np.uint8)


def _keys(columns: EventColumns, events: NDArray[Any]) -> tuple[list[Key], NDArray[Any]]:
    """The distinct keys of some events, and the number of each event's."""
    texts = list(columns.texts)
    is_communication = np.array([_COMMUNICATION.search(text) is not None for text in texts])
    codes = [getattr(columns, name)[events] for name in ("pid", "tid", "category")]
    groups, number = number_rows([*codes, is_communication[columns.name[events]]])
    keys = []
    for pid, tid, category, communicates in groups.tolist():
        kind = _KIND_OF_CATEGORY.get(texts[category], "other")
        keys.append((texts[pid], texts[tid], "comm" if communicates and kind == "compute" else kind))
    return keys, number


def coverage(row: NDArray[Any], first: NDArray[Any], last: NDArray[Any], rows: int) -> NDArray[Any]:
    """How much of each bin of each row slices cover, from `first` to `last` in bins; at most once each."""
    low = np.minimum(first.astype(np.int64), BINS - 1)
    high = np.minimum(last.astype(np.int64), BINS - 1)
    last = np.minimum(last, BINS)
    within = low == high
    place = row * BINS
    parts = np.bincount(place + low, np.where(within, last - first, low + 1 - first), rows * BINS)
    parts += np.bincount((place + high)[~within], (last - high)[~within], rows * BINS)
    whole = np.bincount((row * (BINS + 1) + low + 1)[~within], minlength=rows * (BINS + 1)).astype(np.float64)
    whole -= np.bincount((row * (BINS + 1) + high)[~within], minlength=rows * (BINS + 1))
    inner = np.cumsum(whole.reshape(rows, BINS + 1), axis=1)[:, :BINS]
    covered: NDArray[Any] = parts.reshape(rows, BINS) + inner
    return covered
