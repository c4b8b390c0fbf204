"""Tables of recorded events, as in `nsys stats`: kernels, API calls, annotations and copies by name, and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rankscope.analysis.core.advice import Recorded, copy_less, how_to_record
from rankscope.analysis.core.device_events import gpu_counts, has_gpu
from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.names import name_codes
from rankscope.analysis.core.notes import gpu_notes, no_gpu, slices_outside_steps
from rankscope.analysis.core.result import Column, ColumnRows, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, in_order_of_start, steps_in, steps_in_scope
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.model import LAUNCH_CATEGORIES, ORIGINS
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run

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
_NAME = Column("name", at_end=True)
_TIME_PCT = Column("time_pct", "percent", "share of the total of this table, not of wall time")
_KERNEL_COLUMNS = (
    Column("class", help="COMPUTE or COMM", at_end=True),
    _TIME_PCT,
    Column("total_ns", "ns"),
    Column("instances", "count"),
    *_NUMBERS,
)
_OF_ORIGIN = {"op": "o.op", "module": "o.module", "source": "o.line"}
_OF_LAUNCH = {"op": "g.op_name", "module": "m.name", "source": "g.line"}
ORIGIN_KEYS: dict[str, Recorded] = {"op": "host", "module": "stacks", "source": "stacks"}
"""What device activity can be split by, and what has to be recorded for each."""
SAME = "o.rank = g.rank AND o.segment = g.segment AND o.id = g.id"
_MOST_NAMES = 2_000
"""Of runs with more names (a trace may have a million) the sums are not kept."""


def kernels(run: Run, scope: Scope, by: str | None = None) -> Result:
    """GPU kernels by name; the memcpy report has copies and fills. Also by op, module or line of Python."""
    keys = ["rank", "name"] if by == "rank" else ["name", by] if by else ["name"]
    origin, joins = origin_of(run, by) if by in ORIGIN_KEYS else ("", "")
    names = ", ".join(keys)
    sql = f"""
        SELECT {names}, first(class) AS class,
               coalesce(100 * sum(dur_ns)::BIGINT / nullif(sum(sum(dur_ns)) OVER (), 0), 0.0) AS time_pct,
               {_STATISTICS.format(count="instances")} FROM (
            SELECT g.rank, g.name, g.class, g.dur_ns {f", {origin} AS {by}" if origin else ""} FROM gpu g {joins}
            WHERE g.category = 'kernel' AND {scope.where("g")}
        ) GROUP BY {names} ORDER BY total_ns DESC, {names}
    """
    table = run.arrays(sql)  # a trace may have a million names: rows exist only while they are looked at
    _, notes = gpu_notes(run, scope, "kernels", category="kernel")
    if not origin:
        notes += _graph_note(run, scope) if run.has(ORIGINS) else []
    elif {*table[keys[1]].tolist()} == {None}:
        notes.append(f"the trace has no {by}: {how_to_record(run, ORIGIN_KEYS[keys[1]])}")
    origin_help = "where the kernel comes from; of a replayed graph, where it was captured"
    key = (Column(keys[1], help=origin_help, at_end=True),) if origin else ()
    columns = (*(_BY_RANK if by == "rank" else ()), _NAME, *key, *_KERNEL_COLUMNS)
    return Result("kernels", "GPU kernels", scope.window, columns, ColumnRows(table), notes=tuple(notes))


def _graph_note(run: Run, scope: Scope) -> list[str]:
    """How many kernels a graph launch started, and for how many of them it is known where they were captured."""
    ((replayed, captured),) = run.rows(
        f"SELECT count(*), count(o.known_by) FROM gpu g JOIN origins o ON {SAME} "
        f"WHERE g.category = 'kernel' AND o.node IS NOT NULL AND {scope.where('g')}"
    )
    if not replayed:
        return []
    told = f"of {captured:,} the op is known from the capture"
    told = told if captured else "no capture in the trace tells their ops"
    return [f"{replayed:,} kernels are replays of CUDA graphs; {told}: --by op, module or source"]


def origin_of(run: Run, by: str) -> tuple[str, str]:
    """SQL of the key `by` for rows of gpu, called `g`, and of the joins that it needs.

    The line that replays a graph is not where its kernels come from: they have the origin of their capture, or the
    number of their node. Kernels of compiled code without a line or module have the compiled function.
    """
    joins = ""
    launch = _OF_LAUNCH[by]
    if by == "module":
        frames = "(SELECT rank, segment, id, name FROM slices WHERE category = 'python_function')"
        joins = f"LEFT JOIN {frames} m ON m.rank = g.rank AND m.segment = g.segment AND m.id = g.module"
    if not run.has(ORIGINS):
        return launch, joins
    captured = _OF_ORIGIN[by]
    key = (
        f"CASE WHEN o.node IS NOT NULL THEN coalesce({captured}, 'graph replay, node ' || o.node) "
        f"ELSE coalesce({captured}, {launch}, 'compiled ' || o.compiled) END"
    )
    return key, f"{joins} LEFT JOIN origins o ON {SAME}"


class KernelSum(NamedTuple):
    """The kernels of one name."""

    name: str
    kind: str
    """COMPUTE or COMM."""
    kernels: int
    total_ns: int


@dataclass(frozen=True)
class RankKernels:
    """Of one rank."""

    sums: tuple[KernelSum, ...] | None
    """None where there are too many names."""


@kept_per_rank("kernels", RankKernels)
def _rank_kernels(run: Run, scope: Scope) -> dict[int, RankKernels]:
    ranks = scope.ranks_in(run)
    if len(name_codes(run, "kernel")) > _MOST_NAMES:
        return {rank: RankKernels(None) for rank in ranks}
    by_rank: dict[int, list[KernelSum]] = {rank: [] for rank in ranks}
    for rank, *row in _sums(run, scope):
        by_rank[rank].append(KernelSum._make(row))
    return {rank: RankKernels(tuple(sums)) for rank, sums in by_rank.items()}


def _sums(run: Run, scope: Scope) -> list[tuple[Any, ...]]:
    return run.rows(
        "SELECT rank, name, class, count(*), sum(dur_ns)::BIGINT FROM gpu "
        f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    )


def kernel_sums(run: Run, scope: Scope) -> dict[int, tuple[KernelSum, ...]] | None:
    """By rank; None for a run with too many names."""
    records = _rank_kernels(run, scope)
    sums = {rank: record.sums for rank, record in records.items() if record.sums is not None}
    return sums if len(sums) == len(records) else None


def kernel_totals(run: Run, scope: Scope, by_rank: bool) -> dict[tuple[int | None, str], tuple[int, int]]:
    """Number and time by rank (None unless `by_rank`) and name, whatever the number of names."""
    sums = kernel_sums(run, scope)
    if sums is None:
        rows = run.rows(
            f"SELECT {'rank' if by_rank else 'NULL'}, name, count(*), sum(dur_ns)::BIGINT FROM gpu "
            f"WHERE category = 'kernel' AND {scope.where()} GROUP BY ALL"
        )
        return {(rank, name): (count, time) for rank, name, count, time in rows}
    totals: dict[tuple[int | None, str], tuple[int, int]] = {}
    for rank, kernels in sums.items():
        for kernel in kernels:
            key = rank if by_rank else None, kernel.name
            count, time = totals.get(key, (0, 0))
            totals[key] = count + kernel.kernels, time + kernel.total_ns
    return totals


def compute_time(run: Run, scope: Scope, chosen: Callable[[str], bool]) -> dict[int, int]:
    """By rank: the time of the kernels that compute and whose name is chosen."""
    sums = kernel_sums(run, scope)
    rows = _sums(run, scope) if sums is None else [(rank, *kernel) for rank in sums for kernel in sums[rank]]
    times: dict[int, int] = {}
    for rank, name, kind, _, time in rows:
        if kind == "COMPUTE" and chosen(name):
            times[rank] = times.get(rank, 0) + time
    return times


def top_kernels(run: Run, scope: Scope) -> Result:
    """The kernel table without the columns that need every single duration: its first rows are on the first screen."""
    if kernel_sums(run, scope) is None:
        return kernels(run, scope)
    totals = kernel_totals(run, scope, by_rank=False)
    whole = sum(time for _, time in totals.values())
    rows = [
        {
            "name": name,
            "time_pct": 100 * time / whole if whole else 0.0,
            "total_ns": time,
            "instances": count,
            "avg_ns": time / count,
        }
        for (_, name), (count, time) in sorted(totals.items(), key=lambda item: (-item[1][1], item[0][1]))
    ]
    columns = (_NAME, _TIME_PCT, Column("total_ns", "ns"), Column("instances", "count"), _NUMBERS[0])
    return Result("kernels", "GPU kernels", scope.window, columns, rows)


def runtime_api(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Calls of the CUDA (HIP, XPU) runtime and driver by name."""
    missing = no_gpu(run, "runtime calls")
    if has_gpu(run, Scope()):
        missing += f"; {how_to_record(run, 'launches')}"
    return _by_name(run, scope, by, "ops.runtime_api", "Runtime and driver calls", LAUNCH_CATEGORIES, missing)


def annotated(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Annotated ranges by name: record_function, ProfilerStep, Optimizer.step, collectives on the host."""
    missing = f"no annotations in the window; {how_to_record(run, 'annotations')}"
    return _by_name(run, scope, by, "ops.annotations", "Annotations", ("user_annotation",), missing)


def _by_name(
    run: Run, scope: Scope, by: str | None, name: str, title: str, categories: Sequence[str], missing: str
) -> Result:
    rank = "rank, " if by == "rank" else ""
    rows = run.records(
        f"SELECT {rank}name, {_STATISTICS.format(count='calls')} FROM slices "
        f"WHERE category IN ({sql_texts(categories)}) AND {scope.where()} "
        f"GROUP BY {rank}name ORDER BY total_ns DESC, {rank}name"
    )
    columns = (
        *(_BY_RANK if by == "rank" else ()),
        _NAME,
        Column("calls", "count"),
        Column("total_ns", "ns"),
        *_NUMBERS,
    )
    inside = sum(row["calls"] for row in rows)
    notes = slices_outside_steps(run, scope, inside, categories, title.lower())
    if not rows:
        notes.append(missing)
    return Result(name, title, scope.window, columns, rows, notes=tuple(notes))


class CopySum(NamedTuple):
    """The copies of one rank and kind."""

    kind: str
    copies: int
    bytes: int
    """Of those whose size is known."""
    total_ns: int
    sized_ns: int
    """Of those, too."""
    sized: int


@kept_per_rank("copies", list[CopySum])
def _rank_copies(run: Run, scope: Scope) -> dict[int, list[CopySum]]:
    copies: dict[int, list[CopySum]] = {}
    for rank, *row in run.rows(
        "SELECT rank, name, count(*), coalesce(sum(bytes), 0)::BIGINT, sum(dur_ns)::BIGINT, "
        "coalesce(sum(dur_ns) FILTER (bytes IS NOT NULL), 0)::BIGINT, count(bytes) FROM gpu "
        f"WHERE class = 'COPY' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    ):
        copies.setdefault(rank, []).append(CopySum._make(row))
    return copies


def copy_time(run: Run, scope: Scope, chosen: Callable[[str], bool]) -> dict[int, int]:
    """By rank: the time of the copies whose kind is chosen."""
    return {
        rank: sum(copies.total_ns for copies in sums if chosen(copies.kind))
        for rank, sums in _rank_copies(run, scope).items()
    }


def memcpy(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Copies and fills of device memory by direction, with their bandwidth."""
    keys = ("rank", "kind") if by == "rank" else ("kind",)
    groups = summed(
        ((rank,) * (by == "rank") + copies[:1], copies[1:])
        for rank, sums in _rank_copies(run, scope).items()
        for copies in sums
    )
    rows = []
    for key, (count, size, time, sized_ns, sized) in groups.items():
        row = dict(zip(keys, key, strict=True)) | {"count": count, "bytes": size if sized else None}
        rows.append(row | {"total_ns": time, "gb_s": size / sized_ns if sized and sized_ns else None})
    rows.sort(key=lambda row: (-row["total_ns"], *([row["rank"]] if by == "rank" else []), row["kind"]))
    columns = (
        *(_BY_RANK if by == "rank" else ()),
        Column("kind", help="direction and kind of memory", at_end=True),
        Column("count", "count"),
        Column("bytes", "bytes"),
        Column("total_ns", "ns"),
        Column("gb_s", "GB/s", "bytes divided by time; GB = 1e9 bytes"),
    )
    _, notes = gpu_notes(run, scope, "copies", kind="COPY")
    unknown = "" if gpu_counts(run, scope) else None
    limits = _copy_limits(run, scope) if by is None else ()
    title = "Memory copies and fills"
    return Result("memcpy", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown)


def _copy_limits(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """By direction and kind of memory: exposed copies take no time."""
    least_ns = LIMIT_SHARE * mean_step_ns(run, scope) * max(steps_in(run, scope), 1)
    groups: dict[_Copies, list[tuple[int, CopySum]]] = {}
    for rank, sums in _rank_copies(run, scope).items():
        for copies in sums:
            groups.setdefault(_copies_of(copies.kind), []).append((rank, copies))
    limits = []
    for what, mine in groups.items():
        ((_, (count, size, time, sized_ns, _)),) = summed(("", copies[1:]) for _, copies in mine).items()
        if time <= 0 or time < least_ns:
            continue
        times = summed((rank, [copies.total_ns]) for rank, copies in mine)
        limits.append(
            Finding(
                "limit",
                what.title,
                ranks=tuple(sorted(times)),
                advice=copy_less(run, is_pageable=what.is_pageable, crosses=what.crosses),
                facts=(
                    mean_on(run, scope, "copy_ns", {rank: of_rank for rank, (of_rank,) in times.items()}),
                    Fact("copies", count, "count"),
                    *([Fact("copy_gb_s", size / sized_ns, "GB/s")] if size and sized_ns else []),
                ),
                remedy=Remedy("copies gone", names=tuple(sorted({copies.kind for _, copies in mine}))),
                names=(what.kind,) if what.kind else (),
            )
        )
    return tuple(limits)


class _Copies(NamedTuple):
    """Copies that are told apart: 'Pageable copies to the device'."""

    title: str
    is_pageable: bool = False
    crosses: bool = False
    """They go from the host to a device, or back."""
    kind: str = ""
    """As it was recorded, where it does not say a direction."""


def _copies_of(kind: str) -> _Copies:
    mark = kind.lower()
    if "memset" in mark:
        return _Copies("Fills of device memory")
    direction = next((where for each, where in _DIRECTIONS.items() if each in mark), "")
    if not direction:
        return _Copies(f"Copies: {kind}", kind=kind)
    memory = next((copies for each, copies in _MEMORIES.items() if each in mark), "Copies")
    return _Copies(f"{memory} {direction}", "pageable" in mark, direction.startswith("to "))


_MEMORIES = {"pageable": "Pageable copies", "pinned": "Copies of pinned memory"}
_DIRECTIONS = {
    "htod": "to the device",
    "host-to-device": "to the device",
    "dtoh": "to the host",
    "device-to-host": "to the host",
    "dtod": "on the device",
    "device-to-device": "on the device",
    "ptop": "between devices",
    "peer-to-peer": "between devices",
}


def steps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Training steps: their range on the host, and their time on host and GPU together."""
    table = in_order_of_start(steps_in_scope(run, scope))
    rows = ColumnRows(
        {
            "rank": table["rank"],
            "step": table["step"],
            "start_ns": table["start"],
            "dur_ns": table["stop"] - table["start"],
            "end_ns": table["end"],
            "time_ns": table["end"] - table["begin"],
        }
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
    notes = []
    if not rows:
        notes.append(
            "no steps; call profiler.step() in the loop, or mark steps with record_function('step 1')"
        )
    return Result("steps", "Steps", scope.window, columns, rows, notes=tuple(notes))
