"""Scales from values to pixels, and positions and labels of ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rankscope.units import SCALABLE, choose_scale, format_plain

_DECADES_APART = 1e4
LEAST_TICKS = 3
"""With fewer, a reader cannot tell a linear axis from another."""


@dataclass(frozen=True)
class Linear:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low or 1)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers, 1, 2 or 5 times a power of ten apart: about `most`, and at least LEAST_TICKS."""
        span = self.high - self.low
        if span <= 0:
            return [self.low]
        while True:
            rough = span / max(most, 1)
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
            first = math.ceil(self.low / step - 1e-9)
            ticks = [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
            if len(ticks) >= LEAST_TICKS:
                return ticks
            most += 1


@dataclass(frozen=True)
class Log:
    """Logarithmic; values must be positive."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, most: int = 8) -> list[float]:
        """Powers of ten; with less than LEAST_TICKS of them, also 2 and 5 times these."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last - first + 1 < LEAST_TICKS:
            every_few = [factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)]
            return [tick for tick in every_few if self.low <= tick <= self.high]
        every = min(max(1, math.ceil((last - first + 1) / most)), (last - first) // (LEAST_TICKS - 1))
        return [10.0**power for power in range(first, last + 1, every)]

    def minor_ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        ticks = [factor * 10.0**power for power in powers for factor in range(2, 10)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


Scale = Linear | Log


def decades(values: Sequence[float], least: int = 1, room: float = 1.6) -> tuple[float, float]:
    """Bounds of a logarithmic axis for these values, with a margin, at least so many decades apart."""
    low, high = min(values) / room, max(values) * room
    aside = max(1.0, math.sqrt(10**least / (high / low)))
    return low / aside, high * aside


def tick_labels(unit: str, ticks: Sequence[float]) -> tuple[list[str], str]:
    """Tick labels, and the unit for the title of the axis. Labels that span many decades contain their own unit."""
    if not unit:
        return _different(ticks), ""
    sizes = [abs(tick) for tick in ticks if tick]
    if unit in SCALABLE and sizes and max(sizes) >= _DECADES_APART * min(sizes):
        scales = [choose_scale(unit, [tick]) for tick in ticks]
        return [f"{_bare(tick / s.factor)} {s.label}" for tick, s in zip(ticks, scales, strict=True)], ""
    # A smaller unit for a wide range: 10 to 1,000 TFLOP/s is easier to read than 0.01 to 1 PFLOP/s.
    wide = len(sizes) > 1 and max(sizes) >= 10 * min(sizes)
    scale = choose_scale(unit, [max(sizes, default=0) / (10 if wide else 1)])
    return _different([tick / scale.factor for tick in ticks]), scale.label


def _different(values: Sequence[float]) -> list[str]:
    """Labels with as many digits as it takes to tell neighbours apart."""
    labels = [_bare(value) for value in values]
    if len(set(labels)) == len(labels):
        return labels
    apart = min(abs(b - a) for a, b in pairwise(values)) or 1.0
    decimals = max(0, math.ceil(-math.log10(apart)))
    return [f"{value:,.{decimals}f}" for value in values]


def _bare(value: float) -> str:
    """'0.5', '20', '1,000': without trailing zeros."""
    rounded = float(f"{value:.6g}")
    if rounded.is_integer() and abs(rounded) < 1e6:
        return f"{rounded:,.0f}"
    text = format_plain(rounded)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
