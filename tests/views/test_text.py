from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.units import display_width
from rankscope.views.text import clean, hang, pad, shorten_name, wrap


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("short", 10, "short"),
        ("void at::native::fill<float>(int, T2)", 40, "void at::native::fill<float>(int, T2)"),
        ("void at::native::fill<float>(int, T2)", 20, "…fill<float>…"),
        ("void at::native::(anonymous namespace)::gather<int, long>(int)", 24, "…gather<int, long>…"),
        ("void at::native::<unnamed>::gather<int, long>(int)", 24, "…gather<int, long>…"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args<4096ul>)",
            45,
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL…",
        ),
        ("Memcpy HtoD (Pageable -> Device)", 20, "Memcpy HtoD …Device)"),
        ("aten::convolution_backward", 24, "…convolution_backward"),
        ("some/long/path/train.py(1234)", 20, "some/long/pa…y(1234)"),
        ("at::native::", 8, "at::n…::"),
        ("abcdefghij", 3, "ab…"),
        ("abcdefghij", 0, ""),
    ],
)
def test_shorten_name(name: str, width: int, shown: str) -> None:
    assert shorten_name(name, width) == shown


@given(st.text(), st.integers(0, 60))
def test_shorten_name_never_exceeds_the_width(name: str, width: int) -> None:
    shown = shorten_name(name, width)
    assert display_width(shown) <= width
    assert shown == name or "…" in shown or not width


@given(st.text())
def test_clean_is_printable_and_settled(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned
    assert len(cleaned) == len(text)


@given(st.text().map(clean), st.integers(2, 40))
def test_wrap_loses_no_word(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(display_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(text.split())


def test_hang() -> None:
    assert hang("· ", "one two three", 9) == ["· one two", "  three"]
    assert hang("· ", "", 9) == []


@pytest.mark.parametrize(("text", "cells"), [("abc", 3), ("训练", 4), ("e\u0301", 1), ("…µ─", 3)])
def test_display_width(text: str, cells: int) -> None:
    assert display_width(text) == cells
    assert display_width(pad(text, 8, right=True)) == display_width(pad(text, 8, right=False)) == 8
