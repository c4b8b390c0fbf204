"""What a reader is: it recognises a file, says whose it is, and yields its events in batches of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rankscope.model import Table

_MAX_EXAMPLES = 5
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])rank[-_]?(\d{1,6})(?!\d)|-(\d{1,6})-of-\d", re.IGNORECASE)
# Reports of nsys and ncu are named by `-o name_%q{RANK}`, flight-recorder dumps _dump_3.
_RANK_AT_END = re.compile(
    r"_(\d{1,5})\.(?:nsys-rep|sqlite|ncu-rep)$|_dump_(\d{1,6})(?:\.[a-z.]+)?$", re.IGNORECASE
)


@dataclass(frozen=True)
class TraceIdentity:
    """Whose trace a file is, told from a glance at it."""

    rank: int | None
    rank_source: str
    """Where the rank comes from: 'distributedInfo', 'file name', or '' when it is not known."""
    world_size: int | None = None
    trace_id: str = ""
    """Tells two captures apart; equal in two files means one was copied."""
    part: str = ""
    """Which part of the file this is about, where one file holds several ranks; empty for the whole file."""


@dataclass
class ReadReport:
    """What reading cost: counted, shown by `ingest` and `doctor`, never silent."""

    events_lost: int = 0
    events_repaired: int = 0
    damage: str = ""
    """Why the file ended early; empty when it is whole."""
    examples: list[str] = field(default_factory=list)

    def lose(self, why: str) -> None:
        self.events_lost += 1
        self._example(f"lost: {why}")

    def repaired(self, why: str) -> None:
        self.events_repaired += 1
        self._example(f"repaired: {why}")

    def _example(self, text: str) -> None:
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(text)


class Batch(Protocol):
    """Some of a file's events, as a SELECT with the columns of model.EVENTS. Batches may be read in parallel."""

    def select(self) -> str: ...

    def select_repaired(self) -> str:
        """The same when the first SELECT failed on its data: what is damaged is mended or left out, and counted."""

    def close(self) -> None: ...


class Reading(Protocol):
    """One pass over one file."""

    report: ReadReport
    header: dict[str, Any]
    """What the file says of itself; complete when the last batch was taken."""

    def batches(self) -> Iterator[Batch]: ...

    def position(self) -> int:
        """Bytes of the file consumed so far."""

    def clock_base_ns(self) -> int:
        """What to add to ts_ns for nanoseconds since 1970."""

    def further(self) -> Iterator[tuple[Table, Batch]]:
        """Tables besides the events, as SELECTs with their columns; asked for after the last batch."""


class Reader(Protocol):
    """One format."""

    name: str

    def recognises(self, path: Path, head: bytes) -> bool:
        """By name and by the first bytes (decompressed): is this file mine?"""

    def identify(self, path: Path) -> TraceIdentity: ...

    def open(self, path: Path) -> Reading: ...


@runtime_checkable
class PartedReader(Protocol):
    """A reader whose files may hold several ranks, as one nsys report of a whole node does."""

    def identify_parts(self, path: Path) -> list[TraceIdentity]: ...

    def open(self, path: Path, part: str = "") -> Reading: ...


def identities(reader: Reader, path: Path) -> list[TraceIdentity]:
    """Whose trace a file is: one identity, or one for each rank in it."""
    return reader.identify_parts(path) if isinstance(reader, PartedReader) else [reader.identify(path)]


def open_part(reader: Reader, path: Path, part: str) -> Reading:
    """One pass over the part of a file that an identity named."""
    return reader.open(path, part) if isinstance(reader, PartedReader) else reader.open(path)


def rank_from_name(path: Path) -> int | None:
    """rank-3, rank3, rank_3 or -3-of-8 in the file's name, or _3 and _dump_3 at the end of one that tools write so.

    None when it has none, or two that differ.
    """
    found = _RANK_IN_NAME.findall(path.name) or _RANK_AT_END.findall(path.name)
    ranks = {int(a or b) for a, b in found}
    return ranks.pop() if len(ranks) == 1 else None
