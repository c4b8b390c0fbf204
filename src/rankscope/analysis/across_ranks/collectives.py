"""Collectives by group, kind, type and size: how long the transfer takes, how long ranks wait, how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import blame
from rankscope.analysis.across_ranks.collective_findings import collective_findings
from rankscope.analysis.across_ranks.collective_waits import Waits, waits
from rankscope.analysis.across_ranks.comparison_notes import across_notes
from rankscope.analysis.across_ranks.size_fit import LEAST_SIZES, SizeFit, fit_sizes
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.baseline import Baseline
from rankscope.collective_kinds import KINDS, bus_factor
from rankscope.ranges import as_ranges
from rankscope.store.arrays import number_rows
from rankscope.store.collectives.matching import NONE
from rankscope.store.run import Run
from rankscope.units import format_ns, format_value

COLUMNS = (
    Column("group", "", "name of the process group"),
    Column("kind", ""),
    Column("dtype", ""),
    Column(
        "bytes",
        "bytes",
        "S of nccl-tests: what is reduced, or what all ranks contribute together",
        per_row_unit=True,
    ),
    Column("ranks", "count", "size of the group"),
    Column("count", "count", "how often"),
    Column("transfer_ns", "ns", "shortest duration over the ranks, mean over the collectives"),
    Column("wait_ns", "ns", "duration less transfer, mean over collectives and ranks"),
    Column("algbw_gb_s", "GB/s", "S over the median transfer", title="algbw"),
    Column(
        "busbw_gb_s", "GB/s", "what each link carries, comparable with the hardware's figure", title="busbw"
    ),
    Column("hidden_pct", "percent", "share of its time behind compute of the same rank", title="Hidden"),
    Column("dur_ns", "ns", "mean duration, waiting included", minor=True),
    Column(
        "fit_pct", "percent", "what t = a + S/b, fitted over the sizes, gives of the transfer", minor=True
    ),
    Column("imbalance", "", "all_to_all: the largest share of a rank over the mean", minor=True, decimals=2),
    Column("description", "", "of the process group", minor=True, at_end=True),
    Column("members", "", "ranks of the process group", minor=True, at_end=True),
)
_BASELINE_COLUMNS = (
    Column("baseline_busbw_gb_s", "GB/s", "busbw of the same size measured alone", title="Alone"),
    Column("baseline_pct", "percent", "busbw of that", title="Of alone"),
)

_UNEVEN = -2
"""In place of a size: each rank has its own."""


@dataclass(frozen=True)
class _Table:
    """The entries in scope, and the row each belongs to."""

    entry: Ints
    row: Ints
    keys: Ints
    """[row, (group, kind, dtype, size)]"""


def collectives(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a group, kind, type and size, what takes most time first."""
    found = waits(run)
    table = _table(found, scope)
    rows = _rows(run, found, table)
    fits = _fits(rows)
    _compare(scope.machine.baseline, rows, fits)
    notes = across_notes(run, scope)
    for (group, kind), fit in fits.items():
        line = f"{format_ns(fit.latency_ns, 1)} + S / {format_value('GB/s', fit.bandwidth)}"
        notes.append(f"fit over the sizes of {kind} in group {group}: {line}")
    if not rows:
        notes.append("no collective in the window")
    elif any(row["bytes"] is None for row in rows):
        notes.append(
            "sizes are not recorded: gloo's need shapes (rankscope profile --record-shapes), nsys has none"
        )
    findings = collective_findings(run, scope, rows, fits)
    shown = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    columns = COLUMNS[:11] + (_BASELINE_COLUMNS if scope.machine.baseline else ()) + COLUMNS[11:]
    return Result("collectives", "Collectives", scope.window, columns, shown, findings, tuple(notes))


def _table(found: Waits, scope: Scope) -> _Table:
    rows = found.rows
    matched = rows.match != NONE
    step = rows.step.copy()
    step[matched] = found.step[rows.match[matched]]
    inside = np.ones(len(step), dtype=bool)
    if scope.steps is not None:
        inside &= (step >= scope.steps[0]) & (step <= scope.steps[1])
    if scope.ranks is not None:
        inside &= np.isin(rows.rank, sorted(scope.ranks))
    size = np.where(_uneven(found), _UNEVEN, rows.bytes)
    entry = np.flatnonzero(inside)
    keys, row = number_rows([rows.group[entry], rows.kind[entry], rows.dtype[entry], size[entry]])
    return _Table(entry, row, keys)


def _uneven(found: Waits) -> Any:
    """By entry: an all_to_all in which ranks put in different amounts (all_to_allv)."""
    rows = found.rows
    wide = np.flatnonzero(
        (rows.match != NONE) & (rows.kind == KINDS.index("all_to_all")) & (rows.bytes != NONE)
    )
    low = np.full(rows.count, np.iinfo(np.int64).max)
    high = np.full(rows.count, NONE)
    np.minimum.at(low, rows.match[wide], rows.bytes[wide])
    np.maximum.at(high, rows.match[wide], rows.bytes[wide])
    uneven = np.zeros(len(rows.rank), dtype=bool)
    uneven[wide] = (low < high)[rows.match[wide]]
    return uneven


def _rows(run: Run, found: Waits, table: _Table) -> list[dict[str, Any]]:
    entries, hidden = found.rows, blame(run).hidden
    order = np.argsort(table.row, kind="stable")
    bounds = np.searchsorted(table.row[order], np.arange(len(table.keys) + 1))
    rows = []
    for number, (group_number, kind_number, dtype, size) in enumerate(table.keys.tolist()):
        mine = table.entry[order[bounds[number] : bounds[number + 1]]]
        group, kind = entries.groups[group_number], KINDS[kind_number]
        matches = np.unique(entries.match[mine][entries.match[mine] != NONE])
        transfer = found.transfer[matches]
        transfer = transfer[transfer != NONE]
        wait = found.wait[mine]
        wait = wait[wait != NONE]
        duration = entries.duration[mine]
        size_known = (
            size if size > 0 else round(float(entries.bytes[mine].mean())) if size == _UNEVEN else None
        )
        ranks = group.size or (int(found.ranks[matches].max()) if len(matches) else None)
        median = float(np.median(transfer)) if len(transfer) else None
        algbw = size_known / median if size_known and median else None
        factor = bus_factor(kind, ranks) if ranks else None
        rows.append(
            {
                "group": group.name,
                "kind": kind,
                "dtype": entries.dtypes[dtype] if dtype != NONE else None,
                "bytes": size_known,
                "ranks": ranks,
                "count": int(np.unique(entries.rank[mine], return_counts=True)[1].max()),
                "transfer_ns": round(float(transfer.mean())) if len(transfer) else None,
                "wait_ns": round(float(wait.mean())) if len(wait) else None,
                "algbw_gb_s": algbw,
                "busbw_gb_s": algbw * factor if algbw is not None and factor else None,
                "hidden_pct": 100 * int(hidden[mine].sum()) / int(duration.sum()) if duration.sum() else None,
                "dur_ns": round(float(duration.mean())),
                "fit_pct": None,
                "imbalance": _imbalance(found, mine) if kind == "all_to_all" else None,
                "description": group.description or None,
                "members": as_ranges(list(group.ranks)) if group.ranks else None,
                "_median": median,
                "_total": int(duration.sum()),
                "_ranks": tuple(np.unique(entries.rank[mine]).tolist()),
            }
        )
    return sorted(rows, key=lambda row: (-row["_total"], row["group"], row["kind"], row["bytes"] or 0))


def _imbalance(found: Waits, mine: Ints) -> float | None:
    """The largest share of what goes in or out, over the mean; of the matches whose every rank is here, the mean."""
    entries = found.rows
    mine = mine[(entries.match[mine] != NONE)]
    mine = mine[found.whole[entries.match[mine]]] if len(mine) else mine
    worst = []
    for elements in (entries.in_elements, entries.out_elements):
        known = mine[elements[mine] != NONE]
        if len(known) == 0:
            continue
        _, match = np.unique(entries.match[known], return_inverse=True)
        match = match.reshape(-1)
        total = np.bincount(match, weights=elements[known])
        largest = np.zeros(len(total))
        np.maximum.at(largest, match, elements[known])
        worst.append(largest * np.bincount(match) / np.maximum(total, 1))
    return float(np.max(worst, axis=0).mean()) if worst else None


def _fits(rows: list[dict[str, Any]]) -> dict[tuple[str, str], SizeFit]:
    """By group and kind, where there are sizes enough."""
    points: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row["_median"] and row["bytes"]:
            points.setdefault((row["group"], row["kind"]), {}).setdefault(row["bytes"], row["_median"])
    fits = {
        key: fit_sizes(list(known), list(known.values()))
        for key, known in points.items()
        if len(known) >= LEAST_SIZES
    }
    return {key: fit for key, fit in sorted(fits.items()) if fit is not None}


def _compare(
    baseline: Baseline | None, rows: list[dict[str, Any]], fits: dict[tuple[str, str], SizeFit]
) -> None:
    """Fill in what the fit, and the baseline if there is one, say of each row."""
    for row in rows:
        fit = fits.get((row["group"], row["kind"]))
        if fit and row["_median"] and row["bytes"]:
            row["fit_pct"] = 100 * fit.time_ns(row["bytes"]) / row["_median"]
        if baseline:
            known = row["bytes"] and row["ranks"]
            alone = baseline.busbw_gb_s(row["kind"], row["ranks"], row["bytes"]) if known else None
            row["baseline_busbw_gb_s"] = alone
            row["baseline_pct"] = 100 * row["busbw_gb_s"] / alone if alone and row["busbw_gb_s"] else None
