"""Writes slices with the device time of ops, device activity with its launch and op, and ops with a FLOP formula.

Reports could join these tables from slices and events. Here, where the links are arrays, the join is an index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import ALLOCATING_OP_PATTERN, COMPUTING, GPU, SLICES
from rankscope.store.arrays import NONE, Ints, Mask, starts_group
from rankscope.store.parquet_writer import Chunk, Coded, Lists, Numbers
from rankscope.store.table_files import TableFiles
from rankscope.timeline.linking import follow
from rankscope.timeline.slices import DeviceTime, SliceTable, named, write_slices

_ALLOCATING_OP = re.compile(ALLOCATING_OP_PATTERN)


def write_activity(files: TableFiles, source: SliceTable, gpu: NDArray[Any]) -> None:
    """Write SLICES, GPU and COMPUTING."""
    write_slices(files, SLICES, source)
    write_slices(files, GPU, source, gpu, lambda rows: _gpu_columns(source, rows))
    _write_computing(files, source)


def _gpu_columns(source: SliceTable, rows: NDArray[Any]) -> Mapping[str, Chunk]:
    slices, texts = source.slices, source.recording.events.coded_texts
    launch, op, line = source.links.launch[rows], source.links.op[rows], source.links.python[rows]

    def told(index: NDArray[Any], values: NDArray[Any]) -> Numbers:
        return Numbers(follow(index, values), valid=index != NONE)

    return {
        "launch_ns": told(launch, slices.time),
        "launch_dur_ns": told(launch, slices.duration),
        "launch_track": told(launch, slices.track),
        "op_name": Coded(follow(op, slices.name), texts),
        "op_ns": told(op, slices.time),
        "op_track": told(op, slices.track),
        "line": Coded(follow(line, slices.name), texts),
    }


def _write_computing(files: TableFiles, source: SliceTable) -> None:
    """The ops whose shapes were read; those of events that are no slices are left out."""
    slices, events = source.slices, source.recording.events
    wanted = slices.event
    order = np.argsort(wanted, kind="stable") if np.any(wanted[1:] < wanted[:-1]) else np.arange(len(wanted))
    at = np.searchsorted(wanted, events.computing, sorter=order)
    at = np.minimum(at, max(len(order) - 1, 0))
    there = (
        wanted[order[at]] == events.computing if len(order) else np.zeros(len(events.computing), dtype=bool)
    )
    rows = order[at[there]]
    texts = events.coded_texts
    files.write_rows(
        COMPUTING,
        {
            "id": Numbers(slices.event[rows]),
            "track": Numbers(slices.track[rows]),
            "start_ns": Numbers(slices.time[rows]),
            "dur_ns": Numbers(slices.duration[rows]),
            "name": Coded(slices.name[rows], texts),
            "step": Numbers(source.step[rows], NONE),
            "shapes": Lists.of_codes(events.shapes[there], texts),
        },
    )


def device_time(op: NDArray[Any], is_gpu: Mask, duration: Ints) -> DeviceTime:
    """The device time of the ops that launched some, from the innermost op of each slice."""
    launched = np.flatnonzero(is_gpu & (op != NONE))
    at, time = _summed(op[launched], duration[launched])
    ops, times = [at], [time]
    while len(at):  # add the time of each op to the op around it
        inside = op[at] != NONE
        at, time = _summed(op[at[inside]], time[inside])
        ops.append(at)
        times.append(time)
    all_ops, total = _summed(np.concatenate(ops), np.concatenate(times))
    own = np.zeros(len(all_ops), dtype=np.int64)
    own[np.searchsorted(all_ops, ops[0])] = times[0]
    return DeviceTime(all_ops, own, total)


def _summed(keys: NDArray[Any], values: Ints) -> tuple[Ints, Ints]:
    """The distinct keys in ascending order, and the sum of the values of each."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order].astype(np.int64)
    begins = np.flatnonzero(starts_group([ordered]))
    if not len(begins):
        return ordered, np.empty(0, dtype=np.int64)
    return ordered[begins], np.add.reduceat(values[order], begins)


def allocating_ops(source: SliceTable, track: NDArray[Any], time: Ints) -> Ints:
    """Ids of the ops responsible for allocations at given tracks and times.

    It is the innermost open op that does more than allocate, or the innermost if all of them only allocate.
    """
    slices, links = source.slices, source.links
    found = source.lookup.at(track, time)
    if len(slices) == 0:
        return found
    is_op = slices.category == source.recording.code("cpu_op")
    ops = np.flatnonzero(is_op)
    allocates = np.zeros(len(slices), dtype=bool)
    allocates[ops] = named(source.recording, slices.name[ops], _ALLOCATING_OP.search)
    innermost = np.where((found != NONE) & ~is_op[found], follow(found, links.op), found)
    op = innermost
    while (only_allocates := (op != NONE) & allocates[op]).any():
        op = np.where(only_allocates, links.op[op], op)
    return source.ids(np.where(op != NONE, op, innermost))
