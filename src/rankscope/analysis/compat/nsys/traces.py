"""The traces of `nsys stats`: one row for each event, in order of time, on the clock of the report."""

from __future__ import annotations

from rankscope.analysis.compat.nsys.rows import (
    CALL_NAME,
    CALLS,
    CORRELATION,
    DEVICE_NAME,
    DEVICE_WORK,
    NsysTable,
    device_names,
    number,
    rank_key,
    slices_of,
    triple,
)
from rankscope.analysis.compat.nsys.sums import launched_kernels
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run

_MEGA = 1e6
_GPU_TRACE = NsysTable(
    "cuda_gpu_trace",
    "CUDA GPU Trace",
    (
        *map(
            Column, ("Start (ns)", "Duration (ns)", "CorrId", "GrdX", "GrdY", "GrdZ", "BlkX", "BlkY", "BlkZ")
        ),
        Column("Reg/Trd"),
        *(
            Column(name, decimals=3)
            for name in ("StcSMem (MB)", "DymSMem (MB)", "Bytes (MB)", "Throughput (MB/s)")
        ),
        *map(Column, ("SrcMemKd", "DstMemKd", "Device", "Ctx", "GreenCtx", "Strm", "Name")),
    ),
    "gpu",
)


def cuda_gpu_trace(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Kernels, copies and fills."""
    rank, order = rank_key(by, "s.")
    axes = ", ".join(
        f"TRY_CAST(e.args->'{key}'->>{axis} AS BIGINT)" for key in ("grid", "block") for axis in range(3)
    )
    kinds = "regexp_extract(s.name, '\\((.+?)(?: -> (.+))?\\)$', ['source', 'target'])"
    source = f"coalesce(e.args->>'source kind', e.args->>'memory kind', nullif({kinds}.source, ''))"
    target = f"coalesce(e.args->>'destination kind', nullif({kinds}.target, ''))"
    memory = "s.category <> 'kernel'"
    rows = run.rows(
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
        ORDER BY {order} e.ts_ns, s.rank, s.id
        """
    )
    return _GPU_TRACE.result(run, scope, rows, by)


_API_TRACE = NsysTable(
    "cuda_api_trace",
    "CUDA API Trace",
    tuple(
        map(
            Column,
            (
                *("Start (ns)", "Duration (ns)", "Name", "Result", "CorrID", "Pid", "Tid", "T-Pri"),
                "Thread Name",
            ),
        )
    ),
    "api",
)
_THREADS = """
    SELECT rank, segment, pid, tid, args->>'name' AS thread_name, TRY_CAST(args->>'priority' AS BIGINT) AS priority
    FROM events WHERE ph = 'M' AND name = 'thread_name' AND category = ''
"""


def cuda_api_trace(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Calls into the CUDA runtime and driver."""
    rank, order = rank_key(by, "s.")
    rows = run.rows(
        f"""
        SELECT {rank} e.ts_ns, e.dur_ns, {CALL_NAME}, {number("return value")}, {CORRELATION.format("s")},
               TRY_CAST(e.pid AS BIGINT), TRY_CAST(e.tid AS BIGINT), t.priority, t.thread_name
        FROM slices s
        JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id
        LEFT JOIN ({_THREADS}) t ON t.rank = s.rank AND t.segment = s.segment AND t.pid = e.pid AND t.tid = e.tid
        WHERE {CALLS} AND {scope.where("s")}
        ORDER BY {order} e.ts_ns, s.rank, s.id
        """
    )
    return _API_TRACE.result(run, scope, rows, by)


_EXEC_TRACE = NsysTable(
    "cuda_kern_exec_trace",
    "CUDA Kernel Launch & Exec Time Trace",
    tuple(
        map(
            Column,
            (
                *(
                    "API Start (ns)",
                    "API Dur (ns)",
                    "Queue Start (ns)",
                    "Queue Dur (ns)",
                    "Kernel Start (ns)",
                ),
                *(
                    "Kernel Dur (ns)",
                    "Total Dur (ns)",
                    "PID",
                    "TID",
                    "DevId",
                    "API Function",
                    "GridXYZ",
                    "BlockXYZ",
                ),
                "Kernel Name",
            ),
        )
    ),
    "kernel",
)


def cuda_kern_exec_trace(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Each kernel with its launch call and the time between them."""
    rank, order = rank_key(by, "l.")
    rows = run.rows(
        f"""
        SELECT {rank} call_start, api, CASE WHEN queue IS NOT NULL THEN call_start + api END, queue, kernel_start,
               kernel, total, l.pid, l.tid, l.device, call, {triple("grid")}, {triple("block")}, kernel_name
        FROM ({launched_kernels(scope)}) l
        JOIN events e ON e.rank = l.rank AND e.segment = l.segment AND e.id = l.kernel_id
        ORDER BY {order} call_start, l.rank, l.kernel_id
        """
    )
    return _EXEC_TRACE.result(run, scope, rows, by)


_MPI_TRACE = NsysTable(
    "mpi_event_trace",
    "MPI Event Trace",
    (
        *map(
            Column,
            ("Start (ns)", "End (ns)", "Duration (ns)", "Event", "Pid", "Tid", "Tag", "Rank", "PeerRank"),
        ),
        Column("RootRank"),
        *(Column(name, decimals=3) for name in ("Size (MB)", "CollSendSize (MB)", "CollRecvSize (MB)")),
    ),
    "mpi",
)


def mpi_event_trace(run: Run, scope: Scope, by: str | None = None) -> Result:
    """MPI calls, from the MPI tables of nsys or, for older versions, from the NVTX domain MPI."""
    rows = run.rows(
        f"""
        SELECT e.ts_ns, e.ts_ns + e.dur_ns, e.dur_ns, s.name, TRY_CAST(e.pid AS BIGINT), TRY_CAST(e.tid AS BIGINT),
               {number("tag")}, CASE WHEN (e.args->>'mpi') IS NULL THEN s.rank ELSE {number("rank")} END,
               {number("peer rank")}, {number("root rank")}, {number("bytes")} / {_MEGA},
               {number("send bytes")} / {_MEGA}, {number("receive bytes")} / {_MEGA}
        FROM {slices_of(scope, "s.category = 'user_annotation' AND (e.args->>'domain') = 'MPI'", events=True)}
        ORDER BY e.ts_ns, s.rank, s.id
        """
    )
    return _MPI_TRACE.result(run, scope, rows, None)
