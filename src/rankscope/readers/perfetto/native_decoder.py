"""The decoder of a trace's packets: in C where it was built (native/perfetto.c), else in Python (decoder)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope import native
from rankscope.readers.perfetto import decoder
from rankscope.readers.perfetto.decoder import Cut, Plan

_ALL_SEQUENCES = -1


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

    def add(self, block: bytes) -> None:
        if self._in_c is None:
            self._found.add(block)
        else:
            native.functions.perfetto_add(self._in_c, block)

    def finish(self) -> None:
        if self._in_c is None:
            found = self._found
            self.counts, unread = found.counts, dict(found.unread)
            columns: Any = (
                found.uuids, found.tracks, found.times, found.halves, found.flow_ids, found.flow_times, found.flow_ends
            )  # fmt: skip
            self.described = found.described
            self.first_ns, self.last_ns, self.real_offset = found.first_ns, found.last_ns, found.real_offset
        else:
            self.counts = native.functions.perfetto_counts(self._in_c)
            columns, self.described, counts, self.first_ns, self.last_ns, self.real_offset = (
                native.functions.perfetto_index(self._in_c)
            )
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

    def rewrite(self, block: bytes) -> Any:
        """A buffer with the events of a block as JSON."""
        return (
            self._rewriter.rewrite(block)
            if self._in_c is None
            else native.functions.perfetto_add(self._in_c, block)
        )

    @property
    def counts(self) -> list[int]:
        return self._rewriter.counts if self._in_c is None else native.functions.perfetto_counts(self._in_c)
