"""Text for a terminal: harmless, measured in cells, cut and wrapped to a width."""

from __future__ import annotations

import re

from rankscope.units import display_width, shorten_middle

# What a C++ name starts with before it says anything: 'void at::native::(anonymous namespace)::'.
_QUALIFIERS = re.compile(r"(?:void )?(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)*")
_LINE_NUMBER = re.compile(r"\(\d+\)$")
_LEAST_TELLING = 8  # with less room than this the marks would be most of what is left


def clean(text: str) -> str:
    """`text` on one line without anything a terminal obeys: names come from traces, and traces from anywhere.

    Escapes, bidirectional overrides and lone surrogates (no encoding takes them) become U+FFFD; white space
    of any kind becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)


def shorten_name(text: str, width: int) -> str:
    """A name in at most `width` cells. One that must be cut loses what tells C++ names least apart first.

    Half of PyTorch's kernels begin with 'void at::native::' and end with '(int, T2, const T1 *)'; at 28 cells
    that would be all there is to see. So: qualifiers and parameters go, then the middle.
    """
    if display_width(text) <= width:
        return text
    start, end = _telling_part(text)
    before, after = "…" if start else "", "…" if end < len(text) else ""
    room = width - len(before) - len(after)
    if room < _LEAST_TELLING:
        return shorten_middle(text, width)
    return before + shorten_middle(text[start:end], room) + after


def _telling_part(text: str) -> tuple[int, int]:
    """Where a function's own name with its template arguments starts and ends; all of any other name."""
    match = _QUALIFIERS.match(text)
    start = match.end() if match else 0
    end = _parameters_start(text)
    return (start, end) if start < end else (0, len(text))


def _parameters_start(text: str) -> int:
    """Where '(int, float *)' begins in 'f<x>(int, float *)'; the end where there are none.

    'Memcpy HtoD (Pageable -> Device)' has none: parameters touch the name. 'train.py(42)' has a line number.
    """
    depth = 0
    if text.endswith(")") and not _LINE_NUMBER.search(text):
        for index in range(len(text) - 1, 0, -1):
            depth += {")": 1, "(": -1}.get(text[index], 0)
            if depth == 0:
                touches = text[index - 1].isalnum() or text[index - 1] in "_>"
                return index if touches else len(text)
    return len(text)


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
