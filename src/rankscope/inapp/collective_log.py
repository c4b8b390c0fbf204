"""When the collectives of this process began, from torch's flight recorder.

It sees those that DistributedDataParallel starts in C++, which no hook of Python meets. Reading it copies the whole
record and holds the GIL for some milliseconds, so it is read for a small share of the time only.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

# The share of the time that may be spent reading.
SHARE = 0.002
# torch's functions for it, NCCL's and then that of all other backends; older versions have none or one of them.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


class Collective(NamedTuple):
    """A collective that has begun, on the clock of perf_counter_ns."""

    began: int
    blocks: bool
    """Backward returns when it has ended: with gloo, but not with NCCL, where the GPU waits."""


class CollectiveLog:
    """What the flight recorder has shown so far, from ``forget`` on."""

    def __init__(self) -> None:
        self.known_until = 0
        """Everything that began before this time has been read."""
        self.lost_until = 0
        """Before this time the recorder may have dropped collectives that were never read."""
        self._found: list[Collective] = []
        self._last = dict.fromkeys(_DUMPS, -1)
        self._next = 0

    def read(self, *, now: bool = False) -> None:
        """Read the recorder, if it is time to do so again or ``now``."""
        began = perf_counter_ns()
        if not now and began < self._next:
            return
        for name in _DUMPS:
            self._add(name, flight_entries(name))
        ended = perf_counter_ns()
        self.known_until = began
        self._next = ended + int((ended - began) / SHARE)

    def between(self, began: int, ended: int) -> list[Collective]:
        """Those that began in this time, in order."""
        return self._found[bisect_left(self._found, (began,)) : bisect_left(self._found, (ended,))]

    def forget(self, until: int) -> None:
        del self._found[: bisect_left(self._found, (until,))]

    def _add(self, name: str, entries: list[dict[str, Any]]) -> None:
        offset = unix_offset_ns()
        last = self._last[name]
        new = [entry for entry in entries if entry["record_id"] > last]
        if not new:
            return
        began = [Collective(entry["time_created_ns"] - offset, _blocks(entry)) for entry in new]
        if new[0]["record_id"] > last + 1:
            self.lost_until = began[0].began
        self._last[name] = new[-1]["record_id"]
        self._found = sorted([*self._found, *began])


def unix_offset_ns() -> int:
    """What is added to a time of perf_counter_ns to get Unix time."""
    return time_ns() - perf_counter_ns()


def _blocks(entry: dict[str, Any]) -> bool:
    return str(entry.get("profiling_name", "")).startswith("gloo:")


def flight_entries(name: str) -> list[dict[str, Any]]:
    """The entries of one of torch's recorders, the oldest first; none where this torch has no such recorder."""
    dump = flight_dump(name)
    entries = json.loads(dump).get("entries", []) if dump else []
    return [entry for entry in entries if "record_id" in entry and "time_created_ns" in entry]


def flight_dump(name: str) -> bytes | None:
    """The recorder's content as torch writes it: a JSON object."""
    import torch

    if not torch.distributed.is_available():
        return None
    dump = getattr(torch._C._distributed_c10d, name, None)
    return None if dump is None else dump(True, False)  # collectives too, and also those that have ended


def fullest_dump() -> bytes | None:
    """The dump of the recorder that has entries: a job uses one backend for its training."""
    return next((dump for name in _DUMPS if flight_entries(name) and (dump := flight_dump(name))), None)
