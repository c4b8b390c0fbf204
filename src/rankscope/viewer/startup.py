"""Opens the run in the background, so that the page loads at once and shows progress while raw traces are read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankscope.errors import RankscopeError, UsageError
from rankscope.store.ingest import IngestProgress, Options
from rankscope.timeline.run import ALL_TOOLS, Run, open_run
from rankscope.viewer import (
    blocks,
    collective_peers,
    counters,
    events,
    flame,
    flows,
    marks,
    reports,
    search,
    shared_file,
    slices,
    timeline,
)
from rankscope.viewer.answers import Answer, Route
from rankscope.viewer.place import Place
from rankscope.viewer.session import Session
from rankscope.viewer.two_runs import align, combined
from rankscope.viewer.watch_page import watch
from rankscope.watch.rings import has_telemetry

_ROUTE_MODULES = (
    timeline,
    slices,
    search,
    flows,
    collective_peers,
    counters,
    blocks,
    flame,
    reports,
    events,
    marks,
)


class Opening:
    """Reads one run, or two, in a thread. `routes` can be served from the start."""

    def __init__(
        self, runs: list[Path], options: Options, say: Callable[[str], None], *, mix: bool = False
    ) -> None:
        self._runs, self._options, self._say, self._mix = runs, options, say, mix
        self._read: dict[Path, int] = {}
        self._total = 0
        self._error: RankscopeError | None = None
        self._sessions: list[Session] = []
        self._routes: dict[str, dict[str, Route]] = {}
        self._make_raw: Callable[[], dict[str, Route]]
        self._making = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._open, daemon=True)
        self._place = Place()

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether opening has ended, successfully or not."""
        return self._done.wait(seconds)

    def close(self) -> None:
        for session in self._sessions:
            session.sql.close()

    def _open(self) -> None:
        try:
            runs = [self._open_run(path) for path in self._runs]
            self._make_raw = lambda: self._routes_with([run.with_options(clocks="raw") for run in runs])
            self._routes["aligned"] = self._routes_with(runs)
        except RankscopeError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001 - the page must not wait for a run that will never open
            why = f"{type(error).__name__}: {error}."
            self._fail(
                RankscopeError("the run cannot be opened", why, "Please report it, with this message.")
            )
        finally:
            self._done.set()

    def _fail(self, error: RankscopeError) -> None:
        self._error = error
        self._say(f"rankscope: {error}")

    def _routes_with(self, runs: list[Run]) -> dict[str, Route]:
        sessions = []
        for run, path in zip(runs, self._runs, strict=True):
            drawn = run.with_options(prefer=ALL_TOOLS) if run.unused_segments else run
            sessions.append(Session(run, path.resolve().name, drawn, path))
        self._sessions += sessions
        if len(sessions) == 1:
            return routes_of(sessions[0])
        first, second = sessions
        align(first, second)
        return combined((first, second), routes_of(first), routes_of(second))

    def _answering(self, clocks: str) -> dict[str, Route]:
        """The routes on aligned clocks, or on each rank's own clock; the latter are built on the first request."""
        if clocks != "raw":
            return self._routes["aligned"]
        with self._making:
            if "raw" not in self._routes:
                self._routes["raw"] = self._make_raw()
            return self._routes["raw"]

    def _open_run(self, path: Path) -> Run:
        options = self._options
        run = open_run(
            [path],
            cache=options.cache,
            jobs=options.jobs,
            dask=options.dask,
            mix=self._mix,
            progress=IngestProgress(self._begin, self._advance, say=self._say),
        )
        for problem in run.problems:
            self._say(f"rankscope: {problem}")
        return run

    def _begin(self, files: int, total_bytes: int) -> None:
        self._total += total_bytes

    def _advance(self, path: Path, read: int, doing: str) -> None:
        self._read[path] = read

    def routes(self) -> dict[str, Route]:
        """All routes by name. Until the run is open, only `state`, `index` and `watch` answer."""
        return {name: self._route(name) for name in _names()}

    def _route(self, name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            if name == "state":
                return self.state()
            if name == "index":
                return {"routes": sorted(_names())}
            if name == "watch":  # needs no trace
                return watch(self._runs[-1])
            if name == "place":
                return self._place.to_dict()
            if name == "move":
                return self.move(query["link"])
            if self._error:
                raise self._error
            if not self._done.is_set():
                raise RankscopeError("the run is still being read", hint="/api/state has the progress.")
            routes = self._answering(query.get("clocks", ""))
            if name not in routes:
                raise UsageError(
                    f"/api/{name} needs two runs", hint="Start the viewer with two: rankscope view BASE NEW"
                )
            return routes[name](query)

        return answer

    def move(self, link: str) -> dict[str, Any]:
        """Move the pages that show the run to a place: they look for it every second."""
        self._place = self._place.moved(link)
        return self._place.to_dict()

    def state(self) -> dict[str, Any]:
        found: dict[str, Any]
        if error := self._error:
            found = {"state": "failed", "error": error.message, "why": error.why, "hint": error.hint}
        elif self._done.is_set():
            found = {"state": "open"}
        else:
            read = sum(self._read.values())
            found = {"state": "reading", "read_bytes": read, "total_bytes": self._total}
        return {**found, "telemetry": has_telemetry(self._runs[-1])}


def routes_of(session: Session) -> dict[str, Route]:
    """All routes of one run."""
    found = {name: route for module in _ROUTE_MODULES for name, route in module.routes(session).items()}
    return {**found, "share": lambda query: shared_file.share(session, found, query)}


def _names() -> list[str]:
    no_session: Any = None  # routes only close over it
    return [*routes_of(no_session), "diff", "watch", "state", "index", "place", "move"]
