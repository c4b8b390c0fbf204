"""Builds one segment of the store from one trace file: a folder of Parquet tables and segment.json.

The folder has a temporary name until it is complete, so that a partial segment is never opened.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rankscope import native
from rankscope.errors import RankscopeError, ReadError, StoreError
from rankscope.files import sync_folder
from rankscope.model import (
    ALLOCATING_OP_PATTERN,
    COMPILED_PATTERN,
    COMPUTING,
    COUNTERS,
    EVENTS,
    FORMAT_VERSION,
    GPU,
    GRAPH_LAUNCH_PATTERN,
    INSTANTS,
    LAUNCH_CATEGORIES,
    LINKS,
    MEMORY_ARGS,
    SLICES,
    STEPS,
    TRACKS,
)
from rankscope.readers import EventBatch, Reading, find_reader
from rankscope.readers.base import ReadReport, reported_apart
from rankscope.readers.columns import NULL, Texts
from rankscope.store.arrays import NONE, Ints, Mask, starts_group, unique_values
from rankscope.store.checksums import checksums, write_checked_json
from rankscope.store.discover import sidecar_kind, text_bytes
from rankscope.store.event_log import EventLog, Events, ReadBatch, flow_texts, read_batch
from rankscope.store.index import SEGMENT_FILE
from rankscope.store.parquet_writer import Chunk, Coded, Lists, Numbers, ParquetFile
from rankscope.store.table_files import Scratch, TableFiles, coded, columns_of, write_selected
from rankscope.store.worker import Progress
from rankscope.text.json_values import all_arguments, number_of, text_of
from rankscope.timeline.collectives.table import RecordedCall, recorded_calls, write_collectives
from rankscope.timeline.iterations import find_iterations
from rankscope.timeline.nesting import by_level, follow, nest, self_time
from rankscope.timeline.recording import (
    COUNTER_PHASES,
    FLOW_PHASES,
    INSTANT_PHASES,
    Names,
    Recording,
    Track,
    arrange,
)
from rankscope.timeline.slices import (
    DeviceTime,
    Links,
    NestedSlices,
    SliceTable,
    Steps,
    find_slices,
    kinds_of,
    link,
    named,
    row_pieces,
    step_columns,
    steps_of_host,
)
from rankscope.timeline.step_times import StepTimes
from rankscope.version import __version__

_GRAPH_LAUNCH = re.compile(GRAPH_LAUNCH_PATTERN)
_COMPILED = re.compile(COMPILED_PATTERN)
_EXACT = 1 << 53
_HARDWARE_COUNTERS = "hardware_counters"
"""The category of samples of CUPTI (ActivityType HARDWARE_COUNTERS of Kineto)."""
_MEMORY_COLUMNS = {
    "bytes": "Bytes",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
    "device_type": "Device Type",
    "device": "Device Id",
    "address": "Addr",
}


def write_tables(events: Events, files: TableFiles, recorded: Sequence[RecordedCall] = ()) -> dict[str, Any]:
    """Write every table; returns what segment.json records about them. The events are changed in place.

    `recorded` are the collective calls that the capture noted.
    """
    pool, scratch = files.pool, files.scratch
    recording = arrange(events, pool)
    track, points = scratch.moved(recording.track), _moved(recording.points, scratch)
    recording = replace(recording, track=track, points=points)
    scratch.release()
    slices, unpaired = find_slices(recording, pool)  # the events' own columns mean nothing from here on
    slices = _moved(slices, scratch)
    scratch.release()
    kinds_of_slices = pool.submit(kinds_of, recording, slices)
    steps_found = pool.submit(steps_of_host, recording, slices)
    nesting = _moved(nest(slices.track, slices.time, slices.end, pool.map), scratch)
    scratch.release()
    nested = NestedSlices(recording, slices, nesting)
    tables = [pool.submit(_write_links, files, nested), pool.submit(_write_counters, files, recording)]
    steps, kinds = steps_found.result(), kinds_of_slices.result()
    self_ns = pool.submit(lambda: scratch.moved(self_time(nesting, slices.duration)))
    links = _moved(link(recording, slices, nesting, kinds, pool), scratch)
    is_gpu = kinds.is_gpu
    if not len(steps.number):
        steps = find_iterations(recording, slices, links)
    step_at_start = pool.submit(lambda: scratch.moved(steps.at(slices.time)))
    del kinds, kinds_of_slices  # the other masks are not needed any more
    scratch.release()
    device = pool.submit(device_time, links.op, is_gpu, slices.duration, nesting.row)
    tables.append(pool.submit(_write_instants, files, nested, links, steps))
    step, times = step_columns(slices, links, steps, is_gpu, step_at_start.result())
    native.release_memory(len(slices))
    source = SliceTable(recording, slices, nesting, links, step, self_ns.result(), device.result())
    tables += [
        pool.submit(write_collectives, files, source, recorded),
        pool.submit(_write_computing, files, source),
        pool.submit(_write_tracks, files, source),
    ]
    write_activity(files, source, np.flatnonzero(is_gpu))
    _write_steps(files, steps, times)
    launches = recording.events.has_text(slices.category, LAUNCH_CATEGORIES)
    ranges = recording.events.has_text(slices.category, ("cpu_op", "user_annotation"))
    last_end = max(
        (
            int((slices.time[each] + np.maximum(slices.duration[each], 0)).max())
            for each in row_pieces(len(slices))
        ),
        default=0,
    )
    facts = {
        "origin_ns": recording.origin_ns,
        "end_ns": last_end,
        "slices": len(slices),
        "devices": sorted({track.device for track in recording.tracks if track.device is not None}),
        "steps": len(steps.number),
        "steps_source": steps.source,
        "timed": recording.timed,
        "misplaced": recording.misplaced,
        "unpaired": unpaired,
        "replays": bool(named(recording, slices.name[launches], _GRAPH_LAUNCH.search).any()),
        "compiled": bool(named(recording, slices.name[ranges], _COMPILED.search).any()),
    }
    for table in tables:
        table.result()
    return facts


Columns = TypeVar("Columns")


def _moved(columns: Columns, scratch: Scratch) -> Columns:
    """The same record of arrays in the scratch file."""
    return type(columns)(**{name: scratch.moved(column) for name, column in vars(columns).items()})


def _write_tracks(files: TableFiles, source: SliceTable) -> None:
    recording, slices = source.recording, source.slices
    count = len(recording.tracks)
    per_track = np.bincount(slices.track, minlength=count)
    rows = np.zeros(count, dtype=np.int64)
    used = np.flatnonzero(per_track)
    if len(used):  # the slices are in the order of their tracks
        begins = (np.cumsum(per_track) - per_track)[used]
        rows[used] = np.maximum.reduceat(source.nesting.row[source.nesting.order], begins) + 1
    named = [recording.threads.get((track.pid, track.tid), Names()) for track in recording.tracks]
    processes: dict[str, Names] = {}
    for (pid, _), thread_names in recording.threads.items():
        if thread_names.process is not None:
            # Where several of its threads tell: the last in alphabetical order.
            other = processes.get(pid, Names())
            indices = [each.sort_index for each in (other, thread_names) if each.sort_index is not None]
            name = max(other.process or "", thread_names.process)
            processes[pid] = Names(name, sort_index=max(indices, default=None))
    records: list[dict[str, Any]] = []
    for number, (track, thread_names) in enumerate(zip(recording.tracks, named, strict=True)):
        process = processes.get(track.pid, Names())
        records.append(
            {
                "track": number,
                "kind": track.kind,
                "pid": track.pid,
                "tid": track.tid,
                "device": track.device,
                "stream": track.stream,
                "process": process.process,
                "thread": thread_names.thread,
                "label": _label(track, process.process, thread_names.thread),
                "sort_index": process.sort_index
                if thread_names.sort_index is None
                else thread_names.sort_index,
                "slices": int(per_track[number]),
                "rows": int(rows[number]),
            }
        )
    files.write_columns(TRACKS, columns_of(TRACKS, records))


def _label(track: Track, process: str | None, thread: str | None) -> str:
    stream = f"GPU {_shown(track.device)} stream {_shown(track.stream)}"
    labels = {
        "stream": stream,
        "annotation": f"{stream} annotations",
        "sync": f"GPU {track.pid} synchronisation",
        "async": f"{track.tid} (async)",
        "counter": f"counters of {track.pid if process is None else process}",
    }
    return labels.get(track.kind) or (f"thread {track.tid}" if thread is None else thread)


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def _write_steps(files: TableFiles, steps: Steps, times: StepTimes) -> None:
    count = len(steps.number)
    files.write_rows(
        STEPS,
        {
            "step": Numbers(steps.number),
            "start_ns": Numbers(steps.start),
            "dur_ns": Numbers(steps.end - steps.start),
            "end_ns": Numbers(times.end),
            "time_ns": Numbers(times.end - times.begin),
            "source": Coded(np.zeros(count, dtype=np.int32), Texts.of([steps.source])),
        },
    )


def _write_instants(files: TableFiles, nested: NestedSlices, links: Links, steps: Steps) -> None:
    recording = nested.recording
    events, points = recording.events, recording.points_with_phase(INSTANT_PHASES)
    index = points.event
    memory = events.memory
    if not np.array_equal(index, events.memory_events):
        memory = np.full((len(index), len(MEMORY_ARGS)), NULL)
        position, there = np.searchsorted(index, events.memory_events), np.isin(events.memory_events, index)
        memory[position[there]] = events.memory[there]
    column = {name: position for position, name in enumerate(MEMORY_ARGS)}
    op: NDArray[Any] = np.broadcast_to(np.int32(NONE), len(index))
    if len(nested.slices):
        op = op.copy()
        allocations = np.flatnonzero(memory[:, column["Bytes"]] > 0)
        op[allocations] = allocating_ops(nested, links, points.track[allocations], points.time[allocations])
    texts = events.coded_texts

    def chunks(piece: slice) -> Mapping[str, Chunk]:
        return {
            "id": Numbers(index[piece]),
            "track": Numbers(points.track[piece]),
            "ts_ns": Numbers(points.time[piece]),
            "name": Coded(points.name[piece], texts),
            "category": Coded(events.category[index[piece]], texts),
            "step": Numbers(steps.at(points.time[piece]), NONE),
            **{name: Numbers(memory[piece, column[key]], NULL) for name, key in _MEMORY_COLUMNS.items()},
            "op": Numbers(op[piece], NONE),
        }

    files.write_pieces(INSTANTS, map(chunks, row_pieces(len(index)) or [slice(0)]))


def _write_counters(files: TableFiles, recording: Recording) -> None:
    events, points = recording.events, recording.points_with_phase(COUNTER_PHASES)
    pairs = all_arguments([*map(events.args.get, points.event.tolist())])
    series: Iterable[str] = chain.from_iterable(pairs)
    if {*map(type, pairs)} - {dict}:
        pairs = [*map(_pairs, pairs)]
        series = map(str, chain.from_iterable(pairs))
    names, of_gpu = points.name, events.category[points.event] == recording.code(_HARDWARE_COUNTERS)
    if of_gpu.any():  # Kineto's name is the quantity, the GPU that of the process; the value has no name
        for at in np.flatnonzero(of_gpu).tolist():
            pairs[at] = dict(zip([events.texts[names[at]]], pairs[at].values(), strict=False))
        names = np.where(of_gpu, events.pid[points.event], names)
    index = np.repeat(np.arange(len(pairs)), [*map(len, pairs)])
    numbers, valid = _numbers([*chain.from_iterable(map(dict.values, pairs))])
    files.write_rows(
        COUNTERS,
        {
            "id": Numbers(points.event[index]),
            "track": Numbers(points.track[index]),
            "ts_ns": Numbers(points.time[index]),
            "name": Coded(names[index], events.coded_texts),
            "series": coded(series),
            "value": Numbers(numbers, valid=valid),
        },
    )


def _pairs(args: Any) -> dict[Any, Any]:
    return args if isinstance(args, dict) else dict(enumerate(args)) if isinstance(args, list) else {}


def _numbers(values: list[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of counters, and which of them are numbers."""
    if not {*map(type, values)} - {int, float}:
        with suppress(OverflowError):
            return np.array(values, dtype=np.float64), np.ones(len(values), dtype=bool)
    plain = [
        number_of(value if isinstance(value, (int, float)) and abs(value) < _EXACT else text_of(value))
        for value in values
    ]
    valid = np.array([number is not None for number in plain], dtype=bool)
    return np.array([np.nan if number is None else number for number in plain], dtype=np.float64), valid


def _write_links(files: TableFiles, nested: NestedSlices) -> None:
    """A flow event names a track and a time; it is linked to the slice that is open there.

    A step or an end of a flow is linked with the start or step before it in time: an id that is used again is another
    flow, and no link ends before it starts.
    """
    recording = nested.recording
    events = recording.events
    index, track, time = _flow_ends(recording)
    bound = nested.ids(nested.at(track, time))
    flow = events.flow_of(index)
    first, then = _flow_links(recording, index, time, flow, bound)
    either = np.where(first != NONE, first, then)
    files.write_rows(
        LINKS,
        {
            "kind": Coded(events.category[index[either]], events.coded_texts),
            "flow": flow_texts(flow[either], events.coded_texts),
            "source": Numbers(follow(first, bound), NONE),
            "target": Numbers(follow(then, bound), NONE),
            "source_ns": Numbers(follow(first, time), valid=first != NONE),
            "target_ns": Numbers(follow(then, time), valid=then != NONE),
        },
    )


def _flow_links(
    recording: Recording, index: Ints, time: Ints, flow: Ints, bound: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Which of these events of flows each link starts and ends with."""
    events = recording.events
    # At one time a flow starts, goes on and ends. Of an event that names two tracks, the one with a slice counts.
    phase = events.phase[index]
    part = np.full(len(index), 2, dtype=np.int8)
    part[phase == recording.code("s")] = 0
    part[phase == recording.code("t")] = 1
    del phase
    category = events.category[index]
    category[flow == NULL] = NONE
    place = time << 3
    place |= part << 1
    place |= bound != NONE
    order = np.lexsort((place, flow, category)).astype(np.int32)
    del place
    flows: list[NDArray[Any]] = [category[order], flow[order]]
    key = np.cumsum(starts_group(flows), dtype=np.int32)
    key[flows[0] == NONE] = NONE
    del flows, category
    first, then = _flow_steps(key, part[order])
    return follow(first, order), follow(then, order)


def _flow_ends(recording: Recording) -> tuple[Ints, NDArray[Any], Ints]:
    """The flow events, the thread or stream each names, and its time: one without either is left out, one with both is
    two."""
    events, flows = recording.events, recording.points_with_phase(FLOW_PHASES)
    count = len(events.texts)
    key = events.pid[flows.event].astype(np.int64) * count + events.tid[flows.event]
    ends: list[tuple[Ints, NDArray[Any]]] = []
    for kind in ("stream", "thread"):
        wanted = {
            recording.code(track.pid) * count + recording.code(track.tid): number
            for number, track in enumerate(recording.tracks)
            if track.kind == kind
        }
        keys = np.array(sorted(wanted), dtype=np.int64)
        if len(keys) == 0:
            continue
        at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        there = keys[at] == key
        numbers = np.array([wanted[k] for k in keys.tolist()], dtype=np.int32)
        ends.append((np.flatnonzero(there), numbers[at[there]]))
    if not ends:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
    flow, track = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    order = np.argsort(flow, kind="stable")
    return flows.event[flow[order]], track[order], flows.time[flow[order]]


def _flow_steps(key: NDArray[Any], part: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where each link starts and ends among the events of flows, which are sorted by key and time; events that are in
    no link stand beside NONE. `part` is 0 for a start, 1 for a step, 2 for an end; a key may be NONE."""
    position = np.arange(len(key), dtype=np.int32)
    latest = np.maximum.accumulate(np.where(part < 2, position, np.int32(NONE)))
    before = np.concatenate([np.full(min(len(key), 1), NONE, dtype=np.int32), latest[:-1]])
    linked = (part > 0) & (before != NONE) & (key != NONE)
    linked &= key[np.maximum(before, 0)] == key
    in_link = linked.copy()
    in_link[before[linked]] = True
    alone = np.flatnonzero(~in_link)
    starts = part[alone] == 0
    return (
        np.concatenate([before[linked], np.where(starts, alone, NONE)]),
        np.concatenate([position[linked], np.where(starts, NONE, alone)]),
    )


_ALLOCATING_OP = re.compile(ALLOCATING_OP_PATTERN)


def write_activity(files: TableFiles, source: SliceTable, gpu: NDArray[Any]) -> None:
    """Write SLICES and GPU."""
    files.write(SLICES, row_pieces(len(source.slices)), source.chunks)

    slices, links, texts = source.slices, source.links, source.recording.events.coded_texts

    def told(index: NDArray[Any], values: NDArray[Any]) -> Numbers:
        return Numbers(follow(index, values), valid=index != NONE)

    def of_gpu(piece: slice) -> Mapping[str, Chunk]:
        rows = gpu[piece]
        launch, op, line = links.launch[rows], links.op[rows], links.python[rows]
        return source.chunks(rows) | {
            "launch_ns": told(launch, slices.time),
            "launch_dur_ns": told(launch, slices.duration),
            "launch_track": told(launch, slices.track),
            "op_name": Coded(follow(op, slices.name), texts),
            "op_ns": told(op, slices.time),
            "op_track": told(op, slices.track),
            "line": Coded(follow(line, slices.name), texts),
        }

    files.write(GPU, row_pieces(len(gpu)), of_gpu)


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


def device_time(op: NDArray[Any], is_gpu: Mask, duration: Ints, row: NDArray[Any]) -> DeviceTime:
    """The device time of the ops that launched some, from the innermost op of each slice, and its row in its track."""
    launched = np.flatnonzero(is_gpu & (op != NONE))
    has_time = np.zeros(len(op), dtype=bool)
    inside = unique_values(op[launched])
    while len(inside):  # and the ops around them, each once
        has_time[inside] = True
        around = op[inside]
        inside = unique_values(around[(around != NONE) & ~has_time[around]])
    ops = np.flatnonzero(has_time)
    place = np.cumsum(has_time, dtype=np.int32) - 1
    own_time = np.zeros(len(ops), dtype=np.int64)
    np.add.at(own_time, place[op[launched]], duration[launched])
    parent = follow(op[ops], place)
    total = own_time.copy()
    for members in reversed(by_level(row[ops])):  # the innermost first: an op is below those around it
        members = members[parent[members] != NONE]
        np.add.at(total, parent[members], total[members])
    return DeviceTime(ops, own_time, total)


def allocating_ops(nested: NestedSlices, links: Links, track: NDArray[Any], time: Ints) -> Ints:
    """Ids of the ops responsible for allocations at given tracks and times.

    It is the innermost open op that does more than allocate, or the innermost if all of them only allocate.
    """
    slices, recording = nested.slices, nested.recording
    innermost = nested.at(track, time)
    if len(slices) == 0:
        return innermost
    is_op = slices.category == recording.code("cpu_op")
    ops = np.flatnonzero(is_op)
    allocates = np.zeros(len(slices), dtype=bool)
    allocates[ops] = named(recording, slices.name[ops], _ALLOCATING_OP.search)
    innermost = np.where((innermost != NONE) & ~is_op[innermost], follow(innermost, links.op), innermost)
    op = innermost
    while (only_allocates := (op != NONE) & allocates[op]).any():
        op = np.where(only_allocates, links.op[op], op)
    return nested.ids(np.where(op != NONE, op, innermost))


_LARGEST_HEADER_VALUE = 100_000
_SMALL_BYTES = 16_000_000
"""Text that one thread reads in a tenth of a second: starting others, or waiting for the disk, takes longer."""
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def build_segment(
    path: Path,
    folder: Path,
    threads: int,
    progress: Progress,
    part: str = "",
    rank_source: str = "",
    sidecar_files: Sequence[Path] = (),
) -> dict[str, Any]:
    """Read `path`, or a part of it, into the empty folder `folder`; writes and returns the content of segment.json.

    `sidecar_files` are files beside it that may add to it.
    """
    before = path.stat()
    reader = find_reader(path)
    reading = reader.open(path, part)
    is_small = text_bytes(path) <= _SMALL_BYTES
    files = TableFiles(folder, 1 if is_small else threads)
    with _storing(folder), files.pool:
        log = EventLog(files.scratch)
        _write_events(reading, log, files, progress)
        if log.is_empty:
            raise ReadError(
                f"{path} has no events",
                why=f"{reading.report.damage or 'None of its tables has rows'}.",
                hint="Capture this rank again, or leave the file out.",
            )
        events = log.events(files.pool.map)
        count = len(events)
        progress(before.st_size, "links and nesting")
        facts = write_tables(events, files, recorded_calls(reading.header, reading.clock_base_ns()))
        facts |= {"read_by": dict(log.read_by), "rows": dict(sorted(files.rows.items())), "further": {}}
        for table, batch in reading.further():  # those that only this format has
            with closing(batch):
                facts["further"][table.name] = write_selected(batch, table, folder, facts["origin_ns"])
        if sidecar_files or facts["replays"] or facts["compiled"]:
            facts["companions"] = _add_sidecar_files(folder, facts, sidecar_files)
    if facts["misplaced"] and not facts["timed"]:
        raise ReadError(
            f"no event of {path} has a usable time",
            why=f"{facts['misplaced']:,} events have none, or one that no other event is near.",
            hint="Capture this rank again, or leave the file out.",
        )
    if reading.report.events_lost and not count and not any(facts["further"].values()):
        raise ReadError(
            f"nothing in {path} could be read",
            why=f"{reading.report.events_lost:,} events are damaged: {reading.report.examples[0]}.",
            hint="Capture this rank again, or leave the file out.",
        )
    manifest = {
        "format": FORMAT_VERSION,
        "written_by": f"rankscope {__version__}",
        "reader": reader.name,
        "rank_source": rank_source,
        "source": {"path": str(path), "bytes": before.st_size, "mtime_ns": before.st_mtime_ns, "part": part},
        "clock_base_ns": reading.clock_base_ns(),
        "events": count,
        **facts,
        "reading": asdict(reading.report),
        "header": {
            key: value
            for key, value in reading.header.items()
            if len(json.dumps(value)) < _LARGEST_HEADER_VALUE
        },
        "files": checksums(folder),
    }
    write_checked_json(folder / SEGMENT_FILE, manifest, on_disk=not is_small)
    if not is_small:  # else what a crash of the machine takes is read again: checksums tell
        sync_folder(folder)
    return manifest


@contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """A disk that is full is not the fault of the trace."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise StoreError(
            f"cannot build the store in {folder.parent}",
            why=f"{error.strerror}.",
            hint="Make room, or put the store elsewhere: --cache DIR",
        ) from error


def _write_events(reading: Reading, log: EventLog, files: TableFiles, progress: Progress) -> None:
    """Write every event in file order, one row group a batch. The log keeps them without their arguments."""

    def batches() -> Iterator[EventBatch]:
        for batch in reading.batches():
            progress(reading.position(), "reading")
            yield batch

    with ParquetFile(files.folder / f"{EVENTS.name}.parquet", EVENTS.fields) as file:
        for batch, report in files.in_threads(_read, batches()):
            reading.report.add(report)
            file.append(batch.encoded, batch.count)
            log.add(batch)
            del batch  # else it is held while the next one is waited for


def _read(batch: EventBatch) -> tuple[ReadBatch, ReadReport]:
    with closing(batch), reported_apart() as report:
        return read_batch(batch.columns()), report


def _add_sidecar_files(folder: Path, facts: dict[str, Any], paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Add what files beside the trace know: captures of CUDA graphs, logs of torch.compile.

    It works on the tables of the segment, after they have been written: writes ORIGINS where there is something to
    say, and returns what segment.json records. Each file has a kind, what was taken from it, and if that
    is nothing the reason in three parts.
    """
    # Late: few traces have any.
    from rankscope.timeline.origins import write_origins

    by_kind: dict[str, list[dict[str, Any]]] = {}
    records = []
    for path in paths:
        stat = path.stat()
        record: dict[str, Any] = {"path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        record |= {"kind": "", "used": "", "unused": []}
        try:
            record["kind"] = sidecar_kind(path)
        except RankscopeError as error:
            record["unused"] = [error.message, error.why, error.hint]
        records.append(record)
        by_kind.setdefault(record["kind"], []).append(record)

    def build(path: Path, folder: Path) -> None:
        """For a trace that is read only to look something up in it."""
        build_segment(path, folder, 1, lambda read, doing: None)

    captures, logs = by_kind.get("graph capture", []), by_kind.get("torch.compile log", [])
    if facts["replays"] or facts["compiled"]:
        facts["further"] |= write_origins(folder, captures, logs, build)
    for record in (*captures, *logs):
        if not record["used"] and not record["unused"]:
            record["unused"] = [
                f"{record['path']} adds nothing",
                "No kernel of the trace is from the graphs or the compiled code that it describes.",
                "Record both in the same run of the job.",
            ]
    return records
