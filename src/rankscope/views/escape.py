"""Escaping for HTML and SVG. All text from traces passes through here."""

from __future__ import annotations

import html
from collections.abc import Mapping

from rankscope.views.text import clean


def escape(text: object) -> str:
    """Safe between tags and inside quoted attributes; control characters are shown, as \\x1b."""
    return html.escape(clean(str(text)), quote=True)


def attributes(values: Mapping[str, object]) -> str:
    """' a="1" b="2"', escaped. None omits an attribute; underscores become dashes."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in values.items()
        if value is not None
    )


def _number(value: object) -> object:
    """Floats with one decimal, which is a tenth of a pixel; '12' rather than '12.0'."""
    return f"{value + 0.0:.1f}".removesuffix(".0") if isinstance(value, float) else value
