"""Descriptions and examples of --help, fitted to the width of the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from itertools import groupby

_EXAMPLE = re.compile(r"( +)(\S.*?)(?:  +(\S.*))?$")
_DEEPEST = 20
"""Lines that are indented by more continue an explanation in a column of its own."""


def fitted(text: str, width: int) -> str:
    """Prose is wrapped. What explains an example goes below it where it does not fit beside it, and a command that is
    too long goes on after a backslash."""
    return "\n".join(line for paragraph in text.split("\n\n") for line in (*_paragraph(paragraph, width), ""))


def _paragraph(text: str, width: int) -> Iterator[str]:
    for indented, lines in groupby(text.splitlines(), key=lambda line: line.startswith(" ")):
        if indented:
            for line in lines:
                yield from _example(line, width)
        else:
            yield from wrapped(" ".join(lines), width)


def _example(line: str, width: int) -> list[str]:
    match = _EXAMPLE.match(line)
    if len(line) <= width or match is None:
        return [line]
    indent, command, explanation = match[1], match[2], match[3] or ""
    if len(indent) > _DEEPEST or not re.match(r"\S*(rankscope|torchrun|mpiexec|srun|--)", command):
        return wrapped(f"{command} {explanation}", width, indent[:6])
    *begun, last = wrapped(command, width - 2, indent)
    further = [f"    {line}" for line in [*begun[1:], last]] if begun else [last]
    lines = [f"{line} \\" for line in [*begun[:1], *further[:-1]]] + further[-1:]
    return [*lines, *wrapped(explanation, width, f"{indent}    ")]


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """The words in lines of at most `width` characters."""
    return textwrap.wrap(
        " ".join(text.split()),
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
