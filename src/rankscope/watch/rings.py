"""Reads the ring files of all ranks of a run: the last records of each, on one axis of steps.

Where the roles of a job have folders of their own in the run's (Ray's actors), each numbers its ranks from 0 on. The
ranks of the run are then those of one role after the other, by name, as of its traces (store.rank_assignment).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.capture.run_folder import RUN_MANIFEST, read_json
from rankscope.capture.telemetry_ring import (
    FIELDS,
    FOLDER,
    HEADER_BYTES,
    NONE,
    PHASES,
    RECORD,
    Header,
    read_header,
)
from rankscope.errors import StoreError, system_error
from rankscope.records import dataclass
from rankscope.watch.step_table import StepTable

RECENT = 256
"""Records of each rank that a live view judges."""
WARM_UP = 5
"""The first records of a rank: compiling, caches that fill."""
PATIENCE_S = 60.0
"""A rank whose last step ended so much earlier than that of another, and two steps more, is not waited for."""
MOST_NUMBERS = 1 << 20
"""Records in all that a whole ring is read to: 4,096 steps of 256 ranks, 1,024 of 1,024."""
_SHOWN = 4
"""Names in an error."""
_NAME = re.compile(r"rank-(\d+)\.ring")
_VALUES = FIELDS[2:-1]
_PROFILED, _STEP, _STEP_NS = map(FIELDS.index, ("profiled", "step", "step_ns"))
_ENDED = PHASES.index("ended")
LOST_AFTER_S = 60.0
"""A rank that has not written for so long has ended without saying so, or its node has. Ranks write every second, and
the clocks of nodes may differ by seconds."""


@dataclass(frozen=True)
class RankRing:
    """One rank's file as it was read."""

    path: Path
    rank: int
    header: Header
    about: dict[str, Any]
    records: NDArray[np.int64]
    """Rows of FIELDS, oldest first."""

    @property
    def number(self) -> int:
        """Of the rank in its folder."""
        return int(self.about.get("rank", self.rank))

    @property
    def role(self) -> str:
        return str(self.about.get("role") or "")

    @property
    def node(self) -> str:
        """The host's name: launchers number nodes differently."""
        return str(self.about.get("host") or self.about.get("node") or "")

    @property
    def stage(self) -> int | None:
        """Of a pipeline, where its process groups say so."""
        stage = self.about.get("stage")
        return stage if isinstance(stage, int) else None

    @property
    def off(self) -> str:
        """Why the rank has switched its telemetry off, while the job goes on; else empty."""
        return str(self.about.get("off") or "")

    @property
    def last_step(self) -> int:
        return int(self.records[-1, _STEP]) if len(self.records) else 0

    @property
    def last_end_unix_ns(self) -> int:
        """When the last step ended; before the first, when the rank began."""
        if len(self.records):
            return int(self.records[-1, FIELDS.index("end_unix_ns")])
        return int(self.about.get("started_unix_ns", self.header.alive_unix_ns))

    @property
    def has_ended(self) -> bool:
        return self.header.phase == _ENDED

    @property
    def phase(self) -> str:
        """What its training thread does."""
        if self.off:
            return "off"
        return PHASES[self.header.phase] if 0 <= self.header.phase < len(PHASES) else "unknown"

    @property
    def failure(self) -> dict[str, Any]:
        """The exception that ended it: type, message, where, unix_ns; {} without one."""
        failure = self.about.get("failure")
        if not isinstance(failure, dict) or not isinstance(failure.get("unix_ns"), int):
            return {}
        texts = {key: str(failure.get(key) or "") for key in ("type", "message", "where")}
        return {} if texts["type"] == "KeyboardInterrupt" else {**texts, "unix_ns": failure["unix_ns"]}

    def is_lost(self, at_unix_ns: int) -> bool:
        return not self.has_ended and at_unix_ns - self.header.alive_unix_ns > LOST_AFTER_S * 1e9

    def without_step_s(self, at_unix_ns: int) -> float:
        """For how long it has made no step, by its own clock while it writes."""
        alive = at_unix_ns if self.is_lost(at_unix_ns) else self.header.alive_unix_ns
        return max(alive - self.last_end_unix_ns, 0) / 1e9


class NoTelemetryError(StoreError):
    """No rank of the run has written telemetry, or none yet."""


class RankFolder(NamedTuple):
    """A folder with telemetry, and the rank in the run of its rank 0."""

    path: Path
    first: int


def rank_folders(run: Path) -> list[RankFolder]:
    """That of the run, or those of its roles; none where no rank has begun, or the folders are of several jobs."""
    if (run / FOLDER).is_dir():
        return [RankFolder(run / FOLDER, 0)]
    below = _telemetry_below(run)
    jobs = {str((read_json(folder.parent / RUN_MANIFEST) or {}).get("job", folder)) for folder in below}
    folders, first = [], 0
    for folder in below if len(jobs) == 1 else ():
        folders.append(RankFolder(folder, first))
        first += max((_world_size(rank, path) for rank, path in _ring_files(folder)), default=0)
    return folders


def _telemetry_below(run: Path) -> list[Path]:
    """In the folders of this one."""
    try:
        below = [path for path in run.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []  # one may ask before the first rank has begun
    except OSError as error:
        raise system_error(error) from error
    folders = []
    for path in below:
        with suppress(OSError):  # somebody else's
            folders += [path / FOLDER] if (path / FOLDER).is_dir() else []
    return sorted(folders)


def _ring_files(folder: Path) -> list[tuple[int, Path]]:
    try:
        return sorted(
            (int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))
        )
    except OSError as error:
        raise system_error(error) from error


def _world_size(rank: int, path: Path) -> int:
    ring = _read(rank, path, 0)
    return max(rank + 1, int(ring.about.get("world_size") or 0) if ring else 0)


def has_telemetry(run: Path) -> bool:
    return any(_ring_files(folder.path) for folder in rank_folders(run))


def rank_files(run: Path, pattern: str) -> Iterator[tuple[RankFolder, Path]]:
    """Other files of the telemetry, in the order of their names."""
    for folder in rank_folders(run):
        for path in sorted(folder.path.glob(pattern)):
            if path.is_file():
                yield folder, path


def read_rings(run: Path, most: int = RECENT) -> list[RankRing]:
    """The last `most` records of each rank, by rank. Files that are being created are left out."""
    names = [
        (folder.first + rank, path) for folder in rank_folders(run) for rank, path in _ring_files(folder.path)
    ]
    if not names and (folders := _telemetry_below(run)):
        raise StoreError(
            f"{run} holds the telemetry of several jobs",
            why=f"Among them: {', '.join(path.parent.name for path in folders[:_SHOWN])}.",
            hint=f"Name one: {folders[-1].parent}",
        )
    if not names:
        raise NoTelemetryError(
            f"{run} has no telemetry",
            why=f"There is no {FOLDER}/rank-….ring: the job was started without --watch, or no rank has begun.",
            hint="Start the job with it: rankscope profile --watch …",
        )
    rings = (_read(rank, path, most) for rank, path in names)
    return [ring for ring in rings if ring is not None]


def read_whole(run: Path) -> list[RankRing]:
    """All records; of very many ranks the last ones (MOST_NUMBERS)."""
    ranks = len(read_rings(run, 0))
    return read_rings(run, max(RECENT, MOST_NUMBERS // max(ranks, 1)))


def _read(rank: int, path: Path, most: int) -> RankRing | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would block
    except OSError:
        return None
    try:
        ring = read_header(os.pread(file, HEADER_BYTES, 0))
        if ring is None:
            return None
        records, capacity = ring.header.records, ring.header.capacity
        count = min(records, capacity, most)
        first = (records - count) % capacity if capacity else 0
        before_wrap = min(count, capacity - first)
        data = os.pread(file, before_wrap * RECORD.size, HEADER_BYTES + first * RECORD.size)
        if before_wrap < count:
            data += os.pread(file, (count - before_wrap) * RECORD.size, HEADER_BYTES)
    finally:
        os.close(file)
    rows = np.frombuffer(data[: len(data) // RECORD.size * RECORD.size], dtype="<i8").reshape(-1, len(FIELDS))
    numbers = np.arange(records - count + 1, records - count + 1 + len(rows))
    # A slot with another number is being overwritten.
    return RankRing(path, rank, ring.header, ring.about, rows[rows[:, 0] == numbers])


def tables(rings: Sequence[RankRing]) -> list[StepTable]:
    """One table for each role, up to the last step that all its ranks have reached: the rank that is missing may be the
    slow one. Ranks that have ended, or make no steps any more, are not waited for."""
    roles = dict.fromkeys(ring.role for ring in rings)
    by_role = (_table([ring for ring in rings if ring.role == role]) for role in roles)
    return [table for table in by_role if table is not None]


def _table(rings: Sequence[RankRing]) -> StepTable | None:
    # Without the first records, and without steps that a profiler slowed.
    judged = [
        ring.records[(ring.records[:, 0] > WARM_UP) & (ring.records[:, _PROFILED] != 1)] for ring in rings
    ]
    waited_for = _in_step(rings)
    last = min(
        (int(judged[column][-1, _STEP]) if len(judged[column]) else -1 for column in waited_for), default=-1
    )
    if last < 0:
        return None
    first = max(min(int(rows[0, _STEP]) for rows in judged if len(rows)), last + 1 - max(map(len, judged)))
    cube = np.full((last + 1 - first, len(rings), len(FIELDS)), NONE, dtype=np.int64)
    for column, rows in enumerate(judged):
        index = rows[:, _STEP] - first
        inside = (index >= 0) & (index < len(cube))
        cube[index[inside], column] = rows[inside]
    values = {}
    for index, field in enumerate(_VALUES, start=2):
        numbers = cube[:, :, index].astype(np.float64)
        numbers[numbers == NONE] = np.nan
        values[field] = numbers
    # A step that a profiler slowed on some ranks is missing in their columns.
    reached = np.isfinite(values["step_ns"][:, waited_for]).all(axis=1)
    if not reached.any():
        return None
    return StepTable(
        np.arange(first, last + 1)[reached],
        np.array([ring.rank for ring in rings]),
        tuple(ring.node for ring in rings),
        {field: numbers[reached] for field, numbers in values.items()},
        rings[0].role,
        stages=tuple(ring.stage for ring in rings),
    )


def _in_step(rings: Sequence[RankRing]) -> list[int]:
    """The indices of ranks that are waited for."""
    going = [index for index, ring in enumerate(rings) if not ring.has_ended] or [*range(len(rings))]
    newest = max(rings[index].last_end_unix_ns for index in going)
    longest = max((int(ring.records[-1, _STEP_NS]) for ring in rings if len(ring.records)), default=0)
    patience_ns = PATIENCE_S * 1e9 + 2 * longest
    return [index for index in going if newest - rings[index].last_end_unix_ns <= patience_ns]
