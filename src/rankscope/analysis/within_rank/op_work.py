"""Op calls with known FLOPs: the FLOPs, bytes, data type and device time of each.

Where such ops call each other (linear calls addmm), only the innermost counts, so nothing counts twice. Device
activity belongs to the counted call around the op that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import COPY, UNKNOWN, device_events
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.flops import Work, work_of
from rankscope.analysis.within_rank.phases import RECOMPUTE, Partition, partition_of
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows, unique_values
from rankscope.timeline.run import Run

NO_SHAPES = (
    "the trace has no shapes, so FLOPs are unknown; rankscope profile --record-shapes "
    "(record_shapes=True) records them"
)

NO_KERNEL = -1

# Names in cuBLAS and CUTLASS of kernels that multiply float32 on tensor cores.
_TF32_KERNEL = re.compile(r"tf32|s1688|tensorop|nvjet|wgmma|hmma", re.IGNORECASE)


@dataclass(frozen=True)
class OpWork:
    """One entry per call, in order of file, track and time."""

    number: Ints
    """Identifies the slice in the run: the row of its file in segments times 2**40, plus its id."""
    rank: Ints
    step: Ints
    start: Ints
    """On the host, in ns."""
    host_ns: Ints
    signature: Ints
    """Index into names, shapes and works."""
    flops: Ints
    device_ns: Ints
    """All device activity that the call launched."""
    kernel: Ints
    """Index into kernels of the longest kernel, or NO_KERNEL."""
    kernel_ns: Ints
    """Duration of that kernel, without helper kernels (fills, split-K sums)."""

    dtype: Ints
    """Index into dtypes of the data type whose peak applies; float32 on tensor cores is tf32."""

    names: list[str]
    shapes: list[str]
    works: list[Work]
    kernels: list[str]
    dtypes: list[str | None]

    @property
    def bytes(self) -> Ints:
        """Inputs and outputs, counted once; -1 where unknown."""
        sizes = [-1 if work.bytes is None else work.bytes for work in self.works]
        return np.array([*sizes, -1], dtype=np.int64)[self.signature]


def _dtypes(
    works: list[Work], kernels: list[str], signature: Ints, kernel: Ints
) -> tuple[Ints, list[str | None]]:
    """The index of each call's data type, and the data types; evaluated once per pair of signature and kernel."""
    pairs, which = number_rows([signature, kernel])
    codes: dict[str | None, int] = {}
    of_pair = []
    for of_work, of_kernel in pairs.tolist():
        dtype = works[of_work].dtype
        if dtype == "float32" and of_kernel >= 0 and _TF32_KERNEL.search(kernels[of_kernel]):
            dtype = "tf32"
        of_pair.append(codes.setdefault(dtype, len(codes)))
    return np.array(of_pair, dtype=np.int64)[which], list(codes)


@once_per_run
def op_work(run: Run, scope: Scope) -> OpWork:
    """The counted calls of the ops in scope."""
    distinct_ops = run.rows(
        f"SELECT DISTINCT name, shapes FROM computing_ops WHERE {scope.where()} ORDER BY name, shapes"
    )
    names, shapes, works = _signatures(distinct_ops)
    calls = _candidates(run, scope, distinct_ops)
    counted = np.array([work is not None for work in works], dtype=bool)
    calls = {name: values[counted[calls["signature"]]] for name, values in calls.items()}
    # Calls nest on their track, so a call contains another exactly if the next one starts before its end.
    place, start, end = calls["place"], calls["start"], calls["end"]
    innermost = np.ones(len(place), dtype=bool)
    innermost[:-1] = (place[1:] != place[:-1]) | (start[1:] >= end[:-1])
    calls = {name: values[innermost] for name, values in calls.items()}
    kernel_names = all_names(run)
    device_ns, kernel, kernel_ns = _device_time(calls, _launched(run, scope))
    done = [work or Work(0, None, None) for work in works]
    signature = calls["signature"]
    flops = np.array([*(work.flops for work in done), 0], dtype=np.int64)[signature]
    dtype, dtypes = _dtypes(done, kernel_names, signature, kernel)
    return OpWork(
        calls["number"], calls["rank"], calls["step"], calls["start"], calls["end"] - calls["start"],
        signature, flops, device_ns, kernel, kernel_ns, dtype, names, shapes, done, kernel_names, dtypes,
    )  # fmt: skip


def _candidates(run: Run, scope: Scope, signatures: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Ops that have a formula, in order of file, track and time, the outer before the inner."""
    sql = f"""
        WITH op_signatures AS MATERIALIZED (
            SELECT unnest(?::VARCHAR[]) AS name, unnest(?::VARCHAR[][]) AS shapes, unnest(range(?)) AS code
        )
        SELECT (f.rowid << 40) | o.id AS number, (f.rowid << 24) | o.track AS place, o.rank::BIGINT AS rank,
               coalesce(o.step, {NO_STEP})::BIGINT AS step, o.start_ns AS start,
               o.start_ns + greatest(o.dur_ns, 0) AS end, g.code AS signature
        FROM computing_ops o
        JOIN segments f ON f.rank = o.rank AND f.segment = o.segment
        JOIN op_signatures g ON g.name = o.name AND g.shapes IS NOT DISTINCT FROM o.shapes
        WHERE {scope.where("o")}
        ORDER BY place, start, "end" DESC, number
    """
    if not signatures:
        columns = ("number", "place", "rank", "step", "start", "end", "signature")
        return {name: np.empty(0, dtype=np.int64) for name in columns}
    names, shapes = ([row[column] for row in signatures] for column in range(2))
    return run.arrays(sql, [names, shapes, len(signatures)])


def _signatures(signatures: list[tuple[Any, ...]]) -> tuple[list[str], list[str], list[Work | None]]:
    """Of every distinct op and arguments: name, shape, work."""
    names, shapes, works = [], [], []
    for name, (dims, types, concrete, *recorded) in signatures:
        work = work_of(name, dims, types, concrete)
        if work is None:
            try:
                flops = int(float(next(filter(None, recorded), 0)))  # the figure that with_flops recorded
            except ValueError:
                flops = 0
            work = Work(flops, None, None) if flops else None
        names.append(name)
        shapes.append(dims or "")
        works.append(work)
    return names, shapes, works


def _launched(run: Run, scope: Scope) -> dict[str, Any]:
    """For each device event the track and start time of the op that launched it."""
    # The table `segments` has the files in this order: rowid in `_candidates`.
    rows = {(entry.rank, entry.segment): row for row, entry in enumerate(run.segments)}
    parts = []
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope.only_ranks())
        events = events.pick(events.op != UNKNOWN)
        segments, which = np.unique(events.segment, return_inverse=True)
        row = np.array([rows[rank, segment] for segment in segments.tolist()], dtype=np.int64)[which]
        parts.append(
            {
                "place": (row << 24) | events.op_track,
                "at": events.op_start,
                "dur": events.end - events.start,
                "name": events.work,
                "is_kernel": events.kind != COPY,
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _device_time(calls: dict[str, Any], launched: dict[str, Any]) -> tuple[Ints, Ints, Ints]:
    """For each call: device time, longest kernel, and the duration of that kernel."""
    count = len(calls["place"])
    device_ns, kernel_ns = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kernel = np.full(count, NO_KERNEL, dtype=np.int64)
    if count == 0 or len(launched["place"]) == 0:
        return device_ns, kernel, kernel_ns
    at = _call_around(calls, launched["place"], launched["at"])
    mine = at >= 0
    np.add.at(device_ns, at[mine], launched["dur"][mine])
    kernels = np.flatnonzero(mine & launched["is_kernel"])
    kernels = kernels[np.lexsort((launched["name"][kernels], launched["dur"][kernels]))]
    # Assigned in order of duration, so the longest kernel remains.
    kernel[at[kernels]] = launched["name"][kernels]
    kernel_ns[at[kernels]] = launched["dur"][kernels]
    return device_ns, kernel, kernel_ns


def _call_around(calls: dict[str, Any], place: Ints, at: Ints) -> Ints:
    """For each place and time the index of the call around it, or -1. Calls at one place do not overlap."""
    _, code = np.unique(np.concatenate([calls["place"], place]), return_inverse=True)
    low = min(int(calls["start"].min()), int(at.min()))
    width = max(int(calls["end"].max()), int(at.max())) - low + 1
    keys = code[: len(calls["place"])] * width + (calls["start"] - low)
    before = np.searchsorted(keys, code[len(calls["place"]) :] * width + (at - low), side="right") - 1
    call = np.maximum(before, 0)
    inside = (before >= 0) & (calls["place"][call] == place) & (at <= calls["end"][call])
    return np.where(inside, before, -1)


class TimedSums(NamedTuple):
    """Calls that took time: number, FLOPs, bytes, calls whose bytes are unknown, time."""

    calls: int
    flops: int
    bytes: int
    unknown: int
    time_ns: int


class OpSums(NamedTuple):
    """The counted calls of one op in one data type."""

    name: str
    dtype: str | None
    on_device: TimedSums
    on_host: TimedSums
    kernels: tuple[str, ...]
    """The longest kernel of each call."""


class StepFlops(NamedTuple):
    """FLOPs of the model in one step, without recomputation, and FLOPs of the recomputation."""

    step: int
    """NO_STEP: outside steps."""
    model: int
    recomputed: int


@dataclass(frozen=True)
class RankWork:
    """The counted calls of one rank."""

    ops: tuple[OpSums, ...]
    steps: tuple[StepFlops, ...]
    main_dtype: str | None
    """The data type of most of the FLOPs."""
    kernel_ns: int
    """Time of the longest kernel of each call."""
    has_device_time: bool


@kept_per_rank("op_work", RankWork, version=1)
def rank_work(run: Run, scope: Scope) -> dict[int, RankWork]:
    """Of the ranks with counted calls."""
    work = op_work(run, scope)
    names = sorted(set(work.names))
    name = np.array([*(names.index(text) for text in work.names), -1], dtype=np.int64)[work.signature]
    records = {}
    for rank in unique_values(work.rank).tolist():
        mine = np.flatnonzero(work.rank == rank)
        flops = np.zeros(len(work.dtypes) + 1, dtype=np.int64)
        np.add.at(flops, work.dtype[mine], work.flops[mine])
        records[rank] = RankWork(
            tuple(_op_sums(work, mine, names, name[mine])),
            tuple(_step_flops(work, mine, partition_of(run, rank, scope))),
            work.dtypes[int(flops.argmax())] if flops.any() else None,
            int(work.kernel_ns[mine].sum()),
            bool(work.device_ns[mine].any()),
        )
    return records


def _op_sums(work: OpWork, mine: Ints, names: list[str], name: Ints) -> Iterator[OpSums]:
    groups, group = number_rows([name, work.dtype[mine]])
    size = work.bytes[mine]
    columns = np.stack([np.ones_like(mine), work.flops[mine], size, (size < 0).astype(np.int64)])

    def timed(time: Ints) -> list[TimedSums]:
        # A call without device time (its launch is not in the file) would raise the rate of the others.
        took = time > 0
        sums = np.zeros((len(groups), 5), dtype=np.int64)
        np.add.at(sums, group[took], np.stack([*columns, time])[:, took].T)
        return [TimedSums(*row) for row in sums.tolist()]

    kernels: dict[int, set[str]] = {}
    launched = work.kernel[mine] != NO_KERNEL
    for which, kernel in number_rows([group[launched], work.kernel[mine][launched]])[0].tolist():
        kernels.setdefault(which, set()).add(work.kernels[kernel])
    on_device, on_host = timed(work.device_ns[mine]), timed(work.host_ns[mine])
    for i, (code, dtype) in enumerate(groups.tolist()):
        yield OpSums(
            names[code], work.dtypes[dtype], on_device[i], on_host[i], tuple(sorted(kernels.get(i, ())))
        )


def _step_flops(work: OpWork, mine: Ints, partition: Partition) -> Iterator[StepFlops]:
    """By step; which calls belong to a forward pass that runs again follows from the phase that they are in."""
    recomputed = (partition.at(work.start[mine]) == RECOMPUTE).astype(np.int64)
    steps, which = np.unique(work.step[mine], return_inverse=True)
    sums = np.zeros((2, len(steps)), dtype=np.int64)
    np.add.at(sums, (recomputed, which), work.flops[mine])
    for row in zip(steps.tolist(), *sums.tolist(), strict=True):
        yield StepFlops(*row)
