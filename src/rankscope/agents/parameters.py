"""The parameters of tools: their JSON schema, and arguments checked against it with errors in three parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.text.spelling import did_you_mean

Kind = Literal["string", "integer", "boolean", "strings", "ranks"]
_LONGEST = 20_000
"""Characters of a text: SQL may be long."""
_MOST_ITEMS = 64
_LARGEST = 2**62
_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "strings": "a list of texts",
    "ranks": "a list of ranks",
}


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: Kind
    help: str
    required: bool = False
    choices: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        if self.kind in ("strings", "ranks"):
            item = {"type": ["integer", "string"] if self.kind == "ranks" else "string"}
            return {"type": "array", "items": item, "description": self.help}
        enum = {"enum": list(self.choices)} if self.choices else {}
        return {"type": self.kind, "description": self.help, **enum}

    def checked(self, value: Any) -> Any:
        if not self._fits(value):
            raise UsageError(
                f"{self.name} must be {_WORDS[self.kind]}",
                why=f"It is {type(value).__name__}: {str(value)[:80]!r}.",
                hint=f"{self.name}: {self.help}",
            )
        if self.choices and value not in self.choices:
            raise UsageError(
                f"{self.name} cannot be '{value[:80]}'",
                why=f"It can be: {', '.join(self.choices)}.",
                hint=f"{did_you_mean(value[:80], self.choices)}list_definitions lists the reports.",
            )
        return value

    def _fits(self, value: Any) -> bool:
        if self.kind == "string":
            return isinstance(value, str) and len(value) <= _LONGEST
        if self.kind == "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
        if self.kind == "boolean":
            return isinstance(value, bool)
        items = (int, str) if self.kind == "ranks" else str
        fits = isinstance(value, list) and all(isinstance(item, items) for item in value)
        return fits and len(value) <= _MOST_ITEMS and len(str(value)) <= _LONGEST


def schema_of(parameters: Sequence[Parameter]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {parameter.name: parameter.schema() for parameter in parameters},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def checked_arguments(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, if they fit. Null counts as not given."""
    given = {name: value for name, value in given.items() if value is not None}
    by_name = {parameter.name: parameter for parameter in parameters}
    for name in given:
        if name not in by_name:
            raise UsageError(
                f"there is no argument '{name[:80]}'",
                why=f"The arguments are: {', '.join(by_name)}.",
                hint=did_you_mean(name[:80], by_name).strip() or "Leave it out.",
            )
    for name, parameter in by_name.items():
        if parameter.required and name not in given:
            raise UsageError(f"{name} is missing", why="The tool needs it.", hint=f"{name}: {parameter.help}")
    return {name: by_name[name].checked(value) for name, value in given.items()}
