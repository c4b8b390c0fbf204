"""Operators and Python functions: calls, self and total time on the host, of operators also on the device, FLOPs."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.advice import Recorded, how_to_record
from rankscope.analysis.core.device_events import slice_counts
from rankscope.analysis.core.notes import slices_outside_steps
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import ORIGIN_KEYS, SAME, origin_of
from rankscope.analysis.within_rank.op_work import OpWork, op_work
from rankscope.model import ORIGINS
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run

_REPLAYED = " (graph replay)"
_RECORDED: dict[str, Recorded] = {"shape": "shapes", **ORIGIN_KEYS}
"""Keys of --by that a trace may lack, and what has to be recorded for each."""


def ops(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per operator name, or per name and key; totals include the ops it calls."""
    key, joins = _key(by)
    rows = run.records(f"""
        SELECT s.name, {key} count(*) AS calls, sum(s.self_ns)::BIGINT AS self_host_ns,
               sum(s.dur_ns)::BIGINT AS total_host_ns, sum(s.device_ns)::BIGINT AS self_device_ns,
               sum(s.total_device_ns)::BIGINT AS total_device_ns
        FROM (FROM slices WHERE category = 'cpu_op' AND {scope.where()}) s {joins} GROUP BY ALL
    """)
    replayed = _replayed(run, scope, by, rows) if run.has(ORIGINS) else []
    notes = slices_outside_steps(run, scope, sum(row["calls"] for row in rows), ("cpu_op",), "ops")
    if not rows:
        were_recorded = "cpu_op" in slice_counts(run, Scope())
        notes.append("no ops in the window" + ("" if were_recorded else f"; {how_to_record(run, 'host')}"))
    elif by in _RECORDED and all(row[by] is None for row in (*rows, *replayed)):
        notes.append(f"the trace has no {by}: {how_to_record(run, _RECORDED[by])}")
    rows += replayed
    flops = _flops(run, scope, by)
    for row in rows:
        row["flops"] = flops.get((row["name"], row[by] if by else None))
    rows.sort(
        key=lambda row: (-row["self_device_ns"], -row["self_host_ns"], row["name"], str(row.get(by or "")))
    )
    columns = (
        Column("name", at_end=True),
        *((Column(by, help="key that splits the rows", at_end=by != "rank"),) if by else ()),
        Column("calls", "count"),
        Column("self_host_ns", "ns", "time on the host, without what it calls"),
        Column("total_host_ns", "ns", "time on the host"),
        Column("self_device_ns", "ns", "device activity that it launched itself"),
        Column("total_device_ns", "ns", "device activity that it or an op inside it launched"),
        Column("flops", "flop", "of matrix products, convolutions and attention, from recorded shapes"),
    )
    return Result("ops", "Operators", scope.window, columns, rows, notes=tuple(notes))


def _replayed(run: Run, scope: Scope, by: str | None, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the ops that CUDA graphs replay, one call a kernel.

    They count as called by the op that launches the graph: its self time in `rows` is reduced.
    """
    of_origin = {"rank": "g.rank", "shape": "NULL"}
    key, joins = (of_origin[by], "") if by in of_origin else origin_of(run, by) if by else ("NULL", "")
    if "origins o" not in joins:
        joins += f" LEFT JOIN origins o ON {SAME}"
    column = f"{key} AS {by}," if by else ""
    replayed = run.records(f"""
        SELECT coalesce(o.op || '{_REPLAYED}', 'graph replay') AS name, {column} count(*) AS calls,
               0 AS self_host_ns, 0 AS total_host_ns, sum(g.dur_ns)::BIGINT AS self_device_ns,
               sum(g.dur_ns)::BIGINT AS total_device_ns
        FROM gpu g {joins} WHERE o.node IS NOT NULL AND {scope.where("g")} GROUP BY ALL
    """)
    key, joins = _key(by)
    launching = run.rows(f"""
        SELECT s.name, {key or "NULL,"} sum(s.replayed_ns)::BIGINT FROM (
            SELECT s.*, g.dur_ns AS replayed_ns FROM gpu g JOIN origins o ON {SAME}
            JOIN slices s ON s.rank = g.rank AND s.segment = g.segment AND s.id = g.op
            WHERE o.node IS NOT NULL AND s.category = 'cpu_op' AND {scope.where("s")}
        ) s {joins} GROUP BY ALL
    """)
    launchers = {(row["name"], row[by] if by else None): row for row in rows}
    for name, value, time in launching:
        launchers[name, value]["self_device_ns"] -= time
    return replayed


def _key(by: str | None) -> tuple[str, str]:
    """SQL for the key column and for the joins it needs; `s` is the table of ops."""
    same = "k.rank = s.rank AND k.segment = s.segment"
    if by == "rank":
        return "s.rank,", ""
    if by == "shape":
        return "nullif(k.args->>'Input Dims', '') AS shape,", f"LEFT JOIN events k ON {same} AND k.id = s.id"
    if by in ("module", "source"):
        link = "module" if by == "module" else "python"
        frames = "(SELECT rank, segment, id, name FROM slices WHERE category = 'python_function')"
        return f"k.name AS {by},", f"LEFT JOIN {frames} k ON {same} AND k.id = s.{link}"
    return "", ""


def _flops(run: Run, scope: Scope, by: str | None) -> dict[tuple[str, Any], int]:
    """FLOPs by name and key, for ops with known FLOPs."""
    work = op_work(run, scope)
    keys: list[Any] = _frames(run, scope, by, work) if by in ("module", "source") else []
    texts = list(dict.fromkeys(keys))
    number = {text: code for code, text in enumerate(texts)}
    codes = np.array([number[key] for key in keys], dtype=np.int64) if keys else work.rank
    pairs, which = number_rows([work.signature, codes])
    sums = np.zeros(len(pairs), dtype=np.int64)
    np.add.at(sums, which, work.flops)
    totals: dict[tuple[str, Any], int] = {}
    for (signature, code), flops in zip(pairs.tolist(), sums.tolist(), strict=True):
        key = code if by == "rank" else work.shapes[signature] or None if by == "shape" else None
        name = work.names[signature], texts[code] if texts else key
        totals[name] = totals.get(name, 0) + flops
    return totals


def _frames(run: Run, scope: Scope, by: str, work: OpWork) -> list[Any]:
    """The module or line of Python of each counted call."""
    key, joins = _key(by)
    frames = dict(
        run.rows(f"""
            SELECT (f.rowid << 40) | s.id, {key.rstrip(",")} FROM (FROM slices WHERE {scope.where()}) s
            SEMI JOIN computing_ops c ON c.rank = s.rank AND c.segment = s.segment AND c.id = s.id
            JOIN segments f ON f.rank = s.rank AND f.segment = s.segment {joins}
        """)
    )
    return [frames[number] for number in work.number.tolist()]


_FRAME = "category = 'python_function'"
_NAME = "regexp_replace(slices.name, ' at 0x[0-9a-f]+', '')"
"""Every process has other addresses: <built-in method acquire of _thread.lock object at 0x7fb9457e5ac0>."""
_PYTHON_COLUMNS = (
    Column("calls", "count"),
    Column("self_host_ns", "ns", "time outside the functions, ops and runtime calls that it calls"),
    Column("total_host_ns", "ns", "time inside it; a call of itself is counted once"),
    Column("name", help="file(line): function", at_end=True),
)


def python_functions(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per function, most self time first."""
    keys = "rank, name" if by == "rank" else "name"
    rows = run.records(f"""
        SELECT {keys}, count(*) AS calls, sum(self_ns)::BIGINT AS self_host_ns,
               (sum(dur_ns) FILTER (outer_end IS NULL OR start_ns >= outer_end))::BIGINT AS total_host_ns
        FROM (
            SELECT rank, {_NAME} AS name, start_ns, dur_ns, self_ns, max(start_ns + dur_ns) OVER (
                PARTITION BY rank, segment, track, {_NAME} ORDER BY start_ns, dur_ns DESC, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS outer_end
            FROM slices WHERE {_FRAME} AND {scope.where()}
        ) GROUP BY {keys} ORDER BY self_host_ns DESC, {keys}
    """)
    notes = slices_outside_steps(run, scope, sum(row["calls"] for row in rows), ("python_function",), "calls")
    recorded = "python_function" in slice_counts(run, Scope())
    if not recorded:
        notes.append(f"no Python functions were recorded: {how_to_record(run, 'stacks')}")
    columns = (*((Column("rank"),) if by == "rank" else ()), *_PYTHON_COLUMNS)
    title, unknown = "Python functions", "" if recorded else None
    return Result("ops.python", title, scope.window, columns, rows, notes=tuple(notes), unknown=unknown)
