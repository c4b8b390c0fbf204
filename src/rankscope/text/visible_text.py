"""Untrusted text for a terminal: characters that control it are shown, not obeyed. Standard library only.

File names, names of kernels, error messages of other programs: any of them may hold escape sequences that retitle the
window, hide or overwrite lines, or, with bidirectional overrides, show text in another order.
"""

from __future__ import annotations

import re
from typing import Any, TextIO, cast

# C0 without tab and line feed, DEL, C1, marks and overrides of direction, Unicode's line ends, and surrogates, which
# stand for the bytes of a file name that is not UTF-8 and cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_COLOUR = re.compile(r"(\x1b\[[\d;]{0,20}m)")


def visible(text: str) -> str:
    """`text` with control characters as escapes, such as \\x1b. Tabs and line ends stay."""
    return _CONTROL.sub(lambda match: escaped(match[0]), text)


def visible_or_colour(text: str) -> str:
    """The same, but colours are obeyed."""
    return "".join(part if part.startswith("\x1b[") else visible(part) for part in _COLOUR.split(text))


def escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


class VisibleStream:
    """A text stream whose `write` makes text visible. `unchecked` is the stream itself, for our own colours."""

    def __init__(self, stream: TextIO) -> None:
        self.unchecked = stream

    def write(self, text: str) -> int:
        return self.unchecked.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchecked, name)


def unchecked(stream: TextIO) -> TextIO:
    """The stream for text that holds our own control characters and nothing untrusted."""
    return cast(TextIO, getattr(stream, "unchecked", stream))
