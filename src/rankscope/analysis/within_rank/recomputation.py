"""Forward ops that run again inside the backward pass: activation checkpointing, reentrant or not.

Autograd gives each forward op that it will differentiate a sequence number and "Fwd thread id" 0. Ops of the backward
pass do not have both, so an op that has them there belongs to a recomputed forward pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, join, subtract, union
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import host_windows
from rankscope.timeline.linking import slice_at
from rankscope.timeline.nesting import nest
from rankscope.timeline.run import Run

_IS_FORWARD = "(e.args->>'Fwd thread id') = '0' AND (e.args->>'Sequence number') IS NOT NULL"


def recomputed(run: Run, rank: int, track: Ints, start: Ints, end: Ints) -> Intervals:
    """In each call of the autograd engine, the time from the first forward op to the last; nested calls are separate.

    track, start and end describe the calls of the engine.
    """
    if len(track) == 0:
        return EMPTY
    if not _probe(run, rank, track, start, end):
        return EMPTY
    ops = _forward_ops(run, rank, int(start.min()), int(end.max()), track, start, end)
    nesting = nest(track, start, end)
    around = slice_at(nesting, track, start, end, ops["track"], ops["start"])
    first = np.full(len(track), np.iinfo(np.int64).max)
    last = np.full(len(track), np.iinfo(np.int64).min)
    np.minimum.at(first, around, ops["start"])
    np.maximum.at(last, around, ops["stop"])
    found = EMPTY
    for level in nesting.levels:
        found = join(subtract(found, union(start[level], end[level])), union(first[level], last[level]))
    return found


@once_per_run
def _probed(run: Run) -> dict[int, bool]:
    """Whether anything is recomputed, by the number of ops; `_probe` fills it."""
    return {}


def _probe(run: Run, rank: int, track: Ints, start: Ints, end: Ints) -> bool:
    """Whether anything is recomputed, judged by the step with the most ops on the backward threads.

    Arguments are slow to read, and most runs recompute nothing. Recomputation adds ops, so if this step has none, no
    step is expected to have any. Ranks with the same number of ops in their step are assumed to run the same program.
    """
    counted = _ops_by_step(run)
    mine = (counted["rank"] == rank) & np.isin(counted["track"], track)
    steps, which = np.unique(counted["step"][mine], return_inverse=True)
    sums = np.bincount(which, weights=counted["ops"][mine])
    step, ops = (int(steps[sums.argmax()]), int(sums.max())) if len(steps) else (-1, -rank)
    known = _probed(run)
    if ops not in known:
        low, high = int(start.min()), int(end.max())
        window = host_windows(run, rank, Scope(steps=(step, step)))
        low, high = max([low, *window.start.tolist()]), min([high, *window.end.tolist()])
        known[ops] = len(_forward_ops(run, rank, low, high, track, start, end)["start"]) > 0
    return known[ops]


@once_per_run
def _ops_by_step(run: Run) -> dict[str, Any]:
    return run.arrays(
        "SELECT rank::BIGINT AS rank, track::BIGINT AS track, step::BIGINT AS step, count(*) AS ops FROM slices "
        "WHERE category = 'cpu_op' AND step IS NOT NULL GROUP BY ALL"
    )


def _forward_ops(
    run: Run, rank: int, low: int, high: int, track: Ints, start: Ints, end: Ints
) -> dict[str, Any]:
    """Track, start and end of the forward ops that start in [low, high) inside a call of the engine."""
    parts = []
    for entry in (entry for entry in run.segments if entry.rank == rank):
        shift = (
            run.shift_ns(entry) - entry.manifest["origin_ns"]
        )  # from the clock of the file to the clock of the run
        parts.append(
            run.arrays(f"""
                SELECT s.track::BIGINT AS track, s.start_ns AS start, s.start_ns + greatest(s.dur_ns, 0) AS stop
                FROM (
                    SELECT e.id FROM events e WHERE e.rank = {rank} AND e.segment = {entry.segment}
                    AND e.category = 'cpu_op' AND e.ts_ns >= {low - shift} AND e.ts_ns < {high - shift}
                    AND {_IS_FORWARD}
                ) e JOIN (FROM slices WHERE rank = {rank} AND segment = {entry.segment} AND category = 'cpu_op') s
                ON s.id = e.id
            """)
        )
    ops = {name: np.concatenate([part[name] for part in parts]) for name in ("track", "start", "stop")}
    inside = slice_at(nest(track, start, end), track, start, end, ops["track"], ops["start"]) != UNKNOWN
    return {name: values[inside] for name, values in ops.items()}
