"""Tables of recorded events, as in `nsys stats`: kernels, API calls, annotations and copies by name, and steps."""

from __future__ import annotations

from collections.abc import Sequence

from rankscope.analysis.core.notes import gpu_outside_steps, left_out, slices_outside_steps
from rankscope.analysis.core.result import Column, ColumnRows, Result
from rankscope.analysis.core.scope import Scope
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.sql import sql_texts
from rankscope.store.run import Run

_STATISTICS = """
    sum(dur_ns)::BIGINT AS total_ns, count(*) AS {count}, avg(dur_ns) AS avg_ns, median(dur_ns) AS med_ns,
    min(dur_ns) AS min_ns, max(dur_ns) AS max_ns, coalesce(stddev_samp(dur_ns), 0) AS stddev_ns
"""
_NUMBERS = (
    Column("avg_ns", "ns", "mean duration"),
    Column("med_ns", "ns", "median duration"),
    Column("min_ns", "ns"),
    Column("max_ns", "ns"),
    Column("stddev_ns", "ns", "sample standard deviation (n-1); 0 for one instance"),
)
_BY_RANK = (Column("rank"),)


def kernels(run: Run, scope: Scope, by: str | None = None) -> Result:
    """GPU kernels by name; the memcpy report has copies and fills."""
    rank, group = _rank_columns(by)
    found = run.arrays(
        f"SELECT {rank} name, first(class) AS class, 0.0 AS time_pct, {_STATISTICS.format(count='instances')} "
        f"FROM gpu WHERE category = 'kernel' AND {scope.where()} GROUP BY {group} name "
        f"ORDER BY total_ns DESC, {group} name"
    )
    if total := int(found["total_ns"].sum()):
        found["time_pct"] = 100 * found["total_ns"] / total
    rows = ColumnRows(found)
    columns = (
        *(_BY_RANK if by == "rank" else ()),
        Column("name", at_end=True),
        Column("class", help="COMPUTE or COMM", at_end=True),
        Column("time_pct", "percent", "share of the total of this table, not of wall time"),
        Column("total_ns", "ns"),
        Column("instances", "count"),
        *_NUMBERS,
    )
    inside = int(found["instances"].sum())
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside, "kernels", category="kernel")
    if not rows:
        notes.append("no kernels in the window; ProfilerActivity.CUDA records them")
    return Result("kernels", "GPU kernels", scope.window, columns, rows, notes=tuple(notes))


def api(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Calls of the CUDA (HIP, XPU) runtime and driver by name."""
    missing = "no runtime calls in the window; ProfilerActivity.CUDA records them"
    return _by_name(run, scope, by, "api", "Runtime and driver calls", LAUNCH_CATEGORIES, missing)


def annotated(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Annotated ranges by name: record_function, ProfilerStep, Optimizer.step, collectives on the host."""
    missing = "no annotations in the window; torch.profiler.record_function(name) adds them"
    return _by_name(run, scope, by, "annotations", "Annotations", ("user_annotation",), missing)


def _by_name(
    run: Run, scope: Scope, by: str | None, name: str, title: str, categories: Sequence[str], missing: str
) -> Result:
    rank, group = _rank_columns(by)
    rows = run.records(
        f"SELECT {rank} name, {_STATISTICS.format(count='calls')} FROM slices "
        f"WHERE category IN ({sql_texts(categories)}) AND {scope.where()} "
        f"GROUP BY {group} name ORDER BY total_ns DESC, {group} name"
    )
    columns = (
        *(_BY_RANK if by == "rank" else ()),
        Column("name", at_end=True),
        Column("calls", "count"),
        Column("total_ns", "ns"),
        *_NUMBERS,
    )
    inside = sum(row["calls"] for row in rows)
    notes = left_out(run, scope) + slices_outside_steps(run, scope, inside, categories, name)
    if not rows:
        notes.append(missing)
    return Result(name, title, scope.window, columns, rows, notes=tuple(notes))


def memcpy(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Copies and fills of device memory by direction, with their bandwidth."""
    rank, group = _rank_columns(by)
    rows = run.records(
        f"SELECT {rank} name AS kind, count(*) AS count, sum(bytes)::BIGINT AS bytes, "
        "sum(dur_ns)::BIGINT AS total_ns, sum(bytes) / nullif(sum(dur_ns) FILTER (bytes IS NOT NULL), 0) AS gb_s "
        f"FROM gpu WHERE class = 'COPY' AND {scope.where()} GROUP BY {group} name ORDER BY total_ns DESC, {group} kind"
    )
    columns = (
        *(_BY_RANK if by == "rank" else ()),
        Column("kind", help="direction and kind of memory", at_end=True),
        Column("count", "count"),
        Column("bytes", "bytes"),
        Column("total_ns", "ns"),
        Column("gb_s", "GB/s", "bytes divided by time; GB = 1e9 bytes"),
    )
    inside = sum(row["count"] for row in rows)
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside, "copies", kind="COPY")
    if not rows:
        notes.append("no copies in the window; ProfilerActivity.CUDA records them")
    return Result("memcpy", "Memory copies and fills", scope.window, columns, rows, notes=tuple(notes))


def steps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Training steps: their range on the host, and their time on host and GPU together."""
    rows = run.records(
        f"SELECT rank, step, start_ns, dur_ns, end_ns, time_ns FROM steps WHERE {scope.where()} ORDER BY rank, start_ns"
    )
    columns = (
        Column("rank"),
        Column("step"),
        Column("start_ns", "ns", "time since the start of the run"),
        Column("dur_ns", "ns", "duration on the host", title="On the host"),
        Column("end_ns", "ns", "end of its work on host and GPU, since the start of the run", minor=True),
        Column(
            "time_ns",
            "ns",
            "step time, host and GPU: from the end of the step before to its own end",
            title="Step time",
        ),
    )
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no steps; call profiler.step() in the loop, or mark steps with record_function('step 1')"
        )
    return Result("steps", "Steps", scope.window, columns, rows, notes=tuple(notes))


def _rank_columns(by: str | None) -> tuple[str, str]:
    """SQL to put before the other columns and before the other GROUP BY keys."""
    return ("rank,", "rank,") if by == "rank" else ("", "")
