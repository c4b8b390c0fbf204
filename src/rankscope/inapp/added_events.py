"""What the capture adds to the trace that torch writes: events, and fields of the header's object "rankscope".

No torch. It never fails the job: what cannot be written is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

_MOST_EVENTS = 50_000
# Characters of a field. The store leaves out a header value of 100,000 and more, and this one also holds the rank.
_LARGEST_FIELD = 45_000
# torch before 2.2 writes no base: its times are since 1970.
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')


class AddedEvents:
    """Of one window. Any thread may add; the events go to the file when torch's are written."""

    def __init__(self) -> None:
        self._process = os.getpid()  # the file is written in another process
        self._events: list[tuple[int, int, dict[str, Any]]] = []
        self.when_written: Callable[[], object] = tuple
        """Adds events in the process that writes them."""

    def add(
        self,
        name: str,
        start_unix_ns: int,
        dur_ns: int,
        args: Mapping[str, Any],
        category: str = "user_annotation",
        thread: int = 0,
    ) -> None:
        """A slice on a thread's track, by default the calling one's; without a category, a fact of the thread."""
        if len(self._events) < _MOST_EVENTS:
            thread = thread or threading.get_native_id()
            event = {
                "ph": "X" if category else "M",
                "cat": category,
                "name": name,
                "pid": self._process,
                "tid": thread,
            }
            self._events.append((start_unix_ns, dur_ns, {**event, "args": args}))

    def as_json(self, head: bytes) -> bytes:
        """The events, laid out as Kineto's, a comma after each. ``head`` is the trace up to its first event."""
        with contextlib.suppress(Exception):
            self.when_written()
        base = _BASE.search(head)
        base_ns = int(base[1]) if base else 0
        lines = (
            f'{json.dumps(event)[:-1]}, "ts": {_microseconds(start_ns - base_ns)}, "dur": {_microseconds(dur_ns)}'
            for start_ns, dur_ns, event in self._events
        )
        return "".join(f"\n  {{\n    {line[1:]}\n  }}," for line in lines).encode()


def _microseconds(nanoseconds: int) -> str:
    """A double has no nanoseconds since 1970."""
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03}"


def header_text(identity: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """The header's object "rankscope": the rank's identity, and the fields that are small enough."""
    texts = {key: json.dumps(value) for key, value in {**identity, **fields}.items()}
    small = [f'"{key}": {text}' for key, text in texts.items() if len(text) < _LARGEST_FIELD]
    return f"{{{', '.join(small)}}}"
