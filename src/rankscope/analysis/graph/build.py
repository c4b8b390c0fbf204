"""Build the graph of a run from the store: columns with SQL, edges with numpy.

Device nodes wait for their launch, their stream and other streams; host nodes are launches, synchronising calls, waits
for data, host collectives (gloo) and steps.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import UNKNOWN, device_events
from rankscope.analysis.core.grouping import last_before
from rankscope.analysis.core.host_spans import dataloader_spans, waiting_calls
from rankscope.analysis.core.intervals import Axis, Ints, covered, intersect, rounded, union
from rankscope.analysis.core.names import all_names, sql_names, vocabulary
from rankscope.analysis.core.scope import Scope, in_order_of_start, steps_in_scope
from rankscope.analysis.core.step_times import host_windows, recordings
from rankscope.analysis.graph.events import (
    DEVICE_CLASSES,
    HOST_CLASSES,
    NONE,
    DeviceNodes,
    EventGraph,
    HostNodes,
    Lags,
    Mask,
    cross_stream,
    ended_last,
    entries_of,
    event_key,
    follow,
    may_be_causes,
    previous_on_stream,
    shortest,
)
from rankscope.collective_kinds import KINDS
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows, packed, starts_group
from rankscope.timeline.collectives.entries import Collectives
from rankscope.timeline.run import Run

_RECV = KINDS.index("recv")
_PAUSE_SHARE, _PAUSE_NS = 0.1, 200_000
"""A pause between two ops in which a collective ends is a wait for it when it is at least this share of the collective,
or this long: ops of a backward pass are some µs apart. Chosen, not measured."""
_LATE_MARK = 20
"""Times as long as what follows it until the end of a collective, a pause is a wait for it: its thread marks the end
0.3 ms late in runs of gloo, while ops go on. Chosen on waits of 7 to 110 ms there."""
_POLLS, _MOST_POLLING, _POLL_SLACK = 50, 4, 0.2
"""A loop of at most so many ops polls where it has so many rounds and ends with a collective, up to this share of its
time. In 80 ms a loop that polls every few µs has some 3,000 rounds. Chosen."""
_LEAST_QUERIES, _LEAST_POLL_NS = 3, 100_000
"""Calls that ask the device, one after the other, and their time: the host waits. The allocator's own take a few µs."""
_QUERY_PATTERN = r"^(?:(?:cuda|hip)(?:Event|Stream)|cu(?:Event|Stream))Query(?:_ptsz)?$"
_HELD_UP, _SHORT = 20, 10
"""Times the shortest launch of a rank but for a tenth: where the queue is always full, most are held up. Chosen on a
recorded job of two H100: launches into a full queue take 500 times as long and more, others up to 50 times."""


@dataclass(frozen=True)
class HostCollectives:
    """One entry for each collective and rank."""

    rows: Collectives
    rank: Ints
    """Index of the rank in the graph."""
    begins: Ints
    """Start of its slice; rows.start is later, after the synchronisation with its own GPU."""
    name: Ints
    waited_for: Mask
    """The host stopped to wait for its end."""
    stops: Ints
    """When the host stopped working to wait for it; rows.start where that was before."""


def host_collectives(run: Run, scope: Scope, rows: Collectives, number: Ints) -> HostCollectives:
    """The entries for `rows`, with their slices from the store."""
    if len(rows.rank) == 0:
        none = np.zeros(0, dtype=np.int64)
        return HostCollectives(rows, none, none, none, none.astype(bool), none)
    slices = run.arrays(
        "SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.id, s.start_ns AS start, "
        "n.code FROM slices s "
        "JOIN collectives c ON c.rank = s.rank AND c.segment = s.segment AND c.id = s.id "
        "JOIN internal.names n ON n.category = s.category AND n.name = s.name WHERE c.place = 'host'"
    )
    keys = event_key(slices["rank"], slices["segment"], slices["id"])
    at = entries_of(keys, event_key(rows.rank, rows.segment, rows.slice))
    begins = slices["start"][at]
    ops = run.arrays(
        "SELECT rank::BIGINT AS rank, segment::BIGINT AS segment, track::BIGINT AS track, start_ns AS start, "
        "start_ns + greatest(dur_ns, 0) AS end, (op IS NULL)::BIGINT AS outermost, (hash(name) >> 2)::BIGINT AS name "
        f"FROM slices WHERE category = 'cpu_op' AND name LIKE 'aten::%' AND {scope.where()} "
        "ORDER BY rank, segment, track, start_ns"
    )
    is_work = ~polling_ops(rows, ops)
    waited_for, stops = host_waits(rows, begins, {name: values[is_work] for name, values in ops.items()})
    return HostCollectives(rows, number[rows.rank], begins, slices["code"][at], waited_for, stops)


def host_waits(rows: Collectives, begins: Ints, ops: dict[str, Ints]) -> tuple[Mask, Ints]:
    """By collective: whether the host waited for its end, and since when.

    The host waits where it runs no op: in the last pause between ops before the end of the collective. An op that
    begins before the end of its annotation, but after a longer pause, does not tell that the host did not wait: the
    thread of the collective may mark its end late. What the thread of a collective runs inside it is no work of the
    host.
    """
    inside = _inside_own_thread(rows, begins, ops)
    who, start, end = (ops[name][~inside] for name in ("rank", "start", "end"))
    axis = Axis.over(np.concatenate([start, begins]), np.concatenate([end, rows.end]), 0)
    busy = union(axis.place(start, who), axis.place(end, who))
    opened, closed = axis.place(rows.start, rows.rank), axis.place(rows.end, rows.rank)
    # The ops that began before the end, the last of them first; 0 where there is none.
    begun = np.searchsorted(busy.start, closed)
    first, last, before = np.append(0, busy.start)[begun], np.append(0, busy.end), np.maximum(begun - 1, 0)
    works = last[begun] > closed
    resumed = np.where(works, first, closed)
    stopped = np.maximum(np.where(works, last[before], last[begun]), opened)
    pause = resumed - stopped
    least = np.minimum(_PAUSE_SHARE * (closed - opened), _PAUSE_NS)
    waited = (pause >= least) & np.where(works, pause > closed - resumed, pause >= 0)
    # Short ops and pauses may precede a late mark: back to the pause that is much longer than all that follows it.
    at, left = before, np.flatnonzero(begun > 0)
    while len(left):
        resumed, since = busy.start[at[left]], opened[left]
        after = _LATE_MARK * (closed[left] - resumed)
        begin = np.maximum(np.where(at[left] > 0, busy.end[at[left] - 1], since), since)
        is_long, goes_on = resumed - begin >= after, resumed - since >= after
        waited[left[is_long]], stopped[left[is_long]] = True, begin[is_long]
        left = left[goes_on & ~is_long & (at[left] > 0)]
        at[left] -= 1
    # The host waits for one after the other: what it runs before a late mark is no work between the two.
    order = np.flatnonzero(waited)[np.argsort(closed[waited], kind="stable")]
    stopped[order[1:]] = np.maximum(stopped[order[1:]], closed[order[:-1]])
    return waited, stopped + axis.origin - rows.rank * axis.width


def polling_ops(rows: Collectives, ops: dict[str, Ints]) -> Mask:
    """By op, in order of its thread and start: whether it is in a loop that asks again and again whether a collective
    has ended: the same few ops, many times, until it has. That is waiting, not work."""
    polls = np.zeros(len(ops["start"]), dtype=bool)
    outer = np.flatnonzero(ops["outermost"] == 1)
    name, rank, start, end = (ops[key][outer] for key in ("name", "rank", "start", "end"))
    _, thread = number_rows([ops[key][outer] for key in ("rank", "segment", "track")])
    following = np.minimum(np.arange(len(outer)) + 1, len(outer) - 1)
    for period in range(1, _MOST_POLLING + 1):
        again = np.zeros(len(outer) + 1, dtype=bool)
        again[period:-1] = (name[period:] == name[:-period]) & (thread[period:] == thread[:-period])
        edges = np.flatnonzero(np.diff(again, prepend=False))
        first, last = edges[::2] - period, edges[1::2] - 1
        many = last - first >= _POLLS * period
        first, last = first[many], last[many]
        # The last collective of the rank that ended before its thread ran something else: marks are late.
        slack = rounded(_POLL_SLACK * (end[last] - start[first]))
        high = np.maximum(
            np.where(thread[following[last]] == thread[last], start[following[last]], 0), end[last]
        )
        entry = last_before(rows.rank, rows.end, rank[last], high + slack)
        asks = (entry != NONE) & (rows.end[entry] >= end[last] - slack)
        for begin, stop, opened in zip(first[asks], last[asks], rows.start[entry[asks]], strict=True):
            mine = outer[begin : stop + 1]
            mine = mine[ops["start"][mine] >= opened]
            if len(mine) >= _POLLS * period:
                polls[mine[0] : mine[-1] + 1] = True
    return polls


def _inside_own_thread(rows: Collectives, begins: Ints, ops: dict[str, Ints]) -> Mask:
    """Whether each op runs on the thread of a collective, inside it."""
    _, thread = number_rows(
        [np.append(getattr(rows, name), ops[name]) for name in ("rank", "segment", "track")]
    )
    axis = Axis.over(np.append(begins, ops["start"]), np.append(rows.end, ops["end"]), 0)
    served, of_op = thread[: len(begins)], thread[len(begins) :]
    spans = union(axis.place(begins, served), axis.place(rows.end, served))
    first = axis.place(ops["start"], of_op)
    return covered(spans, first, first + 1) > 0


def chain_threads(host: dict[str, Ints], comm: HostCollectives) -> None:
    """Set the previous node of each host node, and mark the nodes inside a host collective after its data arrived."""
    rows, count = comm.rows, len(host["rank"])
    chain = np.full(count, NONE)
    if len(rows.rank):
        columns = ((comm.rank, host["rank"]), (rows.segment, host["file"]), (rows.track, host["track"]))
        thread = packed([np.concatenate(pair) for pair in columns])
        of_comm, of_host = np.split(thread, [len(rows.rank)])
        entry = last_before(of_comm, comm.begins, of_host, host["time"])
        good = (entry != NONE) & (host["time"] <= rows.end[entry]) & (host["track"] != NONE)
        chain[good] = entry[good]
        late = good & (host["time"] > rows.start[entry]) & (host["opens"] == NONE)
        host["match"] = np.where(late, rows.match[entry], host["match"])
    host["before"] = _before(host["rank"], chain)


def _before(rank: Ints, chain: Ints) -> Ints:
    """The previous node of the same chain, else the last node of the rank that is in no chain."""
    places = np.arange(len(rank))
    last_free = np.maximum.accumulate(np.where(chain == NONE, places, NONE))
    before = np.append(NONE, last_free)[:-1]
    inside = np.flatnonzero(chain != NONE)
    same = previous_on_stream(packed([rank[inside], chain[inside]]))
    before[inside[same != NONE]] = inside[same[same != NONE]]
    return np.where((before != NONE) & (rank[before] == rank), before, NONE)


STEP_BEGINS, STEP_ENDS, DATA_WAIT, RECORDING_BEGINS, RECORDING_ENDS, COLLECTIVE_WAIT = OWN_NAMES = (
    "the step begins",
    "the step ends",
    "waiting for data",
    "the recording begins",
    "the recording ends",
    "waiting for a collective",
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
        position = np.empty(self.count, dtype=np.int64)
        position[np.concatenate([numbers for _, numbers, _ in parts])[order]] = np.arange(self.count)
        columns = {"rank": rank[order], "time": time[order]}
        for key, default in {"kind": 0, "name": 0, **_DEFAULTS}.items():
            columns[key] = np.full(self.count, default)
            for _, numbers, values in parts:
                if key in values:
                    columns[key][position[numbers]] = values[key]
        return columns, position


def host_nodes(
    run: Run, scope: Scope, raw: dict[str, Any], on_host: Collectives, number: Ints
) -> tuple[dict[str, Ints], Ints]:
    """The host nodes as columns, and the host node that launched each device event."""
    nodes = _Collector()
    code = {name: len(all_names(run)) + number for number, name in enumerate(OWN_NAMES)}
    steps = in_order_of_start(steps_in_scope(run, scope))
    who = number[steps["rank"]]
    same_rank = np.diff(who, prepend=NONE) == 0
    new_cycle = same_rank & (np.diff(steps["segment"], prepend=NONE) != 0)
    before = np.where(new_cycle & (scope.steps is not None), _UNRECORDED, _BETWEEN)
    if scope.steps is None:
        _add_recordings(run, scope, nodes, number, code)
    nodes.add(who, steps["start"], 1, before, code[STEP_BEGINS], step=steps["step"])
    # At the same time a step ends before the next one begins, but after all else that it has.
    abuts = np.append((np.diff(who) == 0) & (steps["start"][1:] == steps["stop"][:-1]), False)[: len(who)]
    for order, ends in ((0, abuts), (9, ~abuts)):
        nodes.add(
            who[ends], steps["stop"][ends], order, _HOST, code[STEP_ENDS], step=steps["step"][ends], is_end=1
        )
    launched = np.flatnonzero(raw["launch"] != NONE)
    keys = event_key(raw["rank"][launched], raw["segment"][launched], raw["launch"][launched])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    calls = launched[first]
    where = {"file": raw["segment"][calls], "track": raw["launch_track"][calls]}
    launches = nodes.add(raw["rank"][calls], raw["launch_start"][calls], 5, _HOST, raw["op"][calls], **where)
    # A call that returns after its copy has ended made the host wait for the copy.
    blocking = calls[(raw["end"][calls] <= raw["launch_end"][calls]) | _waited_for_room(raw, calls)]
    nodes.add(
        raw["rank"][blocking], raw["launch_end"][blocking], 6, _SYNC, raw["op"][blocking],
        target_low=raw["launch_start"][blocking], sync=1,
        file=raw["segment"][blocking], track=raw["launch_track"][blocking],
    )  # fmt: skip
    _add_syncs(run, scope, nodes, number)
    _add_polls(run, scope, nodes, number)
    _add_data_waits(run, scope, nodes, number, code)
    comm = host_collectives(run, scope, on_host, number)
    _add_host_collectives(nodes, comm, code)
    host, position = nodes.sorted()
    chain_threads(host, comm)
    launch = np.full(len(raw["rank"]), NONE)
    launch[launched] = position[launches[which]]
    return host, launch


def _waited_for_room(raw: dict[str, Any], calls: Ints) -> Mask:
    """Whether each launch was held up by a full queue: the device had to end something before there was room. What it
    launched was then far from its turn."""
    if not len(calls):
        return np.zeros(0, dtype=bool)
    took = raw["launch_end"][calls] - raw["launch_start"][calls]
    rank = raw["rank"][calls]
    order = np.lexsort((took, rank))
    sizes = np.bincount(rank)
    short = np.minimum(np.cumsum(sizes) - sizes + sizes // _SHORT, len(order) - 1)
    usual = took[order][short][rank]
    held: Mask = (took > _HELD_UP * usual) & (raw["start"][calls] - raw["launch_end"][calls] > took)
    return held


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


def _add_polls(run: Run, scope: Scope, nodes: _Collector, number: Ints) -> None:
    """A thread that asks the device again and again, and calls nothing else, waits for it as in one synchronising
    call. Threads that only ask are those of libraries."""
    asking = [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if re.search(_QUERY_PATTERN, name)]
    if not asking:
        return
    calls = run.arrays(f"""
        SELECT s.rank::BIGINT AS rank, s.segment::BIGINT AS segment, s.track::BIGINT AS track, s.start_ns AS start,
               s.start_ns + greatest(s.dur_ns, 0) AS stop, n.code AS name,
               (s.name IN ({sql_names(asking)}))::BIGINT AS asks
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE s.category IN ({sql_names(LAUNCH_CATEGORIES)}) AND {scope.where("s")}
        ORDER BY s.rank, s.segment, s.track, s.start_ns
    """)
    _, thread = number_rows([calls[key] for key in ("rank", "segment", "track")])
    first = np.flatnonzero(starts_group([thread, calls["name"]]))
    last = np.append(first[1:], len(thread)) - 1
    works = np.bincount(thread, weights=1 - calls["asks"]) > 0
    waits = (calls["asks"][first] == 1) & works[thread[first]] & (last - first >= _LEAST_QUERIES - 1)
    waits &= calls["stop"][last] - calls["start"][first] >= _LEAST_POLL_NS
    first, last = first[waits], last[waits]
    who, name = number[calls["rank"][first]], calls["name"][first]
    where = {"file": calls["segment"][first], "track": calls["track"][first]}
    nodes.add(who, calls["start"][first], 5, _HOST, name, **where)
    nodes.add(who, calls["stop"][last], 6, _SYNC, name, target_low=calls["start"][first], sync=1, **where)


def _add_data_waits(run: Run, scope: Scope, nodes: _Collector, number: Ints, code: dict[str, int]) -> None:
    name = code[DATA_WAIT]
    for rank in scope.ranks_in(run):
        waits, steps = dataloader_spans(run, rank), host_windows(run, rank, scope)
        if scope.steps is not None:
            waits = intersect(waits, steps.intervals)
        who = np.full(len(waits.start), number[rank])
        nodes.add(who, waits.start, 2, _HOST, name)
        nodes.add(who, waits.end, 8, _DATALOADER, name)


def _add_host_collectives(nodes: _Collector, comm: HostCollectives, code: dict[str, int]) -> None:
    """Nodes where each host collective is called and where it starts, and where the host begins and ends to wait for
    it."""
    rows, waits = comm.rows, comm.waited_for
    called = np.where(rows.call_start == NONE, rows.start, np.minimum(rows.call_start, rows.start))
    nodes.add(comm.rank, called, 7, _HOST, comm.name)
    nodes.add(
        comm.rank, rows.start, 7, _HOST, comm.name, opens=rows.match, file=rows.segment, track=rows.track
    )
    who = comm.rank[waits]
    nodes.add(who, comm.stops[waits], 7, _HOST, code[COLLECTIVE_WAIT])
    nodes.add(who, rows.end[waits], 6, _HOST, comm.name[waits], match=rows.match[waits])


def with_targets(
    raw: dict[str, Ints], device: DeviceNodes, lags: tuple[Ints, Ints, Ints]
) -> tuple[HostNodes, Lags]:
    """Add to each synchronising call the device node it waited for: the one that ended last during the call."""
    target = np.full(len(raw["rank"]), NONE)
    syncs = np.flatnonzero(raw["sync"] == 1)
    if len(syncs):
        target[syncs] = ended_last(device, raw["rank"][syncs], raw["target_low"][syncs], raw["time"][syncs])
    returned = np.where(target != NONE, raw["time"] - follow(target, device.end, 0), NONE)
    host = HostNodes(
        raw["rank"], raw["time"], raw["kind"], raw["name"], target, raw["before"], raw["match"], raw["opens"],
        raw["step"], raw["is_end"].astype(bool),
    )  # fmt: skip
    return host, Lags(*lags, shortest(raw["rank"], returned, len(lags[0])))


def device_nodes(
    raw: dict[str, Any], launch: Ints, host: dict[str, Ints], rows: Collectives, number: Ints, ranks: int
) -> tuple[DeviceNodes, tuple[Ints, Ints, Ints]]:
    """The nodes of the events in `raw`, and by rank the shortest delays after a launch, on a stream and after another
    stream. The matches of `rows` are its entries."""
    rank, start, end = raw["rank"], raw["start"], raw["end"]
    _, stream = number_rows([rank, raw["segment"], raw["track"]])
    before = previous_on_stream(stream)
    never = np.iinfo(np.int64).min // 2
    ready, ended = follow(launch, host["time"], never), follow(before, end, never)
    after_launch = np.where(launch != NONE, start - ready, NONE)
    lag_launch = shortest(rank, after_launch, ranks)
    # Only where an event was launched before the one ahead of it ended does the gap belong to the stream.
    queued = (before != NONE) & (ready + lag_launch[rank] <= ended)
    lag_stream = shortest(rank, np.where(queued, start - ended, NONE), ranks)
    expected = np.maximum(ready + lag_launch[rank], ended + lag_stream[rank])
    is_comm = raw["kind"] == DEVICE_CLASSES.index("comm")
    on_device = rows.pick(rows.on_device)
    keys = event_key(number[on_device.rank], on_device.segment, on_device.slice)
    entry = entries_of(keys, event_key(rank, raw["segment"], raw["id"]))
    match = follow(entry, on_device.match, NONE)
    other = cross_stream(rank, stream, start, end, expected, may_be_causes(rank, launch, is_comm))
    work, comm = (np.flatnonzero((launch != NONE) & (is_comm == which)) for which in (False, True))
    work = work[np.argsort(launch[work], kind="stable")]  # host nodes are sorted by rank and time
    # c10d makes the kernel of a collective wait for the work that was launched last before it; the work that is
    # launched first after a receive uses what it brought.
    computed = _launched_before(rank, launch, work, comm)
    brought = _launched_before(rank, launch, comm[np.append(_receives(on_device), False)[entry[comm]]], work)
    brought[np.diff(brought, prepend=NONE) == 0] = NONE
    for nodes, cause in ((comm, computed), (work, brought)):
        known = (other[nodes] == NONE) & (cause != NONE) & (follow(cause, end, 0) <= start[nodes])
        other[nodes[known]] = cause[known]
    # An event of an earlier cycle of the profiler is not the cause: what ran since was not recorded.
    other = np.where(follow(other, raw["segment"], NONE) == raw["segment"], other, NONE)
    after_other = np.where(other != NONE, start - follow(other, end, 0), NONE)
    device = DeviceNodes(
        rank, raw["step"], stream, start, end, raw["kind"], raw["name"], launch, before, other, match
    )
    return device, (lag_launch, lag_stream, shortest(rank, after_other, ranks))


def _launched_before(rank: Ints, launch: Ints, earlier: Ints, later: Ints) -> Ints:
    """For each of the later nodes, the one of the earlier that was launched last before it on its rank, or NONE."""
    before = last_before(rank[earlier], launch[earlier], rank[later], launch[later] - 1)
    return np.append(earlier, NONE)[before]


def _receives(rows: Collectives) -> Mask:
    """By entry: whether a receive is in it."""
    brings = np.array([any(not message.is_send for message in batch) for batch in (*rows.batches, ())])
    received: Mask = (rows.kind == _RECV) | brings[rows.batch]
    return received


def build_graph(run: Run, scope: Scope, rows: Collectives) -> EventGraph:
    """The graph of the events in scope; each of the collectives `rows` is a match of its own."""
    ranks = tuple(scope.ranks_in(run))
    number = np.full(max(ranks, default=0) + 1, NONE)
    number[list(ranks)] = np.arange(len(ranks))
    raw = _device_columns(run, scope)
    raw["rank"] = number[raw["rank"]]
    on_host = rows.pick(~rows.on_device)
    host_columns, launch = host_nodes(run, scope, raw, on_host, number)
    device, delays = device_nodes(raw, launch, host_columns, rows, number, len(ranks))
    host, lags = with_targets(host_columns, device, delays)
    return EventGraph(ranks, [*all_names(run), *OWN_NAMES], device, host, lags)


_COLUMNS = (
    "segment", "id", "track", "start", "end", "step", "kind", "launch", "launch_start", "launch_end", "launch_track",
)  # fmt: skip


def _device_columns(run: Run, scope: Scope) -> dict[str, Any]:
    """Device activity by rank and start, with its launch call and the op it was launched for."""
    parts = []
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope)
        order = np.lexsort((events.id, events.start))
        name, op = events.work[order], events.op[order]
        parts.append(
            {
                "rank": np.full(len(events), rank),
                "name": name,
                "op": np.where(op == UNKNOWN, name, op),
                **{key: getattr(events, key)[order] for key in _COLUMNS},
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
