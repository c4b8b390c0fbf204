"""The parameters of tools: their JSON schema, and arguments checked against it with errors in three parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.text.option_table import option_table
from rankscope.text.spelling import did_you_mean

Kind = Literal["string", "integer", "boolean", "strings"]
_KINDS: dict[str, Kind] = {"store_true": "boolean", "append": "strings"}
"""By the action of an option."""
_LONGEST = 20_000
"""Characters of a text: SQL may be long."""
_MOST_ITEMS = 64
_LARGEST = 2**62
_WORDS = {
    "string": "a text",
    "integer": "a whole number",
    "boolean": "true or false",
    "strings": "a list of texts",
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
        enum = {"enum": list(self.choices)} if self.choices else {}
        if self.kind == "strings":
            return {"type": "array", "items": {"type": "string", **enum}, "description": self.help}
        return {"type": self.kind, "description": self.help, **enum}

    def checked(self, value: Any) -> Any:
        if not self._fits(value):
            raise UsageError(
                f"{self.name} must be {_WORDS[self.kind]}",
                why=f"It is {type(value).__name__}: {str(value)[:80]!r}.",
                hint=f"{self.name}: {self.help}",
            )
        for text in value if self.kind == "strings" else [value]:
            if self.choices and text not in self.choices:
                raise UsageError(
                    f"{self.name} cannot be '{text[:80]}'",
                    why=f"It can be: {', '.join(self.choices)}.",
                    hint=f"{did_you_mean(text[:80], self.choices)}list_definitions lists the reports.",
                )
        return value

    def _fits(self, value: Any) -> bool:
        if self.kind == "string":
            return isinstance(value, str) and len(value) <= _LONGEST
        if self.kind == "integer":
            return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST
        if self.kind == "boolean":
            return isinstance(value, bool)
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return fits and len(value) <= _MOST_ITEMS and len(str(value)) <= _LONGEST


def parameters_of(table: str) -> Iterator[Parameter]:
    """The options of a command line as arguments of a tool."""
    for option in option_table(table):
        settings = option.settings
        kind = _KINDS.get(settings.get("action", ""), "string")
        form = f"{settings['metavar']}: " if "metavar" in settings else ""
        yield Parameter(option.dest, kind, form + settings["help"], choices=(*settings.get("choices", ()),))


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
