"""Sites: the settings that all jobs of one machine share, in a small TOML file that users can add."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
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


def parse_site(text: str, where: str) -> Site:
    # Late: few jobs have a site file.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    lines = text.splitlines()

    def refused(line: int, why: str) -> UsageError:
        shown = lines[line - 1].strip() if line <= len(lines) else ""
        return UsageError(
            f"{where}, line {line}: {shown}", why=f"It cannot be used: {why}.", hint="See docs/jobs.md."
        )

    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"at line (\d+)", str(error))
        number = min(int(at[1]), len(lines)) if at else len(lines)
        is_setting = re.match(r"\s*[A-Za-z_][A-Za-z0-9_-]*\s*=", lines[number - 1])
        why = "the value is not a string, a number, true, false or a list of strings"
        raise refused(number, why if is_setting else "it is not NAME = VALUE") from None
    site: Site = {"env": {}}
    variables = values.pop("env") if isinstance(values.get("env"), dict) else {}
    settings = [
        *(
            (site, name.replace("-", "_"), KEYS.get(name.replace("-", "_")), name, values[name])
            for name in values
        ),
        *((site["env"], name, str, name, variables[name]) for name in variables),
    ]
    for target, name, kind, given, value in settings:
        start = re.compile(rf"""\s*\[?["']?{re.escape(given)}\b""")
        number = next((number for number, line in enumerate(lines, 1) if start.match(line)), 1)
        if kind is None:
            raise refused(number, f"{given} is not one of {', '.join(KEYS)} or [env]")
        items = value if isinstance(value, list) else []
        if type(value) is not kind or not all(isinstance(item, str) for item in items):
            expected = {str: "a string", int: "a number", bool: "true or false", list: "a list of strings"}
            raise refused(number, f"it must be {expected[kind]}")
        target[name] = value
    return site
