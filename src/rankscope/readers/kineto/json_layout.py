"""Finds where the events of a Chrome/Kineto JSON trace start, end, and can be cut apart, without parsing them all.

Offsets are bytes. Text is decoded as Latin-1, where one character is one byte, so that offsets stay valid and
invalid UTF-8 does no harm.

Blocks that do not parse are repaired event by event, which is slow: events are repaired or left out, and counted with
examples. The result is clean JSON text, which is then parsed like any other block.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from rankscope.readers.base import ReadReport

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NEXT_EVENT = re.compile(r'\s*,\s*\{\s*"[^"]*"')
_BETWEEN = re.compile(rb"[\s,]*")
_DECODER = json.JSONDecoder(strict=False)
_SNIFF_BYTES = 1 << 22
_LARGEST_CHECKED_EVENT = 1 << 20
_MOST_KEYS = 16
"""How often the key traceEvents may occur before the events, as text or in other objects."""
_MOST_CUTS = 1000
"""How many places that look like the end of an event are checked in a block."""
_MOST_ENDS = 100
"""How many places that look like the end of the list of events are checked after damage."""
_MOST_BEFORE_END = 1 << 16
"""Bytes of space before the end of the list of events."""
_RECURSION_COST = 10_000
"""Characters parsed before Python's parser gives up nesting, about."""


@dataclass(frozen=True)
class EventsStart:
    """Where the events start, and the fields before them."""

    offset: int
    """First byte after the opening bracket."""
    header: dict[str, Any] = field(default_factory=dict)
    """Top-level fields written before traceEvents."""
    header_damaged: bool = False


def loads(raw: bytes) -> Any:
    """json.loads that accepts invalid UTF-8 and control characters inside strings."""
    return json.loads(raw.decode("utf-8-sig", "replace"), strict=False)


def find_events_start(head: bytes) -> EventsStart | None:
    """Find the array of events; None if it does not start in these bytes."""
    stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if stripped[:1] == b"[":
        return EventsStart(len(head) - len(stripped) + 1)
    if stripped[:1] != b"{":
        return None
    first = None
    for match in islice(_EVENTS_KEY.finditer(head), _MOST_KEYS):
        first = first or match
        try:
            # Only at the top level does closing the object here give valid JSON; inside a string or a nested
            # object it does not.
            header = loads(head[: match.start()] + b'"traceEvents":[]}')
        except (ValueError, RecursionError):
            continue
        del header["traceEvents"]
        return EventsStart(match.end(), header)
    return EventsStart(first.end(), header_damaged=True) if first else None


def sniff_separator(block: bytes, start: int) -> bytes | None:
    """The bytes between two events, taken from the first events; None if they cannot be determined.

    In pretty-printed layouts line breaks and indent make them unique. In one-line layouts objects inside an event
    may look the same, so the separator includes the next event's first key, and each cut is checked (`_is_event`).
    """
    text = block[start : start + _SNIFF_BYTES].decode("latin-1")
    position = 0
    for _ in range(8):  # the first events may be damaged, or the separator unusual
        begin = text.find("{", position)
        if begin < 0:
            return None
        try:
            _, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            position = begin + 1
            continue
        following = _NEXT_EVENT.match(text, end)
        if not following:
            return None
        close = text[:end].rstrip("}")
        margin = text[len(close.rstrip()) : len(close)] if "\n" in close[len(close.rstrip()) :] else ""
        between = following[0]
        if margin:
            between = between[: between.index('"')]
        return f"{margin}}}{between}".encode("latin-1")
    return None


def last_cut(block: bytes | bytearray, start: int, end: int, separator: bytes) -> int | None:
    """Offset after the closing brace of the last event that is followed by another; None if there is none."""
    position = end
    for _ in range(_MOST_CUTS):
        position = block.rfind(separator, start, min(end, position + len(separator) - 1))
        if position < 0:
            return None
        if _is_event(block, position, separator):
            return position + separator.index(b"}") + 1
    return None


def _is_event(block: bytes | bytearray, position: int, separator: bytes) -> bool:
    """True if an event follows the separator at `found`. With an indent the separator is unambiguous."""
    if b"\n" in separator:
        return True
    begin = position + separator.index(b"{")
    try:
        event, _ = _DECODER.raw_decode(block[begin : begin + _LARGEST_CHECKED_EVENT].decode("latin-1"))
    except (ValueError, RecursionError):
        return False
    return "ph" in event and ("ts" in event or event["ph"] == "M")


def skip_between(block: bytes | bytearray, position: int, end: int) -> int:
    match = _BETWEEN.match(block, position, end)
    return match.end() if match else position


def event_spans(block: bytes, start: int, end: int, separator: bytes | None) -> Iterator[tuple[int, int]]:
    """Start and end of each event. A damaged event does not hide the events after it."""
    if separator and b"\n" in separator:
        close = separator.index(b"}") + 1
        while (cut := block.find(separator, start, end)) >= 0:
            yield start, cut + close
            start = skip_between(block, cut + close, end)
        if start < end:
            yield start, end
        return
    text = block[start:end].decode("latin-1")
    position = 0
    effort = _Effort(len(text))
    while (position := skip_between(block, start + position, end) - start) < len(text):
        try:
            _, stop = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            effort.spend(error, position)
            stop = _next_event(text, position + 1, effort)
        yield start + position, start + stop
        position = stop


class _Effort:
    """Bounds how much text is parsed in vain while looking for events after damage: hostile text costs its square."""

    def __init__(self, size: int) -> None:
        self._left = 16 * size + 1_000_000

    def spend(self, error: Exception, begin: int) -> None:
        self._left -= error.pos - begin + 100 if isinstance(error, json.JSONDecodeError) else _RECURSION_COST

    @property
    def spent(self) -> bool:
        return self._left < 0


def _next_event(text: str, position: int, effort: _Effort) -> int:
    """Where reading continues after damage: the next object that parses and looks like an event."""
    for match in re.compile(r'\{\s*"(?:ph|name|cat)"').finditer(text, position):
        if effort.spent:
            break
        try:
            _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError) as error:
            effort.spend(error, match.start())
            continue
        return match.start()
    return len(text)


@dataclass(frozen=True)
class EventsEnd:
    """Where the events end in the last block."""

    events: int
    """Offset after the last complete event."""
    trailer: dict[str, Any] = field(default_factory=dict)
    """Top-level fields written after the events."""
    closed: bool = True
    """False if the array is not closed: the file is truncated."""
    leftover: bool = False
    """True if the last event is incomplete."""


def find_events_end(block: bytes | bytearray, start: int, separator: bytes | None) -> EventsEnd:
    """Parse the last events one by one up to the closing bracket."""
    last_separator = block.rfind(separator, start) if separator else -1
    position = (
        start if last_separator < 0 or separator is None else last_separator + separator.index(b"}") + 1
    )
    text = block[position:].decode("latin-1")
    base, here = position, 0
    whole = position if last_separator >= 0 else start
    while True:
        here = skip_between(block, base + here, len(block)) - base
        if here >= len(text):
            return EventsEnd(whole, closed=False)
        if text[here] == "]":
            return EventsEnd(whole, _trailer(block[base + here + 1 :]))
        try:
            _, here = _DECODER.raw_decode(text, here)
        except (ValueError, RecursionError):
            return _end_after_damage(block, base + here, whole)
        whole = base + here


def _end_after_damage(block: bytes | bytearray, position: int, whole: int) -> EventsEnd:
    """For a last event that does not parse: either it is damaged and the array is closed, or the file is truncated."""
    bracket = len(block)
    for _ in range(_MOST_ENDS):
        bracket = block.rfind(b"]", position, bracket)
        if bracket < 0:
            break
        begin = max(position, bracket - _MOST_BEFORE_END)
        close = begin + len(block[begin:bracket].rstrip())
        if block[close - 1 : close] != b"}":
            continue
        rest = block[bracket + 1 :]
        try:
            trailer = loads(b'{"":0' + rest) if rest.strip() else {}
        except (ValueError, RecursionError):
            continue
        trailer.pop("", None)
        return EventsEnd(close, trailer)
    return EventsEnd(whole, closed=False, leftover=True)


def _trailer(rest: bytes | bytearray) -> dict[str, Any]:
    """The fields after the events; {} if they are missing or damaged."""
    if not rest.strip():
        return {}
    try:
        fields = loads(b'{"":0' + rest)
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in fields.items() if key}


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
    for begin, stop in event_spans(block, start, end, separator):
        event, why = _parse(block[begin:stop])
        if event is None and separator:
            # Two events with an unusual separator look like one: split by parsing.
            inner = list(event_spans(block, begin, stop, None))
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
