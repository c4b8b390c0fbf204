"""The run on one screen: the time of a step, its parts, and the findings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rankscope.analysis.core.ceilings import device_names
from rankscope.analysis.core.result import Column, Result, Row
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.findings import NOTHING_FOUND, collect
from rankscope.analysis.health.contents import contents
from rankscope.analysis.questions import QUESTIONS
from rankscope.store.run import Run
from rankscope.units import format_ns

COLUMNS = (
    Column("rank"),
    Column("steps", "count"),
    Column(
        "step_ns",
        "ns",
        "a step's median time, host and device together; without steps, all that was recorded",
    ),
    Column("compute_pct", "percent", "of the breakdown's span"),
    Column("exposed_comm_pct", "percent", "exposed communication, of the breakdown's span", title="Comm"),
    Column("exposed_copy_pct", "percent", "exposed copies, of the breakdown's span", title="Copy"),
    Column("idle_pct", "percent", "of the breakdown's span"),
    Column("mfu_pct", "percent", "model FLOPs utilisation", title="MFU"),
    Column("peak_allocated_bytes", "bytes", "on its GPU", title="Peak memory", per_row_unit=True),
)
_WITHOUT_TRACE = {
    "flight": ("flight-recorder dump", "flight"),
    "memory": ("memory snapshot", "memory,allocators,fragments"),
    "ncu": ("Nsight Compute report", "ncu,roofline"),
}
_PARTS = ("compute", "exposed_comm", "exposed_copy", "idle")


def summary(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank; the title sums up the run."""
    broken, used_of, memory = (
        QUESTIONS[name].analyse(run, scope, None) for name in ("breakdown", "mfu", "memory")
    )
    parts = {row["rank"]: row for row in broken.rows if row["step"] is None}
    used = {row["rank"]: row["mfu_pct"] for row in used_of.rows if row["step"] is None}
    peak: dict[int, int] = {}
    for row in memory.rows:
        if row["device"] != "CPU" and row["peak_allocated_bytes"] is not None:
            peak[row["rank"]] = max(peak.get(row["rank"], 0), row["peak_allocated_bytes"])
    times: dict[int, list[int]] = {}
    counts: dict[int, int] = {}
    for period in periods(run, scope):
        times.setdefault(period.rank, []).append(period.dur_ns)
        counts[period.rank] = counts.get(period.rank, 0) + (period.step is not None)
    rows = []
    for rank in sorted({*parts, *times}):
        mine, spans = parts.get(rank), times.get(rank, [])
        rows.append(
            {
                "rank": rank,
                "steps": counts.get(rank, 0),
                "step_ns": round(median(spans)) if spans else None,
                **{f"{part}_pct": _share(mine, part) for part in _PARTS},
                "mfu_pct": used.get(rank),
                "peak_allocated_bytes": peak.get(rank),
            }
        )
    found = tuple(one.finding for one in collect(run, scope))
    title = verdict(run, scope, rows, list(parts.values()))
    # Without a trace there is no breakdown, and its notes do not apply.
    notes = [*(broken.notes if parts else ()), *_missing(rows)]
    if not found:
        notes.append(NOTHING_FOUND)
    return Result("summary", title, scope.window, COLUMNS, rows, found, tuple(notes))


def _share(row: Row | None, part: str) -> float | None:
    return 100 * row[f"{part}_ns"] / row["span_ns"] if row and row["span_ns"] else None


def verdict(run: Run, scope: Scope, rows: Sequence[Row], parts: Sequence[Row]) -> str:
    """'A step takes 49.8 ms: 41 % compute, …', over all ranks in scope."""
    times = [row["step_ns"] for row in rows if row["step_ns"] is not None]
    if not times:
        return _other_files(run, scope) or contents(run, scope) or "Nothing was recorded that takes time"
    time = format_ns(median(times), 1)
    has_steps = any(row["steps"] for row in rows)
    text = f"A step takes {time}" if has_steps else f"{time} were recorded, without steps"
    span = sum(row["span_ns"] for row in parts)
    if span:
        shares = {part: 100 * sum(row[f"{part}_ns"] for row in parts) / span for part in _PARTS}
        text += (
            f": {shares['compute']:.0f} % compute, {shares['exposed_comm']:.0f} % exposed communication, "
            f"{shares['exposed_copy']:.0f} % copies, {shares['idle']:.0f} % idle"
        )
    known = [row["mfu_pct"] for row in rows if row["mfu_pct"] is not None]
    return text + (f"; MFU {sum(known) / len(known):.1f} %" if known else "")


def _other_files(run: Run, scope: Scope) -> str:
    """For a run without a trace: the other files it has, and the reports that use them."""
    found = []
    for kind, (name, reports) in _WITHOUT_TRACE.items():
        count = sum(e.format == kind and (scope.ranks is None or e.rank in scope.ranks) for e in run.segments)
        if count:
            found.append(f"{count} {name}{'s' * (count > 1)} (-r {reports})")
    return f"No trace, but {', '.join(found)}" if found else ""


def subject(run: Run, scope: Scope, result: Result) -> str:
    """Number of ranks and steps, and the device."""
    ranks = len(result.rows) or sum(scope.ranks is None or rank in scope.ranks for rank in run.ranks)
    steps = max((row["steps"] for row in result.rows), default=0)
    names = sorted(set(device_names(run, scope).values()) - {""})
    words = [
        f"{ranks} rank{'s' * (ranks != 1)}",
        f"{steps} step{'s' * (steps != 1)}" if steps else "no steps",
    ]
    return ", ".join([*words, *names])


def _missing(rows: Sequence[Row]) -> list[str]:
    """Notes on columns that are empty because of how the run was recorded."""
    notes = []
    if rows and all(row["mfu_pct"] is None for row in rows):
        notes.append("MFU needs shapes and a known device: --record-shapes when profiling, --peak here")
    if rows and all(row["peak_allocated_bytes"] is None for row in rows):
        notes.append("peak memory needs --profile-memory when profiling")
    return notes
