"""Text from traces for display: control characters removed, names shortened, lines wrapped to a width in cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix

from rankscope.text.visible_text import escaped
from rankscope.units import display_width, fitting, middle_cut

Parts = tuple[tuple[int, int], ...]
"""Ranges of characters, in order."""

# Return type and namespaces of a C++ name: 'void at::native::(anonymous namespace)::'.
_QUALIFIERS = re.compile(r"(?:void )?(?:(?:\w+|<unnamed>|\(anonymous namespace\))::)*")
_LINE_NUMBER = re.compile(r"\(\d+\)$")
_LEAST_PART = 8
"""Cells; with less room most of the text would be ellipses."""


def clean(text: str) -> str:
    """`text` on one line, without characters that control a terminal: traces are untrusted.

    Escapes, bidirectional overrides and lone surrogates (which cannot be encoded) are shown, as \\x1b; white space
    of any kind becomes a space.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else escaped(c) for c in text)


def shorten_name(name: str, width: int) -> str:
    """One name in at most `width` cells."""
    return shorten_names([name], width)[0]


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """The names of one column or chart, each in at most `width` cells; different names stay different.

    From a C++ name, qualifiers and parameters are removed first, then the middle: half of PyTorch's kernels begin
    with 'void at::native::' and end with '(int, T2, const T1 *)'. Names that would then look the same are cut so that
    the part where they differ is kept.
    """
    return [_joined(name, parts) for name, parts in zip(names, shown_parts(names, width), strict=True)]


def shown_parts(names: Sequence[str], width: int) -> list[Parts]:
    """For each of `names`, the ranges of characters that `shorten_names` keeps."""
    shortened = {name: _shortened(name, width) for name in dict.fromkeys(names)}
    if width >= _LEAST_PART:
        for alike in _alike(shortened):
            shortened.update(_told_apart(alike, width))
    return [shortened[name] for name in names]


def _joined(text: str, parts: Parts) -> str:
    """The parts, with an ellipsis for each one that is left out."""
    if not parts:
        return ""
    before = "…" if parts[0][0] > 0 else ""
    after = "…" if parts[-1][1] < len(text) else ""
    return before + "…".join(text[begin:end] for begin, end in parts) + after


def _shortened(text: str, width: int) -> Parts:
    if display_width(text) <= width:
        return ((0, len(text)),)
    return _without_middle(text, *_most_telling(text, width))


def _most_telling(text: str, width: int, index: int | None = None) -> tuple[int, int, int]:
    """Start and end of the function's own name, and the room for it beside ellipses; of the whole text where the name
    has too little room, or does not contain the character at `index`."""
    start, end = _own_name(text)
    room = width - (start > 0) - (end < len(text))
    if room < _LEAST_PART or (index is not None and not start <= index < end):
        return 0, len(text), width
    return start, end, room


def _without_middle(text: str, start: int, end: int, width: int) -> Parts:
    if display_width(text[start:end]) <= width:
        return ((start, end),)
    if width <= 0:
        return ()
    left, right = middle_cut(text[start:end], width)
    return (start, start + left), (start + right, end)


def _alike(shortened: Mapping[str, Parts]) -> list[list[str]]:
    """Groups of names that look the same."""
    groups: dict[str, list[str]] = {}
    for name, parts in shortened.items():
        groups.setdefault(_joined(name, parts), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _told_apart(names: list[str], width: int) -> dict[str, Parts]:
    """Show where the common beginning ends; for names that still look the same, where theirs ends."""
    common = len(commonprefix(names))  # noqa: RUF071 - characters, not path components
    shortened = {name: _around(name, common, width) for name in names}
    for alike in _alike(shortened):
        if len(alike) < len(names):
            shortened.update(_told_apart(alike, width))
    return shortened


def _around(text: str, index: int, width: int) -> Parts:
    """Keep what stands at `index`: within the function's own name where it lies there, else in the whole text."""
    start, end, room = _most_telling(text, width, index)
    return tuple((start + a, start + b) for a, b in _beginning_and(text[start:end], index - start, room))


def _beginning_and(text: str, index: int, width: int) -> Parts:
    """The beginning of `text` and what stands at `index`, and the end if it fits."""
    if display_width(text) <= width:
        return ((0, len(text)),)
    left, right = middle_cut(text, width)
    if index < left or index >= right:
        return (0, left), (right, len(text))
    head = fitting(text, width // 4)
    room = width - display_width(text[:head]) - 2
    start = max(head, index - room // 4)
    if display_width(text[start:]) <= room + 1:  # the end fits, without a second ellipsis
        start = len(text) - fitting(text[::-1], room + 1)
        return (0, head), (max(start, head), len(text))
    return (0, head), (start, start + fitting(text[start:], room))


def _own_name(text: str) -> tuple[int, int]:
    """Start and end of a function name with its template arguments; of other names, the whole."""
    match = _QUALIFIERS.match(text)
    start = match.end() if match else 0
    end = _parameters_start(text)
    return (start, end) if start < end else (0, len(text))


def _parameters_start(text: str) -> int:
    """Where '(int, float *)' begins in 'f<x>(int, float *)'; the length of the text if there is none.

    Parameters follow the name directly, so 'Memcpy HtoD (Pageable -> Device)' has none. 'train.py(42)' has a line
    number.
    """
    depth = 0
    if text.endswith(")") and not _LINE_NUMBER.search(text):
        for index in range(len(text) - 1, 0, -1):
            depth += {")": 1, "(": -1}.get(text[index], 0)
            if depth == 0:
                touches = text[index - 1].isalnum() or text[index - 1] in "_>"
                return index if touches else len(text)
    return len(text)


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
