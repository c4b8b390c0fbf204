"""The tables of an nsys export as events: CUDA, MPI, OS runtime, NVTX, GPU metrics.

Arguments have Kineto's names where both tools record the same, so that analyses do not depend on the tool.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rankscope.model import CROSSING_RANGES, MEMORY_ARGS, UNFINISHED_STEP
from rankscope.readers.base import usable_time
from rankscope.readers.columns import NULL, Numbers
from rankscope.readers.nsys.export import PID, NsysExport
from rankscope.readers.records import OWN_NUMBER, Event, Row, device_event
from rankscope.readers.sqlite_file import ROWID, text_of

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
_DRIVER, _OS_CALL = 1, 27
"""Values of eventClass: calls of the driver, and what most calls of the operating system have."""
_FREED = 1
"""Of memoryOperationType."""
_API_VERSION = re.compile(r"^(.+?)(_v\d{4,})$")
_NUMBER_BITS = 0xFFFFFF
"""Width of the numbers of processes and threads in a globalTid."""

ROW, RATE = "row", "rate"
SUMMED = frozenset(("start", "end", "correlation", "size"))
"""Values that are added and subtracted."""


@dataclass(frozen=True)
class Source:
    """One table of an export, and its conversion to events."""

    table: str
    columns: Mapping[str, str]
    """Name of a value -> its column. A column that the export does not have is null. `name` is the id of a string."""
    event: Callable[[Row], Event]
    """Of a row. `name` is the string, '' if there is none."""
    needs: tuple[str, ...]
    """Columns that must exist; otherwise the table is ignored."""
    texts: frozenset[str] = frozenset()
    """Values that are text."""
    process: str = "thread"
    """Name of the value that holds the process; '' if none does."""
    prepare: Callable[[dict[str, Numbers]], Mapping[str, Any]] = lambda rows: {}
    """Changes the values of rows in place, which are all there; returns columns of EventColumns."""
    keep: tuple[int, ...] = ()
    """The kinds of rows that are events; empty for all."""
    own_number: str = ""
    """The argument that is a number of the row's own: ROW, or RATE (bytes per ns)."""
    whole: bool = False
    """True if the table must be read in one piece, for running totals."""

    def found_in(self, export: NsysExport) -> bool:
        return export.has(self.table, *self.needs)


def process_of(thread: Any) -> Any:
    """The number of the process in a globalTid or globalPid, or in a column of them."""
    return thread >> 24 & _NUMBER_BITS


def _columns(pairs: str) -> dict[str, str]:
    """Source.columns, written as value=column."""
    return dict(pair.split("=") for pair in pairs.split())


def _on_thread(row: Row, category: str, name: str, args: Mapping[str, Any], phase: str = "X") -> Event:
    thread = row["thread"]
    pid, tid = ("", "") if thread is None else (str(process_of(thread)), str(thread & _NUMBER_BITS))
    return Event(category, name, pid, tid, args, phase)


def _triple(*axes: int | None) -> tuple[int | None, ...] | None:
    return None if None in axes else axes


_DEVICE_COLUMNS = _columns(
    "start=start end=end device=deviceId context=contextId green=greenContextId stream=streamId "
    "correlation=correlationId thread=globalPid"
)


def _device_work(
    table: str, columns: str, event: Callable[[Row], tuple[str, str, dict[str, Any]]], *needs: str
) -> Source:
    """Work on a stream of a device; `event` gives category, name and further arguments. Work with a size moves so many
    bytes.

    The correlation id has its own column. Without it most arguments repeat, which halves the cost of storing them.
    """

    def work(row: Row) -> Event:
        category, name, args = event(row)
        common = {key: row[key] for key in ("device", "context", "stream")}
        common["green context"] = row["green"] or None
        if "size" in row:
            common |= {"bytes": row["size"], "memory bandwidth (GB/s)": OWN_NUMBER if row[RATE] else None}
        return device_event(category, name, common | args, row["of_process"])

    pairs = {**_DEVICE_COLUMNS, **_columns(columns)}
    needed = ("start", "end", "deviceId", "streamId", *needs)
    return Source(table, pairs, work, needed, own_number=RATE if "size" in pairs else "")


def _kernels(export: NsysExport) -> Source:
    table = "CUPTI_ACTIVITY_KIND_KERNEL"
    names = ("demangledName", "shortName", "mangledName")

    def kernel(row: Row) -> tuple[str, str, dict[str, Any]]:
        static, dynamic = row["static_memory"], row["dynamic_memory"]
        return "kernel", row["name"], {
            "registers per thread": row["registers"],
            "shared memory": None if static is None or dynamic is None else static + dynamic,
            "static shared memory": static,
            "dynamic shared memory": dynamic,
            "local memory per thread": row["local_memory"] or None,
            "grid": _triple(row["grid_x"], row["grid_y"], row["grid_z"]),
            "block": _triple(row["block_x"], row["block_y"], row["block_z"]),
            "graph node id": row["node"],
        }  # fmt: skip

    return _device_work(
        table,
        f"name={next((name for name in names if export.has(table, name)), names[0])} registers=registersPerThread "
        "grid_x=gridX grid_y=gridY grid_z=gridZ block_x=blockX block_y=blockY block_z=blockZ "
        "static_memory=staticSharedMemory dynamic_memory=dynamicSharedMemory local_memory=localMemoryPerThread "
        "node=graphNodeId",
        kernel,
    )


def _graph(row: Row) -> tuple[str, str, dict[str, Any]]:
    """A CUDA graph recorded as one activity (the default of nsys): its kernels are not in the file."""
    graph, executable = row["graph"], row["executable"]
    number = next((number for number in (executable, graph) if number is not None), 0)
    args = {"graph id": graph, "graph exec id": executable, "whole graph": True}
    return "kernel", f"CUDA graph {number}", args


def _copy(row: Row) -> tuple[str, str, dict[str, Any]]:
    short, long = _COPY_KINDS.get(row["kind"], ("Unknown", "Unknown"))
    source, target = (
        None if row[end] is None else _MEMORY_KINDS.get(row[end], "Unknown") for end in ("source", "target")
    )
    kinds = f" ({source} -> {target})" if source and target else ""
    return "gpu_memcpy", f"Memcpy {short}{kinds}", {
        "copy kind": long,
        "source kind": source,
        "destination kind": target,
        "fromDevice": row["source_device"],
        "toDevice": row["target_device"],
        "migration cause": row["cause"],
        "graph node id": row["node"],
    }  # fmt: skip


def _fill(row: Row) -> tuple[str, str, dict[str, Any]]:
    kind = _MEMORY_KINDS.get(row["kind"], "Unknown")
    told = None if row["kind"] is None else kind
    args = {"memory kind": told, "value": row["value"], "graph node id": row["node"]}
    return "gpu_memset", f"Memset ({kind})", args


def _synchronisation(row: Row) -> Event:
    stream = -1 if row["stream"] == _NO_STREAM else row["stream"]
    event = None if row["event"] == _NO_STREAM else row["event"]
    args = {"device": row["device"], "context": row["context"], "stream": stream, "event": event}
    return device_event("cuda_sync", _SYNC_KINDS.get(row["kind"], "Unknown"), args, row["of_process"])


def _thread_calls(table: str, columns: str, event: Callable[[Row], Event], name: str = "nameId") -> Source:
    """Calls of threads; `name` is the column of the call's name."""
    pairs = _columns(f"start=start end=end thread=globalTid name={name} {columns}")
    return Source(table, pairs, event, ("start", "end", name))


def _cuda_call(row: Row) -> Event:
    """A call of CUDA's runtime or driver. The version in its name (_v3020) becomes an argument."""
    match = _API_VERSION.match(row["name"])
    name, version = match.groups() if match else (row["name"], None)
    of_driver = not name.startswith("cuda") if row["layer"] is None else row["layer"] == _DRIVER
    args = {"return value": row["result"], "version": version}
    return _on_thread(row, "cuda_driver" if of_driver else "cuda_runtime", name, args)


def _os_call(row: Row) -> Event:
    layer = None if row["layer"] == _OS_CALL else row["layer"]
    args = {"return value": row["result"], "nesting level": row["level"] or None, "class": layer}
    return _on_thread(row, "os_runtime", row["name"], {**args, "name id": row["name_id"]})


def _mpi(export: NsysExport, table: str, columns: str = "") -> Source:
    """MPI calls, as annotations like those of gloo: collectives on the host."""
    ranks: dict[int, Any] = {}
    if export.has("MPI_RANKS", "globalTid", "rank"):
        ranks = dict(reversed(export.rows("SELECT globalTid, rank FROM MPI_RANKS")))
    more = {name: name.replace("_", " ") for name in _columns(columns)}

    def call(row: Row) -> Event:
        args = {
            "domain": "MPI",
            "mpi": True,
            "communicator": row["communicator"],
            "rank": ranks.get(row["thread"]),
        }
        return _on_thread(
            row, "user_annotation", row["name"], args | {key: row[name] for name, key in more.items()}
        )

    return _thread_calls(table, f"communicator=commHandle {columns}", call, "textId")


def _metric(row: Row) -> Event:
    """A sample of a GPU metric. The reader takes its name from the names of metrics instead of strings."""
    device = None if row["type"] is None else row["type"] & 255
    pid = f"GPU {'' if device is None else device}"
    name = row["name"] or f"metric {row['metric']}"
    return Event("gpu_metrics", name, pid, "", {"value": row["value"]}, "C", device)


def event_sources(export: NsysExport) -> list[Source]:
    """What this module reads; which of them the export has, `found_in` tells."""
    return [
        _kernels(export),
        _device_work("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graph=graphId executable=graphExecId", _graph),
        _device_work(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            "size=bytes kind=copyKind source=srcKind target=dstKind source_device=srcDeviceId "
            "target_device=dstDeviceId cause=migrationCause node=graphNodeId",
            _copy,
            "copyKind",
        ),
        _device_work(
            "CUPTI_ACTIVITY_KIND_MEMSET", "size=bytes kind=memKind value=value node=graphNodeId", _fill
        ),
        Source(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            {**_DEVICE_COLUMNS, "kind": "syncType", "event": "eventId"},
            _synchronisation,
            ("start", "end", "deviceId"),
        ),
        _thread_calls(
            "CUPTI_ACTIVITY_KIND_RUNTIME",
            "layer=eventClass correlation=correlationId result=returnValue",
            _cuda_call,
        ),
        _thread_calls(
            "OSRT_API", "layer=eventClass result=returnValue level=nestingLevel name_id=nameId", _os_call
        ),
        _mpi(export, "MPI_COLLECTIVES_EVENTS", "root_rank=rootRank send_bytes=size receive_bytes=recvSize"),
        _mpi(export, "MPI_P2P_EVENTS", "tag=tag peer_rank=remoteRank bytes=size"),
        _mpi(export, "MPI_START_WAIT_EVENTS"),
        _mpi(export, "MPI_OTHER_EVENTS"),
        _thread_calls(
            "PROFILER_OVERHEAD",
            "result=returnValue",
            lambda row: _on_thread(row, "overhead", row["name"], {}),
        ),
        Source(
            "GPU_METRICS",
            _columns("start=timestamp type=typeId name=metricId metric=metricId value=value"),
            _metric,
            ("timestamp", "metricId", "value"),
            process="",
        ),
        Source(
            "CUDA_GPU_MEMORY_USAGE_EVENTS",
            _columns(
                "start=start thread=globalPid device=deviceId address=address size=bytes name=name "
                "operation=memoryOperationType"
            ),
            lambda row: _on_thread(
                row,
                "cpu_instant_event",
                "[memory]",
                {"Bytes": row["size"], "Device Id": row["device"], "pool": row["name"] or None},
                "i",
            ),
            ("start", "deviceId", "bytes", "memoryOperationType"),
            prepare=_memory,
            whole=True,
        ),
        # Metadata events with the names of threads and processes, as in the trace event format.
        Source(
            "ThreadNames",
            _columns("name=nameId thread=globalTid priority=priority"),
            lambda row: _on_thread(
                row, "", "thread_name", {"name": row["name"], "priority": row["priority"]}, "M"
            ),
            ("nameId", "globalTid"),
            prepare=_at_start,
        ),
        Source(
            "PROCESSES",
            _columns("text=name thread=globalPid"),
            lambda row: _on_thread(row, "", "process_name", {"name": row["text"] or ""}, "M")._replace(
                tid="0"
            ),
            ("globalPid", "name"),
            texts=frozenset({"text"}),
            prepare=_at_start,
        ),
        _nvtx(export),
    ]


def _at_start(rows: dict[str, Numbers]) -> Mapping[str, Any]:
    rows["start"] = np.zeros_like(rows["start"])
    return {}


def _memory(rows: dict[str, Numbers]) -> Mapping[str, Any]:
    """Device memory allocated and freed (--cuda-memory-usage). Without torch's allocator, reserved equals allocated."""
    size, device, address = rows["size"], rows["device"], rows.pop("address")
    operation = rows.pop("operation")
    rows["size"] = signed = np.where((operation == _FREED) & (size != NULL), -size, size)
    order = np.lexsort((rows["start"], device))
    added = np.where(signed == NULL, 0, signed)[order]
    total = np.cumsum(added)
    _, first, of_device = np.unique(device[order], return_index=True, return_inverse=True)
    totals = np.empty_like(total)
    totals[order] = total - (total - added)[first][of_device.reshape(-1)]
    columns = dict(
        zip(MEMORY_ARGS, (signed, totals, totals, np.ones_like(size), device, address), strict=True)
    )
    return {
        "memory_events": np.arange(len(size), dtype=np.int32),
        "memory": np.stack([*columns.values()], axis=1),
    }


PUSH_POP = (59, 70)
START_END = (60, 71)
MARK = 34
THREAD_NAME = 39
DOMAIN_CREATE = 75
"""Values of NVTX_EVENTS.eventType; 70 and 71 are ranges imported from NVTXT files."""

_RANGES = (*PUSH_POP, *START_END)
_NEEDED = ("start", "end", "globalTid")


def _nvtx(export: NsysExport) -> Source:
    if not export.has("NVTX_EVENTS", *_NEEDED):
        return Source("NVTX_EVENTS", {}, partial(_nvtx_event, {}), needs=_NEEDED)
    # nsys ends the started ranges that the program left open at one of two times, which may differ.
    recording_end = 2**62
    if export.has("ANALYSIS_DETAILS", "duration"):
        recording_end = (
            usable_time(export.rows('SELECT max("duration") FROM ANALYSIS_DETAILS')[0][0]) or 2**62
        )
        if export.run_duration_ms:
            recording_end = min(recording_end, (export.run_duration_ms - 1) * 1_000_000)
    # Ranges that were never closed end at the last NVTX time, as in nsys.
    last_time = max(map(usable_time, export.rows('SELECT max("start"), max("end") FROM NVTX_EVENTS')[0]))
    has_kinds = export.has("NVTX_EVENTS", "eventType")

    def prepare(rows: dict[str, Numbers]) -> Mapping[str, Any]:
        end = rows["end"]
        rows["open"] = (end == NULL).astype(np.int64)
        rows["unended"] = rows["open"] | (end >= recording_end)
        is_range = np.isin(rows["kind"], _RANGES) | (not has_kinds)
        rows["end"] = np.where(is_range, np.where(end == NULL, last_time, end), NULL)
        return {}

    return Source(
        "NVTX_EVENTS",
        _columns(
            "start=start end=end thread=globalTid end_thread=endGlobalTid name=textId text=text kind=eventType "
            f"nvtx_category=category domain=domainId payload=jsonText {ROW}={ROWID}"
        ),
        partial(_nvtx_event, _domains(export)),
        texts=frozenset({"text", "payload"}),
        keep=(*_RANGES, MARK, THREAD_NAME) if has_kinds else (),
        needs=_NEEDED,
        prepare=prepare,
        own_number=ROW,
    )


def _nvtx_event(domains: Mapping[tuple[int, int], str], row: Row) -> Event:
    kind = PUSH_POP[0] if row["kind"] is None else row["kind"]
    name = row["name"] or row["text"] or ""
    if kind == THREAD_NAME:
        return _on_thread(row, "user_annotation", "thread_name", {"name": name}, "M")
    domain, thread, end_thread = row["domain"], row["thread"], row["end_thread"]
    args = {
        "style": "PushPop" if kind in PUSH_POP else "StartEnd" if kind in START_END else None,
        "domain": None if domain is None or thread is None else domains.get((process_of(thread), domain)),
        "nvtx category": row["nvtx_category"] or None,
        "range": OWN_NUMBER,
        "payload": row["payload"],
        "end thread": None if end_thread is None else end_thread & _NUMBER_BITS,
        "open": True if row["open"] and kind in _RANGES else None,
    }
    is_unended_step = row["unended"] and name.startswith("ProfilerStep#")
    category = UNFINISHED_STEP if is_unended_step else "user_annotation"
    event = _on_thread(row, category, name, args, "X" if kind in _RANGES else "i")
    return event._replace(tid=event.tid + CROSSING_RANGES) if kind in START_END else event


def _domains(export: NsysExport) -> dict[tuple[int, int], str]:
    """Names of domains, by process and number."""
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
    return named
