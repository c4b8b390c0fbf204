"""Writes the tables of one segment from its events. SQL selects and joins, numpy computes nesting and links."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rankscope.model import COUNTERS, INSTANTS, LINKS, STEPS, TRACKS
from rankscope.sql import sql_name, sql_text
from rankscope.store.arrays import NONE
from rankscope.store.collectives.table import write_collectives
from rankscope.store.device_activity import allocating_ops, write_activity
from rankscope.store.linking import Links, Steps, slice_at
from rankscope.store.nesting import Nesting, nest
from rankscope.store.slices import (
    SliceColumns,
    gpu_slices,
    ids_of,
    link_slices,
    load_slices,
    slice_numbers,
    step_columns,
    steps_of_host,
)
from rankscope.store.step_times import StepTimes
from rankscope.store.workspace import Workspace

_TRACK_LABEL = """CASE kind
    WHEN 'stream' THEN concat('GPU ', device, ' stream ', stream)
    WHEN 'annotation' THEN concat('GPU ', device, ' stream ', stream, ' annotations')
    WHEN 'sync' THEN concat('GPU ', pid, ' synchronisation')
    WHEN 'async' THEN concat(tid, ' (async)')
    WHEN 'counter' THEN concat('counters of ', coalesce(process, pid))
    ELSE coalesce(thread, concat('thread ', tid)) END"""

_MEMORY_COLUMNS = {
    "bytes": "Bytes",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
    "device_type": "Device Type",
    "device": "Device Id",
    "address": "Addr",
}


def write_tables(workspace: Workspace) -> dict[str, Any]:
    """Write every table; returns what segment.json records about them."""
    slices, unpaired = load_slices(workspace)
    nesting = nest(slices.track, slices.time, slices.end)
    links = link_slices(workspace, slices, nesting)
    steps = steps_of_host(workspace, slices)
    is_gpu = gpu_slices(workspace, slices)
    step, times = step_columns(slices, links, steps, is_gpu)
    with ThreadPoolExecutor(1) as pool:  # numpy and DuckDB release the GIL
        others = pool.submit(_write_others, workspace.beside(), slices, nesting, links, steps, times)
        write_activity(workspace, slices, links, slice_numbers(slices, nesting, links, step), is_gpu)
        write_collectives(workspace)
        others.result()
    return {
        "origin_ns": workspace.origin_ns,
        "end_ns": int(np.maximum(slices.end, slices.time).max(initial=0)),
        "slices": len(slices.id),
        "steps": len(steps.number),
        "steps_source": steps.source,
        "timed": workspace.timed,
        "misplaced": workspace.misplaced,
        "unpaired": unpaired,
    }


def _write_others(
    workspace: Workspace,
    slices: SliceColumns,
    nesting: Nesting,
    links: Links,
    steps: Steps,
    times: StepTimes,
) -> None:
    """The tables that do not read slices.parquet."""
    _write_tracks(workspace, slices, nesting)
    _write_steps(workspace, steps, times)
    _write_instants(workspace, slices, nesting, links)
    _write_counters(workspace)
    _write_links(workspace, slices, nesting)


def _write_tracks(workspace: Workspace, slices: SliceColumns, nesting: Nesting) -> None:
    ((count,),) = workspace.rows("SELECT count(*) FROM track_keys")
    rows = np.zeros(count, dtype=np.int64)
    np.maximum.at(rows, slices.track, nesting.row + 1)
    per_track = np.bincount(slices.track, minlength=count)
    workspace.connection.register(
        "track_arrays", {"track": np.arange(count), "slices": per_track, "rows": rows}
    )
    workspace.copy(
        f"""
        WITH named AS (
            SELECT pid, tid, max(args->>'name') FILTER (name = 'process_name') AS process,
                   max(trim(args->>'name')) FILTER (name = 'thread_name') AS thread,
                   max(TRY_CAST(args->>'sort_index' AS BIGINT)) FILTER (name LIKE '%sort_index') AS sort_index
            FROM events WHERE ph = 'M' GROUP BY pid, tid
        ), processes AS (
            SELECT pid, max(process) AS process, max(sort_index) AS sort_index
            FROM named WHERE process IS NOT NULL GROUP BY pid
        )
        SELECT *, {_TRACK_LABEL} AS label FROM (
            SELECT k.*, a.slices, a.rows, p.process, t.thread, coalesce(t.sort_index, p.sort_index) AS sort_index
            FROM track_keys k JOIN track_arrays a USING (track)
            LEFT JOIN named t ON t.pid = k.pid AND t.tid = k.tid
            LEFT JOIN processes p ON p.pid = k.pid
        ) ORDER BY track
        """,
        TRACKS,
    )


def _write_steps(workspace: Workspace, steps: Steps, times: StepTimes) -> None:
    """Also registers the steps as `step_arrays`, which the instants are joined with."""
    arrays = {
        "step": steps.number,
        "start_ns": steps.start,
        "dur_ns": steps.end - steps.start,
        "end_ns": times.end,
        "time_ns": times.end - times.begin,
    }
    workspace.connection.register("step_arrays", arrays)
    workspace.copy(f"SELECT *, {sql_text(steps.source)} AS source FROM step_arrays", STEPS)


def _write_instants(workspace: Workspace, slices: SliceColumns, nesting: Nesting, links: Links) -> None:
    allocations = workspace.arrays("""
        SELECT e.id, k.track, e.time FROM placed e
        JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid AND k.tid = e.tid
        WHERE e.name = '[memory]' AND e.ph IN ('i', 'I', 'R') AND e.memory.Bytes > 0
    """)
    ops = allocating_ops(workspace, slices, nesting, links, allocations["track"], allocations["time"])
    workspace.connection.register("allocation_arrays", {"id": allocations["id"], "op": ops})
    memory = ", ".join(f"e.memory.{sql_name(key)} AS {name}" for name, key in _MEMORY_COLUMNS.items())
    workspace.copy(
        f"""
        SELECT e.id, k.track, e.time AS ts_ns, e.name, e.category,
               CASE WHEN e.time < s.start_ns + s.dur_ns THEN s.step END AS step, {memory},
               nullif(a.op, {NONE}) AS op
        FROM placed e
        JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid AND k.tid = e.tid
        LEFT JOIN allocation_arrays a ON a.id = e.id
        ASOF LEFT JOIN step_arrays s ON e.time >= s.start_ns
        WHERE e.ph IN ('i', 'I', 'R')
        """,
        INSTANTS,
    )


def _write_counters(workspace: Workspace) -> None:
    workspace.copy(
        """
        SELECT e.id, k.track, e.time AS ts_ns, e.name, j.key AS series,
               TRY_CAST(json_extract_string(j.value, '$') AS DOUBLE) AS value
        FROM placed e
        JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid AND k.tid = e.tid, json_each(e.args) j
        WHERE e.ph = 'C'
        """,
        COUNTERS,
    )


def _write_links(workspace: Workspace, slices: SliceColumns, nesting: Nesting) -> None:
    """A flow event names a track and a time; it is linked to the slice that is open there."""
    flows = workspace.arrays("""
        SELECT e.id, e.ph = 's' AS starts, k.track, e.time
        FROM placed e JOIN track_keys k ON k.pid = e.pid AND k.tid = e.tid AND k.kind IN ('thread', 'stream')
        WHERE e.ph IN ('s', 't', 'f')
    """)
    bound = slice_at(nesting, slices.track, slices.time, slices.end, flows["track"], flows["time"])
    workspace.connection.register("flow_arrays", {**flows, "slice": ids_of(slices, bound)})
    workspace.copy(
        """
        WITH points AS (
            SELECT a.starts, e.category AS kind, e.flow, nullif(a.slice, -1) AS slice, a.time
            FROM flow_arrays a JOIN placed e USING (id)
        )
        SELECT coalesce(s.kind, f.kind) AS kind, coalesce(s.flow, f.flow) AS flow, s.slice AS source,
               f.slice AS target, s.time AS source_ns, f.time AS target_ns
        FROM (FROM points WHERE starts) s
        FULL JOIN (FROM points WHERE NOT starts) f ON s.kind = f.kind AND s.flow = f.flow
        """,
        LINKS,
    )
