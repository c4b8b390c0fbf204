"""The pages about kinds of findings, for a terminal: those of docs/findings, which a wheel contains."""

from __future__ import annotations

import re
from pathlib import Path

from rankscope.views.text import hang

_PACKAGE = Path(__file__).parents[1]
_BUILT = _PACKAGE / "definitions" / "findings"
"""In a wheel."""
_FOLDER = _BUILT if _BUILT.is_dir() else _PACKAGE.parents[1] / "docs" / "findings"
_LINK = re.compile(r"\[([^]]+)]\([^)]+\)")
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->\n?", re.S)


def page_names() -> list[str]:
    """Of all pages, sorted."""
    return sorted({page.stem for page in _FOLDER.glob("*.md")} - {"index"})


def page_text(name: str, width: int = 80) -> str | None:
    """The page as plain text in lines of this width; None where there is none of that name."""
    if name not in page_names():
        return None
    text = (_FOLDER / f"{name}.md").read_text(encoding="utf-8")
    parts = _FENCE.split(_COMMENT.sub("", text))
    blocks: list[str] = []
    for number, part in enumerate(parts):
        if number % 2:  # what a command prints
            blocks.append(part.rstrip("\n"))
        else:
            blocks += ["\n".join(_lines(block, width)) for block in part.split("\n\n") if block.strip()]
    return "\n\n".join(blocks) + "\n"


def _lines(block: str, width: int) -> list[str]:
    """A heading, a paragraph, or the items of a list."""
    text = re.sub(r"\*\*?([^*]+)\*\*?", r"\1", _LINK.sub(r"\1", block.strip()))
    if text.startswith("#"):
        return [text.lstrip("# ")]
    first, *items = re.split(r"^- ", text, flags=re.M)
    return [*hang("", first, width), *(line for item in items for line in hang("- ", item, width))]
