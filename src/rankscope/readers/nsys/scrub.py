"""Removes the recorded environment and the secrets of the command line from an nsys export, including freed pages of
the file.

nsys writes the command line and its variables into META_DATA_CAPTURE, the variables of the session into
TARGET_INFO_SYSTEM_ENV, and those of every process into StringIds, together with the output of the processes.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rankscope.errors import ReadError
from rankscope.files import unique_name
from rankscope.readers.nsys.export import AGAIN, NsysExport, open_export
from rankscope.readers.nsys.identity import recorded_environments
from rankscope.readers.sqlite_file import refused_by_sqlite, text_of
from rankscope.sql import sql_name
from rankscope.text.redaction import redacted, redacted_command, secrets_of

_SECRET_NAME = re.compile(r"(?i)token|secret|passw|credential|api_?key|access_?key|private|auth|session_key")
_MIN_SECRET_LENGTH = 6
"""Shortest value of a secret that is searched for everywhere; a value such as '1' would match too much."""
_CHUNK = 16 << 20


@dataclass(frozen=True)
class Scrubbed:
    """What was removed."""

    variables: int
    """Number of recorded variables."""
    outputs: int
    """Number of recorded program outputs."""
    arguments: int
    """Number of secrets in the recorded command line."""


def scrub(source: Path, target: Path) -> Scrubbed:
    """Write `source` without its environment to `target`, which appears only when it is complete and checked."""
    with closing(open_export(source)) as export:
        environments = recorded_environments(export)
        outputs = _output_ids(export)
        commands = _commands(export)
        tables = {name: columns for name, columns in export.tables.items() if not name.startswith("ENUM_")}
    arguments = [secret for words in commands for secret in secrets_of(list(words.values()))]
    unfinished = target.with_name(f".{target.name}.{unique_name()}")
    try:
        with refused_by_sqlite(source, AGAIN):
            with unfinished.open("xb") as file, source.open("rb") as original:
                os.fchmod(file.fileno(), 0o600)
                shutil.copyfileobj(original, file, _CHUNK)
            texts = _secret_texts(environments, arguments)
            _clean(unfinished, tables, commands, texts, outputs)
            _check(unfinished, texts, source)
            unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    variables = len({name for environment in environments for name in environment})
    return Scrubbed(variables, len(outputs), len(arguments))


def _commands(export: NsysExport) -> list[dict[int, str]]:
    """The words of each recorded command, by their rows: PROCESS_0:COMMAND, PROCESS_0:ARGUMENT_0 and so on."""
    commands: dict[str, dict[int, str]] = {}
    if export.has("META_DATA_CAPTURE", "name", "value"):
        rows = export.rows(
            "SELECT rowid, name, value FROM META_DATA_CAPTURE "
            "WHERE name LIKE '%:COMMAND' OR name LIKE '%:ARGUMENT\\_%' ESCAPE '\\' ORDER BY rowid"
        )
        for row, name, value in rows:
            commands.setdefault(text_of(name).partition(":")[0], {})[row] = text_of(value)
    return list(commands.values())


def _output_ids(export: NsysExport) -> list[int]:
    if not export.has("ProcessStreams", "contentId"):
        return []
    rows = export.rows(
        "SELECT s.id FROM StringIds s JOIN ProcessStreams p ON p.contentId = s.id WHERE length(s.value) > 0"
    )
    return [number for (number,) in rows]


def _clean(
    path: Path,
    tables: dict[str, frozenset[str]],
    commands: list[dict[int, str]],
    texts: list[bytes],
    outputs: list[int],
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # No journal on disk, and freed pages are overwritten, so that no copy of the text remains.
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("BEGIN")
        if "META_DATA_CAPTURE" in tables:
            connection.execute("DELETE FROM META_DATA_CAPTURE WHERE name LIKE '%ENVIRONMENT_VARIABLE%'")
        if "TARGET_INFO_SYSTEM_ENV" in tables:
            connection.execute("DELETE FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'DeviceEnvironment'")
        connection.execute("UPDATE StringIds SET value = '' WHERE instr(CAST(value AS BLOB), x'00') > 0")
        connection.executemany(
            "UPDATE StringIds SET value = '' WHERE id = ?", [(number,) for number in outputs]
        )
        for words in commands:
            rows = zip(words, words.values(), redacted_command(list(words.values())), strict=True)
            connection.executemany(
                "UPDATE META_DATA_CAPTURE SET value = ? WHERE rowid = ?",
                [(recorded, row) for row, word, recorded in rows if recorded != word],
            )
        # Wherever else a version of nsys keeps the command line.
        _replace(
            connection,
            (name for name in tables if name.startswith(("META_DATA_", "TARGET_INFO_"))),
            lambda text: redacted(text.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"),
        )
        if (pattern := _pattern(texts)) is not None:
            _replace(connection, tables, lambda text: pattern.sub(b"[removed]", text))
        connection.execute("COMMIT")
        connection.execute("VACUUM")


def _replace(
    connection: sqlite3.Connection, tables: Iterable[str], cleaned: Callable[[bytes], bytes]
) -> None:
    """Change every text of these tables; as bytes, since text may be invalid UTF-8."""
    connection.create_function("cleaned", 1, lambda text: cleaned(text) if text else text)
    for table in map(sql_name, tables):
        for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            if "INT" not in kind.upper() and "REAL" not in kind.upper():
                name = sql_name(column)
                text = f"CAST({name} AS BLOB)"
                connection.execute(
                    f"UPDATE {table} SET {name} = CAST(cleaned({text}) AS TEXT) WHERE cleaned({text}) <> {text}"
                )


def _pattern(texts: Sequence[bytes]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(map(re.escape, texts))) if texts else None


def _secret_texts(environments: Iterable[dict[str, str]], arguments: Iterable[str]) -> list[bytes]:
    """Texts that must not remain: NAME=value, the values of variables with names like secrets, secret arguments."""
    texts = {secret for secret in arguments if len(secret) >= _MIN_SECRET_LENGTH}
    for environment in environments:
        for name, value in environment.items():
            if value:
                texts |= {f"{name}={value}", f'{name}="{value}"'}
            if len(value) >= _MIN_SECRET_LENGTH and _SECRET_NAME.search(name):
                texts.add(value)
    return [text.encode() for text in sorted(texts, key=len, reverse=True)]


def _check(path: Path, texts: list[bytes], source: Path) -> None:
    """Raise an error if the bytes of the file still contain a secret."""
    pattern = _pattern(texts)
    if pattern is None:
        return
    overlap = max(map(len, texts))
    with path.open("rb") as file:
        before = b""
        while piece := file.read(_CHUNK):
            if pattern.search(before + piece):
                raise ReadError(
                    f"{source} still contains recorded variables or secrets after scrubbing",
                    why="This version of nsys stores them in a place that rankscope does not know.",
                    hint="Do not share the file. Please report the nsys version (rankscope doctor shows it).",
                )
            before = piece[-overlap:]
