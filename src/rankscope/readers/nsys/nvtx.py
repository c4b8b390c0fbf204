"""More tables of an nsys export as events: NVTX, names of threads and processes, device memory.

NVTX ranges become annotations, marks become instants. A range's name is its text; the domain is an argument.
Start/end ranges may cross each other and other calls, so they get a separate track beside their thread's
(its number, then CROSSING_RANGES).
"""

from __future__ import annotations

from rankscope.model import CROSSING_RANGES, UNFINISHED_STEP
from rankscope.readers.base import usable_time
from rankscope.readers.nsys.export import PID, TID, NsysExport
from rankscope.readers.nsys.table_source import ROW, Source, arguments, number, text
from rankscope.readers.sqlite_file import ROWID, text_of
from rankscope.sql import sql_text

PUSH_POP = (59, 70)
START_END = (60, 71)
MARK = 34
THREAD_NAME = 39
DOMAIN_CREATE = 75
"""Values of NVTX_EVENTS.eventType; 70 and 71 are ranges imported from NVTXT files."""

_RANGES = (*PUSH_POP, *START_END)
_PLAIN_RANGE = PUSH_POP[0]
_NEEDED = ("start", "end", "globalTid")


def nvtx_sources(export: NsysExport) -> list[Source]:
    """The sources of this module; which of them the export has, `found_in` tells."""
    ranges = (
        _nvtx(export) if export.has("NVTX_EVENTS", *_NEEDED) else Source("NVTX_EVENTS", {}, {}, needs=_NEEDED)
    )
    return [_memory_usage(), _thread_names(), _process_names(), ranges]


def _nvtx(export: NsysExport) -> Source:
    kind = f"coalesce(r.kind, {_PLAIN_RANGE})"
    is_range = f"{kind} IN {_RANGES}"
    crossing = f"{kind} IN {START_END}"
    name = "coalesce(s.text, r.text, '')"
    recording_end, last_time = _recording_end(export), _last_time(export)
    unended_step = f"(coalesce(r.stop >= {recording_end}, true) AND starts_with({name}, 'ProfilerStep#'))"
    thread = f"({TID.format('r.thread')})::VARCHAR"
    return Source(
        "NVTX_EVENTS",
        {
            "start": "start",
            "stop": "end",
            "thread": "globalTid",
            "end_thread": "endGlobalTid",
            "name": "textId",
            "text": "text",
            "kind": "eventType",
            "nvtx_category": "category",
            "domain": "domainId",
            "payload": "jsonText",
        },
        {
            "ph": f"CASE WHEN {is_range} THEN 'X' WHEN {kind} = {MARK} THEN 'i' ELSE 'M' END",
            "category": f"CASE WHEN {unended_step} THEN {sql_text(UNFINISHED_STEP)} ELSE 'user_annotation' END",
            "name": f"CASE WHEN {kind} = {THREAD_NAME} THEN 'thread_name' ELSE {name} END",
            "tid": f"CASE WHEN {crossing} THEN {thread} || {sql_text(CROSSING_RANGES)} ELSE {thread} END",
            "dur_ns": f"CASE WHEN {is_range} THEN coalesce(r.stop, {last_time}) - r.start END",
            "args": f"CASE WHEN {kind} = {THREAD_NAME} THEN {arguments(text('name', name))} ELSE "
            + arguments(
                text(
                    "style",
                    f"CASE WHEN {kind} IN {PUSH_POP} THEN 'PushPop' WHEN {crossing} THEN 'StartEnd' END",
                ),
                text("domain", "d.domain_name"),
                number("nvtx category", "nullif(r.nvtx_category, 0)"),
                number("range", f"r.{ROW}"),
                text("payload", "r.payload"),
                number("end thread", f"({TID.format('r.end_thread')})"),
                f"CASE WHEN {is_range} AND r.stop IS NULL THEN ',\"open\":true' END",
            )
            + " END",
        },
        texts=frozenset({"text", "payload"}),
        where=f"{{kind}} IN {(*_RANGES, MARK, THREAD_NAME)}"
        if export.has("NVTX_EVENTS", "eventType")
        else "",
        needs=_NEEDED,
        more={ROW: ROWID},
        joins=_domains(export),
        recording_end=recording_end,
        open_until=last_time,
    )


def _thread_names() -> Source:
    """Metadata events with the names of threads, as in the trace event format."""
    return Source(
        "ThreadNames",
        {"name": "nameId", "thread": "globalTid", "priority": "priority"},
        {
            "ph": "'M'",
            "category": "''",
            "name": "'thread_name'",
            "ts_ns": "0",
            "dur_ns": "NULL::BIGINT",
            "args": arguments(text("name", "coalesce(s.text, '')"), number("priority", "r.priority")),
        },
        needs=("nameId", "globalTid"),
    )


def _process_names() -> Source:
    return Source(
        "PROCESSES",
        {"text": "name", "thread": "globalPid"},
        {
            "ph": "'M'",
            "category": "''",
            "name": "'process_name'",
            "tid": "'0'",
            "ts_ns": "0",
            "dur_ns": "NULL::BIGINT",
            "args": arguments(text("name", "coalesce(r.text, '')")),
        },
        texts=frozenset({"text"}),
        more={"name": "NULL"},
        needs=("globalPid", "name"),
    )


def _memory_usage() -> Source:
    """Device memory allocated and freed (--cuda-memory-usage). Without torch's allocator, reserved equals allocated."""
    signed = "CASE WHEN r.operation = 1 THEN -r.size ELSE r.size END"
    sums = f"sum({signed}) OVER (PARTITION BY r.device ORDER BY r.start ROWS UNBOUNDED PRECEDING)"
    total = f"TRY_CAST({sums} AS BIGINT)"
    return Source(
        "CUDA_GPU_MEMORY_USAGE_EVENTS",
        {
            "start": "start",
            "thread": "globalPid",
            "device": "deviceId",
            "address": "address",
            "size": "bytes",
            "operation": "memoryOperationType",
            "name": "name",
        },
        {
            "ph": "'i'",
            "category": "'cpu_instant_event'",
            "name": "'[memory]'",
            "dur_ns": "NULL::BIGINT",
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
