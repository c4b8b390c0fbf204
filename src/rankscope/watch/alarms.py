"""An alarm: what is wrong, on which ranks, since when, how much it costs per step, and what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any, Literal

from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.units import format_rounded

SLOW_RANK, SLOW_NODE, SLOWDOWN, SPIKE = "slow-rank", "slow-node", "slowdown", "spike"
MEMORY, DATA, HANG, RANK_ENDED = "memory", "data", "hang", "ended"
KINDS = {
    SLOW_RANK: "warning",
    SLOW_NODE: "warning",
    SLOWDOWN: "warning",
    SPIKE: "info",
    MEMORY: "warning",
    DATA: "warning",
    HANG: "critical",
    RANK_ENDED: "critical",
}
"""With their severity."""

DATA_LOADING, GARBAGE, COMPUTE, HOST = "data loading", "garbage collection", "compute", "host"
COMMUNICATION, OF_MEMORY, UNKNOWN = "communication", "memory", "unknown"

NEXT_STEP = {
    DATA_LOADING: "Compare the storage and the data loader's workers there: num_workers, prefetch_factor, file sizes.",
    GARBAGE: "Collect at fixed steps on all ranks: gc.disable(), then gc.collect() every N steps; or gc.freeze().",
    COMPUTE: "Compare the work it is given. With equal work it is the device: rankscope probe, between jobs, tells.",
    HOST: "The host neither computes nor loads data: sleeping, I/O, locks, or its CPU taken by another process.",
    COMMUNICATION: "Check the network: links, other jobs, NCCL_DEBUG=INFO; rankscope bench collectives measures it.",
    OF_MEMORY: "Look for tensors that are kept in lists or logged with their graph; a memory snapshot names them.",
    UNKNOWN: "Record some steps: rankscope capture RUN, then rankscope stats RUN.",
}
_FORGOTTEN_AFTER = 50
"""Steps without an alarm after which the same alarm counts as a new one."""


@dataclass(frozen=True)
class Alarm:
    """What the judge found."""

    kind: str
    cause: str
    ranks: tuple[int, ...]
    """None: the whole job."""
    node: str
    """The node, where all its ranks are meant."""
    step: int
    """The last step that was judged."""
    since_step: int | None
    since_unix_ns: int | None
    per_step: float
    """Time lost in each step, or bytes gained."""
    unit: Literal["ns", "bytes"]
    share: float
    """`per_step` of the usual step, or of the memory."""
    text: str
    hint: str

    @property
    def severity(self) -> str:
        return KINDS[self.kind]

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for the same alarm, judged later."""
        if self.kind in (SPIKE, HANG):
            return self.kind, self.since_step
        if self.kind == RANK_ENDED:
            return (self.kind,)
        if self.kind == MEMORY and len(self.ranks) > 1:  # of most ranks; their number may change
            return (self.kind,)
        return (self.kind, self.node) if self.node else (self.kind, self.ranks)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**asdict(self), "ranks": list(self.ranks), "severity": self.severity}

    def line(self) -> str:
        """For a log."""
        since = "" if self.since_unix_ns is None else f" ({utc(self.since_unix_ns)})"
        return f"{self.severity}: {self.text}{since}. {self.hint}"


def utc(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns // 10**9, tz=timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def who(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {as_ranges(numbers)}"


def amount(per_step: float, unit: Literal["ns", "bytes"]) -> str:
    return f"{format_rounded(unit, per_step)} per step"


class AlarmBook:
    """Which alarms are open. An alarm is new once, as long as it goes on."""

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], int] = {}
        self._spikes: set[int] = set()

    def new(self, alarms: Iterable[Alarm]) -> list[Alarm]:
        """Those of `alarms` that were not open already."""
        new = []
        for alarm in alarms:
            before = self._seen.get(alarm.key)
            self._seen[alarm.key] = alarm.step
            if before is not None and alarm.step - before <= _FORGOTTEN_AFTER:
                continue
            if alarm.kind != SPIKE or not self._recurs(alarm.since_step or 0):
                new.append(alarm)
        return new

    def _recurs(self, step: int) -> bool:
        """Whether long steps come at one distance: checkpoints, evaluations."""
        regular = any(2 * earlier - step in self._spikes for earlier in self._spikes if earlier != step)
        self._spikes.add(step)
        return regular
