"""What the capture adds to the trace that torch writes: events, and fields of the header's object "rankscope".

No torch. It never fails the job: what cannot be written is left out.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from typing import Any

_MOST_EVENTS = 10_000
# Characters of a field. The store leaves out a header value of 100,000 and more, and this one also holds the rank.
_LARGEST_FIELD = 45_000
# torch before 2.2 writes no base: its times are since 1970.
_BASE = re.compile(rb'"baseTimeNanoseconds":\s*(\d+)')


class AddedEvents:
    """Of one window. Any thread may add; the events go to the file when torch's are written."""

    def __init__(self) -> None:
        self._process = os.getpid()  # the file is written in another process
        self._events: list[tuple[str, int, int, int, Mapping[str, Any]]] = []

    def add(self, name: str, start_unix_ns: int, dur_ns: int, args: Mapping[str, Any]) -> None:
        """A user_annotation on the calling thread's track."""
        if len(self._events) < _MOST_EVENTS:
            self._events.append((name, start_unix_ns, dur_ns, threading.get_native_id(), args))

    def as_json(self, head: bytes) -> bytes:
        """The events in Kineto's layout, a comma after each. ``head`` is the trace up to its first event."""
        base = _BASE.search(head)
        base_ns = int(base[1]) if base else 0
        return b"".join(self._event(base_ns, *event) for event in self._events)

    def _event(
        self, base_ns: int, name: str, start_ns: int, dur_ns: int, thread: int, args: Mapping[str, Any]
    ) -> bytes:
        start = start_ns - base_ns
        values = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items())
        return (
            f'\n  {{\n    "ph": "X", "cat": "user_annotation", "name": {json.dumps(name)}, '
            f'"pid": {self._process}, "tid": {thread},\n'
            f'    "ts": {start // 1000}.{start % 1000:03}, "dur": {dur_ns // 1000}.{dur_ns % 1000:03},\n'
            f'    "args": {{\n      {values}\n    }}\n  }},'
        ).encode()


def header_text(identity: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """The header's object "rankscope": the rank's identity, and the fields that are small enough."""
    texts = {key: json.dumps(value) for key, value in {**identity, **fields}.items()}
    small = [f'"{key}": {text}' for key, text in texts.items() if len(text) < _LARGEST_FIELD]
    return f"{{{', '.join(small)}}}"
