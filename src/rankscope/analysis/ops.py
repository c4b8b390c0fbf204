"""Operators: calls, time on the host and on the device, own and with everything below them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from rankscope.analysis.flops import FLOP_OPS, flops
from rankscope.analysis.notes import left_out, outside_steps
from rankscope.analysis.result import Column, Result
from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

# What --by may be: the key in SQL, and which option records it.
_KEYS = {
    "rank": ("s.rank::VARCHAR", ""),
    "shape": ("coalesce(e.args->>'Input Dims', '')", "record_shapes=True records shapes"),
    "module": ("coalesce(m.name, '')", "with_stack=True records the modules"),
    "source": ("coalesce(m.name, '')", "with_stack=True records Python source lines"),
}


def _number(id_column: str) -> str:
    """One number for a slice of any file, in SQL: `f` is the file's row in segments; a file has 2**40 ids."""
    return f"((f.rowid << 40) | {id_column})"


def ops(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row an operator name, or one a name and key; total includes ops called inside."""
    columns = _load(run, scope, by)
    count = len(columns["slice"])
    device_self = _device_time(run, scope, columns)
    device_total = device_self.copy()
    parent = _match(columns, columns["op"])
    for depth in np.unique(columns["depth"])[::-1]:
        level = np.flatnonzero((columns["depth"] == depth) & (parent >= 0))
        np.add.at(device_total, parent[level], device_total[level])
    key, group = np.unique(np.stack([columns["name"], columns["key"]]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    size = key.shape[1] if count else 0

    def total(values: Any) -> list[int]:
        return [int(x) for x in np.bincount(group, weights=values, minlength=size)]

    names, keys = _texts(run, "name_texts"), _texts(run, "key_texts")
    work = _flops_by_group(run, columns, group, size)
    sums = [total(columns[c]) for c in ("one", "self_ns", "dur_ns")] + [
        total(device_self),
        total(device_total),
    ]
    rows = []
    for i in range(size):
        row: dict[str, Any] = {"name": names[int(key[0, i])]}
        if by:
            row[by] = int(keys[int(key[1, i])]) if by == "rank" else keys[int(key[1, i])] or None
        labels = ("calls", "self_host_ns", "total_host_ns", "self_device_ns", "total_device_ns")
        row |= {label: values[i] for label, values in zip(labels, sums, strict=True)}
        rows.append(row | {"flops": work[i]})
    rows.sort(key=lambda row: (-row["self_device_ns"], -row["self_host_ns"], row["name"]))
    return Result(
        "ops", "Operators", scope.window, _columns(by), rows, notes=tuple(_notes(run, scope, by, rows))
    )


def _columns(by: str | None) -> tuple[Column, ...]:
    key = (Column(by, help="what the rows are grouped by", at_end=by != "rank"),) if by else ()
    return (
        Column("name", at_end=True),
        *key,
        Column("calls", "count"),
        Column("self_host_ns", "ns", "on the host, less what it calls"),
        Column("total_host_ns", "ns", "on the host"),
        Column("self_device_ns", "ns", "device activity it launched itself"),
        Column("total_device_ns", "ns", "device activity it or anything inside it launched"),
        Column("flops", "flop", "of matrix products, from recorded shapes"),
    )


def _notes(run: Run, scope: Scope, by: str | None, rows: list[dict[str, Any]]) -> list[str]:
    inside = sum(row["calls"] for row in rows)
    notes = left_out(run, scope) + outside_steps(run, scope, inside, "slices", "category = 'cpu_op'", "ops")
    if not rows:
        notes.append("no ops in the window; ProfilerActivity.CPU records them")
    elif by and _KEYS[by][1] and all(row[by] is None for row in rows):
        notes.append(f"the trace has no {by}: {_KEYS[by][1]}")
    return notes


def _load(run: Run, scope: Scope, by: str | None) -> dict[str, Any]:
    """The ops as arrays; names and keys as numbers, their texts in two temporary tables."""
    key = _KEYS[by][0] if by else "''"
    link = {"module": "module", "source": "python"}.get(by or "")
    joins = ""
    if by == "shape":
        joins = "JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id"
    elif link:
        joins = f"LEFT JOIN slices m ON m.rank = s.rank AND m.segment = s.segment AND m.id = s.{link}"
    execute = run.connection.execute
    execute(
        "CREATE OR REPLACE TEMP TABLE op_slices AS SELECT s.rank, s.segment, s.id, s.op, s.depth, s.dur_ns, s.self_ns, "
        f"s.name, {key} AS key FROM slices s {joins} WHERE s.category = 'cpu_op' AND {scope.where('s')}"
    )
    for table, column in (("name_texts", "name"), ("key_texts", "key")):
        execute(
            f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT row_number() OVER (ORDER BY {column}) - 1 AS code, "
            f"{column} AS text FROM (SELECT DISTINCT {column} FROM op_slices)"
        )
    columns = run.arrays(f"""
        SELECT {_number("o.id")} AS slice, coalesce({_number("o.op")}, -1) AS op, o.depth::BIGINT AS depth,
               o.dur_ns, o.self_ns, n.code AS name, k.code AS key
        FROM op_slices o
        JOIN segments f ON f.rank = o.rank AND f.segment = o.segment
        JOIN name_texts n ON n.text = o.name
        JOIN key_texts k ON k.text = o.key
    """)
    order = np.argsort(columns["slice"])
    columns = {name: values[order] for name, values in columns.items()}
    columns["one"] = np.ones(len(order), dtype=np.int64)
    return columns


def _texts(run: Run, table: str) -> list[str]:
    return [text for (text,) in run.rows(f"SELECT text FROM {table} ORDER BY code")]


def _match(columns: dict[str, Any], wanted: Any) -> Any:
    """Index of each wanted slice among the ops, or -1."""
    slices = columns["slice"]
    if len(slices) == 0:
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(slices, wanted), len(slices) - 1)
    return np.where(slices[at] == wanted, at, -1)


def _device_time(run: Run, scope: Scope, columns: dict[str, Any]) -> Any:
    """Device time each op launched itself, over the ops at hand."""
    launched = run.arrays(
        f"SELECT {_number('g.op')} AS op, sum(g.dur_ns)::BIGINT AS time FROM gpu g "
        "JOIN segments f ON f.rank = g.rank AND f.segment = g.segment "
        f"WHERE g.op IS NOT NULL AND {scope.only_ranks().where('g')} GROUP BY ALL"
    )
    time = np.zeros(len(columns["slice"]), dtype=np.int64)
    at = _match(columns, launched["op"])
    time[at[at >= 0]] = launched["time"][at >= 0]
    return time


def _flops_by_group(run: Run, columns: dict[str, Any], group: Any, size: int) -> list[int | None]:
    """Operations of matrix products by group; None where no shape tells."""
    names = ", ".join(f"'{name}'" for name in FLOP_OPS)
    shaped = run.rows(f"""
        SELECT {_number("o.id")}, o.name, e.args->>'Input Dims'
        FROM op_slices o
        JOIN segments f ON f.rank = o.rank AND f.segment = o.segment
        JOIN events e ON e.rank = o.rank AND e.segment = o.segment AND e.id = o.id
        WHERE o.name IN ({names}) AND e.name IN ({names}) AND (e.args->>'Input Dims') IS NOT NULL
    """)
    totals: list[int | None] = [None] * size
    known: dict[tuple[str, str], int | None] = {}
    places = _match(columns, np.array([row[0] for row in shaped], dtype=np.int64))
    for (_, name, dims), place in zip(shaped, places.tolist(), strict=True):
        if (name, dims) not in known:
            known[name, dims] = flops(name, json.loads(dims))
        work, at = known[name, dims], int(group[place])
        if work is not None:
            totals[at] = (totals[at] or 0) + work
    return totals
