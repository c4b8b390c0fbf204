"""The tests of a script: [ … ], [[ … ]], test, (( … ))."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from rankscope.capture.bash.guards import ALWAYS, EVERY, NEVER, Guard, both, either, opposite
from rankscope.capture.bash.words import MARK, RANK_FIELDS, Variables, source_of


def condition(words: Sequence[str], variables: Variables) -> Guard | None:
    """That of a test command; None where it is none."""
    if words and words[0].startswith("(("):
        return _arithmetic(words[0][2:].removesuffix("))").strip(), variables)
    if not words or words[0] not in ("[", "[[", "test"):
        return None
    inner = list(words[1:] if words[0] == "test" else words[1:-1])
    return _alternatives(inner, variables)


def _alternatives(words: list[str], variables: Variables) -> Guard:
    for operators, join in ((("||", "-o"), either), (("&&", "-a"), both)):
        for index, word in enumerate(words):
            if word in operators:
                before, after = words[:index], words[index + 1 :]
                return join(_alternatives(before, variables), _alternatives(after, variables))
    if words[:1] == ["!"]:
        return opposite(_alternatives(words[1:], variables))
    if len(words) == 2 and words[0] in ("-z", "-n"):
        return _is_set(words[0], variables.text(words[1]))
    if len(words) == 3:
        return compared(variables.text(words[0]), words[1], variables.text(words[2]))
    return Guard(unknown=(" ".join(words),))


def _is_set(sign: str, value: str) -> Guard:
    """Whether a variable is empty. A launcher's rank is set wherever the script is used."""
    if not MARK.search(value):
        return ALWAYS if (sign == "-z") == (not value) else NEVER
    if _field(value):
        return NEVER if sign == "-z" else ALWAYS
    return Guard(unknown=(f"{sign} {source_of(value)}",))


def _arithmetic(text: str, variables: Variables) -> Guard:
    match = re.fullmatch(r"\$?\{?(\w+)\}?\s*(==|!=|<=|>=|<|>)\s*\$?\{?(\w+)\}?", text)
    if match is None:
        return Guard(unknown=(f"(({text}))",))
    left, right = (name if name.isdecimal() else variables.text(f"${name}") for name in (match[1], match[3]))
    return compared(left, match[2], right)


_COMPARISONS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    **dict.fromkeys(("-eq", "=", "=="), (operator.eq, "==")),
    **dict.fromkeys(("-ne", "!="), (operator.ne, "!=")),
    **dict.fromkeys(("-lt", "<"), (operator.lt, ">")),
    **dict.fromkeys(("-le", "<="), (operator.le, ">=")),
    **dict.fromkeys(("-gt", ">"), (operator.gt, "<")),
    **dict.fromkeys(("-ge", ">="), (operator.ge, "<=")),
}
"""By operator: what it means, and the operator with its sides exchanged."""


def compared(left: str, sign: str, right: str) -> Guard:
    unknown = Guard(unknown=(source_of(f"{left} {sign} {right}"),))
    if sign not in _COMPARISONS:
        return unknown
    meaning, exchanged = _COMPARISONS[sign]
    if _field(right) and not MARK.search(left):
        left, right = right, left
        meaning, _ = _COMPARISONS[exchanged]
    field = _field(left)
    if MARK.search(right) or (field is None and MARK.search(left)):
        return unknown
    if field is None:
        numbers = [int(text) if text.isdecimal() else text for text in (left, right)]
        comparable = type(numbers[0]) is type(numbers[1])
        return ALWAYS if meaning(*(numbers if comparable else (left, right))) else NEVER
    if not right.isdecimal():  # a rank is never ALL
        return ALWAYS if sign == "!=" else NEVER
    selected = frozenset(number for number in EVERY if meaning(number, int(right)))
    return Guard({field: selected}) if selected else NEVER


def _field(value: str) -> str | None:
    """The field of an Identity that a value is, where it is one launcher variable and nothing else."""
    match = MARK.fullmatch(value)
    name = re.fullmatch(r"\$(\w+)", match[1]) if match else None
    return RANK_FIELDS.get(name[1]) if name else None
