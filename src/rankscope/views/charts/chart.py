"""A chart that is drawn: SVG for a page or a file, PNG, HTML; shown by itself in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import UsageError
from rankscope.views.charts.png import to_png
from rankscope.views.charts.theme import FONT, resolve, style_variables, var
from rankscope.views.escape import escape

_TITLE_HEIGHT = 46
FILE_TYPES = (".svg", ".png", ".html")


@dataclass(frozen=True)
class Chart:
    """The drawing, and what to call it."""

    name: str
    title: str
    subtitle: str
    """What it speaks of: the window, what is drawn, what was left out."""
    width: float
    height: float
    body: str
    """SVG shapes; colours are variables."""

    def inline(self) -> str:
        """For a page that has the variables and a heading of its own."""
        return (
            f'<svg class="chart" viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" '
            f'aria-label="{escape(f"{self.title}. {self.subtitle}")}" font-size="11">'
            f"{self._own_ids()}</svg>"
        )

    def svg(self, theme: str = "light") -> str:
        """A file of its own, with its title."""
        return resolve(self._titled(), theme)

    def html(self) -> str:
        """A page of its own, light or dark as the reader's system is."""
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
        return to_png(self.svg(theme), zoom)

    def save(self, path: str | Path, theme: str = "light") -> Path:
        """Write the file; its ending says as what."""
        target = Path(path)
        target.write_bytes(self.content(target.suffix, theme))
        return target

    def content(self, ending: str, theme: str = "light") -> bytes:
        """The bytes of a file with this ending."""
        if ending == ".svg":
            return (self.svg(theme) + "\n").encode()
        if ending == ".html":
            return self.html().encode()
        if ending == ".png":
            return self.png(theme)
        raise UsageError(
            f"'{ending}' is not a kind of chart file",
            why="The ending of the name says what is written.",
            hint=f"Use one of {', '.join(FILE_TYPES)}.",
        )

    def _own_ids(self) -> str:
        """Several charts on one page must not share an id."""
        mine = f"stripes-{self.name}"
        return self.body.replace('id="stripes"', f'id="{mine}"').replace("url(#stripes)", f"url(#{mine})")

    def _repr_svg_(self) -> str:
        """How Jupyter shows it."""
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
