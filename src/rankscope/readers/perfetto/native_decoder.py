"""The decoder of a trace's packets: in C where it was built (native/perfetto.c), else in Python (decoder)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.readers.pairing import pair_nested
from rankscope.readers.perfetto import decoder
from rankscope.readers.perfetto.decoder import Cut, Plan

_ALL_SEQUENCES = -1


@dataclass(frozen=True)
class Durations:
    """Of each begin of a slice, in file order. A slice without an end lasts to the end of the file."""

    ns: NDArray[np.int64]
    never_ended: int
    never_begun: int
    """Ends without a begin."""


def cut(data: bytes) -> Cut:
    return decoder.cut(data) if native.functions is None else Cut(*native.functions.cut_packets(data))


class Index:
    """The first pass; see decoder.Index. The results are there after `finish`."""

    def __init__(self, sequence: int | None = None) -> None:
        self._in_c: Any = None
        if native.functions is None:
            self._found = decoder.Index(sequence)
        else:
            self._in_c = native.functions.perfetto_decoder(
                _ALL_SEQUENCES if sequence is None else sequence, None
            )

    def add(self, block: memoryview) -> None:
        if self._in_c is None:
            self._found.add(bytes(block))
        else:
            native.functions.perfetto_add(self._in_c, block, 0)

    def finish(self) -> None:
        if self._in_c is None:
            found = self._found
            self.counts, unread = found.counts, dict(found.unread)
            columns: Any = (
                found.uuids, found.tracks, found.times, found.halves, found.flow_ids, found.flow_times, found.flow_ends
            )  # fmt: skip
            self.described = found.described
            self.first_ns, self.last_ns, self.real_offset = found.first_ns, found.last_ns, found.real_offset
            unordered, never_begun = True, 0
        else:
            self.counts = native.functions.perfetto_counts(self._in_c)
            (
                (*columns, durations), self.described, counts, self.first_ns, self.last_ns, self.real_offset, unordered,
                never_begun,
            ) = native.functions.perfetto_index(self._in_c)  # fmt: skip
            unread = {number: count for number, count in enumerate(counts) if count}
        self.unread: dict[int, int] = unread
        uuids, tracks, times, halves, flows, flow_times, flow_ends = columns
        self.uuids: list[int] = (
            uuids if isinstance(uuids, list) else np.frombuffer(uuids, dtype=np.uint64).tolist()
        )
        self.tracks = np.frombuffer(tracks, dtype=np.int32)
        self.times, self.flow_times = (
            np.frombuffer(column, dtype=np.int64) for column in (times, flow_times)
        )
        self.halves, self.flow_ends = (
            np.frombuffer(column, dtype=np.uint8) for column in (halves, flow_ends)
        )
        self.flow_ids = np.frombuffer(flows, dtype=np.uint64)
        self.durations: Durations = (
            self._paired()
            if unordered
            else self._known(np.frombuffer(durations, dtype=np.int64), never_begun)
        )

    def _known(self, found: NDArray[np.int64], never_begun: int) -> Durations:
        """Found while reading, where the events of every track are in order."""
        is_open = found < 0
        begins = self.times[self.halves == decoder.BEGIN]
        found[is_open] = (self.last_ns or 0) - begins[is_open]
        return Durations(found, int(is_open.sum()), never_begun)

    def _paired(self) -> Durations:
        is_begin = self.halves == decoder.BEGIN
        # What ends at a time has ended before anything else begins there, unless it began there itself.
        tie = self.halves != decoder.END
        pairs = pair_nested(self.tracks.astype(np.int64), self.times, is_begin, tie)
        ends = np.full(len(self.halves), self.last_ns or 0, dtype=np.int64)
        ends[pairs.begin] = self.times[pairs.end]
        return Durations((ends - self.times)[is_begin], len(pairs.never_ended), len(pairs.never_begun))


class Rewriter:
    """The second pass; see decoder.Rewriter."""

    def __init__(self, plan: Plan, uuids: list[int], sequence: int | None = None) -> None:
        self._in_c: Any = None
        if native.functions is None:
            self._rewriter = decoder.Rewriter(plan, uuids, sequence)
        else:
            given = (
                plan.base_ns,
                uuids,
                plan.tracks,
                plan.counters,
                np.ascontiguousarray(plan.durations),
                np.ascontiguousarray(plan.flow_phases),
                plan.flow_kinds,
            )
            self._in_c = native.functions.perfetto_decoder(
                _ALL_SEQUENCES if sequence is None else sequence, given
            )

    def rewrite(self, block: memoryview) -> Iterator[Any]:
        """Buffers with the events of a block as JSON."""
        if self._in_c is None:
            yield from self._rewriter.rewrite(bytes(block))
            return
        at = 0
        while at < len(block):
            text, at = native.functions.perfetto_add(self._in_c, block, at)
            if len(text):
                yield text

    @property
    def counts(self) -> list[int]:
        return self._rewriter.counts if self._in_c is None else native.functions.perfetto_counts(self._in_c)
