"""Builds the graph of a run from the store: SQL for the columns, numpy for the edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.collective_waits import waits
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import UNKNOWN, device_events, ranks_in, texts, vocabulary, works
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.collectives import matched_here, meetings
from rankscope.analysis.critical_path.graph.device_nodes import device_nodes
from rankscope.analysis.critical_path.graph.host_nodes import OWN_NAMES, host_nodes, with_targets
from rankscope.analysis.critical_path.graph.nodes import NONE, Device, Graph, Host
from rankscope.model import GPU_CATEGORIES, LAUNCH_CATEGORIES
from rankscope.store.run import Run


@once_per_run
def graph_of(run: Run, scope: Scope) -> Graph:
    """The graph of the events in scope."""
    ranks = tuple(rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks)
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    names = _node_names(run)
    raw = _device_columns(run, scope, names)
    raw["rank"] = number[raw["rank"]]
    found = waits(run, scope)
    on_device, on_host = matched_here(found.rows, number)
    marks, launch = host_nodes(run, scope, raw, on_host, number, names)
    device, lags = device_nodes(raw, launch, marks, on_device, number, len(ranks))
    host, lags = with_targets(marks, device, lags, len(ranks))
    met = meetings(found.rows, len(found.transfer), on_host, device, host, number)
    steps = tuple(s for (s,) in run.rows(f"SELECT DISTINCT step FROM steps WHERE {scope.where()} ORDER BY 1"))
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


def _node_names(run: Run) -> list[str]:
    """The names of all nodes; a node refers to its name by an index into them."""
    found = vocabulary(run, *GPU_CATEGORIES, "cpu_op", "user_annotation", *LAUNCH_CATEGORIES)
    return sorted({*found, *OWN_NAMES})


_COLUMNS = (
    "segment", "id", "track", "start", "end", "step", "kind", "launch", "launch_start", "launch_end", "launch_track",
)  # fmt: skip


def _device_columns(run: Run, scope: Scope, names: list[str]) -> dict[str, Any]:
    """Device activity by rank and start, with its launch call and the op it was launched for."""
    number = {name: code for code, name in enumerate(names)}
    of_work = np.array([number[name] for name in works(run)], dtype=np.int64)
    of_text = np.array([number.get(name, NONE) for name in texts(run)], dtype=np.int64)
    parts = []
    for rank in ranks_in(run, scope):
        found = device_events(run, rank, scope)
        order = np.lexsort((found.id, found.start))
        name, op = of_work[found.work[order]], found.op[order]
        parts.append(
            {
                "rank": np.full(len(found), rank),
                "name": name,
                "op": np.where(op == UNKNOWN, name, of_text[op]) if len(of_text) else name,
                **{key: getattr(found, key)[order] for key in _COLUMNS},
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


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
