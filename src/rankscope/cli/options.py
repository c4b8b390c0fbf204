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
        for one in group.options:
            change = changes.get(one.dest, {})
            if change is not None:
                actions.append(add(*one.names, **{**one.settings, **change}))
    return actions


def hidden(names: Iterable[str]) -> dict[str, Settings | None]:
    """Changes for options that are accepted but not shown, so that the error can say why they do not apply."""
    return {name: {"help": argparse.SUPPRESS} for name in names}
