"""Colours as CSS variables, light and dark. The palette is that of Okabe and Ito, which is safe for colour blindness.

The viewer uses the same colours for the same things: compute blue, transfer orange, waiting for another rank a pale
orange, idle grey, kernels by their family. Their lightness differs too. static/style.css repeats them (tested).

Charts use `var(--compute)`. In the report the style sheet defines the variables. In SVG files `resolve` replaces them,
because image viewers do not support CSS variables.
"""

from __future__ import annotations

import re

_COLOURS = {
    "bg": ("#ffffff", "#0e1116"),
    "panel": ("#f6f7f9", "#161b22"),
    "line": ("#dfe3e8", "#2b323b"),
    "ink": ("#1b1f24", "#e6edf3"),
    "ink-2": ("#57606a", "#9aa5b1"),
    "ink-3": ("#656d76", "#86919d"),
    "accent": ("#0b62d6", "#6cb0ff"),
    "compute": ("#0072b2", "#3aa0e0"),
    "comm": ("#e69f00", "#f0b429"),
    "wait": ("#f7dfaf", "#66521f"),
    "copy": ("#56b4e9", "#7cc7f2"),
    "idle": ("#eaeef2", "#1d242d"),
    "bubble": ("#98a2ad", "#59636e"),
    "backward": ("#00785a", "#2fc79c"),
    "gemm": ("#0072b2", "#3aa0e0"),
    "attention": ("#009e73", "#2fc79c"),
    "normalisation": ("#cc79a7", "#e39bc4"),
    "elementwise": ("#b9c46a", "#c9d17a"),
    "optimizer": ("#8c564b", "#c08a78"),
    "kernel": ("#8a97a6", "#93a1b1"),
    "on-compute": ("#ffffff", "#06121b"),
    "on-light": ("#1b1f24", "#e6edf3"),
    "bad": ("#c2410c", "#ff8a5c"),
    "warn": ("#96600f", "#e3b341"),
    "ok": ("#15803d", "#56d364"),
    "s1": ("#0072b2", "#4fb0ee"),
    "s2": ("#d55e00", "#ff8a4c"),
    "s3": ("#009e73", "#2fc79c"),
    "s4": ("#b0568c", "#e39bc4"),
    "s5": ("#8a6d00", "#e0c341"),
    "s6": ("#3c8dbc", "#9ad4f5"),
    "s7": ("#57606a", "#9aa5b1"),
}
"""On a light and on a dark background."""
LIGHT, DARK = ({name: pair[theme] for name, pair in _COLOURS.items()} for theme in (0, 1))
THEMES = {"light": LIGHT, "dark": DARK}
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


def style_variables(theme: str) -> str:
    """The declarations for a style sheet: '--bg: #fff; …'."""
    return " ".join(f"--{name}: {colour};" for name, colour in THEMES[theme].items())
