"""Text from traces for display: control characters removed, lines wrapped to a width in cells."""

from __future__ import annotations

import re

from rankscope.text.visible_text import escaped
from rankscope.units import display_width


def clean(text: str) -> str:
    """`text` on one line, without characters that control a terminal: traces are untrusted.

    Escapes, bidirectional overrides and lone surrogates (which cannot be encoded) are shown, as \\x1b; white space
    of any kind becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else escaped(c) for c in text)


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def pad(text: str, width: int, right: bool) -> str:
    """`text` in exactly `width` cells, aligned to the right or to the left."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space


_SPACE = re.compile(r"\s+(?!%)")


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells; longer words are broken. A number and its percent sign stay together."""
    lines: list[str] = []
    line = ""
    for word in _SPACE.split(text.strip()):
        if line and display_width(line) + 1 + display_width(word) <= width:
            line = f"{line} {word}"
            continue
        if line:
            lines.append(line)
        *whole, line = _pieces(word, width)
        lines += whole
    return [*lines, line] if line else lines


def _pieces(word: str, width: int) -> list[str]:
    pieces = [""]
    for char in word:
        if pieces[-1] and display_width(pieces[-1] + char) > width:
            pieces.append("")
        pieces[-1] += char
    return pieces


def hang(first: str, text: str, width: int) -> list[str]:
    """`text` wrapped after `first`, with further lines indented by the width of `first`."""
    indent = display_width(first)
    lines = wrap(text, width - indent)
    return [(first if number == 0 else " " * indent) + line for number, line in enumerate(lines)]
