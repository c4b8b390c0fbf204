"""Rows of numbers as events, for tools that record tables: nsys, ROCm's profilers.

Most rows repeat others but for their times and ids. Each distinct one becomes an `Event` once, and every row gets that
event with a time and a correlation of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rankscope import native
from rankscope.readers.columns import (
    NULL,
    Codes,
    EventColumns,
    Numbers,
    SharedTexts,
    Texts,
    distinct_rows,
    event_columns,
    joined_texts,
    text_codes,
)

OWN_NUMBER = object()
"""An argument that is a number of the row's own."""
_MARK = "\1"
"""The same in the arguments as text. JSON cannot contain this byte."""
_json = lru_cache(1 << 12, typed=True)(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode)
_MILLION = 1_000_000
_LARGEST_TIME = 1 << 61
"""Twice as much still fits into 64 bits."""

Rows = Mapping[str, Numbers]
Row = Mapping[str, Any]
"""The values of one row; None for null."""


class Event(NamedTuple):
    """The event of all rows that differ only in their times and ids."""

    category: str
    name: str
    pid: str
    tid: str
    args: Mapping[str, Any]
    """Those that are None are left out; the keys need no escapes. The collective is taken from here too."""
    phase: str = "X"
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None


def device_event(category: str, name: str, args: Mapping[str, Any], process: str = "") -> Event:
    """Work on a stream of a device, with both among its arguments; `process` tells apart streams of the same number."""
    device, stream = args["device"], args["stream"]
    pid, tid = "" if device is None else str(device), "" if stream is None else str(stream)
    return Event(category, name, pid, tid + process, args, "X", device, stream, args.get("bytes"))


def usable_times(times: Numbers) -> Numbers:
    """NULL for times that no clock has."""
    return np.where((times > -_LARGEST_TIME) & (times < _LARGEST_TIME), times, NULL)


def record_columns(
    rows: Rows,
    keys: Sequence[str],
    event: Callable[[Row], Event],
    correlation: Numbers,
    own_numbers: Numbers | None = None,
    *,
    millionths: bool = False,
    texts: Mapping[str, Callable[[Codes], Sequence[Any]]] | None = None,
    **more: Any,
) -> EventColumns:
    """An event for each row. `event` is called once for each distinct combination of the key columns.

    `own_numbers` are the values of OWN_NUMBER, or `millionths` of them. `texts` gives the texts of a key column of
    codes at some rows. `more` are columns of EventColumns.
    """
    start, end = (usable_times(rows[name]) for name in ("start", "end"))
    codes, firsts = distinct_rows([rows[name] for name in keys])
    values: dict[str, Sequence[Any]] = {
        name: [None if value == NULL else value for value in rows[name][firsts].tolist()] for name in keys
    }
    values |= {name: text_of(firsts) for name, text_of in (texts or {}).items()}
    events = [event(dict(zip(values, row, strict=True))) for row in zip(*values.values(), strict=True)]
    fields = (
        dict(zip(Event._fields, zip(*events, strict=True), strict=True))
        if events
        else dict.fromkeys(Event._fields, ())
    )
    pool: dict[str, int] = {}
    coded = {
        name: text_codes(pool, fields[name])[codes] for name in ("phase", "category", "name", "pid", "tid")
    }
    collective = text_codes(pool, [args.get("Collective name") for args in fields["args"]])[codes]
    numbers = {"correlation": correlation}
    for name in ("device", "stream", "bytes"):
        numbers[name] = np.array([NULL if value is None else value for value in fields[name]], np.int64)[
            codes
        ]
    arguments = [_arguments(args) for args in fields["args"]]
    if own_numbers is None:
        args_pool: dict[str, int] = {}
        codes_of_args = text_codes(args_pool, arguments)[codes]
        more["shared_args"] = SharedTexts(Texts.of(args_pool), codes_of_args)
    else:
        more["args"], more["args_offset"] = _filled(arguments, codes, own_numbers, millionths)
    took = np.where((start == NULL) | (end == NULL), NULL, end - start)
    return event_columns(Texts.of(pool), start, took, numbers, collective, **coded, **more)


def _arguments(args: Mapping[str, Any]) -> str | None:
    pieces = [
        f'"{key}":{_MARK if value is OWN_NUMBER else value if type(value) is int else _json(value)}'
        for key, value in args.items()
        if value is not None
    ]
    return f"{{{','.join(pieces)}}}" if pieces else None


def _filled(texts: Sequence[str | None], codes: Codes, numbers: Numbers, millionths: bool) -> tuple[Any, Any]:
    """`args` and `args_offset`: the text of each row with its own number."""
    if native.functions is not None:
        data, offsets = joined_texts(
            None if text is None else text.encode("utf-8", "replace") for text in texts
        )
        filled, filled_offsets = native.functions.fill_texts(data, offsets[codes], numbers, millionths)
        return filled, np.frombuffer(filled_offsets, np.uint32)
    spelt = numbers / _MILLION if millionths else numbers
    return joined_texts(
        None if (text := texts[code]) is None else text.replace(_MARK, str(number)).encode("utf-8", "replace")
        for code, number in zip(codes.tolist(), spelt.tolist(), strict=True)
    )
