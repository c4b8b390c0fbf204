"""What the caching allocator holds and does not use, from torch's memory snapshots: how much, in which pieces."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.store.run import Run
from rankscope.units import format_bytes

COLUMNS = (
    Column("rank"),
    Column("device"),
    Column("kind", help="large: segments for blocks over 1 MB; small: for the others"),
    Column("segments", "count", "pieces got from the driver"),
    Column("reserved_bytes", "bytes", "their size", per_row_unit=True),
    Column("allocated_bytes", "bytes", "in use by tensors, rounded up to blocks", per_row_unit=True),
    Column("free_bytes", "bytes", "reserved less allocated", per_row_unit=True),
    Column("largest_free_bytes", "bytes", "largest block that is free", per_row_unit=True),
    Column("free_blocks", "count", "pieces the free memory is in"),
    Column("rounding_bytes", "bytes", "allocated less asked for", per_row_unit=True),
)
_LEAST_FREE = 1_000_000_000
_LEAST_SHARE = 0.25


def fragments(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank, device and kind of segment, at the moment of the rank's last snapshot."""
    where = scope.only_ranks().where()
    rows = run.records(f"""
        WITH last AS (
            SELECT m.rank, arg_max(m.segment, (s.unix_ns, m.segment)) AS segment FROM memory_segments m
            JOIN segments s ON s.rank = m.rank AND s.segment = m.segment
            WHERE {scope.only_ranks().where("m")} GROUP BY m.rank
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
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or rankscope.memory_history() writes one"
        )
    findings = tuple(finding for row in rows if (finding := _fragmented(row)) is not None)
    return Result(
        "fragments", "Reserved memory not in use", "at the snapshot", COLUMNS, rows, findings, tuple(notes)
    )


def _fragmented(row: dict[str, Any]) -> Finding | None:
    free, reserved, largest = row["free_bytes"], row["reserved_bytes"], row["largest_free_bytes"]
    if free < _LEAST_FREE or free < _LEAST_SHARE * reserved:
        return None
    whole = largest >= free / 2
    return Finding(
        "info",
        f"GPU {row['device']} of rank {row['rank']} holds {format_bytes(free)} it does not use "
        f"({100 * free / reserved:.0f} % of what is reserved)",
        f"It is in {row['free_blocks']:,} pieces; the largest is {format_bytes(largest)}.",
        ranks=(row["rank"],),
        hint="It is there for the next peak."
        if whole
        else "A larger tensor than that piece needs new memory: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    )
