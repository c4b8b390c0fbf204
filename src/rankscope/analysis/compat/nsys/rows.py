"""What `nsys stats` reports are made of, as SQL over the store, and the columns they have in common.

The names nsys prints are made from ours: `Memcpy HtoD (Pageable -> Device)` is `[CUDA memcpy Host-to-Device]`, a
runtime call gets back a version that nsys leaves in its name. So the reports answer for Kineto traces too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.sql import sql_text
from rankscope.store.run import Run

_MEMORY_KINDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
_COPIES = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_WHOLE_GRAPH = "^CUDA graph [0-9]+$"
_CALLS = "('cuda_runtime', 'cuda_driver')"
RECORDED_BY = {
    "kernel": "no CUDA kernel data: nsys profile -t cuda records it, and torch.profiler's ProfilerActivity.CUDA",
    "memory": "no GPU memory data: nsys profile -t cuda records it, and torch.profiler's ProfilerActivity.CUDA",
    "gpu": "no GPU trace data: nsys profile -t cuda records it, and torch.profiler's ProfilerActivity.CUDA",
    "api": "no CUDA API data: nsys profile -t cuda records it, and torch.profiler's ProfilerActivity.CUDA",
    "nvtx": "no NVTX ranges: nsys profile -t nvtx records them (torch.cuda.nvtx.range, record_function)",
    "projection": "no NVTX ranges with GPU work: nsys profile -t cuda,nvtx records both",
    "osrt": "no OS runtime data: nsys profile -t osrt records it",
    "mpi": "no MPI event data: nsys profile -t mpi records it",
}


def _copy_name() -> str:
    """nsys's name of a copy, from ours or Kineto's."""
    kind = "regexp_extract(s.name, '^Memcpy ((?:Unified )?[A-Z]to[A-Z])', 1)"
    whens = " ".join(
        f"WHEN '{unified}{short}' THEN '{unified}{_MEMORY_KINDS[short[0]]}-to-{_MEMORY_KINDS[short[-1]]}'"
        for unified in ("", "Unified ")
        for short in _COPIES
    )
    return f"'[CUDA memcpy ' || CASE {kind} {whens} ELSE 'Unknown' END || ']'"


COPY_NAME = f"CASE WHEN s.category = 'gpu_memset' THEN '[CUDA memset]' ELSE {_copy_name()} END"
DEVICE_NAME = f"CASE WHEN s.category = 'kernel' THEN s.name ELSE {COPY_NAME} END"
CALL_NAME = """concat(s.name, CASE WHEN length(e.args->>'version') <> 6 THEN e.args->>'version' END)"""
"""nsys takes a version of four digits off a call's name, and leaves one of five."""
TAG = "concat((e.args->>'domain') || ':', s.name)"
"""A range as nsys names it: its domain before it."""

CORRELATION = "({0}.correlation & 4294967295)"
"""As the process itself counts; above these bits the store keeps processes apart."""

_WITH_EVENT = "JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id"


def slices_of(scope: Scope, condition: str, events: bool = False) -> str:
    """FROM and WHERE of slices `s`, with their events `e` where times or arguments are wanted."""
    return f"slices s {_WITH_EVENT if events else ''} WHERE {condition} AND {scope.where('s')}"


KERNELS = f"s.category = 'kernel' AND NOT regexp_matches(s.name, {sql_text(_WHOLE_GRAPH)})"
COPIES = "s.category IN ('gpu_memcpy', 'gpu_memset')"
DEVICE_WORK = f"({KERNELS} OR {COPIES})"
CALLS = f"s.category IN {_CALLS}"
RANGES = "s.category = 'user_annotation' AND (e.args->>'mpi') IS NULL"


def number(value: str, sql: str = "e.args") -> str:
    """One argument as a whole number."""
    return f"TRY_CAST({sql}->>'{value}' AS BIGINT)"


def triple(key: str) -> str:
    """Grid or block as nsys prints them in one column."""
    axes = ", ".join(f"TRY_CAST(e.args->'{key}'->>{axis} AS BIGINT)" for axis in range(3))
    return f"CASE WHEN (e.args->'{key}') IS NOT NULL THEN printf('%4d %4d %4d', {axes}) END"


def statistics(value: str, alias: str = "") -> str:
    """Average, median, least, most and deviation as nsys rounds them; `alias` keeps several sets apart."""
    return (
        f"round(avg({value}), 1) AS {alias}avg, round(median({value}), 1) AS {alias}med, "
        f"min({value}) AS {alias}min, max({value}) AS {alias}max, "
        f"round(CASE WHEN count({value}) = 1 THEN 0 ELSE stddev_samp({value}) END, 1) AS {alias}stddev"
    )


def statistic_columns(prefix: str = "") -> tuple[Column, ...]:
    exact = {"Min": None, "Max": None}
    return tuple(
        Column(f"{prefix}{name} (ns)", decimals=exact.get(name, 1))
        for name in ("Avg", "Med", "Min", "Max", "StdDev")
    )


@dataclass(frozen=True)
class Question:
    """One report: what it is called, which columns it has, and why it may be empty."""

    name: str
    title: str
    columns: tuple[Column, ...]
    missing: str

    def answer(self, run: Run, scope: Scope, rows: Sequence[Sequence[Any]], by: str | None) -> Result:
        """Rows in the order of the columns; with --by rank the rank stands first."""
        columns = (Column("Rank"), *self.columns) if by == "rank" else self.columns
        names = [column.name for column in columns]
        table = [dict(zip(names, row, strict=True)) for row in rows]
        said = [
            *([] if table else [RECORDED_BY[self.missing]]),
            *(left_out(run, scope) if scope.steps else ()),
        ]
        return Result(self.name, self.title, scope.window, columns, table, notes=tuple(said), layout="nsys")


def rank_key(by: str | None, alias: str = "") -> tuple[str, str]:
    """What stands before the other columns, and before the other keys of GROUP BY and ORDER BY."""
    column = f"{alias}rank, "
    return (column, column) if by == "rank" else ("", "")


def device_names(run: Run) -> str:
    """A table of (rank, segment, device, device_name), from what the files say of their GPUs."""
    rows = [
        f"({entry.rank}, {entry.segment}, {int(device['id'])}, {sql_text(device['name'])})"
        for entry in run.segments
        for device in entry.manifest["header"].get("deviceProperties") or ()
        if isinstance(device, dict) and "name" in device and str(device.get("id", "")).isdigit()
    ]
    values = ", ".join(rows) or "(NULL::INT, NULL::INT, NULL::INT, NULL::VARCHAR)"
    return f"(VALUES {values}) d(rank, segment, device, device_name)"
