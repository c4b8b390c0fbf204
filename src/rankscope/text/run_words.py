"""How commands name a run: with its path in place of RUN, as words of a shell. Standard library only."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rankscope.records import dataclass
from rankscope.text.visible_text import visible

_PLACEHOLDER = re.compile(r"(?<=rankscope )([a-z]+) (RUN|BASE|NEW)\b")
_WINDOWED = ("stats", "whatif", "report")
"""Commands that take --steps and --window."""


@dataclass(frozen=True)
class RunWords:
    """How commands name a run."""

    paths: tuple[str, ...]
    """As the user typed it."""
    window: tuple[str, ...] = ()
    """'--steps', '3:5' or '--window', 'file', where figures are for that."""

    def __str__(self) -> str:
        return shell_words((*self.paths, *self.window))


Runs = Mapping[str, RunWords]
"""By RUN, BASE or NEW."""


def named(command: Sequence[str], runs: Runs) -> tuple[str, ...]:
    """The words of a command with the paths of the runs."""
    words: list[str] = []
    for word in command:
        if run := runs.get(word):
            words += [*run.paths, *(run.window if command[1] in _WINDOWED else ())]
        else:
            words.append(word)
    return tuple(words)


def with_paths(text: str, runs: Runs) -> str:
    """The text with the paths of the runs in its commands."""
    return _PLACEHOLDER.sub(lambda match: shell_words(named(["rankscope", *match.groups()], runs)[1:]), text)


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


def short_path(path: Path) -> str:
    """Quoted for a shell; relative to the working directory when it is below that."""
    return shell_word(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
