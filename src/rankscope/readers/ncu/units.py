"""Nsight Compute's units: a value as text, with any prefix and spelling, into one base unit."""

from __future__ import annotations

import re

_TIME = {
    "s": 1e9,
    "second": 1e9,
    "ms": 1e6,
    "msecond": 1e6,
    "us": 1e3,
    "usecond": 1e3,
    "ns": 1.0,
    "nsecond": 1.0,
}
"""Nanoseconds in each; ncu 2024 writes usecond where 2025 writes us."""
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)}
_BYTES = re.compile(r"([KMGTP]i?)?(byte|hz|bit)s?", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?")


def base_value(text: str, unit: str) -> tuple[float | None, str]:
    """'0.887340', 'Tbyte/s' is (887340000000.0, 'byte/s'); no number gives None."""
    number = _number(text)
    factor, base = _base_unit(unit.strip())
    return (None if number is None else number * factor), base


def _number(text: str) -> float | None:
    """With thousands separators; '5 (1; 2; 2)' is a value with its instances behind it."""
    match = _NUMBER.match(text.strip())
    if not match or text.strip()[match.end() :].strip()[:1] not in ("", "("):
        return None
    return float(match[0].replace(",", ""))


def _base_unit(unit: str) -> tuple[float, str]:
    """What to multiply by, and the unit that is then true."""
    above, slash, below = unit.partition("/")
    factor, name = _part(above)
    if not slash:
        return factor, name
    divisor, below_name = _part(below)
    if below_name == "ns":  # rates count per second, whatever they were written in
        divisor, below_name = divisor / 1e9, "s"
    if (name, below_name) == ("cycle", "s"):
        return factor / divisor, "hz"
    return factor / divisor, f"{name}/{below_name}"


def _part(text: str) -> tuple[float, str]:
    if text in _TIME:
        return _TIME[text], "ns"
    match = _BYTES.fullmatch(text)
    if match:
        prefix = (match[1] or "").replace("k", "K").replace("I", "i")
        return _PREFIXES.get(prefix, 1.0), match[2].lower()
    return 1.0, text
