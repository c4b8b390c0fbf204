"""Writes the collectives of one segment: kind, time, process group, and the op that called each.

The metadata is in different places: NCCL's kernels and record_param_comms carry it; gloo's worker threads do not, and
only the c10d op that called them has it, or the header: there the capture writes group, sequence number and peer of
gloo's collectives (`inapp.collective_calls` describes the field).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collective_kinds import BATCHED, KINDS, OTHER, POINT_TO_POINT, element_bytes, kind_of
from rankscope.model import (
    COLLECTIVE_NAME_PATTERN,
    COLLECTIVES,
    COMMUNICATING_CALLS,
    HOST_COLLECTIVE_PATTERN,
    NCCL_CATEGORY,
    SYNC_CALL_PATTERN,
)
from rankscope.readers.columns import NO_TEXT
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, number_rows
from rankscope.store.table_files import TableFiles, columns_of
from rankscope.text.json_values import arguments, integer_at, integer_of, listed, text_at, text_of
from rankscope.timeline.collectives.entries import Group, header_groups
from rankscope.timeline.nesting import follow
from rankscope.timeline.slices import SliceTable, named

_TEXTS = {
    "group_name": "Process Group Name",
    "group_description": "Process Group Description",
    "group_ranks": "Process Group Ranks",
    "dtype": "dtype",
    "in_splits": "In split size",
    "out_splits": "Out split size",
    "collective": "Collective name",
}
_NUMBERS = {
    "group_size": "Group size",
    "seq": "Seq",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
}
_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "int": "int32", "long": "int64", "longint": "int64", "short": "int16", "char": "int8", "signedchar": "int8",
    "byte": "uint8", "unsignedchar": "uint8", "bool": "bool", "complexfloat": "complex64",
    "complexdouble": "complex128", "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Type names in c10d's metadata, in C++ and in the names of NCCL's kernels."""
_PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
_OF_GROUP = ("group_name", "group_description", "group_ranks", "group_size")
Columns = dict[str, list[Any]]
"""By field, an entry for each collective; None is null."""
_DEVICE_NAME = re.compile(COLLECTIVE_NAME_PATTERN, re.ASCII)
_HOST_NAME = re.compile(HOST_COLLECTIVE_PATTERN, re.ASCII)
_SYNC_CALL = re.compile(SYNC_CALL_PATTERN)
_CALL_RANGE = re.compile("^(?:c10d::|nccl[A-Z])")
"""NVTX ranges around launches: those of torch's ops and of NCCL's functions."""
_DTYPE_IN_NAME = re.compile("_(f32|f64|f16|bf16)(?:_|$)")
_OP, _RECORD = COMMUNICATING_CALLS
_MOST_RANGES = 17
"""How many ranges around a launch are looked at."""
_MOST_ELEMENTS = 1 << 60
"""More than any tensor has; sizes whose product is larger are made up."""
_MOST_NS = 1 << 62
_SLACK_NS = 20_000
"""Kineto's clock and that of the calls in the header differ by microseconds."""


def write_collectives(files: TableFiles, source: SliceTable, recorded: Sequence[RecordedCall] = ()) -> None:
    """Write the table. `recorded` are the calls that the capture noted."""
    recording, slices, texts = source.recording, source.slices, source.recording.events.texts
    kernels = np.flatnonzero(slices.category == recording.code("kernel"))
    communicates = (
        recording.events.at("collective", recording.events.places(slices.event[kernels])) != NO_TEXT
    )
    communicates |= named(recording, slices.name[kernels], _DEVICE_NAME.search)
    ops = np.flatnonzero(slices.category == recording.code("cpu_op"))
    ops = ops[named(recording, slices.name[ops], lambda text: text.startswith(COMMUNICATING_CALLS))]
    communicates |= np.isin(source.links.op[kernels], ops)
    of_nccl = np.flatnonzero(slices.category == recording.code(NCCL_CATEGORY))
    on_device = np.append(kernels[communicates], of_nccl)
    annotations = np.flatnonzero(slices.category == recording.code("user_annotation"))
    on_host = annotations[named(recording, slices.name[annotations], _HOST_NAME.search)]
    columns: Columns = {}
    records: list[dict[str, Any]] = []
    if len(on_device) or len(on_host):
        calls = {at: texts[code] for at, code in zip(ops.tolist(), slices.name[ops].tolist(), strict=True)}
        columns = _device_columns(source, on_device, calls)
        records = _host_records(source, on_host, calls, recorded) if len(on_host) else []
    of_host = columns_of(COLLECTIVES, records)
    files.write_columns(COLLECTIVES, {name: columns.get(name, []) + of_host[name] for name in of_host})


def _or_none(numbers: NDArray[Any]) -> list[int | None]:
    return [None if number == NONE else number for number in numbers.tolist()]


# On devices: kernels, with their own metadata, else that of the record_param_comms op that launched them.
# `calls` are the ops of c10d, and those inside them that record their arguments: by slice the name.


def _device_columns(source: SliceTable, kernels: Ints, calls: Mapping[int, str]) -> Columns:
    slices, texts, op_around = source.slices, source.recording.events.texts, source.links.op
    ops = op_around[kernels]
    told = [arguments(text) for text in _metadata(source, kernels)]
    recorded = _metadata(source, ops)
    columns = _completed(_fields(told), recorded)
    names = [texts[code] for code in slices.name[kernels].tolist()]
    ranges = _range_names(source, kernels)
    kinds, called_by = [], np.full(len(kernels), NONE)
    for number, op in enumerate(ops.tolist()):
        inner, outer = calls.get(op, ""), ""
        if inner:
            around = int(op_around[op])
            outer = calls.get(around, "")
            called_by[number] = around if outer.startswith(_OP) else op
        of_ops = (name if name.startswith(_OP) else None for name in (outer, inner))
        of_range, of_nccl = ranges.get(number, (None, None))
        kinds.append(_first_kind(*of_ops, of_range, columns["collective"][number], of_nccl, names[number]))
    columns |= {
        "id": slices.event[kernels].tolist(),
        "track": slices.track[kernels].tolist(),
        "place": ["device"] * len(kernels),
        "kind": kinds,
        "start_ns": slices.time[kernels].tolist(),
        "dur_ns": np.maximum(slices.duration[kernels], 0).tolist(),
        "step": _or_none(source.step[kernels]),
        "call": _or_none(follow(called_by, slices.event)),
        "call_ns": _or_none(follow(called_by, slices.time)),
        "dtype": [
            _dtype(_dtype_in_name(name) if dtype is None else dtype)
            for name, dtype in zip(names, columns["dtype"], strict=True)
        ],
        "in_splits": [None if splits == "[]" else splits for splits in columns["in_splits"]],
        "out_splits": [None if splits == "[]" else splits for splits in columns["out_splits"]],
        "peer": [
            _peer(kind, args, text) if kind in _PEERS else None
            for kind, args, text in zip(kinds, told, recorded, strict=True)
        ],
        "members": [None] * len(kernels),
    }
    _add_members(source, kernels, columns, calls)
    return columns


def _completed(columns: Columns, recorded: list[str | None]) -> Columns:
    """The fields that a kernel lacks are those of its op, where that has them: to parse its arguments takes longer than
    to look for their keys."""
    told_by_op: dict[int, Any] = {}
    for name, key in (*_TEXTS.items(), *_NUMBERS.items()):
        quoted, column, convert = f'"{key}"', columns[name], text_of if name in _TEXTS else integer_of
        for number, text in enumerate(recorded):
            if text is not None and column[number] is None and quoted in text:
                if number not in told_by_op:
                    told_by_op[number] = arguments(text)
                if isinstance(told_by_op[number], dict):
                    column[number] = convert(told_by_op[number].get(key))
    return columns


@cache
def _first_kind(*names: str | None) -> str:
    """The kind that the first of these names tells."""
    return next((kind for name in names if name is not None and (kind := kind_of(name))), OTHER)


@cache
def _dtype_in_name(name: str) -> str:
    return match[1] if (match := _DTYPE_IN_NAME.search(name)) else ""


def _add_members(source: SliceTable, kernels: Ints, columns: Columns, calls: Mapping[int, str]) -> None:
    """Name the sends and receives of batched kernels, which have no arguments.

    They are the calls on the launching thread since the last such launch, without those that launched a kernel.
    """
    slices, launch = source.slices, source.links.launch[kernels]
    batched = [
        number
        for number, (kind, name) in enumerate(zip(columns["kind"], columns["collective"], strict=True))
        if kind == BATCHED and name is None and launch[number] != NONE
    ]
    if not batched:
        return
    launching = set(source.links.op[kernels].tolist())
    posted = [at for at, name in calls.items() if name == _RECORD and at not in launching]
    by_thread: dict[int, list[tuple[int, int, Any]]] = {}
    for at, args in zip(
        posted, map(arguments, _metadata(source, np.array(posted, dtype=np.int64))), strict=True
    ):
        if text_at(args, "Collective name") in POINT_TO_POINT:
            around = int(source.links.op[at])
            post = (int(slices.time[at]), around if around in calls else at, args)
            by_thread.setdefault(int(slices.track[at]), []).append(post)
    for posts in by_thread.values():
        posts.sort(key=lambda post: post[0], reverse=True)
    for number in sorted(batched, key=lambda number: int(slices.time[launch[number]])):
        at = int(launch[number])
        posts, members = by_thread.get(int(slices.track[at]), []), []
        while posts and posts[-1][0] <= slices.time[at]:
            members.append(posts.pop())
        if members:
            _, op, _ = members[0]
            posted_by = {"call": int(slices.event[op]), "call_ns": int(slices.time[op])}
            for name, value in (_of_members([args for _, _, args in members]) | posted_by).items():
                columns[name][number] = value


def _of_members(members: list[Any]) -> dict[str, Any]:
    """The columns of a batched kernel, from the arguments of its sends and receives: what all have, or their total."""
    fields = _fields(members)
    columns: dict[str, Any] = {
        name: fields[name][0] if len({*fields[name]}) == 1 else None for name in (*_OF_GROUP, "dtype")
    }
    columns["dtype"] = _dtype(columns["dtype"] or "")
    totals = {"in_elements": 0, "out_elements": 0}
    listed_members = []
    for number, (args, direction) in enumerate(zip(members, fields["collective"], strict=True)):
        counted = "in_elements" if direction == "send" else "out_elements"
        count = fields[counted][number]
        size = None if count is None else count * element_bytes(_dtype(fields["dtype"][number] or ""))
        totals[counted] += count or 0
        peer, group = integer_at(args, _PEERS[direction]), fields["group_name"][number]
        listed_members.append([direction, peer, group, size])
    peers = {peer for _, peer, _, _ in listed_members}
    return {
        **columns,
        **{name: total if 0 < total <= _MOST_ELEMENTS else None for name, total in totals.items()},
        "peer": peers.pop() if len(peers) == 1 else None,
        "members": json.dumps(listed_members, separators=(",", ":")),
    }


def _peer(kind: str, told: Any, recorded: str | None) -> int | None:
    peer = integer_at(told, _PEERS[kind])
    return integer_at(arguments(recorded), _PEERS[kind]) if peer is None else peer


def _metadata(source: SliceTable, index: NDArray[Any]) -> list[str | None]:
    """The arguments of these slices; None for those that are NONE or no collectives."""
    events = source.recording.events
    event = source.slices.event[index]
    has = (events.at("collective", events.places(event)) != NO_TEXT) & (index != NONE)
    return [
        events.args.get(number) if is_collective else None
        for number, is_collective in zip(event.tolist(), has.tolist(), strict=True)
    ]


def _fields(arguments_of: list[Any]) -> Columns:
    """The columns that arguments tell."""
    given = [args if isinstance(args, dict) else {} for args in arguments_of]
    return {name: [text_of(args.get(key)) for args in given] for name, key in _TEXTS.items()} | {
        name: [integer_of(args.get(key)) for args in given] for name, key in _NUMBERS.items()
    }


def _range_names(source: SliceTable, kernels: Ints) -> dict[int, list[str | None]]:
    """For kernels without a known op (nsys) the innermost NVTX ranges around their launch: of c10d, and of NCCL.

    By the kernel's place in `kernels`.
    """
    links, slices, parent = source.links, source.slices, source.nesting.parent
    without = np.flatnonzero((links.op[kernels] == NONE) & (links.launch[kernels] != NONE))
    texts = source.recording.events.texts
    is_range = np.fromiter((_CALL_RANGE.search(text) is not None for text in texts), bool, len(texts))
    by_kernel: dict[int, list[str | None]] = {}
    if not len(without) or not is_range[slices.name].any():
        return by_kernel
    at = parent[links.launch[kernels[without]]]
    for _ in range(_MOST_RANGES):
        inside = at != NONE
        without, at = without[inside], at[inside]
        for number, code in zip(without.tolist(), slices.name[at].tolist(), strict=True):
            if is_range[code]:
                names = by_kernel.setdefault(number, [None, None])
                index = 0 if texts[code].startswith(_OP) else 1
                names[index] = names[index] or texts[code]
        at = parent[at]
    return by_kernel


@cache
def _dtype(text: str) -> str | None:
    letters = re.sub("[^A-Za-z0-9]", "", text.replace("c10::", "")).lower()
    return _DTYPES.get(letters, letters or None)


# On the host: annotations of gloo's worker threads, and MPI's functions.


@dataclass(frozen=True)
class RecordedCall:
    """What the capture noted about a call. Each is an op of c10d in the trace: a collective is noted inside its op, a
    send or receive just before it."""

    time_ns: int
    """By the clock of the trace's events."""
    kind: str
    dtype: str
    columns: dict[str, Any]
    """What it adds to a row of the table; None is nothing."""


def recorded_calls(header: Mapping[str, Any], clock_base_ns: int) -> list[RecordedCall]:
    """The calls in order of time; none where the header has no such field, or a damaged one."""
    groups = {group.name: group for group in header_groups(header)}
    what, calls = [], []
    try:
        field = header["rankscope"]["collectives"]
        since = int(field["since_unix_ns"]) - clock_base_ns
        for name, group_name, peer, dtype, elements in field["what"]:
            kind, group = kind_of(str(name)) or "", groups.get(str(group_name), Group(str(group_name)))
            columns = {
                "group_name": group.name,
                "group_description": group.description or None,
                "group_ranks": None if group.ranks is None else str(list(group.ranks)),
                "group_size": group.size,
                "peer": None if peer is None else int(peer),
                "out_elements" if kind == "recv" else "in_elements": None
                if elements is None
                else int(elements),
            }
            what.append((kind, str(dtype or "").replace("torch.", ""), columns))
        for us, index, seq in field["calls"]:
            kind, dtype, columns = what[index]
            columns = columns | {"seq": None if seq is None else int(seq)}
            calls.append(RecordedCall(since + int(us) * 1000, kind, dtype, columns))
    except (KeyError, TypeError, ValueError, IndexError):
        return []
    return sorted((call for call in calls if abs(call.time_ns) < _MOST_NS), key=lambda call: call.time_ns)


def calls_of(
    recorded: Sequence[RecordedCall], kinds: Sequence[str], starts: Ints
) -> list[RecordedCall | None]:
    """For each op of c10d, in order of time, what was recorded about it.

    gloo runs a reduce_scatter as an all_reduce and records it as such.
    """
    of_op: list[RecordedCall | None] = [None] * len(kinds)
    kind_names = np.array(kinds, dtype=str)
    for kind in {call.kind for call in recorded}:
        wanted = [kind, "reduce_scatter"] if kind == "all_reduce" else [kind]
        index = np.flatnonzero(np.isin(kind_names, wanted))
        mine = [call for call in recorded if call.kind == kind]
        times = np.array([call.time_ns for call in mine], dtype=np.int64)
        if kind in POINT_TO_POINT:
            at = np.searchsorted(starts[index], times - _SLACK_NS)
        else:
            at = np.searchsorted(starts[index], times + _SLACK_NS, side="right") - 1
        inside = (at >= 0) & (at < len(index))
        once = np.bincount(at[inside], minlength=len(index)) == 1
        for call, position in zip(mine, at.tolist(), strict=True):
            if 0 <= position < len(index) and once[position]:
                of_op[int(index[position])] = call
    return of_op


def complete_groups(records: Sequence[dict[str, Any]]) -> None:
    """Give the runs of a worker thread before the first recorded call the group of the others, and earlier numbers.

    Every worker thread belongs to one group. The recorder forgets the oldest calls of a long window.
    """
    records = [record for record in records if record["kind"] not in POINT_TO_POINT]
    of_track: dict[int, set[str]] = {}
    for record in records:
        if record["group_name"] is not None:
            of_track.setdefault(record["track"], set()).add(record["group_name"])
    by_group: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        names = of_track.get(record["track"], set())
        if len(names) == 1:
            by_group.setdefault(min(names), []).append(record)
    for runs in by_group.values():
        runs.sort(key=lambda record: record["start_ns"])
        recorded_from = next(number for number, record in enumerate(runs) if record["group_name"] is not None)
        first = runs[recorded_from]
        for number, record in enumerate(runs[:recorded_from]):
            record |= {name: first[name] for name in _OF_GROUP}
            record["seq"] = None if first["seq"] is None else first["seq"] - recorded_from + number


def _host_records(
    source: SliceTable, on_host: Ints, calls: Mapping[int, str], recorded: Sequence[RecordedCall]
) -> list[dict[str, Any]]:
    slices, texts, op_around = source.slices, source.recording.events.texts, source.links.op

    def in_order(index: Ints) -> Ints:
        return index[np.lexsort((slices.event[index], slices.time[index]))]

    def described(index: Ints) -> tuple[list[Any], list[str], Ints]:
        """The arguments, the kinds, and the numbers of elements of some slices."""
        names = [texts[code] for code in slices.name[index].tolist()]
        args = [arguments(source.recording.events.args.get(event)) for event in slices.event[index].tolist()]
        dims = (text_at(each, "Input Dims") for each in args)
        elements = np.fromiter(map(_elements, names, dims), dtype=np.int64)
        return args, [kind_of(name) or OTHER for name in names], elements

    def is_op(slice: int) -> bool:
        return calls.get(slice, "").startswith(_OP)

    on_host = in_order(on_host)
    outermost = in_order(
        np.array([at for at in calls if is_op(at) and not is_op(int(op_around[at]))], dtype=np.int64)
    )
    args, run_kinds, run_elements = described(on_host)
    _, call_kinds, call_elements = described(outermost)
    around = op_around[on_host].astype(np.int64)
    called_by = _pair_calls(
        np.where(np.isin(around, outermost), around, NONE), outermost, slices.time[on_host], slices.time[outermost],
        (run_kinds, run_elements), (call_kinds, call_elements),
    )  # fmt: skip
    noted_of: dict[int, RecordedCall | None] = {}
    if recorded:
        times = slices.time[outermost] + source.recording.origin_ns
        noted_of = dict(zip(outermost.tolist(), calls_of(recorded, call_kinds, times), strict=True))
    begin = _begins(source, on_host)
    end = np.maximum(slices.time[on_host] + np.maximum(slices.duration[on_host], 0), begin)
    step = follow(called_by, source.step)
    columns = {
        "id": slices.event[on_host].tolist(),
        "track": slices.track[on_host].tolist(),
        "start_ns": begin.tolist(),
        "dur_ns": (end - begin).tolist(),
        "step": _or_none(np.where(step == NONE, source.step[on_host], step)),
        "call": _or_none(follow(called_by, slices.event)),
        "call_ns": _or_none(follow(called_by, slices.time)),
        "in_elements": _or_none(run_elements),
    }
    records = []
    blank = dict.fromkeys(field.name for field in COLLECTIVES.fields)
    rows = zip(zip(*columns.values(), strict=True), called_by.tolist(), run_kinds, args, strict=True)
    for row, call, kind, given in rows:
        noted = noted_of.get(call)
        kind_of_call = kind_of(calls[call]) if call != NONE else None
        dtype = _first_type(text_at(given, "Input type")) or (noted.dtype if noted else "")
        record = {**blank, **dict(zip(columns, row, strict=True)), "place": "host"}
        record |= {"kind": kind_of_call or kind, "dtype": _dtype(dtype)}
        if noted:
            record |= {name: value for name, value in noted.columns.items() if value is not None}
        records.append(record)
    if any(noted_of.values()):
        complete_groups(records)
    return records


def _begins(source: SliceTable, on_host: Ints) -> Ints:
    """When each host collective begins: after the synchronisation calls before its first other child."""
    slices, parent = source.slices, source.nesting.parent
    begin = slices.time[on_host].astype(np.int64)
    by_slice = np.argsort(on_host)
    children = np.flatnonzero(np.isin(parent, on_host))
    at = by_slice[np.searchsorted(on_host, parent[children], sorter=by_slice)]
    time = slices.time[children]
    waits = named(source.recording, slices.name[children], _SYNC_CALL.search)
    work = np.full(len(begin), np.iinfo(np.int64).max)
    np.minimum.at(work, at[~waits], time[~waits])
    waits &= time < work[at]
    np.maximum.at(begin, at[waits], (time + slices.duration[children])[waits])
    return begin


def _pair_calls(
    nested: Ints, calls: Ints, run_start: Ints, call_start: Ints,
    run: tuple[list[str], Ints], call: tuple[list[str], Ints],
) -> Ints:  # fmt: skip
    """The call of each run on a worker thread; NONE for runs called before the recording started.

    `nested` has the calls that are known from nesting. The other runs and calls, of which kinds and sizes are given,
    are paired in order, first those of the same kind and size, then the rest by kind only.
    """
    paired: Ints = nested.copy()
    is_open = ~np.isin(calls, nested[nested != NONE])
    run_kinds, call_kinds = run[0], call[0]
    if "reduce_scatter" not in run_kinds:  # gloo runs it as an all_reduce
        call_kinds = ["all_reduce" if kind == "reduce_scatter" else kind for kind in call_kinds]
    kinds = np.array([KINDS.index(kind) for kind in (*run_kinds, *call_kinds)], dtype=np.int64)
    for columns in ([kinds, np.concatenate([run[1], call[1]])], [kinds]):
        keys = number_rows(columns)[1]
        run_keys, call_keys = keys[: len(run_start)], keys[len(run_start) :]
        for key in {*run_keys[paired == NONE].tolist()} & {*call_keys[is_open].tolist()}:
            mine = np.flatnonzero((run_keys == key) & (paired == NONE))
            theirs = np.flatnonzero((call_keys == key) & is_open)
            # Skip the fewest runs at the beginning so that no run starts before its call.
            earlier = np.searchsorted(run_start[mine], call_start[theirs], side="left")
            first = max(0, int((earlier - np.arange(len(theirs))).max()))
            count = max(0, min(len(mine) - first, len(theirs)))
            paired[mine[first : first + count]] = calls[theirs[:count]]
            is_open[theirs[:count]] = False
    return paired


@cache
def _elements(name: str, dims: str | None) -> int:
    """Number of elements of all tensors in the arguments of gloo's annotation; of a c10d op, of its input. Ops whose
    output has another size list the output first."""
    given = listed(dims)
    if not name.startswith(_OP):
        return _count(given)
    second = any(part in name for part in ("gather", "_reduce_scatter_base", "alltoall"))
    return _count(given[second]) if len(given) > second else NONE


def _count(dims: Any) -> int:
    """Number of elements of a tensor ([2, 3]) or a list of tensors ([[2, 3], [4]]); NONE without a tensor."""
    if not isinstance(dims, list) or not dims:
        return NONE
    is_tensor = all(isinstance(size, int) for size in dims)
    elements = prod(dims) if is_tensor else sum(max(_count(part), 0) for part in dims)
    return elements if 0 <= elements <= _MOST_ELEMENTS else NONE


@cache
def _first_type(types: str | None) -> str:
    return next((text for text in listed(types) if isinstance(text, str)), "")
