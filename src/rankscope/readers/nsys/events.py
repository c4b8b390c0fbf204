"""The tables of an nsys export as events: CUDA, MPI, OS runtime, GPU metrics.

Arguments have Kineto's names where both tools record the same, so that analyses do not depend on the tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rankscope.model import CROSSING_RANGES, UNFINISHED_STEP
from rankscope.readers.base import usable_time
from rankscope.readers.nsys.export import PID, TID, NsysExport
from rankscope.readers.nsys.table_source import (
    ON_DEVICE,
    RATE,
    ROW,
    Source,
    arguments,
    choice,
    number,
    numbers,
    text,
    triple,
)
from rankscope.readers.sqlite_file import ROWID, text_of
from rankscope.sql import sql_text

_COPY_KINDS = {
    1: ("HtoD", "Host-to-Device"), 2: ("DtoH", "Device-to-Host"), 3: ("HtoA", "Host-to-Array"),
    4: ("AtoH", "Array-to-Host"), 5: ("AtoA", "Array-to-Array"), 6: ("AtoD", "Array-to-Device"),
    7: ("DtoA", "Device-to-Array"), 8: ("DtoD", "Device-to-Device"), 9: ("HtoH", "Host-to-Host"),
    10: ("PtoP", "Peer-to-Peer"), 11: ("Unified HtoD", "Unified Host-to-Device"),
    12: ("Unified DtoH", "Unified Device-to-Host"), 13: ("Unified DtoD", "Unified Device-to-Device"),
}  # fmt: skip
"""Name in Kineto and in nsys of each copyKind."""
_MEMORY_KINDS = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static",
}  # fmt: skip
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_NO_STREAM = 0xFFFFFFFF
_STRING = "coalesce(s.text, '')"
_NO_DURATION = "NULL::BIGINT"


def _columns(pairs: str) -> dict[str, str]:
    """Source.columns, written as value=column."""
    return dict(pair.split("=") for pair in pairs.split())


_DEVICE_COLUMNS = _columns(
    "start=start stop=end device=deviceId context=contextId green=greenContextId stream=streamId "
    "correlation=correlationId thread=globalPid"
)
# The correlation id has its own column. Without it most arguments repeat, which halves the cost of storing them.
_DEVICE_ARGS = {"device": "r.device", "context": "r.context", "stream": "r.stream"}
_NODE_ARG = {"graph node id": "r.node"}


def _device_work(
    table: str, category: str, name: str, columns: str, args: Iterable[str], *needs: str, sized: bool = False
) -> Source:
    """Work on a stream of a device; `sized` work moves r.size bytes."""
    common = {**_DEVICE_ARGS, "green context": "nullif(r.green, 0)"}
    events = {**ON_DEVICE, "category": sql_text(category), "name": name}
    if sized:
        common |= {"bytes": "r.size", "memory bandwidth (GB/s)": f"r.{RATE}"}
        events["bytes"] = "r.size"
    return Source(
        table,
        {**_DEVICE_COLUMNS, **_columns(columns)},
        {**events, "args": arguments(*numbers(common), *args)},
        needs=("start", "end", "deviceId", "streamId", *needs),
        rate=sized,
    )


def _kernels(export: NsysExport) -> Source:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    names = ("demangledName", "shortName", "mangledName")
    return _device_work(
        table,
        "kernel",
        _STRING,
        f"name={next((name for name in names if export.has(table, name)), names[0])} registers=registersPerThread "
        "grid_x=gridX grid_y=gridY grid_z=gridZ block_x=blockX block_y=blockY block_z=blockZ "
        "static_memory=staticSharedMemory dynamic_memory=dynamicSharedMemory local_memory=localMemoryPerThread "
        "node=graphNodeId",
        [
            number("registers per thread", "r.registers"),
            number("shared memory", "(r.static_memory + r.dynamic_memory)"),
            number("static shared memory", "r.static_memory"),
            number("dynamic shared memory", "r.dynamic_memory"),
            number("local memory per thread", "nullif(r.local_memory, 0)"),
            triple("grid", "grid_x", "grid_y", "grid_z"),
            triple("block", "block_x", "block_y", "block_z"),
            *numbers(_NODE_ARG),
        ],
    )


def _graphs() -> Source:
    """CUDA graphs recorded as one activity each (the default of nsys): their kernels are not in the file."""
    return _device_work(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        "kernel",
        "'CUDA graph ' || coalesce(r.executable, r.graph, 0)",
        "graph=graphId executable=graphExecId",
        [*numbers({"graph id": "r.graph", "graph exec id": "r.executable"}), "',\"whole graph\":true'"],
    )


def _copies() -> Source:
    short, long = (
        choice("r.kind", {kind: names[tool] for kind, names in _COPY_KINDS.items()}, "'Unknown'")
        for tool in range(2)
    )
    source, target = (choice(f"r.{end}", _MEMORY_KINDS, "'Unknown'") for end in ("source", "target"))
    both_told = "r.source IS NOT NULL AND r.target IS NOT NULL"
    kinds = f"CASE WHEN {both_told} THEN ' (' || {source} || ' -> ' || {target} || ')' END"
    devices = {"fromDevice": "r.source_device", "toDevice": "r.target_device", "migration cause": "r.cause"}
    return _device_work(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "gpu_memcpy",
        f"concat('Memcpy ', {short}, {kinds})",
        "size=bytes kind=copyKind source=srcKind target=dstKind source_device=srcDeviceId target_device=dstDeviceId "
        "cause=migrationCause node=graphNodeId",
        [
            text("copy kind", long),
            text("source kind", f"CASE WHEN r.source IS NOT NULL THEN {source} END"),
            text("destination kind", f"CASE WHEN r.target IS NOT NULL THEN {target} END"),
            *numbers({**devices, **_NODE_ARG}),
        ],
        "copyKind",
        sized=True,
    )


def _fills() -> Source:
    kind = choice("r.kind", _MEMORY_KINDS, "'Unknown'")
    told_kind = text("memory kind", f"CASE WHEN r.kind IS NOT NULL THEN {kind} END")
    return _device_work(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "gpu_memset",
        f"'Memset (' || {kind} || ')'",
        "size=bytes kind=memKind value=value node=graphNodeId",
        [told_kind, *numbers({"value": "r.value", **_NODE_ARG})],
        sized=True,
    )


def _synchronisations() -> Source:
    stream = f"CASE WHEN r.stream = {_NO_STREAM} THEN -1 ELSE r.stream END"
    args = {**_DEVICE_ARGS, "stream": f"({stream})", "event": f"nullif(r.event, {_NO_STREAM})"}
    return Source(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        {**_DEVICE_COLUMNS, "kind": "syncType", "event": "eventId"},
        {
            **ON_DEVICE,
            "category": "'cuda_sync'",
            "name": choice("r.kind", _SYNC_KINDS, "'Unknown'"),
            "tid": f"({stream})::VARCHAR",
            "stream": stream,
            "args": arguments(*numbers(args)),
        },
        needs=("start", "end", "deviceId"),
    )


def _thread_calls(
    table: str,
    category: str,
    columns: str,
    args: Iterable[str],
    name: str = "nameId",
    more: dict[str, str] | None = None,
) -> Source:
    """Calls of threads. `category` is SQL, `name` the column of the call's name."""
    return Source(
        table,
        _columns(f"start=start stop=end thread=globalTid name={name} {columns}"),
        {"category": category, "name": _STRING, "args": arguments(*args)},
        needs=("start", "end", name),
        more=more or {},
    )


def _cuda_calls() -> Source:
    """CUDA runtime and driver calls. The version in a call's name (_v3020) becomes an argument."""
    calls = _thread_calls(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "CASE WHEN coalesce(r.layer = 1, NOT starts_with(s.text, 'cuda')) THEN 'cuda_driver' ELSE 'cuda_runtime' END",
        "layer=eventClass correlation=correlationId result=returnValue",
        [number("return value", "r.result"), text("version", "nullif(s.version, '')")],
    )
    events = {**calls.events, "name": "coalesce(s.name, '')", "correlation": "r.correlation"}
    return replace(calls, events=events)


def _os_calls() -> Source:
    args = {"return value": "r.result", "nesting level": "nullif(r.level, 0)", "class": "nullif(r.layer, 27)"}
    return _thread_calls(
        "OSRT_API",
        "'os_runtime'",
        "layer=eventClass result=returnValue level=nestingLevel",
        numbers({**args, "name id": "r.name"}),
    )


def _mpi(export: NsysExport, table: str, columns: str = "") -> Source:
    """MPI calls, as annotations like those of gloo: collectives on the host."""
    has_ranks = export.has("MPI_RANKS", "globalTid", "rank")
    rank = f"(SELECT m.rank FROM MPI_RANKS m WHERE m.globalTid = {table}.globalTid)" if has_ranks else "NULL"
    args = {"communicator": "r.communicator", "rank": "r.mpi_rank"}
    args |= {value.replace("_", " "): f"r.{value}" for value in _columns(columns)}
    return _thread_calls(
        table,
        "'user_annotation'",
        f"communicator=commHandle {columns}",
        ['\',"domain":"MPI","mpi":true\'', *numbers(args)],
        name="textId",
        more={"mpi_rank": rank},
    )


def _metrics() -> Source:
    """Sampled GPU metrics. The reader joins them with the names of metrics instead of strings."""
    return Source(
        "GPU_METRICS",
        _columns("start=timestamp type=typeId metric=metricId value=value"),
        {
            "ph": "'C'",
            "category": "'gpu_metrics'",
            "name": "coalesce(s.text, 'metric ' || r.metric)",
            "pid": "concat('GPU ', r.type & 255)",
            "tid": "''",
            "dur_ns": _NO_DURATION,
            "device": "r.type & 255",
            "args": arguments(number("value", "r.value")),
        },
        process="",
        more={"name": "metricId"},
        needs=("timestamp", "metricId", "value"),
    )


def event_sources(export: NsysExport) -> list[Source]:
    """What this module reads; which of them the export has, `found_in` tells."""
    return [
        _kernels(export),
        _graphs(),
        _copies(),
        _fills(),
        _synchronisations(),
        _cuda_calls(),
        _os_calls(),
        _mpi(export, "MPI_COLLECTIVES_EVENTS", "root_rank=rootRank send_bytes=size receive_bytes=recvSize"),
        _mpi(export, "MPI_P2P_EVENTS", "tag=tag peer_rank=remoteRank bytes=size"),
        _mpi(export, "MPI_START_WAIT_EVENTS"),
        _mpi(export, "MPI_OTHER_EVENTS"),
        _thread_calls("PROFILER_OVERHEAD", "'overhead'", "result=returnValue", ["''"]),
        _metrics(),
        _memory_usage(),
        *_names(),
        _nvtx(export),
    ]


PUSH_POP = (59, 70)
START_END = (60, 71)
MARK = 34
THREAD_NAME = 39
DOMAIN_CREATE = 75
"""Values of NVTX_EVENTS.eventType; 70 and 71 are ranges imported from NVTXT files."""

_RANGES = (*PUSH_POP, *START_END)
_PLAIN_RANGE = PUSH_POP[0]
_NEEDED = ("start", "end", "globalTid")


def _nvtx(export: NsysExport) -> Source:
    if not export.has("NVTX_EVENTS", *_NEEDED):
        return Source("NVTX_EVENTS", {}, {}, needs=_NEEDED)
    kind = f"coalesce(r.kind, {_PLAIN_RANGE})"
    is_range = f"{kind} IN {_RANGES}"
    crossing = f"{kind} IN {START_END}"
    name = "coalesce(s.text, r.text, '')"
    recording_end, last_time = _recording_end(export), _last_time(export)
    unended_step = f"(coalesce(r.stop >= {recording_end}, true) AND starts_with({name}, 'ProfilerStep#'))"
    thread = f"({TID.format('r.thread')})::VARCHAR"
    style = f"CASE WHEN {kind} IN {PUSH_POP} THEN 'PushPop' WHEN {crossing} THEN 'StartEnd' END"
    args = arguments(
        text("style", style),
        text("domain", "d.domain_name"),
        number("nvtx category", "nullif(r.nvtx_category, 0)"),
        number("range", f"r.{ROW}"),
        text("payload", "r.payload"),
        number("end thread", f"({TID.format('r.end_thread')})"),
        f"CASE WHEN {is_range} AND r.stop IS NULL THEN ',\"open\":true' END",
    )
    has_kinds = export.has("NVTX_EVENTS", "eventType")
    return Source(
        "NVTX_EVENTS",
        _columns(
            "start=start stop=end thread=globalTid end_thread=endGlobalTid name=textId text=text kind=eventType "
            "nvtx_category=category domain=domainId payload=jsonText"
        ),
        {
            "ph": f"CASE WHEN {is_range} THEN 'X' WHEN {kind} = {MARK} THEN 'i' ELSE 'M' END",
            "category": f"CASE WHEN {unended_step} THEN {sql_text(UNFINISHED_STEP)} ELSE 'user_annotation' END",
            "name": f"CASE WHEN {kind} = {THREAD_NAME} THEN 'thread_name' ELSE {name} END",
            "tid": f"CASE WHEN {crossing} THEN {thread} || {sql_text(CROSSING_RANGES)} ELSE {thread} END",
            "dur_ns": f"CASE WHEN {is_range} THEN coalesce(r.stop, {last_time}) - r.start END",
            "args": f"CASE WHEN {kind} = {THREAD_NAME} THEN {arguments(text('name', name))} ELSE {args} END",
        },
        texts=frozenset({"text", "payload"}),
        where=f"{{kind}} IN {(*_RANGES, MARK, THREAD_NAME)}" if has_kinds else "",
        needs=_NEEDED,
        more={ROW: ROWID},
        joins=_domains(export),
        recording_end=recording_end,
        open_until=last_time,
    )


def _names() -> tuple[Source, Source]:
    """Metadata events with the names of threads and processes, as in the trace event format."""
    common = {"ph": "'M'", "category": "''", "ts_ns": "0", "dur_ns": _NO_DURATION}
    thread_args = arguments(text("name", _STRING), number("priority", "r.priority"))
    process_args = arguments(text("name", "coalesce(r.text, '')"))
    return (
        Source(
            "ThreadNames",
            _columns("name=nameId thread=globalTid priority=priority"),
            {**common, "name": "'thread_name'", "args": thread_args},
            needs=("nameId", "globalTid"),
        ),
        Source(
            "PROCESSES",
            _columns("text=name thread=globalPid"),
            {**common, "name": "'process_name'", "tid": "'0'", "args": process_args},
            texts=frozenset({"text"}),
            needs=("globalPid", "name"),
        ),
    )


def _memory_usage() -> Source:
    """Device memory allocated and freed (--cuda-memory-usage). Without torch's allocator, reserved equals allocated."""
    signed = "CASE WHEN r.operation = 1 THEN -r.size ELSE r.size END"
    sums = f"sum({signed}) OVER (PARTITION BY r.device ORDER BY r.start ROWS UNBOUNDED PRECEDING)"
    total = f"TRY_CAST({sums} AS BIGINT)"
    return Source(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        _columns(
            "start=start thread=globalPid device=deviceId address=address size=bytes operation=memoryOperationType "
            "name=name"
        ),
        {
            "ph": "'i'",
            "category": "'cpu_instant_event'",
            "name": "'[memory]'",
            "dur_ns": _NO_DURATION,
            "args": arguments(
                number("Bytes", f"({signed})"), number("Device Id", "r.device"), text("pool", "s.text")
            ),
            "memory": f"{{'Bytes': {signed}, 'Total Allocated': {total}, 'Total Reserved': {total}, "
            "'Device Type': 1::BIGINT, 'Device Id': r.device, 'Addr': r.address}",
        },
        needs=("start", "deviceId", "bytes", "memoryOperationType"),
        whole=True,
    )


def _last_time(export: NsysExport) -> int:
    """The end of ranges that were never closed: the last NVTX time, as in nsys."""
    ((start, stop),) = export.rows('SELECT max("start"), max("end") FROM NVTX_EVENTS')
    return max(usable_time(start), usable_time(stop))


def _recording_end(export: NsysExport) -> int:
    """Where nsys ends the started ranges that the program left open: at one of two times, which may differ."""
    if not export.has("ANALYSIS_DETAILS", "duration"):
        return 2**62
    duration = usable_time(export.rows('SELECT max("duration") FROM ANALYSIS_DETAILS')[0][0]) or 2**62
    return min(duration, (export.run_duration_ms - 1) * 1_000_000) if export.run_duration_ms else duration


def _domains(export: NsysExport) -> str:
    """SQL that joins a row with the name of its domain. Domain numbers are per process."""
    named: dict[tuple[int, int], str] = {}
    if export.has("NVTX_EVENTS", "eventType", "domainId", "globalTid"):
        columns = export.tables["NVTX_EVENTS"]
        text = "e.text" if "text" in columns else "NULL"
        by_id = "(SELECT s.value FROM StringIds s WHERE s.id = e.textId)" if "textId" in columns else "NULL"
        rows = export.rows(
            f"SELECT {PID.format('e.globalTid')}, e.domainId, coalesce({text}, {by_id}) AS name FROM NVTX_EVENTS e "
            f"WHERE e.eventType = {DOMAIN_CREATE} AND name IS NOT NULL ORDER BY e.start"
        )
        for pid, domain, name in rows:
            named.setdefault((pid, domain), text_of(name))
    values = [f"({pid}, {domain}, {sql_text(name)})" for (pid, domain), name in named.items()]
    table = ", ".join(values) or "(NULL::BIGINT, NULL::BIGINT, NULL::VARCHAR)"
    return (
        f"LEFT JOIN (VALUES {table}) d(domain_pid, domain_id, domain_name) "
        f"ON d.domain_id = r.domain AND d.domain_pid = {PID.format('r.thread')}"
    )
