"""The definitions of a report's figures as plain paragraphs: its page of docs/reports without markup."""

from __future__ import annotations

import re
from html import unescape

from rankscope.views.report.definitions import definition

_BLOCK_ENDS = re.compile(r"</(?:p|li|tr|pre|h\d)>")
_CELL = re.compile(r"</t[dh]>\s*<t[dh][^>]*>")
_TAG = re.compile(r"<[^>]+>")
_LONGEST = 200


def definition_paragraphs(report: str) -> list[str]:
    """In pieces that fit into a cell of an answer."""
    blocks = _BLOCK_ENDS.split(definition(report))
    texts = (unescape(_TAG.sub("", _CELL.sub(": ", block))) for block in blocks)
    return [piece for text in texts if text.strip() for piece in _pieces(" ".join(text.split()))]


def _pieces(text: str) -> list[str]:
    """Cut between words."""
    pieces = [""]
    for word in text.split(" "):
        if len(pieces[-1]) + len(word) >= _LONGEST and pieces[-1]:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {word}".strip()
    return pieces
