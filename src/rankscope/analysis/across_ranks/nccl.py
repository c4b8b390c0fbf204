"""The collectives as NCCL itself measured them: time and bandwidth by communicator, kind and size.

Finding: a communicator that is far slower than others of the same size with the same messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.collectives import collectives
from rankscope.analysis.across_ranks.comparison_notes import HOW_TO_RECORD_STARTS
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import bus_factor
from rankscope.model import NCCL
from rankscope.ranges import as_ranges
from rankscope.sql import sql_text
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS: tuple[Column, ...] = (
    Column("group", "", "NCCL's hash of the communicator; Prometheus: its name"),
    Column("kind", ""),
    Column("bytes", "bytes", "message size S as in nccl-tests", decimals=0),
    Column("size_range", "", "Prometheus: message sizes of one rank, as NCCL counts them", minor=True),
    Column("ranks", "count", "size of the communicator"),
    Column("count", "count", "operations on a rank, the largest over the ranks; unknown in Prometheus text"),
    Column("dur_ns", "ns", "mean execution time as NCCL reports it, including waiting"),
    Column(
        "transfer_ns", "ns", "shortest time over the ranks of the same operation, mean over the operations"
    ),
    Column("algbw_gb_s", "GB/s", "as NCCL reports it, median", title="algbw"),
    Column("busbw_gb_s", "GB/s", "as NCCL reports it, median", title="busbw"),
    Column(
        "computed_busbw_gb_s",
        "GB/s",
        "S and the factor of nccl-tests over the time, median",
        title="Computed",
    ),
    Column("differing", "count", "operations whose reported busbw differs from the computed one by over 1 %"),
    Column(
        "transfer_busbw_gb_s",
        "GB/s",
        "the same over the median transfer, as in collectives",
        title="Transfer busbw",
    ),
    Column(
        "trace_busbw_gb_s",
        "GB/s",
        "of the same kind, size and number of ranks in the traces of the run",
        title="In traces",
        minor=True,
    ),
    Column("nodes", "count", "nodes of the communicator", minor=True),
    Column("timing", "", "what measured the time", minor=True),
    Column("name", "", "name of the communicator", minor=True, at_end=True),
    Column("recorded_ranks", "", "ranks with a file", title="Recorded", minor=True, at_end=True),
)
_KEYS = ("group", "kind", "bytes", "size_range", "ranks", "nodes")
_DIFFERS = 0.01
"""Of the computed bandwidth: what NCCL reports is rounded. Chosen, not measured."""
_SLOW_PCT = 70.0
"""A communicator below this share of the median of its like is a finding. Chosen, not measured."""
_LEAST_ALIKE = 3

_ROWS = """
WITH sized AS (
    SELECT * REPLACE ({ranks} AS ranks,
                      coalesce(bytes, rank_bytes * {ranks}) AS bytes)
    FROM nccl LEFT JOIN (SELECT communicator AS seen, count(DISTINCT communicator_rank) AS seen_ranks FROM nccl
                         WHERE {where} GROUP BY communicator) ON seen = communicator
    WHERE {where}
), operations AS (
    SELECT rank, communicator AS group, kind, bytes, size_range, ranks, nodes, function, seq, peer, duration_ns, timing,
           nullif(algbw_gb_s, 0) AS algbw, nullif(busbw_gb_s, 0) AS busbw, busbw_gb_s AS reported, is_mean,
           communicator_name AS name,
           CASE WHEN NOT is_mean THEN bytes / nullif(duration_ns, 0) * factor END AS computed, factor
    FROM sized LEFT JOIN (VALUES {factors}) f (of_kind, of_ranks, factor) ON of_kind = kind AND of_ranks = ranks
), matched AS (
    SELECT {keys}, min(duration_ns) AS transfer FROM operations
    WHERE NOT is_mean AND peer IS NULL GROUP BY {keys}, function, seq HAVING count(DISTINCT rank) > 1
), transfers AS (
    SELECT {keys}, round_even(avg(transfer), 0)::BIGINT AS transfer, median(transfer) AS usual
    FROM matched GROUP BY {keys}
), counts AS (
    SELECT {keys}, max(count) AS count
    FROM (SELECT {keys}, rank, count(*) AS count FROM operations GROUP BY {keys}, rank) GROUP BY {keys}
), measured AS (
    SELECT {keys}, any_value(name) AS name, string_agg(DISTINCT timing, ', ' ORDER BY timing) AS timing,
           list(DISTINCT rank ORDER BY rank) AS recorded, round_even(avg(duration_ns), 0)::BIGINT AS dur_ns,
           median(algbw) AS algbw, median(busbw) AS busbw, median(computed) AS computed, any_value(factor) AS factor,
           bool_or(is_mean) AS is_mean,
           count(*) FILTER (abs(reported - computed) > {differs} * computed) AS differing,
           sum(duration_ns) AS total
    FROM operations GROUP BY {keys}
)
SELECT m.*, t.transfer, t.usual, c.count FROM measured m
JOIN counts c ON {same_counts} LEFT JOIN transfers t ON {same_transfers}
ORDER BY m.total DESC NULLS LAST, {ordered}
"""


def nccl(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each communicator, kind and size, by total time."""
    where = scope.only_ranks().where()
    rows = _rows(run, where) if run.has(NCCL) else []
    notes = _notes(run, rows)
    in_traces: dict[tuple[Any, ...], Any] = {}
    if rows and run.has_traces:
        measured = collectives(run, Scope(ranks=scope.ranks)).rows
        # Of several rows with the same key, the one with most time wins.
        in_traces = {
            (row["kind"], row["bytes"], row["ranks"]): row["busbw_gb_s"] for row in reversed(measured)
        }
    for row in rows:
        row["trace_busbw_gb_s"] = in_traces.get((row["kind"], row["bytes"], row["ranks"]))
    return Result(
        "collectives.nccl",
        "Collectives by NCCL's own measurement",
        "whole file",
        COLUMNS,
        rows,
        () if run.has_traces else _findings(rows),
        tuple(notes),
    )


def _rows(run: Run, where: str) -> list[dict[str, Any]]:
    kinds = run.rows(
        f"SELECT DISTINCT kind, n FROM nccl, (SELECT DISTINCT ranks AS n FROM nccl WHERE {where} UNION "
        f"SELECT count(DISTINCT communicator_rank) FROM nccl WHERE {where} GROUP BY communicator) WHERE n > 0"
    )
    factors = [
        f"({sql_text(kind)}, {ranks}, {bus_factor(kind, ranks) or 'NULL'}::DOUBLE)" for kind, ranks in kinds
    ]

    def same(other: str) -> str:
        return " AND ".join(f'm."{key}" IS NOT DISTINCT FROM {other}."{key}"' for key in _KEYS)

    rows = run.records(
        _ROWS.format(
            factors=", ".join(factors) or "(NULL, NULL, NULL::DOUBLE)",
            where=where,
            ranks="coalesce(ranks, seen_ranks)",
            keys=", ".join(f'"{key}"' for key in _KEYS),
            same_counts=same("c"),
            same_transfers=same("t"),
            ordered=", ".join(f'm."{key}"' for key in _KEYS),
            differs=_DIFFERS,
        )
    )
    return [
        {
            **{key: row[key] for key in _KEYS},
            "count": None if row["is_mean"] else row["count"],
            "dur_ns": row["dur_ns"],
            "transfer_ns": row["transfer"],
            "algbw_gb_s": row["algbw"],
            "busbw_gb_s": row["busbw"],
            "computed_busbw_gb_s": row["computed"],
            "differing": None if row["is_mean"] else row["differing"],
            "transfer_busbw_gb_s": row["bytes"] / row["usual"] * row["factor"]
            if row["bytes"] and row["usual"] and row["factor"]
            else None,
            "timing": row["timing"],
            "name": row["name"],
            "recorded_ranks": as_ranges(row["recorded"]),
        }
        for row in rows
    ]


def _notes(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return [
            "no files of NCCL: its Inspector writes them with NCCL_PROFILER_PLUGIN=libnccl-profiler-inspector.so and "
            "NCCL_INSPECTOR_ENABLE=1 (docs/files.md)"
        ]
    unknown = sorted(
        {version for entry in run.used if (version := entry.manifest["header"].get("unknown_version"))}
    )
    notes = [f"the Inspector's output format {version} is newer: read as v4.0" for version in unknown]
    differing = sum(row["differing"] or 0 for row in rows)
    if differing:
        kinds = ", ".join(sorted({row["kind"] for row in rows if row["differing"]}))
        notes.append(
            f"the busbw that NCCL reports differs from the computed one in {differing:,} operations ({kinds}); "
            "the Inspector computes none for all_to_all"
        )
    ((started, operations, unsized),) = run.rows(
        "SELECT count(*) FILTER (started_ns IS NOT NULL), count(*) FILTER (NOT is_mean), "
        "count(*) FILTER (ranks IS NULL) FROM nccl"
    )
    if operations and not started:
        notes.append(f"cannot say who arrives late: these files have no start times ({HOW_TO_RECORD_STARTS})")
    if unsized:
        notes.append(
            "dumps of the profiler plugin do not have the size of a communicator: it is taken to be the number of "
            "its ranks that have a dump"
        )
    if any(row["count"] is None for row in rows):
        notes.append(
            "Prometheus text holds means over an unknown number of operations of the last interval: no counts, no "
            "order, and cannot say who arrives late"
        )
    if run.has_traces:
        notes.append("stragglers and collectives are from the traces; NCCL's files are in this report only")
    return notes


def _findings(rows: list[dict[str, Any]]) -> tuple[Finding, ...]:
    """The slowest communicator among at least three of one size that move the same messages. Where there are traces,
    links are compared with each other there."""
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["busbw_gb_s"]:
            alike.setdefault(tuple(row[key] for key in _KEYS[1:]), []).append(row)
    findings = []
    for members in alike.values():
        usual = float(np.median([row["busbw_gb_s"] for row in members]))
        slowest = min(members, key=lambda row: row["busbw_gb_s"])
        pct = 100 * slowest["busbw_gb_s"] / usual
        if len(members) >= _LEAST_ALIKE and pct < _SLOW_PCT:
            size, given = slowest["size_range"] or "unknown size", slowest["bytes"]
            key = {name: slowest[name] for name in ("group", "kind", "bytes")}
            whose = f"communicator {slowest['group']}"
            usual_of = f"the median of {len(members)} communicators of {slowest['ranks']} ranks"
            findings.append(
                Finding(
                    "warning",
                    f"{slowest['kind']} of {format_rounded('bytes', given) if given else size} in {whose} reaches "
                    f"{pct:.0f} % of the bandwidth of its like",
                    advice="Check the links between its ranks, or a rank of it that is late: NCCL's times include "
                    "waiting.",
                    facts=(
                        Fact("busbw_gb_s", slowest["busbw_gb_s"], "GB/s", whose, row=key),
                        Fact("usual_busbw_gb_s", usual, "GB/s", usual_of),
                        Fact("recorded_ranks", slowest["recorded_ranks"], "", whose, row=key),
                        Fact("busbw_pct", pct, "percent", whose, row=key),
                    ),
                )
            )
    return tuple(findings)
