"""Memory that a snapshot shows to grow from step to step, and the line whose blocks are never freed.

A step ends where an optimizer's step does, which torch notes beside the history. A line is reported if every block of
one stack and size that the history shows is still allocated, and the blocks come at a steady pace until the end. So
these are not: parameters and optimizer state (allocated in one step), activations of a step in which the snapshot was
taken (those of the steps before were freed), caches that have filled (no more blocks come), queues of fixed length
(older blocks were freed).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rankscope.analysis.core.ceilings import device_memory
from rankscope.analysis.core.result import Fact, Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import LIVE, SIZE, last_snapshots, snapshot_peaks
from rankscope.model import MEMORY_SEGMENTS, OPTIMIZER_STEPS, SNAPSHOT_CATEGORY
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import Ints
from rankscope.timeline.run import Run
from rankscope.units import format_ns, format_rounded

_LEAST_STEPS = 4
"""Steps with a block: as many as make a warning of growth in [memory] events."""
_LEAST_GROWTH_BYTES = 1_000_000
"""Per step, of one line. As for [memory] events."""
_STEADY = 2
"""A gap of more than this many times the usual one is a pause: the growth has stopped, or is not steady."""
_MOST_LINES = 3
_MOST_FRAMES = 4


@dataclass(frozen=True)
class SnapshotSteps:
    """The steps of the last snapshot of a rank, on one device."""

    rank: int
    segment: int
    device: int
    ids: Ints
    """Of the first event after each step."""

    @property
    def rows(self) -> str:
        """SQL: the rows of this device in instants and memory_blocks."""
        return f"rank = {self.rank} AND segment = {self.segment} AND device = {self.device}"


@dataclass(frozen=True)
class NeverFreed:
    """The blocks of one line, all of which are still allocated when the snapshot is taken."""

    rank: int
    device: int
    source: str
    """Line of Python."""
    frames: tuple[str, ...]
    count: int
    bytes: int
    """Of all blocks."""
    block_bytes: int | None
    """Of each; None where they differ."""
    every: int
    """Steps from one block, or set of blocks, to the next."""
    every_ns: int
    per_step_bytes: int


def snapshot_steps(run: Run, scope: Scope) -> list[SnapshotSteps]:
    """Of each rank and device whose history has steps."""
    if not run.has(MEMORY_SEGMENTS):
        return []
    last = set(run.rows(last_snapshots(scope)))
    return [
        SnapshotSteps(entry.rank, entry.segment, int(device), np.array(ids, np.int64))
        for entry in run.segments
        if (entry.rank, entry.segment) in last
        for device, ids in entry.header.get(OPTIMIZER_STEPS, {}).items()
    ]


def lowest_totals(run: Run, steps: SnapshotSteps) -> list[tuple[int, int]]:
    """The lowest allocated total of each whole step but the first, before which the model is made."""
    history = run.arrays(f"""
        SELECT id, allocated_bytes AS total FROM instants
        WHERE {steps.rows} AND category = '{SNAPSHOT_CATEGORY}' AND allocated_bytes IS NOT NULL ORDER BY id
    """)
    bounds = np.searchsorted(history["id"], steps.ids).tolist()
    return [
        (step, int(history["total"][begin:end].min()))
        for step, (begin, end) in enumerate(pairwise(bounds), 1)
        if begin < end
    ]


def never_freed(run: Run, steps: SnapshotSteps) -> list[NeverFreed]:
    """The lines whose blocks stay, those that hold most first."""
    groups = run.rows(f"""
        WITH allocated AS (
            SELECT address, max(id) AS id, arg_max(ts_ns, id) AS at FROM instants
            WHERE {steps.rows} AND category = '{SNAPSHOT_CATEGORY}' AND name = 'alloc' GROUP BY address
        )
        SELECT stack, {SIZE} AS size, count(*), list(a.id ORDER BY a.id) FILTER (a.id IS NOT NULL),
               list(a.at ORDER BY a.id) FILTER (a.id IS NOT NULL)
        FROM memory_blocks b LEFT JOIN allocated a ON a.address = b.address
        WHERE {steps.rows} AND state = '{LIVE}' AND stack IS NOT NULL
        GROUP BY ALL HAVING count(a.id) >= {_LEAST_STEPS} ORDER BY ALL
    """)
    steady = [
        (stack, size, count, ids, pace)
        for stack, size, count, ids, times in groups
        if (pace := _pace(steps.ids, np.array(ids), np.array(times)))
    ]
    if not steady:
        return []
    # How many blocks of each stack and size the history shows to be allocated, freed or not.
    sizes = ", ".join(map(str, sorted({size for _, size, *_ in steady})))
    counts = run.rows(f"""
        SELECT TRY_CAST(e.args->>'stack' AS INTEGER), i.bytes, count(*)
        FROM (FROM instants WHERE {steps.rows} AND category = '{SNAPSHOT_CATEGORY}' AND name = 'alloc'
              AND bytes IN ({sizes})) i
        JOIN (SELECT id, args FROM events WHERE rank = {steps.rank} AND segment = {steps.segment}) e ON e.id = i.id
        GROUP BY ALL
    """)
    allocated = {(stack, size): count for stack, size, count in counts}
    lines = {
        stack: (source, tuple(frames or ()))
        for stack, source, frames in run.rows(
            "SELECT stack, source, frames FROM memory_stacks "
            f"WHERE rank = {steps.rank} AND segment = {steps.segment} AND source IS NOT NULL"
        )
    }
    by_line: dict[str, list[NeverFreed]] = defaultdict(list)
    for stack, size, count, ids, (every, every_ns, in_steps) in steady:
        if allocated.get((stack, size)) == len(ids) and stack in lines:
            source, frames = lines[stack]
            blocks = (
                source,
                frames,
                count,
                size * count,
                size,
                every,
                every_ns,
                round(size * len(ids) / in_steps),
            )
            by_line[source].append(NeverFreed(steps.rank, steps.device, *blocks))
    leaks = [_together(blocks) for blocks in by_line.values()]
    leaks = [leak for leak in leaks if leak.per_step_bytes >= _LEAST_GROWTH_BYTES]
    return sorted(leaks, key=lambda leak: -leak.per_step_bytes)


def _pace(ends: Ints, ids: Ints, times: Ints) -> tuple[int, int, int] | None:
    """Of the blocks of one stack and size: how many steps and how much time are between two steps with blocks, and how
    many steps there are in all. None if they do not come at a steady pace until the end."""
    steps, first = np.unique(np.searchsorted(ends, ids, side="right"), return_index=True)
    if len(steps) < _LEAST_STEPS:
        return None
    gaps = np.diff(steps)
    usual = int(np.median(gaps))
    if gaps.max() > _STEADY * usual or len(ends) - steps[-1] > _STEADY * usual:
        return None
    return usual, int(np.median(np.diff(times[first]))), int(steps[-1] - steps[0]) + usual


def _together(blocks: list[NeverFreed]) -> NeverFreed:
    """The blocks of one line, of several sizes or called from several others."""
    largest = max(blocks, key=lambda block: block.bytes)
    sizes = {block.block_bytes for block in blocks}
    return replace(
        largest,
        count=sum(block.count for block in blocks),
        bytes=sum(block.bytes for block in blocks),
        block_bytes=largest.block_bytes if len(sizes) == 1 else None,
        per_step_bytes=sum(block.per_step_bytes for block in blocks),
    )


def leak_findings(run: Run, scope: Scope, leaks: list[NeverFreed]) -> list[Finding]:
    """One for each line, with the ranks on which it leaks; of many lines the first few."""
    by_line: dict[str, list[NeverFreed]] = defaultdict(list)
    for leak in leaks:
        by_line[leak.source].append(leak)
    of_line = sorted(by_line.values(), key=lambda same: -max(leak.per_step_bytes for leak in same))
    peaks = {(peak.rank, peak.device): peak.allocated_bytes for peak in snapshot_peaks(run, scope)}
    sizes = device_memory(run, scope)
    more = len(of_line) - _MOST_LINES
    return [_finding(same, sizes.get(same[0].rank), peaks, max(more, 0)) for same in of_line[:_MOST_LINES]]


def _finding(
    same: list[NeverFreed], capacity: int | None, peaks: dict[tuple[int, int], int], more: int
) -> Finding:
    worst = max(same, key=lambda leak: leak.per_step_bytes)
    ranks = tuple(sorted({leak.rank for leak in same}))
    size = format_rounded("bytes", worst.block_bytes or worst.bytes)
    of_size = f" of {size}" if worst.block_bytes else f" ({size})"
    steps = "step" if worst.every == 1 else f"{worst.every} steps"
    at_once = worst.per_step_bytes * worst.every / worst.block_bytes if worst.block_bytes else 0.0
    number = "one" if at_once == 1 else f"{at_once:.0f}" if at_once and at_once.is_integer() else "some"
    pace = f"{number} every {steps} ({format_ns(worst.every_ns, 1)})"
    where = f" on {rank_words(ranks)}" if len(ranks) > 1 else ""
    subject, key = (
        f"{worst.source} of rank {worst.rank}",
        {"rank": worst.rank, "device": f"GPU {worst.device}"},
    )
    facts = [
        Fact("every_ns", round(worst.every_ns), "ns", subject, (worst.rank,)),
        Fact("blocks", worst.count, "count", subject, (worst.rank,)),
        Fact("held_bytes", worst.bytes, "bytes", subject, (worst.rank,)),
        Fact("growth_bytes", worst.per_step_bytes, "bytes", f"{subject}, per step", (worst.rank,), key),
    ]
    free = (capacity or 0) - peaks.get((worst.rank, worst.device), 0)
    if free > 0:
        left = free // worst.per_step_bytes
        facts.append(Fact("steps_until_full", left, "count", f"GPU {worst.device} of rank {worst.rank}"))
    facts.append(Fact("called_by", " < ".join(map(_short, worst.frames[:_MOST_FRAMES])) or None))
    facts.append(Fact("more_lines", more or None, "count"))
    return Finding(
        "warning",
        f"{worst.count:,} blocks{of_size} from {worst.source.partition(':')[0]} were never freed, {pace}{where}",
        ranks=ranks,
        advice="Look for what keeps these tensors alive: a list, a global, a closure, a retained graph. A buffer of "
        "fixed length that is still filling looks the same: record more steps than it holds.",
        facts=tuple(facts),
    )


def _short(frame: str) -> str:
    """'train.py(9): step' without the folders."""
    path, colon, name = frame.partition("(")
    return f"{path.rpartition('/')[2]}{colon}{name}"
