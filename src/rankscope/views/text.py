"""Text for a terminal: harmless, measured in cells, cut and wrapped to a width."""

from __future__ import annotations

import re

from rankscope.units import display_width, shorten_middle

# What a C++ name starts with before it says anything: 'void at::native::(anonymous namespace)::'.
_QUALIFIERS = re.compile(r"(?:void )?(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)*")


def clean(text: str) -> str:
    """`text` on one line without anything a terminal obeys: names come from traces, and traces from anywhere.

    Escape sequences, bidirectional overrides and lone surrogates (no encoding takes them) become U+FFFD; any kind of
    white space becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def shorten_name(text: str, width: int) -> str:
    """A name in at most `width` cells: without its C++ qualifiers if it must be cut, then without its middle.

    Half the kernels of PyTorch begin with 'void at::native::'; at 28 cells that would be all there is to see.
    """
    if display_width(text) <= width:
        return text
    start = _QUALIFIERS.match(text)
    # A name that is all qualifiers, or room for nothing else, has nothing to gain.
    if not start or not start[0] or start.end() == len(text) or width < 4:
        return shorten_middle(text, width)
    return "…" + shorten_middle(text[start.end() :], width - 1)


def pad(text: str, width: int, right: bool) -> str:
    """`text` in exactly `width` cells, set to the right or to the left."""
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def wrap(text: str, width: int) -> list[str]:
    """Words in lines of at most `width` cells; a word longer than that is broken."""
    lines: list[str] = []
    line = ""
    for word in text.split():
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
    """`text` wrapped behind `first`, the further lines indented as far as `first` is long."""
    indent = display_width(first)
    lines = wrap(text, width - indent)
    return [(first if number == 0 else " " * indent) + line for number, line in enumerate(lines)]
