"""How commands in texts name a run: with its path in place of RUN, as words of a shell. Standard library only."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping

from rankscope.records import dataclass
from rankscope.text.visible_text import visible

_PLACEHOLDER = re.compile(r"(?<=rankscope )([a-z]+) (RUN|BASE|NEW)\b")
_WINDOWED = ("stats", "whatif", "report", "chart")
"""Commands that take --steps and --window."""


@dataclass(frozen=True)
class RunWords:
    """How commands name a run."""

    path: str
    """As the user typed it, quoted for a shell."""
    window: str = ""
    """'--steps 3:5' or '--window file', where figures are for that."""


Runs = Mapping[str, RunWords]
"""By RUN, BASE or NEW."""


def with_paths(text: str, runs: Runs) -> str:
    """The text with the paths of the runs in its commands."""

    def named(match: re.Match[str]) -> str:
        verb, run = match[1], runs.get(match[2])
        if run is None:
            return match[0]
        return " ".join(filter(None, (verb, run.path, run.window if verb in _WINDOWED else "")))

    return _PLACEHOLDER.sub(named, text)


def shell_word(word: object) -> str:
    """A word of a command that can be pasted; control characters are written as escapes in $'...'."""
    text = str(word)
    if visible(text) == text:
        return shlex.quote(text)
    plain = (_plain(byte) for byte in os.fsencode(text))
    return f"$'{''.join(plain)}'"


def _plain(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\x{byte:02x}"


def shell_words(words: Iterable[object]) -> str:
    """Several of them, with spaces between."""
    return " ".join(map(shell_word, words))
