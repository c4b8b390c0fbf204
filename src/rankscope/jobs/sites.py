"""Sites: what is the same in every job of one machine, in a small file that users can add.

A site is a flat TOML file whose values are also JSON (strings in double quotes, numbers, true, false, lists on
one line) and at most one table, [env]. That is all a site needs, and Python 3.10 has no TOML reader.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError, UsageError

SHIPPED = Path(__file__).with_name("sites")
KEYS: dict[str, type] = {
    "scheduler": str,
    "launcher": str,
    "nodes": int,
    "ppn": int,
    "walltime": str,
    "queue": str,
    "account": str,
    "filesystems": str,
    "select": str,
    "place": str,
    "keep": str,
    "constraint": str,
    "modules": list,
    "conda": str,
    "venv": str,
    "tmpdir": str,
    "cpu_bind": str,
    "login": bool,
}
Site = dict[str, Any]


def user_folder(env: Mapping[str, str] = os.environ) -> Path:
    base = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config"
    return Path(base) / "rankscope" / "sites"


def known_sites() -> dict[str, Path]:
    """Every site by name; a user's own comes before the one we ship."""
    folders = (SHIPPED, user_folder())
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def load_site(name: str) -> Site:
    sites = known_sites()
    if name not in sites:
        raise UsageError(
            f"there is no site '{name}'",
            why=f"Known: {', '.join(sorted(sites))}. Others are read from {user_folder()}.",
            hint=f"Write {user_folder() / f'{name}.toml'}; docs/jobs.md shows one.",
        )
    path = sites[name]
    try:
        return parse_site(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise RankscopeError(f"cannot read the site {path}", why=str(error), hint="Mend the file.") from error


def parse_site(text: str, where: str) -> Site:
    site: Site = {"env": {}}
    table: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line == "[env]":
            table = "env"
            continue
        match = re.fullmatch(r"([A-Za-z_][A-Za-z0-9_-]*)\s*=\s*(.+)", line)
        try:
            if match is None:
                raise ValueError("it is not NAME = VALUE")
            value = json.loads(match[2])
            if table == "env":
                site["env"][match[1]] = _of_kind(value, str)
            else:
                key = match[1].replace("-", "_")
                if key not in KEYS:
                    raise ValueError(f"{match[1]} is not one of {', '.join(KEYS)} or [env]")
                site[key] = _of_kind(value, KEYS[key])
        except ValueError as error:
            problem = "the value is not a string, a number, true, false or a list of strings on one line"
            why = problem if isinstance(error, json.JSONDecodeError) else str(error)
            raise UsageError(
                f"{where}, line {number}: {line}", why=f"It cannot be used: {why}.", hint="See docs/jobs.md."
            ) from error
    return site


def _of_kind(value: Any, kind: type) -> Any:
    items = value if isinstance(value, list) else []
    if type(value) is not kind or not all(isinstance(item, str) for item in items):
        name = {str: "a string", int: "a number", bool: "true or false", list: "a list of strings"}[kind]
        raise ValueError(f"it must be {name}")
    return value
