"""Events that a reader gives as columns, as rows that tests compare."""

from __future__ import annotations

import json
from typing import Any

from rankscope.model import EVENTS
from rankscope.readers.columns import NULL, EventColumns

_COLUMNS = {"phase": "ph", "time": "ts_ns", "duration": "dur_ns"}


def event_rows(columns: EventColumns) -> list[dict[str, Any]]:
    """The columns of model.EVENTS; the arguments as Python values; `memory` of those that have it."""
    texts = [*columns.texts, None]  # NO_TEXT is -1
    rows: list[dict[str, Any]] = [dict.fromkeys(EVENTS.columns) for _ in range(len(columns))]
    for name in ("phase", "category", "name", "pid", "tid"):
        for row, code in zip(rows, getattr(columns, name).tolist(), strict=True):
            row[_COLUMNS.get(name, name)] = texts[code]
    for row, flow in zip(rows, flow_names(columns), strict=True):
        row["flow"] = flow
    for name in ("time", "duration"):
        for row, value in zip(rows, getattr(columns, name).tolist(), strict=True):
            row[_COLUMNS[name]] = _number(value)
    linked = [rows[index] for index in columns.linked.tolist()]
    for name in ("correlation", "external_id", "device", "stream", "bytes"):
        for row, value in zip(linked, getattr(columns, name).tolist(), strict=True):
            row[name] = _number(value)
    for row, code in zip(linked, columns.collective.tolist(), strict=True):
        row["collective"] = texts[code]
    for index, row in enumerate(rows):
        text = columns.args_of(index)
        row["args"] = None if text is None else json.loads(text)
    for index, values in zip(columns.memory_events.tolist(), columns.memory.tolist(), strict=True):
        rows[index]["memory"] = [_number(value) for value in values]
    return rows


def flow_names(columns: EventColumns) -> list[str | None]:
    """The ids of flows as they are in the file."""
    texts = list(columns.texts)
    return [
        None if flow == NULL else str(flow) if flow >= 0 else texts[-1 - flow]
        for flow in columns.flow.tolist()
    ]


def _number(value: int) -> int | None:
    return None if value == NULL else value
