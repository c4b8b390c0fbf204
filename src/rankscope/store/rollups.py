"""Results about single ranks that are kept in the store: one small file per rank, in the folder `rollups`.

A file holds the results of one rank by name, and what they were made from: the rank's segments, the distance between
them on the time axis, and the window. Who asks for something else, or for a rank that was read again, finds nothing.
Files that are damaged, of another version or not there are made again (docs/adr/0140-rollups.md).
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rankscope.files import make_private_folder
from rankscope.store.checksums import read_checked_text, write_checked_text

FOLDER = "rollups"
_VERSION = 2

Content = dict[str, Any]
"""Results by name, as JSON values."""


def save(store: Path, rank: int, made_from: list[Any], results: Content) -> None:
    """Write or replace the file of a rank. Several processes may do so: a file is always whole."""
    make_private_folder(store / FOLDER)
    content = {"version": _VERSION, "made_from": made_from, "results": results}
    write_checked_text(_path(store, rank), json.dumps(content, separators=(",", ":")))


def load(store: Path, rank: int, made_from: list[Any]) -> Content:
    """The results of a rank that were made from this; none where the file is damaged, old or missing."""
    try:
        content = json.loads(read_checked_text(_path(store, rank)))
        if content["version"] != _VERSION or content["made_from"] != made_from:
            return {}
        return dict(content["results"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def others(store: Path, ranks: Collection[int]) -> list[Path]:
    """The files of ranks that are not in the store any more, and unfinished ones."""
    wanted = {_path(store, rank).name for rank in ranks}
    return [path for path in (store / FOLDER).glob("*") if path.name not in wanted]


def _path(store: Path, rank: int) -> Path:
    return store / FOLDER / f"rank={rank:05d}.json"
