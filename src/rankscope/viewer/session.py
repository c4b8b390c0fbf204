"""An open run as the server holds it: lazily made arrays for drawing, and one lock around the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from rankscope.analysis.across_ranks.heatmap import RankTime, rank_times, rank_times_in_store
from rankscope.analysis.core.intervals import Intervals, intersect, subtract
from rankscope.analysis.core.rank_activity import waiting_times
from rankscope.analysis.core.scope import Scope
from rankscope.store.derived import File, Table, key_of, map_file, path_of, write
from rankscope.store.index import SegmentEntry, can_write
from rankscope.text.run_words import RunWords, shell_word
from rankscope.timeline.run import Run
from rankscope.viewer.answers import integer
from rankscope.viewer.lanes import Lanes, open_lanes
from rankscope.viewer.sql_process import SqlProcess

_RANKS_AT_A_TIME = 8
_RANKS_OF_A_FILE = 32
"""As many as the page asks for at once."""

T = TypeVar("T")

_RANK_TIMES = Table[RankTime]("map", RankTime, "rankscope.analysis.across_ranks.heatmap")

ACTIVITIES = ("compute", "comm", "wait", "copy")
"""The sets of `Activity`."""


@dataclass(frozen=True)
class Activity:
    """Disjoint sets of time of one rank, as the map draws them; what is in none of them is idle or not recorded."""

    compute: Intervals
    comm: Intervals
    """Exposed communication, without the waiting."""
    wait: Intervals
    """Exposed communication in which the rank waits for another rank."""
    copy: Intervals


class Session:
    """One run, open for a browser. Tiles read arrays and run concurrently; SQL runs one query at a time."""

    def __init__(self, run: Run, title: str, drawn: Run | None = None, path: Path | None = None) -> None:
        self.run = run
        self.drawn = drawn or run
        """`run` with the files of all tools, where several recorded a rank. Drawn, but not used for figures."""
        self.title = title
        self.path = path or Path(title)
        """As the user gave it: commands on the page name it, and marks are kept beside it."""
        self._database = threading.RLock()
        self._answers: dict[object, Any] = {}
        self._times: dict[int, RankTime] = {}
        self._making_times = threading.Lock()
        self.sql = SqlProcess(self._definitions, run.folder)
        """Queries of users; they do not hold up the page's own."""

    @property
    def words(self) -> RunWords:
        """What commands on the page call the run."""
        return RunWords(shell_word(str(self.path)))

    @contextmanager
    def database(self) -> Iterator[Run]:
        """`run`, locked: a DuckDB connection must not be used by several threads at once."""
        with self._database:
            yield self.run

    def _definitions(self) -> list[str]:
        with self._database:
            return list(self.run.definitions())

    @contextmanager
    def drawing(self) -> Iterator[Run]:
        """`drawn`, locked."""
        with self._database:
            yield self.drawn

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end of everything drawn, in ns from the start of the run."""
        timed = [(self.drawn.shift_ns(entry), entry) for entry in self.drawn.timelines]
        if not timed:
            return 0, 1
        begin = min(shift for shift, _ in timed)
        end = max(shift + entry.manifest["end_ns"] for shift, entry in timed)
        return begin, end if end > begin else max(self._last_point, begin + 1)

    @cached_property
    def _last_point(self) -> int:
        """The end of a run without durations, such as a memory snapshot alone."""
        with self.drawing() as run:
            ((last,),) = run.rows("SELECT coalesce(max(ts_ns), 0) FROM instants")
        return int(last)

    def ranks(self, query: dict[str, str]) -> list[int]:
        """The ranks that a request names, each once; all, if it names none."""
        if not query.get("ranks"):
            return self.run.ranks
        named = dict.fromkeys(integer(text) for text in query["ranks"].split(","))
        for rank in named.keys() - set(self.run.ranks):
            raise ValueError(f"the run has no rank {rank}")
        return list(named)

    def entry(self, rank: int, segment: int) -> SegmentEntry:
        for entry in self.drawn.timelines:
            if (entry.rank, entry.segment) == (rank, segment):
                return entry
        raise ValueError(f"the run has no rank {rank} with a segment {segment}")

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What is made at the first request, while the database is held; later ones do not wait for it."""
        if key not in self._answers:
            with self._database:
                if key not in self._answers:
                    self._answers[key] = make()
        answer: T = self._answers[key]
        return answer

    def lanes(self, rank: int, segment: int) -> Lanes:
        """The drawing arrays of a segment."""
        entry = self.entry(rank, segment)
        return self.once(("lanes", rank, segment), lambda: open_lanes(self.drawn, entry))

    def rank_time(self, rank: int) -> RankTime:
        """The activity of a rank over time; made once and kept in the store where that is writable.

        Also makes those of the next ranks, which the page requests next: one query costs more than its rows.
        """
        if rank in self._times:
            return self._times[rank]
        ranks = self.run.ranks
        first = ranks.index(rank) // _RANKS_OF_A_FILE * _RANKS_OF_A_FILE
        together = ranks[first : first + _RANKS_OF_A_FILE]
        path = path_of(self.run.store, map_file(together[0]))
        with self._making_times:
            if rank not in self._times:
                self._times |= rank_times_in_store(self.run, together)
            if rank in self._times:
                return self._times[rank]
            keys = self._map_keys(together)
            if self._times.keys().isdisjoint(together):
                self._times |= File(path).rows(_RANK_TIMES, keys)
            if rank not in self._times:
                missing = [other for other in together if other >= rank and other not in self._times]
                batch = missing[:_RANKS_AT_A_TIME]
                with self._database:
                    times = rank_times(self.run, Scope(frozenset(batch)), batch)
                self._times |= {time.rank: time for time in times}
                if can_write(self.run.store):
                    rows = {
                        each: (key, self._times[each]) for each, key in keys.items() if each in self._times
                    }
                    write(path, {_RANK_TIMES.name: _RANK_TIMES.encode(rows)})
        return self._times[rank]

    def _map_keys(self, ranks: list[int]) -> dict[int, int]:
        """They change with the files of a rank, its clock offset and the patterns that mark communication."""
        segments: dict[int, list[object]] = {rank: [] for rank in ranks}
        for entry in self.run.segments:
            if entry.rank in segments:
                segments[entry.rank].append((entry.segment, entry.build, self.run.shift_ns(entry)))
        return {rank: key_of(files, self.run.comm_patterns) for rank, files in segments.items()}

    def activity(self, rank: int) -> Activity:
        """The activity of a rank with the waiting apart."""
        time = self.rank_time(rank)

        def make() -> Activity:
            wait = intersect(time.comm, waiting_times(self.run)[rank])
            return Activity(time.compute, subtract(time.comm, wait), wait, time.copy)

        return self.once(("activity", rank), make)
