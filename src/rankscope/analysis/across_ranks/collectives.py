"""The collectives by group, kind, data type and size: transfer time, waiting time and bandwidth.

Limits: many small calls, and a size far slower than the other sizes, or than the baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import blame
from rankscope.analysis.across_ranks.comparison_notes import comparison_notes
from rankscope.analysis.across_ranks.time_split import PARTS
from rankscope.analysis.core.advice import larger_messages
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.result import (
    Column,
    Fact,
    Finding,
    Remedy,
    Result,
    Unit,
    left_out_note,
)
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import mean_step_ns, run_step_times
from rankscope.collective_kinds import KINDS, bus_factor
from rankscope.errors import UsageError
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows, unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("group", "", "name of the process group"),
    Column("kind", ""),
    Column("dtype", ""),
    Column(
        "bytes",
        "bytes",
        "message size S as in nccl-tests: what is reduced, or the sum of what all ranks contribute",
        decimals=0,
    ),
    Column("ranks", "count", "size of the process group"),
    Column("count", "count", "number of calls on a rank; the largest over the ranks"),
    Column("transfer_ns", "ns", "shortest duration over the ranks, mean over the collectives"),
    Column("wait_ns", "ns", "duration minus transfer, mean over collectives and ranks"),
    Column("algbw_gb_s", "GB/s", "S divided by the median transfer", title="algbw"),
    Column(
        "busbw_gb_s",
        "GB/s",
        "bus bandwidth as in nccl-tests, comparable with the speed of a link",
        title="busbw",
    ),
    Column(
        "hidden_pct",
        "percent",
        "share of its time that overlaps with compute on the same rank",
        title="Hidden",
    ),
    Column("dur_ns", "ns", "mean duration, including waiting", minor=True),
    Column("fit_pct", "percent", "fitted time t = a + S/b as a share of the median transfer", minor=True),
    Column(
        "imbalance",
        "",
        "all_to_all: the largest amount of any rank, relative to the mean",
        minor=True,
        decimals=2,
    ),
    Column("description", "", "description of the process group", minor=True, at_end=True),
    Column("members", "", "ranks of the process group", minor=True, at_end=True),
)
_BASELINE_COLUMNS = (
    Column("baseline_busbw_gb_s", "GB/s", "busbw of the same size in the baseline file", title="Baseline"),
    Column("baseline_pct", "percent", "busbw as a share of the baseline", title="Of baseline"),
)

_SIZE_VARIES = -2
"""In place of a size: the ranks contribute different amounts."""
LEAST_SIZES = 3
_OUTLIER = 1.5
"""A size is an outlier when it takes more than this times the fitted time. Chosen, not measured."""
_SLOW_PCT = 70.0
"""Bandwidth below this share of the baseline is a limit. Chosen, not measured."""
_MANY_CALLS = 4
"""So many collectives of a kind in a step are many, where most of their time is latency. Chosen, not measured."""
_SLOWEST_LINK = 1.0
"""Bytes per ns: 10 gigabit Ethernet is faster. What a call takes beyond its bytes at this rate is latency, where there
are too few sizes for a fit."""


@dataclass(frozen=True)
class SizeFit:
    """t = a + S/b with the latency a in ns and the bandwidth b in bytes per ns (GB/s)."""

    latency_ns: float
    bandwidth: float

    def __str__(self) -> str:
        return f"{format_rounded('ns', self.latency_ns)} + S / {format_rounded('GB/s', self.bandwidth)}"

    def time_ns(self, size: float) -> float:
        return self.latency_ns + size / self.bandwidth

    def is_outlier(self, size: float, time_ns: float) -> bool:
        return time_ns > _OUTLIER * self.time_ns(size)


def collectives(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each group, kind, data type and size, by total time."""
    rows, baseline = _rows(run, scope), scope.machine.baseline
    points: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["_median"] and row["bytes"]:
            points.setdefault((row["group"], row["kind"]), {}).setdefault(row["bytes"], row["_median"])
    fits = {
        key: fit for key, times in sorted(points.items()) if (fit := fit_sizes([*times], [*times.values()]))
    }
    for row in rows:
        fit = fits.get((row["group"], row["kind"]))
        if fit and row["_median"] and row["bytes"]:
            row["fit_pct"] = 100 * fit.time_ns(row["bytes"]) / row["_median"]
        if baseline:
            has_size = row["bytes"] and row["ranks"]
            alone = baseline.busbw_gb_s(row["kind"], row["ranks"], row["bytes"]) if has_size else None
            row["baseline_busbw_gb_s"] = alone
            row["baseline_pct"] = 100 * row["busbw_gb_s"] / alone if alone and row["busbw_gb_s"] else None
    notes = [*comparison_notes(run)]
    for (group, kind), fit in fits.items():
        notes.append(f"transfer time of {kind} in group {group}, fitted over the sizes: {fit}")
    if not rows:
        notes.append("no collectives in the window")
    elif any(row["bytes"] is None for row in rows):
        notes.append(
            "some sizes are not recorded: gloo's need input shapes (rankscope profile --record-shapes), "
            "and nsys reports have none"
        )
    limits = _limits(run, scope, rows, fits)
    shown = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    columns = COLUMNS[:11] + (_BASELINE_COLUMNS if baseline else ()) + COLUMNS[11:]
    return Result("collectives", "Collectives", scope.window, columns, shown, limits, tuple(notes))


def _rows(run: Run, scope: Scope) -> list[dict[str, Any]]:
    all_waits = waits(run)
    entries, hidden = all_waits.rows, blame(run).hidden
    step = np.where(entries.match != NONE, np.append(all_waits.step, NONE)[entries.match], entries.step)
    inside = scope.mask(step, entries.rank)
    # An all_to_all to which the ranks contribute different amounts (all_to_allv).
    wide = (entries.match != NONE) & (entries.kind == KINDS.index("all_to_all")) & (entries.bytes != NONE)
    low, high = np.full(entries.count, np.iinfo(np.int64).max), np.full(entries.count, NONE)
    np.minimum.at(low, entries.match[wide], entries.bytes[wide])
    np.maximum.at(high, entries.match[wide], entries.bytes[wide])
    sizes = entries.bytes.copy()
    sizes[wide] = np.where((low < high)[entries.match[wide]], _SIZE_VARIES, sizes[wide])
    used = np.flatnonzero(inside)
    keys, key = number_rows([column[used] for column in (entries.group, entries.kind, entries.dtype, sizes)])
    took, of_entry = entries.duration, all_waits.entry_transfer
    order = np.argsort(key, kind="stable")
    parts = np.split(used[order], np.searchsorted(key[order], np.arange(1, len(keys))))
    rows = []
    for (group_number, kind_number, dtype, size), mine in zip(keys.tolist(), parts, strict=False):
        group, kind = entries.groups[group_number], KINDS[kind_number]
        matches = unique_values(entries.match[mine][entries.match[mine] != NONE])
        wait = all_waits.wait[mine]
        if entries.point_to_point[mine[0]]:  # each end has its own, a batch no match
            transfer = of_entry[mine[wait != NONE]]
        else:
            transfer = all_waits.transfer[matches]
            transfer = transfer[transfer != NONE]
        wait = wait[wait != NONE]
        duration = took[mine]
        moved = size if size > 0 else None
        if size == _SIZE_VARIES:
            moved = round(float(entries.bytes[mine].mean()))
        ranks = group.size or (int(all_waits.ranks[matches].max()) if len(matches) else None)
        median = float(np.median(transfer)) if len(transfer) else None
        algbw = moved / median if moved and median else None
        factor = bus_factor(kind, ranks) if ranks else None
        rows.append(
            {
                "group": group.name,
                "kind": kind,
                "dtype": entries.dtypes[dtype] if dtype != NONE else None,
                "bytes": moved,
                "ranks": ranks,
                "count": int(np.bincount(entries.rank[mine]).max()),
                "transfer_ns": round(float(transfer.mean())) if len(transfer) else None,
                "wait_ns": round(float(wait.mean())) if len(wait) else None,
                "algbw_gb_s": algbw,
                "busbw_gb_s": algbw * factor if algbw is not None and factor else None,
                "hidden_pct": 100 * int(hidden[mine].sum()) / int(duration.sum())
                if duration.sum() and run.has_traces
                else None,
                "dur_ns": round(float(duration.mean())),
                "fit_pct": None,
                "imbalance": _imbalance(all_waits, mine) if kind == "all_to_all" else None,
                "description": group.description or None,
                "members": as_ranges(list(group.ranks)) if group.ranks else None,
                "_median": median,
                "_total": int(duration.sum()),
                "_ranks": tuple(unique_values(entries.rank[mine]).tolist()),
            }
        )
    return sorted(rows, key=lambda row: (-row["_total"], row["group"], row["kind"], row["bytes"] or 0))


def _imbalance(all_waits: Waits, mine: Ints) -> float | None:
    """The largest input or output of a rank relative to the mean, averaged over the matches that have all ranks."""
    entries = all_waits.rows
    mine = mine[(entries.match[mine] != NONE)]
    mine = mine[all_waits.whole[entries.match[mine]]] if len(mine) else mine
    worst = []
    for elements in (entries.in_elements, entries.out_elements):
        sized = mine[elements[mine] != NONE]
        if len(sized) == 0:
            continue
        _, match = np.unique(entries.match[sized], return_inverse=True)
        total = np.bincount(match, weights=elements[sized])
        largest = np.zeros(len(total))
        np.maximum.at(largest, match, elements[sized])
        worst.append(largest * np.bincount(match) / np.maximum(total, 1))
    return float(np.max(worst, axis=0).mean()) if worst else None


def fit_sizes(sizes: list[int], times_ns: list[float]) -> SizeFit | None:
    """A Theil-Sen fit: the median of the slopes between all pairs, so that one slow size does not bend the line.

    Pairs are weighted by their distance, because two almost equal sizes do not determine a slope. None with fewer
    than three sizes, or when larger sizes do not take longer.
    """
    if len(sizes) < LEAST_SIZES:
        return None
    x, y = np.array(sizes, dtype=np.float64), np.array(times_ns, dtype=np.float64)
    first, second = np.triu_indices(len(x), 1)
    slopes, far = (y[second] - y[first]) / (x[second] - x[first]), np.abs(x[second] - x[first])
    order = np.argsort(slopes)
    weight = np.cumsum(far[order])
    slope = float(slopes[order][np.searchsorted(weight, weight[-1] / 2)])
    if slope <= 0:
        return None
    return SizeFit(max(float(np.median(y - slope * x)), 0.0), 1 / slope)


def _limits(
    run: Run, scope: Scope, rows: list[dict[str, Any]], fits: dict[tuple[str, str], SizeFit]
) -> tuple[Finding, ...]:
    steps = len(run_step_times(run, scope))
    step_ns, limits, small = mean_step_ns(run, scope), list[Finding](), set[tuple[str, str]]()
    sized = [row for row in rows if row["bytes"] and row["_median"]]
    for key in dict.fromkeys((row["group"], row["kind"]) for row in sized) if steps else ():
        mine = [row for row in sized if (row["group"], row["kind"]) == key]
        fit = fits.get(key)
        if fit is None:
            # Of few sizes: bytes move at the highest rate of any collective, the rest of the smallest is latency.
            fastest = max(_SLOWEST_LINK, *(row["bytes"] / row["_median"] for row in sized))
            smallest = min(mine, key=lambda row: row["bytes"])
            fit = SizeFit(max(smallest["_median"] - smallest["bytes"] / fastest, 0.0), fastest)
        if limit := small_calls(mine, fit, steps, step_ns, larger_messages(run)):
            small.add(key)
            limits.append(limit)
    for row in rows:
        key = row["group"], row["kind"]
        fit = None if key in small else fits.get(key)
        if (row.get("baseline_pct") or 100.0) < _SLOW_PCT:
            source = scope.machine.baseline.source if scope.machine.baseline else ""
            advice = (
                "Check the load on the network, and whether it runs at the same time as compute (-r overlap)."
            )
            factor, figures = (
                100 / row["baseline_pct"],
                [
                    _fact(row, "baseline_pct", row["baseline_pct"], "percent"),
                    _fact(row, "busbw_gb_s", row["busbw_gb_s"], "GB/s"),
                    _fact(row, "baseline_busbw_gb_s", row["baseline_busbw_gb_s"], "GB/s", source),
                ],
            )
        elif fit and row["_median"] and row["bytes"] and fit.is_outlier(row["bytes"], row["_median"]):
            advice = f"Try other sizes: {', '.join(larger_messages(run))}; with NCCL also NCCL_ALGO and NCCL_PROTO."
            expected = fit.time_ns(row["bytes"])
            factor, figures = (
                row["_median"] / expected,
                [
                    _fact(row, "transfer_median_ns", row["_median"], "ns"),
                    _fact(row, "fit_ns", expected, "ns", str(fit)),
                    _fact(row, "count", row["count"], "count"),
                    _fact(row, "bytes", row["bytes"], "bytes"),
                ],
            )
        else:
            continue
        size = format_rounded("bytes", row["bytes"])
        limits.append(
            Finding(
                "limit",
                f"Transfers of one size: {row['kind']} of {size} in group {row['group']}",
                ranks=row["_ranks"],
                advice=advice,
                facts=tuple(figures),
                remedy=Remedy("calls faster", names=key, factor=factor, most_bytes=row["bytes"]),
                names=(row["group"],),
            )
        )
    return tuple(limits)


def _fact(row: dict[str, Any], quantity: str, value: float | None, unit: Unit, subject: str = "") -> Fact:
    at = {name: row[name] for name in ("group", "kind", "dtype", "bytes")}
    return Fact(quantity, value, unit, subject or f"the ranks of group {row['group']}", row["_ranks"], at)


def small_calls(
    rows: list[dict[str, Any]], fit: SizeFit, steps: int, step_ns: float, ways: Sequence[str]
) -> Finding | None:
    """Many collectives of a group and kind in a step of which at least half the time is latency, which one larger one
    would have once. `ways`: how to send larger ones."""
    most_bytes = int(fit.latency_ns * fit.bandwidth)
    rows = [row for row in rows if row["bytes"] <= most_bytes]
    count = sum(row["count"] for row in rows) / steps
    exposed = sum(row["count"] * (1 - (row["hidden_pct"] or 0) / 100) for row in rows) / steps
    latency = fit.latency_ns * exposed
    if count < _MANY_CALLS or latency < LIMIT_SHARE * step_ns:
        return None
    name, kind = rows[0]["group"], rows[0]["kind"]
    group = rows[0]["description"] or name
    mean = sum(row["bytes"] * row["count"] for row in rows) / steps / count
    return Finding(
        "limit",
        f"{count:.0f} small {kind} calls of group {group}",
        ranks=rows[0]["_ranks"],
        advice=f"Send fewer and larger messages: {', '.join(ways)}.",
        facts=(
            Fact("bytes_per_call", round(mean), "bytes", "mean"),
            Fact("latency_ns", round(fit.latency_ns), "ns", f"{kind} in group {group}, each"),
            Fact("exposed_latency_ns", round(latency), "ns", f"{kind} in group {group}, per step"),
        ),
        remedy=Remedy(
            "calls merged",
            names=(name, kind),
            factor=count,
            latency_ns=fit.latency_ns,
            most_bytes=most_bytes,
        ),
        names=(group,),
    )


_WORST = (
    Column("collective", help="its number: all ranks have the same"),
    Column("kind"),
    Column("group", help="its process group"),
    Column("step"),
    Column("bytes", "bytes", "message size"),
    Column("ranks", "count", "that took part and were recorded"),
    Column("transfer_ns", "ns", "from the arrival of the last rank to the end"),
    Column("wait_ns", "ns", "waiting of all its ranks together"),
    Column("last_rank", help="arrived last"),
    Column("cause", help="what the last rank spent more time on than the median of the others"),
    Column("blamed_rank", help="where the chain of waiting began"),
)
_MOST_ROWS = 500
_ARRIVALS = (
    Column("rank"),
    Column("arrives_ns", "ns", "after the first rank, on aligned clocks"),
    Column("wait_ns", "ns", "until the last rank arrived"),
    Column("dur_ns", "ns"),
    Column("start_ns", "ns", "from the run's start"),
)


def worst_collectives(run: Run, scope: Scope) -> Result:
    """One row for each matched collective of the steps in scope, those with most waiting first."""
    scope = scope.in_run(run)
    all_waits = waits(run)
    rows = all_waits.rows
    entries = np.flatnonzero((all_waits.wait != NONE) & (rows.match != NONE))
    waited = np.bincount(rows.match[entries], weights=all_waits.wait[entries], minlength=rows.count)
    there, first = np.unique(rows.match[entries], return_index=True)
    inside = scope.mask(all_waits.step[there])
    order = np.flatnonzero(inside)[np.argsort(-waited[there[inside]], kind="stable")]
    table = [
        _described(run, all_waits, int(entries[first[at]]), int(waited[there[at]]))
        for at in order[:_MOST_ROWS].tolist()
    ]
    notes = [*comparison_notes(run)]
    if len(order) > _MOST_ROWS:
        notes.append(left_out_note(f"{len(order) - _MOST_ROWS:,} collectives with less waiting"))
    title = "Collectives, by the time ranks wait in them"
    return Result("collective", title, scope.window, _WORST, table, notes=tuple(notes))


def one_collective(run: Run, number: int) -> Result:
    """One row for each rank, in order of arrival; the facts are the row of `worst_collectives`."""
    all_waits = waits(run)
    rows = all_waits.rows
    members = np.flatnonzero((rows.match == number) & (rows.match != NONE))
    if len(members) == 0:
        raise UsageError(
            f"there is no collective {number}",
            why=f"Collectives that were matched across ranks have the numbers 0 to {rows.count - 1:,}."
            if rows.count
            else "No collective of this run was matched across ranks.",
            hint="Without a number, the collectives in which ranks wait longest are listed.",
        )
    members = members[np.argsort(rows.start[members], kind="stable")]
    first = int(rows.start[members[0]])
    table = [
        {
            "rank": int(rows.rank[at]),
            "arrives_ns": int(rows.start[at]) - first,
            "wait_ns": _known(all_waits.wait[at]),
            "dur_ns": int(rows.end[at] - rows.start[at]),
            "start_ns": int(rows.start[at]),
        }
        for at in members.tolist()
    ]
    waited = sum(row["wait_ns"] or 0 for row in table)
    facts = _described(run, all_waits, int(members[0]), waited)
    return Result(
        "collective",
        f"{facts['kind']} {number} on {len(table)} ranks",
        "whole file" if facts["step"] is None else f"step {facts['step']}",
        _ARRIVALS,
        table,
        facts=facts,
    )


def _described(run: Run, all_waits: Waits, at: int, waited: int) -> dict[str, Any]:
    """The collective of an entry."""
    rows, why = all_waits.rows, blame(run)
    match = int(rows.match[at])
    group = rows.groups[rows.group[at]]
    last, cause = int(all_waits.last[match]), int(why.cause[match])
    return {
        "collective": match,
        "kind": KINDS[rows.kind[at]],
        "group": group.description or group.name,
        "step": _known(all_waits.step[match]),
        "bytes": _known(rows.bytes[at]),
        "ranks": int(all_waits.ranks[match]),
        "transfer_ns": _known(all_waits.transfer[match]),
        "wait_ns": waited,
        "last_rank": None if last == NONE else int(rows.rank[last]),
        "cause": None if cause == NONE else PARTS[cause],
        "blamed_rank": _known(why.rank[match]),
    }


def _known(value: Any) -> int | None:
    return None if value == NONE else int(value)
