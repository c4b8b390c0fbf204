"""A Kineto trace as a stream: compressed piece by piece, and valid JSON wherever it is ended. No torch.

Our own frames, which with_stack records like the job's, are left out. What the capture adds is before torch's events.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

from rankscope.inapp.added_events import AddedEvents

# The text between two events in Kineto's layout: inside an event the indent is deeper, and strings have no newline.
_BETWEEN_EVENTS = b"\n  },\n  {"
_END_OF_EVENT = 4
_EVENTS_BEGIN = b'"traceEvents": ['
_CLOSING = b"\n  ]\n}\n"
# A layout without such boundaries is passed on unchanged after this much; it cannot be closed early.
_LARGEST_EVENT = 64 * 2**20
# zlib's levels 1, 3 and 6 on a 167 MB trace: 256, 244 and 101 MB/s for 11.4, 11.8 and 13.8 to 1.
_LEVEL = 1
_GZIP = 31

# Our own Python functions, as with_stack names them: a path in the package's folder, a line and a name.
# The job may have a folder rankscope too.
_NAMES = "|".join(path.stem for path in Path(__file__).parents[1].iterdir()).encode()
_OURS = rb'(?:[^"\n]*/)?rankscope/(?:' + _NAMES + rb')(?:/[^"\n]*)?\.py\(\d+\): [^"\n]*'
OUR_FRAME = re.compile(_OURS)
_OUR_EVENT = re.compile(
    rb',\n  \{\s*"ph": "X",\s*"cat": "python_function",\s*"name": "' + _OURS + rb'".*?\n  \}', re.DOTALL
)


class _Plain:
    """Stands in for the compressor where the file is not compressed."""

    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self, mode: int = zlib.Z_FINISH) -> bytes:
        return b""


class TraceStream:
    """Passes a trace to ``write``, as gzip or unchanged. An incomplete event is held back until it is whole."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        max_size: int | None = None,
        *,
        compress: bool = True,
        added: AddedEvents | None = None,
    ) -> None:
        self._write = write
        self._added = added
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP) if compress else _Plain()
        self._held = b""
        self._max_size = max_size
        self._since_flush = 0
        self._passed_on = False
        self.received = 0
        self.raw_bytes = 0
        self.bytes = 0
        self.wrote_events = False

    @property
    def full(self) -> bool:
        """Whether the file has reached its limit; the compressor may hold a little more."""
        return self._max_size is not None and self.bytes >= self._max_size

    def feed(self, data: bytes) -> None:
        self.received += len(data)
        self._held += data
        boundary = self._held.rfind(_BETWEEN_EVENTS)
        if boundary >= 0:
            end = boundary + _END_OF_EVENT
            events, self._held = self._held[:end], self._held[end:]
            if self._added is not None and not self.wrote_events:
                events = self._with_added(events)
            self._put(_OUR_EVENT.sub(b"", events) if b"rankscope/" in events else events)
            self.wrote_events = True
        elif len(self._held) > _LARGEST_EVENT:
            self._put(self._held)
            self._held = b""
            self._passed_on = True

    def _with_added(self, events: bytes) -> bytes:
        """The first events, after those that the capture adds: a trace that is cut has them too."""
        assert self._added is not None
        head = events.find(_EVENTS_BEGIN) + len(_EVENTS_BEGIN)
        if head < len(_EVENTS_BEGIN):
            return events
        try:
            return events[:head] + self._added.as_json(events[:head]) + events[head:]
        except (TypeError, ValueError):  # an argument that JSON has no form for
            return events

    def finish(self) -> bool:
        """Write the rest. Returns False if the JSON was incomplete; then it has been closed early."""
        if not self._completes(self._held):
            self.close_early()
            return False
        self._put(self._held)
        self._flush()
        return True

    def _completes(self, rest: bytes) -> bool:
        """Whether the rest (the last event and what follows the events) completes the JSON object."""
        if self._passed_on:
            return rest.rstrip().endswith(b"}")
        try:
            json.loads((b'{"":[0' + rest if self.wrote_events else rest).decode("utf-8", "replace"))
        except ValueError:
            return False
        return True

    def close_early(self) -> None:
        """Close the JSON after the last whole event."""
        if not self.wrote_events:
            head = self._held.find(_EVENTS_BEGIN)
            self._put(self._held[: head + len(_EVENTS_BEGIN)] if head >= 0 else b'{\n"traceEvents": [')
        self._put(_CLOSING)
        self._flush()

    def _put(self, data: bytes) -> None:
        self.raw_bytes += len(data)
        self._out(self._gzip.compress(data))
        self._since_flush += len(data)
        if self._max_size is not None and self._max_size - self.bytes < self._since_flush:
            # Near the limit, flush: the size must include what the compressor holds.
            self._out(self._gzip.flush(zlib.Z_SYNC_FLUSH))
            self._since_flush = 0

    def _flush(self) -> None:
        self._held = b""
        self._out(self._gzip.flush())

    def _out(self, data: bytes) -> None:
        if data:
            self._write(data)
            self.bytes += len(data)
