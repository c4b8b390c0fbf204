"""PNG from SVG, by resvg: no browser, no network. An extra, because only those who want PNG need it."""

from __future__ import annotations

from pathlib import Path

from rankscope.errors import RankscopeError

_FONT_FOLDERS = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.fonts",
    "~/.local/share/fonts",
    "/Library/Fonts",
)


def to_png(svg: str, zoom: float) -> bytes:
    try:
        from resvg_py import svg_to_bytes
    except ImportError:
        raise RankscopeError(
            "PNG cannot be drawn here",
            why="resvg-py, which turns SVG into PNG, is not installed.",
            hint="pip install 'rankscope[png]', or write .svg or .html, which need nothing.",
        ) from None
    if not _has_fonts():
        raise RankscopeError(
            "PNG cannot be drawn here",
            why="There is no font on this machine: the chart would have no text.",
            hint="Install one (fonts-dejavu-core), or write .svg or .html, which bring none along.",
        )
    return bytes(svg_to_bytes(svg_string=svg, zoom=zoom, sans_serif_family="DejaVu Sans"))


def _has_fonts() -> bool:
    folders = (Path(folder).expanduser() for folder in _FONT_FOLDERS)
    return any(next(folder.rglob("*.[to]tf"), None) for folder in folders if folder.is_dir())
