"""Times as the tools write them, in nanoseconds; without a zone they are read as if they were UTC."""

from __future__ import annotations

import re
from datetime import date, datetime
from functools import lru_cache

from rankscope.readers.base import LOCAL, TIME_OF_DAY, UNIX

_SECOND = 1_000_000_000
_DAY_NS = 86_400 * _SECOND
_EPOCH = date(1970, 1, 1).toordinal()
_LATEST_SECOND = 1 << 32
_MILLISECONDS_FROM = 100_000_000_000
"""As seconds this would be the year 5138, as milliseconds it is 1973."""

_DATE = r"(?:\d{4}/\d\d/\d\d|\d{4}-\d\d-\d\d|\d{8})"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
DATE_AND_TIME = re.compile(rf"({_DATE})[ \tT,]+({_CLOCK})(Z|[+-]\d\d:?\d\d)?")
TIME_ALONE = re.compile(rf"({_CLOCK})(?![:\d])")
EPOCH = re.compile(r"(\d{9,16}(?:\.\d{1,9})?)(?![\d.:/-])")


def read_time(text: str) -> tuple[str, int, int]:
    """The time at the start of a text: what clock it is of, nanoseconds, and where it ends. ValueError without one."""
    if len(text) == 23 and text[19] == "." and text[20:].isdecimal() and text[4] == "/":
        # As nvidia-smi writes it. The lines of a second share all but the end.
        return LOCAL, _second_ns(text[:19]) + int(text[20:]) * 1_000_000, 23
    if found := DATE_AND_TIME.match(text):
        day, clock, zone = found.groups()
        time = _day_ns(day) + clock_ns(clock)
        if zone is None:
            return LOCAL, time, found.end()
        return UNIX, time - _zone_ns(zone), found.end()
    if found := TIME_ALONE.match(text):
        return TIME_OF_DAY, clock_ns(found[1]), found.end()
    if found := EPOCH.match(text):
        return UNIX, epoch_ns(found[1]), found.end()
    raise ValueError("no time")


@lru_cache(maxsize=64)
def _second_ns(text: str) -> int:
    return read_time(text)[1]


@lru_cache(maxsize=16)
def _day_ns(text: str) -> int:
    digits = text.replace("/", "").replace("-", "")
    return (date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).toordinal() - _EPOCH) * _DAY_NS


def clock_ns(text: str) -> int:
    """A time of day. A leap second, 23:59:60, is a second like others."""
    whole, _, fraction = text.replace(",", ".").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    if hours > 23 or minutes > 59 or seconds > 60:
        raise ValueError("no time of day")
    return (hours * 3600 + minutes * 60 + seconds) * _SECOND + int(fraction.ljust(9, "0") or 0)


def _zone_ns(text: str) -> int:
    offset = datetime.strptime(text.replace("Z", "+0000").replace(":", ""), "%z").utcoffset()
    return round(offset.total_seconds()) * _SECOND if offset else 0


def epoch_ns(text: str) -> int:
    """Seconds or milliseconds since 1970, exactly."""
    whole, _, fraction = text.partition(".")
    factor = _SECOND // 1000 if int(whole) >= _MILLISECONDS_FROM else _SECOND
    time = int(whole) * factor + int(fraction.ljust(9, "0") or 0) * factor // _SECOND
    if not 0 < time < _LATEST_SECOND * _SECOND:
        raise ValueError("no time since 1970")
    return time
