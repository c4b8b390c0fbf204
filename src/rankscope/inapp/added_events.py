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
        self._events: list[tuple[str, str, int, int | None, int, Mapping[str, Any]]] = []
        self._makers: list[Callable[[AddedEvents], None]] = []

    def add(
        self,
        name: str,
        start_unix_ns: int,
        dur_ns: int,
        args: Mapping[str, Any],
        category: str = "user_annotation",
        thread: int = 0,
    ) -> None:
        """A slice on a thread's track; without ``thread`` on that of the calling one."""
        if len(self._events) < _MOST_EVENTS:
            thread = thread or threading.get_native_id()
            self._events.append((name, category, start_unix_ns, dur_ns, thread, args))

    def name_thread(self, name: str, thread: int) -> None:
        self._events.append(("thread_name", "", 0, None, thread, {"name": name}))

    def when_written(self, maker: Callable[[AddedEvents], None]) -> None:
        """Have ``maker`` add events in the process that writes them."""
        self._makers.append(maker)

    def as_json(self, head: bytes) -> bytes:
        """The events in Kineto's layout, a comma after each. ``head`` is the trace up to its first event."""
        for maker in self._makers:
            with contextlib.suppress(Exception):
                maker(self)
        base = _BASE.search(head)
        base_ns = int(base[1]) if base else 0
        return b"".join(self._event(base_ns, *event) for event in self._events)

    def _event(
        self,
        base_ns: int,
        name: str,
        category: str,
        start_ns: int,
        dur_ns: int | None,
        thread: int,
        args: Mapping[str, Any],
    ) -> bytes:
        kind, times = '"ph": "M"', ""
        if dur_ns is not None:
            start = start_ns - base_ns
            kind = f'"ph": "X", "cat": "{category}"'
            times = (
                f'    "ts": {start // 1000}.{start % 1000:03}, "dur": {dur_ns // 1000}.{dur_ns % 1000:03},\n'
            )
        values = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in args.items())
        return (
            f'\n  {{\n    {kind}, "name": {json.dumps(name)}, "pid": {self._process}, "tid": {thread},\n'
            f'{times}    "args": {{\n      {values}\n    }}\n  }},'
        ).encode()


def header_text(identity: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """The header's object "rankscope": the rank's identity, and the fields that are small enough."""
    texts = {key: json.dumps(value) for key, value in {**identity, **fields}.items()}
    small = [f'"{key}": {text}' for key, text in texts.items() if len(text) < _LARGEST_FIELD]
    return f"{{{', '.join(small)}}}"
