"""The host nodes of the graph: launches, synchronising calls, waits for data, host collectives and steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import UNKNOWN
from rankscope.analysis.core.host_spans import dataloader_spans, waiting_calls
from rankscope.analysis.core.intervals import Ints, intersect
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.run_steps import in_order_of_start
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.analysis.core.step_times import host_windows, recordings
from rankscope.analysis.critical_path.graph.host_collectives import (
    HostCollectives,
    chain_threads,
    host_collectives,
)
from rankscope.analysis.critical_path.graph.nodes import (
    HOST_CLASSES,
    NONE,
    DeviceNodes,
    HostNodes,
    Lags,
    event_key,
    follow,
    latest_end_between,
    shortest,
)
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

STEP_BEGINS, STEP_ENDS, DATA_WAIT, RECORDING_BEGINS, RECORDING_ENDS = OWN_NAMES = (
    "the step begins",
    "the step ends",
    "waiting for data",
    "the recording begins",
    "the recording ends",
)
"""Names for nodes that have no name in the file."""
_HOST, _DATALOADER, _SYNC, _BETWEEN, _UNRECORDED = range(len(HOST_CLASSES))
_DEFAULTS = {
    "target_low": NONE,
    "match": NONE,
    "opens": NONE,
    "step": NONE,
    "is_end": 0,
    "sync": 0,
    "file": NONE,
    "track": NONE,
}
"""Column values of a node where none are given."""


class _Collector:
    """Collects host nodes, one row each, and sorts them at the end."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Ints, dict[str, Any]]] = []
        self.count = 0

    def add(self, rank: Ints, time: Ints, order: int, kind: Any, name: Any, **more: Any) -> Ints:
        """Returns the numbers of the new rows before sorting. `order` sorts rows at the same time."""
        numbers = np.arange(self.count, self.count + len(rank))
        self.parts.append((order, numbers, {"rank": rank, "time": time, "kind": kind, "name": name, **more}))
        self.count += len(rank)
        return numbers

    def sorted(self) -> tuple[dict[str, Ints], Ints]:
        """The rows sorted by rank and time, and the new place of each row number."""
        # A stable sort by one key is fast, because the parts are mostly sorted already.
        parts = sorted(self.parts, key=lambda part: part[0])
        rank, time = (np.concatenate([part[2][key] for part in parts]) for key in ("rank", "time"))
        since = time - time.min() if len(time) else time
        order = np.argsort(rank * (since.max(initial=0) + 1) + since, kind="stable")
        place = np.empty(self.count, dtype=np.int64)
        place[np.concatenate([numbers for _, numbers, _ in parts])[order]] = np.arange(self.count)
        columns = {"rank": rank[order], "time": time[order]}
        for key, default in {"kind": 0, "name": 0, **_DEFAULTS}.items():
            columns[key] = np.full(self.count, default)
            for _, numbers, values in parts:
                if key in values:
                    columns[key][place[numbers]] = values[key]
        return columns, place


def host_nodes(
    run: Run, scope: Scope, raw: dict[str, Any], on_host: Collectives, number: Ints
) -> tuple[dict[str, Ints], Ints]:
    """The host nodes as columns, and the host node that launched each device event."""
    nodes = _Collector()
    code = {name: len(all_names(run)) + place for place, name in enumerate(OWN_NAMES)}
    steps = in_order_of_start(steps_in_scope(run, scope))
    who = number[steps["rank"]]
    same_rank = np.diff(who, prepend=NONE) == 0
    new_cycle = same_rank & (np.diff(steps["segment"], prepend=NONE) != 0)
    before = np.where(new_cycle & (scope.steps is not None), _UNRECORDED, _BETWEEN)
    if scope.steps is None:
        _add_recordings(run, scope, nodes, number, code)
    nodes.add(who, steps["start"], 1, before, code[STEP_BEGINS], step=steps["step"])
    nodes.add(who, steps["stop"], 9, _HOST, code[STEP_ENDS], step=steps["step"], is_end=1)
    launched = np.flatnonzero(raw["launch"] != NONE)
    keys = event_key(raw["rank"][launched], raw["segment"][launched], raw["launch"][launched])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    calls = launched[first]
    where = {"file": raw["segment"][calls], "track": raw["launch_track"][calls]}
    launches = nodes.add(raw["rank"][calls], raw["launch_start"][calls], 5, _HOST, raw["op"][calls], **where)
    # A call that returns after its copy has ended made the host wait for the copy.
    blocking = calls[raw["end"][calls] <= raw["launch_end"][calls]]
    nodes.add(
        raw["rank"][blocking], raw["launch_end"][blocking], 6, _SYNC, raw["op"][blocking],
        target_low=raw["launch_start"][blocking], sync=1,
        file=raw["segment"][blocking], track=raw["launch_track"][blocking],
    )  # fmt: skip
    _add_syncs(run, scope, nodes, number)
    _add_data_waits(run, scope, nodes, number, code)
    comm = host_collectives(run, scope, on_host, number)
    _add_host_collectives(nodes, comm)
    host, place = nodes.sorted()
    chain_threads(host, comm)
    launch = np.full(len(raw["rank"]), NONE)
    launch[launched] = place[launches[which]]
    return host, launch


def _add_recordings(run: Run, scope: Scope, nodes: _Collector, number: Ints, code: dict[str, int]) -> None:
    """Where the window is not cut into steps, the recordings of a rank are apart: what is between them is unknown."""
    for rank in scope.ranks_in(run):
        begin, end = recordings(run)[rank]
        who = np.full(len(begin[1:]), number[rank])
        # It ends with the last of its events, which are mostly of the device.
        nodes.add(who, end[:-1], 9, _SYNC, code[RECORDING_ENDS], target_low=begin[:-1], sync=1, is_end=1)
        nodes.add(who, begin[1:], 0, _UNRECORDED, code[RECORDING_BEGINS])


def _add_syncs(run: Run, scope: Scope, nodes: _Collector, number: Ints) -> None:
    calls = waiting_calls(run, scope)
    calls = {key: values[calls["waits"] == 1] for key, values in calls.items()}
    ops = np.where(calls["op"] == UNKNOWN, calls["name"], calls["op"])
    who = number[calls["rank"]]
    where = {"file": calls["segment"], "track": calls["track"]}
    nodes.add(who, calls["start"], 5, _HOST, ops, **where)
    nodes.add(
        who, calls["stop"], 6, _SYNC, calls["name"],
        target_low=calls["start"], sync=1, **where,
    )  # fmt: skip


def _add_data_waits(run: Run, scope: Scope, nodes: _Collector, number: Ints, code: dict[str, int]) -> None:
    name = code[DATA_WAIT]
    for rank in scope.ranks_in(run):
        waits, steps = dataloader_spans(run, rank), host_windows(run, rank, scope)
        if scope.steps is not None:
            waits = intersect(waits, steps.intervals)
        who = np.full(len(waits.start), number[rank])
        nodes.add(who, waits.start, 2, _HOST, name)
        nodes.add(who, waits.end, 8, _DATALOADER, name)


def _add_host_collectives(nodes: _Collector, comm: HostCollectives) -> None:
    """Nodes at the start of each host collective, and at the end of those that the host waits for."""
    rows, ends = comm.rows, comm.waited_for
    nodes.add(
        comm.rank, rows.start, 7, _HOST, comm.name, opens=rows.match, file=rows.segment, track=rows.track
    )
    nodes.add(comm.rank[ends], rows.end[ends], 6, _HOST, comm.name[ends], match=rows.match[ends])


def with_targets(raw: dict[str, Ints], device: DeviceNodes, lags: Lags, ranks: int) -> tuple[HostNodes, Lags]:
    """Add to each synchronising call the device node it waited for: the one that ended last during the call."""
    target = np.full(len(raw["rank"]), NONE)
    syncs = np.flatnonzero(raw["sync"] == 1)
    if len(syncs):
        target[syncs] = latest_end_between(
            device.rank, device.end, raw["rank"][syncs], raw["target_low"][syncs], raw["time"][syncs]
        )
    returned = np.where(target != NONE, raw["time"] - follow(target, device.end, 0), NONE)
    host = HostNodes(
        raw["rank"], raw["time"], raw["kind"], raw["name"], target, raw["before"], raw["match"], raw["opens"],
        raw["step"], raw["is_end"].astype(bool),
    )  # fmt: skip
    return host, Lags(lags.launch, lags.stream, lags.other, shortest(raw["rank"], returned, ranks))
