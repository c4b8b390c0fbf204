"""Memory that the caching allocator reserves and tensors do not use, from torch memory snapshots."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Unit
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import last_snapshots
from rankscope.model import MEMORY_SEGMENTS
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("kind", help="large: segments for blocks over 1 MB; small: segments for smaller blocks"),
    Column("segments", "count", "allocations from the driver"),
    Column("reserved_bytes", "bytes", "size of the segments", per_row_unit=True),
    Column("allocated_bytes", "bytes", "used by tensors, rounded up to blocks", per_row_unit=True),
    Column("free_bytes", "bytes", "reserved minus allocated", per_row_unit=True),
    Column("largest_free_bytes", "bytes", "largest free block", per_row_unit=True),
    Column("free_blocks", "count", "number of free blocks"),
    Column("rounding_bytes", "bytes", "allocated minus requested", per_row_unit=True),
)
# A finding needs both: this many free bytes, and this share of the reserved memory.
_MIN_FREE_BYTES = 1_000_000_000
_MIN_FREE_SHARE = 0.25
_FACTS: dict[str, Unit] = {
    "free_bytes": "bytes",
    "reserved_bytes": "bytes",
    "free_blocks": "count",
    "largest_free_bytes": "bytes",
}


def fragmentation(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank, device and kind of segment, from the last snapshot of each rank."""
    rows = _rows(run, scope) if run.has(MEMORY_SEGMENTS) else []
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or rankscope.memory_history() writes one"
        )
    findings = tuple(finding for row in rows if (finding := _unused_memory(row)) is not None)
    return Result(
        "fragmentation",
        "Reserved memory that is not used",
        "at the snapshot",
        COLUMNS,
        rows,
        findings,
        tuple(notes),
    )


def _rows(run: Run, scope: Scope) -> list[dict[str, Any]]:
    where = scope.only_ranks().where()
    return run.records(f"""
        WITH last AS ({last_snapshots(scope)}
        ), blocks AS (
            SELECT rank, segment, number, max(bytes) FILTER (state = 'inactive') AS largest,
                   count(*) FILTER (state = 'inactive') AS free,
                   sum(bytes - coalesce(requested_bytes, bytes)) FILTER (state <> 'inactive') AS rounding
            FROM memory_blocks WHERE {where} GROUP BY rank, segment, number
        )
        SELECT m.rank, m.device, m.kind, count(*) AS segments, sum(m.total_bytes)::BIGINT AS reserved_bytes,
               sum(m.allocated_bytes)::BIGINT AS allocated_bytes,
               sum(m.total_bytes - m.allocated_bytes)::BIGINT AS free_bytes,
               coalesce(max(b.largest), 0) AS largest_free_bytes, coalesce(sum(b.free), 0)::BIGINT AS free_blocks,
               coalesce(sum(b.rounding), 0)::BIGINT AS rounding_bytes
        FROM memory_segments m JOIN last l ON l.rank = m.rank AND l.segment = m.segment
        LEFT JOIN blocks b ON b.rank = m.rank AND b.segment = m.segment AND b.number = m.number
        GROUP BY m.rank, m.device, m.kind ORDER BY m.rank, m.device, m.kind
    """)


def _unused_memory(row: dict[str, Any]) -> Finding | None:
    free, reserved, largest = row["free_bytes"], row["reserved_bytes"], row["largest_free_bytes"]
    if free < _MIN_FREE_BYTES or free < _MIN_FREE_SHARE * reserved:
        return None
    in_one_block = largest >= free / 2
    subject = f"{row['kind']} segments of GPU {row['device']}, rank {row['rank']}"
    key = {name: row[name] for name in ("rank", "device", "kind")}
    share = Fact("free_pct", 100 * free / reserved, "percent", subject, (row["rank"],))
    facts = [Fact(name, row[name], unit, subject, (row["rank"],), key) for name, unit in _FACTS.items()]
    return Finding(
        "info",
        f"{format_rounded('bytes', free)} in {row['kind']} segments of GPU {row['device']} (rank {row['rank']}) is "
        f"reserved but not allocated ({share.value:.0f} %)",
        f"Free blocks: {row['free_blocks']:,}; the largest is {format_rounded('bytes', largest)}. "
        "A larger tensor needs new memory.",
        ranks=(row["rank"],),
        hint="The next peak can use it."
        if in_one_block
        else "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True reduces fragmentation.",
        facts=(*facts, share),
    )
