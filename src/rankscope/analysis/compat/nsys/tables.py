"""The summaries of `nsys stats` (one row for each name, by total time or size, largest first), and its traces: one row
for each event, in order of time, on the clock of the report."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.compat.nsys.rows import (
    CALL_NAME,
    CALLS,
    COPIES,
    COPY_NAME,
    CORRELATION,
    DEVICE_NAME,
    DEVICE_WORK,
    KERNELS,
    RANGES,
    TAG,
    device_names,
    nsys_report,
    number,
    rank_key,
    slices_of,
    statistic_headings,
    statistics,
    triple,
)
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

_CATEGORY = "CASE s.category WHEN 'kernel' THEN 'CUDA_KERNEL' WHEN 'cuda_runtime' THEN 'CUDA_API' " + (
    "WHEN 'cuda_driver' THEN 'CUDA_API' ELSE 'MEMORY_OPER' END"
)
_STYLE = "coalesce(e.args->>'style', 'PushPop')"
_MEGA = 1e6


def _by_time(
    name: str,
    title: str,
    question: str,
    count: str,
    keys: dict[str, str],
    condition: str,
    missing: str,
    events: bool = False,
    order: str = "",
    group_more: str = "",
    tie: str = "NULL",
) -> Report:
    """A summary of durations. `keys` maps headings to SQL, in the order of the columns; `tie` orders equal ones."""
    headings = f"Time (%):1|Total Time (ns)|{count}|{statistic_headings()}|{'|'.join(keys)}"
    numbered = {f"key{i}": sql for i, sql in enumerate(keys.values())}

    @nsys_report(name, title, question, headings, missing)
    def summary(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
        rank, shown = rank_key(by, "s."), rank_key(by)
        selected = ", ".join(f"{sql} AS {key}" for key, sql in numbered.items())
        return run.rows(
            f"""
            WITH summary AS (
                SELECT {rank} {selected}, sum(s.dur_ns)::BIGINT AS total, count(*) AS num, {statistics("s.dur_ns")},
                       {group_more or "NULL"} AS more, {tie} AS tie
                FROM {slices_of(scope, condition, events)}
                GROUP BY {rank} {", ".join(numbered)}{", more" * bool(group_more)}
            )
            SELECT {shown} round(total * 100.0 / nullif(sum(total) OVER (), 0), 1), total, num, avg, med, min, max,
                   stddev, {", ".join(numbered)}
            FROM summary ORDER BY {shown} total DESC, {order} {", ".join(numbered)}
            """
        )

    return summary


# fmt: off
cuda_gpu_kern_sum = _by_time(
    "cuda_gpu_kern_sum", "CUDA GPU Kernel Summary", "Kernels by name.", "Instances",
    {"Name": "s.name"}, KERNELS, "kernel", order="num,",
)
cuda_gpu_kern_gb_sum = _by_time(
    "cuda_gpu_kern_gb_sum", "CUDA GPU Kernel/Grid/Block Summary", "Kernels by name, grid and block.", "Instances",
    {"GridXYZ": triple("grid"), "BlockXYZ": triple("block"), "Name": "s.name"}, KERNELS, "kernel",
    events=True, order="num, key2,",
)
cuda_gpu_mem_time_sum = _by_time(
    "cuda_gpu_mem_time_sum", "CUDA GPU MemOps Summary (by Time)", "Copies and fills by time.", "Count",
    {"Operation": COPY_NAME}, COPIES, "memory",
)
cuda_gpu_sum = _by_time(
    "cuda_gpu_sum", "CUDA GPU Summary (Kernels/MemOps)", "Kernels, copies and fills.", "Instances",
    {"Category": _CATEGORY, "Operation": DEVICE_NAME}, DEVICE_WORK, "gpu", order="key1,",
)
cuda_api_sum = _by_time(
    "cuda_api_sum", "CUDA API Summary", "CUDA calls by name.", "Num Calls",
    {"Name": CALL_NAME}, CALLS, "api", events=True,
    # nsys groups before it removes the version: cudaMalloc and cudaMalloc_v3020 are two rows of the same name.
    group_more="coalesce(e.args->>'version', '')",
)
cuda_api_gpu_sum = _by_time(
    "cuda_api_gpu_sum", "CUDA Summary (API/Kernels/MemOps)", "CUDA calls and GPU work together.", "Instances",
    {"Category": _CATEGORY, "Operation": f"CASE WHEN {CALLS} THEN {CALL_NAME} ELSE {DEVICE_NAME} END"},
    f"({DEVICE_WORK} OR {CALLS})", "gpu", events=True, order="key1,",
)
nvtx_sum = _by_time(
    "nvtx_sum", "NVTX Range Summary", "NVTX ranges by name and style.", "Instances",
    {"Style": _STYLE, "Range": TAG}, RANGES, "nvtx", events=True, order="key1,",
)
nvtx_pushpop_sum = _by_time(
    "nvtx_pushpop_sum", "NVTX Push/Pop Range Summary", "NVTX push/pop ranges by name.", "Instances",
    {"Range": TAG}, f"{RANGES} AND {_STYLE} = 'PushPop'", "nvtx", events=True,
)
osrt_sum = _by_time(
    "osrt_sum", "OS Runtime Summary", "Calls into the operating system by name.", "Num Calls",
    {"Name": "s.name"}, "s.category = 'os_runtime' AND (e.args->>'class') IS NULL", "osrt",
    events=True, order="tie,", tie="min(TRY_CAST(e.args->>'name id' AS BIGINT))",
)
# fmt: on


@nsys_report(
    "cuda_gpu_mem_size_sum",
    "CUDA GPU MemOps Summary (by Size)",
    "Copies and fills by size.",
    "Total (MB):3|Count|Avg (MB):3|Med (MB):3|Min (MB):3|Max (MB):3|StdDev (MB):3|Operation",
    "memory",
)
def cuda_gpu_mem_size_sum(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Copies and fills by size."""
    rank = rank_key(by, "s.")
    size = f"s.bytes / {_MEGA}"
    return run.rows(
        f"""
        SELECT {rank} sum(s.bytes)::BIGINT / {_MEGA} AS total, count(*), avg(s.bytes) / {_MEGA},
               median(s.bytes) / {_MEGA}, min({size}), max({size}),
               CASE WHEN count(s.bytes) = 1 THEN 0 ELSE stddev_samp(s.bytes) / {_MEGA} END, {COPY_NAME} AS operation
        FROM {slices_of(scope, COPIES)} GROUP BY {rank} operation ORDER BY {rank} total DESC, operation
        """
    )


_PHASES = {"T": "total", "A": "api", "Q": "queue", "K": "kernel"}


@nsys_report(
    "cuda_kern_exec_sum",
    "CUDA Kernel Launch & Exec Time Summary",
    "Launch, queue and run time of kernels.",
    f"PID|TID|DevId|Count|QCount|{'|'.join(map(statistic_headings, _PHASES))}|API Name|Kernel Name",
    "kernel",
)
def cuda_kern_exec_sum(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Duration of the launch call, time in the queue and duration of kernels, by thread, device, call and kernel."""
    rank = rank_key(by)
    sets = ", ".join(statistics(name, alias=f"{name}_") for name in _PHASES.values())
    return run.rows(
        f"""
        SELECT {rank} pid, tid, device, count(*), count(queue), {sets}, call, kernel_name
        FROM ({launched_kernels(scope)})
        GROUP BY {rank} pid, tid, device, call, kernel_name
        ORDER BY {rank} total_avg DESC, pid, tid, device, call, kernel_name
        """
    )


def launched_kernels(scope: Scope) -> str:
    """Kernels with their launch call; the time in the queue only where the kernel starts after the call."""
    return f"""
        SELECT k.rank, TRY_CAST(e.pid AS BIGINT) AS pid, TRY_CAST(e.tid AS BIGINT) AS tid, k.device, s.dur_ns AS api,
               CASE WHEN k.start_ns >= s.start_ns + s.dur_ns THEN k.start_ns - s.start_ns - s.dur_ns END AS queue,
               k.dur_ns AS kernel,
               greatest(s.start_ns + s.dur_ns, k.start_ns + k.dur_ns) - s.start_ns AS total,
               {CALL_NAME} AS call, k.name AS kernel_name, e.ts_ns AS call_start, k.segment, k.id AS kernel_id,
               e.ts_ns + (k.start_ns - s.start_ns) AS kernel_start
        FROM (SELECT s.* FROM {slices_of(scope, KERNELS)}) k
        JOIN slices s ON s.rank = k.rank AND s.segment = k.segment AND s.id = k.launch
        JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id
    """


@nsys_report(
    "cuda_gpu_trace",
    "CUDA GPU Trace",
    "Each kernel, copy and fill.",
    "Start (ns)|Duration (ns)|CorrId|GrdX|GrdY|GrdZ|BlkX|BlkY|BlkZ|Reg/Trd|StcSMem (MB):3|DymSMem (MB):3|Bytes (MB):3|"
    "Throughput (MB/s):3|SrcMemKd|DstMemKd|Device|Ctx|GreenCtx|Strm|Name",
    "gpu",
)
def cuda_gpu_trace(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Kernels, copies and fills."""
    rank = rank_key(by, "s.")
    axes = ", ".join(
        f"TRY_CAST(e.args->'{key}'->>{axis} AS BIGINT)" for key in ("grid", "block") for axis in range(3)
    )
    kinds = "regexp_extract(s.name, '\\((.+?)(?: -> (.+))?\\)$', ['source', 'target'])"
    source = f"coalesce(e.args->>'source kind', e.args->>'memory kind', nullif({kinds}.source, ''))"
    target = f"coalesce(e.args->>'destination kind', nullif({kinds}.target, ''))"
    memory = "s.category <> 'kernel'"
    return run.rows(
        f"""
        SELECT {rank} e.ts_ns, e.dur_ns, {CORRELATION.format("s")}, {axes}, {number("registers per thread")},
               {number("static shared memory")} / {_MEGA}, {number("dynamic shared memory")} / {_MEGA},
               CASE WHEN {memory} THEN s.bytes / {_MEGA} END,
               CASE WHEN {memory} THEN s.bytes * (1000000000 // nullif(e.dur_ns, 0)) / {_MEGA} END,
               CASE WHEN {memory} THEN {source} END, CASE WHEN {memory} THEN {target} END,
               concat(d.device_name, ' (', s.device, ')'), {number("context")}, {number("green context")}, s.stream,
               {DEVICE_NAME}
        FROM slices s
        JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id
        LEFT JOIN {device_names(run)} ON d.rank = s.rank AND d.segment = s.segment AND d.device = s.device
        WHERE {DEVICE_WORK} AND {scope.where("s")}
        ORDER BY {rank} e.ts_ns, s.rank, s.id
        """
    )


_THREADS = """
    SELECT rank, segment, pid, tid, args->>'name' AS thread_name, TRY_CAST(args->>'priority' AS BIGINT) AS priority
    FROM events WHERE ph = 'M' AND name = 'thread_name' AND category = ''
"""


@nsys_report(
    "cuda_api_trace",
    "CUDA API Trace",
    "Each CUDA call.",
    "Start (ns)|Duration (ns)|Name|Result|CorrID|Pid|Tid|T-Pri|Thread Name",
    "api",
)
def cuda_api_trace(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Calls into the CUDA runtime and driver."""
    rank = rank_key(by, "s.")
    return run.rows(
        f"""
        SELECT {rank} e.ts_ns, e.dur_ns, {CALL_NAME}, {number("return value")}, {CORRELATION.format("s")},
               TRY_CAST(e.pid AS BIGINT), TRY_CAST(e.tid AS BIGINT), t.priority, t.thread_name
        FROM slices s
        JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id
        LEFT JOIN ({_THREADS}) t ON t.rank = s.rank AND t.segment = s.segment AND t.pid = e.pid AND t.tid = e.tid
        WHERE {CALLS} AND {scope.where("s")}
        ORDER BY {rank} e.ts_ns, s.rank, s.id
        """
    )


@nsys_report(
    "cuda_kern_exec_trace",
    "CUDA Kernel Launch & Exec Time Trace",
    "Each kernel with its launch.",
    "API Start (ns)|API Dur (ns)|Queue Start (ns)|Queue Dur (ns)|Kernel Start (ns)|Kernel Dur (ns)|Total Dur (ns)|"
    "PID|TID|DevId|API Function|GridXYZ|BlockXYZ|Kernel Name",
    "kernel",
)
def cuda_kern_exec_trace(run: Run, scope: Scope, by: str | None) -> list[tuple[Any, ...]]:
    """Each kernel with its launch call and the time between them."""
    rank = rank_key(by, "l.")
    return run.rows(
        f"""
        SELECT {rank} call_start, api, CASE WHEN queue IS NOT NULL THEN call_start + api END, queue, kernel_start,
               kernel, total, l.pid, l.tid, l.device, call, {triple("grid")}, {triple("block")}, kernel_name
        FROM ({launched_kernels(scope)}) l
        JOIN events e ON e.rank = l.rank AND e.segment = l.segment AND e.id = l.kernel_id
        ORDER BY {rank} call_start, l.rank, l.kernel_id
        """
    )
