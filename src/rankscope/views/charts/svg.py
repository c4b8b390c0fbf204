"""SVG shapes as text. Colours are names of the theme."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rankscope.views.charts.theme import HATCH, fill, var
from rankscope.views.html import attributes, escape

Floats = NDArray[np.float64]

CHARACTER = 0.62
"""Average width of a character relative to the font size; that of DejaVu Sans, the widest of the fallback fonts."""


def text_width(text: str, size: float = 11) -> float:
    return len(text) * size * CHARACTER


@dataclass
class Drawing:
    """Shapes in the order they are drawn."""

    parts: list[str] = field(default_factory=list)

    def _add(self, tag: str, tip: str | None, **values: object) -> None:
        lines = "\n".join(map(escape, tip.splitlines())) if tip else ""
        body = f"<title>{lines}</title>" if lines else ""
        shape = f"<{tag}{attributes(values)}"
        self.parts.append(f"{shape}>{body}</{tag}>" if body else f"{shape}/>")

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str,
        tip: str | None = None,
        **more: object,
    ) -> None:
        self._add("rect", tip, x=x, y=y, width=max(width, 0.0), height=height, fill=fill(colour), **more)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, **more: object) -> None:
        self._add("line", None, x1=x1, y1=y1, x2=x2, y2=y2, stroke=var(colour), **more)

    def path(self, d: str, colour: str, tip: str | None = None, **more: object) -> None:
        """A filled shape."""
        self._add("path", tip, d=d, fill=fill(colour), **more)

    def polyline(
        self, points: list[tuple[float, float]], colour: str, tip: str | None = None, **more: object
    ) -> None:
        if points:
            listed = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
            self._add("polyline", tip, points=listed, fill="none", stroke=var(colour), **more)

    def mark(
        self, shape: int, x: float, y: float, radius: float, colour: str, tip: str | None = None
    ) -> None:
        """A circle, square, diamond or triangle, so that series can be told apart without colour."""
        more = {"fill": var(colour), "fill_opacity": "0.75", "stroke": var("bg"), "stroke_width": "0.8"}
        r = radius
        if shape % 4 == 0:
            self._add("circle", tip, cx=x, cy=y, r=r, **more)
            return
        outlines = (
            ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
            ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
            ((0, -1.2), (1.1, 0.8), (-1.1, 0.8)),
        )
        points = " ".join(f"{_n(x + dx * r)},{_n(y + dy * r)}" for dx, dy in outlines[shape % 4 - 1])
        self._add("polygon", tip, points=points, **more)

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", colour: str = "ink-2", **more: object
    ) -> None:
        values = {"x": x, "y": y, "text_anchor": None if anchor == "start" else anchor, "fill": var(colour)}
        self.parts.append(f"<text{attributes(values | more)}>{escape(text)}</text>")

    def body(self) -> str:
        shapes = "".join(self.parts)
        return f"{HATCH}{shapes}" if "url(#hatch)" in shapes else shapes


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def step_path(x: Floats, top: Floats, bottom: Floats) -> str:
    """The area between two step functions over the intervals of `x`. Equal neighbours become one rectangle."""
    shown = bottom - top > 0.01
    new = shown.copy()
    new[1:] &= ~(shown[:-1] & (top[1:] == top[:-1]) & (bottom[1:] == bottom[:-1]))
    first = np.flatnonzero(new)
    ends = np.flatnonzero(shown & np.append(new[1:] | ~shown[1:], True))
    return rectangles(x[first], x[ends + 1], top[first], bottom[first])


def rectangles(left: Floats, right: Floats, top: Floats, bottom: Floats) -> str:
    """A path with a rectangle for each row of the arrays."""
    columns = ([_n(value) for value in side.tolist()] for side in (left, right, top, bottom))
    return "".join(f"M{x1} {y1}H{x2}V{y2}H{x1}z" for x1, x2, y1, y2 in zip(*columns, strict=True))
