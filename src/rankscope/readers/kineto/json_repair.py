"""The slow, forgiving way through a damaged stretch of JSON: event by event, nothing silent.

What can be mended is mended and counted, what cannot is counted with an example, and the result is clean
JSON text for the same fast path as everything else.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from rankscope.readers.base import ReadReport
from rankscope.readers.kineto import json_layout

_MAX_TIME_US = 9.2e15
"""Beyond this, nanoseconds do not fit into 64 bits."""
_LARGEST_EVENT = 15_000_000
_NAME_VALUE = re.compile(rb'("name": ")(.*?)(", "(?:ph|cat|pid|tid|ts|s|id)": )', re.DOTALL)
_TIME_TEXT = re.compile(rb'"ts"\s*:\s*([0-9]+\.[0-9]+)')
_SURROGATE_ESCAPE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_BARE_QUOTE = re.compile(rb'(?<!\\)"')


def repair_range(
    block: bytes, start: int, end: int, separator: bytes | None, offset: int, report: ReadReport
) -> bytes:
    """Clean JSON text (events joined by commas) of the events in block[start:end].

    `offset` is the block's place in the file, for messages.
    """
    clean: list[bytes] = []
    for begin, stop in json_layout.event_spans(block, start, end, separator):
        event, why = _parse(block[begin:stop])
        if event is None and separator:
            # Two events with something odd between them look like one; look closer.
            inner = list(json_layout.event_spans(block, begin, stop, None))
            if len(inner) > 1:
                clean += filter(None, [repair_range(block, a, b, None, offset, report) for a, b in inner])
                continue
        if isinstance(event, dict):
            event["ts"] = _exact_time(block[begin:stop], event.get("ts"))
        text = _mend(event, why, f"at byte {offset + begin:,}", report)
        if text is not None:
            clean.append(text)
    return b",\n".join(clean)


def _mend(event: Any, why: str, where: str, report: ReadReport) -> bytes | None:
    """Text of one parsed event, with what happened to it counted; None when it is lost."""
    if event is None:
        report.lose(f"event {where} is not valid JSON ({why})")
        return None
    text, mended = _clean(event, where, report)
    if text is not None and (why or mended):
        report.repaired(f"event {where} ({why or mended})")
    return text


def _parse(raw: bytes) -> tuple[Any, str]:
    """The event and what had to be forgiven ('' for nothing), or None and why it cannot be read."""
    if len(raw) > _LARGEST_EVENT:
        return None, f"{len(raw):,} bytes long"
    try:
        text, forgiven = raw.decode("utf-8"), ""
    except UnicodeDecodeError:
        text, forgiven = raw.decode("utf-8", "replace"), "invalid UTF-8"
    try:
        return json.loads(text), forgiven
    except ValueError:
        pass
    except RecursionError:
        return None, "nested too deep"
    try:
        return json.loads(text, strict=False), forgiven or "control characters in a string"
    except ValueError as error:
        reason = str(error)
    mended = _NAME_VALUE.sub(lambda m: m[1] + _BARE_QUOTE.sub(rb'\\"', m[2]) + m[3], raw, count=1)
    try:
        return json.loads(mended.decode("utf-8", "replace"), strict=False), "unescaped quotes in the name"
    except ValueError:
        return None, reason


def _clean(event: Any, where: str, report: ReadReport) -> tuple[bytes | None, str]:
    """Valid JSON text of one event and what was mended; None when it cannot be kept (and that is counted)."""
    if not isinstance(event, dict):
        report.lose(f"{where} stands a {type(event).__name__}, not an event")
        return None, ""
    mended = ""
    for key in ("ts", "dur"):
        value = _number(event.get(key))
        if value is not None and math.isfinite(value) and abs(value) < _MAX_TIME_US:
            continue
        if key == "ts" and event.get("ph") != "M":
            report.lose(f"event {where} has no usable time (ts = {event.get('ts')!r})")
            return None, ""
        if event.get(key) is not None:
            mended = f"{key} = {event[key]!r} dropped"
            del event[key]
    try:
        text = json.dumps(event, allow_nan=False)
    except ValueError:
        text, mended = json.dumps(_without_nan(event), allow_nan=False), "NaN or Infinity among its arguments"
    if _SURROGATE_ESCAPE.search(text):
        # Pairs become one character when they are parsed; what stays is unpaired, and strict parsers refuse it.
        text, unpaired = _SURROGATE.subn("\ufffd", json.dumps(json.loads(text), ensure_ascii=False))
        mended = mended or ("unpaired surrogates" if unpaired else "")
    return text.encode(), mended


def _exact_time(raw: bytes, value: Any) -> Any:
    """The time as its text: a float may not hold its last digits, and DuckDB reads a string exactly."""
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
    """The same with null for what JSON cannot say."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
