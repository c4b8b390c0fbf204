"""Colours as CSS variables, light and dark. The palette is that of Okabe and Ito, which is safe for colour blindness.

The viewer uses the same colours for the same things: compute blue, transfer orange, waiting for another rank a pale
orange, idle grey. Their lightness differs too.

Charts use `var(--compute)`. In the report the style sheet defines the variables. In SVG files `resolve` replaces them,
because image viewers do not support CSS variables.
"""

from __future__ import annotations

import re

LIGHT = {
    "bg": "#ffffff",
    "panel": "#f6f7f9",
    "line": "#dfe3e8",
    "ink": "#1b1f24",
    "ink-2": "#57606a",
    "ink-3": "#656d76",
    "accent": "#0b62d6",
    "compute": "#0072b2",
    "comm": "#e69f00",
    "wait": "#f7dfaf",
    "copy": "#56b4e9",
    "idle": "#eaeef2",
    "on-compute": "#ffffff",
    "bad": "#c2410c",
    "warn": "#96600f",
    "ok": "#15803d",
    "s1": "#0072b2",
    "s2": "#d55e00",
    "s3": "#009e73",
    "s4": "#b0568c",
    "s5": "#8a6d00",
    "s6": "#3c8dbc",
    "s7": "#57606a",
}
DARK = {
    "bg": "#0e1116",
    "panel": "#161b22",
    "line": "#2b323b",
    "ink": "#e6edf3",
    "ink-2": "#9aa5b1",
    "ink-3": "#86919d",
    "accent": "#6cb0ff",
    "compute": "#3aa0e0",
    "comm": "#f0b429",
    "wait": "#66521f",
    "copy": "#7cc7f2",
    "idle": "#1d242d",
    "on-compute": "#06121b",
    "bad": "#ff8a5c",
    "warn": "#e3b341",
    "ok": "#56d364",
    "s1": "#4fb0ee",
    "s2": "#ff8a4c",
    "s3": "#2fc79c",
    "s4": "#e39bc4",
    "s5": "#e0c341",
    "s6": "#9ad4f5",
    "s7": "#9aa5b1",
}
THEMES = {"light": LIGHT, "dark": DARK}
SERIES = tuple(f"s{number}" for number in range(1, 8))
FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def var(name: str) -> str:
    return f"var(--{name})"


def resolve(svg: str, theme: str) -> str:
    """Replace the variables by the colours of a theme."""
    colours = THEMES[theme]
    return re.sub(r"var\(--([a-z0-9-]+)\)", lambda match: colours[match[1]], svg)


def style_variables(theme: str) -> str:
    """The declarations for a style sheet: '--bg: #fff; …'."""
    return " ".join(f"--{name}: {colour};" for name, colour in THEMES[theme].items())
