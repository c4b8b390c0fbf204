"""An open run as the server holds it: lazily made arrays for drawing, and one lock around the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.across_ranks.heatmap import RankTime, rank_times
from rankscope.analysis.core.device_events import CLASSES
from rankscope.analysis.core.intervals import Intervals, intersect, subtract
from rankscope.analysis.core.rank_activity import waiting_times
from rankscope.analysis.core.scope import Scope
from rankscope.files import open_private, unique_name
from rankscope.store.layout import SegmentEntry, can_write
from rankscope.timeline.run import Run
from rankscope.viewer.answers import integer
from rankscope.viewer.collective_lanes import CollectiveSlices, collective_slices, communication
from rankscope.viewer.lanes import Lanes, open_lanes
from rankscope.viewer.sql_process import SqlProcess

_RANKS_AT_A_TIME = 8
_OVERVIEW_FILE = "map.npy"
"""Whole numbers: a key, on_host, the number of intervals of each set, then their starts and ends. One array is read
many times as fast as an archive of several, which counts at a thousand ranks."""
_OVERVIEW_SETS = (*CLASSES, "recorded")
_OVERVIEW_VERSION = 1

Series = tuple[NDArray[np.int64], NDArray[np.float64]]


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
        self._lanes: dict[tuple[int, int], Lanes] = {}
        self._communication: dict[int, Lanes] = {}
        self._series: dict[tuple[int, str], Series] = {}
        self._collective_slices: dict[int, CollectiveSlices] = {}
        self._times: dict[int, RankTime] = {}
        self._activities: dict[int, Activity] = {}
        self._making: dict[object, threading.Lock] = {}
        self._guard = threading.Lock()
        self.sql = SqlProcess(self._definitions, run.folder)
        """Queries of users; they do not hold up the page's own."""

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

    def lanes(self, rank: int, segment: int) -> Lanes:
        """The drawing arrays of a segment, made once. Other segments are not blocked meanwhile."""
        key = (rank, segment)
        entry = self.entry(rank, segment)
        with self._once(key):
            if key not in self._lanes:
                with self._database:
                    self._lanes[key] = open_lanes(self.drawn, entry)
        return self._lanes[key]

    def communication(self, rank: int) -> Lanes:
        """The collectives of a rank as a track."""
        if rank not in self.run.ranks:
            raise ValueError(f"the run has no rank {rank}")
        with self._database:
            if rank not in self._communication:
                self._communication[rank] = communication(self.run, rank)
            return self._communication[rank]

    def collective_slices(self, rank: int) -> CollectiveSlices:
        """How long each collective of a rank waited, and for whom. Tiles wait for the database the first time only."""
        if rank not in self._collective_slices:
            with self._database:
                self._collective_slices[rank] = collective_slices(self.run, rank)
        return self._collective_slices[rank]

    def counter(self, rank: int, name: str, load: Callable[[Run], Series]) -> Series:
        """Times and values of one counter, read once."""
        with self._database:
            if (rank, name) in self._series:
                return self._series[rank, name]
            series = load(self.run)
            if len(series[0]):  # names that do not exist would fill the memory
                self._series[rank, name] = series
            return series

    def rank_time(self, rank: int) -> RankTime:
        """The activity of a rank over time; made once and saved beside its segments where that is writable."""
        with self._once(rank):
            if rank not in self._times:
                self._times[rank] = self._load_rank_time(rank) or self._make_rank_time(rank)
        return self._times[rank]

    def activity(self, rank: int) -> Activity:
        """The activity of a rank with the waiting apart."""
        if rank not in self._activities:
            time = self.rank_time(rank)
            with self._database:
                wait = intersect(time.comm, waiting_times(self.run)[rank])
            self._activities[rank] = Activity(time.compute, subtract(time.comm, wait), wait, time.copy)
        return self._activities[rank]

    @contextmanager
    def _once(self, key: object) -> Iterator[None]:
        with self._guard:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            yield

    @cached_property
    def _segments(self) -> dict[int, list[SegmentEntry]]:
        """By rank."""
        found: dict[int, list[SegmentEntry]] = {}
        for entry in self.run.segments:
            found.setdefault(entry.rank, []).append(entry)
        return found

    def _rank_time_key(self, rank: int) -> int:
        """Changes with the files of the rank, its clock offset and the patterns that mark communication."""
        segments = [
            (entry.segment, entry.manifest["source"]["mtime_ns"], self.run.shift_ns(entry))
            for entry in self._segments.get(rank, [])
        ]
        text = repr((_OVERVIEW_VERSION, segments, self.run.comm_patterns))
        return int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "little")

    def _load_rank_time(self, rank: int) -> RankTime | None:
        try:
            saved = np.load(self.run.store / f"rank={rank:05d}" / _OVERVIEW_FILE)
            key, on_host, *sizes = saved[: len(_OVERVIEW_SETS) + 2].tolist()
            if key != self._rank_time_key(rank) or len(saved) != len(sizes) + 2 + 2 * sum(sizes):
                return None
        except (OSError, ValueError, EOFError):  # damaged: made again
            return None
        ends = np.cumsum([len(sizes) + 2, *(2 * size for size in sizes)])
        compute, comm, copy, recorded = (
            Intervals(*saved[low:high].reshape(2, -1)) for low, high in pairwise(ends.tolist())
        )
        return RankTime(rank, compute, comm, copy, bool(on_host), recorded)

    def _make_rank_time(self, rank: int) -> RankTime:
        """Also makes those of the next ranks, which the page requests next: one query costs more than its rows."""
        later = [other for other in self.run.ranks if other > rank and other not in self._times]
        batch = [rank, *later[: _RANKS_AT_A_TIME - 1]]
        with self._database:
            made = rank_times(self.run, Scope(frozenset(batch)), batch)
        for time in made:
            self._save_rank_time(time)
            self._times[time.rank] = time
        return made[0]

    def _save_rank_time(self, time: RankTime) -> None:
        rank = time.rank
        folder = self.run.store / f"rank={rank:05d}"
        if can_write(folder):
            temporary = folder / f".{_OVERVIEW_FILE}.{unique_name()}"
            try:
                sets = [getattr(time, name) for name in _OVERVIEW_SETS]
                head = [self._rank_time_key(rank), int(time.on_host), *(len(one.start) for one in sets)]
                with open_private(temporary, "wb") as file:
                    np.save(file, np.concatenate([np.array(head), *(times for one in sets for times in one)]))
                temporary.replace(folder / _OVERVIEW_FILE)
            except OSError:
                temporary.unlink(missing_ok=True)
