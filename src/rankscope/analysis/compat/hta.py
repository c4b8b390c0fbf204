"""Holistic Trace Analysis 0.5: get_temporal_breakdown and get_comm_comp_overlap with default options.

Its behaviour, determined by running it: times with fractions of a µs have their starts rounded up and their ends
rounded down; with two or more profiler steps, only GPU events launched before the start of the last step are kept;
every event with a stream is a GPU event, including synchronisation; idle is the window of the kernels minus their
union.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import Intervals, Ints, intersect, length, union
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

COLUMNS = (
    Column("rank"),
    Column("idle_time_us", "count"),
    Column("compute_time_us", "count"),
    Column("non_compute_time_us", "count"),
    Column("kernel_time_us", "count"),
    Column("comp_comm_overlap_pctg", "percent"),
)
WHY = (
    "HTA rounds starts up and ends down to whole µs, and leaves out the last step when there are two or more; "
    "-r breakdown without --compat does neither"
)
_COMM = "^nccl.*Kernel"
_MEMORY = "^(Memcpy|Memset|dma)"
_NOT_COMPUTE = "Memcpy|^Memset|Sync"


def breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank. --steps has no effect, because HTA has no such option."""
    (steps,) = run.rows("SELECT count(DISTINCT name) FROM slices WHERE contains(name, 'ProfilerStep')")[0]
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    rows = [row for rank in ranks if (row := _row(run, rank, drop_last=steps >= 2))]
    notes = [WHY] if rows else ["no GPU events: HTA would have no result"]
    if any(row["non_compute_time_us"] < 0 for row in rows):
        notes.append(
            "HTA itself fails on this trace: after its rounding, kernels under 1 µs have a negative duration"
        )
    return Result(
        "breakdown", "Temporal breakdown as in HTA", "whole file", COLUMNS, rows, notes=tuple(notes)
    )


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
    """Round starts up and ends down to whole µs, in ns; files without fractions do not change.

    Uses doubles, as HTA does: at 1.7e15 µs since 1970 their resolution is 0.25 µs, which changes some ends.
    """
    if not (start % 1000).any():
        return start, start + duration
    begin = start // 1000 + start % 1000 / 1000
    end = begin + duration / 1000
    return np.ceil(begin).astype(np.int64) * 1000, np.floor(end).astype(np.int64) * 1000


def _merged(start: Ints, end: Ints) -> Intervals:
    """The union as HTA computes it: an interval that is negative after rounding keeps its negative length."""
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
