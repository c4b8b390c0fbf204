"""Repairs damaged JSON event by event. Slow, and only used for blocks that do not parse.

Events are repaired or left out, and counted with examples. The result is clean JSON text, which is then parsed like
any other block.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from rankscope.readers.base import ReadReport
from rankscope.readers.kineto import json_layout

_MAX_TIME_US = 9.2e15
"""In µs; beyond this, nanoseconds do not fit into 64 bits."""
_LARGEST_EVENT = 15_000_000
_LARGEST_REPAIRED_NAME = 100_000
"""Quotes in the name of a longer event are not looked for: the search takes the square of its length."""
_NAME_VALUE = re.compile(rb'("name": ")(.*?)(", "(?:ph|cat|pid|tid|ts|s|id)": )', re.DOTALL)
_TIME_TEXT = re.compile(rb'"ts"\s*:\s*([0-9]+\.[0-9]+)')
_SURROGATE_ESCAPE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def repair_range(
    block: bytes, start: int, end: int, separator: bytes | None, offset: int, report: ReadReport
) -> bytes:
    """Clean JSON text (events joined by commas) of the events in block[start:end].

    `offset` is the position of the block in the file, for messages.
    """
    clean: list[bytes] = []
    for begin, stop in json_layout.event_spans(block, start, end, separator):
        event, why = _parse(block[begin:stop])
        if event is None and separator:
            # Two events with an unusual separator look like one: split by parsing.
            inner = list(json_layout.event_spans(block, begin, stop, None))
            if len(inner) > 1:
                clean += filter(None, [repair_range(block, a, b, None, offset, report) for a, b in inner])
                continue
        if isinstance(event, dict):
            event["ts"] = _exact_time(block[begin:stop], event.get("ts"))
        text = _repaired_text(event, why, f"at byte {offset + begin:,}", report)
        if text is not None:
            clean.append(text)
    return b",\n".join(clean)


def _repaired_text(event: Any, why: str, where: str, report: ReadReport) -> bytes | None:
    """The text of one parsed event, or None if it is lost. Counts losses and repairs."""
    if event is None:
        report.lose(f"event {where} is not valid JSON ({why})")
        return None
    text, repaired = _clean(event, where, report)
    if text is not None and (why or repaired):
        report.repaired(f"event {where} ({why or repaired})")
    return text


def _parse(raw: bytes) -> tuple[Any, str]:
    """The event and what was repaired ('' for nothing); or None and why it cannot be read."""
    if len(raw) > _LARGEST_EVENT:
        return None, f"{len(raw):,} bytes long"
    try:
        text, repaired = raw.decode("utf-8"), ""
    except UnicodeDecodeError:
        text, repaired = raw.decode("utf-8", "replace"), "invalid UTF-8"
    try:
        return json.loads(text), repaired
    except ValueError:
        pass
    except RecursionError:
        return None, "nested too deep"
    try:
        return json.loads(text, strict=False), repaired or "control characters in a string"
    except ValueError as error:
        reason = str(error)
    if len(raw) > _LARGEST_REPAIRED_NAME:
        return None, reason
    escaped = _NAME_VALUE.sub(lambda m: m[1] + _BARE_QUOTE.sub(rb'\\"', m[2]) + m[3], raw, count=1)
    try:
        return json.loads(escaped.decode("utf-8", "replace"), strict=False), "unescaped quotes in the name"
    except ValueError:
        return None, reason


def _clean(event: Any, where: str, report: ReadReport) -> tuple[bytes | None, str]:
    """Valid JSON text of one event and what was repaired; None if the event cannot be kept, which is counted."""
    if not isinstance(event, dict):
        report.lose(f"{where} is a {type(event).__name__}, not an event")
        return None, ""
    repaired = ""
    for key in ("ts", "dur"):
        value = _number(event.get(key))
        if value is not None and math.isfinite(value) and abs(value) < _MAX_TIME_US:
            continue
        if key == "ts" and event.get("ph") != "M":
            report.lose(f"event {where} has no usable time (ts = {event.get('ts')!r})")
            return None, ""
        if event.get(key) is not None:
            repaired = f"{key} = {event[key]!r} dropped"
            del event[key]
    try:
        text = json.dumps(event, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(event), allow_nan=False)
        repaired = "NaN or Infinity among its arguments"
    if _SURROGATE_ESCAPE.search(text):
        # Parsing joins surrogate pairs; the rest are unpaired, and strict parsers refuse them.
        text, unpaired = _SURROGATE.subn("\ufffd", json.dumps(json.loads(text), ensure_ascii=False))
        repaired = repaired or ("unpaired surrogates" if unpaired else "")
    return text.encode(), repaired


def _exact_time(raw: bytes, value: Any) -> Any:
    """The time as text: a float may lose its last digits, and DuckDB reads a string exactly."""
    match = _TIME_TEXT.search(raw)
    return match[1].decode() if match and isinstance(value, float) and float(match[1]) == value else value


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return float(value) if isinstance(value, (int, float)) else None


def _without_nan(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
