"""Events that a reader gives as columns, as rows that tests compare."""

from __future__ import annotations

import json
from typing import Any

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


def plain(columns: EventColumns) -> dict[str, list[Any]]:
    """Every column as Python values, with texts instead of codes."""
    texts = [*columns.texts, None]  # NO_TEXT is -1
    found: dict[str, list[Any]] = {
        name: [texts[code] for code in getattr(columns, name).tolist()]
        for name in ("phase", "category", "name", "pid", "tid", "collective")
    }
    found["flow"] = flow_names(columns)
    for name in ("time", "duration", "linked", "correlation", "external_id", "device", "stream", "bytes"):
        found[name] = getattr(columns, name).tolist()
    found["memory_events"], found["memory"] = columns.memory_events.tolist(), columns.memory.tolist()
    found["computing"] = columns.computing.tolist()
    found["shapes"] = [[texts[code] for code in row] for row in columns.shapes.tolist()]
    args = [columns.args_of(index) for index in range(len(columns))]
    found["args"] = [None if text is None else json.loads(text) for text in args]
    return found


def flow_names(columns: EventColumns) -> list[str | None]:
    """The ids of flows as they are in the file."""
    texts = list(columns.texts)
    return [
        None if flow == NULL else str(flow) if flow >= 0 else texts[-1 - flow]
        for flow in columns.flow.tolist()
    ]
