"""Slices (events with a duration): taken from the events, linked, and written as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.capture.schedule import unfinished_step
from rankscope.model import (
    GPU_CATEGORIES,
    LAUNCH_CATEGORIES,
    NUMBERED_STEP_PATTERN,
    PROFILER_STEP_PATTERN,
)
from rankscope.readers.columns import NULL
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, Ints, Mask, number_rows
from rankscope.store.event_log import NARROW_NULL
from rankscope.store.parquet_writer import Chunk, Coded, Numbers
from rankscope.timeline.nesting import Indices, Nesting, follow, nearest_ancestor, slice_at
from rankscope.timeline.recording import Recording
from rankscope.timeline.step_times import StepTimes, step_times, steps_of_gpu_events

_TIMES_AT_ONCE = 1 << 18
"""So that arrays that are needed only for a moment are small."""


_DENSE = 8
"""Largest ratio of the largest id to the number of ids for which a table of all ids is used."""


def match_first(keys: NDArray[Any], wanted: NDArray[Any]) -> Indices:
    """For each wanted key, the index of its first occurrence in `keys`, or NONE. Keys below 1 never match."""
    largest = int(keys.max(initial=0))
    if largest <= _DENSE * len(keys):  # ids are mostly counted up: a table of all of them is small
        first = np.full(max(largest, 0) + 1, NONE, dtype=np.int32)
        first[np.maximum(keys, 0)[::-1]] = np.arange(len(keys) - 1, -1, -1, dtype=np.int32)
        first[0] = NONE
        return first[np.where((wanted > 0) & (wanted <= largest), wanted, 0)]
    result = np.full(len(wanted), NONE, dtype=np.int32)
    kind = np.promote_types(keys.dtype, wanted.dtype)  # searchsorted would convert all keys for every piece
    ordered, order = keys.astype(kind, copy=False), np.arange(len(keys), dtype=np.int32)
    wanted = wanted.astype(kind, copy=False)
    if (keys < 1).any():
        order = order[keys > 0]
        ordered = ordered[order]
    if (ordered[1:] < ordered[:-1]).any():  # else they are in order already
        by_key = np.argsort(ordered, kind="stable")
        ordered, order = ordered[by_key], order[by_key]
    for begin in range(0, len(wanted), _TIMES_AT_ONCE):
        piece = wanted[begin : begin + _TIMES_AT_ONCE]
        at = np.minimum(np.searchsorted(ordered, piece), len(ordered) - 1)
        matched = (ordered[at] == piece) & (piece > 0)
        result[begin : begin + len(piece)][matched] = order[at[matched]]
    return result


@dataclass(frozen=True)
class Links:
    """For each slice the index of another slice, or NONE."""

    launch: Indices
    op: Indices
    python: Indices
    module: Indices


@dataclass(frozen=True)
class SliceKinds:
    """What each slice is."""

    is_gpu: Mask
    is_launch: Mask
    is_op: Mask
    is_line: Mask
    is_own_line: Mask
    is_module: Mask


def link(
    recording: Recording, slices: SliceColumns, nesting: Nesting, kinds: SliceKinds, pool: Executor
) -> Links:
    """Link device activity to its launch by correlation id, and launches and ops by nesting.

    Where the launch is not in the file, or not inside an op, the External id links to the op.
    """

    def ids(column: str, index: NDArray[Any]) -> NDArray[Any]:
        return recording.events.at(column, recording.events.places(slices.event[index]))

    wanted = kinds.is_op, kinds.is_line, kinds.is_own_line, kinds.is_module
    op_around, *lines_around, module = (pool.submit(nearest_ancestor, nesting, each) for each in wanted)
    gpu, launches = (np.flatnonzero(mask).astype(np.int32) for mask in (kinds.is_gpu, kinds.is_launch))
    launch = np.full(len(slices), NONE, dtype=np.int32)
    launch[gpu] = follow(match_first(ids("correlation", launches), ids("correlation", gpu)), launches)
    op = op_around.result()
    op = _with(op, gpu, follow(launch[gpu], op))
    ops = np.flatnonzero(kinds.is_op)
    if len(ops):
        without = np.flatnonzero((kinds.is_gpu | kinds.is_launch) & (op == NONE))
        by_id = match_first(ids("external_id", ops), ids("external_id", without))
        op = _with(op, without, follow(by_id, ops))
    any_line, own_line = (line.result() for line in lines_around)
    # The innermost line of user code around each slice, else the innermost line.
    line = np.where(own_line != NONE, own_line, any_line) if kinds.is_line.any() else own_line
    frames = []
    for nearest in (line, module.result()):
        if nearest.strides != (0,):  # else there are no such slices
            of_launch, of_op = follow(launch[gpu], nearest), follow(op[gpu], nearest)
            nearest = _with(nearest, gpu, np.where(launch[gpu] != NONE, of_launch, of_op))
        frames.append(nearest)
    return Links(launch, op, *frames)


def _with(indices: Indices, slices: NDArray[Any], values: NDArray[Any]) -> Indices:
    """The same with other values for some slices."""
    if (indices[slices] == values).all():
        return indices
    changed = indices if indices.flags.writeable else indices.copy()
    changed[slices] = values
    return changed


@dataclass(frozen=True)
class Steps:
    """Training steps in order of time, and what they were found by."""

    number: Ints
    start: Ints
    end: Ints
    source: str

    def at(self, time: Ints) -> Indices:
        """For each time the number of the step it lies in, or NONE."""
        numbers = np.full(len(time), NONE, dtype=np.int32)
        for begin in range(0, len(time) if len(self.start) else 0, _TIMES_AT_ONCE):
            piece = time[begin : begin + _TIMES_AT_ONCE]
            index = np.searchsorted(self.start, piece, side="right") - 1
            inside = (index >= 0) & (piece < self.end[np.maximum(index, 0)])
            numbers[begin : begin + len(piece)][inside] = self.number[index[inside]]
        return numbers


_PROFILER_STEP, _NUMBERED_STEP = re.compile(PROFILER_STEP_PATTERN), re.compile(NUMBERED_STEP_PATTERN)
_UNFINISHED_STEP = re.compile(unfinished_step(r"(\d{1,9})$"))
_OPTIMIZER_STEP = "Optimizer.step#"


def find_steps(annotations: Sequence[tuple[str, int, int]]) -> Steps:
    """From ProfilerStep#N, else from annotations numbered like steps, else from the ends of optimizer steps.

    Annotations of the host have a name, a start and an end.
    """
    unfinished = {int(match[1]) for name, _, _ in annotations if (match := _UNFINISHED_STEP.match(name))}
    spans: dict[int, tuple[int, int, int]] = {}
    for pattern, kind in ((_PROFILER_STEP, "profiler"), (_NUMBERED_STEP, "annotation")):
        for name, start, end in sorted(annotations, key=itemgetter(1)):
            match = pattern.match(name)
            if match and int(match[1]) not in unfinished:
                spans.setdefault(int(match[1]), (int(match[1]), start, end))
        if spans:
            source = kind
            break
    else:
        ends = sorted(end for name, _, end in annotations if name.startswith(_OPTIMIZER_STEP))
        first = min((start for _, start, _ in annotations), default=0)
        spans = {number: (number, *pair) for number, pair in enumerate(pairwise([first, *ends]))}
        source = "optimizer" if ends else ""
    columns = np.array(sorted(spans.values(), key=itemgetter(1)), dtype=np.int64).reshape(-1, 3)
    return Steps(columns[:, 0], columns[:, 1], columns[:, 2], source)


@dataclass(frozen=True)
class Pairs:
    """Indices of begin events and their ends, and of events without a partner."""

    begin: Ints
    end: Ints
    never_ended: Ints
    never_begun: Ints


def pair_halves(key: Ints, time: Ints, is_begin: Mask, *, nested: bool) -> Pairs:
    """Pair begins and ends with the same key: each end with the next begin before it, as async events, or where they
    nest with the latest that is open, as events of phase B and E of a track."""
    order = np.lexsort((time, key))
    keys, depth = key[order], np.zeros(len(order), dtype=np.int64)
    if nested:
        begins = is_begin[order]
        open_after = np.cumsum(np.where(begins, 1, -1))
        first = np.searchsorted(keys, keys, side="left")
        before = np.where(first > 0, open_after[np.maximum(first - 1, 0)], 0)
        depth = open_after - before + np.where(begins, 0, 1)
        by_depth = np.lexsort((depth, keys))
        order, keys, depth = order[by_depth], keys[by_depth], depth[by_depth]
    # A begin directly followed by an end is a pair.
    begins = is_begin[order]
    same = (keys[:-1] == keys[1:]) & (depth[:-1] == depth[1:])
    paired = np.flatnonzero(begins[:-1] & ~begins[1:] & same)
    unpaired = np.ones(len(order), dtype=bool)
    unpaired[paired] = unpaired[paired + 1] = False
    return Pairs(order[paired], order[paired + 1], order[unpaired & begins], order[unpaired & ~begins])


_SOURCE_LINE = re.compile(r"\.py\(\d+\): ", re.ASCII)
"""Frames of Python lines; the others are built-in functions and nn.Module calls."""
_LIBRARY = re.compile(
    r"^(?:torch/|triton/|.*site-packages/|.*/torchinductor_|<frozen)|^(?:threading|runpy|contextlib)\.py"
)
"""Frames of libraries and of the code that Inductor generates, not of user code."""
_ROWS_AT_A_TIME = 125_000


@dataclass(frozen=True)
class SliceColumns:
    """The slices as arrays, in file order; those made of a begin and an end event come last."""

    event: NDArray[Any]
    """Index of its event, which is also its id."""
    track: NDArray[Any]
    time: Ints
    duration: Ints
    name: NDArray[Any]
    category: NDArray[Any]
    """Codes of the recording's texts."""

    @property
    def end(self) -> Ints:
        return self.time + self.duration

    def __len__(self) -> int:
        return len(self.event)


def row_pieces(count: int) -> list[slice]:
    """The rows of a table, some at a time."""
    return [slice(at, min(at + _ROWS_AT_A_TIME, count)) for at in range(0, count, _ROWS_AT_A_TIME)]


def find_slices(recording: Recording, pool: Executor) -> tuple[SliceColumns, int]:
    """Complete events and pairs of begin and end events; and the number of begins and ends without a partner.

    Where all slices are complete events, their columns take the place of the events', to save memory.
    """
    events = recording.events
    complete = recording.with_phase(pool, "X")
    events_of_slices = [complete]
    durations: list[Ints] = []
    unpaired = 0
    for begin, end in (("B", "E"), ("b", "e")):
        halves = recording.with_phase(pool, begin, end)
        if len(halves) == 0:
            continue
        if not durations:
            durations.append(events.duration[complete])
            last = int(_ends(recording, complete).max(initial=0))
        begins = events.phase[halves] == recording.code(begin)
        time = events.time[halves]
        key = recording.track[halves].astype(np.int64)
        if begin == "b":
            columns = events.pid[halves], events.category[halves], events.flow_of(halves), events.name[halves]
            _, key = number_rows([column.astype(np.int64) for column in columns])
        pairs = pair_halves(key, time, begins, nested=begin == "B")
        unpaired += len(pairs.never_ended) + len(pairs.never_begun)
        last = max(last, int(_ends(recording, halves).max(initial=0)))
        # A begin without an end lasts to the end of the file.
        ends = np.concatenate([time[pairs.end], np.full(len(pairs.never_ended), last)])
        begun = np.concatenate([pairs.begin, pairs.never_ended])
        events_of_slices.append(halves[begun])
        durations.append(ends - time[begun])
        last = max(last, int(ends.max(initial=0)))
    index = np.concatenate(events_of_slices) if len(events_of_slices) > 1 else complete
    category = pool.submit(lambda: events.category[index])
    if len(events_of_slices) > 1:
        time, duration = events.time[index], np.concatenate(durations)
        track, name = recording.track[index], events.name[index]
    else:
        of_events: tuple[NDArray[Any], ...] = events.time, events.duration, recording.track, events.name
        time, duration, track, name = pool.map(lambda column: _moved_up(column, index), of_events)
    return SliceColumns(index.astype(np.int32), track, time, duration, name, category.result()), unpaired


def _moved_up(column: NDArray[Any], index: Ints) -> NDArray[Any]:
    """The entries at these indices, which ascend, moved to the beginning of the column where it can be changed."""
    if not column.flags.writeable:
        return column[index]
    for at in range(0, len(index), _ROWS_AT_A_TIME):
        piece = index[at : at + _ROWS_AT_A_TIME]
        column[at : at + len(piece)] = column[piece]
    return column[: len(index)]


def _ends(recording: Recording, index: Ints) -> Ints:
    return recording.events.time[index] + recording.events.duration[index]


def named(recording: Recording, names: NDArray[Any], matches: Callable[[str], object]) -> Mask:
    """Which of these codes are of a text that matches."""
    texts = recording.events.texts
    used = np.zeros(len(texts), dtype=bool)
    used[names] = True
    for code in np.flatnonzero(used).tolist():
        used[code] = bool(matches(texts[code]))
    named_ones: Mask = used[names]
    return named_ones


def kinds_of(recording: Recording, slices: SliceColumns) -> SliceKinds:
    is_frame = slices.category == recording.code("python_function")
    texts = recording.events.texts
    used = np.zeros(len(texts), dtype=bool)
    used[slices.name[is_frame]] = True
    frames = np.flatnonzero(used).tolist()

    def among_frames(matches: Callable[[str], object]) -> Mask:
        if not len(frames):
            return np.broadcast_to(np.bool_(False), len(slices))  # takes no memory
        matching = np.zeros(len(texts), dtype=bool)
        matching[[code for code in frames if matches(texts[code])]] = True
        among: Mask = matching[slices.name] if matching.any() else np.zeros(len(slices), dtype=bool)
        among &= is_frame
        return among

    return SliceKinds(
        is_gpu=recording.events.has_text(slices.category, GPU_CATEGORIES),
        is_launch=recording.events.has_text(slices.category, LAUNCH_CATEGORIES),
        is_op=slices.category == recording.code("cpu_op"),
        is_line=among_frames(_SOURCE_LINE.search),
        is_own_line=among_frames(lambda text: _SOURCE_LINE.search(text) and not _LIBRARY.search(text)),
        is_module=among_frames(lambda text: text.startswith("nn.Module: ")),
    )


def steps_of_host(recording: Recording, slices: SliceColumns) -> Steps:
    """The training steps, from the annotations on the host."""
    wanted = np.flatnonzero(slices.category == recording.code("user_annotation"))
    names = (recording.events.texts[code] for code in slices.name[wanted].tolist())
    starts, durations = slices.time[wanted], slices.duration[wanted]
    return find_steps([*zip(names, starts.tolist(), (starts + durations).tolist(), strict=True)])


def step_columns(
    slices: SliceColumns, links: Links, steps: Steps, is_gpu: Mask, numbers: NDArray[Any]
) -> tuple[NDArray[Any], StepTimes]:
    """The step of every slice, NONE for none, and when each step begins and ends.

    `numbers`, the steps at their starts, is changed in place: device activity belongs to the step of its launch.
    """
    gpu = np.flatnonzero(is_gpu)
    start = slices.time[gpu]
    launch = follow(links.launch[gpu], slices.time) if len(gpu) else gpu
    index = steps_of_gpu_events(steps.start, steps.end, launch, start)
    numbers[gpu] = follow(index, steps.number) if len(steps.number) else NONE
    end = np.maximum(start + slices.duration[gpu], start)
    return numbers, step_times(steps.start, steps.end, index, launch, start, end)


@dataclass(frozen=True)
class DeviceTime:
    """The device time that ops launched; those that launched none are left out."""

    op: Ints
    """Ascending."""
    own_time: Ints
    """As the innermost op."""
    total: Ints
    """Including the ops inside it."""

    def of_rows(self, rows: NDArray[Any], is_op: Mask) -> tuple[Ints, Ints]:
        """Own and total time of some slices in ascending order; NULL for those that are no ops."""
        own_time = np.where(is_op, 0, NULL)
        total = own_time.copy()
        if len(rows):
            low, high = np.searchsorted(self.op, (rows[0], rows[-1] + 1))
            row = np.searchsorted(rows, self.op[low:high])
            there = (rows[row] == self.op[low:high]) & is_op[row]
            own_time[row[there]] = self.own_time[low:high][there]
            total[row[there]] = self.total[low:high][there]
        return own_time, total


@dataclass(frozen=True)
class NestedSlices:
    """The slices of a recording, and what lies inside what."""

    recording: Recording
    slices: SliceColumns
    nesting: Nesting

    def at(self, track: NDArray[Any], time: Ints) -> NDArray[Any]:
        """The innermost slice on a track that is open at a time, as an index into the arrays."""
        slices = self.slices
        return slice_at(self.nesting, slices.track, slices.time, slices.duration, track, time)

    def ids(self, index: NDArray[Any]) -> Ints:
        """Ids of slices, from their indices in the arrays."""
        return follow(index, self.slices.event) if len(self.slices) else index


@dataclass(frozen=True)
class SliceTable(NestedSlices):
    """All columns of SLICES, for any of its rows."""

    links: Links
    step: NDArray[Any]
    self_ns: Ints
    device: DeviceTime

    def chunks(self, index: NDArray[Any] | slice) -> dict[str, Chunk]:
        """Of rows in ascending order, or all of a range, which is not copied."""
        slices, links, events = self.slices, self.links, self.recording.events
        event, texts = slices.event[index], events.coded_texts
        places = events.places(event)

        def number(column: str, *none: int) -> Numbers:
            """-1 stands for "none" in the files too: a synchronisation of no stream has stream -1."""
            values = events.at(column, places)
            null = NARROW_NULL if values.dtype == np.int32 else NULL
            for each in (NONE, *none):
                values[values == each] = null
            return Numbers(values, null)

        def id_of(other: NDArray[Any]) -> Numbers:
            return Numbers(slices.event[other[index]], valid=other[index] != NONE)

        own_time, total = self.device.of_rows(
            np.arange(index.start, index.stop) if isinstance(index, slice) else index,
            slices.category[index] == self.recording.code("cpu_op"),
        )
        return {
            "id": Numbers(event),
            "track": Numbers(slices.track[index]),
            "start_ns": Numbers(slices.time[index]),
            "dur_ns": Numbers(slices.duration[index]),
            "depth": Numbers(self.nesting.row[index]),
            "name": Coded(slices.name[index], texts),
            "category": Coded(slices.category[index], texts),
            "step": Numbers(self.step[index], NONE),
            "parent": id_of(self.nesting.parent),
            "self_ns": Numbers(self.self_ns[index]),
            "launch": id_of(links.launch),
            "op": id_of(links.op),
            "python": id_of(links.python),
            "module": id_of(links.module),
            "correlation": number("correlation", 0),
            "device": number("device"),
            "stream": number("stream"),
            "bytes": number("bytes"),
            "collective": Coded(events.at("collective", places), texts),
            "device_ns": Numbers(own_time, NULL),
            "total_device_ns": Numbers(total, NULL),
        }
