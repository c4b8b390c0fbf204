"""The summaries of `nsys stats`: one row for each name, by total time (or size), largest first."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.analysis.compat.nsys.rows import (
    CALL_NAME,
    CALLS,
    COPIES,
    COPY_NAME,
    DEVICE_NAME,
    DEVICE_WORK,
    KERNELS,
    RANGES,
    TAG,
    NsysTable,
    rank_key,
    slices_of,
    statistic_columns,
    statistics,
    triple,
)
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

Analysis = Callable[[Run, Scope, str | None], Result]
_TIME = Column("Time (%)", decimals=1)
_TOTAL = Column("Total Time (ns)")
_CATEGORY = "CASE s.category WHEN 'kernel' THEN 'CUDA_KERNEL' WHEN 'cuda_runtime' THEN 'CUDA_API' " + (
    "WHEN 'cuda_driver' THEN 'CUDA_API' ELSE 'MEMORY_OPER' END"
)
_STYLE = "coalesce(e.args->>'style', 'PushPop')"
_MEGA = 1e6


def _by_time(
    name: str,
    title: str,
    count: str,
    keys: dict[str, str],
    condition: str,
    missing: str,
    events: bool = False,
    order: str = "",
    group_more: str = "",
) -> Analysis:
    """A summary of durations. `keys` maps headings to SQL, in the order of the columns."""
    columns = (_TIME, _TOTAL, Column(count), *statistic_columns(), *(Column(heading) for heading in keys))
    table = NsysTable(name, title, columns, missing)
    numbered = {f"key{i}": sql for i, sql in enumerate(keys.values())}

    def analyse(run: Run, scope: Scope, by: str | None = None) -> Result:
        rank, group = rank_key(by, "s.")
        shown, outer = rank_key(by)
        selected = ", ".join(f"{sql} AS {key}" for key, sql in numbered.items())
        rows = run.rows(
            f"""
            WITH summary AS (
                SELECT {rank} {selected}, sum(s.dur_ns)::BIGINT AS total, count(*) AS num, {statistics("s.dur_ns")},
                       {group_more or "NULL"} AS more
                FROM {slices_of(scope, condition, events)}
                GROUP BY {group} {", ".join(numbered)}{", more" * bool(group_more)}
            )
            SELECT {shown} round(total * 100.0 / nullif(sum(total) OVER (), 0), 1), total, num, avg, med, min, max,
                   stddev, {", ".join(numbered)}
            FROM summary ORDER BY {outer} total DESC, {order} {", ".join(numbered)}
            """
        )
        return table.result(run, scope, rows, by)

    return analyse


cuda_gpu_kern_sum = _by_time(
    "cuda_gpu_kern_sum",
    "CUDA GPU Kernel Summary",
    "Instances",
    {"Name": "s.name"},
    KERNELS,
    "kernel",
    order="num,",
)
cuda_gpu_kern_gb_sum = _by_time(
    "cuda_gpu_kern_gb_sum",
    "CUDA GPU Kernel/Grid/Block Summary",
    "Instances",
    {"GridXYZ": triple("grid"), "BlockXYZ": triple("block"), "Name": "s.name"},
    KERNELS,
    "kernel",
    events=True,
    order="num, key2,",
)
cuda_gpu_mem_time_sum = _by_time(
    "cuda_gpu_mem_time_sum",
    "CUDA GPU MemOps Summary (by Time)",
    "Count",
    {"Operation": COPY_NAME},
    COPIES,
    "memory",
)
cuda_gpu_sum = _by_time(
    "cuda_gpu_sum",
    "CUDA GPU Summary (Kernels/MemOps)",
    "Instances",
    {"Category": _CATEGORY, "Operation": DEVICE_NAME},
    DEVICE_WORK,
    "gpu",
    order="key1,",
)
cuda_api_sum = _by_time(
    "cuda_api_sum",
    "CUDA API Summary",
    "Num Calls",
    {"Name": CALL_NAME},
    CALLS,
    "api",
    events=True,
    # nsys groups before it removes the version: cudaMalloc and cudaMalloc_v3020 are two rows of the same name.
    group_more="coalesce(e.args->>'version', '')",
)
cuda_api_gpu_sum = _by_time(
    "cuda_api_gpu_sum",
    "CUDA Summary (API/Kernels/MemOps)",
    "Instances",
    {"Category": _CATEGORY, "Operation": f"CASE WHEN {CALLS} THEN {CALL_NAME} ELSE {DEVICE_NAME} END"},
    f"({DEVICE_WORK} OR {CALLS})",
    "gpu",
    events=True,
    order="key1,",
)
nvtx_sum = _by_time(
    "nvtx_sum",
    "NVTX Range Summary",
    "Instances",
    {"Style": _STYLE, "Range": TAG},
    RANGES,
    "nvtx",
    events=True,
    order="key1,",
)
nvtx_pushpop_sum = _by_time(
    "nvtx_pushpop_sum",
    "NVTX Push/Pop Range Summary",
    "Instances",
    {"Range": TAG},
    f"{RANGES} AND {_STYLE} = 'PushPop'",
    "nvtx",
    events=True,
)
osrt_sum = _by_time(
    "osrt_sum",
    "OS Runtime Summary",
    "Num Calls",
    {"Name": "s.name"},
    "s.category = 'os_runtime' AND (e.args->>'class') IS NULL",
    "osrt",
    events=True,
    order="more,",
    group_more="TRY_CAST(e.args->>'name id' AS BIGINT)",
)

_SIZES = NsysTable(
    "cuda_gpu_mem_size_sum",
    "CUDA GPU MemOps Summary (by Size)",
    (
        Column("Total (MB)", decimals=3),
        Column("Count"),
        *(Column(f"{name} (MB)", decimals=3) for name in ("Avg", "Med", "Min", "Max", "StdDev")),
        Column("Operation"),
    ),
    "memory",
)


def cuda_gpu_mem_size_sum(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Copies and fills by size."""
    rank, group = rank_key(by, "s.")
    size = f"s.bytes / {_MEGA}"
    rows = run.rows(
        f"""
        SELECT {rank} sum(s.bytes)::BIGINT / {_MEGA} AS total, count(*), avg(s.bytes) / {_MEGA},
               median(s.bytes) / {_MEGA}, min({size}), max({size}),
               CASE WHEN count(s.bytes) = 1 THEN 0 ELSE stddev_samp(s.bytes) / {_MEGA} END, {COPY_NAME} AS operation
        FROM {slices_of(scope, COPIES)} GROUP BY {group} operation ORDER BY {group} total DESC, operation
        """
    )
    return _SIZES.result(run, scope, rows, by)


_PHASES = {"T": "total", "A": "api", "Q": "queue", "K": "kernel"}
_EXECUTION = NsysTable(
    "cuda_kern_exec_sum",
    "CUDA Kernel Launch & Exec Time Summary",
    (
        *map(Column, ("PID", "TID", "DevId", "Count", "QCount")),
        *(column for letter in _PHASES for column in statistic_columns(letter)),
        Column("API Name"),
        Column("Kernel Name"),
    ),
    "kernel",
)


def cuda_kern_exec_sum(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Duration of the launch call, time in the queue and duration of kernels, by thread, device, call and kernel."""
    rank, group = rank_key(by)
    sets = ", ".join(statistics(name, alias=f"{name}_") for name in _PHASES.values())
    rows = run.rows(
        f"""
        SELECT {rank} pid, tid, device, count(*), count(queue), {sets}, call, kernel_name
        FROM ({launched_kernels(scope)})
        GROUP BY {group} pid, tid, device, call, kernel_name
        ORDER BY {group} total_avg DESC, pid, tid, device, call, kernel_name
        """
    )
    return _EXECUTION.result(run, scope, rows, by)


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
