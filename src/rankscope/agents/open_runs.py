"""The runs that an assistant has open, and viewers that it can show something in: one that the user has started, or one
that is started here. Files may change or vanish between two questions."""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from rankscope.analysis.rollups import keep_rollups
from rankscope.errors import RankscopeError, UsageError
from rankscope.host import usable_cores
from rankscope.store.discover import no_such_path
from rankscope.store.index import INDEX_FILE
from rankscope.store.ingest import IngestProgress
from rankscope.text.spelling import did_you_mean
from rankscope.timeline.run import Run, open_run
from rankscope.viewer.address import checked_link
from rankscope.viewer.sql_process import SqlProcess

_MOST_OPEN = 8
"""The run that was used longest ago is closed for another."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_VIEWER_SECONDS = 10


class OpenRun:
    """A run, and the process that answers SQL about it."""

    def __init__(self, path: Path, cache: Path | None, say: Callable[[str], None]) -> None:
        self.path = path
        self.run: Run = open_run([path], cache=cache, progress=IngestProgress(say=say))
        keep_rollups(self.run, usable_cores(), lambda done, ranks: None, say)
        self._sql = SqlProcess(lambda: list(self.run.definitions()), self.run.folder)
        self._stamp = self._index_stamp()

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
            index = (self.run.store / INDEX_FILE).stat()
        except OSError:
            return None
        return index.st_ino, index.st_mtime_ns


class OpenRuns:
    """By path. Those that were named at the start are opened when they are first asked for."""

    def __init__(self, paths: Sequence[Path], cache: Path | None, say: Callable[[str], None]) -> None:
        self.paths = list(dict.fromkeys(paths))
        self._open: dict[Path, OpenRun] = {}
        self._cache, self._say = cache, say

    def open(self, text: str) -> OpenRun:
        """Open the run at a path; again, if it is open: files may have been added."""
        path = Path(os.path.expanduser(text))  # noqa: PTH111 - without a home, the path as it is
        if path in self._open:
            self._open.pop(path).close()
        opened = self._opened(path)
        if path not in self.paths:
            self.paths.append(path)
        return opened

    def find(self, name: str | None) -> OpenRun:
        """By its path or the last part of it; without a name, the only one."""
        return self._opened(self._path(name))

    def close(self) -> None:
        for opened in self._open.values():
            opened.close()

    def _path(self, name: str | None) -> Path:
        names = [str(path) for path in self.paths]
        if name is None:
            if len(self.paths) == 1:
                return self.paths[0]
            raise UsageError(
                "which run is meant is not clear" if names else "no run is open",
                why=f"These are open: {', '.join(names)}." if names else "None was named at the start.",
                hint="Give its path: run" if names else "Open one first: open(path)",
            )
        matching = [path for path in self.paths if name in (str(path), path.name)]
        if len(matching) != 1:
            raise UsageError(
                f"'{name[:200]}' is not an open run",
                why=f"These are open: {', '.join(names) or 'none'}.",
                hint=f"{did_you_mean(name[:80], names)}Open it first: open(path)",
            )
        return matching[0]

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


class Viewers:
    """By the path of the run."""

    def __init__(self, cache: Path | None) -> None:
        self._cache = cache
        self._addresses: dict[Path, str] = {}
        self._started: list[_Started] = []

    def show(self, run: Path, link: str, address: str | None) -> tuple[str, bool]:
        """The address of a page at this place, and whether pages that are open were moved there.

        `address` is that of a viewer that runs: what `rankscope view` has printed. It is remembered.
        """
        checked_link(link)
        if address is not None:
            address = _checked_address(address)
            _move(address, link)
            self._addresses[run] = address
            return f"{address}{link}", True
        earlier = self._addresses.pop(run, None)
        if earlier is not None:
            with contextlib.suppress(RankscopeError):  # it has ended: another is started
                _move(earlier, link)
                self._addresses[run] = earlier
                return f"{earlier}{link}", True
        started = _Started(run, self._cache)
        self._started.append(started)
        self._addresses[run] = started.url
        return f"{started.url}{link}", False

    def close(self) -> None:
        for started in self._started:
            started.stop()


class _Started:
    """A viewer in threads of this process."""

    def __init__(self, run: Path, cache: Path | None) -> None:
        from rankscope.store.ingest import Options
        from rankscope.viewer.address import Address
        from rankscope.viewer.server import Server
        from rankscope.viewer.startup import Opening

        self._opening = Opening([run], lambda: Options(cache=cache), lambda text: None)
        address = Address("127.0.0.1", 0)
        self._server = Server(address, self._opening.routes())
        self._serving = threading.Thread(target=self._server.serve, daemon=True)
        self._opening.start()
        self._serving.start()
        self.url = address.url

    def stop(self) -> None:
        self._server.stop()
        self._serving.join(_VIEWER_SECONDS)
        self._opening.wait(_VIEWER_SECONDS)
        self._opening.close()


def _checked_address(text: str) -> str:
    """The address of a viewer of this machine, without a place."""
    parts = urlsplit(text)
    if parts.scheme != "http" or parts.hostname not in _LOOPBACK or not parse_qs(parts.query).get("token"):
        raise UsageError(
            f"'{text[:80]}' is not the address of a viewer of this machine",
            why="It is like http://127.0.0.1:PORT/?token=…",
            hint="Give the whole line that `rankscope view` printed, or none: then a viewer is started.",
        )
    return text.partition("#")[0]


def _move(address: str, link: str) -> None:
    parts = urlsplit(address)
    headers = {"X-Rankscope-Token": parse_qs(parts.query)["token"][0]}
    url = f"http://{parts.netloc}/api/move?{urlencode({'link': link})}"
    request = urllib.request.Request(url, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_VIEWER_SECONDS):
            pass
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise RankscopeError(
            f"the viewer at {parts.netloc} cannot be moved",
            why=f"{error}.",
            hint="Start it again (rankscope view RUN) and give its address, or give none.",
        ) from error
