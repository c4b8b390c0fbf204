"""What a reader is: it recognises a file, says whose it is, and yields its events in batches of SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

_MAX_EXAMPLES = 5
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z0-9])rank[-_]?(\d{1,6})(?!\d)|-(\d{1,6})-of-\d", re.IGNORECASE)


@dataclass(frozen=True)
class TraceIdentity:
    """Whose trace a file is, told from a glance at it."""

    rank: int | None
    rank_source: str
    """Where the rank comes from: 'distributedInfo', 'file name', or '' when it is not known."""
    world_size: int | None = None
    trace_id: str = ""
    """Tells two captures apart; equal in two files means one was copied."""


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


class Reader(Protocol):
    """One format."""

    name: str

    def recognises(self, path: Path, head: bytes) -> bool:
        """By name and by the first bytes (decompressed): is this file mine?"""

    def identify(self, path: Path) -> TraceIdentity: ...

    def open(self, path: Path) -> Reading: ...


def rank_from_name(path: Path) -> int | None:
    """rank-3, rank3, rank_3 or -3-of-8 in the file's name; None when it has none, or two that differ."""
    ranks = {int(a or b) for a, b in _RANK_IN_NAME.findall(path.name)}
    return ranks.pop() if len(ranks) == 1 else None
