"""Time, bytes, rates and counts: the only place where they are parsed and formatted for people.

A value alone picks its own unit (``format_ns``); a column picks one for all its values (``choose_scale``),
so that a reader compares digits and not units.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal

from rankscope.errors import UsageError
from rankscope.records import dataclass

Steps = tuple[tuple[int, str], ...]

_FLOP_PREFIXES = ((10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"), (1, ""))
# Largest first; the last one is the unit the values are stored in.
_STEPS: dict[str, Steps] = {
    "ns": ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns")),
    # Powers of ten, as NCCL, nsys and disks count: 1 GB = 1e9 bytes.
    "bytes": ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"), (1, "B")),
    "flop": tuple((factor, f"{prefix}FLOP") for factor, prefix in _FLOP_PREFIXES),
    "flop/s": tuple((factor, f"{prefix}FLOP/s") for factor, prefix in _FLOP_PREFIXES),
    "GB/s": ((1, "GB/s"),),
    "MHz": ((1, "MHz"),),
    "W": ((1, "W"),),
    "°C": ((1, "°C"),),
    "percent": ((1, "%"),),
    "count": ((1, ""),),
}
SCALABLE = frozenset(unit for unit, steps in _STEPS.items() if len(steps) > 1)
"""Units with multiples, so that a multiple has to be chosen."""

_SECOND_FACTORS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTE_FACTORS = {"": 1, "b": 1} | {
    prefix + ending: base**power
    for power, prefix in enumerate("kmgt", 1)
    for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
}
_FLOP_FACTORS = {
    prefix.lower() + ending: factor for factor, prefix in _FLOP_PREFIXES for ending in ("f", "flop", "flops")
}
_COUNT_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
# What a 64-bit column can hold; also keeps '1e999999999' from being written out.
_LARGEST = Decimal(2**63 - 1)

# With three decimals a value below a tenth of the unit shows fewer than three significant digits.
READABLE = 0.1
_MAX_DECIMALS = 3
_MAX_DIGITS = 7


@dataclass(frozen=True)
class Scale:
    """How the values of a column are written: divided by `factor`, in `label`, with `decimals` decimals."""

    factor: int
    label: str
    decimals: int

    def format(self, value: float) -> str:
        """The number without its unit. '0' is exactly zero, '0.000' is too small to show."""
        return "0" if not value else _fixed(value / self.factor, self.decimals)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    # '-0.0' is a rounding artefact.
    return text[1:] if text.startswith("-") and not text.strip("-0.,") else text


def _digits_before_point(value: float) -> int:
    return math.floor(math.log10(value)) + 1 if value >= 1 else 1


def _decimals(low: float, high: float) -> int:
    """Decimals, 1 to 3, that give `low` four significant digits and `high` at most seven."""
    wanted = 4 - _digits_before_point(low) if low >= 1 else _MAX_DECIMALS
    return max(1, min(wanted, _MAX_DIGITS - _digits_before_point(high)))


def _sizes(values: Iterable[float]) -> list[float]:
    return sorted(abs(value) for value in values if value and math.isfinite(value))


def choose_scale(unit: str, values: Iterable[float]) -> Scale:
    """One unit for many values: the largest in which their median has three digits, so that one long span does not
    turn a million short ones into 0.000 s."""
    steps = _STEPS[unit]
    sizes = _sizes(values)
    median, largest = (sizes[len(sizes) // 2], sizes[-1]) if sizes else (0, 0)
    fitting_steps = (step for step in steps if largest >= step[0] and median >= READABLE * step[0])
    factor, label = next(fitting_steps, steps[-1])
    return Scale(factor, label, decimals_for(unit, factor, sizes))


def decimals_for(unit: str, factor: int, values: Iterable[float]) -> int:
    """Decimals for `values` shown in `factor` of `unit`: integers get none."""
    if unit == "percent":
        return 1  # as nsys prints it
    sizes = _sizes(values)
    if not sizes or (factor == 1 and all(float(size).is_integer() for size in sizes)):
        return 0
    return _decimals(sizes[len(sizes) // 4] / factor, sizes[-1] / factor)


def _step_of(value: float, steps: Steps, digits: int) -> tuple[int, str]:
    index = next((i for i, (factor, _) in enumerate(steps) if abs(value) >= factor), len(steps) - 1)
    # 999,999.9 ns is '1.000 ms': a value that rounds up to a thousand is shown in the next unit.
    if index and round(abs(value) / steps[index][0], digits) >= steps[index - 1][0] / steps[index][0]:
        index -= 1
    return steps[index]


def _scaled(value: float, steps: Steps, digits: int) -> str:
    if not math.isfinite(value):
        return "-"
    factor, unit = _step_of(value, steps, digits)
    whole = factor == 1 and float(value).is_integer()
    return f"{_fixed(value / factor, 0 if whole else digits)} {unit}"


def format_ns(nanoseconds: float, digits: int = 3) -> str:
    """A duration in the unit that reads best: 1,234,567 ns is '1.235 ms'."""
    return _scaled(nanoseconds, _STEPS["ns"], digits)


def format_together(durations: Sequence[float]) -> list[str]:
    """Durations in one unit, that of the longest, with the decimals that the shortest needs: '8.0 ms', '0.3 ms'."""
    factor, unit = _step_of(max(durations, default=0), _STEPS["ns"], 1)
    if factor == 1 and all(float(duration).is_integer() for duration in durations):
        decimals = 0
    else:
        shortest = min((duration for duration in durations if duration > 0), default=factor)
        decimals = min(max(1, math.ceil(math.log10(factor / shortest))), _MAX_DECIMALS)
    return [f"{_fixed(duration / factor, decimals)} {unit}" for duration in durations]


def format_pair(part_ns: float, whole_ns: float) -> str:
    """A part of a duration, in one unit: '8.0 of 27.9 ms'."""
    part, whole = format_together((part_ns, whole_ns))
    return f"{part.partition(' ')[0]} of {whole}"


def format_bytes(count: float, digits: int = 2) -> str:
    """A size in powers of ten (1 GB = 1e9 bytes), as NCCL uses them."""
    return _scaled(count, _STEPS["bytes"], digits)


def format_rounded(unit: str, value: float) -> str:
    """A value with three significant digits, for a sentence: 11,793,000 ns is '11.8 ms'."""
    if not math.isfinite(value):
        return "-"
    value = float(f"{value:.3g}")  # first, so that 999,600 ns is '1.00 ms'
    steps = _STEPS[unit]
    factor, label = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    whole = factor == 1 and value.is_integer()
    decimals = 0 if whole else max(0, 3 - _digits_before_point(abs(value) / factor))
    return f"{_fixed(value / factor, decimals)} {label}".rstrip()


def format_count(count: float) -> str:
    """A count with thousands separators."""
    return _fixed(count, 0)


def format_plain(value: float) -> str:
    """A number without a unit. Integers are mostly labels (rank, pid), so they get no separators."""
    if isinstance(value, int):
        return str(value)
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3e}"
    if not value or value.is_integer():
        return _fixed(value, 0)
    digits = 3 - math.floor(math.log10(abs(value)))
    return _fixed(value, max(0, digits))


def format_value(unit: str, value: float) -> str:
    """One value with its own unit, for a column without a common unit."""
    if unit == "ns":
        return format_ns(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "":
        return format_plain(value)
    scale = choose_scale(unit, (value,))
    return f"{scale.format(value)} {scale.label}".rstrip()


def _parse(text: str, factors: dict[str, int], what: str, hint: str) -> Decimal:
    match = re.fullmatch(r"\s*([0-9.]+(?:e\+?[0-9]+)?)\s*([a-z]*)\s*", text.lower(), re.ASCII)
    if not match or match[2] not in factors:
        raise UsageError(f"'{text}' is not {what}", hint=hint)
    try:
        # Decimal and not float: 9007199254740993 must stay exact.
        value = Decimal(match[1]) * factors[match[2]]
    except ArithmeticError:  # '1.2.3', or an exponent too large for Decimal
        raise UsageError(f"'{text}' is not {what}", hint=hint) from None
    if value > _LARGEST:
        raise UsageError(f"'{text}' is too large", why="It does not fit into 64 bits.", hint=hint)
    return value


def parse_bytes(text: str) -> int:
    """'2GB', '512 MiB', '1e6' as bytes."""
    return int(_parse(text, _BYTE_FACTORS, "a size", "Write it like 2GB, 512MiB or 1000000."))


def parse_power_bytes(text: str) -> int:
    """'8', '1K', '64M', '1G' as bytes in powers of two, as in nccl-tests; '1MB' is 1,000,000."""
    powers = {"k": 2**10, "m": 2**20, "g": 2**30}
    return int(_parse(text, {**_BYTE_FACTORS, **powers}, "a size", "Write it like 8, 1K, 64M or 1G."))


def parse_seconds(text: str) -> float:
    """'30s', '500ms', '2min', '1h' or '30' as seconds."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _SECOND_FACTORS:
        raise UsageError(f"'{text}' is not a length of time", hint="Write it like 30s, 500ms, 2min or 1h.")
    return float(match[1]) * _SECOND_FACTORS[match[2]]


def parse_count(text: str) -> int:
    """'1e6', '250k', '2M' or '1000000' as a whole number."""
    hint = "Write it like 1000000, 1e6 or 250k."
    value = _parse(text, _COUNT_FACTORS, "a whole number", hint)
    if value != value.to_integral_value():
        raise UsageError(f"'{text}' is not a whole number", hint=hint)
    return int(value)


def parse_flop_rate(text: str) -> float:
    """'989TF', '989 TFLOP/s' or '9.89e14' as FLOP/s."""
    hint = "Write it like 989TF or 67 TFLOP/s."
    return float(_parse(_without_per_second(text), _FLOP_FACTORS | {"": 1}, "a rate of FLOP/s", hint))


def parse_byte_rate(text: str) -> float:
    """'4.8TB/s', '900 GB/s' or '4.8TB' as bytes/s."""
    hint = "Write it like 4.8TB/s or 900GB/s."
    return float(_parse(_without_per_second(text), _BYTE_FACTORS, "a bandwidth", hint))


def _without_per_second(text: str) -> str:
    return re.sub(r"\s*/\s*s(?:ec)?\s*$", "", text.strip(), flags=re.IGNORECASE)


def parse_percent(text: str) -> float:
    """'3%', '3 %' or '0.5' as a percentage."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%?\s*", text)
    if not match:
        raise UsageError(f"'{text}' is not a percentage", hint="Write it like 3% or 0.5%.")
    return float(match[1])


def display_width(text: str) -> int:
    """Terminal cells that `text` occupies: 2 for wide characters, 0 for combining marks."""
    return len(text) if text.isascii() else sum(map(_cell_width, text))


def _cell_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle out of a long name, to at most `width` terminal cells."""
    if display_width(text) <= width:
        return text
    if width <= 1:
        return "…"[: max(width, 0)]
    left, right = middle_cut(text, width)
    return f"{text[:left]}…{text[right:]}"


def middle_cut(text: str, width: int) -> tuple[int, int]:
    """Where to cut a text wider than `width`: text[:left], an ellipsis and text[right:] fit.

    Both ends distinguish names; the beginning says more, so it gets three fifths.
    """
    end = (width - 1) * 2 // 5
    begin = width - 1 - end
    return fitting(text, begin), len(text) - fitting(text[::-1], end)


def fitting(text: str, width: int) -> int:
    """How many characters from the beginning of `text` fit into `width` cells."""
    if text.isascii():
        return max(0, min(len(text), width))
    used = 0
    for count, char in enumerate(text):
        used += _cell_width(char)
        if used > width:
            return count
    return len(text)
