"""The GPU events of a rank as arrays, each with its class and its launch.

The class of a GPU event is COPY (a copy or a fill), COMM (it has the metadata of a collective, or an op of torch's
communication launched it, else its name tells) or COMPUTE (any other kernel). Reports read rank by rank, so that only
the arrays of a few ranks need be in memory at a time. The arrays of small runs are kept for the next report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.rollups import events_by_rank, fits_in_memory, kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope, cut_ranks, steps_in_scope
from rankscope.model import GPU, LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.store.arrays import unique_values
from rankscope.timeline.run import Run

CLASSES = ("compute", "comm", "copy")
"""The classes of GPU events; in arrays an event has the number of its class."""
COMPUTE, COMM, COPY = range(len(CLASSES))
CLASS_NUMBER = f"CASE class WHEN 'COMPUTE' THEN {COMPUTE} WHEN 'COMM' THEN {COMM} ELSE {COPY} END"
"""SQL of that number, of a row of gpu."""
UNKNOWN = -1
"""In place of a time, an id or a text that is not in the file."""
_LOADED_EVENTS = 2_000_000
"""Of ranks that are read together, on host and device; about a quarter are of the device, 150 bytes each."""
KEPT_EVENTS = 4_000_000
"""How many events stay in memory between reports: about 400 MB."""


@dataclass(frozen=True)
class DeviceEvents:
    """Kernels, copies and fills of one rank in order of their start; one entry an event."""

    start: Ints
    end: Ints
    """Never before the start: an event of negative length counts as empty."""
    kind: Ints
    """COMPUTE, COMM or COPY."""
    work: Ints
    """Its name: an index into names.all_names, as all names here."""
    step: Ints
    device: Ints
    stream: Ints
    launch_start: Ints
    """Of the runtime call that launched it, or UNKNOWN; so for the next two."""
    launch_end: Ints
    launch_track: Ints
    launch: Ints
    """Id of that call, or UNKNOWN."""
    op: Ints
    """Name of the op that launched it, or UNKNOWN."""
    op_start: Ints
    """Of that op, or UNKNOWN; so for the next."""
    op_track: Ints
    line: Ints
    """The line of Python that launched it, or UNKNOWN."""
    segment: Ints
    track: Ints
    id: Ints

    def __len__(self) -> int:
        return len(self.start)

    def pick(self, mask: NDArray[np.bool_]) -> DeviceEvents:
        return self if mask.all() else DeviceEvents(*(getattr(self, f.name)[mask] for f in fields(self)))

    def devices(self) -> Iterator[tuple[int, DeviceEvents]]:
        """Device by device."""
        for device in unique_values(self.device).tolist():
            yield device, self.pick(self.device == device)


@once_per_run
def gpu_ranks(run: Run) -> frozenset[int]:
    """The ranks that have a GPU: their files contain GPU events, in the window or not."""
    return frozenset(entry.rank for entry in run.used if entry.files_of(GPU))


def has_gpu(run: Run, scope: Scope) -> bool:
    """Whether any rank in scope has a GPU."""
    return not gpu_ranks(run).isdisjoint(scope.ranks_in(run))


@once_per_run
def _events_in_memory(run: Run) -> dict[tuple[int, int] | None, dict[int, DeviceEvents]]:
    """By steps (None: all events) and rank; `device_events` fills it, up to KEPT_EVENTS."""
    return {None: {}}


def device_events(run: Run, rank: int, scope: Scope) -> DeviceEvents:
    """A rank's GPU events in the window."""
    in_memory = _events_in_memory(run)
    if scope.steps is None or rank in in_memory[None] or fits_in_memory(run) or scope.has_all_steps(run):
        read = replace(scope, steps=None, whole_file=True)
    else:
        read = scope
    cached = in_memory.setdefault(read.steps, {})
    if rank not in cached:
        later = [other for other in scope.ranks_in(run) if other not in cached]
        loaded = _load(run, replace(read, ranks=ranks_read_together(run, rank, later)))
        if sum(map(len, (*cached.values(), *loaded.values()))) > KEPT_EVENTS:
            cached.clear()
        cached |= loaded
    events = cached[rank]
    if scope.steps == read.steps:
        return events
    return events.pick(scope.mask(events.step))


def ranks_read_together(run: Run, rank: int, others: Iterable[int]) -> frozenset[int]:
    """A rank and those after it that fit into memory: reports ask rank by rank, and a query costs more than rows."""
    later = [other for other in others if other >= rank]
    sizes = accumulate(events_by_rank(run).get(other, 0) for other in later)
    return frozenset(
        [rank, *(other for other, size in zip(later, sizes, strict=True) if size <= _LOADED_EVENTS)]
    )


def _load(run: Run, scope: Scope) -> dict[int, DeviceEvents]:
    ranks = scope.ranks_in(run)
    columns = run.arrays(f"""
        SELECT g.rank::BIGINT AS rank, g.start_ns AS start, g.start_ns + greatest(g.dur_ns, 0) AS end,
               ({CLASS_NUMBER})::BIGINT AS kind,
               w.code AS work,
               coalesce(g.step, {NO_STEP})::BIGINT AS step, coalesce(g.device, {UNKNOWN})::BIGINT AS device,
               coalesce(g.stream, {UNKNOWN}) AS stream, coalesce(g.launch_ns, {UNKNOWN}) AS launch_start,
               coalesce(g.launch_ns + greatest(g.launch_dur_ns, 0), {UNKNOWN}) AS launch_end,
               coalesce(g.launch_track, {UNKNOWN})::BIGINT AS launch_track,
               coalesce(g.launch, {UNKNOWN}) AS launch, coalesce(o.code, {UNKNOWN}) AS op,
               coalesce(g.op_ns, {UNKNOWN}) AS op_start, coalesce(g.op_track, {UNKNOWN})::BIGINT AS op_track,
               coalesce(l.code, {UNKNOWN}) AS line, g.segment::BIGINT AS segment, g.track::BIGINT AS track, g.id
        FROM gpu g
        JOIN internal.names w ON w.category = g.category AND w.name = g.name
        LEFT JOIN internal.names o ON o.category = 'cpu_op' AND o.name = g.op_name
        LEFT JOIN internal.names l ON l.category = 'python_function' AND l.name = g.line
        WHERE {scope.where("g")}
    """)
    order = np.lexsort((columns["launch_start"], columns["start"], columns["rank"]))
    bounds = np.searchsorted(columns["rank"][order], [*ranks, max(ranks) + 1])
    return {
        rank: DeviceEvents(**{f.name: columns[f.name][order[low:high]] for f in fields(DeviceEvents)})
        for rank, low, high in zip(ranks, bounds[:-1], bounds[1:], strict=True)
    }


class GpuCount(NamedTuple):
    """The GPU events of one rank, file, step, category and class."""

    rank: int
    segment: int
    step: int | None
    category: str
    kind: str
    """COMPUTE, COMM or COPY."""
    events: int
    time_ns: int
    """Sum of their durations; a negative one counts as 0."""


_LEAST_STEPS = 2
"""So many steps without a kernel, at the end of a recording with GPU events, are no accident."""


@kept_per_rank("gpu_counts", list[GpuCount], any_window=True)
def _rank_counts(run: Run, scope: Scope) -> dict[int, list[GpuCount]]:
    """By file and step."""
    rows = run.rows(
        "SELECT rank, segment, step, category, class, count(*), sum(greatest(dur_ns, 0))::BIGINT FROM gpu "
        f"WHERE {scope.where()} GROUP BY ALL"
    )
    by_rank: dict[int, list[GpuCount]] = {}
    for row in sorted(rows, key=lambda row: (*row[:2], row[2] is None, *row[2:])):
        by_rank.setdefault(row[0], []).append(GpuCount(*row))
    return by_rank


@once_per_run
def _counts(run: Run) -> list[GpuCount]:
    return [count for counts in _rank_counts(run, Scope()).values() for count in counts]


def gpu_counts(run: Run, scope: Scope) -> list[GpuCount]:
    """Those of the ranks and steps in scope, by rank, file and step."""
    return [count for count in _counts(run) if scope.has_rank(count.rank) and scope.has_step(count.step)]


def kernels_end_in(run: Run, scope: Scope) -> dict[int, int | None]:
    """By rank, the last step with kernels, where the later ones have none at all; None where no step has one.

    All recorded steps are compared, not only those in scope.
    """
    return _kernels_end_in(run, scope.only_ranks())  # once for all windows of these ranks


@once_per_run
def _kernels_end_in(run: Run, ranks: Scope) -> dict[int, int | None]:
    counts = gpu_counts(run, ranks)
    with_events = sorted({count.rank for count in counts if count.step is not None})
    with_kernels = {(c.rank, c.segment, c.step) for c in counts if c.category == "kernel"}
    last_steps: dict[int, int | None] = {}
    for rank, columns in split_by_rank(steps_in_scope(run, ranks), with_events).items():
        steps = [*zip(*(columns[name].tolist() for name in ("start", "segment", "step")), strict=True)]
        having = [(start, step) for start, segment, step in steps if (rank, segment, step) in with_kernels]
        last = max((start for start, _ in having), default=None)
        if sum(last is None or start > last for start, _, _ in steps) >= _LEAST_STEPS:
            last_steps[rank] = max((step for start, step in having if start == last), default=None)
    return last_steps


SliceCounts = list[tuple[str, int | None, int]]
"""By category and step."""


@kept_per_rank("slice_counts", SliceCounts, any_window=True)
def _rank_slices(run: Run, scope: Scope) -> dict[int, SliceCounts]:
    of_rank: dict[int, SliceCounts] = {}
    for rank, category, step, count in run.rows(
        f"SELECT rank, category, step, count(*) FROM slices WHERE {scope.where()} GROUP BY ALL ORDER BY ALL"
    ):
        of_rank.setdefault(rank, []).append((category, step, count))
    return of_rank


@once_per_run
def slice_counts(run: Run, scope: Scope) -> dict[str, int]:
    """The number of slices of each category in scope, the most frequent first."""
    counts = Counter[str]()
    for slices in _rank_slices(run, scope).values():
        for category, step, count in slices:
            if scope.has_step(step):
                counts[category] += count
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def has_launches(run: Run) -> bool:
    """Whether calls that launch work were recorded: without them, nobody knows why a GPU is idle."""
    return any(category in LAUNCH_CATEGORIES for category in slice_counts(run, Scope()))


def runs_on_cpu(run: Run) -> bool:
    """No GPU events in files that are whole: what a cut file lacks may have been there."""
    return not cut_ranks(run) and not has_gpu(run, Scope())
