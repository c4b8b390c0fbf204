"""Sites: the settings that all jobs of one machine share, in a small TOML file that users can add.

Login nodes may have Python 3.10, which cannot read TOML. There, a smaller form is read: values that are also JSON
(strings in double quotes, numbers, true, false, lists on one line) and at most one table, [env].
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError, UsageError

SHIPPED = Path(__file__).with_name("sites")
_NODES = ("filesystems", "select", "place", "keep", "constraint", "gres", "gpus_per_node")
KEYS: dict[str, type] = {
    "scheduler": str,
    "launcher": str,
    "nodes": int,
    "ppn": int,
    "walltime": str,
    "queue": str,
    "account": str,
    **dict.fromkeys(_NODES, str),
    "directives": list,
    "stdout": str,
    "stderr": str,
    "modules": list,
    "conda": str,
    "venv": str,
    "tmpdir": str,
    "cpu_bind": str,
    "login": bool,
}
Site = dict[str, Any]


def user_folder(env: Mapping[str, str] = os.environ) -> Path:
    base = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME") or os.path.expanduser("~")) / ".config"  # noqa: PTH111
    return Path(base) / "rankscope" / "sites"


def known_sites() -> dict[str, Path]:
    """Every site by name; a user's file replaces the shipped one of the same name."""
    folders = (SHIPPED, user_folder())
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_site(name: str) -> Site:
    sites = known_sites()
    if name not in sites:
        raise UsageError(
            f"there is no site '{name}'",
            why=f"Known sites: {', '.join(sorted(sites))}. Others are read from {user_folder()}.",
            hint=f"Write {user_folder() / f'{name}.toml'}; docs/jobs.md shows one.",
        )
    path = sites[name]
    try:
        return parse_site(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RankscopeError(
            f"cannot read the site {path}", why=str(error), hint="Correct the file."
        ) from error


class _BadLineError(Exception):
    """What is wrong with a site's file, and where."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line
        self.why = why


def parse_site(text: str, where: str) -> Site:
    try:
        return _checked(read_toml(text), text)
    except _BadLineError as error:
        lines = text.splitlines()
        line = lines[error.line - 1].strip() if error.line <= len(lines) else ""
        raise UsageError(
            f"{where}, line {error.line}: {line}",
            why=f"It cannot be used: {error.why}.",
            hint="See docs/jobs.md.",
        ) from None


def _checked(values: Mapping[str, Any], text: str) -> Site:
    site: Site = {"env": {}}
    for given, value in values.items():
        name = given.replace("-", "_")
        if name == "env" and isinstance(value, dict):
            site["env"] = {key: _of_type(value[key], str, key, text) for key in value}
        elif name in KEYS:
            site[name] = _of_type(value, KEYS[name], given, text)
        else:
            raise _BadLineError(_line_of(given, text), f"{given} is not one of {', '.join(KEYS)} or [env]")
    return site


def _of_type(value: Any, kind: type, name: str, text: str) -> Any:
    items = value if isinstance(value, list) else []
    if type(value) is not kind or not all(isinstance(item, str) for item in items):
        expected = {str: "a string", int: "a number", bool: "true or false", list: "a list of strings"}[kind]
        raise _BadLineError(_line_of(name, text), f"it must be {expected}")
    return value


def _line_of(name: str, text: str) -> int:
    start = re.compile(rf"""\s*\[?["']?{re.escape(name)}\b""")
    return next((number for number, line in enumerate(text.splitlines(), 1) if start.match(line)), 1)


def _syntax_error(line: str) -> str:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_-]*\s*=", line.strip()):
        return "it is not NAME = VALUE"
    return "the value is not a string, a number, true, false or a list of strings"


def _read_json_values(text: str) -> dict[str, Any]:
    """The smaller form, for Python 3.10."""
    values: dict[str, Any] = {}
    table = values
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if re.fullmatch(r"\[env\]\s*(#.*)?", line):
            table = values.setdefault("env", {})
            continue
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_-]*)\s*=\s*(.+)", line)
        if match is None or match[1] in table:
            why = "it is given twice" if match else _syntax_error(line)
            raise _BadLineError(number, why)
        try:
            value, end = json.JSONDecoder().raw_decode(match[2])
        except ValueError:
            raise _BadLineError(number, _syntax_error(line)) from None
        if match[2][end:].strip() and not match[2][end:].lstrip().startswith("#"):
            raise _BadLineError(number, _syntax_error(line))
        table[match[1]] = value
    return values


if sys.version_info >= (3, 11):
    import tomllib

    def _read_toml(text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"at line (\d+)", str(error))
            lines = text.splitlines()
            number = min(int(at[1]), len(lines)) if at else len(lines)
            raise _BadLineError(number, _syntax_error(lines[number - 1])) from None

    read_toml: Callable[[str], dict[str, Any]] = _read_toml
else:
    read_toml = _read_json_values
