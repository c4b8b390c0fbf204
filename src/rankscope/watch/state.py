"""The present state of a job, as plain data: what the live view, the page, JSON and Prometheus show."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.watch.alarms import Alarm, AlarmBook
from rankscope.watch.hang import Evidence, Explain, failures, hangs, is_over, judged_at
from rankscope.watch.judge import STEPS, StepWatcher, excesses, slow_limit, usual_step
from rankscope.watch.rings import RECENT, NoTelemetryError, RankRing, read_rings, read_whole, tables
from rankscope.watch.roles import bottleneck, role_states
from rankscope.watch.step_table import StepTable, low_median, middle

WORST = 10
"""Ranks that are shown one by one."""
_PAST = 20
"""Alarms that are over, of which the last ones are told."""
TREND = 60
"""Step times of the sparkline."""
State = dict[str, Any]


def as_it_is(_run: Path, evidence: Evidence) -> Evidence:
    return evidence


class JobWatcher:
    """Looks at a run again and again. The first look reads more, so that alarms have their begin and their history."""

    def __init__(
        self,
        run: Path,
        hang_after_s: float | None = None,
        explain: Explain = as_it_is,
        waits: bool = False,
    ) -> None:
        """`explain`: with what the ranks wrote about a hang. `waits`: the job may not have begun."""
        self._run = run
        self._hang_after_s = hang_after_s
        self._explain = explain
        self._waits = waits
        self._roles: dict[str, StepWatcher] = {}
        self._hangs = AlarmBook()

    def look(self) -> tuple[State, list[Alarm]]:
        """The present state, and the alarms that are new in it."""
        try:
            rings = read_rings(self._run, RECENT) if self._roles else read_whole(self._run)
            self._waits = False
        except NoTelemetryError:
            if not self._waits:
                raise
            rings = []
        now = time.time_ns()
        step_tables = tables(rings)
        new: list[Alarm] = []
        for table in step_tables:
            watcher = self._roles.get(table.role)
            if watcher is None or table.steps[-1] < watcher.judged_step:  # the job began anew
                watcher = self._roles[table.role] = StepWatcher()
                new += watcher.catch_up(table)
            else:
                new += watcher.look(table)
        stuck = self._stuck(rings, now) if rings else []
        new += self._hangs.new(stuck)
        episodes = [each for watcher in self._roles.values() for each in watcher.book.episodes]
        alarms = [each.alarm for each in episodes if each.is_open] + stuck
        state = _state(self._run, rings, [table.last(RECENT) for table in step_tables], alarms, now)
        over = [each for each in episodes if not each.is_open][-_PAST:]
        books = [] if state["state"] in FINAL_STATES else [each.book for each in self._roles.values()]
        state["suspicions"] = [alarm.to_dict() for book in books for alarm in book.suspicions]
        state["past_alarms"] = [{**each.alarm.to_dict(), "last_step": each.last_step} for each in over]
        return state, new

    def _stuck(self, rings: Sequence[RankRing], now: int) -> list[Alarm]:
        """Ranks that failed, or else hang: the others wait for a rank that has gone."""
        at = judged_at(rings, now)
        return failures(rings, at) or hangs(rings, at, self._hang_after_s, self._run, self._explain)


FINAL_STATES = ("ended", "failed", "silent", "off")
"""After these, no rank writes telemetry any more."""


def _state(
    run: Path, rings: Sequence[RankRing], step_tables: Sequence[StepTable], alarms: Sequence[Alarm], now: int
) -> State:
    at = judged_at(rings, now) if rings else now
    newest = max((ring.header.alive_unix_ns for ring in rings), default=now)
    ranks = [_rank(ring, at, newest) for ring in rings]
    by_rank = {rank["rank"]: rank for rank in ranks}
    for stage in (stage for table in step_tables for stage in table.by_stage()):
        _add_figures(stage, by_rank)
    for alarm in alarms:
        for number in by_rank.keys() & {*alarm.ranks}:  # one of them may have written no telemetry
            by_rank[number]["alarms"].append(alarm.kind)
            by_rank[number]["cause"] = alarm.cause
    roles = role_states(rings)
    word = "starting" if not rings else "running"
    if rings and is_over(rings, now):
        word = "ended" if all(ring.has_ended for ring in rings) else "silent"
        word = "failed" if any(ring.failure for ring in rings) else word
        word = "off" if any(ring.off for ring in rings) else word
    return {
        "run": str(run),
        "unix_ns": now,
        "state": word,
        "world_size": _world_size(rings),
        "alive_ranks": sum(not ring.has_ended and not ring.is_lost(at) for ring in rings),
        "last_step": max((ring.last_step for ring in rings), default=0),
        "judged_step": max((int(table.steps[-1]) for table in step_tables), default=None),
        "last_end_unix_ns": max((ring.last_end_unix_ns for ring in rings), default=None),
        **_steps(max(step_tables, key=lambda table: len(table.ranks), default=None)),
        "memory_bytes": _memory(ranks),
        "alarms": [alarm.to_dict() for alarm in alarms],
        "ranks": ranks,
        "roles": roles,
        "bottleneck": bottleneck(roles),
    }


def _world_size(rings: Sequence[RankRing]) -> int:
    """Of all roles that have ranks of their own."""
    sizes: dict[Path, list[int]] = {}
    for ring in rings:
        sizes.setdefault(ring.path.parent, []).append(int(ring.about.get("world_size") or 0))
    return sum(max(*told, len(told)) for told in sizes.values())


def _memory(ranks: Sequence[dict[str, Any]]) -> State | None:
    sizes = {rank["rank"]: rank["memory_bytes"] for rank in ranks if rank["memory_bytes"] is not None}
    if not sizes:
        return None
    most = max(sizes, key=lambda rank: sizes[rank])
    return {"median": middle(np.array([*sizes.values()], dtype=float)), "max": sizes[most], "rank": most}


def _rank(ring: RankRing, at: int, newest: int) -> dict[str, Any]:
    return {
        "rank": ring.rank,
        "node": ring.node,
        "role": ring.role,
        "last_step": ring.last_step,
        "without_step_s": round(ring.without_step_s(at), 3),
        "age_s": 0.0 if ring.has_ended else round((newest - ring.header.alive_unix_ns) / 1e9, 3),
        "phase": "lost" if ring.is_lost(at) else ring.phase,
        "excess_ns": None,
        "slow": False,
        "memory_bytes": None,
        "alarms": [],
        "cause": None,
        "off": ring.off or None,
    }


def _add_figures(table: StepTable, ranks: dict[int, dict[str, Any]]) -> None:
    limit = slow_limit(table) if len(table.ranks) > 1 else float("inf")
    memory = low_median(table["memory_bytes"][-STEPS:])
    figures = zip(table.ranks.tolist(), excesses(table).tolist(), memory.tolist(), strict=True)
    for rank, excess, size in figures:
        ranks[rank]["excess_ns"] = None if np.isnan(excess) else excess
        ranks[rank]["slow"] = bool(excess > limit)
        ranks[rank]["memory_bytes"] = None if np.isnan(size) else size


def _steps(table: StepTable | None) -> State:
    times = low_median(table["step_ns"], 1) if table is not None else np.array([])
    ordered = np.sort(times[np.isfinite(times)])
    if table is None or not len(ordered):
        return {"step_ns": None, "trend_ns": [], "trend_steps": [], "steps_per_s": None}
    usual = usual_step(table)
    return {
        "step_ns": {
            "median": usual,
            "p5": float(ordered[len(ordered) // 20]),
            "p95": float(ordered[-1 - len(ordered) // 20]),
            "steps": len(ordered),
        },
        "trend_ns": [None if np.isnan(value) else value for value in times[-TREND:].tolist()],
        "trend_steps": table.steps[-TREND:].tolist(),
        "steps_per_s": 1e9 / usual if usual else None,
    }


def worst_ranks(state: State, most: int = WORST) -> list[dict[str, Any]]:
    """Ranks with alarms, those behind or lost, then by excess: the ones to look at first."""

    def weight(rank: dict[str, Any]) -> tuple[Any, ...]:
        behind = state["last_step"] - rank["last_step"]
        return (
            -len(rank["alarms"]),
            rank["phase"] != "lost",
            -(behind > 2) * behind,
            -(rank["excess_ns"] or 0),
        )

    return sorted(state["ranks"], key=weight)[:most]


def like_the_median(state: State) -> int:
    """Ranks without an alarm that are not slow."""
    return sum(not rank["alarms"] and not rank["slow"] and rank["phase"] != "lost" for rank in state["ranks"])
