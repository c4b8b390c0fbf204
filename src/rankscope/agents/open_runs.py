"""The runs that an assistant has open. Files may change or vanish between two questions."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankscope.analysis.rollups import keep_rollups
from rankscope.errors import UsageError
from rankscope.host import usable_cores
from rankscope.store.discover import no_such_path
from rankscope.store.index import INDEX_FILE
from rankscope.store.ingest import IngestProgress
from rankscope.text.run_words import Runs, RunWords, shell_words
from rankscope.text.spelling import did_you_mean
from rankscope.timeline.run import Run, open_run
from rankscope.viewer.sql_process import SqlProcess

_MOST_OPEN = 8
"""The run that was used longest ago is closed for another."""


class OpenRun:
    """A run, and the process that answers SQL about it."""

    def __init__(self, path: Path, cache: Path | None, say: Callable[[str], None]) -> None:
        self.path = path
        self.run: Run = open_run([path], cache=cache, progress=IngestProgress(say=say))
        keep_rollups(self.run, usable_cores(), lambda done, ranks: None, say)
        self._sql = SqlProcess(lambda: list(self.run.definitions()), self.run.folder)
        self._stamp = self._index_stamp()

    def words(self, window: str = "") -> Runs:
        """How commands name it."""
        return {"RUN": RunWords(shell_words([self.path]), window)}

    def query(self, sql: str) -> dict[str, Any]:
        return self._sql.query(sql, threading.Event())

    @property
    def is_current(self) -> bool:
        """Whether the store is still the one that was opened."""
        return self._stamp is not None and self._stamp == self._index_stamp()

    def close(self) -> None:
        self._sql.close()

    def _index_stamp(self) -> tuple[int, int] | None:
        try:
            found = (self.run.store / INDEX_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


class OpenRuns:
    """By path. Those that were named at the start are opened when they are first asked for."""

    def __init__(self, paths: Sequence[Path], cache: Path | None, say: Callable[[str], None]) -> None:
        self._known = list(dict.fromkeys(paths))
        self._open: dict[Path, OpenRun] = {}
        self._cache, self._say = cache, say

    @property
    def paths(self) -> list[Path]:
        return self._known

    def open(self, text: str) -> OpenRun:
        """Open the run at a path; again, if it is open: files may have been added."""
        path = Path(os.path.expanduser(text))  # noqa: PTH111 - without a home, the path as it is
        if path in self._open:
            self._open.pop(path).close()
        opened = self._opened(path)
        if path not in self._known:
            self._known.append(path)
        return opened

    def find(self, name: str | None) -> OpenRun:
        """By its path or the last part of it; without a name, the only one."""
        return self._opened(self._path(name))

    def close(self) -> None:
        for one in self._open.values():
            one.close()

    def _path(self, name: str | None) -> Path:
        names = [str(path) for path in self._known]
        if name is None:
            if len(self._known) == 1:
                return self._known[0]
            raise UsageError(
                "which run is meant is not clear" if names else "no run is open",
                why=f"These are open: {', '.join(names)}." if names else "None was named at the start.",
                hint="Give its path: run" if names else "Open one first: open(path)",
            )
        found = [path for path in self._known if name in (str(path), path.name)]
        if len(found) != 1:
            raise UsageError(
                f"'{name[:200]}' is not an open run",
                why=f"These are open: {', '.join(names) or 'none'}.",
                hint=f"{did_you_mean(name[:80], names)}Open it first: open(path)",
            )
        return found[0]

    def _opened(self, path: Path) -> OpenRun:
        opened = self._open.pop(path, None)
        if opened is not None and not (path.exists() and opened.is_current):
            opened.close()
            opened = None
        if opened is None:
            if not path.exists():
                raise no_such_path(path)
            opened = OpenRun(path, self._cache, self._say)
        self._open[path] = opened  # the last is the one that was used last
        while len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open))).close()
        return opened
