"""An open run as the server holds it: lazily made arrays for drawing, and one lock around the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankscope.analysis.core.intervals import EMPTY, Intervals, intersect, join, subtract
from rankscope.analysis.core.kept_answers import Answers
from rankscope.store.derived import Table, key_of, map_file
from rankscope.store.index import SegmentEntry, can_write
from rankscope.text.run_words import RunWords
from rankscope.timeline.run import Run
from rankscope.viewer.answers import integer
from rankscope.viewer.sql_process import SqlProcess

if TYPE_CHECKING:
    from rankscope.analysis.across_ranks.heatmap import RankTime
    from rankscope.viewer.lanes import Lanes

_RANKS_AT_A_TIME = 8
_RANKS_OF_A_FILE = 32
"""As many as the page asks for at once."""

T = TypeVar("T")

ACTIVITIES = ("compute", "comm", "wait", "copy", "bubble")
"""The sets of `Activity`."""


@dataclass(frozen=True)
class Activity:
    """Disjoint sets of time of one rank, as the map draws them; what is in none of them is idle or not recorded."""

    compute: Intervals
    comm: Intervals
    """Exposed communication, without the waiting."""
    wait: Intervals
    """Exposed communication in which the rank waits for another rank, without the bubbles."""
    copy: Intervals
    bubble: Intervals
    """Idle, or waiting in send and recv, while another stage of the rank's pipeline computes."""
    on_host: bool
    """The rank has no GPU events, so compute is that of the host."""
    recorded: Intervals
    """The time between two cycles of the profiler is not in it, and not idle."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The first start and the last end; 0 where nothing ran."""
        everything = join(self.compute, self.comm, self.wait, self.copy)
        return (int(everything.start[0]), int(everything.end[-1])) if len(everything.start) else (0, 0)


class Session:
    """One run, open for a browser. Tiles read arrays and run concurrently; SQL runs one query at a time."""

    is_dropped = False
    """It is in a temporary folder: nothing is kept beside it, and nobody else has it at its path."""

    def __init__(self, run: Run, title: str, drawn: Run | None = None, path: Path | None = None) -> None:
        self.run = run
        self.drawn = drawn or run
        """`run` with the files of all tools, where several recorded a rank. Drawn, but not used for figures."""
        self.title = title
        self.path = path or Path(title)
        """As the user gave it: commands on the page name it, and marks are kept beside it."""
        self._database = threading.RLock()
        self._answers: dict[object, Any] = {}
        self._activities: dict[int, Activity] = {}
        self._making_activities = threading.Lock()
        self.sql = SqlProcess(self._definitions, run.folder)
        """Queries of users; they do not hold up the page's own."""

    @property
    def words(self) -> RunWords:
        """What commands on the page call the run."""
        return RunWords((str(self.path),))

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
        from rankscope.viewer.lanes import open_lanes

        entry = self.entry(rank, segment)
        return self.once(("lanes", rank, segment), lambda: open_lanes(self.drawn, entry))

    def activity(self, rank: int) -> Activity:
        """What a rank does over time, with the waiting apart; made once."""
        if rank not in self._activities:
            with self._making_activities:
                if rank not in self._activities:
                    self._add_activities(rank)
        return self._activities[rank]

    def _add_activities(self, rank: int) -> None:
        """From the store: as they were drawn before, or as the ranks were read. Else made, and kept for the next time.

        Also those of the next ranks, which the page requests next: one query costs more than its rows.
        """
        ranks = self.run.ranks
        first = ranks.index(rank) // _RANKS_OF_A_FILE * _RANKS_OF_A_FILE
        together = ranks[first : first + _RANKS_OF_A_FILE]
        table = Table[Activity](map_file(together[0]), Activity)
        if self._activities.keys().isdisjoint(together):
            rows = table.rows(self.run.store).items()
            self._activities |= {each: kept for each, (key, kept) in rows if key == self._key}
        if rank in self._activities:
            return
        from rankscope.analysis.across_ranks.bubbles import bubble_times
        from rankscope.analysis.across_ranks.heatmap import rank_times, rank_times_in_store
        from rankscope.analysis.core.rank_activity import waiting_times
        from rankscope.analysis.core.scope import Scope

        with self._database:
            times = rank_times_in_store(self.run, together)
            is_new = rank not in times
            if is_new:
                missing = [each for each in together if each >= rank and each not in self._activities]
                batch = missing[:_RANKS_AT_A_TIME]
                times = {time.rank: time for time in rank_times(self.run, Scope(frozenset(batch)), batch)}
            waits, bubbles = waiting_times(self.run), bubble_times(self.run)
        self._activities |= {
            each: _split(time, waits[each], bubbles.get(each, EMPTY)) for each, time in times.items()
        }
        if is_new and can_write(self.run.store):
            made = {each: self._activities[each] for each in together if each in self._activities}
            table.write(self.run.store, {each: (self._key, kept) for each, kept in made.items()})

    @cached_property
    def _key(self) -> int:
        """Of all that the map shows: the files of all ranks, their clocks, and the patterns that mark communication."""
        files = [
            (entry.rank, entry.segment, entry.build, self.run.shift_ns(entry)) for entry in self.run.segments
        ]
        return key_of(files, self.run.comm_patterns)

    def kept(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """An answer about the whole run that the store keeps."""

        def answer() -> dict[str, Any]:
            name_in_store = f"view {name} {self._key}"
            answers = Answers(self.run)
            if (values := answers.get(name_in_store)) is not None:
                (value,) = values
            else:
                value = make()
                answers.keep({name_in_store: value})
            return dict(value)

        return self.once((name, self._key), answer)


def _split(time: RankTime, waiting: Intervals, bubbles: Intervals) -> Activity:
    """With waiting apart from the transfer, and bubbles apart from waiting and from idle time."""
    wait = intersect(time.comm, waiting)
    transfer = subtract(time.comm, wait)
    bubble = subtract(bubbles, join(time.compute, transfer, time.copy)) if len(bubbles.start) else EMPTY
    wait = subtract(wait, bubble)
    return Activity(time.compute, transfer, wait, time.copy, bubble, time.on_host, time.recorded)
