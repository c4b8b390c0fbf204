"""Tables of recorded events, as in `nsys stats`: kernels, API calls, annotations and copies by name, and steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rankscope.analysis.core.advice import Recorded, copy_less, how_to_record
from rankscope.analysis.core.device_events import has_gpu, steps_in
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.names import name_codes
from rankscope.analysis.core.notes import gpu_outside_steps, left_out, no_gpu, slices_outside_steps
from rankscope.analysis.core.result import Column, ColumnRows, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.core.step_times import mean_step_ns, step_count
from rankscope.model import LAUNCH_CATEGORIES, ORIGINS
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

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
        SELECT {names}, first(class) AS class, 0.0 AS time_pct, {_STATISTICS.format(count="instances")} FROM (
            SELECT g.rank, g.name, g.class, g.dur_ns {f", {origin} AS {by}" if origin else ""} FROM gpu g {joins}
            WHERE g.category = 'kernel' AND {scope.where("g")}
        ) GROUP BY {names} ORDER BY total_ns DESC, {names}
    """
    if not origin:  # a trace may have a million names: rows exist only while they are looked at
        table = run.arrays(sql)
        if total := int(table["total_ns"].sum()):
            table["time_pct"] = 100 * table["total_ns"] / total
        notes = _kernel_notes(run, scope, int(table["instances"].sum()))
        notes += _graph_note(run, scope) if run.has(ORIGINS) else []
        columns = (*(_BY_RANK if by == "rank" else ()), _NAME, *_KERNEL_COLUMNS)
        return Result("kernels", "GPU kernels", scope.window, columns, ColumnRows(table), notes=tuple(notes))
    rows = run.records(sql)
    total = sum(row["total_ns"] for row in rows)
    for row in rows:
        row["time_pct"] = 100 * row["total_ns"] / total if total else 0.0
    notes = _kernel_notes(run, scope, sum(row["instances"] for row in rows))
    if rows and all(row[keys[1]] is None for row in rows):
        notes.append(f"the trace has no {by}: {how_to_record(run, ORIGIN_KEYS[keys[1]])}")
    origin_help = "where the kernel comes from; of a replayed graph, where it was captured"
    columns = (_NAME, Column(keys[1], help=origin_help, at_end=True), *_KERNEL_COLUMNS)
    return Result("kernels", "GPU kernels", scope.window, columns, rows, notes=tuple(notes))


def _kernel_notes(run: Run, scope: Scope, inside: int) -> list[str]:
    notes = left_out(run, scope) + gpu_outside_steps(run, scope, inside, "kernels", category="kernel")
    if not inside:
        notes.append(no_gpu(run, "kernels"))
    return notes


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
    return _by_name(run, scope, by, "runtime_api", "Runtime and driver calls", LAUNCH_CATEGORIES, missing)


def annotated(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Annotated ranges by name: record_function, ProfilerStep, Optimizer.step, collectives on the host."""
    missing = f"no annotations in the window; {how_to_record(run, 'annotations')}"
    return _by_name(run, scope, by, "annotations", "Annotations", ("user_annotation",), missing)


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
    notes = left_out(run, scope) + slices_outside_steps(run, scope, inside, categories, title.lower())
    if not rows:
        notes.append(missing)
    return Result(name, title, scope.window, columns, rows, notes=tuple(notes))


class CopySum(NamedTuple):
    """The copies of one rank and kind."""

    kind: str
    copies: int
    bytes: int | None
    total_ns: int
    sized_ns: int | None
    """Time of the copies whose size is known."""


@dataclass(frozen=True)
class RankCopies:
    """The copies of one rank."""

    sums: tuple[CopySum, ...]


@kept_per_rank("copies", RankCopies)
def _rank_copies(run: Run, scope: Scope) -> dict[int, RankCopies]:
    copies: dict[int, list[CopySum]] = {}
    for rank, *row in run.rows(
        "SELECT rank, name, count(*), sum(bytes)::BIGINT, sum(dur_ns)::BIGINT, "
        "sum(dur_ns) FILTER (bytes IS NOT NULL)::BIGINT FROM gpu "
        f"WHERE class = 'COPY' AND {scope.where()} GROUP BY ALL ORDER BY ALL"
    ):
        copies.setdefault(rank, []).append(CopySum._make(row))
    return {rank: RankCopies(tuple(sums)) for rank, sums in copies.items()}


def copy_time(run: Run, scope: Scope, chosen: Callable[[str], bool]) -> dict[int, int]:
    """By rank: the time of the copies whose kind is chosen."""
    return {
        rank: sum(copies.total_ns for copies in record.sums if chosen(copies.kind))
        for rank, record in _rank_copies(run, scope).items()
    }


def memcpy(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Copies and fills of device memory by direction, with their bandwidth."""
    groups: dict[tuple[Any, ...], list[CopySum]] = {}
    for rank, record in _rank_copies(run, scope).items():
        for copies in record.sums:
            groups.setdefault((rank, copies.kind) if by == "rank" else (copies.kind,), []).append(copies)
    rows = []
    for key, sums in groups.items():
        sized = [copies for copies in sums if copies.bytes is not None]
        size = sum(copies.bytes or 0 for copies in sized) if sized else None
        time = sum(copies.sized_ns or 0 for copies in sized)
        row: dict[str, Any] = {"rank": key[0]} if by == "rank" else {}
        row |= {"kind": key[-1], "count": sum(copies.copies for copies in sums), "bytes": size}
        row |= {"total_ns": sum(copies.total_ns for copies in sums)}
        rows.append(row | {"gb_s": size / time if size is not None and time else None})
    rows.sort(key=lambda row: (-row["total_ns"], *([row["rank"]] if by == "rank" else []), row["kind"]))
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
        notes.append(no_gpu(run, "copies"))
    unknown = "" if gpu_counts(run, scope) else None
    limits = _copy_limits(run, scope) if by is None else ()
    title = "Memory copies and fills"
    return Result("memcpy", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown)


def _copy_limits(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """By direction and kind of memory: exposed copies take no time."""
    least_ns = LIMIT_SHARE * mean_step_ns(run, scope) * step_count(run, scope)
    by_kind: dict[str, dict[int, CopySum]] = {}
    for rank, record in _rank_copies(run, scope).items():
        for copies in record.sums:
            by_kind.setdefault(copies.kind, {})[rank] = copies
    groups: dict[str, list[str]] = {}
    for kind in by_kind:
        groups.setdefault(_copies_of(kind), []).append(kind)
    limits = []
    for what, kinds in groups.items():
        times: Counter[int] = Counter()
        for kind in kinds:
            times.update({rank: copies.total_ns for rank, copies in by_kind[kind].items()})
        if times.total() > 0 and times.total() >= least_ns:
            limits.append(_copy_limit(run, scope, what, {kind: by_kind[kind] for kind in kinds}, times))
    return tuple(limits)


def _copies_of(kind: str) -> str:
    """The direction of a kind of copies, and whether it needs memory that is not pinned: 'Pageable copies to the
    device'."""
    if "memset" in kind.lower():
        return "Fills of device memory"
    direction = next((where for mark, where in _DIRECTIONS.items() if mark in kind.lower()), "")
    if not direction:
        return f"Copies: {kind}"
    memory = next((copies for mark, copies in _MEMORIES.items() if mark in kind.lower()), "Copies")
    return f"{memory} {direction}"


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


def _copy_limit(
    run: Run, scope: Scope, what: str, by_kind: dict[str, dict[int, CopySum]], times: Counter[int]
) -> Finding:
    every = [(kind, copies) for kind, by_rank in by_kind.items() for copies in by_rank.values()]
    count, size = sum(copies.copies for _, copies in every), sum(copies.bytes or 0 for _, copies in every)
    sized = sum(copies.sized_ns or 0 for _, copies in every)
    rate = f" at {format_rounded('GB/s', size / sized)}" if size and sized else ""
    totals = {kind: sum(copies.total_ns for copies in by_rank.values()) for kind, by_rank in by_kind.items()}
    return Finding(
        "limit",
        what,
        f"{count:,} copies{rate} take {mean_on(times, len(scope.ranks_in(run)), steps_in(run, scope))}; "
        "what compute hides of it costs nothing",
        tuple(sorted(times)),
        hint=copy_less(run, what),
        facts=tuple(
            Fact("total_ns", total, "ns", "all ranks", tuple(sorted(by_kind[kind])), {"kind": kind})
            for kind, total in totals.items()
        ),
        remedy=Remedy("copies gone", names=tuple(sorted(by_kind))),
        names=(what.removeprefix("Copies: "),) if ": " in what else (),
    )
