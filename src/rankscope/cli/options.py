"""Options of the command line, from tables (text/option_table.py)."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from rankscope.text.option_table import Option, Settings, option_table

Made = TypeVar("Made")
READING = """\
--cache DIR  keep the store under DIR, not beside the traces
--jobs N  files read at a time (default: by cores and memory)
--dask WHERE  read on a Dask cluster: local, slurm, pbs, tcp://HOST:PORT, or a scheduler's file (.json)
--dask-option K=V ...  with slurm and pbs: an option of `rankscope job`, such as nodes=4, ppn=16, account=A,
    walltime=1h; or memory=64GB (of a node), interface=ib0; may be repeated
--mix  open files of different runs together; they are not compared (default: an error)
"""
"""How raw traces are read."""


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def seconds(text: str) -> float:
    from rankscope.units import parse_seconds  # late, as it is rarely needed

    return parse_seconds(text)


def size(text: str) -> int:
    from rankscope.units import parse_bytes

    return parse_bytes(text)


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


def add_options(parser: argparse._ActionsContainer, text: str, of: Any = None, **settings: Any) -> None:
    """Add the options of a table to a parser, or to a group of it."""
    for option in option_table(text, of, **settings):
        parser.add_argument(*option.names, **option.settings)


def add_tables(parser: argparse.ArgumentParser, tables: Mapping[str, str], of: Any, **settings: Any) -> None:
    """Add a table for each title of a group; "" is none."""
    for title, text in tables.items():
        add_options(parser.add_argument_group(title) if title else parser, text, of, **settings)


def group(title: str, text: str, of: Any = None, **settings: Any) -> Group:
    """A group with the options of a table."""
    return Group(title, tuple(option_table(text, of, **settings)))


def made_of(made: type[Made], args: argparse.Namespace, **more: Any) -> Made:
    """An object of a class whose fields are options: its defaults, what was given, and ``more``."""
    fields = made.__annotations__
    given = {name: value for name, value in vars(args).items() if name in fields and value is not None}
    return made(**{**given, **more})


def words_of(
    args: argparse.Namespace, configure: Callable[[argparse.ArgumentParser], object], *without: str
) -> list[str]:
    """The options that ``configure`` adds and that were given, again as words, for a process of its own; ``without``
    are dests of others."""
    configure(parser := argparse.ArgumentParser(add_help=False))
    words = []
    for action in parser._actions:
        value = getattr(args, action.dest, action.default)
        if not action.option_strings or action.dest in without or value == action.default:
            continue
        name = action.option_strings[-1]
        if isinstance(value, list):
            words += [f"{name}={item}" for item in value]
        elif isinstance(value, str) and value.startswith("-"):
            words.append(f"{name}={value}")
        elif isinstance(action, ValueWithEquals):
            words.append(f"{name}={str(value).lower() if isinstance(value, bool) else value}")
        else:
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [name, *([] if value is True else [text])]
    return words


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
