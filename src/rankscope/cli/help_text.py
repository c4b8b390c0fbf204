"""Descriptions and examples of --help, fitted to the width of the terminal."""

from __future__ import annotations

import re
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


def _example(line: str, width: int) -> Iterator[str]:
    match = _EXAMPLE.match(line)
    if len(line) <= width or match is None:
        yield line
        return
    indent, command, explanation = match[1], match[2], match[3] or ""
    if len(indent) > _DEEPEST or not re.match(r"\S*(rankscope|torchrun|mpiexec|srun|--)", command):
        yield from wrapped(f"{command} {explanation}".strip(), width, indent[:6])
        return
    yield from _continued(command, indent, width)
    yield from wrapped(explanation, width, f"{indent}    ")


def wrapped(text: str, width: int, indent: str = "") -> Iterator[str]:
    """The words in lines of at most `width` characters."""
    line = indent
    for word in text.split():
        if line.strip() and len(line) + 1 + len(word) > width:
            yield line
            line = indent
        line = f"{line} {word}" if line.strip() else indent + word
    if line.strip():
        yield line


def _continued(command: str, indent: str, width: int) -> Iterator[str]:
    lines = list(wrapped(command, width - 2, indent))
    for number, line in enumerate(lines):
        further = "    " if number else ""
        yield f"{further}{line} \\" if number < len(lines) - 1 else f"{further}{line}"
