"""The interface of a reader: it recognises a file, identifies its rank, and yields its events as batches of columns."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.errors import ReadError
from rankscope.model import OTHER_FORMAT, Table
from rankscope.readers.byte_stream import ByteStream, open_stream
from rankscope.records import dataclass

if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns

_MAX_EXAMPLES = 5
_MOST_RANKS = 1 << 20
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])rank[-_]?(\d{1,6})(?!\d)|-(\d{1,6})-of-\d", re.IGNORECASE)
# nsys and ncu reports are commonly written with `-o name_%q{RANK}`; flight-recorder dumps are named _dump_3,
# Megatron's memory snapshots snapshot_3.pickle.
# TORCH_NCCL_DEBUG_INFO_TEMP_FILE is a prefix, often with the host: nccl_trace_rank_node02_5.
_RANK_AT_END = re.compile(
    r"_(\d{1,5})\.(?:nsys-rep|sqlite|ncu-rep)$"
    r"|(?:_dump_|snapshot_|(?:nccl|comm_lib)_trace_rank_(?:.*_)?)(\d{1,6})(?:\.[a-z.]+)?$",
    re.IGNORECASE,
)

NCCL_PLUGIN_EVENT = re.compile(
    rb'"cat":\s*"(?:GROUP_API|GROUP|COLL_API|COLL|P2P_API|P2P|PROXY)",\s*"ph":\s*"b",\s*"id":\s*\d'
)
"""An event of NCCL's profiler plugin, whose dumps are Chrome traces that have a reader of their own."""


@dataclass(frozen=True)
class TraceIdentity:
    """The rank of a file and its origin, found without reading the whole file."""

    rank: int | None
    rank_source: str
    """Where the rank comes from: 'distributedInfo', 'file name', …; '' if it is not known."""
    world_size: int | None = None
    trace_id: str = ""
    """Differs between captures. If two files have the same id, one is a copy."""
    part: str = ""
    """Which part of a file with several ranks; empty for the whole file."""
    communicator: str = ""
    """For a file of one NCCL communicator: the rank is that in it, and not yet that in the job."""
    process: str = ""
    """The process that wrote such a file."""


@dataclass
class ReadReport:
    """Events that were lost or repaired, and other damage. `ingest` and `doctor` show it."""

    events_lost: int = 0
    events_repaired: int = 0
    damage: str = ""
    """Why the file ended early; empty if it is complete."""
    examples: list[str] = field(default_factory=list)

    def lose(self, why: str, count: int = 1) -> None:
        self.add(ReadReport(events_lost=count, examples=[f"lost: {why}"]))

    def repaired(self, why: str, count: int = 1) -> None:
        self.add(ReadReport(events_repaired=count, examples=[f"repaired: {why}"]))

    def add(self, other: ReadReport) -> None:
        """Count what another report has; of examples, the first are kept."""
        report: ReadReport = getattr(_thread, "report", self)
        report.events_lost += other.events_lost
        report.events_repaired += other.events_repaired
        report.examples += other.examples
        del report.examples[_MAX_EXAMPLES:]


_thread = threading.local()


@contextmanager
def reported_apart() -> Iterator[ReadReport]:
    """What this thread reports meanwhile is put into a report of its own. Batches are read side by side: theirs are
    added up in file order, so that the sum does not depend on the threads."""
    _thread.report = ReadReport()
    try:
        yield _thread.report
    finally:
        del _thread.report


class EventBatch:
    """Some of a file's events. Batches may be read in parallel, in any order; `columns` is called once."""

    def columns(self) -> EventColumns:
        raise NotImplementedError

    def close(self) -> None:
        """Free what the events were read from."""


class ReadyBatch(EventBatch):
    """Events that are columns already."""

    def __init__(self, columns: EventColumns) -> None:
        self._columns = columns

    def columns(self) -> EventColumns:
        return self._columns


class Batch(Protocol):
    """Some of a file's rows, as a SELECT with the columns of a table."""

    def select(self) -> str: ...

    def select_repaired(self) -> str:
        """The fallback if the first SELECT fails: damaged rows are repaired or left out, and counted."""

    def close(self) -> None: ...


class Reading:
    """One pass over one file."""

    def __init__(self, path: Path) -> None:
        self.report = ReadReport()
        self.header: dict[str, Any] = {}
        """The file's own metadata; complete after the last batch."""
        self._path = path

    def batches(self) -> Iterator[EventBatch]:
        raise NotImplementedError

    def position(self) -> int:
        """Bytes of the file read so far."""
        return self._path.stat().st_size

    def clock_base_ns(self) -> int:
        """Nanoseconds since 1970 at ts_ns = 0."""
        return 0

    def open_file(self) -> ByteStream:
        """The bytes of the file, decompressed."""
        return open_stream(self._path)

    def further(self) -> Iterator[tuple[Table, Batch]]:
        """Tables besides the events. Called after the last batch."""
        return iter(())


class Reader:
    """One format."""

    name = OTHER_FORMAT
    """In the column `format` of the table segments."""
    reading: type[Reading]
    """What `open` makes, for files of one rank."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether a file is of this format. Asked where its name or its first bytes, here decompressed, may be."""
        return True

    def identify(self, path: Path) -> TraceIdentity:
        return self.identify_parts(path)[0]

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        """One for each rank in the file, such as the nsys report of a whole node; mostly one, from its name."""
        return [identity_from_name(path)]

    def open(self, path: Path, part: str = "") -> Reading:
        """One pass over the part of a file that an identity refers to."""
        return self.reading(path)


XPLANE_NAME, JSON_NAME = ".xplane.pb", ".trace.json.gz"
"""The files of one recording of XLA's profiler."""
PERFETTO_NAME = "perfetto_trace.json.gz"
"""The same events once more, for all hosts of a recording that was made with create_perfetto_trace."""

UNIX, LOCAL, NO_CLOCK = "unix", "local", ""
"""The clocks of a node's log: since 1970; date and time without a zone; time of day without a date; no times at all."""


@dataclass(frozen=True)
class LoggedDevice:
    """A GPU as a log of its node names it."""

    number: int | None
    """Its number on the node; None if the log does not tell."""
    uuid: str = ""
    bus: str = ""
    name: str = ""
    """Its model."""

    @property
    def key(self) -> str:
        """Distinguishes it from the other devices of the log; '' for the only one of a log that names none."""
        return str(self.number) if self.number is not None else self.uuid or self.bus


@dataclass(frozen=True)
class NodeLog:
    """A file about the devices of one node, found without reading the whole file. The store finds their ranks."""

    devices: tuple[LoggedDevice, ...]
    clock: str
    """UNIX or LOCAL."""
    first_ns: int
    """Its first and last time, without a zone as if they were UTC; a time of day counts from the first midnight."""
    last_ns: int
    host: str = ""
    """The name of the node; '' if the file does not tell."""


@dataclass(frozen=True)
class NodePart:
    """What is read of a node's log for one rank."""

    devices: tuple[str, ...]
    """Keys of the devices."""
    shift_ns: int
    """What is added to the file's times to get times since 1970."""
    begin_ns: int
    """Samples before this time and after the next are left out: the rank's traces do not cover them."""
    end_ns: int

    def __str__(self) -> str:
        return f"{','.join(self.devices)} {self.shift_ns} {self.begin_ns} {self.end_ns}"

    @staticmethod
    def parse(text: str) -> NodePart:
        devices, *numbers = text.rsplit(" ", 3)
        return NodePart(tuple(devices.split(",")), *map(int, numbers))


class NodeReader(Reader):
    """A reader of files about the devices of a node: whose they are is known when the traces have been read."""

    def log(self, path: Path) -> NodeLog:
        raise NotImplementedError


def identities(reader: Reader, path: Path) -> list[TraceIdentity]:
    """The identity of a file, or one for each rank in it. Ranks that no job has are unknown."""
    usable = []
    for identity in reader.identify_parts(path):
        identity = replace(identity, world_size=usable_world(identity.world_size))
        if identity.rank is not None and not is_usable_rank(identity.rank):
            named = identity_from_name(path)
            identity = replace(identity, rank=named.rank, rank_source=named.rank_source)
        usable.append(identity)
    return usable


def is_usable_rank(rank: object) -> bool:
    """False for what is not a number, negative, or more than any job has: it is made up, or damaged."""
    return isinstance(rank, int) and not isinstance(rank, bool) and 0 <= rank < _MOST_RANKS


def usable_world(size: object) -> int | None:
    """The number of ranks of a job; None if it cannot be one."""
    return size if isinstance(size, int) and is_usable_rank(size - 1) else None


def usable_time(value: object) -> int:
    """Nanoseconds since 1970 in a file's metadata, a number or text; 0 if it is neither, or beyond the year 2116."""
    try:
        time = int(value) if isinstance(value, (int, float, str, bytes)) else 0
    except (ValueError, OverflowError):
        return 0
    return time if abs(time) < 1 << 62 else 0


def rank_from_name(path: Path) -> int | None:
    """The rank in a file's name: rank-3, rank3, rank_3 or -3-of-8; at its end _dump_3, snapshot_3, and _3 (nsys, ncu).

    None without a rank, or with two different ones.
    """
    matches = _RANK_IN_NAME.findall(path.name) or _RANK_AT_END.findall(path.name)
    ranks = {int(a or b) for a, b in matches}
    return ranks.pop() if len(ranks) == 1 else None


_OF_SERVING = re.compile(r"(.*-)(TP-\d+(?:-(?:DP|PP|EP)-\d+)*)((?:-[A-Z]+)?\.trace\.json.*)")
_KIND_AND_NUMBER = re.compile(r"(TP|DP|PP|EP)-?(\d+)")


def identity_from_name(path: Path) -> TraceIdentity:
    """SGLang's names, ID-TP-3-DP-1-DECODE.trace.json.gz, tell the rank together with those of the files beside it."""
    rank, match = rank_from_name(path), _OF_SERVING.fullmatch(path.name)
    if rank is None and match:
        begin, label, end = match.groups()
        others = [label]
        with suppress(OSError):
            names = (file.name for file in path.parent.iterdir())
            beside = (
                name[len(begin) : -len(end)]
                for name in names
                if name.startswith(begin) and name.endswith(end)
            )
            others += beside
        rank = ranks_by_label(others)[label]
    return TraceIdentity(rank, "" if rank is None else "file name")


def ranks_by_label(labels: Iterable[str]) -> dict[str, int]:
    """The ranks that labels such as TP-3-PP-1 or TP03-PP01 mean: the number of tensor parallelism, which that of the
    experts and of the attention's data divides, unless several stages or engines have the same numbers.
    """
    place = {}
    for label in sorted(labels):
        numbers = dict(_KIND_AND_NUMBER.findall(label))
        place[label] = [int(numbers.get(kind, 0)) for kind in ("PP", "DP", "TP")]
    if len({tensor for *_, tensor in place.values()}) == len(place):
        return {label: tensor for label, (*_, tensor) in place.items()}
    return {label: rank for rank, label in enumerate(sorted(place, key=place.__getitem__))}


def need_c_parts(path: Path) -> None:
    """For a file of a format that is read in C only."""
    from rankscope import native  # late: finding files does not need it

    if native.functions is None:
        raise ReadError(
            f"{path} is not read: this installation has no C parts",
            why="XLA's .xplane.pb is read in C only. There was no compiler when rankscope was "
            "installed, Python is older than 3.11, or RANKSCOPE_NATIVE=0 is set.",
            hint="Install a wheel of rankscope for this platform; or install a C compiler, then: "
            "pip install --force-reinstall --no-binary rankscope rankscope",
        )
