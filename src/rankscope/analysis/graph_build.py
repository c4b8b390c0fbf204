"""Builds the graph of a run from the store: SQL for the columns, numpy for the edges."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.graph import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    Device,
    Graph,
    Host,
    Lags,
    Mask,
    Meetings,
    cross_stream,
    follow,
    latest_end_between,
    previous_on_stream,
    shortest,
)
from rankscope.analysis.intervals import Ints
from rankscope.analysis.matching import waits
from rankscope.analysis.memo import once_per_run
from rankscope.analysis.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES, SYNC_CALL_PATTERN
from rankscope.store.matching import Collectives
from rankscope.store.run import Run

_HOST, _DATALOADER, _SYNC, _BETWEEN = range(len(HOST_CLASSES))
_CALLS = ", ".join(f"'{category}'" for category in LAUNCH_CATEGORIES)
_OWN_NAMES = ("the step begins", "the step ends", "waiting for data")
_DATALOADER_PATTERN = r"(?i)dataloader.*__next__"


@once_per_run
def graph_of(run: Run, scope: Scope) -> Graph:
    """The graph of the events in scope."""
    ranks = tuple(rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks)
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    _name_table(run, scope)
    raw = _device_columns(run, scope)
    raw["rank"] = number[raw["rank"]]
    rows, met = _collectives(run, scope)
    marks, launch = _host_nodes(run, scope, raw, rows, number)
    device, lags = _device_nodes(raw, launch, marks, rows, number, len(ranks))
    host, lags = _with_targets(marks, device, lags, len(ranks))
    meetings = _meetings(rows, len(met.transfer), device, host, number)
    steps = tuple(s for (s,) in run.rows(f"SELECT DISTINCT step FROM steps WHERE {scope.where()} ORDER BY 1"))
    names = [name for (name,) in run.rows("SELECT name FROM graph_names ORDER BY code")]
    return Graph(
        ranks,
        names,
        device,
        host,
        lags,
        meetings,
        _window(run, scope, device, host),
        steps,
        _notes(run, device, steps),
    )


def _name_table(run: Run, scope: Scope) -> None:
    run.connection.execute(
        "CREATE OR REPLACE TEMP TABLE graph_names AS SELECT row_number() OVER (ORDER BY name) - 1 AS code, name FROM ("
        "SELECT DISTINCT name FROM slices WHERE category IN "
        f"('kernel', 'gpu_memcpy', 'gpu_memset', 'cpu_op', 'user_annotation', {_CALLS}) "
        f"UNION SELECT unnest({list(_OWN_NAMES)}))"
    )


def _device_columns(run: Run, scope: Scope) -> dict[str, Any]:
    """Device activity by rank and start, with its launch call and the op it was launched for."""
    return run.arrays(f"""
        SELECT g.rank::BIGINT AS rank, g.segment::BIGINT AS segment, g.id, g.track::BIGINT AS track,
               g.start_ns AS start, g.start_ns + greatest(g.dur_ns, 0) AS stop,
               coalesce(g.step, {NONE})::BIGINT AS step,
               CASE g.class WHEN 'COMPUTE' THEN 0 WHEN 'COMM' THEN 1 ELSE 2 END::BIGINT AS kind, n.code AS name,
               coalesce(g.launch_ns, {NONE}) AS launch_start,
               coalesce(g.launch_ns + greatest(g.launch_dur_ns, 0), {NONE}) AS launch_stop,
               coalesce(g.launch, {NONE}) AS launch, coalesce(g.launch_track, {NONE})::BIGINT AS launch_track,
               coalesce(o.code, n.code) AS op
        FROM gpu g JOIN graph_names n ON n.name = g.name LEFT JOIN graph_names o ON o.name = g.op_name
        WHERE {scope.where("g")} ORDER BY g.rank, g.start_ns, g.id
    """)


def _collectives(run: Run, scope: Scope) -> tuple[Collectives, Any]:
    found = waits(run, scope)
    return found.rows, found


class _Marks:
    """Host nodes as they are collected: one row each, sorted at the end."""

    def __init__(self) -> None:
        self.parts: list[dict[str, Any]] = []
        self.count = 0

    def add(self, rank: Ints, time: Ints, order: int, kind: int, name: Ints, **more: Any) -> Ints:
        """Returns the places of the new rows, before sorting."""
        given = {
            "target_low": NONE,
            "match": NONE,
            "opens": NONE,
            "step": NONE,
            "is_end": 0,
            "sync": 0,
            "file": NONE,
            "track": NONE,
            **more,
        }
        row = {"rank": rank, "time": time, "order": order, "kind": kind, "name": name, **given}
        size = len(rank)
        self.parts.append(
            {key: np.broadcast_to(np.asarray(value, dtype=np.int64), size) for key, value in row.items()}
        )
        self.count += size
        return np.arange(self.count - size, self.count)

    def sorted(self) -> tuple[dict[str, Ints], Ints]:
        """The rows by rank and time, and the new place of each old one."""
        columns = {key: np.concatenate([part[key] for part in self.parts]) for key in self.parts[0]}
        order = np.lexsort((columns["order"], columns["time"], columns["rank"]))
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return {key: value[order] for key, value in columns.items()}, place


def _host_nodes(
    run: Run, scope: Scope, raw: dict[str, Any], rows: Collectives, number: Ints
) -> tuple[dict[str, Ints], Ints]:
    """The host's moments, and where each device event was launched."""
    marks = _Marks()
    code = dict(
        run.rows(
            "SELECT name, code FROM graph_names WHERE name LIKE 'the step %' OR name = 'waiting for data'"
        )
    )
    steps = run.arrays(
        f"SELECT rank::BIGINT AS rank, step::BIGINT AS step, start_ns AS start, start_ns + dur_ns AS stop FROM steps "
        f"WHERE {scope.where()}"
    )
    who = number[steps["rank"]]
    marks.add(
        who, steps["start"], 1, _BETWEEN, np.full(len(who), code["the step begins"]), step=steps["step"]
    )
    marks.add(
        who, steps["stop"], 9, _HOST, np.full(len(who), code["the step ends"]), step=steps["step"], is_end=1
    )
    launched = np.flatnonzero(raw["launch"] != NONE)
    keys = np.stack([raw["rank"][launched], raw["segment"][launched], raw["launch"][launched]])
    _, first, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    calls = launched[first]
    where = {"file": raw["segment"][calls], "track": raw["launch_track"][calls]}
    places = marks.add(raw["rank"][calls], raw["launch_start"][calls], 5, _HOST, raw["op"][calls], **where)
    # A copy whose call returns after the copy has ended made the host wait for it.
    blocking = calls[raw["stop"][calls] <= raw["launch_stop"][calls]]
    marks.add(
        raw["rank"][blocking], raw["launch_stop"][blocking], 6, _SYNC, raw["op"][blocking],
        target_low=raw["launch_start"][blocking], sync=1,
        file=raw["segment"][blocking], track=raw["launch_track"][blocking],
    )  # fmt: skip
    _add_syncs(run, scope, marks, number)
    _add_data_waits(run, scope, marks, number, code["waiting for data"])
    _add_host_collectives(run, scope, marks, rows, number)
    host, place = marks.sorted()
    _add_chains(run, host, rows, number)
    launch = np.full(len(raw["rank"]), NONE)
    launch[launched] = place[places[which.reshape(-1)]]
    return host, launch


def _add_syncs(run: Run, scope: Scope, marks: _Marks, number: Ints) -> None:
    calls = run.arrays(
        "SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.track::BIGINT AS track, s.start_ns AS start, "
        "s.start_ns + greatest(s.dur_ns, 0) AS stop, "
        "coalesce(o.code, n.code) AS op, n.code AS name FROM slices s JOIN graph_names n ON n.name = s.name "
        "LEFT JOIN slices p ON p.rank = s.rank AND p.segment = s.segment AND p.id = s.op "
        f"LEFT JOIN graph_names o ON o.name = p.name WHERE s.category IN ({_CALLS}) "
        f"AND regexp_matches(s.name, '{SYNC_CALL_PATTERN}') AND {scope.where('s')}"
    )
    who = number[calls["rank"]]
    where = {"file": calls["segment"], "track": calls["track"]}
    marks.add(who, calls["start"], 5, _HOST, calls["op"], **where)
    marks.add(who, calls["stop"], 6, _SYNC, calls["name"], target_low=calls["start"], sync=1, **where)


def _add_data_waits(run: Run, scope: Scope, marks: _Marks, number: Ints, name: int) -> None:
    found = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE category = 'user_annotation' AND regexp_matches(name, '{_DATALOADER_PATTERN}') AND {scope.where()}"
    )
    who = number[found["rank"]]
    marks.add(who, found["start"], 2, _HOST, np.full(len(who), name))
    marks.add(who, found["stop"], 8, _DATALOADER, np.full(len(who), name))


def _add_host_collectives(run: Run, scope: Scope, marks: _Marks, rows: Collectives, number: Ints) -> None:
    """Both ends of matched collectives on the host; at the end the host waits, unless its threads were at work."""
    mine = np.flatnonzero(~rows.on_device & (rows.match != NONE) & _inside(rows, number))
    who = number[rows.rank[mine]] if len(mine) else mine
    names = _codes(run, rows, mine)
    where = {"file": rows.segment[mine], "track": rows.track[mine]}
    marks.add(who, rows.start[mine], 7, _HOST, names, opens=rows.match[mine], **where)
    blocking = ~_host_works(run, scope, rows, mine)
    marks.add(
        who[blocking], rows.end[mine][blocking], 6, _HOST, names[blocking], match=rows.match[mine][blocking]
    )


def _add_chains(run: Run, host: dict[str, Ints], rows: Collectives, number: Ints) -> None:
    """Which node comes before which; and inside a collective on the host, what happens once its data is there."""
    count = len(host["rank"])
    mine = np.flatnonzero(~rows.on_device & (rows.match != NONE) & _inside(rows, number))
    chain = np.full(count, NONE)
    if len(mine):
        begins = _annotation_starts(run, rows, mine)
        served = _thread(number[rows.rank[mine]], rows.segment[mine], rows.track[mine])
        order = np.lexsort((begins, served))
        width = int(max(host["time"].max(initial=0), rows.end[mine].max(initial=0))) + 2
        thread = _thread(host["rank"], host["file"], host["track"])
        _, place = np.unique(np.concatenate([served, thread]), return_inverse=True)
        place = place.reshape(-1)
        keys = place[: len(mine)][order] * width + begins[order]
        at = np.searchsorted(keys, place[len(mine) :] * width + host["time"], side="right") - 1
        entry = order[np.maximum(at, 0)]
        good = (
            (at >= 0)
            & (served[entry] == thread)
            & (host["time"] <= rows.end[mine][entry])
            & (host["track"] != NONE)
        )
        chain[good] = entry[good]
        late = good & (host["time"] > rows.start[mine][entry]) & (host["opens"] == NONE)
        host["match"] = np.where(late, rows.match[mine][entry], host["match"])
    host["before"] = _before(host["rank"], chain)


def _thread(rank: Ints, segment: Ints, track: Ints) -> Ints:
    return (rank << 32) | ((segment + 1) << 24) | (track + 1)


def _annotation_starts(run: Run, rows: Collectives, mine: Ints) -> Ints:
    """When each collective's thread took it up; rows.start is later, when its own GPU was ready."""
    found = run.arrays(
        "SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.id, s.start_ns AS start FROM slices s "
        "JOIN collectives c ON c.rank = s.rank AND c.segment = s.segment AND c.id = s.id WHERE c.place = 'host'"
    )
    keys = _key(found["rank"], found["segment"], found["id"])
    order = np.argsort(keys)
    wanted = _key(rows.rank[mine], rows.segment[mine], rows.slice[mine])
    starts: Ints = found["start"][order][np.searchsorted(keys[order], wanted)]
    return starts


def _before(rank: Ints, chain: Ints) -> Ints:
    """Of the same chain where there is one before it; else the last node of the rank that is in no chain."""
    count = len(rank)
    places = np.arange(count)
    free = np.where(chain == NONE, places, NONE)
    last_free = np.maximum.accumulate(free) if count else free
    before = np.full(count, NONE)
    before[1:] = last_free[:-1]
    inside = np.flatnonzero(chain != NONE)
    order = inside[np.lexsort((inside, chain[inside], rank[inside]))]
    same = (chain[order][1:] == chain[order][:-1]) & (rank[order][1:] == rank[order][:-1])
    before[order[1:][same]] = order[:-1][same]
    return np.where((before != NONE) & (rank[np.maximum(before, 0)] == rank), before, NONE)


def _inside(rows: Collectives, number: Ints) -> Mask:
    known = (rows.rank < len(number)) & (rows.rank >= 0)
    found: Mask = known & (number[np.where(known, rows.rank, 0)] != NONE)
    return found


def _codes(run: Run, rows: Collectives, mine: Ints) -> Ints:
    if len(mine) == 0:
        return mine
    files = run.arrays(
        "SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.id, n.code FROM slices s "
        "JOIN collectives c ON c.rank = s.rank AND c.segment = s.segment AND c.id = s.id "
        "JOIN graph_names n ON n.name = s.name WHERE c.place = 'host'"
    )
    known = dict(
        zip(
            zip(files["rank"].tolist(), files["segment"].tolist(), files["id"].tolist(), strict=True),
            files["code"].tolist(),
            strict=True,
        )
    )
    keys = zip(rows.rank[mine].tolist(), rows.segment[mine].tolist(), rows.slice[mine].tolist(), strict=True)
    return np.array([known.get(key, 0) for key in keys], dtype=np.int64)


def _host_works(run: Run, scope: Scope, rows: Collectives, mine: Ints) -> Mask:
    """Whether the host computes in the last moment of each collective: then it was not waited for."""
    if len(mine) == 0:
        none: Mask = np.zeros(0, dtype=bool)
        return none
    ops = run.arrays(
        "SELECT rank::BIGINT AS rank, start_ns AS start, start_ns + greatest(dur_ns, 0) AS stop FROM slices "
        f"WHERE category = 'cpu_op' AND name LIKE 'aten::%' AND {scope.where()}"
    )
    order = np.lexsort((ops["start"], ops["rank"]))
    rank, start, stop = (ops[key][order] for key in ("rank", "start", "stop"))
    width = int(max(stop.max(initial=0), rows.end.max(initial=0))) + 2
    at = np.searchsorted(rank * width + start, rows.rank[mine] * width + rows.end[mine] - 1, side="right") - 1
    reach = np.maximum.accumulate(rank * width + stop) if len(rank) else rank
    busy: Mask = np.zeros(len(mine), dtype=bool)
    good = at >= 0
    busy[good] = reach[at[good]] > rows.rank[mine][good] * width + rows.end[mine][good]
    return busy


def _device_nodes(
    raw: dict[str, Any], launch: Ints, host: dict[str, Ints], rows: Collectives, number: Ints, ranks: int
) -> tuple[Device, Lags]:
    rank, start, end = raw["rank"], raw["start"], raw["stop"]
    _, stream = np.unique(np.stack([rank, raw["segment"], raw["track"]]), axis=1, return_inverse=True)
    stream = stream.reshape(-1)
    before = previous_on_stream(stream, start)
    never = np.iinfo(np.int64).min // 2
    ready, ended = follow(launch, host["time"], never), follow(before, end, never)
    after_launch = np.where(launch != NONE, start - ready, NONE)
    after_stream = np.where(before != NONE, start - ended, NONE)
    lag_launch, lag_stream = shortest(rank, after_launch, ranks), shortest(rank, after_stream, ranks)
    known = np.maximum(ready + lag_launch[rank], ended + lag_stream[rank])
    is_comm = raw["kind"] == DEVICE_CLASSES.index("comm")
    other = cross_stream(rank, stream, start, end, known)
    other = np.where((other == NONE) & is_comm, _computed_before(rank, launch, start, end, is_comm), other)
    after_other = np.where(other != NONE, start - follow(other, end, 0), NONE)
    match = _matches(raw, rows, number)
    device = Device(
        rank, raw["step"], stream, start, end, raw["kind"], raw["name"], launch, before, other, match
    )
    return device, Lags(
        lag_launch, lag_stream, shortest(rank, after_other, ranks), np.zeros(ranks, dtype=np.int64)
    )


def _computed_before(rank: Ints, launch: Ints, start: Ints, end: Ints, is_comm: Mask) -> Ints:
    """For a collective's kernel the work launched last before it: c10d makes it wait for that, shown or not."""
    found = np.full(len(rank), NONE)
    work = np.flatnonzero(~is_comm & (launch != NONE))
    talk = np.flatnonzero(is_comm & (launch != NONE))
    if len(work) == 0 or len(talk) == 0:
        return found
    order = work[np.argsort(launch[work], kind="stable")]  # host nodes are sorted by rank and time
    at = np.searchsorted(launch[order], launch[talk]) - 1
    before = order[np.maximum(at, 0)]
    good = (at >= 0) & (rank[before] == rank[talk]) & (end[before] <= start[talk])
    found[talk[good]] = before[good]
    return found


def _matches(raw: dict[str, Any], rows: Collectives, number: Ints) -> Ints:
    """The number of each device event's collective."""
    match = np.full(len(raw["rank"]), NONE)
    mine = np.flatnonzero(rows.on_device & (rows.match != NONE) & _inside(rows, number))
    if len(mine) == 0 or len(match) == 0:
        return match
    theirs = _key(number[rows.rank[mine]], rows.segment[mine], rows.slice[mine])
    ours = _key(raw["rank"], raw["segment"], raw["id"])
    order = np.argsort(ours)
    at = np.minimum(np.searchsorted(ours[order], theirs), len(ours) - 1)
    good = ours[order][at] == theirs
    match[order[at[good]]] = rows.match[mine[good]]
    return match


def _key(rank: Ints, segment: Ints, id: Ints) -> Ints:
    """One number for an event of any file: ids take 40 bits, segments 8."""
    return (rank << 48) | (segment << 40) | id


def _with_targets(raw: dict[str, Ints], device: Device, lags: Lags, ranks: int) -> tuple[Host, Lags]:
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


def _meetings(rows: Collectives, count: int, device: Device, host: Host, number: Ints) -> Meetings:
    """For each matched collective the node that came last (it waited least), and the transfer."""
    last, members = np.full(count, NONE), np.zeros(count, dtype=np.int64)
    least = np.full(count, np.iinfo(np.int64).max)
    on_host = np.zeros(count, dtype=bool)
    sizes, group, kind = (np.full(count, NONE) for _ in range(3))
    matched = rows.match != NONE
    sizes[rows.match[matched]] = rows.bytes[matched]
    group[rows.match[matched]], kind[rows.match[matched]] = rows.group[matched], rows.kind[matched]
    nodes = np.flatnonzero(device.match != NONE)
    opened = np.flatnonzero(host.opens != NONE)
    # On the device a node lasts as long as the rank was inside; on the host the entries say how long.
    inside = _host_durations(rows, number, host, opened)
    for which, at, took, here in (
        (nodes, device.match[nodes], (device.end - device.start)[nodes], False),
        (opened, host.opens[opened], inside, True),
    ):
        if len(which) == 0:
            continue
        np.add.at(members, at, 1)
        order = np.lexsort((-which, -took))  # the shortest comes last and stays; of equals the first
        better = took[order] <= least[at[order]]
        last[at[order][better]] = which[order][better]
        np.minimum.at(least, at, took)
        on_host[at] = here
    transfer = np.where(least == np.iinfo(np.int64).max, 0, least)
    return Meetings(transfer, last, on_host, members, sizes, group, kind)


def _host_durations(rows: Collectives, number: Ints, host: Host, opened: Ints) -> Ints:
    mine = np.flatnonzero(~rows.on_device & (rows.match != NONE) & _inside(rows, number))
    if len(opened) == 0 or len(mine) == 0:
        return np.zeros(len(opened), dtype=np.int64)
    width = int(rows.match.max()) + 1
    keys = number[rows.rank[mine]] * width + rows.match[mine]
    order = np.argsort(keys)
    at = np.searchsorted(keys[order], host.rank[opened] * width + host.opens[opened])
    return rows.duration[mine][order][np.minimum(at, len(mine) - 1)]


def _window(run: Run, scope: Scope, device: Device, host: Host) -> tuple[int, int]:
    """From the first step's start to the end of the last thing in scope."""
    begins = host.time[(host.step != NONE) & ~host.is_end]
    starts = begins if len(begins) else np.concatenate([device.start, host.time])
    ends = np.concatenate([device.end, host.time])
    if len(ends) == 0:
        return 0, 0
    return int(starts.min()), int(ends.max())


def _notes(run: Run, device: Device, steps: tuple[int, ...]) -> tuple[str, ...]:
    notes = []
    lost = int((device.launch == NONE).sum())
    if lost:
        notes.append(
            f"{lost:,} GPU events have no launch in the file: what the host did before them is not known"
        )
    if not steps:
        notes.append("no steps: the window is the whole file; call profiler.step() in the loop")
    return tuple(notes)
