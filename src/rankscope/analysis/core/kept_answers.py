"""Answers about a whole run that the store keeps: a question that is asked again is answered without its events.

Kept are values of reports in their default scope: Results, findings, texts. They are JSON in one file of the
store (store.derived); records and tuples are marked, so that what is read equals what was written. Reading them needs
neither numpy nor DuckDB, nor the analyses.

They are used while the code, the segments of the run, the files that could not be read and the manifests beside the
traces are those of then. Telemetry goes on while a job runs: where a run folder has it, nothing is kept.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from rankscope.analysis.core.result import (
    Column,
    Fact,
    Finding,
    Note,
    NoteKind,
    Remedy,
    Result,
)
from rankscope.capture.telemetry_ring import FOLDER as TELEMETRY
from rankscope.store.derived import ANSWERS, Table
from rankscope.timeline.run import Run

_RECORDS: dict[str, Any] = {record.__name__: record for record in (Column, Fact, Finding, Remedy, Result)}
_SCALARS = {bool, int, float, str, type(None)}
_MOST_ROWS = 20_000
_TABLE = Table[dict[str, str]](ANSWERS, dict[str, str])


class Answers:
    """What is kept of a run, by name."""

    def __init__(self, run: Run) -> None:
        self.run, self._key = run, _key(run)
        self._content = _TABLE.load(run.store, self._key) or {}

    def get(self, *names: str) -> list[Any] | None:
        """The values of these names, if all of them are kept."""
        if self._key is None or not self._content.keys() >= set(names):
            return None
        return [from_json(json.loads(self._content[name])) for name in names]

    def keep(self, values: Mapping[str, Any]) -> None:
        """Add values, where the store may be written to."""
        if self._key is None or not self.run.keeps_results:
            return
        for name, value in values.items():
            if isinstance(value, Result) and len(value.rows) > _MOST_ROWS:
                continue
            with suppress(TypeError):  # it has a value of another type
                self._content[name] = json.dumps(to_json(value), separators=(",", ":"))
        _TABLE.save(self.run.store, self._key, self._content)


def _key(run: Run) -> list[Any] | None:
    """Of all that answers depend on besides the code; None where that changes without being noticed."""
    beside: list[Any] = []
    for folder in sorted({*(entry.source.parent for entry in run.segments), run.store.parent}):
        with suppress(OSError), os.scandir(folder) as files:
            for file in files:
                if TELEMETRY in (file.name, folder.name):
                    return None
                if file.name.endswith("rankscope.json"):
                    stat = file.stat()
                    beside.append([file.name, stat.st_size, stat.st_mtime_ns])
    entries = [
        [entry.rank, entry.segment, entry.build, entry.rank_source, entry.source.name]
        for entry in run.segments
    ]
    return [str(run.store), entries, sorted(beside), [str(problem) for problem in run.problems]]


def to_json(value: Any) -> Any:
    """As JSON values, from which `from_json` makes the same. Raises TypeError for a value of another type."""
    if type(value) in _SCALARS:
        return value
    if type(value) is list:
        return [*map(to_json, value)]
    if type(value) is tuple:
        return {"tuple": [*map(to_json, value)]}
    if isinstance(value, Note) and value.kind is not None:
        return {"Note": [value.kind.value, str(value)]}
    if isinstance(value, Mapping):
        return {"dict": [[to_json(key), to_json(part)] for key, part in value.items()]}
    if isinstance(value, Result):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"Result": {name: to_json(part) for name, part in parts.items() if name != "rows"}} | {
            "rows": _rows_to_json([*value.rows])
        }
    if type(value).__name__ in _RECORDS:
        return {
            type(value).__name__: {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        }
    if hasattr(value, "dtype"):
        return to_json(value.item())
    raise TypeError(f"{type(value).__name__} is not kept")


def _rows_to_json(rows: list[Mapping[str, Any]]) -> Any:
    """By columns where all rows have the same: most values are numbers, and there may be many."""
    names = [*rows[0]] if rows else []
    if any([*row] != names for row in rows):
        return [to_json(row) for row in rows]
    columns = {}
    for name in names:
        values = [row[name] for row in rows]
        plain = {*map(type, values)} <= _SCALARS
        columns[name] = [plain, values if plain else [*map(to_json, values)]]
    return {"columns": columns, "count": len(rows)}


def from_json(value: Any) -> Any:
    if type(value) is list:
        return [*map(from_json, value)]
    if type(value) is not dict:
        return value
    ((kind, content), *rows) = value.items()
    if kind == "tuple":
        return tuple(map(from_json, content))
    if kind == "dict":
        return {from_json(key): from_json(part) for key, part in content}
    if kind == "Note":
        return Note.of(NoteKind(content[0]), content[1])
    parts = {name: from_json(part) for name, part in content.items()}
    if rows:
        parts["rows"] = _rows_from_json(rows[0][1])
    return _RECORDS[kind](**parts)


def _rows_from_json(value: Any) -> list[Mapping[str, Any]]:
    if type(value) is list:
        return [from_json(row) for row in value]
    columns = {
        name: values if plain else [*map(from_json, values)]
        for name, (plain, values) in value["columns"].items()
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
