"""Opens the run in the background, so that the page loads at once and shows progress while raw traces are read.

What reads and draws is imported there, too: a page is answered before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope import units
from rankscope.errors import NotATraceError, RankscopeError, UsageError
from rankscope.text.json_values import plain
from rankscope.viewer.address import MOST_DROPPED, ViewLink
from rankscope.viewer.answers import Answer, NotReadyError, Route

if TYPE_CHECKING:
    from rankscope.store.ingest import Options
    from rankscope.timeline.run import Run
    from rankscope.viewer.session import Session
    from rankscope.watch.state import JobWatcher

_ROUTES = {
    "run_map": ("run", "overview", "grid"),
    "timeline": ("tracks", "tile"),
    "slices": ("slice", "neighbour", "flows"),
    "search": ("search", "find"),
    "collectives": ("collective",),
    "counters": ("counters", "counter"),
    "flame": ("flame",),
    "reports": ("report", "query", "schema"),
    "scenes": ("findings",),
    "charts": ("charts", "roofline", "memory"),
    "events": ("events", "area"),
    "bookmarks": ("marks", "keep-marks"),
}
"""The questions of the page about one run, by the module of this package that has functions of these names. A module
is imported when it is asked: the first picture needs few of them."""
_WATCHED_RANKS = 20
_PHASES = ("read", "link")
"""What is done with traces that are not in the store, before the run is open."""


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
        """Without runs it waits for what is dropped onto the page."""
        self._runs, self._options, self._say, self._mix = runs, options, say, mix
        self._quiet = quiet
        self.takes_drops = not runs
        self._state = "waiting" if self.takes_drops else "reading"
        """Or "open", "failed", or "telemetry": the folder of a job that is watched, without a trace. It
        changes last: a page asks at any moment."""
        self._started = 0.0
        self._sessions: list[Session] = []
        self._make_raw: Callable[[], dict[str, Route]]
        self._making = threading.Lock()
        self._done = threading.Event()
        self._link = ViewLink()
        self._forget()

    def _forget(self) -> None:
        """What is known of the runs."""
        self.close()
        self._sessions = []
        self._read: dict[Path, int] = {}
        self._total = self._files = 0
        self._times: list[float] = []
        """When reading began, when all files were read, and when their events were linked: ends of phases."""
        self._error: RankscopeError | None = None
        self._routes: dict[str, dict[str, Route]] = {}

    def start(self) -> None:
        self._done.clear()
        self._state = "reading"
        self._started = time.monotonic()
        threading.Thread(target=self._open, daemon=True).start()

    def show(self, run: Path) -> None:
        """Open a run that was dropped, in place of the one before."""
        with self._making:
            if self._state == "reading":
                raise UsageError(
                    "a run is being read", why="One is opened at a time.", hint="Drop it again in a moment."
                )
            self._forget()
            self._runs = [run]
            self.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether opening has ended, successfully or not."""
        return self._done.wait(seconds)

    @property
    def has_failed(self) -> bool:
        """There is nothing to show, and nothing will come."""
        return self._state == "failed" and not self.takes_drops

    def close(self) -> None:
        for session in self._sessions:
            session.sql.close()

    def _open(self) -> None:
        state = "failed"
        try:
            options = self._options()
            runs = [self._open_run(path, options) for path in self._runs]
            self._make_raw = lambda: self._routes_with([run.with_options(clocks="raw") for run in runs])
            self._routes["aligned"] = self._routes_with(runs)
            state = "open"
        except RankscopeError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the page must not wait for a run that will never open
            why = f"{type(error).__name__}: {error}."
            self._error = RankscopeError(
                "the run cannot be opened", why, "Please report it, with this message."
            )
        finally:
            if state == "failed" and isinstance(self._error, NotATraceError) and self._has_telemetry:
                state = "telemetry"
                self._say("There is no trace yet: the page shows the telemetry")
            elif state == "failed":
                self._say(f"rankscope: {self._error}")
            elif self._times:
                self._end_phase(len(_PHASES))
                if not self._quiet:
                    files = f"{self._files} file{'s' * (self._files > 1)} ({units.format_bytes(self._total)})"
                    self._say(f"Read {files} in {self._times[-1] - self._started:.1f} s; analysing")
            self._state = state
            self._done.set()
        import_module("rankscope.viewer.scenes")  # the page asks for the findings next, and draws meanwhile

    @property
    def _has_telemetry(self) -> bool:
        """Telemetry that cannot be read is none: it may be another user's, or be deleted at this moment."""
        from rankscope.watch.rings import has_telemetry

        try:
            return bool(self._runs) and has_telemetry(self._runs[-1])
        except (OSError, RankscopeError):
            return False

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
            sessions[-1].is_dropped = self.takes_drops
        self._sessions += sessions
        if len(sessions) == 1:
            return routes_of(sessions[0])
        from rankscope.viewer.two_runs import align, combined

        first, second = sessions
        align(first, second)
        return combined((first, second), routes_of(first), routes_of(second))

    def _open_run(self, path: Path, options: Options) -> Run:
        from rankscope.store.ingest import IngestProgress
        from rankscope.timeline.run import open_run

        def begin(files: int, total_bytes: int) -> None:
            self._total += total_bytes
            self._files += files
            self._end_phase(0)

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

    def routes(self) -> dict[str, Route]:
        """All routes by name. Those about the run answer when it is open."""
        routes = {name: self._route(name) for name in (*chain(*_ROUTES.values()), "share", "diff")}
        routes |= {
            "state": lambda query: self.state(again="again" in query),
            "index": lambda query: {"routes": sorted(routes)},
            "watch": lambda query: _watch(self._last_run),
            "capture": lambda query: _capture(self._last_run),
            "place": lambda query: self._link.to_dict(),
            "move": lambda query: self.move(query["link"]),
        }
        return routes

    @property
    def _last_run(self) -> Path:
        if not self._runs:
            raise UsageError("no run is open", hint="Drop a trace onto the page, or a folder with traces.")
        return self._runs[-1]

    def _route(self, name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            self._last_run  # noqa: B018 - there must be one
            if self._state == "reading":
                raise NotReadyError("the run is still being read", hint="/api/state has the progress.")
            if self._state != "open" and self._error:
                raise self._error
            routes = self._routes["aligned"]
            if query.get("clocks") == "raw":  # each rank's own: built on the first request
                with self._making:
                    if "raw" not in self._routes:
                        self._routes["raw"] = self._make_raw()
                    routes = self._routes["raw"]
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
        with self._making:
            if again and self._state == "telemetry" and self._done.is_set():
                self.start()
        state: dict[str, Any] = {"state": self._state}
        if state["state"] == "failed" and (error := self._error):
            folder = f"{self._runs[0].parent}/" if self.takes_drops else ""  # of the server alone
            state |= {"error": error.message.replace(folder, ""), "why": error.why, "hint": error.hint}
        elif state["state"] == "reading":
            state |= {
                "read_bytes": sum(self._read.values()),
                "total_bytes": self._total,
                "count": self._files,
            }
        title = " and ".join(path.resolve().name for path in self._runs)
        return {
            **state,
            "title": title,
            "phases": self._phases(),
            "telemetry": self._has_telemetry,
            "drops": MOST_DROPPED if self.takes_drops else 0,
        }

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


def routes_of(session: Session) -> dict[str, Route]:
    """All routes of one run."""

    def route(module: str, name: str) -> Route:
        def answer(query: dict[str, str]) -> Answer:
            function = getattr(import_module(f"rankscope.viewer.{module}"), name.replace("-", "_"))
            result: Answer = function(session, query)
            return result

        return answer

    def shared(query: dict[str, str]) -> Answer:
        from rankscope.viewer.shared_file import share

        return share(session, routes, query)

    routes = {name: route(module, name) for module, names in _ROUTES.items() for name in names}
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
