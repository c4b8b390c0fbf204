"""The host nodes of the graph: launches, synchronising calls, waits for data and the marks of steps."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import sql_names
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.collectives import event_key
from rankscope.analysis.critical_path.graph.host_collectives import (
    HostCollectives,
    chain_threads,
    host_collectives,
)
from rankscope.analysis.critical_path.graph.nodes import (
    HOST_CLASSES,
    NONE,
    Device,
    Host,
    Lags,
    follow,
    latest_end_between,
    shortest,
)
from rankscope.analysis.within_rank.sync_calls import waiting_calls
from rankscope.store.collectives.matching import Collectives
from rankscope.store.run import Run

STEP_BEGINS, STEP_ENDS, DATA_WAIT = OWN_NAMES = ("the step begins", "the step ends", "waiting for data")
"""Names of moments that have none in the file."""
_HOST, _DATALOADER, _SYNC, _BETWEEN = range(len(HOST_CLASSES))
_DATALOADER_PATTERN = r"(?i)dataloader.*__next__"
_OTHERWISE = {
    "target_low": NONE,
    "match": NONE,
    "opens": NONE,
    "step": NONE,
    "is_end": 0,
    "sync": 0,
    "file": NONE,
    "track": NONE,
}
"""What a mark has where nothing is said."""


class _Marks:
    """Host nodes as they are collected: one row each, sorted at the end."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Ints, dict[str, Any]]] = []
        self.count = 0

    def add(self, rank: Ints, time: Ints, order: int, kind: int, name: Any, **more: Any) -> Ints:
        """Returns the numbers of the new rows, for now. `order` is that of rows at the same time."""
        numbers = np.arange(self.count, self.count + len(rank))
        self.parts.append((order, numbers, {"rank": rank, "time": time, "kind": kind, "name": name, **more}))
        self.count += len(rank)
        return numbers

    def sorted(self) -> tuple[dict[str, Ints], Ints]:
        """The rows by rank and time, and the place of each number."""
        # Parts in order, then a stable sort by one key: most of it is sorted already, and that makes it fast.
        parts = sorted(self.parts, key=lambda part: part[0])
        rank, time = (np.concatenate([part[2][key] for part in parts]) for key in ("rank", "time"))
        since = time - time.min() if len(time) else time
        order = np.argsort(rank * (since.max(initial=0) + 1) + since, kind="stable")
        place = np.empty(self.count, dtype=np.int64)
        place[np.concatenate([numbers for _, numbers, _ in parts])[order]] = np.arange(self.count)
        columns = {"rank": rank[order], "time": time[order]}
        for key, otherwise in {"kind": 0, "name": 0, **_OTHERWISE}.items():
            columns[key] = np.full(self.count, otherwise)
            for _, numbers, values in parts:
                if key in values:
                    columns[key][place[numbers]] = values[key]
        return columns, place


def host_nodes(
    run: Run, scope: Scope, raw: dict[str, Any], on_host: Collectives, number: Ints, names: list[str]
) -> tuple[dict[str, Ints], Ints]:
    """The host's moments, and where each device event was launched."""
    marks = _Marks()
    code = {name: index for index, name in enumerate(names)}
    steps = run.arrays(
        f"SELECT rank::BIGINT AS rank, step::BIGINT AS step, start_ns AS start, start_ns + dur_ns AS stop FROM steps "
        f"WHERE {scope.where()}"
    )
    who = number[steps["rank"]]
    marks.add(who, steps["start"], 1, _BETWEEN, code[STEP_BEGINS], step=steps["step"])
    marks.add(who, steps["stop"], 9, _HOST, code[STEP_ENDS], step=steps["step"], is_end=1)
    launched = np.flatnonzero(raw["launch"] != NONE)
    keys = event_key(raw["rank"][launched], raw["segment"][launched], raw["launch"][launched])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    calls = launched[first]
    where = {"file": raw["segment"][calls], "track": raw["launch_track"][calls]}
    launches = marks.add(raw["rank"][calls], raw["launch_start"][calls], 5, _HOST, raw["op"][calls], **where)
    # A copy whose call returns after the copy has ended made the host wait for it.
    blocking = calls[raw["end"][calls] <= raw["launch_end"][calls]]
    marks.add(
        raw["rank"][blocking], raw["launch_end"][blocking], 6, _SYNC, raw["op"][blocking],
        target_low=raw["launch_start"][blocking], sync=1,
        file=raw["segment"][blocking], track=raw["launch_track"][blocking],
    )  # fmt: skip
    _add_syncs(run, scope, marks, number, code)
    _add_data_waits(run, scope, marks, number, code)
    talk = host_collectives(run, scope, on_host, number, names)
    _add_host_collectives(marks, talk)
    host, place = marks.sorted()
    chain_threads(host, talk)
    launch = np.full(len(raw["rank"]), NONE)
    launch[launched] = place[launches[which]]
    return host, launch


def _add_syncs(run: Run, scope: Scope, marks: _Marks, number: Ints, code: dict[str, int]) -> None:
    calls = waiting_calls(run, scope)
    calls = {key: values[calls["waits"] == 1] for key, values in calls.items()}
    names = [code[name] for name in calls["name"].tolist()]
    ops = [code.get(op, name) for op, name in zip(calls["op"].tolist(), names, strict=True)]
    who = number[calls["rank"]]
    where = {"file": calls["segment"], "track": calls["track"]}
    marks.add(who, calls["start"], 5, _HOST, np.array(ops, dtype=np.int64), **where)
    marks.add(
        who, calls["stop"], 6, _SYNC, np.array(names, dtype=np.int64),
        target_low=calls["start"], sync=1, **where,
    )  # fmt: skip


def _add_data_waits(run: Run, scope: Scope, marks: _Marks, number: Ints, code: dict[str, int]) -> None:
    waits = [name for name in code if re.search(_DATALOADER_PATTERN, name)]
    name = code[DATA_WAIT]
    found = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE category = 'user_annotation' AND name IN ({sql_names(waits)}) AND {scope.where()}"
    )
    who = number[found["rank"]]
    marks.add(who, found["start"], 2, _HOST, name)
    marks.add(who, found["stop"], 8, _DATALOADER, name)


def _add_host_collectives(marks: _Marks, talk: HostCollectives) -> None:
    """Both ends; at the end only where the host waits for it."""
    rows, ends = talk.rows, talk.waited_for
    marks.add(
        talk.rank, rows.start, 7, _HOST, talk.name, opens=rows.match, file=rows.segment, track=rows.track
    )
    marks.add(talk.rank[ends], rows.end[ends], 6, _HOST, talk.name[ends], match=rows.match[ends])


def with_targets(raw: dict[str, Ints], device: Device, lags: Lags, ranks: int) -> tuple[Host, Lags]:
    """What each synchronising call waited for: what ended last while it ran."""
    target = np.full(len(raw["rank"]), NONE)
    syncs = np.flatnonzero(raw["sync"] == 1)
    if len(syncs):
        target[syncs] = latest_end_between(
            device.rank, device.end, raw["rank"][syncs], raw["target_low"][syncs], raw["time"][syncs]
        )
    returned = np.where(target != NONE, raw["time"] - follow(target, device.end, 0), NONE)
    host = Host(
        raw["rank"], raw["time"], raw["kind"], raw["name"], target, raw["before"], raw["match"], raw["opens"],
        raw["step"], raw["is_end"].astype(bool),
    )  # fmt: skip
    return host, Lags(lags.launch, lags.stream, lags.other, shortest(raw["rank"], returned, ranks))
