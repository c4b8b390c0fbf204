"""Slices (events with a duration): loaded into arrays, linked, and written as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from rankscope.model import GPU_CATEGORIES, LAUNCH_CATEGORIES, Table
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE, Ints, Mask
from rankscope.store.linking import Annotation, Links, Steps, find_steps, follow, link, self_time
from rankscope.store.nesting import Nesting
from rankscope.store.step_times import StepTimes, step_times, steps_of_gpu_events
from rankscope.store.workspace import Workspace

_SOURCE_LINE = r"\.py\(\d+\): "
"""Frames of Python lines; the others are built-in functions and nn.Module calls."""
_LIBRARY = r"^(?:torch/|.*site-packages/|<frozen)|^(?:threading|runpy|contextlib)\.py"
"""Frames of libraries, not of user code."""


@dataclass(frozen=True)
class SliceColumns:
    """The slices as arrays, in file order. Times count from the segment's origin."""

    id: Ints
    track: Ints
    time: Ints
    duration: Ints
    name: Ints
    category: Ints
    correlation: Ints
    external_id: Ints
    device: Ints
    stream: Ints
    bytes: Ints

    @property
    def end(self) -> Ints:
        return self.time + self.duration


def load_slices(workspace: Workspace) -> tuple[SliceColumns, int]:
    """Complete events and pairs of begin and end events; and the number of begins and ends without a partner."""
    parts = [_load(workspace, "e.ph = 'X'")]
    unpaired = 0
    for begin, end in (("B", "E"), ("b", "e")):
        halves = _load(
            workspace,
            f"e.ph IN ('{begin}', '{end}')",
            f", e.ph = '{begin}' AS begins, (hash(e.pid, e.category, e.flow, e.name) >> 1)::BIGINT AS pair",
        )
        if len(halves["id"]) == 0:
            continue
        begins = halves["begins"].astype(bool)
        if begin == "B":
            pairs = pair_nested(halves["track"], halves["time"], begins)
        else:
            pairs = pair_by_key(halves["pair"], halves["time"], begins)
        unpaired += len(pairs.never_ended) + len(pairs.never_begun)
        last = max(int((part["time"] + part["duration"]).max(initial=0)) for part in [*parts, halves])
        parts.append(_paired(halves, pairs, last))
    columns = {f.name: np.concatenate([part[f.name] for part in parts]) for f in fields(SliceColumns)}
    return SliceColumns(**columns), unpaired


def _load(workspace: Workspace, where: str, more: str = "") -> dict[str, Ints]:
    arrays = workspace.arrays(f"""
        SELECT e.id, k.track, e.time, coalesce(e.dur_ns, 0) AS duration, n.code AS name, c.code AS category,
               coalesce(e.correlation, 0) AS correlation, coalesce(e.external_id, 0) AS external_id,
               coalesce(e.device, {NONE}) AS device, coalesce(e.stream, {NONE}) AS stream,
               coalesce(e.bytes, {NONE}) AS bytes {more}
        FROM placed e
        JOIN names n ON n.text = e.name
        JOIN categories c ON c.text = e.category
        JOIN track_keys k ON k.kind = e.kind AND k.pid = e.pid AND k.tid = e.tid
        WHERE {where}
    """)
    if np.any(np.diff(arrays["id"]) < 0):
        order = np.argsort(arrays["id"])
        arrays = {name: values[order] for name, values in arrays.items()}
    return arrays


def _paired(halves: dict[str, Ints], pairs: Pairs, last: int) -> dict[str, Ints]:
    """Slices from pairs of begin and end events. A begin without an end lasts to the end of the file."""
    kept = np.concatenate([pairs.begin, pairs.never_ended])
    ends = np.concatenate([halves["time"][pairs.end], np.full(len(pairs.never_ended), last)])
    slices = {name: values[kept] for name, values in halves.items()}
    slices["duration"] = ends - slices["time"]
    return slices


@dataclass(frozen=True)
class Pairs:
    """Indices of begin events and their ends, and of events without a partner."""

    begin: Ints
    end: Ints
    never_ended: Ints
    never_begun: Ints


def pair_nested(track: Ints, time: Ints, is_begin: Mask) -> Pairs:
    """Pair each end with the latest open begin on its track: events of phase B and E."""
    order = np.lexsort((time, track))
    step = np.where(is_begin[order], 1, -1)
    open_after = np.cumsum(step)
    tracks = track[order]
    first = np.searchsorted(tracks, tracks, side="left")
    before_track = np.where(first > 0, open_after[np.maximum(first - 1, 0)], 0)
    depth = open_after - before_track + np.where(is_begin[order], 0, 1)
    return _pair_neighbours(order, is_begin, np.lexsort((depth, tracks)), tracks, depth)


def pair_by_key(key: Ints, time: Ints, is_begin: Mask) -> Pairs:
    """Pair begins and ends with the same key in order of time: async events, phase b and e."""
    order = np.lexsort((time, key))
    keys = key[order]
    return _pair_neighbours(
        order, is_begin, np.arange(len(order)), keys, np.zeros(len(order), dtype=np.int64)
    )


def _pair_neighbours(order: Ints, is_begin: Mask, grouped: Ints, key: Ints, depth: Ints) -> Pairs:
    """Within a group, a begin directly followed by an end is a pair."""
    index = order[grouped]
    begins = is_begin[index]
    same = (key[grouped][:-1] == key[grouped][1:]) & (depth[grouped][:-1] == depth[grouped][1:])
    paired = np.flatnonzero(begins[:-1] & ~begins[1:] & same)
    unpaired = np.ones(len(index), dtype=bool)
    unpaired[paired] = unpaired[paired + 1] = False
    return Pairs(index[paired], index[paired + 1], index[unpaired & begins], index[unpaired & ~begins])


def link_slices(workspace: Workspace, slices: SliceColumns, nesting: Nesting) -> Links:
    categories = workspace.codes("categories")

    def is_in(*wanted: str) -> Mask:
        return np.isin(slices.category, [categories[c] for c in wanted if c in categories])

    is_frame = is_in("python_function")

    def frames(condition: str) -> Mask:
        codes = [code for (code,) in workspace.rows(f"SELECT code FROM names WHERE {condition}")]
        return is_frame & np.isin(slices.name, codes)

    line = f"regexp_matches(text, {sql_text(_SOURCE_LINE)})"
    return link(
        nesting,
        slices.correlation,
        slices.external_id,
        is_gpu=is_in(*GPU_CATEGORIES),
        is_launch=is_in(*LAUNCH_CATEGORIES),
        is_op=is_in("cpu_op"),
        is_line=frames(line),
        is_own_line=frames(f"{line} AND NOT regexp_matches(text, {sql_text(_LIBRARY)})"),
        is_module=frames("text LIKE 'nn.Module: %'"),
    )


def steps_of_host(workspace: Workspace, slices: SliceColumns) -> Steps:
    """The training steps, from the annotations on the host."""
    wanted = slices.category == workspace.codes("categories").get("user_annotation", NONE)
    texts = dict(workspace.rows("SELECT code, text FROM names"))
    spans = zip(
        slices.name[wanted].tolist(), slices.time[wanted].tolist(), slices.end[wanted].tolist(), strict=True
    )
    return find_steps([Annotation(texts[name], start, end) for name, start, end in spans])


def ids_of(slices: SliceColumns, index: Ints) -> Ints:
    """Ids of slices, from their indices in the arrays."""
    return np.where(index != NONE, slices.id[index], NONE) if len(slices.id) else index


def gpu_slices(workspace: Workspace, slices: SliceColumns) -> Mask:
    """Which slices are kernels, copies and fills."""
    categories = workspace.codes("categories")
    return np.isin(slices.category, [categories[c] for c in GPU_CATEGORIES if c in categories])


def step_columns(slices: SliceColumns, links: Links, steps: Steps, is_gpu: Mask) -> tuple[Ints, StepTimes]:
    """The step of every slice, NONE for none, and when each step begins and ends."""
    numbers = steps.at(slices.time)
    gpu = np.flatnonzero(is_gpu)
    launch = follow(links.launch[gpu], slices.time) if len(gpu) else gpu
    index = steps_of_gpu_events(steps.start, steps.end, launch, slices.time[gpu])
    numbers[gpu] = follow(index, steps.number) if len(steps.number) else NONE
    end = np.maximum(slices.end, slices.time)[gpu]
    return numbers, step_times(steps.start, steps.end, index, launch, slices.time[gpu], end)


def slice_numbers(slices: SliceColumns, nesting: Nesting, links: Links, step: Ints) -> dict[str, Ints]:
    """The numeric columns of SLICES, and codes for its text columns; NONE for null."""
    return {
        "id": slices.id,
        "track": slices.track,
        "start_ns": slices.time,
        "dur_ns": slices.duration,
        "depth": nesting.row,
        "name_code": slices.name,
        "category_code": slices.category,
        "step": step,
        "parent": ids_of(slices, nesting.parent),
        "self_ns": self_time(nesting, slices.duration),
        "launch": ids_of(slices, links.launch),
        "op": ids_of(slices, links.op),
        "python": ids_of(slices, links.python),
        "module": ids_of(slices, links.module),
        "correlation": np.where(slices.correlation == 0, NONE, slices.correlation),
        "device": slices.device,
        "stream": slices.stream,
        "bytes": slices.bytes,
    }


_OPTIONAL = ("step", "parent", "launch", "op", "python", "module", "correlation", "device", "stream", "bytes")


def write_slices(
    workspace: Workspace, numbers: dict[str, Ints], table: Table, more: Mapping[str, str], joins: str = ""
) -> None:
    """Write SLICES, or a table of some slices with more columns: SQL over `a`, the arrays, by name."""
    columns = {name: f"nullif(a.{name}, {NONE})" for name in _OPTIONAL} | dict(more)
    replaced = [name for name in columns if name in numbers]
    workspace.connection.register("slice_arrays", numbers)
    workspace.copy(
        f"""
        SELECT a.* EXCLUDE ({", ".join(replaced)}), n.text AS name, c.text AS category, m.collective,
               {", ".join(f"{sql} AS {name}" for name, sql in columns.items())}
        FROM slice_arrays a
        JOIN names n ON n.code = a.name_code
        JOIN categories c ON c.code = a.category_code
        LEFT JOIN (SELECT id, collective FROM placed WHERE collective IS NOT NULL) m ON m.id = a.id
        {joins}
        """,
        table,
    )
    workspace.connection.unregister("slice_arrays")
