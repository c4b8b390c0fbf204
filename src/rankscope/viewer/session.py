"""What the server keeps of an open run: its arrays, its map, and one lock around the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.across_ranks.heatmap import CLASSES, RankTime, rank_times
from rankscope.analysis.core.intervals import Intervals
from rankscope.analysis.core.scope import Scope
from rankscope.store.layout import SegmentEntry, can_write
from rankscope.store.run import Run
from rankscope.viewer.communication import communication
from rankscope.viewer.lanes import Lanes, open_lanes

_RANKS_AT_A_TIME = 8
_MAP_FILE = "map.npz"

Series = tuple[NDArray[np.int64], NDArray[np.float64]]


class Session:
    """One run, open for a browser. Tiles read arrays only; what needs SQL takes turns."""

    def __init__(self, run: Run, title: str, drawn: Run | None = None) -> None:
        self.run = run
        self.drawn = drawn or run
        """With the files of all tools, where several recorded a rank: for tracks and slices, not for figures."""
        self.title = title
        self._database = threading.RLock()
        self._lanes: dict[tuple[int, int], Lanes] = {}
        self._communication: dict[int, Lanes] = {}
        self._series: dict[tuple[int, str], Series] = {}
        self._times: dict[int, RankTime] = {}
        self._making: dict[object, threading.Lock] = {}
        self._guard = threading.Lock()

    @contextmanager
    def database(self) -> Iterator[Run]:
        """The run for SQL: one question at a time, since DuckDB's connection is not for several threads."""
        with self._database:
            yield self.run

    @contextmanager
    def drawing(self) -> Iterator[Run]:
        """The same for what is drawn: all tools' files."""
        with self._database:
            yield self.drawn

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end of all that is drawn, in ns from the run's start."""
        timed = [(self.drawn.shift_ns(entry), entry) for entry in self.drawn.timelines]
        if not timed:
            return 0, 1
        return min(shift for shift, _ in timed), max(
            shift + entry.manifest["end_ns"] for shift, entry in timed
        )

    def entry(self, rank: int, segment: int) -> SegmentEntry:
        for entry in self.drawn.timelines:
            if (entry.rank, entry.segment) == (rank, segment):
                return entry
        raise ValueError(f"the run has no rank {rank} with a segment {segment}")

    def lanes(self, rank: int, segment: int) -> Lanes:
        """The drawing arrays of a segment, made once; other segments can be asked for meanwhile."""
        key = (rank, segment)
        with self._once(key):
            if key not in self._lanes:
                entry = self.entry(rank, segment)
                with self._database:
                    self._lanes[key] = open_lanes(self.drawn, entry)
        return self._lanes[key]

    def communication(self, rank: int) -> Lanes:
        """What a rank takes part in, above its streams."""
        with self._database:
            if rank not in self._communication:
                self._communication[rank] = communication(self.run, rank)
            return self._communication[rank]

    def counter(self, rank: int, name: str, load: Callable[[Run], Series]) -> Series:
        """Times and values of one series, read once."""
        with self._database:
            if (rank, name) not in self._series:
                self._series[rank, name] = load(self.run)
            return self._series[rank, name]

    def rank_time(self, rank: int) -> RankTime:
        """When a rank did what, made once and kept beside its segments where that is allowed."""
        with self._once(rank):
            if rank not in self._times:
                self._times[rank] = self._kept_map(rank) or self._made_map(rank)
        return self._times[rank]

    @contextmanager
    def _once(self, key: object) -> Iterator[None]:
        with self._guard:
            lock = self._making.setdefault(key, threading.Lock())
        with lock:
            yield

    def _map_key(self, rank: int) -> str:
        """Changes when a file of the rank does, when its clock is set anew, or when other names communicate."""
        segments = [
            (entry.segment, entry.manifest["source"]["mtime_ns"], self.run.shift_ns(entry))
            for entry in self.run.segments
            if entry.rank == rank
        ]
        return repr((segments, self.run.comm_patterns))

    def _kept_map(self, rank: int) -> RankTime | None:
        try:
            with np.load(self.run.store / f"rank={rank:05d}" / _MAP_FILE) as kept:
                if str(kept["key"]) != self._map_key(rank):
                    return None
                compute, comm, copy = (Intervals(*kept[name]) for name in CLASSES)
                return RankTime(rank, compute, comm, copy, bool(kept["on_host"]))
        except (OSError, ValueError, KeyError):
            return None

    def _made_map(self, rank: int) -> RankTime:
        """With those that will be asked for next: a question to the store costs more than a rank's rows."""
        later = [other for other in self.run.ranks if other > rank and other not in self._times]
        some = [rank, *later[: _RANKS_AT_A_TIME - 1]]
        with self._database:
            made = rank_times(self.run, Scope(frozenset(some)), some)
        for time in made:
            self._keep_map(time)
            self._times[time.rank] = time
        return made[0]

    def _keep_map(self, time: RankTime) -> None:
        rank = time.rank
        folder = self.run.store / f"rank={rank:05d}"
        if can_write(folder):
            temporary = folder / f".{_MAP_FILE}"
            try:
                with temporary.open("wb") as file:
                    np.savez(
                        file,
                        key=np.array(self._map_key(rank)),
                        on_host=np.array(time.on_host),
                        compute=np.stack(time.compute),
                        comm=np.stack(time.comm),
                        copy=np.stack(time.copy),
                    )
                temporary.replace(folder / _MAP_FILE)
            except OSError:
                temporary.unlink(missing_ok=True)
