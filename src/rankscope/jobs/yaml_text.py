"""Writes YAML, as far as a manifest needs it: maps, lists, text, numbers, booleans.

Text that YAML could read as something else (yes, 1e3, 12:30, a leading *) is quoted, as is any text with special
characters. A property test checks that PyYAML reads back what is written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

Node: TypeAlias = "str | int | bool | Sequence[Node] | Mapping[str, Node]"

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./@-]*(:[A-Za-z0-9_./@-]+)*")
_RESERVED = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))
# Characters that YAML does not allow unescaped, or takes for a line break.
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")

# Several lines with one line break at the end: a script, which reads better as it is.
_BLOCK = re.compile(r"[^\s\x00-\x1f][^\x00-\x09\x0b-\x1f]*\n[^\x00-\x09\x0b-\x1f]*[^\x00-\x1f]\n")


def documents(*nodes: Node) -> str:
    """Several documents in one file."""
    return "---\n".join("\n".join(_lines(node)) + "\n" for node in nodes)


def _lines(node: Node) -> list[str]:
    """The lines of a map or list, not indented."""
    if isinstance(node, Mapping):
        return [
            line for key, value in node.items() for line in _entry(f"{_text(key)}:", value, in_list=False)
        ]
    assert isinstance(node, Sequence) and not isinstance(node, str)
    return [line for value in node for line in _entry("-", value, in_list=True)]


def _entry(head: str, value: Node, in_list: bool) -> list[str]:
    if isinstance(value, str) and _BLOCK.fullmatch(value) and not _UNPRINTABLE.search(value):
        return [f"{head} |", *(f"  {line}" if line else "" for line in value[:-1].split("\n"))]
    if isinstance(value, str | int) or not value:
        return [f"{head} {_scalar(value)}"]
    inner = _lines(value)
    if in_list:  # the first line follows the dash
        return [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
    return [head, *(f"  {line}" for line in inner)]


def _scalar(value: Node) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _text(value)
    return "{}" if isinstance(value, Mapping) else "[]"


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)
