"""Routes for marks: named points in time. The page holds them in its address; on request they are kept in a file beside
the run. Every request makes a file of its own, so that nobody's marks are overwritten."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from rankscope.errors import StoreError, UsageError
from rankscope.files import create_json
from rankscope.host import user_name
from rankscope.viewer.answers import Answer, integer
from rankscope.viewer.session import Session

_ENDING = ".marks.rankscope.json"
"""Files that end in rankscope.json are not taken for traces."""
_MOST_MARKS = 200
_LONGEST_NAME = 200
_MOST_TRIES = 1000


def marks(session: Session, query: dict[str, str]) -> Answer:
    """The files with marks beside the run, oldest first."""
    files = []
    for path in sorted(path for path in _folder(session).glob(f"*{_ENDING}") if path.is_file()):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            marks = [_mark(mark["at_ns"], mark["name"]) for mark in content["marks"]]
            files.append(
                {"file": path.name, "by": str(content["by"]), "kept": str(content["kept"]), "marks": marks}
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # not one of ours, or damaged: the others are shown
    return {"files": sorted(files, key=lambda file: file["kept"])}


def keep_marks(session: Session, query: dict[str, str]) -> Answer:
    """Write the marks of a page, as they are in its address, to a new file beside the run."""
    if session.is_dropped:
        raise UsageError(
            "marks are not kept of files that were dropped",
            why="They are in a temporary folder, which goes when the server ends.",
            hint="Open the run where it is: rankscope view RUN. The address of this page holds the marks.",
        )
    words = [word.partition(":") for word in query["marks"].split(",")[:_MOST_MARKS]]
    marks = [_mark(at, unquote(name)) for at, _, name in words]
    content: dict[str, Any] = {
        "by": user_name(),
        "kept": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "marks": marks,
    }
    folder, user = _folder(session), re.sub(r"[^\w.-]", "_", content["by"])
    try:
        for number in range(1, _MOST_TRIES):
            path = folder / f"{user}-{number}{_ENDING}"
            if create_json(path, content):
                return {"file": str(path)}
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}",
            why=f"{error.strerror or error}.",
            hint="The address of the page holds the marks: copy it instead.",
        ) from error
    raise StoreError(f"{folder} has {_MOST_TRIES:,} files with marks", hint=f"Remove some: *{_ENDING}")


def _folder(session: Session) -> Path:
    return session.path if session.path.is_dir() else session.path.parent


def _mark(at: Any, name: Any) -> dict[str, Any]:
    return {"at_ns": integer(str(at)), "name": str(name)[:_LONGEST_NAME]}
