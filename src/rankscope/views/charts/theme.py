"""Colours in SVG: `var(--compute)` in charts. A page defines the variables; in files `resolve` replaces them, as image
viewers do not support CSS variables.
"""

from __future__ import annotations

import re

from rankscope.text.colours import THEMES

SERIES = tuple(f"s{number}" for number in range(1, 8))
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="var(--idle)"/><rect width="2" height="6" fill="var(--bubble)"/></pattern></defs>'
)
"""What a bubble is filled with: it is told from idle time and from waiting without colour too."""


def var(name: str) -> str:
    return f"var(--{name})"


def fill(name: str) -> str:
    """As a colour of a surface."""
    return "url(#hatch)" if name == "bubble" else var(name)


def resolve(svg: str, theme: str) -> str:
    """Replace the variables by the colours of a theme."""
    colours = THEMES[theme]
    return re.sub(r"var\(--([a-z0-9-]+)\)", lambda match: colours[match[1]], svg)
