"""Options as tables of text, as --help prints them. A class that is made of options has their table and their defaults:
the command line, the tools of an assistant and the docs come from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
        long = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.settings.get("dest") or long.lstrip("-").replace("-", "_"))


def option_table(text: str, of: Any = None, **more: Any) -> Iterator[Option]:
    """Options from a table: `-o, --output DIR  the run folder`. An indented line goes on the last.

    A name alone is a flag, {a,b} are choices, and `X ...` may be given several times. RUN is an argument, [RUN] may be
    left out, `RUN ...` is at least one and [RUN ...] any number. ``of`` is a class with the defaults. ``more`` is for
    an option by its dest: a type (something to call), a default, or a dictionary of settings.
    """
    for usage, help_text in _ENTRY.findall(text):
        *names, last = usage.split(", ")
        name, _, value = last.partition(" ")
        settings: Settings = {"help": " ".join(help_text.split())}
        option = Option((*names, name), settings)
        if not usage.startswith("-"):
            settings["metavar"] = usage.strip("[ .]")
            settings["nargs"] = _NARGS[usage.replace(settings["metavar"], "")]
            option = Option((settings["metavar"].lower(),), settings)
        elif not value:
            settings["action"] = "store_true"
        else:
            word = value.removesuffix(" ...")
            settings |= {"choices": word[1:-1].split(",")} if word.startswith("{") else {"metavar": word}
            settings |= {"action": "append", "default": []} if word != value else {}
        default = getattr(of, option.dest, None)
        if default is not None and "action" not in settings:
            settings["default"] = default
            settings |= {"type": int} if type(default) is int else {}
            settings["help"] += f" (default: {default})" if default and "(default" not in help_text else ""
        changed = more.get(option.dest, {})
        if not isinstance(changed, dict):
            changed = {"type" if callable(changed) else "default": changed}
        settings |= changed
        yield option
