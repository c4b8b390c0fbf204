"""Every view of every sample, exactly as it was when someone last looked at it.

After a change that is meant: RANKSCOPE_UPDATE_GOLDEN=1 python -m pytest tests/views, then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankscope.views import render
from views.samples import BREAKDOWN, KERNELS, OPS, SAMPLES

GOLDEN = Path(__file__).parent / "golden"
SUFFIXES = {"csv": "csv", "json": "json", "markdown": "md"}


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("RANKSCOPE_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SAMPLES)
def test_table(name: str) -> None:
    check(f"{name}.txt", render(SAMPLES[name], "table", 80))


@pytest.mark.parametrize("format", SUFFIXES)
@pytest.mark.parametrize("name", SAMPLES)
def test_format(name: str, format: str) -> None:
    texts = {render(SAMPLES[name], format, width, color) for width in (60, 80) for color in (False, True)}
    assert len(texts) == 1, "only tables heed the width and the colour"
    check(f"{name}.{SUFFIXES[format]}", texts.pop())


@pytest.mark.parametrize("format", ("table", *SUFFIXES))
def test_several(format: str) -> None:
    suffix = SUFFIXES.get(format, "txt")
    check(f"several.{suffix}", render([BREAKDOWN, KERNELS, OPS], format, 80))


def test_color() -> None:
    check("breakdown-color.txt", render(BREAKDOWN, "table", 80, color=True))
