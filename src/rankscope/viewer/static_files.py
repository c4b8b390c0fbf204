"""The files of the page, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from rankscope.text.colours import style_variables

_CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


@cache
def static_files() -> dict[str, tuple[bytes, str]]:
    """Content and type; names are relative to the folder: js/main.js."""
    contents: dict[str, tuple[bytes, str]] = {}

    def add(folder: Any, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                add(entry, f"{prefix}{entry.name}/")
            elif kind := _CONTENT_TYPES.get("." + entry.name.rpartition(".")[2]):
                contents[prefix + entry.name] = (entry.read_bytes(), kind)

    add(files("rankscope.viewer") / "static", "")
    colours = (
        f":root {{ color-scheme: light; {style_variables('light')} }}\n"
        f':root[data-theme="dark"] {{ color-scheme: dark; {style_variables("dark")} }}\n'
    )
    style, kind = contents["style.css"]
    contents["style.css"] = colours.encode() + style, kind
    return contents
