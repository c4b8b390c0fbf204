"""Events that a reader gives as columns, as rows that tests compare."""

from __future__ import annotations

from typing import Any

from kineto_columns import plain
from rankscope.model import EVENTS
from rankscope.readers.columns import NULL, EventColumns

_OF_ALL = ("phase", "category", "name", "pid", "tid", "flow", "time", "duration", "args")
_LINKED = ("correlation", "external_id", "device", "stream", "bytes", "collective")
_NAMES = {"phase": "ph", "time": "ts_ns", "duration": "dur_ns"}


def event_rows(columns: EventColumns) -> list[dict[str, Any]]:
    """The columns of model.EVENTS, with the arguments as Python values; and `memory` of those that have it."""
    found = plain(columns)
    rows: list[dict[str, Any]] = [dict.fromkeys(EVENTS.columns) for _ in range(len(columns))]
    for names, events in ((_OF_ALL, rows), (_LINKED, [rows[index] for index in found["linked"]])):
        for name in names:
            for row, value in zip(events, found[name], strict=True):
                row[_NAMES.get(name, name)] = None if value == NULL else value
    for index, values in zip(found["memory_events"], found["memory"], strict=True):
        rows[index]["memory"] = values
    return rows
