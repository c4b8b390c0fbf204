"""Writes the collectives of one segment: kind, time, process group, and the op that called each.

The metadata is in different places: NCCL's kernels and record_param_comms carry it; gloo's worker threads do not, and
only the c10d op that called them has it, or the header (`recorded_calls`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collective_kinds import BATCHED, OTHER, POINT_TO_POINT, element_bytes, kind_of
from rankscope.model import (
    COLLECTIVE_NAME_PATTERN,
    COLLECTIVES,
    HOST_COLLECTIVE_PATTERN,
    NCCL_CATEGORY,
    SYNC_CALL_PATTERN,
)
from rankscope.readers.columns import NO_TEXT
from rankscope.store.arrays import NONE, Ints
from rankscope.store.table_files import TableFiles, columns_of
from rankscope.text.json_values import listed
from rankscope.timeline.collectives.recorded_calls import RecordedCall, calls_of, complete_groups
from rankscope.timeline.json_arguments import arguments, integer_at, integer_of, text_at, text_of
from rankscope.timeline.slices import SliceTable, named

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "int": "int32", "long": "int64", "longint": "int64", "short": "int16", "char": "int8", "signedchar": "int8",
    "byte": "uint8", "unsignedchar": "uint8", "bool": "bool", "complexfloat": "complex64",
    "complexdouble": "complex128", "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
}  # fmt: skip
"""Type names in c10d's metadata, in C++ and in the names of NCCL's kernels."""

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
_PEERS = {"send": "Dst Rank", "recv": "Src Rank"}
_OF_MEMBERS = ("group_name", "group_description", "group_ranks", "group_size", "dtype")
"""What a batched kernel has from its sends and receives, where they all have the same."""
Columns = dict[str, list[Any]]
"""By field, an entry for each collective; None is null."""
_NOTHING: dict[str, Any] = dict.fromkeys((*_TEXTS, *_NUMBERS))

_DEVICE_NAME = re.compile(COLLECTIVE_NAME_PATTERN, re.ASCII)
_HOST_NAME = re.compile(HOST_COLLECTIVE_PATTERN, re.ASCII)
_CALL_RANGE = re.compile("^(?:c10d::|nccl[A-Z])")
"""NVTX ranges around launches: those of torch's ops and of NCCL's functions."""
_MOST_RANGES = 17
"""How many ranges around a launch are looked at."""
_DTYPE_IN_NAME = re.compile("_(f32|f64|f16|bf16)(?:_|$)")
_OP, _RECORD = "c10d::", "record_param_comms"


def write_collectives(files: TableFiles, source: SliceTable, recorded: Sequence[RecordedCall] = ()) -> None:
    """Write the table. `recorded` are the calls that the capture noted."""
    columns: Columns = {}
    records: list[dict[str, Any]] = []
    on_device, on_host = _communication(source)
    if len(on_device) or len(on_host):
        calls = _calls(source)
        columns = _device_columns(source, on_device, calls)
        records = _host_records(source, on_host, calls, recorded)
    of_host = columns_of(COLLECTIVES, records)
    files.write_columns(COLLECTIVES, {name: columns.get(name, []) + of_host[name] for name in of_host})


def _communication(source: SliceTable) -> tuple[Ints, Ints]:
    """The slices that communicate, on devices and on the host."""
    recording, slices = source.recording, source.slices
    kernels = np.flatnonzero(slices.category == recording.code("kernel"))
    communicates = recording.events.collective_of(slices.event[kernels]) != NO_TEXT
    communicates |= named(recording, slices.name[kernels], _DEVICE_NAME.search)
    annotations = np.flatnonzero(slices.category == recording.code("user_annotation"))
    of_host = named(recording, slices.name[annotations], _HOST_NAME.search)
    of_nccl = np.flatnonzero(slices.category == recording.code(NCCL_CATEGORY))
    return np.append(kernels[communicates], of_nccl), annotations[of_host]


@dataclass(frozen=True)
class Call:
    """An op of c10d, or the one inside it that records its arguments."""

    slice: int
    name: str
    op: int
    """The slice of the op around it."""

    @property
    def is_op(self) -> bool:
        return self.name.startswith(_OP)


def _calls(source: SliceTable) -> dict[int, Call]:
    """By slice."""
    recording, slices = source.recording, source.slices
    ops = np.flatnonzero(slices.category == recording.code("cpu_op"))
    wanted = ops[named(recording, slices.name[ops], lambda text: text.startswith(_OP) or text == _RECORD)]
    names = (recording.events.texts[code] for code in slices.name[wanted].tolist())
    rows = zip(wanted.tolist(), names, source.links.op[wanted].tolist(), strict=True)
    return {index: Call(index, name, op) for index, name, op in rows}


def _device_columns(source: SliceTable, kernels: Ints, calls: dict[int, Call]) -> Columns:
    """Kernels, with their own metadata, else that of the record_param_comms op that launched them."""
    slices, texts = source.slices, source.recording.events.texts
    ops = source.links.op[kernels]
    told = [arguments(text) for text in _metadata(source, kernels)]
    recorded = _metadata(source, ops)
    columns = _completed(_fields(told), recorded)
    names = [texts[code] for code in slices.name[kernels].tolist()]
    inner = [calls.get(op) for op in ops.tolist()]
    outer = [calls.get(call.op) if call else None for call in inner]
    outer = [call if call and call.is_op else None for call in outer]
    ranges = _range_names(source, kernels)
    kinds = []
    for number, (by, op) in enumerate(zip(outer, inner, strict=True)):
        of_op, of_nccl = ranges.get(number, (None, None))
        called = by.name if by else None, op.name if op and op.is_op else None
        kinds.append(_first_kind(*called, of_op, columns["collective"][number], of_nccl, names[number]))
    call = [by or op for by, op in zip(outer, inner, strict=True)]
    columns |= {
        "id": slices.event[kernels].tolist(),
        "track": slices.track[kernels].tolist(),
        "place": ["device"] * len(kernels),
        "kind": kinds,
        "start_ns": slices.time[kernels].tolist(),
        "dur_ns": np.maximum(slices.duration[kernels], 0).tolist(),
        "step": [_or_none(step) for step in source.step[kernels].tolist()],
        "call": [int(slices.event[op.slice]) if op else None for op in call],
        "call_ns": [int(slices.time[op.slice]) if op else None for op in call],
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


def _add_members(source: SliceTable, kernels: Ints, columns: Columns, calls: dict[int, Call]) -> None:
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
    recorded = [call for call in calls.values() if call.name == _RECORD and call.slice not in launching]
    index = np.array([call.slice for call in recorded], dtype=np.int64)
    by_thread: dict[int, list[tuple[int, int, Any]]] = {}
    for call, args in zip(recorded, map(arguments, _metadata(source, index)), strict=True):
        if text_at(args, "Collective name") in POINT_TO_POINT:
            posted = (int(slices.time[call.slice]), call.op if call.op in calls else call.slice, args)
            by_thread.setdefault(int(slices.track[call.slice]), []).append(posted)
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
    """The columns of a batched kernel, from the arguments of its sends and receives."""
    fields = _fields(members)
    columns: dict[str, Any] = {}
    for name in _OF_MEMBERS:
        values = {*fields[name]}
        columns[name] = values.pop() if len(values) == 1 else None
    columns["dtype"] = _dtype(columns["dtype"] or "")
    elements: dict[str, list[int]] = {"send": [], "recv": []}
    listed_members = []
    for number, (args, direction) in enumerate(zip(members, fields["collective"], strict=True)):
        count = fields["in_elements" if direction == "send" else "out_elements"][number]
        size = None if count is None else count * element_bytes(_dtype(fields["dtype"][number] or ""))
        elements[direction].append(count or 0)
        group = fields["group_name"][number]
        listed_members.append([direction, integer_at(args, _PEERS[direction]), group, size])
    peers = {peer for _, peer, _, _ in listed_members}
    return columns | {
        "in_elements": _total(elements["send"]),
        "out_elements": _total(elements["recv"]),
        "peer": peers.pop() if len(peers) == 1 else None,
        "members": json.dumps(listed_members, separators=(",", ":")),
    }


def _total(elements: Sequence[int]) -> int | None:
    total = sum(elements)
    return total if 0 < total <= _MOST_ELEMENTS else None


def _peer(kind: str, told: Any, recorded: str | None) -> int | None:
    peer = integer_at(told, _PEERS[kind])
    return integer_at(arguments(recorded), _PEERS[kind]) if peer is None else peer


def _metadata(source: SliceTable, index: NDArray[Any]) -> list[str | None]:
    """The arguments of these slices; None for those that are NONE or no collectives."""
    events = source.recording.events
    event = source.slices.event[index]
    has = (events.collective_of(event) != NO_TEXT) & (index != NONE)
    return [
        events.args.get(number) if is_collective else None
        for number, is_collective in zip(event.tolist(), has.tolist(), strict=True)
    ]


def _fields(arguments_of: list[Any]) -> Columns:
    """The columns that arguments tell."""
    given = [args if isinstance(args, dict) else {} for args in arguments_of]
    columns: Columns = {name: [text_of(args.get(key)) for args in given] for name, key in _TEXTS.items()}
    for name, key in _NUMBERS.items():
        columns[name] = [integer_of(args.get(key)) for args in given]
    return columns


def _range_names(source: SliceTable, kernels: Ints) -> dict[int, tuple[str | None, str | None]]:
    """For kernels without a known op (nsys) the innermost NVTX ranges around their launch: of c10d, and of NCCL.

    By the kernel's place in `kernels`.
    """
    links, slices, parent = source.links, source.slices, source.nesting.parent
    without = np.flatnonzero((links.op[kernels] == NONE) & (links.launch[kernels] != NONE))
    texts = source.recording.events.texts
    is_range = np.fromiter((_CALL_RANGE.search(text) is not None for text in texts), bool, len(texts))
    if not len(without) or not is_range[slices.name].any():
        return {}
    by_kernel: dict[int, list[str | None]] = {}
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
    return {number: (names[0], names[1]) for number, names in by_kernel.items()}


@cache
def _dtype(text: str) -> str | None:
    letters = re.sub("[^A-Za-z0-9]", "", text.replace("c10::", "")).lower()
    return _DTYPES.get(letters, letters or None)


def _host_records(
    source: SliceTable, on_host: Ints, calls: dict[int, Call], recorded: Sequence[RecordedCall]
) -> list[dict[str, Any]]:
    slices, texts = source.slices, source.recording.events.texts
    outermost = [
        call.slice
        for call in calls.values()
        if call.is_op and not (call.op in calls and calls[call.op].is_op)
    ]
    told = _recorded_calls(source, np.array(outermost, dtype=np.int64), recorded) if recorded else {}
    records = []
    for run in pair_host_collectives(source, on_host, np.array(outermost, dtype=np.int64)):
        at, call = run.slice, calls.get(run.call)
        end = int(slices.time[at]) + max(int(slices.duration[at]), 0)
        step = NONE if call is None else source.step[call.slice]
        records.append(
            {
                **_NOTHING,
                "id": int(slices.event[at]),
                "track": int(slices.track[at]),
                "place": "host",
                "kind": (call and kind_of(call.name)) or kind_of(texts[slices.name[at]]) or OTHER,
                "start_ns": run.begin_ns,
                "dur_ns": max(end - run.begin_ns, 0),
                "step": _or_none(source.step[at] if step == NONE else step),
                "call": int(slices.event[call.slice]) if call else None,
                "call_ns": int(slices.time[call.slice]) if call else None,
                "dtype": _dtype(run.type),
                "in_elements": _or_none(run.elements),
                "peer": None,
                "members": None,
            }
        )
        if run.call in told:
            noted = told[run.call]
            records[-1] |= {name: value for name, value in noted.columns().items() if value is not None}
            records[-1]["dtype"] = _dtype(run.type or noted.dtype)
    if told:
        complete_groups(records)
    return records


def _recorded_calls(
    source: SliceTable, outermost: Ints, recorded: Sequence[RecordedCall]
) -> dict[int, RecordedCall]:
    """What the capture noted, by the slice of the op of c10d."""
    slices, recording = source.slices, source.recording
    ops = _by_time(source, outermost)
    kinds = [kind_of(recording.events.texts[code]) or OTHER for code in slices.name[ops].tolist()]
    told = calls_of(recorded, kinds, slices.time[ops] + recording.origin_ns)
    return {op: noted for op, noted in zip(ops.tolist(), told, strict=True) if noted is not None}


def _or_none(number: Any) -> int | None:
    return None if number == NONE else int(number)


_SYNC_CALL = re.compile(SYNC_CALL_PATTERN)
_MOST_ELEMENTS = 1 << 60
"""More than any tensor has; sizes whose product is larger are made up."""


@dataclass(frozen=True)
class Side:
    """Calls, or the runs on worker threads that they led to, in order of time."""

    id: Ints
    start: Ints
    kind: NDArray[np.str_]
    elements: Ints
    """Number of input elements; NONE if not recorded."""

    def keys(self, by_size: bool) -> NDArray[np.str_]:
        """Keys that are equal in a run and its call."""
        if not by_size:
            return self.kind
        return np.char.add(np.char.add(self.kind, " "), self.elements.astype(str))


@dataclass(frozen=True)
class HostRun:
    """A collective on the host."""

    slice: int
    begin_ns: int
    """After the synchronisation calls at its beginning."""
    elements: int
    """NONE if not recorded."""
    type: str
    call: int
    """The slice of the op that called it, or NONE."""


def pair_host_collectives(source: SliceTable, on_host: Ints, outermost_calls: Ints) -> list[HostRun]:
    """Start, size, type and call of each host collective, in order of time."""
    if len(on_host) == 0:
        return []
    slices = source.slices
    begin = _begins(source, on_host)
    on_host = _by_time(source, on_host)
    outermost_calls = _by_time(source, outermost_calls)
    texts = source.recording.events.texts
    run_args, call_args = _args(source, on_host), _args(source, outermost_calls)
    run_names = [texts[code] for code in slices.name[on_host].tolist()]
    call_names = [texts[code] for code in slices.name[outermost_calls].tolist()]
    run_dims = [text_at(args, "Input Dims") for args in run_args]
    call_dims = [text_at(args, "Input Dims") for args in call_args]
    runs = _side(source, on_host, run_names, map(run_elements, run_dims))
    calls = _side(source, outermost_calls, call_names, map(call_elements, call_names, call_dims))
    around = source.links.op[on_host].astype(np.int64)
    call = pair_calls(runs, calls, np.where(np.isin(around, calls.id), around, NONE))
    types = [_first_type(text_at(args, "Input type")) for args in run_args]
    rows = zip(on_host.tolist(), runs.elements.tolist(), types, call.tolist(), strict=True)
    return [HostRun(at, begin[at], elements, kind, by) for at, elements, kind, by in rows]


def _by_time(source: SliceTable, index: Ints) -> Ints:
    slices = source.slices
    return index[np.lexsort((slices.event[index], slices.time[index]))]


def _args(source: SliceTable, index: Ints) -> list[Any]:
    events = source.recording.events
    return [arguments(events.args.get(event)) for event in source.slices.event[index].tolist()]


def _begins(source: SliceTable, on_host: Ints) -> dict[int, int]:
    """When each host collective begins: after the synchronisation calls before its first other child."""
    slices, parent = source.slices, source.nesting.parent
    begin = dict(zip(on_host.tolist(), slices.time[on_host].tolist(), strict=True))
    children = np.flatnonzero(np.isin(parent, on_host))
    waits = named(source.recording, slices.name[children], _SYNC_CALL.search)
    work: dict[int, int] = {}
    for at, time in zip(
        parent[children[~waits]].tolist(), slices.time[children[~waits]].tolist(), strict=True
    ):
        work[at] = min(work.get(at, time), time)
    waiting = children[waits]
    ends = slices.time[waiting] + slices.duration[waiting]
    rows = zip(parent[waiting].tolist(), slices.time[waiting].tolist(), ends.tolist(), strict=True)
    for at, start, end in rows:
        if at not in work or start < work[at]:
            begin[at] = max(begin[at], end)
    return begin


def pair_calls(runs: Side, calls: Side, nested: Ints) -> Ints:
    """The call of each run; NONE for runs called before the recording started.

    `known` has the calls that are known from nesting. The other runs and calls are paired in order, first those of
    the same kind and size, then the rest by kind only.
    """
    paired: Ints = nested.copy()
    is_open = ~np.isin(calls.id, nested[nested != NONE])
    if "reduce_scatter" not in runs.kind:  # gloo runs it as an all_reduce
        as_run = np.where(calls.kind == "reduce_scatter", "all_reduce", calls.kind)
        calls = Side(calls.id, calls.start, as_run, calls.elements)
    for by_size in (True, False):
        run_keys, call_keys = runs.keys(by_size), calls.keys(by_size)
        for key in np.intersect1d(run_keys[paired == NONE], call_keys[is_open]):
            mine = np.flatnonzero((run_keys == key) & (paired == NONE))
            theirs = np.flatnonzero((call_keys == key) & is_open)
            # Skip the fewest runs at the beginning so that no run starts before its call.
            earlier = np.searchsorted(runs.start[mine], calls.start[theirs], side="left")
            first = max(0, int((earlier - np.arange(len(theirs))).max()))
            count = max(0, min(len(mine) - first, len(theirs)))
            paired[mine[first : first + count]] = calls.id[theirs[:count]]
            is_open[theirs[:count]] = False
    return paired


@cache
def run_elements(dims: str | None) -> int:
    """Number of elements of all tensors in the arguments of gloo's annotation."""
    return _count(listed(dims))


@cache
def call_elements(name: str, dims: str | None) -> int:
    """Number of input elements of a c10d op. Ops whose output has another size list the output first."""
    given = listed(dims)
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


def _side(source: SliceTable, index: Ints, names: list[str], elements: Iterable[int]) -> Side:
    return Side(
        index.astype(np.int64),
        source.slices.time[index],
        np.array([kind_of(name) or OTHER for name in names], dtype=str),
        np.fromiter(elements, dtype=np.int64),
    )
