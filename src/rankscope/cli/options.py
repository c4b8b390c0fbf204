"""Options as data, so that several commands can share them with other help texts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Settings = dict[str, Any]
"""Keyword arguments of `add_argument`."""
_ENTRY = re.compile(r"^(\S.*?) {2,}(.+(?:\n +.+)*)", re.MULTILINE)
_NARGS = {"": None, "[]": "?", " ...": "+", "[ ...]": "*"}
"""Of an argument, by what stands around its name."""


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

    Without a value it is "true"; true and false may stand behind a blank, as nsys has them. `written_out` must see the
    words before argparse does.
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
    """The words with "=" and its value behind each option that is written without; a command's own words stay."""
    names = {name: action for action in parser._actions for name in action.option_strings}
    ends_at_a_word = takes_the_rest(parser)
    rest = list(words)
    done: list[str] = []
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        action = names.get(name)
        if word == "--" or (ends_at_a_word and not word.startswith("-")):
            return [*done, word, *rest]
        if isinstance(action, ValueWithEquals) and not equals:
            word = f"{name}={rest.pop(0) if rest[:1] in (['true'], ['false']) else action.const}"
        done.append(word)
        if action is not None and action.nargs is None and not equals:
            done += rest[:1]
            del rest[:1]
    return done


class Group(NamedTuple):
    title: str
    options: Sequence[Option]


def option(*names: str, **settings: Any) -> Option:
    return Option(names, settings)


def option_table(text: str, **settings: Any) -> Iterator[Option]:
    """Options from a table as --help prints it: `-o, --output DIR  the run folder`. An indented line goes on the last.

    A name alone is a flag, {a,b} are choices, and `X ...` may be given several times. RUN is an argument, [RUN] may be
    left out, `RUN ...` is at least one and [RUN ...] any number. ``settings`` are more, by dest: its type (something
    to call), its default, or a dictionary of both and others.
    """
    for usage, help_text in _ENTRY.findall(text):
        *names, last = usage.split(", ")
        name, _, value = last.partition(" ")
        option = Option((*names, name), {"help": " ".join(help_text.split())})
        if not usage.startswith("-"):
            metavar = usage.strip("[ .]")
            option = Option((metavar.lower(),), {**option.settings, "metavar": metavar})
            option.settings["nargs"] = _NARGS[usage.replace(metavar, "")]
        elif not value:
            option.settings["action"] = "store_true"
        elif value.startswith("{"):
            option.settings["choices"] = value.strip("{}").split(",")
        else:
            option.settings["metavar"] = value.removesuffix(" ...")
            option.settings.update({"action": "append"} if value.endswith(" ...") else {})
        more = settings.get(option.dest, {})
        if not isinstance(more, dict):
            more = {"type" if callable(more) else "default": more}
        option.settings.update(more)
        yield option


def add_options(parser: argparse._ActionsContainer, text: str, **settings: Any) -> None:
    """Add the options of a table to a parser, or to a group of it."""
    for option in option_table(text, **settings):
        parser.add_argument(*option.names, **option.settings)


def group(title: str, text: str, **settings: Any) -> Group:
    """A group with the options of a table."""
    return Group(title, tuple(option_table(text, **settings)))


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
        for option in group.options:
            change = changes.get(option.dest, {})
            if change is not None:
                actions.append(add(*option.names, **{**option.settings, **change}))
    return actions


def hidden(names: Iterable[str]) -> dict[str, Settings | None]:
    """Changes for options that are accepted but not shown, so that the error can say why they do not apply."""
    return {name: {"help": argparse.SUPPRESS} for name in names}
