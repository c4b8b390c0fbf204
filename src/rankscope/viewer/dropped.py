"""Files that are dropped onto the page of `view --drop`: taken into a folder that goes when the server ends.

Only the page with the token can send them; it sends one at a time, with its size. What is hidden is refused: a folder
may hold a store of rankscope, and a store is trusted.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from rankscope import units
from rankscope.errors import StoreError, UsageError
from rankscope.files import open_private
from rankscope.viewer.address import MOST_DROPPED, PROGRESS_SECONDS
from rankscope.viewer.answers import Answer

_MOST_FILES = 10_000
_LONGEST_NAME = 500
_PART = r"[^./\\\x00-\x1f][^/\\\x00-\x1f]*"
_NAME = re.compile(f"{_PART}(/{_PART})*")


class Dropped:
    """The files of one drop; the next one replaces them."""

    def __init__(self, show: Callable[[Path], None], most_bytes: int = MOST_DROPPED) -> None:
        """`show` is called with the trace or folder that was dropped."""
        self._show, self._most_bytes = show, most_bytes
        self._root = tempfile.TemporaryDirectory(prefix="rankscope-dropped-")
        self._folder = Path(self._root.name) / "dropped"
        self._bytes = self._files = 0

    def close(self) -> None:
        self._root.cleanup()

    async def take(self, request: Request, query: dict[str, str]) -> Answer:
        """One file, named by its path in what was dropped. The `first` one removes those of the drop before."""
        path, size = self._folder / _checked(query["name"]), int(request.headers["content-length"])
        if "first" in query:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._bytes = self._files = 0
        self._bytes += size
        self._files += 1
        if self._bytes > self._most_bytes or self._files > _MOST_FILES:
            raise UsageError(
                "what was dropped is too large",
                why=f"The page takes {units.format_bytes(self._most_bytes)} and {_MOST_FILES:,} files.",
                hint="Open it where it is: rankscope view FOLDER",
            )
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open_private(path, "xb") as file:
                stream = request.stream()
                while piece := await asyncio.wait_for(anext(stream, b""), PROGRESS_SECONDS):
                    file.write(piece)
        except (OSError, asyncio.TimeoutError, ClientDisconnect) as error:
            raise StoreError(
                f"{path.name} is not taken",
                why=f"{getattr(error, 'strerror', None) or 'It stopped arriving'}.",
                hint="Drop the files again. On a full disk, set TMPDIR to a folder with room.",
            ) from error
        return {"bytes": self._bytes}

    def open(self, query: dict[str, str]) -> Answer:
        """Show the files that were taken: the trace or folder itself, where it is the only one."""
        if not self._files:
            raise UsageError("no file was dropped", hint="Drop a trace, or a folder with traces.")
        inside = list(self._folder.iterdir())
        self._show(inside[0] if len(inside) == 1 else self._folder)
        return {}


def _checked(name: str) -> str:
    """A relative path that stays in its folder."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name[:80]}' is not taken",
            why="Names of dropped files are paths below a folder, without hidden parts.",
            hint="Rename it, or leave it out.",
        )
    return name
