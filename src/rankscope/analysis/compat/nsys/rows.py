"""SQL and columns shared by the reports of `nsys stats`.

The names that nsys prints are derived from those in the store: `Memcpy HtoD (Pageable -> Device)` becomes
`[CUDA memcpy Host-to-Device]`, and a runtime call gets the version suffix that nsys prints. So the reports also work
for Kineto traces.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.model import UNFINISHED_STEP
from rankscope.sql import sql_text
from rankscope.timeline.run import Run

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
}


def _copy_name() -> str:
    """The name of a copy in nsys, from the name in the store."""
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
"""nsys removes a version of four digits from the name of a call, but not one of five."""
TAG = "concat((e.args->>'domain') || ':', s.name)"
"""The name of a range in nsys: domain and name."""

CORRELATION = "({0}.correlation & 4294967295)"
"""The correlation id of the process; the store uses higher bits to separate processes."""

_WITH_EVENT = "JOIN events e ON e.rank = s.rank AND e.segment = s.segment AND e.id = s.id"


def slices_of(scope: Scope, condition: str, events: bool = False) -> str:
    """FROM and WHERE of slices `s`, with their events `e` where times or arguments are needed."""
    return f"slices s {_WITH_EVENT if events else ''} WHERE {condition} AND {scope.where('s')}"


KERNELS = f"s.category = 'kernel' AND NOT regexp_matches(s.name, {sql_text(_WHOLE_GRAPH)})"
COPIES = "s.category IN ('gpu_memcpy', 'gpu_memset')"
DEVICE_WORK = f"({KERNELS} OR {COPIES})"
CALLS = f"s.category IN {_CALLS}"
RANGES = f"s.category IN ('user_annotation', '{UNFINISHED_STEP}') AND (e.args->>'mpi') IS NULL"


def number(value: str, sql: str = "e.args") -> str:
    """One argument as an integer."""
    return f"TRY_CAST({sql}->>'{value}' AS BIGINT)"


def triple(key: str) -> str:
    """Grid or block as nsys prints it in one column."""
    axes = ", ".join(f"TRY_CAST(e.args->'{key}'->>{axis} AS BIGINT)" for axis in range(3))
    return f"CASE WHEN (e.args->'{key}') IS NOT NULL THEN printf('%4d %4d %4d', {axes}) END"


def statistics(value: str, alias: str = "") -> str:
    """Average, median, minimum, maximum and standard deviation, rounded as in nsys; `alias` prefixes their names.

    nsys prints a standard deviation of 0.0 for one value and also for none, where the others are empty.
    """
    return (
        f"round(avg({value}), 1) AS {alias}avg, round(median({value}), 1) AS {alias}med, "
        f"min({value}) AS {alias}min, max({value}) AS {alias}max, "
        f"round(CASE WHEN count({value}) <= 1 THEN 0 ELSE stddev_samp({value}) END, 1) AS {alias}stddev"
    )


def statistic_headings(prefix: str = "") -> str:
    """Of `statistics`, for `nsys_report`."""
    return "|".join(
        f"{prefix}{name}" for name in ("Avg (ns):1", "Med (ns):1", "Min (ns)", "Max (ns)", "StdDev (ns):1")
    )


Rows = Callable[[Run, Scope, str | None], "list[tuple[Any, ...]] | str"]
"""The rows of a report in the order of its columns, with --by rank the rank first; or a key of RECORDED_BY: what is
missing."""


def nsys_report(
    name: str, title: str, question: str, headings: str, missing: str
) -> Callable[[Rows], Report]:
    """Makes a report of its rows.

    `headings` are separated by bars; a number behind a colon is how many decimals the column has. `missing` is the key
    in RECORDED_BY of the data that it needs.
    """
    pairs = (heading.partition(":") for heading in headings.split("|"))
    columns = tuple(Column(text, decimals=int(digits) if digits else None) for text, _, digits in pairs)

    def report(rows_of: Rows) -> Report:
        def analyse(run: Run, scope: Scope, by: str | None = None) -> Result:
            shown = (Column("Rank"), *columns) if by == "rank" else columns
            rows = rows_of(run, scope, by)
            names = [column.name for column in shown]
            table = [] if isinstance(rows, str) else [dict(zip(names, row, strict=True)) for row in rows]
            notes = [] if table else [RECORDED_BY[rows if isinstance(rows, str) else missing]]
            notes += left_out(run, scope) if scope.steps else ()
            return Result(name, title, scope.window, shown, table, notes=tuple(notes), layout="nsys")

        return Report(name, question, analyse, ("rank",))

    return report


def rank_key(by: str | None, alias: str = "") -> str:
    """The rank as first column, and as first key of GROUP BY and ORDER BY, where asked for."""
    return f"{alias}rank, " if by == "rank" else ""


def device_names(run: Run) -> str:
    """A table of (rank, segment, device, device_name), from the headers of the files."""
    rows = [
        f"({entry.rank}, {entry.segment}, {int(device['id'])}, {sql_text(device['name'])})"
        for entry in run.segments
        for device in entry.manifest["header"].get("deviceProperties") or ()
        if isinstance(device, dict) and "name" in device and str(device.get("id", "")).isdigit()
    ]
    values = ", ".join(rows) or "(NULL::INT, NULL::INT, NULL::INT, NULL::VARCHAR)"
    return f"(VALUES {values}) d(rank, segment, device, device_name)"
