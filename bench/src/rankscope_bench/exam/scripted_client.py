"""An assistant without a model: it looks its question up in the guide, calls the tool and reads the field.

It knows the guide, the tools and nothing else: neither the truth of a case nor its files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.agents.guide import guide_text

Call = Callable[[str, Mapping[str, Any]], dict[str, Any]]
"""A tool by its name and arguments: of a server, or in this process."""
_ROW = re.compile(
    r"\| (?P<question>[^|]+\?) \| `(?P<tool>[^|]+)` \| `(?P<command>[^|]+)` \| (?P<read>[^|]+) \|"
)
_PART = re.compile(r"(\w+)|\[(\d+)\]|\[([a-z_]+)\]")


@dataclass(frozen=True)
class Advice:
    """One line of the guide's table."""

    question: str
    tool: str
    """'report(name="mfu")'."""
    command: str
    """The same on the command line."""
    read: tuple[str, ...]
    """Where the answer is in the object."""


def guide_table() -> list[Advice]:
    """The lines of the guide's table, in order."""
    rows = (_ROW.fullmatch(line) for line in guide_text().splitlines())
    return [
        Advice(row["question"], row["tool"], row["command"], tuple(re.findall(r"`([^`]+)`", row["read"])))
        for row in rows
        if row
    ]


@dataclass(frozen=True)
class Reply:
    """What the client says."""

    outcome: str
    values: tuple[Any, ...]
    """Of the fields that the guide names; None where one is not there."""
    size: int
    """Bytes that it had to read."""


def ask(call: Call, question: str, size_of: Callable[[Mapping[str, Any]], int], **arguments: Any) -> Reply:
    """Answer a question of the guide's table. `arguments` say which run it is about."""
    row = next(row for row in guide_table() if row.question == question)
    name, given = call_of(row.tool)
    answer = call(name, {**given, **arguments})
    return Reply(answer["outcome"], tuple(read(answer, path) for path in row.read), size_of(answer))


def call_of(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of 'report(name="mfu")'."""
    tree = ast.parse(re.sub(r"=(true|false)\b", lambda match: f"={match[1].title()}", text), mode="eval").body
    assert isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)
    return tree.func.id, {word.arg: ast.literal_eval(word.value) for word in tree.keywords if word.arg}


def read(answer: Mapping[str, Any], path: str) -> Any:
    """The value at 'findings[0].facts[cause]'; None where there is none. A word in brackets is a fact's quantity."""
    value: Any = answer
    for name, number, quantity in _PART.findall(path):
        if name:
            value = value.get(name) if isinstance(value, Mapping) else None
        elif number:
            value = value[int(number)] if isinstance(value, list) and int(number) < len(value) else None
        else:
            facts = value if isinstance(value, list) else []
            value = next((fact["value"] for fact in facts if fact["quantity"] == quantity), None)
    return value
