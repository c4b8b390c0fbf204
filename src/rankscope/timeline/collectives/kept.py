"""The matched collectives of a large run, kept in the store: to read and match those of 1,024 ranks takes seconds.

The file states what it was made from: the files of the run and their places on the time axis. It may be deleted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.store.checksums import read_checked_text, write_checked_text
from rankscope.store.packed_arrays import packed, unpacked
from rankscope.timeline.collectives.entries import Collectives, Unmatched
from rankscope.timeline.collectives.groups import Group

FILE = "collectives.json"
_VERSION = 1
_LEAST_ENTRIES = 20_000
"""Fewer are read from the tables as quickly."""


def save(store: Path, made_from: list[Any], rows: Collectives) -> None:
    """Write or replace the file of a run that has many collectives."""
    if len(rows.rank) < _LEAST_ENTRIES:
        return
    arrays = {name: packed(value) for name, value in vars(rows).items() if isinstance(value, np.ndarray)}
    content = {
        "version": _VERSION,
        "made_from": made_from,
        "arrays": arrays,
        "groups": [[group.name, group.description, group.ranks, group.size] for group in rows.groups],
        "dtypes": rows.dtypes,
        "unmatched": [[one.why, one.count, one.ranks] for one in rows.unmatched],
    }
    write_checked_text(store / FILE, json.dumps(content, separators=(",", ":")))


def load(store: Path, made_from: list[Any]) -> Collectives | None:
    """The collectives that were made from these files; None where the file is missing, damaged or of other files."""
    try:
        content = json.loads(read_checked_text(store / FILE))
        if content["version"] != _VERSION or content["made_from"] != made_from:
            return None
        arrays: dict[str, Any] = {name: unpacked(*value) for name, value in content["arrays"].items()}
        groups = tuple(
            Group(name, text, None if ranks is None else tuple(ranks), size)
            for name, text, ranks, size in content["groups"]
        )
        unmatched = tuple(Unmatched(why, count, tuple(ranks)) for why, count, ranks in content["unmatched"])
        return Collectives(**arrays, groups=groups, dtypes=tuple(content["dtypes"]), unmatched=unmatched)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
