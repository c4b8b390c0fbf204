"""Translates the categories of other versions and programs into those of today's Kineto.

By name where the category is known under another name (model.CATEGORY_ALIASES), else by structure: tracks of devices,
correlation with a launch call, names of torch's ops. What is not recognised keeps its own category.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rankscope.model import CATEGORY_ALIASES, KNOWN_CATEGORIES, LAUNCH_CATEGORIES
from rankscope.sql import sql_text, sql_texts

if TYPE_CHECKING:
    import duckdb

_TRACK_KIND = """CASE
    WHEN category IN ('kernel', 'gpu_memcpy', 'gpu_memset') THEN 'stream'
    WHEN category = 'gpu_user_annotation' THEN 'annotation'
    WHEN category = 'cuda_sync' THEN 'sync'
    WHEN category = 'overhead' THEN 'overhead'
    WHEN category = 'Trace' THEN 'span'
    WHEN ph IN ('b', 'e', 'n') THEN 'async'
    WHEN ph = 'C' THEN 'counter'
    ELSE 'thread' END"""

_WITH_DURATION = "ph IN ('X', 'B', 'E', 'b', 'e')"
_OPS_OF_AUTOGRAD = "cpu functions"
_KERNELS_OF_AUTOGRAD = r"(?i)^(?:CUDA|HIP|XPU) functions$"
"""The process ids in the export of torch.autograd.profiler (torch before 1.8); it has no categories."""
_DEVICE = r"(?i)^(?:/device:)?(?:gpu|cuda|hip|rocm|mtia|xpu|hpu|npu|tpu|mlu)[ :#_-]*(\d+)\b"
"""Process names and labels of devices: 'GPU 0' and 'MTIA 3' of Kineto, '/device:GPU:0' of XLA."""
_STREAM = r"(?i)^(?:(?:cuda|hip|gpu|compute) )?stream\b[ #:]*(\d*)"
_DERIVED = r"(?i)module|step|scope|source|framework|annotation|name|launch stats"
"""Threads of a device that group its work by something else; XLA writes several."""
_COPY = r"(?i)^\[?(?:cuda |hip |gpu )?(?:memcpy|dma_request)"
_FILL = r"(?i)^\[?(?:cuda |hip |gpu )?memset"
_WAIT = r"(?i)^event_(?:wait|record)$"
_ANNOTATION = (
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|DistributedDataParallel\."
    r"|(?:nccl|gloo|mpi|ucc|hccl):)"
)
"""Annotations that older versions record as ops."""
_OP = r"^(?:aten|autograd|c10d|prim|torch|torchvision|quantized|profiler)::"
_LAUNCH = r"^(?:cuda|hip)[A-Z]\w*$"


def translated_events(connection: duckdb.DuckDBPyConnection) -> str:
    """A SELECT of the view `file_events` with today's categories and the kind of track.

    A file that has only known categories, the usual case, is not joined with anything.
    """
    found = {
        (phase, category): count
        for phase, category, count in connection.execute(
            f"SELECT ph, category, count(*) FROM file_events WHERE {_WITH_DURATION} GROUP BY ALL"
        ).fetchall()
    }
    unknown = sorted({category for phase, category in found if phase != "E"} - set(KNOWN_CATEGORIES))
    if not unknown and ("E", "") not in found:
        return f"SELECT *, {_TRACK_KIND} AS kind FROM file_events"
    _name_tracks(connection, unknown)
    # The end of a pair may have neither a category nor a name: it belongs to the track of its begin.
    return f"""
        SELECT * EXCLUDE (raw), {_TRACK_KIND} AS kind FROM (
            SELECT e.* EXCLUDE (category, device, stream), e.category AS raw,
                   coalesce(e.device, t.device) AS device, coalesce(e.stream, t.stream) AS stream,
                   CASE WHEN t.meaning = 'kernel' AND regexp_matches(e.name, {sql_text(_COPY)}) THEN 'gpu_memcpy'
                        WHEN t.meaning = 'kernel' AND regexp_matches(e.name, {sql_text(_FILL)}) THEN 'gpu_memset'
                        WHEN t.meaning = 'kernel' AND regexp_matches(e.name, {sql_text(_WAIT)}) THEN 'cuda_sync'
                        WHEN t.meaning = 'cpu_op' AND regexp_matches(e.name, {sql_text(_ANNOTATION)})
                        THEN 'user_annotation'
                        WHEN t.meaning IS NOT NULL THEN t.meaning
                        WHEN t.pid IS NULL OR e.category <> '' THEN e.category
                        WHEN regexp_matches(e.name, {sql_text(_ANNOTATION)}) THEN 'user_annotation'
                        WHEN regexp_matches(e.name, {sql_text(_OP)}) THEN 'cpu_op'
                        WHEN regexp_matches(e.name, {sql_text(_LAUNCH)}) THEN 'cuda_runtime'
                        ELSE '' END AS category
            FROM file_events e LEFT JOIN track_meanings t
            ON {_WITH_DURATION} AND t.pid = e.pid AND t.tid = e.tid AND t.category = e.category
               AND t.is_end = (e.ph = 'E')
        )
    """


def _name_tracks(connection: duckdb.DuckDBPyConnection, unknown: list[str]) -> None:
    """The table track_meanings: for a category on a track what it means here (null: not known), and the device."""
    aliases = " ".join(f"WHEN {sql_text(old)} THEN {sql_text(new)}" for old, new in CATEGORY_ALIASES.items())
    connection.execute(f"""
        CREATE TABLE track_meanings AS
        WITH named AS (
            SELECT pid, tid, max(args->>'name') FILTER (name = 'process_name') AS process,
                   max(args->>'labels') FILTER (name = 'process_labels') AS label,
                   trim(max(args->>'name') FILTER (name = 'thread_name')) AS thread
            FROM file_events WHERE ph = 'M' GROUP BY pid, tid
        ), processes AS (
            SELECT pid, coalesce(max(label) FILTER (regexp_matches(label, {sql_text(_DEVICE)})),
                                 max(process) FILTER (regexp_matches(process, {sql_text(_DEVICE)}))) AS device,
                   bool_or(regexp_matches(thread, {sql_text(_STREAM)})) AS has_streams
            FROM named GROUP BY pid
        ), launches AS (
            SELECT DISTINCT correlation FROM file_events
            WHERE correlation > 0 AND (category IN ({sql_texts(LAUNCH_CATEGORIES)}) OR category = 'Runtime'
                                       OR regexp_matches(name, {sql_text(_LAUNCH)}))
        ), tracks AS (
            SELECT e.pid, e.tid, e.category, min(e.device) AS device, min(e.stream) AS stream,
                   count(*) AS events, count(e.device) AS on_device, count(e.stream) AS on_stream,
                   count(l.correlation) FILTER (NOT regexp_matches(e.name, {sql_text(_LAUNCH)})) AS launched
            FROM file_events e LEFT JOIN launches l ON l.correlation = e.correlation
            WHERE ph IN ('X', 'B', 'b') AND e.category IN ({sql_texts(unknown) or "NULL"}) GROUP BY ALL
        ), places AS (
            SELECT t.*, p.device AS process, coalesce(p.has_streams, false) AS has_streams, n.thread,
                   coalesce(regexp_matches(coalesce(n.thread, t.tid), {sql_text(_STREAM)}), false) AS is_stream,
                   t.category = '' AND regexp_matches(t.pid, {sql_text(_KERNELS_OF_AUTOGRAD)}) AS of_autograd
            FROM tracks t LEFT JOIN processes p ON p.pid = t.pid
            LEFT JOIN named n ON n.pid = t.pid AND n.tid = t.tid
        ), meanings AS (
            SELECT pid, tid, category, CASE
                WHEN category IN ({sql_texts(CATEGORY_ALIASES)}) THEN CASE category {aliases} END
                WHEN category = '' AND lower(pid) = {sql_text(_OPS_OF_AUTOGRAD)} THEN 'cpu_op'
                WHEN of_autograd THEN 'kernel'
                WHEN is_stream THEN 'kernel'
                WHEN process IS NOT NULL AND (has_streams OR regexp_matches(thread, {sql_text(_DERIVED)}))
                THEN 'gpu_user_annotation'
                WHEN process IS NOT NULL THEN 'kernel'
                WHEN launched > 0 OR (on_device = events AND on_stream = events) THEN 'kernel'
                END AS meaning,
                coalesce(device, CASE WHEN of_autograd THEN TRY_CAST(tid AS BIGINT)
                    ELSE coalesce(TRY_CAST(nullif(regexp_extract(process, {sql_text(_DEVICE)}, 1), '') AS BIGINT),
                                  TRY_CAST(pid AS BIGINT)) END) AS device,
                coalesce(stream, CASE WHEN of_autograd THEN 0 ELSE
                    TRY_CAST(nullif(regexp_extract(coalesce(thread, tid), {sql_text(_STREAM)}, 1), '') AS BIGINT)
                    END) AS stream
            FROM places
        ), placed_meanings AS (
            SELECT pid, tid, category, meaning,
                   CASE WHEN meaning IN ('kernel', 'gpu_user_annotation') THEN device END AS device,
                   CASE WHEN meaning IN ('kernel', 'gpu_user_annotation') THEN stream END AS stream
            FROM meanings
        ), begun AS (
            SELECT pid, tid, min(category) AS category FROM file_events WHERE ph = 'B' GROUP BY pid, tid
        )
        SELECT *, false AS is_end FROM placed_meanings
        UNION ALL
        SELECT *, true FROM placed_meanings WHERE category <> ''
        UNION ALL
        SELECT b.pid, b.tid, '', coalesce(m.meaning, b.category), m.device, m.stream, true
        FROM begun b LEFT JOIN placed_meanings m USING (pid, tid, category)
    """)
