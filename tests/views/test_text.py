from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.units import display_width
from rankscope.views.text import clean, hang, pad, wrap


@given(st.text())
def test_clean_is_printable_and_settled(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned


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
