"""Writes slices with the device time of ops, device activity with its launch and op, and ops with a FLOP formula.

Reports could join these tables from slices and events. Here, where the links are arrays, the join is an index.
"""

from __future__ import annotations

import numpy as np

from rankscope.model import ALLOCATING_OP_PATTERN, COMPUTING, GPU, SLICES
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.store.linking import Links, follow, slice_at
from rankscope.store.nesting import Nesting
from rankscope.store.slices import SliceColumns, ids_of, write_slices
from rankscope.store.workspace import Workspace


def write_activity(
    workspace: Workspace, slices: SliceColumns, links: Links, numbers: dict[str, Ints], is_gpu: Mask
) -> None:
    """Write SLICES, GPU and COMPUTING."""
    categories = workspace.codes("categories")
    own, total = device_time(links.op, is_gpu, slices.duration)
    is_op = f"a.category_code = {categories.get('cpu_op', NONE)}"
    write_slices(
        workspace,
        numbers | {"own_ns": own, "total_ns": total},
        SLICES,
        {
            "device_ns": f"CASE WHEN {is_op} THEN a.own_ns END",
            "total_device_ns": f"CASE WHEN {is_op} THEN a.total_ns END",
        },
    )
    _write_gpu(workspace, slices, links, numbers, np.flatnonzero(is_gpu))
    workspace.connection.register("slice_arrays", numbers)
    workspace.copy(
        f"""
        SELECT a.id, a.track, a.start_ns, a.dur_ns, e.name, nullif(a.step, {NONE}) AS step, e.shapes
        FROM (SELECT id, name, shapes FROM placed WHERE shapes IS NOT NULL) e JOIN slice_arrays a ON a.id = e.id
        """,
        COMPUTING,
    )
    workspace.connection.unregister("slice_arrays")


def _write_gpu(
    workspace: Workspace, slices: SliceColumns, links: Links, numbers: dict[str, Ints], gpu: Ints
) -> None:
    launch, op, line = links.launch[gpu], links.op[gpu], links.python[gpu]
    more = {
        "launch_ns": follow(launch, slices.time),
        "launch_dur_ns": follow(launch, slices.duration),
        "launch_track": follow(launch, slices.track),
        "op_code": follow(op, slices.name),
        "op_ns": follow(op, slices.time),
        "op_track": follow(op, slices.track),
        "line_code": follow(line, slices.name),
    }
    known_by = {
        "launch_ns": "launch",
        "launch_dur_ns": "launch",
        "launch_track": "launch",
        "op_ns": "op",
        "op_track": "op",
    }
    told = {name: f"CASE WHEN a.{by} <> {NONE} THEN a.{name} END" for name, by in known_by.items()}
    write_slices(
        workspace,
        {name: values[gpu] for name, values in numbers.items()} | more,
        GPU,
        {**told, "op_name": "o.text", "line": "l.text"},
        "LEFT JOIN names o ON o.code = a.op_code LEFT JOIN names l ON l.code = a.line_code",
    )


def device_time(op: Ints, is_gpu: Mask, duration: Ints) -> tuple[Ints, Ints]:
    """For each slice: the device time it launched as the innermost op, and that including the ops inside it."""
    launched = np.flatnonzero(is_gpu & (op != NONE))
    own = np.zeros(len(op), dtype=np.int64)
    np.add.at(own, op[launched], duration[launched])
    total = own.copy()
    at, time = np.flatnonzero(own), own[np.flatnonzero(own)]
    while len(at):  # add the time of each op to the op around it
        caller = op[at]
        inside = caller != NONE
        at, group = np.unique(caller[inside], return_inverse=True)
        sums = np.zeros(len(at), dtype=np.int64)
        np.add.at(sums, group, time[inside])
        time = sums
        total[at] += time
    return own, total


def allocating_ops(
    workspace: Workspace, slices: SliceColumns, nesting: Nesting, links: Links, track: Ints, time: Ints
) -> Ints:
    """Ids of the ops responsible for allocations at given tracks and times.

    It is the innermost open op that does more than allocate, or the innermost if all of them only allocate.
    """
    pattern = f"regexp_matches(text, {sql_text(ALLOCATING_OP_PATTERN)})"
    names = [code for (code,) in workspace.rows(f"SELECT code FROM names WHERE {pattern}")]
    is_op = slices.category == workspace.codes("categories").get("cpu_op", NONE)
    allocates = is_op & np.isin(slices.name, names)
    found = slice_at(nesting, slices.track, slices.time, slices.end, track, time)
    innermost = np.where((found != NONE) & ~is_op[found], follow(found, links.op), found)
    op = innermost
    while (only_allocates := (op != NONE) & allocates[op]).any():
        op = np.where(only_allocates, links.op[op], op)
    return ids_of(slices, np.where(op != NONE, op, innermost))
