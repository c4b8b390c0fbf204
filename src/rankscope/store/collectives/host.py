"""Collectives on the host (gloo): their start, size and type, and the op that called them.

They run on worker threads without metadata. The c10d op that called them is on another thread. Workers process calls
first in, first out, so runs and calls are paired by order and size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.collective_kinds import OTHER, kind_of
from rankscope.json_values import listed
from rankscope.model import SYNC_CALL_PATTERN
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE, Ints
from rankscope.store.workspace import Workspace

_MOST_ELEMENTS = 1 << 60
"""More than any tensor has; sizes whose product is larger are made up."""


@dataclass(frozen=True)
class Side:
    """Calls, or the runs on worker threads that they led to, in order of time."""

    id: Ints
    start: Ints
    kind: NDArray[np.str_]
    elements: Ints
    """Number of input elements; NONE if not recorded."""

    def keys(self, by_size: bool) -> NDArray[np.str_]:
        """Keys that are equal in a run and its call."""
        if not by_size:
            return self.kind
        return np.char.add(np.char.add(self.kind, " "), self.elements.astype(str))


def pair_host_collectives(workspace: Workspace, slices: str) -> None:
    """Create `host_pairs` from `communication` and `calls`: start, size, type and call of each host collective."""
    execute = workspace.connection.execute
    execute(f"""
        CREATE OR REPLACE TEMP TABLE host_pairs AS
        WITH children AS (
            SELECT t.id, k.start_ns, k.start_ns + k.dur_ns AS end_ns,
                   regexp_matches(k.name, {sql_text(SYNC_CALL_PATTERN)}) AS waits
            FROM communication t JOIN {slices} k ON k.parent = t.id WHERE NOT t.on_device
        ), work AS (
            SELECT id, min(start_ns) AS work_ns FROM children WHERE NOT waits GROUP BY ALL
        ), waiting AS (
            SELECT k.id, max(k.end_ns) AS ready_ns FROM children k LEFT JOIN work w USING (id)
            WHERE k.waits AND (w.work_ns IS NULL OR k.start_ns < w.work_ns) GROUP BY ALL
        )
        SELECT t.id, greatest(t.start_ns, coalesce(w.ready_ns, t.start_ns)) AS begin_ns, {NONE}::BIGINT AS elements,
               ''::VARCHAR AS type, NULL::BIGINT AS call
        FROM communication t LEFT JOIN waiting w USING (id) WHERE NOT t.on_device
    """)
    shaped = workspace.rows("""
        SELECT h.id, t.start_ns, t.name, e.args->>'Input Dims', e.args->>'Input type', t.op
        FROM host_pairs h JOIN communication t USING (id) JOIN placed e USING (id) ORDER BY t.start_ns, h.id
    """)
    if not shaped:
        return
    called = workspace.rows("""
        SELECT c.id, c.start_ns, c.name, e.args->>'Input Dims' FROM calls c JOIN placed e USING (id)
        WHERE c.name LIKE 'c10d::%' AND NOT EXISTS (FROM calls o WHERE o.id = c.op AND o.name LIKE 'c10d::%')
        ORDER BY c.start_ns, c.id
    """)
    runs = _side(shaped, [run_elements(row[3]) for row in shaped])
    calls = _side(called, [call_elements(row[2], row[3]) for row in called])
    around = _ints(NONE if row[5] is None else row[5] for row in shaped)
    arrays = {
        "id": runs.id,
        "elements": runs.elements,
        "type": np.array([_first_type(row[4]) for row in shaped], dtype=object),
        "call": pair_calls(runs, calls, np.where(np.isin(around, calls.id), around, NONE)),
    }
    workspace.connection.register("pair_arrays", arrays)
    execute(f"""
        UPDATE host_pairs SET elements = a.elements, type = a.type, call = nullif(a.call, {NONE})
        FROM pair_arrays a WHERE a.id = host_pairs.id
    """)
    workspace.connection.unregister("pair_arrays")


def pair_calls(runs: Side, calls: Side, known: Ints) -> Ints:
    """The call of each run; NONE for runs called before the recording started.

    `known` has the calls that are known from nesting. The other runs and calls are paired in order, first those of
    the same kind and size, then the rest by kind only.
    """
    found: Ints = known.copy()
    is_open = ~np.isin(calls.id, known[known != NONE])
    if "reduce_scatter" not in runs.kind:  # gloo runs it as an all_reduce
        as_run = np.where(calls.kind == "reduce_scatter", "all_reduce", calls.kind)
        calls = Side(calls.id, calls.start, as_run, calls.elements)
    for by_size in (True, False):
        run_keys, call_keys = runs.keys(by_size), calls.keys(by_size)
        for key in np.intersect1d(run_keys[found == NONE], call_keys[is_open]):
            mine = np.flatnonzero((run_keys == key) & (found == NONE))
            theirs = np.flatnonzero((call_keys == key) & is_open)
            # Skip the fewest runs at the beginning so that no run starts before its call.
            earlier = np.searchsorted(runs.start[mine], calls.start[theirs], side="left")
            first = max(0, int((earlier - np.arange(len(theirs))).max()))
            count = max(0, min(len(mine) - first, len(theirs)))
            found[mine[first : first + count]] = calls.id[theirs[:count]]
            is_open[theirs[:count]] = False
    return found


@cache
def run_elements(dims: str | None) -> int:
    """Number of elements of all tensors in the arguments of gloo's annotation."""
    return _count(listed(dims))


@cache
def call_elements(name: str, dims: str | None) -> int:
    """Number of input elements of a c10d op. Ops whose output has another size list the output first."""
    given = listed(dims)
    second = any(part in name for part in ("gather", "_reduce_scatter_base", "alltoall"))
    return _count(given[second]) if len(given) > second else NONE


def _count(dims: Any) -> int:
    """Number of elements of a tensor ([2, 3]) or a list of tensors ([[2, 3], [4]]); NONE without a tensor."""
    if not isinstance(dims, list) or not dims:
        return NONE
    is_tensor = all(isinstance(size, int) for size in dims)
    elements = prod(dims) if is_tensor else sum(max(_count(part), 0) for part in dims)
    return elements if 0 <= elements <= _MOST_ELEMENTS else NONE


@cache
def _first_type(types: str | None) -> str:
    return next((text for text in listed(types) if isinstance(text, str)), "")


def _side(rows: list[tuple[Any, ...]], elements: list[int]) -> Side:
    return Side(
        _ints(row[0] for row in rows),
        _ints(row[1] for row in rows),
        np.array([kind_of(row[2]) or OTHER for row in rows], dtype=str),
        _ints(elements),
    )


def _ints(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)
