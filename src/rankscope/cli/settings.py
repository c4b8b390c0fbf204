"""Options that a file sets: [tool.rankscope.COMMAND] of pyproject.toml here or above, or [COMMAND] of
~/.config/rankscope.toml. What is given on the command line wins, then pyproject.toml."""

# pathlib would double what an unselected rank imports.
# ruff: noqa: PTH109, PTH111, PTH118, PTH120, PTH123
from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from rankscope.cli.options import ValueWithEquals
from rankscope.errors import RankscopeError, UsageError
from rankscope.text.spelling import did_you_mean

_KEYS = """\
output ranks steps skip-first wait warmup active repeat after for on-signal step-on stats group-readable
record-shapes profile-memory with-stack with-flops with-modules activities max-size watch hang-after report by window
top format prefer clocks peak bandwidth fail-on fail-over min-change cache jobs port no-open every quiet verbose
"""
"""Options that a file may set, of every command that has them. None starts a program, overwrites a file or opens a port
to others: pyproject.toml may come from somebody else."""
_ONE_OF = (
    frozenset(("skip_first", "wait", "warmup", "active", "repeat")),
    frozenset(("steps",)),
    frozenset(("after", "for_")),
    frozenset(("on_signal",)),
    frozenset(("window",)),
)
"""Options, by dest, that exclude those of another set: one on the command line is in place of those of a file."""
_NOT_GIVEN = object()
"""The value of an option that a file sets, until the command line is parsed."""


class Setting(NamedTuple):
    """Of an option, by its dest."""

    value: Any
    otherwise: Any
    """The option's own default."""
    source: str


def read_settings(parser: argparse.ArgumentParser, name: str, commands: Iterable[str]) -> dict[str, Setting]:
    """What the files say about a command. The parser's help shows it, and `fill` must follow parsing."""
    settings: dict[str, Setting] = {}
    keys = [key for key in sorted(_KEYS.split()) if f"--{key}" in parser._option_string_actions]
    for file in _files() if keys else ():
        for key, value, where in _entries(*file, name, commands):
            action = parser._option_string_actions.get(f"--{key}")
            if action is None or key not in keys:
                raise UsageError(
                    f"{where}: {parser.prog} has no setting {key}",
                    why=f"These options can be set in a file: {', '.join(keys)}.",
                    hint=f"{did_you_mean(key, keys)}Correct the file, or give the option in the command.",
                )
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            setting = _converted(parser, action, value, text, where)
            settings[action.dest] = Setting(
                setting, parser.get_default(action.dest), f"{key} = {text} ({where})"
            )
            help_text = re.sub(r" ?\(?default: .*", "", action.help or "", flags=re.DOTALL).replace("%%", "%")
            action.help = f"{help_text} (default: {text}, from {where})".lstrip().replace("%", "%%")
    parser.set_defaults(**dict.fromkeys(settings, _NOT_GIVEN))
    return settings


def _converted(
    parser: argparse.ArgumentParser, action: argparse.Action, value: Any, text: str, where: str
) -> Any:
    """As the option converts and checks it."""
    if isinstance(value, bool) and (action.nargs == 0 or isinstance(action, ValueWithEquals)):
        return value if action.nargs == 0 else text.lower()
    why = "it is on or off: true or false"
    if action.nargs != 0:
        try:
            return parser._get_values(action, [text])
        except (argparse.ArgumentError, RankscopeError) as error:
            why = error.message
    why = f"{why[:1].upper()}{why[1:]}."
    raise UsageError(f"{where}: {action.option_strings[-1][2:]} = {text}", why=why, hint="Correct the file.")


def fill(
    args: argparse.Namespace, parser: argparse.ArgumentParser, settings: Mapping[str, Setting]
) -> dict[str, Any]:
    """Give options that are not in the command their values; returns what they were without the files."""
    given = {dest for dest, value in vars(args).items() if value != parser.get_default(dest)}
    missing = {dest: of.otherwise for dest, of in settings.items() if getattr(args, dest) is _NOT_GIVEN}
    for dest, otherwise in missing.items():
        others = {other for choice in _ONE_OF if dest in {*chain(*_ONE_OF)} - choice for other in choice}
        setattr(args, dest, otherwise if given & others else settings[dest].value)
    return missing


def named_in(error: RankscopeError, settings: Mapping[str, Setting]) -> str:
    """Which values an error is about that are not in the command."""
    named = [setting.source for setting in settings.values() if str(setting.value) in str(error)]
    return f"Set in a file: {', '.join(named)}." if named else ""


def _files() -> Iterator[tuple[str, str, bytes]]:
    """Those that there are, with what the name of a table begins with, and the content; the later one wins."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.path.join(folder, "rankscope.toml")
    yield path, "", _content(path)
    try:
        folder, inside = os.getcwd(), ""
    except OSError:  # it was deleted
        return
    while folder != inside:
        path = os.path.join(folder, "pyproject.toml")
        if b"tool.rankscope" in (content := _content(path)):
            yield os.path.relpath(path), "tool.rankscope.", content
            return
        folder, inside = os.path.dirname(folder), folder


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # as a rule there is none
        return b""


def _entries(
    path: str, prefix: str, content: bytes, name: str, commands: Iterable[str]
) -> Iterator[tuple[str, Any, str]]:
    """Key and value of each setting of a command, and where it is."""
    if not content:
        return
    try:
        # Late: as a rule there is no file.
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        text = content.decode()
        tables: Any = tomllib.loads(text)
        for part in prefix.split(".")[:-1]:
            tables = tables[part]
    except (ImportError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} cannot be read as TOML", why=f"{error}.", hint="Correct the file."
        ) from None

    def where(table: str, key: str) -> str:
        """The file, with the line."""
        lines = text.splitlines()
        start = lines.index(f"[{prefix}{table}]") if f"[{prefix}{table}]" in lines else 0
        for number, line in enumerate(lines[start:], start + 1):
            if re.match(rf"""\s*\[?["']?([\w.]*\.)?{re.escape(key)}\b""", line):
                return f"{path}, line {number}"
        return path

    for table, entries in tables.items():
        if table not in commands or not isinstance(entries, dict):
            raise UsageError(
                f"{where('', table)}: {table} is not a rankscope command",
                why=f"Settings are in a table of their command, such as [{prefix}stats].",
                hint=f"{did_you_mean(table, commands)}Correct the file.",
            )
    for key, value in tables.get(name, {}).items():
        yield key, value, where(name, key)
