"""An alarm: what is wrong, on which ranks, since when, how much it costs per step, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from math import inf
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
CONTENTION, COMMUNICATION, OF_MEMORY, UNKNOWN = "contention", "communication", "memory", "unknown"

NEXT_STEP = {
    DATA_LOADING: "Compare the storage and the data loader's workers there: num_workers, prefetch_factor, file sizes.",
    GARBAGE: "Collect at fixed steps on all ranks: gc.disable(), then gc.collect() every N steps; or gc.freeze().",
    COMPUTE: "Compare the work it is given. With equal work it is the device: rankscope probe, between jobs, tells.",
    HOST: "The host neither computes nor loads data: sleeping, I/O, locks.",
    CONTENTION: "Its cores are taken: other processes there, too many threads or workers, ranks bound to one core.",
    COMMUNICATION: "Check the network: links, other jobs, NCCL_DEBUG=INFO; rankscope bench collectives measures it.",
    OF_MEMORY: "Look for tensors that are kept in lists or logged with their graph; a memory snapshot names them.",
    UNKNOWN: "Record some steps: rankscope capture RUN, then rankscope stats RUN.",
}
CONFIRMED_AFTER_S = 10.0
"""Seconds that a slow rank or longer steps must have lasted: hosts are busy for a shorter time now and then."""
_TO_CONFIRM = (SLOW_RANK, SLOW_NODE, SLOWDOWN)
_CLOSED_AFTER = 60
"""Steps without an alarm after which it is no longer shown."""
_FORGOTTEN_AFTER = 90
"""Steps without an alarm after which the same alarm counts as a new one."""
_SETTLES = 50
"""Steps after its begin in which a later look at an alarm has better figures: the begin is still in the window."""
_TOGETHER = 30
"""Steps between the begins of two alarms of which one follows from the other."""
_FOLLOWS = 0.3
"""Of the longer step: what a slow rank must explain, so that the longer step is its effect."""


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
    what: str
    hint: str

    @property
    def text(self) -> str:
        """The alarm in a sentence, without its end."""
        lasts = self.kind not in (SPIKE, HANG, RANK_ENDED) and self.since_step is not None
        return f"{self.what}, since step {self.since_step}" if lasts else self.what

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
        fields = asdict(self)
        del fields["what"]
        return {**fields, "text": self.text, "ranks": list(self.ranks), "severity": self.severity}

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


@dataclass(frozen=True)
class Episode:
    """An alarm from its begin to its end."""

    alarm: Alarm
    """With its latest figures; since when is what was said first."""
    last_step: int
    """The last step at which it was raised."""
    is_open: bool
    is_confirmed: bool
    """Else it is a suspicion: it has not lasted long enough."""


class AlarmBook:
    """The alarms of a job so far. An alarm is new once, as long as it goes on, and keeps the step it began with."""

    def __init__(self, confirmed_after_s: float = CONFIRMED_AFTER_S) -> None:
        self._confirmed_after_ns = confirmed_after_s * 1e9
        self._episodes: list[Episode] = []
        self._spikes: dict[tuple[int, ...], set[int]] = {}

    @property
    def episodes(self) -> list[Episode]:
        """Those that are confirmed, in the order in which they were noted."""
        return [each for each in self._episodes if each.is_confirmed]

    @property
    def noted(self) -> list[Episode]:
        """The same, and the suspicions of the moment."""
        return [each for each in self._episodes if each.is_confirmed or each.is_open]

    @property
    def open(self) -> list[Alarm]:
        """Suspicions too."""
        return [each.alarm for each in self._episodes if each.is_open]

    @property
    def suspicions(self) -> list[Alarm]:
        return [each.alarm for each in self._episodes if each.is_open and not each.is_confirmed]

    def new(
        self, alarms: Sequence[Alarm], unix_ns: float = inf, lasts: Callable[[Alarm], bool] = bool
    ) -> list[Alarm]:
        """Note what is raised at this time; those that are confirmed by now and were not before. `lasts` tells of a
        suspicion that is old enough whether it holds; else it is forgotten."""
        for alarm in alarms:
            if any(_follows(alarm, cause) for cause in (*alarms, *self._earlier(alarm))):
                continue
            index = self._index(alarm)
            goes_on = alarm.kind != SPIKE
            if index is not None:
                before = self._episodes[index]
                now = _continued(before.alarm, alarm)
                self._episodes[index] = Episode(now, alarm.step, goes_on, before.is_confirmed)
            elif goes_on or not self._is_habit(alarm):
                self._episodes.append(Episode(alarm, alarm.step, goes_on, is_confirmed=False))
        due = [each for each in self._episodes if not each.is_confirmed and self._is_due(each, unix_ns)]
        confirmed = [each for each in due if each.alarm.kind not in _TO_CONFIRM or lasts(each.alarm)]
        self._episodes = [
            replace(each, is_confirmed=each.is_confirmed or each in confirmed)
            for each in self._episodes
            if each not in due or each in confirmed
        ]
        return [each.alarm for each in confirmed]

    def _is_due(self, episode: Episode, unix_ns: float) -> bool:
        since = episode.alarm.since_unix_ns
        if episode.alarm.kind not in _TO_CONFIRM or since is None:
            return True
        return episode.is_open and unix_ns - since >= self._confirmed_after_ns

    def close(self, step: int) -> None:
        """End what was not raised lately, and forget what follows from another alarm, as is known by now."""
        causes = [each for each in self._episodes if each.is_open]
        self._episodes = [
            replace(each, is_open=each.is_open and step - each.last_step <= _CLOSED_AFTER)
            for each in self._episodes
            if not any(
                each.is_open and _follows(each.alarm, cause.alarm) and cause.is_confirmed >= each.is_confirmed
                for cause in causes
            )
        ]

    def _earlier(self, alarm: Alarm) -> Iterator[Alarm]:
        """Those that would go on if they were raised again, and those that began when this one did."""
        for episode in self._episodes:
            if alarm.step - episode.last_step <= _FORGOTTEN_AFTER or _together(alarm, episode.alarm):
                yield episode.alarm

    def _index(self, alarm: Alarm) -> int | None:
        """The episode that goes on."""
        for index in reversed(range(len(self._episodes))):
            episode = self._episodes[index]
            if episode.alarm.key == alarm.key:
                return index if alarm.step - episode.last_step <= _FORGOTTEN_AFTER else None
        return None

    def _is_habit(self, spike: Alarm) -> bool:
        """Whether long steps come at one distance: checkpoints, evaluations. It is rank 0 that does these for all, so
        its first two are taken for them."""
        step, earlier = spike.since_step or 0, self._spikes.setdefault(spike.ranks, set())
        regular = any({2 * other - step + off for off in (-1, 0, 1)} & earlier for other in earlier)
        earlier.add(step)
        return regular or (spike.ranks == (0,) and len(earlier) < 3)


def _continued(before: Alarm, now: Alarm) -> Alarm:
    """The begin of an alarm does not move with the window that is judged."""
    if before.since_step is None or now.step - before.since_step <= _SETTLES:
        return now
    return replace(now, since_step=before.since_step, since_unix_ns=before.since_unix_ns)


def _follows(alarm: Alarm, cause: Alarm) -> bool:
    """Whether every step takes longer because of what another alarm names: they began together, or have one cause. Of a
    slow node, a rank may be seen first."""
    if (alarm.kind, cause.kind) == (SLOW_RANK, SLOW_NODE):
        return {*alarm.ranks} <= {*cause.ranks}
    if alarm.kind != SLOWDOWN or cause.kind not in (SLOW_RANK, SLOW_NODE, DATA):
        return False
    together, same = _together(alarm, cause), alarm.cause == cause.cause
    return (together and same) or ((together or same) and cause.per_step >= _FOLLOWS * alarm.per_step)


def _together(alarm: Alarm, other: Alarm) -> bool:
    return abs((alarm.since_step or 0) - (other.since_step or 0)) <= _TOGETHER
