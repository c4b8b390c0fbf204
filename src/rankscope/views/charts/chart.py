"""A finished chart, as inline SVG for a page or as an SVG, PNG or HTML file. Jupyter displays it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.analysis.core.result import Result
from rankscope.errors import RankscopeError, UsageError
from rankscope.text.colours import style_variables
from rankscope.views.charts.theme import FONT, resolve, var
from rankscope.views.html import escape

_TITLE_HEIGHT = 46
_NO_PNG = "cannot draw PNG on this machine"
FILE_TYPES = (".svg", ".png", ".html")
_FONT_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.fonts",
    "~/.local/share/fonts",
    "/Library/Fonts",
)


class NothingToDrawError(RankscopeError):
    """The result has no rows, or none with the values that the chart needs."""


def nothing_to_draw(result: Result, what: str = "has no rows") -> NothingToDrawError:
    """The error for `result`; its notes are the reason."""
    why = " ".join(f"{note[0].upper()}{note[1:]}." for note in result.notes if note)
    return NothingToDrawError(
        f"there is nothing to draw: '{result.name}' {what}",
        why=why or "The run contains no such data.",
        hint="All tables of the run: rankscope stats RUN -r all",
    )


@dataclass(frozen=True)
class Chart:
    """A drawing with its title."""

    name: str
    title: str
    subtitle: str
    """The window, what is drawn, and what is left out."""
    width: float
    height: float
    body: str = field(repr=False)
    """SVG shapes; colours are CSS variables."""

    def inline(self, style: str = "chart") -> str:
        """For a page that defines the CSS variables and has its own heading; `style` is a class of its style sheet."""
        return (
            f'<svg class="{style}" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f'aria-label="{escape(f"{self.title}. {self.subtitle}")}" font-size="11">'
            f"{self.body}</svg>"
        )

    def svg(self, theme: str = "light") -> str:
        """A complete SVG file, with its title."""
        return resolve(self._titled(), theme)

    def html(self) -> str:
        """A complete HTML page that follows the light or dark setting of the system."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            "style-src 'unsafe-inline'\">"
            f"<title>{escape(self.title)}</title><style>:root {{ {style_variables('light')} }} "
            f"@media (prefers-color-scheme: dark) {{ :root {{ {style_variables('dark')} }} }} "
            "body { margin: 16px; background: var(--bg) } svg { max-width: 100%; height: auto }</style></head>"
            f"<body>{self._titled()}</body></html>\n"
        )

    def png(self, theme: str = "light", zoom: float = 2.0) -> bytes:
        return _to_png(self.svg(theme), zoom)

    def save(self, path: str | Path, theme: str = "light") -> Path:
        """Write the chart to a file; the suffix selects the format."""
        target = Path(path)
        target.write_bytes(self.content(target.suffix, theme))
        return target

    def content(self, ending: str, theme: str = "light") -> bytes:
        """The content of a file with this suffix."""
        if ending == ".svg":
            return (self.svg(theme) + "\n").encode()
        if ending == ".html":
            return self.html().encode()
        if ending == ".png":
            return self.png(theme)
        raise UsageError(
            f"cannot write a chart as '{ending}'",
            why="The suffix of the file name selects the format.",
            hint=f"Use one of {', '.join(FILE_TYPES)}.",
        )

    def _repr_svg_(self) -> str:
        """Called by Jupyter."""
        return self.svg()

    def _titled(self) -> str:
        width, height = round(self.width), round(self.height + _TITLE_HEIGHT)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" aria-label="{escape(self.title)}" font-family="{escape(FONT)}" font-size="11">'
            f'<rect width="{width}" height="{height}" fill="{var("bg")}"/>'
            f'<text x="10" y="20" font-size="15" font-weight="600" fill="{var("ink")}">{escape(self.title)}</text>'
            f'<text x="10" y="37" fill="{var("ink-2")}">{escape(self.subtitle)}</text>'
            f'<g transform="translate(0 {_TITLE_HEIGHT})">{self.body}</g></svg>'
        )


def _to_png(svg: str, zoom: float) -> bytes:
    """By resvg, which needs no browser. It is an extra, since SVG and HTML do not need it."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        why = "resvg-py, which turns SVG into PNG, is not installed."
        hint = "pip install 'rankscope[png]', or write .svg or .html."
        raise RankscopeError(_NO_PNG, why=why, hint=hint) from None
    folders = (Path(os.path.expanduser(folder)) for folder in _FONT_FOLDERS)  # noqa: PTH111
    if not any(next(folder.rglob("*.[to]tf"), None) for folder in folders if folder.is_dir()):
        why = "This machine has no fonts: the chart would have no text."
        hint = "Install one (fonts-dejavu-core), or write .svg or .html."
        raise RankscopeError(_NO_PNG, why=why, hint=hint)
    return bytes(svg_to_bytes(svg_string=svg, zoom=zoom, sans_serif_family="DejaVu Sans"))
