"""Reserved memory that tensors do not use: how much, and in how many pieces.

The table is of the moment of the snapshot. Between two steps much is free that the next step uses again, so a finding
is about the peak of the history.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.ceilings import device_memory
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import (
    Rectangles,
    SnapshotPeak,
    last_snapshots,
    read_blocks,
    snapshot_peaks,
)
from rankscope.model import MEMORY_SEGMENTS
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("kind", help="large: segments for blocks over 1 MB; small: segments for smaller blocks"),
    Column("segments", "count", "allocations from the driver"),
    Column("reserved_bytes", "bytes", "size of the segments"),
    Column("allocated_bytes", "bytes", "used by tensors, rounded up to blocks"),
    Column("free_bytes", "bytes", "reserved minus allocated"),
    Column("largest_free_bytes", "bytes", "largest free block"),
    Column("free_blocks", "count", "number of free blocks"),
    Column("rounding_bytes", "bytes", "allocated minus requested"),
)
# A finding needs both: this many free bytes, and this share of the reserved memory. Chosen, not measured.
MIN_FREE_BYTES = 1_000_000_000
MIN_FREE_PCT = 25.0
FULL_PCT = 92.0
"""Of the device, reserved: then free blocks that do not fit are a problem."""
_BLOCK_BYTES = 512
"""torch rounds requests up to this."""


def fragmentation(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank, device and kind of segment, from the last snapshot of each rank."""
    sql = f"""
        WITH last AS ({last_snapshots(scope)}
        ), blocks AS (
            SELECT rank, segment, number, max(bytes) FILTER (state = 'inactive') AS largest,
                   count(*) FILTER (state = 'inactive') AS free,
                   sum(bytes - coalesce(requested_bytes, bytes)) FILTER (state <> 'inactive') AS rounding
            FROM memory_blocks WHERE {scope.only_ranks().where()} GROUP BY rank, segment, number
        )
        SELECT m.rank, m.device, m.kind, count(*) AS segments, sum(m.total_bytes)::BIGINT AS reserved_bytes,
               sum(m.allocated_bytes)::BIGINT AS allocated_bytes,
               sum(m.total_bytes - m.allocated_bytes)::BIGINT AS free_bytes,
               coalesce(max(b.largest), 0) AS largest_free_bytes, coalesce(sum(b.free), 0)::BIGINT AS free_blocks,
               coalesce(sum(b.rounding), 0)::BIGINT AS rounding_bytes
        FROM memory_segments m JOIN last l ON l.rank = m.rank AND l.segment = m.segment
        LEFT JOIN blocks b ON b.rank = m.rank AND b.segment = m.segment AND b.number = m.number
        GROUP BY m.rank, m.device, m.kind ORDER BY m.rank, m.device, m.kind
    """
    rows = run.records(sql) if run.has(MEMORY_SEGMENTS) else []
    notes = []
    if not rows:
        notes.append(
            "no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or rankscope.memory_history() writes one"
        )
    peaks = snapshot_peaks(run, scope)
    judged = [peak for peak in peaks if peak.event is not None]
    if judged:
        worst = max(judged, key=lambda peak: peak.unused_bytes)
        notes.append(
            f"at the peak {_bytes(worst.unused_bytes)} of {_bytes(_reserved(worst))} are not allocated "
            f"(GPU {worst.device} of rank {worst.rank}); what is free between two steps, the next one uses again"
        )
    if without := {peak.rank for peak in peaks} - {peak.rank for peak in judged}:
        notes.append(
            f"no history: {rank_words(without)}; how much is free at the peak is not known "
            "(torch.cuda.memory._record_memory_history() records it)"
        )
    wasteful = [
        peak
        for peak in judged
        if peak.unused_bytes >= max(MIN_FREE_BYTES, MIN_FREE_PCT / 100 * _reserved(peak))
    ]
    findings = (_unused_memory(run, wasteful, device_memory(run, scope)),) if wasteful else ()
    return Result(
        "memory.fragmentation",
        "Reserved memory that is not used",
        "at the snapshot",
        COLUMNS,
        rows,
        findings,
        tuple(notes),
    )


def _reserved(peak: SnapshotPeak) -> int:
    """When the most was allocated."""
    return peak.allocated_bytes + peak.unused_bytes


def _bytes(size: int) -> str:
    return format_rounded("bytes", size)


def _unused_memory(run: Run, wasteful: list[SnapshotPeak], sizes: dict[int, int]) -> Finding:
    """Of the device with the most; how many others there are is said."""
    peak = max(wasteful, key=lambda each: (each.unused_bytes, -each.rank))
    more = len(wasteful) - 1
    also = f"; so is much of {more} more device{'s' * (more > 1)}" if more else ""
    capacity = sizes.get(peak.rank)
    rank, device, free, reserved = peak.rank, peak.device, peak.unused_bytes, _reserved(peak)
    pieces = _free_at(run, peak)
    largest = max(pieces, default=0)
    subject = f"GPU {device} of rank {rank}, at the peak"
    share = Fact("free_pct", 100 * free / reserved, "percent", subject, (rank,))
    facts = (
        Fact("free_bytes", free, "bytes", subject, (rank,)),
        Fact("allocated_bytes", peak.allocated_bytes, "bytes", subject, (rank,)),
        Fact("reserved_bytes", reserved, "bytes", subject, (rank,)),
        Fact("free_blocks", len(pieces), "count", subject, (rank,)),
        Fact("largest_free_bytes", largest, "bytes", subject, (rank,)),
        share,
    )
    in_one_block = largest >= free / 2
    return Finding(
        "warning" if capacity and 100 * peak.reserved_bytes > FULL_PCT * capacity else "info",
        f"{_bytes(free)} of GPU {device} (rank {rank}) is reserved but not allocated at the peak "
        f"({share.value:.0f} %){also}",
        ranks=tuple(sorted({each.rank for each in wasteful})),
        span=None if peak.at_ns is None else (peak.at_ns, peak.at_ns),
        advice="It was reserved for a larger block before: torch.cuda.empty_cache() after that phase returns it."
        if in_one_block
        else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation.",
        facts=facts,
    )


def _free_at(run: Run, peak: SnapshotPeak) -> list[int]:
    """The sizes of the free blocks at the peak: what is between the allocations in each segment."""
    blocks = read_blocks(run, peak.rank, peak.device, peak.segment)
    at = peak.at_ns if blocks.has_times else peak.event
    assert at is not None
    begins, ends = _at(blocks.allocations, at)
    ends = begins + -(-(ends - begins) // _BLOCK_BYTES) * _BLOCK_BYTES
    free: list[int] = []
    for low, high in zip(*(edges.tolist() for edges in _at(blocks.segments, at)), strict=True):
        inside = (begins >= low) & (begins < high)
        gaps = np.append(begins[inside], high) - np.append(low, ends[inside])
        free += gaps[gaps >= _BLOCK_BYTES].tolist()
    return free


def _at(rectangles: Rectangles, time: int) -> tuple[Any, Any]:
    """Where those that are there at this time begin and end, by address."""
    there = np.flatnonzero((rectangles.begin <= time) & (rectangles.end > time))
    there = there[np.argsort(rectangles.address[there], kind="stable")]
    return rectangles.address[there], rectangles.address[there] + rectangles.bytes[there]
