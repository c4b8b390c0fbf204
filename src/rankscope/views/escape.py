"""Text that goes into HTML or SVG: everything from a trace passes here, and stays text."""

from __future__ import annotations

import html
from collections.abc import Mapping

from rankscope.views.text import clean


def escape(text: object) -> str:
    """Harmless between tags and inside quoted attributes; control characters become U+FFFD."""
    return html.escape(clean(str(text)), quote=True)


def attributes(values: Mapping[str, object]) -> str:
    """' a="1" b="2"', escaped; None leaves one out, underscores become dashes."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for name, value in values.items()
        if value is not None
    )


def _number(value: object) -> object:
    """A tenth of a pixel is enough, and '12' is shorter than '12.0'."""
    return f"{value + 0.0:.1f}".removesuffix(".0") if isinstance(value, float) else value
