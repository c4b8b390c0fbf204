"""Holistic Trace Analysis 0.5: get_temporal_breakdown and get_comm_comp_overlap, with its defaults.

What it does, found by running it: where times have fractions of a µs, starts are rounded up and ends down;
with two or more profiler steps only GPU events launched before the last step's start stay; an event with a
stream is a GPU event, synchronisation included; idle is the kernels' window less their union.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import Intervals, Ints, intersect, length, union
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run

COLUMNS = (
    Column("rank"),
    Column("idle_time_us", "count"),
    Column("compute_time_us", "count"),
    Column("non_compute_time_us", "count"),
    Column("kernel_time_us", "count"),
    Column("comp_comm_overlap_pctg", "percent"),
)
WHY = (
    "HTA rounds starts up and ends down to whole µs and leaves out the last step when there are two or more; "
    "ours are exact and whole (-r breakdown without --compat)"
)
_COMM = "^nccl.*Kernel"
_MEMORY = "^(Memcpy|Memset|dma)"
_NOT_COMPUTE = "Memcpy|^Memset|Sync"


def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank; --steps is not heeded, since HTA has no such choice."""
    (steps,) = run.rows("SELECT count(DISTINCT name) FROM slices WHERE contains(name, 'ProfilerStep')")[0]
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    rows = [row for rank in ranks if (row := _row(run, rank, drop_last=steps >= 2))]
    notes = [WHY] if rows else ["no GPU events: HTA would give nothing"]
    if any(row["non_compute_time_us"] < 0 for row in rows):
        notes.append("HTA itself stops here: with its rounding, kernels under 1 µs have negative length")
    return Result("breakdown", "As HTA's temporal breakdown", "whole file", COLUMNS, rows, notes=tuple(notes))


def _row(run: Run, rank: int, drop_last: bool) -> dict[str, Any] | None:
    launched = "true"
    if drop_last:
        launched = f"""(correlation IS NULL OR correlation IN (
            SELECT correlation FROM events WHERE rank = {rank} AND stream IS NULL AND ts_ns < (
                SELECT max(ts_ns) FROM events
                WHERE rank = {rank} AND stream IS NULL AND contains(name, 'ProfilerStep') AND ph = 'X')))"""
    events = run.arrays(
        f"""
        SELECT ts_ns AS start, dur_ns AS duration, regexp_matches(name, '{_COMM}') AS comm,
               NOT regexp_matches(name, '{_COMM}|{_MEMORY}|{_NOT_COMPUTE}') AS compute
        FROM events
        WHERE rank = {rank} AND ph = 'X' AND stream >= 0 AND dur_ns IS NOT NULL AND {launched}
        """
    )
    if len(events["start"]) == 0:
        return None
    start, end = _rounded(events["start"], events["duration"])
    everything = _merged(start, end)
    compute = _merged(start[events["compute"]], end[events["compute"]])
    kernel_time = int(everything.end[-1] - everything.start[0])
    idle = kernel_time - length(everything)
    return {
        "rank": rank,
        "idle_time_us": idle // 1000,
        "compute_time_us": length(compute) // 1000,
        "non_compute_time_us": (kernel_time - length(compute) - idle) // 1000,
        "kernel_time_us": kernel_time // 1000,
        "comp_comm_overlap_pctg": _overlap(start, end, events["comm"], events["compute"]),
    }


def _rounded(start: Ints, duration: Ints) -> tuple[Ints, Ints]:
    """Starts up and ends down to whole µs, in ns; files without fractions are left as they are.

    In doubles, as HTA does it: at 1.7e15 µs since 1970 they know quarters of a µs, which moves some ends.
    """
    if not (start % 1000).any():
        return start, start + duration
    begin = start // 1000 + start % 1000 / 1000
    end = begin + duration / 1000
    return np.ceil(begin).astype(np.int64) * 1000, np.floor(end).astype(np.int64) * 1000


def _merged(start: Ints, end: Ints) -> Intervals:
    """A union the way HTA forms it: an interval that rounding turned round keeps its negative length."""
    if len(start) == 0:
        return Intervals(start, end)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > reach[:-1]))
    return Intervals(start[first], np.maximum.reduceat(end, first))


def _overlap(start: Ints, end: Ints, comm: Any, compute: Any) -> float | None:
    communication = union(start[comm], end[comm])
    hidden = intersect(communication, union(start[compute], end[compute]))
    total = length(communication)
    return round(100 * length(hidden) / total, 2) if total else None
