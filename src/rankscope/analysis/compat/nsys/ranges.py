"""The reports of `nsys stats` that join NVTX ranges with GPU work.

GPU work belongs to every range that contains its launch call on the same thread. The projection of a range is the
time from the start of its first GPU work to the end of its last. Ranges that end on another thread are left out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from rankscope.analysis.compat.nsys.rows import (
    CORRELATION,
    DEVICE_WORK,
    KERNELS,
    RANGES,
    TAG,
    nsys_report,
    number,
    rank_key,
    slices_of,
    statistic_headings,
    statistics,
)
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run


def _ranges(scope: Scope) -> str:
    """Ranges, numbered in the order of the file; a range that is never closed ends with the last range."""
    stop = "e.ts_ns + e.dur_ns"
    return f"""
        SELECT rank, segment, range_id, pid, tid, start, tag, style,
               CASE WHEN is_open THEN max(greatest(start, CASE WHEN is_open THEN start ELSE stop END)) OVER (
                   PARTITION BY rank, segment) ELSE stop END AS stop
        FROM (
            SELECT s.rank, s.segment, e.pid, split_part(e.tid, ' ', 1) AS tid, e.ts_ns AS start, {stop} AS stop,
                   {TAG} AS tag, coalesce(e.args->>'style', 'PushPop') AS style,
                   (e.args->>'open') IS NOT NULL AS is_open,
                   coalesce({number("range")}, row_number() OVER (PARTITION BY s.rank, s.segment ORDER BY s.id))
                       AS range_id
            FROM {slices_of(scope.only_ranks(), f"{RANGES} AND (e.args->>'end thread') IS NULL", events=True)}
        )
    """


def _launches(scope: Scope, work: str) -> str:
    """GPU work with the call that launched it; times are on the clock of the file."""
    return f"""
        SELECT k.rank, k.segment, k.id, k.name, k.dur_ns, {CORRELATION.format("k")} AS correlation, e.pid, e.tid,
               e.ts_ns AS call_start,
               e.ts_ns + e.dur_ns AS call_stop, w.ts_ns AS work_start, w.ts_ns + w.dur_ns AS work_stop
        FROM (SELECT s.* FROM {slices_of(scope, work)}) k
        JOIN events w ON w.rank = k.rank AND w.segment = k.segment AND w.id = k.id
        LEFT JOIN events e ON e.rank = k.rank AND e.segment = k.segment AND e.id = k.launch
    """


_INSIDE = """r.rank = l.rank AND r.segment = l.segment AND r.pid = l.pid AND r.tid = l.tid
    AND r.start <= l.call_start AND r.stop >= l.call_stop"""


@nsys_report(
    "nvtx_kern_sum",
    "NVTX Range Kernel Summary",
    "Kernels by the NVTX ranges around them.",
    f"NVTX Range|Style|PID|TID|NVTX Inst|Kern Inst|Total Time (ns)|{statistic_headings()}|Kernel Name",
    "kernel",
)
def nvtx_kern_sum(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]] | str:
    """Kernels by every range around their launch; kernels outside all ranges come first."""
    rank = rank_key(by, "l.")
    if not run.rows(f"SELECT 1 FROM ({_ranges(scope)}) LIMIT 1"):
        return "nvtx"
    return run.rows(
        f"""
        SELECT {rank} tag, style, TRY_CAST(l.pid AS BIGINT) AS process, TRY_CAST(l.tid AS BIGINT) AS thread,
               count(DISTINCT (r.segment, r.range_id)) FILTER (r.range_id IS NOT NULL),
               count(DISTINCT (l.rank, l.segment, l.id)),
               sum(l.dur_ns)::BIGINT AS total, {statistics("l.dur_ns")}, l.name
        FROM ({_launches(scope, KERNELS)}) l LEFT JOIN ({_ranges(scope)}) r ON {_INSIDE}
        GROUP BY {rank} tag, style, process, thread, l.name
        ORDER BY {rank} tag NULLS FIRST, process NULLS FIRST, thread NULLS FIRST, total DESC, style, l.name
        """
    )


def _project(run: Run, scope: Scope) -> list[dict[str, Any]]:
    """Ranges projected onto their GPU work, with their level, the number of children with GPU work, and the path from
    the outermost range; without a tag, all work outside ranges."""
    ranges = f"({_ranges(scope)})"
    rows = run.rows(
        f"""
        SELECT l.rank, l.segment, r.range_id, any_value(tag), any_value(style), any_value(r.start),
               any_value(r.stop - r.start), min(work_start), max(work_stop) - min(work_start),
               count(DISTINCT l.correlation), TRY_CAST(arg_max(l.pid, work_stop) AS BIGINT),
               TRY_CAST(arg_max(l.tid, work_stop) AS BIGINT)
        FROM ({_launches(scope, DEVICE_WORK)}) l LEFT JOIN {ranges} r ON {_INSIDE}
        WHERE l.call_start IS NOT NULL
        GROUP BY l.rank, l.segment, r.range_id ORDER BY l.rank, l.segment, r.range_id NULLS FIRST
        """
    )
    names = (
        "rank", "segment", "range_id", "tag", "style", "start", "duration", "work_start", "work_duration", "operations",
        "pid", "tid",
    )  # fmt: skip
    ancestry = {**dict.fromkeys(("level", "parent", "stack")), "children": 0}
    projected = [dict(zip(names, row, strict=True)) | ancestry for row in rows]
    inside = [item for item in projected if item["range_id"] is not None]
    if not inside:
        return []
    parents = _parents(run, scope)
    keys = [(item["rank"], item["segment"], item["range_id"]) for item in inside]
    children = Counter(
        (rank, segment, parents.get((rank, segment, number))) for rank, segment, number in keys
    )
    for item, (rank, segment, range_id) in zip(inside, keys, strict=True):
        way = [range_id]
        while (up := parents.get((rank, segment, way[-1]))) is not None:
            way.append(up)
        item["level"], item["children"] = len(way) - 1, children[rank, segment, range_id]
        item["parent"] = way[1] if len(way) > 1 else None
        item["stack"] = "".join(f":{range_id}" for range_id in reversed(way))
    return projected


def _parents(run: Run, scope: Scope) -> dict[tuple[int, int, int], int]:
    """(rank, segment, range) -> the shortest range around it on its thread; of equal ranges, the later is the child."""
    rows = run.rows(
        f"""
        WITH ranges AS MATERIALIZED ({_ranges(scope)})
        SELECT c.rank, c.segment, c.range_id, arg_min(p.range_id, (p.stop - p.start, p.range_id))
        FROM ranges c JOIN ranges p ON p.rank = c.rank AND p.segment = c.segment AND p.pid = c.pid AND p.tid = c.tid
            AND p.start <= c.start AND p.stop >= c.stop AND p.range_id <> c.range_id
            AND (p.start < c.start OR p.stop > c.stop OR p.range_id < c.range_id)
        GROUP BY ALL
        """
    )
    return {(rank, segment, child): parent for rank, segment, child, parent in rows}


@nsys_report(
    "nvtx_gpu_proj_trace",
    "NVTX GPU Projection Trace",
    "Each NVTX range with the GPU work in it.",
    "Name|Projected Start (ns)|Projected Duration (ns)|Orig Start (ns)|Orig Duration (ns)|Style|PID|TID|NumGPUOps|"
    "Lvl|NumChild|RangeId|ParentId|RangeStack",
    "projection",
)
def nvtx_gpu_proj_trace(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Each range with GPU work, in the order of the file; work outside ranges comes first."""
    shown = "tag work_start work_duration start duration style pid tid operations level children range_id parent stack"
    names = [*(("rank",) if by == "rank" else ()), *shown.split()]
    return [tuple(item[name] for name in names) for item in _project(run, scope)]


@nsys_report(
    "nvtx_gpu_proj_sum",
    "NVTX GPU Projection Summary",
    "NVTX ranges by the GPU work in them.",
    f"Range|Style|Total Proj Time (ns)|Total Range Time (ns)|Range Instances|{statistic_headings('Proj ')}|"
    "Total GPU Ops|Avg GPU Ops:1|Avg Range Lvl:1|Avg Num Child:1",
    "projection",
)
def nvtx_gpu_proj_sum(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Ranges by name and style."""
    named = [item for item in _project(run, scope) if item["tag"] is not None]
    if not named:
        return []
    fields = ("rank", "tag", "style", "work_duration", "duration", "operations", "level", "children")
    columns = {name: np.array([item[name] for item in named]) for name in fields}
    for name in ("tag", "style"):
        columns[name] = columns[name].astype(object)
    rank = rank_key(by)
    run.connection.register("projected_ranges", columns)
    try:
        return run.rows(
            f"""
            SELECT {rank} tag, style, sum(work_duration)::BIGINT AS total, sum(duration)::BIGINT, count(*),
                   {statistics("work_duration")}, sum(operations)::BIGINT, round(avg(operations), 1),
                   round(avg(level), 1), round(avg(children), 1)
            FROM projected_ranges GROUP BY {rank} tag, style ORDER BY {rank} total DESC, tag, style
            """
        )
    finally:
        run.connection.unregister("projected_ranges")
