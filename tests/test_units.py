from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.errors import UsageError
from rankscope.units import (
    SCALABLE,
    choose_scale,
    display_width,
    format_bytes,
    format_count,
    format_ns,
    format_pair,
    format_plain,
    format_rounded,
    format_together,
    format_value,
    parse_bytes,
    parse_count,
    shorten_middle,
)

FACTORS = {"s": 1e9, "ms": 1e6, "µs": 1e3, "ns": 1, "TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1}
amounts = st.integers(0, 10**18) | st.floats(0, 1e18)


def read(text: str) -> float:
    """What a person reads off '1,234.5 ms'."""
    number, unit = text.split()
    return float(number.replace(",", "")) * FACTORS[unit]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1.5, "1.500 ns"),
        (1000, "1.000 µs"),
        (1_234_567, "1.235 ms"),
        (999_999, "999.999 µs"),
        (999_999.9, "1.000 ms"),
        (999.9999, "1.000 µs"),
        (-2_500_000, "-2.500 ms"),
        (3_600_000_000_000, "3,600.000 s"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_format_ns(value: float, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1, "1 B"), (1500, "1.50 kB"), (2e9, "2.00 GB"), (999_999, "1.00 MB")]
)
def test_format_bytes(value: float, text: str) -> None:
    assert format_bytes(value) == text


def test_small_formats() -> None:
    assert format_count(1_234_567) == "1,234,567"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345, "12345"),
        (0.0, "0"),
        (12345.0, "12,345"),
        (12345.6, "12,346"),
        (123.456, "123.5"),
        (0.03125, "0.03125"),
        (0.0000123, "1.230e-05"),
        (1e20, "1.000e+20"),
        (-2.5, "-2.500"),
    ],
)
def test_format_plain(value: float, text: str) -> None:
    assert format_plain(value) == text


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("ns", 0, "0 ns"),
        ("ns", 512, "512 ns"),
        ("ns", 1.5, "1.50 ns"),
        ("ns", 11_793_000, "11.8 ms"),
        ("ns", -11_793_000, "-11.8 ms"),
        ("ns", 999_600, "1.00 ms"),
        ("ns", 12_345 * 10**9, "12,300 s"),
        ("bytes", 564_580_000, "565 MB"),
        ("flop/s", 989e12, "989 TFLOP/s"),
        ("count", 1234, "1,230"),
        ("ns", math.inf, "-"),
    ],
)
def test_format_rounded(unit: str, value: float, text: str) -> None:
    assert format_rounded(unit, value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (8_000_000, 27_900_000, "8.0 of 27.9 ms"),
        (310_000, 27_900_000, "0.3 of 27.9 ms"),
        (30_000_000, 1_200_000_000, "0.03 of 1.20 s"),
        (400_000, 999_990, "0.4 of 1.0 ms"),
        (12, 30, "12 of 30 ns"),
        (0, 27_900_000, "0.0 of 27.9 ms"),
    ],
)
def test_format_pair(part: float, whole: float, text: str) -> None:
    assert format_pair(part, whole) == text


@given(st.lists(st.integers(1, 10**12), min_size=1))
def test_durations_in_one_unit_keep_their_order(durations: list[int]) -> None:
    texts = format_together(durations)
    assert len({text.partition(" ")[2] for text in texts}) == 1
    shown = [read(text) for text in texts]
    assert sorted(shown) == [value for _, value in sorted(zip(durations, shown, strict=True))]
    assert max(shown) == pytest.approx(max(durations), rel=0.06)


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("ns", 1_234_567, "1.235 ms"),
        ("bytes", 1500, "1.50 kB"),
        ("", 7, "7"),
        ("count", 1234, "1,234"),
        ("percent", 12.34, "12.3 %"),
        ("GB/s", 123.45, "123.5 GB/s"),
        ("flop", 4.2e14, "420.0 TFLOP"),
        ("flop/s", 1.5e12, "1.500 TFLOP/s"),
    ],
)
def test_format_value(unit: str, value: float, text: str) -> None:
    assert format_value(unit, value) == text


@pytest.mark.parametrize("format", [format_ns, format_bytes])
@given(first=amounts, second=amounts)
def test_formats_keep_the_order(format: object, first: float, second: float) -> None:
    assert callable(format)
    low, high = sorted((first, second))
    assert read(format(low)) <= read(format(high))
    assert read(format(high)) == pytest.approx(high, rel=0.006, abs=0.006)


@pytest.mark.slow
@given(st.sampled_from(sorted({*SCALABLE, "count", "GB/s", "percent"})), st.lists(amounts, min_size=1))
def test_a_scale_keeps_the_order(unit: str, values: list[float]) -> None:
    scale = choose_scale(unit, values)
    shown = [float(scale.format(value).replace(",", "")) for value in sorted(values)]
    assert shown == sorted(shown)


@given(st.lists(st.integers(1, 10**15), min_size=1))
def test_a_scale_shows_the_median_and_the_largest_value_well(values: list[int]) -> None:
    scale = choose_scale("ns", values)
    median = sorted(values)[len(values) // 2]
    for value in (median, max(values)):
        assert scale.format(value).strip("0.,"), "it reads as zero"
    # In no larger unit: that would be the unit of no value, or leave the median fewer digits.
    assert scale.label == "s" or max(values) < 1000 * scale.factor or median < 100 * scale.factor


@pytest.mark.parametrize(
    ("unit", "values", "label", "texts"),
    [
        ("ns", [], "ns", []),
        ("ns", [0, 0], "ns", ["0", "0"]),
        ("ns", [100, 2.5], "ns", ["100.000", "2.500"]),
        ("ns", [5_000_000, 0], "ms", ["5.000", "0"]),
        ("ns", [150_000_000, 120_000_000], "ms", ["150.0", "120.0"]),
        ("ns", [202_685_856, 1_109_991, 1_121, 352], "ms", ["202.686", "1.110", "0.001", "0.000"]),
        ("ns", [60_000_000_000, *[2_500] * 3], "µs", ["60,000,000.0", *["2.5"] * 3]),
        ("ns", [2_000_000_000, *[150_000_000] * 3], "s", ["2.000", *["0.150"] * 3]),
        ("bytes", [80_000_000_000, 4_096, 512, 512], "kB", ["80,000,000.0", "4.1", "0.5", "0.5"]),
        ("bytes", [2_000_000_000], "GB", ["2.000"]),
        ("count", [1000, 2], "", ["1,000", "2"]),
        ("count", [12.5, 100], "", ["12.50", "100.00"]),
        ("percent", [100, 0.04, -0.04], "%", ["100.0", "0.0", "0.0"]),
        ("GB/s", [312.25, 450.5], "GB/s", ["312.2", "450.5"]),
    ],
)
def test_choose_scale(unit: str, values: list[float], label: str, texts: list[str]) -> None:
    scale = choose_scale(unit, values)
    assert scale.label == label
    assert [scale.format(value) for value in values] == texts


def test_what_is_not_a_number_does_not_choose() -> None:
    assert choose_scale("ns", [math.nan, math.inf, 2_000.0]).label == "µs"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2GB", 2 * 10**9),
        (" 512 MiB ", 512 * 2**20),
        ("1e6", 10**6),
        ("1e+6", 10**6),
        ("1.5k", 1500),
        ("0", 0),
        ("9007199254740993", 9007199254740993),
        ("0.3B", 0),
    ],
)
def test_parse_bytes(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "GB", "-1", "1.2.3", "2 parsecs", "1e", "nan", "inf", "1e400", "1e999999999999", "٣"]
)
def test_not_a_size(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "value"), [("1e6", 10**6), ("250k", 250_000), ("2M", 2_000_000), ("1.5k", 1500)]
)
def test_parse_count(text: str, value: int) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "1.5", "-3", "1e400", "2GB", "..", "1k5"])
def test_not_a_count(text: str) -> None:
    with pytest.raises(UsageError):
        parse_count(text)


@given(st.integers(0, 2**63 - 1))
def test_whole_numbers_are_parsed_exactly(value: int) -> None:
    assert parse_bytes(str(value)) == parse_count(str(value)) == value


@given(st.integers(0, 10**9))
def test_parse_reads_what_format_writes(value: int) -> None:
    assert parse_bytes(format_bytes(value).replace(",", "")) == pytest.approx(value, rel=0.006)


@given(st.text(), st.integers(-1, 50))
def test_shorten_middle_fits(text: str, width: int) -> None:
    shown = shorten_middle(text, width)
    assert display_width(shown) <= max(width, 0)
    if display_width(text) <= width:
        assert shown == text


@given(st.text("abcdef", min_size=1), st.integers(1, 50))
def test_shorten_middle_uses_all_its_room(text: str, width: int) -> None:
    shown = shorten_middle(text, width)
    assert len(shown) == min(len(text), width)
    if shown != text:
        left, right = shown.split("…")
        assert text.startswith(left)
        assert text.endswith(right)
        assert len(left) >= len(right)


def test_shorten_middle_keeps_wide_characters_whole() -> None:
    assert shorten_middle("训练步骤前向传播", 8) == "训练…播"
