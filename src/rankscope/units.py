"""Time, bytes, rates and counts: the only place where they are parsed and formatted for people."""

from __future__ import annotations

import re

from rankscope.errors import UsageError

_TIME_STEPS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns"))
_BYTE_STEPS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_SECOND_FACTORS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTE_FACTORS = {
    "": 1,
    "b": 1,
    "k": 10**3,
    "kb": 10**3,
    "m": 10**6,
    "mb": 10**6,
    "g": 10**9,
    "gb": 10**9,
    "t": 10**12,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}


def _scaled(value: float, steps: tuple[tuple[float, str], ...], digits: int) -> str:
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    decimals = 0 if factor == 1 and float(value).is_integer() else digits
    return f"{value / factor:,.{decimals}f} {unit}"


def format_ns(nanoseconds: float, digits: int = 3) -> str:
    """A duration in the unit that reads best: 1,234,567 ns is '1.235 ms'."""
    return _scaled(nanoseconds, _TIME_STEPS, digits)


def format_bytes(count: float, digits: int = 2) -> str:
    """A size in powers of ten (1 GB = 1e9 bytes), as NCCL and disks count."""
    return _scaled(count, _BYTE_STEPS, digits)


def format_count(count: float) -> str:
    """A count with thousands separators."""
    return f"{count:,.0f}"


def format_percent(percent: float) -> str:
    """A percentage with one digit: '15.6'; the unit stands in the heading."""
    return f"{percent:.1f}"


def parse_bytes(text: str) -> int:
    """'2GB', '512 MiB', '1e6' as bytes."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _BYTE_FACTORS:
        raise UsageError(f"'{text}' is not a size", hint="Write it like 2GB, 512MiB or 1000000.")
    try:
        return int(float(match[1]) * _BYTE_FACTORS[match[2]])
    except ValueError:
        raise UsageError(f"'{text}' is not a size", hint="Write it like 2GB, 512MiB or 1000000.") from None


def parse_seconds(text: str) -> float:
    """'30s', '500ms', '2min', '1h' or '30' as seconds."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _SECOND_FACTORS:
        raise UsageError(f"'{text}' is not a length of time", hint="Write it like 30s, 500ms, 2min or 1h.")
    return float(match[1]) * _SECOND_FACTORS[match[2]]


def parse_count(text: str) -> int:
    """'1e6', '250k', '2M' or '1000000' as a whole number."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmg]?)\s*", text.lower())
    factors = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
    try:
        value = float(match[1]) * factors[match[2]] if match else -1.0
    except ValueError:
        value = -1.0
    if value < 0 or not value.is_integer():
        raise UsageError(f"'{text}' is not a whole number", hint="Write it like 1000000, 1e6 or 250k.")
    return int(value)


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle out of a long name: both ends of a kernel's name tell it apart."""
    if len(text) <= width:
        return text
    if width <= 1:
        return "…"[:width]
    left = (width - 1 + 1) // 2
    right = width - 1 - left
    return f"{text[:left]}…{text[len(text) - right :]}" if right else f"{text[:left]}…"
