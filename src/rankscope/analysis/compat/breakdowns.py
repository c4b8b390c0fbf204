"""The breakdowns of Holistic Trace Analysis and of TraceLens.

HTA 0.5: get_temporal_breakdown and get_comm_comp_overlap with default options. Its behaviour, determined by running it:
times with fractions of a µs have their starts rounded up and their ends rounded down; with two or more profiler steps,
only GPU events launched before the start of the last step are kept; every event with a stream is a GPU event, including
synchronisation; idle is the window of the kernels minus their union.

TraceLens: fills count as computation; GPU events without a launch in the file do not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import Intervals, Ints, intersect, join, length, subtract, union
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

_HTA_COLUMNS = (
    Column("rank"),
    Column("idle_time_us", "count"),
    Column("compute_time_us", "count"),
    Column("non_compute_time_us", "count"),
    Column("kernel_time_us", "count"),
    Column("comp_comm_overlap_pctg", "percent"),
)
_HTA_WHY = (
    "HTA rounds starts up and ends down to whole µs, and leaves out the last step when there are two or more; "
    "-r breakdown without --compat does neither"
)
_COMM = "^nccl.*Kernel"
_MEMORY = "^(Memcpy|Memset|dma)"
_NOT_COMPUTE = "Memcpy|^Memset|Sync"


def hta_breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank. --steps has no effect, because HTA has no such option."""
    (steps,) = run.rows("SELECT count(DISTINCT name) FROM slices WHERE contains(name, 'ProfilerStep')")[0]
    rows = [row for rank in scope.ranks_in(run) if (row := _hta_row(run, rank, drop_last=steps >= 2))]
    notes = [_HTA_WHY] if rows else ["no GPU events: HTA would have no result"]
    if any(row["non_compute_time_us"] < 0 for row in rows):
        notes.append(
            "HTA itself fails on this trace: after its rounding, kernels under 1 µs have a negative duration"
        )
    return Result(
        "breakdown", "Temporal breakdown as in HTA", "whole file", _HTA_COLUMNS, rows, notes=tuple(notes)
    )


def _hta_row(run: Run, rank: int, drop_last: bool) -> dict[str, Any] | None:
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


_TRACELENS_COLUMNS = (Column("type"), Column("time_ms"), Column("percent"))
_TRACELENS_WHY = (
    "TraceLens counts fills as computation and leaves out GPU events whose launch call is not in the file; "
    "-r breakdown without --compat includes them, and counts fills as copies"
)


def tracelens_breakdown(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Eight rows for each rank; with several ranks, a column names the rank. --steps has no effect."""
    ranks = scope.ranks_in(run)
    rows = [{"rank": rank, **row} for rank in ranks for row in _tracelens_rows(run, rank)]
    columns = (Column("rank"), *_TRACELENS_COLUMNS) if len(ranks) > 1 else _TRACELENS_COLUMNS
    notes = (_TRACELENS_WHY,) if rows else ("no GPU events with a launch: TraceLens would have no result",)
    return Result("breakdown", "GPU timeline as in TraceLens", "whole file", columns, rows, notes=notes)


def _tracelens_rows(run: Run, rank: int) -> list[dict[str, Any]]:
    events = run.arrays(
        "SELECT start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop, category = 'gpu_memcpy' AS copy, "
        "category = 'kernel' AND contains(lower(name), 'nccl') AS comm "
        f"FROM gpu WHERE rank = {rank} AND launch IS NOT NULL"
    )
    start, end, copies, comms = events["start"], events["stop"], events["copy"], events["comm"]
    if len(start) == 0:
        return []
    work = ~(copies | comms)
    compute, comm, copy = (union(start[mask], end[mask]) for mask in (work, comms, copies))
    exposed_comm = subtract(comm, compute)
    busy, total = length(join(compute, comm, copy)), int(end.max() - start.min())
    times = {
        "computation_time": length(compute),
        "exposed_comm_time": length(exposed_comm),
        "exposed_memcpy_time": length(subtract(subtract(copy, compute), comm)),
        "busy_time": busy,
        "idle_time": total - busy,
        "total_time": total,
        "total_comm_time": length(comm),
        "total_memcpy_time": length(copy),
    }
    return [
        {"type": name, "time_ms": round(ns / 1e6, 6), "percent": 100 * ns / total if total else None}
        for name, ns in times.items()
    ]
