"""Traces of jobs over gloo with planted times: programs of ops, collectives and messages, played on one clock.

Worker threads, c10d ops and annotations are named and nested as torch 2.11 records them, without process groups and
peers, unless the capture's field of the header is asked for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN = 1000
BASE_NS = 1_790_000_000_000_000_000
CALL_US = 30.0
BACKWARD = "autograd::engine::evaluate_function: MmBackward0"


@dataclass(frozen=True)
class Op:
    """Compute on the main thread."""

    us: float
    name: str = "aten::mm"


@dataclass(frozen=True)
class Idle:
    """The host runs something else."""

    us: float


@dataclass(frozen=True)
class Reduce:
    """An all_reduce in a group, which its number names."""

    group: int
    us: float = 200.0


@dataclass(frozen=True)
class Send:
    to: int
    us: float = 80.0


@dataclass(frozen=True)
class Recv:
    source: int


Item = Op | Idle | Reduce | Send | Recv
Program = Sequence[Sequence[Item]]
"""The items of each step."""


@dataclass
class _Rank:
    items: list[Item | str]
    now: float
    at: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    calls: list[tuple[float, tuple[Any, ...], int | None]] = field(default_factory=list)
    steps: int = 0
    step_began: float = 0.0
    seq: dict[int, int] = field(default_factory=dict)


class GlooJob:
    """Plays programs; `groups` are those of new_group, after that of all ranks (group 0)."""

    def __init__(
        self,
        programs: Sequence[Program],
        groups: Sequence[Sequence[int]] = (),
        *,
        starts_us: Sequence[float] | None = None,
        jitter_us: float = 20.0,
        seed: int = 0,
    ) -> None:
        self.count = len(programs)
        self.groups = [tuple(range(self.count)), *map(tuple, groups)]
        self._random = random.Random(seed)
        self._jitter = jitter_us
        starts = starts_us or [0.0] * self.count
        self.ranks = [
            _Rank(
                [item for step in program for item in (*step, "step")],
                1000.0 + start,
                step_began=1000.0 + start,
            )
            for program, start in zip(programs, starts, strict=True)
        ]
        while any(rank.at < len(rank.items) for rank in self.ranks):
            moved = sum(self._advance(number) for number in range(self.count))
            if not moved:
                raise AssertionError("the programs wait for each other")

    def _advance(self, number: int) -> bool:
        """Play a rank until it waits; whether it moved."""
        rank, moved = self.ranks[number], False
        while rank.at < len(rank.items):
            item = rank.items[rank.at]
            if item == "step":
                self._slice(
                    rank, "user_annotation", f"ProfilerStep#{2 + rank.steps}", rank.step_began, rank.now
                )
                rank.steps, rank.step_began = rank.steps + 1, rank.now
            elif isinstance(item, Op):
                self._slice(rank, "cpu_op", item.name, rank.now, rank.now + item.us)
                rank.now += item.us + 2
            elif isinstance(item, Idle):
                rank.now += item.us
            elif not self._meet(number, item):
                return moved
            else:
                moved = True
                continue
            rank.at, moved = rank.at + 1, True
        return moved

    def _meet(self, number: int, item: Any) -> bool:
        """A collective or message that all its ranks have reached."""
        if isinstance(item, Reduce):
            members = self.groups[item.group]
            wanted: dict[int, Any] = dict.fromkeys(members, item)
        else:
            peer = item.to if isinstance(item, Send) else item.source
            wanted = {number: item, peer: Recv(number) if isinstance(item, Send) else None}
        for other, expected in wanted.items():
            rank = self.ranks[other]
            here = rank.items[rank.at] if rank.at < len(rank.items) else None
            if expected is None:
                if not isinstance(here, Send) or here.to != number:
                    return False
                item = here
            elif here != expected:
                return False
        end = max(self.ranks[other].now for other in wanted) + CALL_US + item.us
        for other in wanted:
            self._play(
                other,
                end + self._random.uniform(0, self._jitter),
                item.group if isinstance(item, Reduce) else None,
            )
        return True

    def _play(self, number: int, end: float, group: int | None) -> None:
        rank = self.ranks[number]
        item, began = rank.items[rank.at], rank.now
        if group is not None:
            op, kind, tid = "c10d::allreduce_", "all_reduce", self._worker(number, group)
            seq = rank.seq[group] = rank.seq.get(group, 6) + 1
            rank.calls.append((began + 10, ("gloo:all_reduce", str(group), None, "Float", 100), seq))
        else:
            sends = isinstance(item, Send)
            op, kind, tid = ("c10d::send", "send", MAIN) if sends else ("c10d::recv_", "recv", MAIN)
            peer = item.to if isinstance(item, Send) else getattr(item, "source", None)
            rank.calls.append((began - 5, (kind, "0", peer, "torch.float32", 100), None))
        self._slice(rank, "cpu_op", op, began, began + CALL_US)
        self._slice(rank, "user_annotation", f"gloo:{kind}", began + CALL_US - 5, end, tid)
        rank.now, rank.at = end + 5, rank.at + 1

    def _worker(self, number: int, group: int) -> int:
        """Two threads for each group of the rank, in the order of creation, with gaps as on a real machine."""
        mine = [index for index, members in enumerate(self.groups) if number in members]
        return MAIN + 50 + 7 * number + 5 * mine.index(group) + self._random.randint(0, 1)

    def _slice(
        self, rank: _Rank, category: str, name: str, start: float, end: float, tid: int = MAIN
    ) -> None:
        rank.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": MAIN, "tid": tid, "ts": round(start, 3),
             "dur": round(end - start, 3), "args": {"External id": len(rank.events) + 1}}
        )  # fmt: skip

    def step_us(self) -> float:
        """The mean time of a step, over the ranks."""
        return sum((rank.now - 1000.0) / rank.steps for rank in self.ranks) / self.count

    def write(
        self,
        folder: Path,
        *,
        captured: bool = False,
        hosts: Sequence[str] = (),
        offsets_us: Sequence[float] = (),
    ) -> Path:
        """One trace for each rank. `offsets_us` are added to a rank's clock."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, rank in enumerate(self.ranks):
            offset = offsets_us[number] if offsets_us else 0.0
            listed = [
                {"pg_name": str(index), "pg_desc": "default_pg" if not index else "undefined", "pg_size": len(members),
                 "backend_config": "cpu:gloo", "ranks": list(members)}
                for index, members in enumerate(self.groups)
                if number in members
            ]  # fmt: skip
            about: dict[str, Any] = {"job": "job", "rank": number, "host": hosts[number] if hosts else "node"}
            if captured:
                about["collectives"] = self._field(rank, offset)
            trace = {
                "schemaVersion": 1,
                "distributedInfo": {
                    "backend": "gloo", "rank": number, "world_size": self.count, "pg_config": listed
                },
                "rankscope": about,
                "baseTimeNanoseconds": BASE_NS,
                "traceEvents": [{**event, "ts": event["ts"] + offset} for event in rank.events],
            }  # fmt: skip
            (folder / f"rank-{number:05}.pt.trace.json").write_text(json.dumps(trace))
        return folder

    def _field(self, rank: _Rank, offset: float) -> dict[str, Any]:
        what: dict[tuple[Any, ...], int] = {}
        calls = [
            [round(time + offset), what.setdefault(described, len(what)), seq]
            for time, described, seq in rank.calls
        ]
        return {"since_unix_ns": BASE_NS, "what": [list(described) for described in what], "calls": calls}


def pipeline(stages: Sequence[float], micro_batches: int = 4, steps: int = 5) -> list[Program]:
    """All forwards, then all backwards; `stages` are the forward times in us, a backward takes twice as long."""
    programs: list[Program] = []
    last = len(stages) - 1
    for stage, us in enumerate(stages):
        step: list[Item] = []
        for _ in range(micro_batches):
            step += [] if stage == 0 else [Recv(stage - 1)]
            step += [Op(us / 2), Op(us / 2)]
            step += [] if stage == last else [Send(stage + 1)]
        for _ in range(micro_batches):
            step += [] if stage == last else [Recv(stage + 1)]
            step += [Op(us, BACKWARD), Op(us, BACKWARD)]
            step += [] if stage == 0 else [Send(stage - 1)]
        step.append(Op(300, "aten::add_"))
        programs.append([step] * steps)
    return programs
