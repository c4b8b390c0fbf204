"""Opens the run in the background, so that the page loads at once and shows progress while raw traces are read.

What reads and draws is imported there, too: a page is answered before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope import units
from rankscope.errors import NotATraceError, RankscopeError, UsageError
from rankscope.text.json_values import plain
from rankscope.viewer.address import ViewLink
from rankscope.viewer.answers import Answer, NotReadyError, Route

if TYPE_CHECKING:
    from rankscope.store.ingest import Options
    from rankscope.timeline.run import Run
    from rankscope.viewer.growing import GrowingPicture
    from rankscope.viewer.session import Session
    from rankscope.watch.state import JobWatcher

_ROUTES = {
    "run": ("run_map", "run_info"),
    "overview": ("run_map", "overview"),
    "grid": ("run_map", "grid"),
    "tracks": ("timeline", "tracks"),
    "tile": ("timeline", "tile"),
    "slice": ("slices", "slice_details"),
    "neighbour": ("slices", "neighbour"),
    "flows": ("slices", "flows"),
    "search": ("search", "search"),
    "find": ("search", "find"),
    "collective": ("collectives", "collective"),
    "counters": ("counters", "counters"),
    "counter": ("counters", "counter"),
    "memory": ("counters", "memory"),
    "blocks": ("blocks", "blocks"),
    "flame": ("flame", "flame"),
    "report": ("reports", "report"),
    "findings": ("scenes", "findings"),
    "charts": ("charts", "charts"),
    "roofline": ("charts", "roofline_chart"),
    "query": ("reports", "sql"),
    "schema": ("reports", "schema"),
    "events": ("events", "events"),
    "area": ("events", "area"),
    "marks": ("bookmarks", "kept_marks"),
    "keep-marks": ("bookmarks", "keep_marks"),
}
"""The questions of the page about one run: the module of this package and its function. A module is imported when it is
asked: the first picture needs few of them."""
_WATCHED_RANKS = 20
_PHASES = ("read", "link")
"""What is done with traces that are not in the store, before the run is open."""
_MOST_FILES = 64
"""Whose progress the page shows."""


class Opening:
    """Reads one run, or two, in a thread. `routes` can be served from the start."""

    def __init__(
        self,
        runs: list[Path],
        options: Callable[[], Options],
        say: Callable[[str], None],
        *,
        mix: bool = False,
        quiet: bool = False,
    ) -> None:
        self._runs, self._options, self._say, self._mix = runs, options, say, mix
        self._quiet = quiet
        self._read: dict[Path, int] = {}
        self._total = self._files = 0
        self._times: list[float] = []
        """When reading began, when all files were read, and when their events were linked: ends of phases."""
        self._started = 0.0
        self._growing: GrowingPicture | None = None
        """Of a trace that is being read."""
        self._error: RankscopeError | None = None
        self._is_telemetry_alone = False
        """The folder is that of a job that is watched, and has no trace."""
        self._sessions: list[Session] = []
        self._routes: dict[str, dict[str, Route]] = {}
        self._make_raw: Callable[[], dict[str, Route]]
        self._making = threading.Lock()
        self._done = threading.Event()
        self._link = ViewLink()

    def start(self) -> None:
        self._started = time.monotonic()
        threading.Thread(target=self._open, daemon=True).start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether opening has ended, successfully or not."""
        return self._done.wait(seconds)

    @property
    def has_failed(self) -> bool:
        """There is nothing to show."""
        return self._error is not None and not self._is_telemetry_alone

    def close(self) -> None:
        for session in self._sessions:
            session.sql.close()

    def _open(self) -> None:
        try:
            options = self._options()
            runs = [self._open_run(path, options) for path in self._runs]
            self._make_raw = lambda: self._routes_with([run.with_options(clocks="raw") for run in runs])
            self._routes["aligned"] = self._routes_with(runs)
        except RankscopeError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the page must not wait for a run that will never open
            why = f"{type(error).__name__}: {error}."
            self._error = RankscopeError(
                "the run cannot be opened", why, "Please report it, with this message."
            )
        finally:
            if self._growing:
                from rankscope.timeline import segment

                segment.watching.clear()
            self._is_telemetry_alone = isinstance(self._error, NotATraceError) and self._has_telemetry
            if self._is_telemetry_alone:
                self._say("There is no trace yet: the page shows the telemetry")
            elif self._error:
                self._say(f"rankscope: {self._error}")
            elif self._times:
                self._end_phase(len(_PHASES))
                if not self._quiet:
                    files = f"{self._files} file{'s' * (self._files > 1)} ({units.format_bytes(self._total)})"
                    self._say(f"Read {files} in {self._times[-1] - self._started:.1f} s; analysing")
            self._done.set()
        import_module("rankscope.viewer.scenes")  # the page asks for the findings next, and draws meanwhile

    @property
    def _has_telemetry(self) -> bool:
        from rankscope.watch.rings import has_telemetry

        return has_telemetry(self._runs[-1])

    def _end_phase(self, number: int) -> None:
        """Phases before it that were not seen to end have ended too."""
        self._times += [time.monotonic()] * (number + 1 - len(self._times))

    def _routes_with(self, runs: list[Run]) -> dict[str, Route]:
        from rankscope.timeline.run import ALL_TOOLS
        from rankscope.viewer.session import Session

        sessions = []
        for run, path in zip(runs, self._runs, strict=True):
            drawn = run.with_options(prefer=ALL_TOOLS) if run.unused_segments else run
            sessions.append(Session(run, path.resolve().name, drawn, path))
        self._sessions += sessions
        if len(sessions) == 1:
            return routes_of(sessions[0])
        from rankscope.viewer.two_runs import align, combined

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

    def _open_run(self, path: Path, options: Options) -> Run:
        from rankscope.store.ingest import IngestProgress
        from rankscope.timeline.run import open_run

        def begin(files: int, total_bytes: int) -> None:
            self._total += total_bytes
            self._files += files
            self._end_phase(0)
            self._growing = self._watch_reading()

        def advance(path: Path, read: int, doing: str) -> None:
            self._read[path] = read
            if sum(self._read.values()) >= self._total:
                self._end_phase(1)

        progress = IngestProgress(begin, advance, say=self._say)
        run = open_run(
            [path],
            cache=options.cache,
            jobs=options.jobs,
            dask=options.dask,
            mix=self._mix,
            progress=progress,
        )
        for problem in run.problems:
            self._say(f"rankscope: {problem}")
        return run

    def _watch_reading(self) -> GrowingPicture:
        """Draw what this process reads: one file, or small ones. Of other files their number is shown."""
        from rankscope.timeline import segment
        from rankscope.viewer.growing import GrowingPicture

        picture = GrowingPicture()
        segment.watching[:] = [picture.add]
        return picture

    def routes(self) -> dict[str, Route]:
        """All routes by name. Those about the run answer when it is open."""
        routes = {name: self._route(name) for name in (*_ROUTES, "share", "diff")}
        routes |= {
            "state": lambda query: self.state(again="again" in query),
            "index": lambda query: {"routes": sorted(routes)},
            "watch": lambda query: _watch(self._runs[-1]),
            "capture": lambda query: _capture(self._runs[-1]),
            "place": lambda query: self._link.to_dict(),
            "move": lambda query: self.move(query["link"]),
            "growing": lambda query: self._growing.answer() if self._growing else {},
        }
        return routes

    def _route(self, name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            if self._error:
                raise self._error
            if not self._done.is_set():
                raise NotReadyError("the run is still being read", hint="/api/state has the progress.")
            routes = self._answering(query.get("clocks", ""))
            if name not in routes:
                raise UsageError(
                    f"/api/{name} needs two runs", hint="Start the viewer with two: rankscope view BASE NEW"
                )
            return routes[name](query)

        return answer

    def move(self, link: str) -> dict[str, Any]:
        """Move the pages that show the run to a place: they look for it every second."""
        self._link = self._link.moved(link)
        return self._link.to_dict()

    def state(self, again: bool = False) -> dict[str, Any]:
        """`again`: look for traces that a job has written since its telemetry is shown."""
        state: dict[str, Any]
        with self._making:
            if again and self._is_telemetry_alone and self._done.is_set():
                self._error, self._is_telemetry_alone = None, False
                self._done.clear()
                self.start()
        if self._is_telemetry_alone:
            state = {"state": "telemetry"}
        elif error := self._error:
            state = {"state": "failed", "error": error.message, "why": error.why, "hint": error.hint}
        elif self._done.is_set():
            state = {"state": "open"}
        else:
            state = {
                "state": "reading",
                "read_bytes": sum(self._read.values()),
                "total_bytes": self._total,
                "batches": self._growing.batches if self._growing else 0,
                "count": self._files,
                "files": [_share_of(*item) for item in [*self._read.items()][:_MOST_FILES]],
            }
        title = " and ".join(path.resolve().name for path in self._runs)
        return {**state, "title": title, "phases": self._phases(), "telemetry": self._has_telemetry}

    def _phases(self) -> list[dict[str, Any]]:
        """Those that have begun, with the seconds that they have taken; none where the store had everything.

        Looking for the files is part of reading them."""
        times = [*self._times]
        if times or (self._started and not self._done.is_set()):
            times[:1] = [self._started]
        ends = [*times[1:], time.monotonic()]
        return [
            {"name": name, "seconds": end - begin, "done": at + 1 < len(times)}
            for at, (name, begin, end) in enumerate(zip(_PHASES, times, ends, strict=False))
        ]


def _share_of(path: Path, read: int) -> tuple[str, float]:
    """The name of a file, and how much of it has been read."""
    try:
        return path.name, min(read / max(path.stat().st_size, 1), 1.0)
    except OSError:  # it has just been deleted: reading it tells
        return path.name, 0.0


def routes_of(session: Session) -> dict[str, Route]:
    """All routes of one run."""

    def route(module: str, function: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            result: Answer = getattr(import_module(f"rankscope.viewer.{module}"), function)(session, query)
            return result

        return answer

    def shared(query: dict[str, str]) -> Answer:
        from rankscope.viewer.shared_file import share

        return share(session, routes, query)

    routes = {name: route(*where) for name, where in _ROUTES.items()}
    return {**routes, "share": shared}


_watching = threading.Lock()


@lru_cache(1)
def _watcher(run: Path) -> JobWatcher:
    """It remembers since when an alarm is open."""
    from rankscope.analysis.health.hang import explain_hang
    from rankscope.watch.state import JobWatcher

    return JobWatcher(run, explain=explain_hang)


def _capture(run: Path) -> Answer:
    """Ask the running job to record its next steps."""
    from rankscope.watch.ask_capture import ask_capture

    return {"asked": [str(asked) for asked in ask_capture(run, reason="the page /watch")]}


def _watch(run: Path) -> Answer:
    """The state of `rankscope watch`, with the ranks to look at first instead of all of them."""
    from rankscope.watch.state import like_the_median, worst_ranks

    with _watching:
        state, _ = _watcher(run).look()
    shown = {
        "ranks": worst_ranks(state, _WATCHED_RANKS),
        "count": len(state["ranks"]),
        "like_median": like_the_median(state),
    }
    answer: Answer = plain({**state, "run": run.resolve().name, **shown})
    return answer
