"""Builds the graph of a run from the store: SQL for the columns, numpy for the edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.device import vocabulary
from rankscope.analysis.graph import NONE, Device, Graph, Host
from rankscope.analysis.graph_device import device_nodes
from rankscope.analysis.graph_host import OWN_NAMES, host_nodes, with_targets
from rankscope.analysis.graph_meetings import matched_here, meetings
from rankscope.analysis.matching import waits
from rankscope.analysis.memo import once_per_run
from rankscope.analysis.scope import Scope
from rankscope.model import GPU_CATEGORIES, LAUNCH_CATEGORIES
from rankscope.store.run import Run


@once_per_run
def graph_of(run: Run, scope: Scope) -> Graph:
    """The graph of the events in scope."""
    ranks = tuple(rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks)
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    _name_table(run)
    raw = _device_columns(run, scope)
    raw["rank"] = number[raw["rank"]]
    found = waits(run, scope)
    on_device, on_host = matched_here(found.rows, number)
    marks, launch = host_nodes(run, scope, raw, on_host, number)
    device, lags = device_nodes(raw, launch, marks, on_device, number, len(ranks))
    host, lags = with_targets(marks, device, lags, len(ranks))
    met = meetings(found.rows, len(found.transfer), on_host, device, host, number)
    steps = tuple(s for (s,) in run.rows(f"SELECT DISTINCT step FROM steps WHERE {scope.where()} ORDER BY 1"))
    names = [name for (name,) in run.rows("SELECT name FROM graph_names ORDER BY code")]
    return Graph(
        ranks,
        names,
        device,
        host,
        lags,
        met,
        _window(device, host),
        steps,
        _notes(device, steps),
    )


def _name_table(run: Run) -> None:
    found = vocabulary(run, *GPU_CATEGORIES, "cpu_op", "user_annotation", *LAUNCH_CATEGORIES)
    names = sorted({*found, *OWN_NAMES})
    run.connection.execute(
        "CREATE OR REPLACE TEMP TABLE graph_names AS SELECT unnest(?) AS name, unnest(range(?)) AS code",
        [names, len(names)],
    )


def _device_columns(run: Run, scope: Scope) -> dict[str, Any]:
    """Device activity by rank and start, with its launch call and the op it was launched for."""
    columns = run.arrays(f"""
        SELECT g.rank::BIGINT AS rank, g.segment::BIGINT AS segment, g.id, g.track::BIGINT AS track,
               g.start_ns AS start, g.start_ns + greatest(g.dur_ns, 0) AS stop,
               coalesce(g.step, {NONE})::BIGINT AS step,
               CASE g.class WHEN 'COMPUTE' THEN 0 WHEN 'COMM' THEN 1 ELSE 2 END::BIGINT AS kind, n.code AS name,
               coalesce(g.launch_ns, {NONE}) AS launch_start,
               coalesce(g.launch_ns + greatest(g.launch_dur_ns, 0), {NONE}) AS launch_stop,
               coalesce(g.launch, {NONE}) AS launch, coalesce(g.launch_track, {NONE})::BIGINT AS launch_track,
               coalesce(o.code, n.code) AS op
        FROM gpu g JOIN graph_names n ON n.name = g.name LEFT JOIN graph_names o ON o.name = g.op_name
        WHERE {scope.where("g")}
    """)
    order = np.lexsort((columns["id"], columns["start"], columns["rank"]))
    return {name: values[order] for name, values in columns.items()}


def _window(device: Device, host: Host) -> tuple[int, int]:
    """From the first step's start to the end of the last thing in scope."""
    begins = host.time[(host.step != NONE) & ~host.is_end]
    starts = begins if len(begins) else np.concatenate([device.start, host.time])
    ends = np.concatenate([device.end, host.time])
    if len(ends) == 0:
        return 0, 0
    return int(starts.min()), int(ends.max())


def _notes(device: Device, steps: tuple[int, ...]) -> tuple[str, ...]:
    notes = []
    lost = int((device.launch == NONE).sum())
    if lost:
        notes.append(
            f"{lost:,} GPU events have no launch in the file: what the host did before them is not known"
        )
    if not steps:
        notes.append("no steps: the window is the whole file; call profiler.step() in the loop")
    return tuple(notes)
