"""Options as data, so that several commands can share them with other help texts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Settings = dict[str, Any]
"""Keyword arguments of `add_argument`."""


class Option(NamedTuple):
    names: tuple[str, ...]
    settings: Settings

    @property
    def dest(self) -> str:
        """Its name in the parsed arguments, as argparse derives it."""
        given = self.settings.get("dest")
        if given is not None:
            return str(given)
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return long.lstrip("-").replace("-", "_")


class ValueWithEquals(argparse.Action):
    """An option whose value is written only behind "=": `--stats torchrun …` has none, `--stats=kernels` has one.

    Without a value it is "true". `written_out` must see the words before argparse does.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **{"nargs": "?", "const": "true", **settings})

    def __call__(
        self, _parser: object, namespace: argparse.Namespace, value: Any, _name: object = None
    ) -> None:
        setattr(namespace, self.dest, value)


class OnOff(ValueWithEquals):
    """Such an option with true or false as nsys writes them."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, **{"default": False, "metavar": "=true|false", **settings})

    def __call__(
        self, parser: object, namespace: argparse.Namespace, value: Any, name: object = None
    ) -> None:
        if value not in ("true", "false"):
            raise argparse.ArgumentError(self, f"{value} is neither true nor false")
        super().__call__(parser, namespace, value == "true", name)


def takes_the_rest(parser: argparse.ArgumentParser) -> bool:
    """Whether all words from the first argument on belong to another command."""
    return any(action.nargs == argparse.REMAINDER for action in parser._actions)


def written_out(words: Iterable[str], parser: argparse.ArgumentParser) -> list[str]:
    """The words with `=true` behind each option that stands without its value; a command's own words stay."""
    names = {name: action for action in parser._actions for name in action.option_strings}
    ends_at_a_word = takes_the_rest(parser)
    rest = iter(words)
    done: list[str] = []
    for word in rest:
        name, equals, _ = word.partition("=")
        action = names.get(name)
        if word == "--" or (ends_at_a_word and not word.startswith("-")):
            return [*done, word, *rest]
        if isinstance(action, ValueWithEquals) and not equals:
            word = f"{name}={action.const}"
        done.append(word)
        if action is not None and action.nargs is None and not equals:
            done += [value for value in [next(rest, None)] if value is not None]
    return done


class Group(NamedTuple):
    title: str
    options: Sequence[Option]


def option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


def add_groups(
    parser: argparse.ArgumentParser,
    groups: Iterable[Group],
    changes: Mapping[str, Settings | None] | None = None,
) -> list[argparse.Action]:
    """Add each group to a parser. ``changes``, by dest, replaces settings of an option; None leaves it out."""
    changes = changes or {}
    actions = []
    for group in groups:
        add = parser.add_argument_group(group.title).add_argument
        for entry in group.options:
            change = changes.get(entry.dest, {})
            if change is not None:
                actions.append(add(*entry.names, **{**entry.settings, **change}))
    return actions


def hidden(names: Iterable[str]) -> dict[str, Settings | None]:
    """Changes for options that are accepted but not shown, so that the error can say why they do not apply."""
    return {name: {"help": argparse.SUPPRESS} for name in names}
