"""A run as Chrome trace event JSON, for chrome://tracing and other tools that read the format.

Written line by line. Times are in µs with three decimals, which represents nanoseconds exactly.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from functools import lru_cache
from itertools import islice
from typing import BinaryIO

from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.views.export.timeline_events import TraceFile, timeline_files

_LINES_AT_A_TIME = 5_000


def write_chrome(run: Run, scope: Scope, out: BinaryIO, with_args: bool = True) -> int:
    """Write the trace and return the number of slices."""
    out.write(b'{"displayTimeUnit": "ns", "traceEvents": [\n')
    slices = 0
    separator = ""
    for file in timeline_files(run, scope):
        writer = _FileWriter(file)
        lines = writer.lines(with_args)
        while batch := list(islice(lines, _LINES_AT_A_TIME)):
            out.write((separator + ",\n".join(batch)).encode("utf-8", "replace"))
            separator = ",\n"
        slices += writer.slices
    out.write(b"\n]}\n")
    return slices


@lru_cache(maxsize=65_536)
def _quoted(name: str) -> str:
    return json.dumps(name)


def _us(nanoseconds: int) -> str:
    whole, rest = divmod(nanoseconds, 1000)
    return f"{whole}.{rest:03d}"


class _FileWriter:
    """The lines of one trace file. The rank is the process, a lane is a thread."""

    def __init__(self, file: TraceFile) -> None:
        self.slices = 0
        self._file = file
        self._threads: dict[tuple[int, int], int] = {}

    def lines(self, with_args: bool) -> Iterator[str]:
        rank = self._file.rank
        yield self._meta("process_name", 0, f'"name": {_quoted(f"rank {rank}")}')
        yield self._meta("process_sort_index", 0, f'"sort_index": {rank}')
        for event in self._file.slices(with_args):
            where, at = (yield from self._thread(event.track, event.lane)), _us(event.start_ns)
            args = f', "args": {event.args}' if event.args else ""
            yield (
                f'{{"ph": "X", {where}, "ts": {at}, "dur": {_us(event.dur_ns)}, '
                f'"cat": {_quoted(event.category)}, "name": {_quoted(event.name)}{args}}}'
            )
            for flow in event.leaves:
                yield f'{{"ph": "s", "id": {flow}, {where}, "ts": {at}, "cat": "flow", "name": "flow"}}'
            for flow in event.enters:
                yield f'{{"ph": "f", "bp": "e", "id": {flow}, {where}, "ts": {at}, "cat": "flow", "name": "flow"}}'
            self.slices += 1
        for track, ts_ns, name, category in self._file.marks():
            where = yield from self._thread(track, 0)
            yield (
                f'{{"ph": "i", "s": "t", {where}, "ts": {_us(ts_ns)}, '
                f'"cat": {_quoted(category)}, "name": {_quoted(name)}}}'
            )
        for counter, unit, ts_ns, value in self._file.samples():
            label = json.dumps(unit or "value")
            yield (
                f'{{"ph": "C", "pid": {rank}, "ts": {_us(ts_ns)}, "name": {_quoted(counter)}, '
                f'"args": {{{label}: {value!r}}}}}'
            )

    def _thread(self, track: int, lane: int) -> Generator[str, None, str]:
        """What events on a lane name it by; its own name comes on its first use."""
        if (track, lane) not in self._threads:
            name, order = self._file.lane(track, lane)
            thread = order - max(lane - 99, 0) + 1
            while thread in self._threads.values():  # more than 100 lanes: use another free number
                thread += 1_000_000
            self._threads[track, lane] = thread
            yield self._meta("thread_name", thread, f'"name": {_quoted(name)}')
            yield self._meta("thread_sort_index", thread, f'"sort_index": {thread}')
        return f'"pid": {self._file.rank}, "tid": {self._threads[track, lane]}'

    def _meta(self, what: str, thread: int, args: str) -> str:
        return (
            f'{{"ph": "M", "pid": {self._file.rank}, "tid": {thread}, "name": "{what}", "args": {{{args}}}}}'
        )
