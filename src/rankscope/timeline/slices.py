"""Slices (events with a duration): taken from the events, linked, and written as tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.model import GPU_CATEGORIES, LAUNCH_CATEGORIES, Table
from rankscope.readers.columns import NULL
from rankscope.readers.pairing import pair_by_key, pair_nested
from rankscope.store.arrays import NONE, Ints, Mask, number_rows
from rankscope.store.parquet_writer import Chunk, Coded, Numbers
from rankscope.store.table_files import TableFiles
from rankscope.timeline.linking import (
    Annotation,
    Links,
    SliceKinds,
    SliceLookup,
    Steps,
    find_steps,
    follow,
    link,
)
from rankscope.timeline.nesting import Nesting
from rankscope.timeline.recording import Recording
from rankscope.timeline.step_times import StepTimes, step_times, steps_of_gpu_events

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

    def last_end(self) -> int:
        """When the last slice is over."""
        ends = (
            int((self.time[piece] + np.maximum(self.duration[piece], 0)).max())
            for piece in row_pieces(len(self))
        )
        return max(ends, default=0)

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
        if begin == "B":
            pairs = pair_nested(recording.track[halves].astype(np.int64), time, begins)
        else:
            columns = (
                events.pid[halves],
                events.category[halves],
                events.flow_of(halves),
                events.name[halves],
            )
            _, key = number_rows([column.astype(np.int64) for column in columns])
            pairs = pair_by_key(key, time, begins)
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
        is_gpu=gpu_slices(recording, slices),
        is_launch=of_categories(recording, slices, LAUNCH_CATEGORIES),
        is_op=slices.category == recording.code("cpu_op"),
        is_line=among_frames(_SOURCE_LINE.search),
        is_own_line=among_frames(lambda text: _SOURCE_LINE.search(text) and not _LIBRARY.search(text)),
        is_module=among_frames(lambda text: text.startswith("nn.Module: ")),
    )


def link_slices(
    recording: Recording, slices: SliceColumns, nesting: Nesting, kinds: SliceKinds, pool: Executor
) -> Links:
    return link(
        nesting,
        lambda index: recording.events.ids("correlation", slices.event[index]),
        lambda index: recording.events.ids("external_id", slices.event[index]),
        kinds,
        pool,
    )


def steps_of_host(recording: Recording, slices: SliceColumns) -> Steps:
    """The training steps, from the annotations on the host."""
    wanted = np.flatnonzero(slices.category == recording.code("user_annotation"))
    texts = recording.events.texts
    spans = zip(
        slices.name[wanted].tolist(),
        slices.time[wanted].tolist(),
        (slices.time[wanted] + slices.duration[wanted]).tolist(),
        strict=True,
    )
    return find_steps([Annotation(texts[name], start, end) for name, start, end in spans])


def of_categories(recording: Recording, slices: SliceColumns, categories: tuple[str, ...]) -> Mask:
    return recording.events.has_text(slices.category, categories)


def gpu_slices(recording: Recording, slices: SliceColumns) -> Mask:
    """Which slices are kernels, copies and fills."""
    return of_categories(recording, slices, GPU_CATEGORIES)


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


Rows = NDArray[Any] | slice
"""Indices of slices, in ascending order, or all of a range, which is not copied."""


@dataclass(frozen=True)
class NestedSlices:
    """The slices of a recording, and what lies inside what."""

    recording: Recording
    slices: SliceColumns
    nesting: Nesting

    @cached_property
    def lookup(self) -> SliceLookup:
        slices = self.slices
        return SliceLookup(self.nesting, slices.track, slices.time, slices.duration)

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

    def chunks(self, index: Rows) -> dict[str, Chunk]:
        slices, links, events = self.slices, self.links, self.recording.events
        event, texts = slices.event[index], events.coded_texts
        places = events.places(event)

        def number(column: str, *none: int) -> Numbers:
            """-1 stands for "none" in the files too: a synchronisation of no stream has stream -1."""
            values, null = events.stored_at(column, places)
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
            "collective": Coded(events.collective_at(places), texts),
            "device_ns": Numbers(own_time, NULL),
            "total_device_ns": Numbers(total, NULL),
        }


def write_slices(
    files: TableFiles,
    table: Table,
    source: SliceTable,
    rows: NDArray[Any] | None = None,
    more: Callable[[NDArray[Any]], Mapping[str, Chunk]] | None = None,
) -> None:
    """Write all slices, or a table of some slices with more columns."""
    count = len(source.slices) if rows is None else len(rows)
    pieces = row_pieces(count)

    def chunks(piece: slice) -> dict[str, Chunk]:
        if rows is None:
            return source.chunks(piece)
        return source.chunks(rows[piece]) | dict(more(rows[piece]) if more else {})

    files.write(table, pieces, chunks)
