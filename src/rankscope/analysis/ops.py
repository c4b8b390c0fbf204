"""Operators: calls, time on the host and on the device, own and with everything below them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.device import ranks_in, texts
from rankscope.analysis.intervals import Ints
from rankscope.analysis.notes import left_out, outside_steps
from rankscope.analysis.op_work import OpWork, op_work
from rankscope.analysis.result import Column, Result
from rankscope.analysis.scope import Scope
from rankscope.store.run import Run

# What --by may be, and which option records it.
_KEYS = {
    "rank": "",
    "shape": "record_shapes=True records shapes",
    "module": "with_stack=True records the modules",
    "source": "with_stack=True records Python source lines",
}
_LABELS = ("calls", "self_host_ns", "total_host_ns", "self_device_ns", "total_device_ns")
_NOTHING = -1


def ops(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row an operator name, or one a name and key; total includes ops called inside."""
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    work = op_work(run, scope)
    for rank in ranks_in(run, scope):  # one rank's ops in memory at a time
        for name, key, sums in _groups(run, rank, scope, by, work):
            row = found.setdefault((name, key), {"name": name} | ({by: key} if by else {}))
            for label, value in sums.items():
                if value is not None:
                    row[label] = (row.get(label) or 0) + value
                else:
                    row.setdefault(label, None)
    rows = sorted(found.values(), key=lambda row: (-row["self_device_ns"], -row["self_host_ns"], row["name"]))
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
        Column("flops", "flop", "of products, convolutions, attention, from recorded shapes"),
    )


def _notes(run: Run, scope: Scope, by: str | None, rows: list[dict[str, Any]]) -> list[str]:
    inside = sum(row["calls"] for row in rows)
    notes = left_out(run, scope) + outside_steps(run, scope, inside, "slices", "category = 'cpu_op'", "ops")
    if not rows:
        notes.append("no ops in the window; ProfilerActivity.CPU records them")
    elif by and _KEYS[by] and all(row[by] is None for row in rows):
        notes.append(f"the trace has no {by}: {_KEYS[by]}")
    return notes


def _groups(
    run: Run, rank: int, scope: Scope, by: str | None, work: OpWork
) -> Iterator[tuple[str, Any, dict[str, int | None]]]:
    """Name, key and sums of each group of one rank's ops."""
    columns, keys = _load(run, rank, scope, by)
    if len(columns["number"]) == 0:
        return
    names = texts(run)
    device_self = _device_time(run, rank, columns)
    device_total = _with_callers(columns, device_self)
    width = int(columns["key"].max()) + 2
    combined, group = _distinct(columns["name"] * width + columns["key"] + 1)
    size = len(combined)
    values = (None, columns["self_ns"], columns["dur_ns"], device_self, device_total)
    sums = [np.bincount(group, weights=value, minlength=size).astype(np.int64).tolist() for value in values]
    flops = _flops(columns, group, size, work, rank)
    for i, code in enumerate(combined.tolist()):
        key = keys[code % width - 1] if code % width else None
        of_group: dict[str, int | None] = {label: sums[at][i] for at, label in enumerate(_LABELS)}
        yield names[code // width], rank if by == "rank" else key or None, of_group | {"flops": flops[i]}


def _distinct(codes: Ints) -> tuple[Ints, Ints]:
    """The codes that occur, and which of them each is. There are few: counting them beats sorting."""
    if int(codes.max()) > 4 * len(codes) + 1_000_000:
        known, which = np.unique(codes, return_inverse=True)
        return known, which
    occurs = np.bincount(codes) > 0
    return np.flatnonzero(occurs), (np.cumsum(occurs) - 1)[codes]


def _load(run: Run, rank: int, scope: Scope, by: str | None) -> tuple[dict[str, Ints], list[Any]]:
    """One rank's ops in order of their numbers, names and keys as codes; and the texts of the keys.

    A number names the slice of any file: the file's row in segments, and the id in it (2**40 to a file).
    """
    known = texts(run)  # makes the table of names, too
    key, joins, keys = f"{_NOTHING}", "", list(known)
    if by == "shape":
        shape = "coalesce(e.args->>'Input Dims', '')"
        run.connection.execute(
            "CREATE OR REPLACE TEMP TABLE op_shapes AS SELECT *, dense_rank() OVER (ORDER BY shape) - 1 AS code FROM ("
            f"SELECT e.segment, e.id, {shape} AS shape FROM events e WHERE e.rank = {rank} AND e.category = 'cpu_op')"
        )
        key, joins = "k.code", "JOIN op_shapes k ON k.segment = s.segment AND k.id = s.id"
        keys = [text for (text,) in run.rows("SELECT DISTINCT ON (code) shape FROM op_shapes ORDER BY code")]
    elif by in ("module", "source"):
        link = "module" if by == "module" else "python"
        key = f"coalesce(k.code, {_NOTHING})"
        joins = (
            f"LEFT JOIN (SELECT segment, id, name FROM slices WHERE rank = {rank} AND category = 'python_function') m "
            f"ON m.segment = s.segment AND m.id = s.{link} LEFT JOIN device_texts k ON k.name = m.name"
        )
    columns = run.arrays(f"""
        SELECT (f.rowid << 40) | s.id AS number, coalesce((f.rowid << 40) | s.op, {_NOTHING}) AS op,
               s.dur_ns, s.self_ns, n.code AS name, ({key})::BIGINT AS key
        FROM (FROM slices WHERE rank = {rank} AND category = 'cpu_op' AND {scope.where()}) s
        JOIN segments f ON f.rank = s.rank AND f.segment = s.segment
        JOIN device_texts n ON n.name = s.name
        {joins}
    """)
    order = np.argsort(columns["number"])
    return {name: values[order] for name, values in columns.items()}, keys


def _match(columns: dict[str, Ints], wanted: Ints) -> Ints:
    """Index of each wanted slice among the ops, or _NOTHING."""
    numbers = columns["number"]
    at = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    found: Ints = np.where(numbers[at] == wanted, at, _NOTHING)
    return found


def _device_time(run: Run, rank: int, columns: dict[str, Ints]) -> Ints:
    """Device time each op launched itself, over the ops at hand."""
    launched = run.arrays(
        "SELECT (f.rowid << 40) | g.op AS op, sum(g.dur_ns)::BIGINT AS time FROM gpu g "
        "JOIN segments f ON f.rank = g.rank AND f.segment = g.segment "
        f"WHERE g.op IS NOT NULL AND g.rank = {rank} GROUP BY ALL"
    )
    time = np.zeros(len(columns["number"]), dtype=np.int64)
    at = _match(columns, launched["op"])
    time[at[at >= 0]] = launched["time"][at >= 0]
    return time


def _with_callers(columns: dict[str, Ints], own: Ints) -> Ints:
    """Time of each op and of all it calls: what an op launched is handed to its callers, one after the other."""
    total: Ints = own.copy()
    at = np.flatnonzero(own)
    time = own[at]
    while len(at):
        caller = _match(columns, columns["op"][at])
        inside = caller >= 0
        at, group = np.unique(caller[inside], return_inverse=True)
        time = np.bincount(group, weights=time[inside], minlength=len(at)).astype(np.int64)
        total[at] += time
    return total


def _flops(columns: dict[str, Ints], group: Ints, size: int, work: OpWork, rank: int) -> list[int | None]:
    """Floating-point operations by group; None where no shape tells."""
    own = np.flatnonzero(work.rank == rank)
    at = _match(columns, work.number[own])
    mine = at >= 0
    groups = group[at[mine]]
    totals = np.zeros(size, dtype=np.int64)
    np.add.at(totals, groups, work.flops[own[mine]])
    counted = np.bincount(groups, minlength=size) > 0
    return [total if known else None for total, known in zip(totals.tolist(), counted.tolist(), strict=True)]
