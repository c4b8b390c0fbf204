"""Model FLOPs utilisation: of what the device could have computed in a step, how much was the model's work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.event_sets import NO_STEP
from rankscope.analysis.core.grouping import distinct
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import Period, periods
from rankscope.analysis.efficiency.tensor_cores import on_tensor_cores
from rankscope.analysis.within_rank.op_work import OpWork, op_work
from rankscope.analysis.within_rank.phases import RECOMPUTE, partition_of
from rankscope.devices import Ceilings
from rankscope.store.run import Run
from rankscope.units import format_value

NO_SHAPES = (
    "the trace has no shapes, so FLOPs are not known; rankscope profile --record-shapes "
    "(record_shapes=True) records them"
)

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column("flops", "flop", "of products, convolutions and attention, less what is done again in the backward pass",
           title="Work"),
    Column("dur_ns", "ns", "of the step, host and device together", title="Time"),
    Column("flop_s", "flop/s", "flops over that time", title="Rate"),
    Column("peak_flop_s", "flop/s", "what the device can do in the data type most of the work has", title="Peak"),
    Column("mfu_pct", "percent", "100 * rate / peak", title="MFU"),
    Column("hfu_pct", "percent", "the same with the work that was done again (checkpointing)", title="HFU", minor=True),
    Column("tensor_core_pct", "percent", "share of compute kernel time in kernels that use tensor cores",
           title="Tensor cores"),
    Column("dtype", help="the data type most of the work has"),
)  # fmt: skip


def mfu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank for the whole window, then one a rank and step."""
    work = op_work(run, scope)
    spans = periods(run, scope)
    roofs = ceilings(run, scope)
    shares = _tensor_shares(run, scope)
    main = {rank: _main_dtype(work, rank) for rank in roofs}
    wanted = [*_whole_windows(spans), *(period for period in spans if period.step is not None)]
    if not len(work.flops) and not shares:
        wanted = []  # without work and without kernels there is nothing to say of any step
    done = _work_by_step(run, scope, work)
    rows = [_row(done, period, main[period.rank], roofs[period.rank], shares) for period in wanted]
    notes = left_out(run, scope)
    if not len(work.flops):
        notes.append(NO_SHAPES)
    else:
        notes += [_formula(rows[0])] if rows else []
        notes += _said_again(done)
        notes += ceiling_notes(run, scope, {dtype for dtype in main.values() if dtype})
    if not any(period.step is not None for period in spans):
        notes.append("no steps: one figure for all that was recorded; profiler.step() marks steps")
    if spans and not shares:
        notes.append("no GPU events: time is the host's; ProfilerActivity.CUDA records the GPU")
    return Result("mfu", "Model FLOPs utilisation", scope.window, COLUMNS, rows, notes=tuple(notes))


def _whole_windows(spans: Iterable[Period]) -> list[Period]:
    """The time in steps of each rank, laid end to end: what lies between recording cycles is not counted."""
    totals: dict[int, int] = {}
    for period in spans:
        totals[period.rank] = totals.get(period.rank, 0) + period.dur_ns
    return [Period(rank, None, 0, total) for rank, total in sorted(totals.items())]


@dataclass(frozen=True)
class Done:
    """FLOPs of the model, and those of them that were computed a second time."""

    model: int
    again: int


def _work_by_step(run: Run, scope: Scope, work: OpWork) -> dict[tuple[int, int | None], Done]:
    """By rank and step; with step None, all steps of a rank (all there is, where it has no steps)."""
    groups, group = distinct(np.stack([work.rank, work.step]))
    again = _recomputed(run, scope, work)
    sums = np.zeros((2, groups.shape[1]), dtype=np.int64)
    np.add.at(sums, (again.astype(np.int64), group), work.flops)
    found: dict[tuple[int, int | None], Done] = {}
    stepped = {rank for rank, step in groups.T.tolist() if step != NO_STEP}
    for (rank, step), model, twice in zip(groups.T.tolist(), *sums.tolist(), strict=True):
        if step != NO_STEP:
            found[rank, step] = Done(model, twice)
        if step != NO_STEP or rank not in stepped:
            before = found.get((rank, None), Done(0, 0))
            found[rank, None] = Done(before.model + model, before.again + twice)
    return found


def _recomputed(run: Run, scope: Scope, work: OpWork) -> NDArray[np.bool_]:
    """Which calls are of a forward pass that is run again inside the backward pass."""
    again = np.zeros(len(work.flops), dtype=bool)
    for rank in np.unique(work.rank).tolist():
        mine = work.rank == rank
        again[mine] = partition_of(run, rank, scope).at(work.start[mine]) == RECOMPUTE
    return again


def _row(
    done: dict[tuple[int, int | None], Done],
    period: Period,
    dtype: str | None,
    roof: Ceilings,
    shares: dict[tuple[int, int | None], float],
) -> dict[str, Any]:
    work = done.get((period.rank, period.step))
    seconds = period.dur_ns / 1e9
    rate = work.model / seconds if work and seconds > 0 else None
    peak = roof.peak(dtype) if dtype else None
    known = work is not None and rate is not None and peak
    return {
        "rank": period.rank,
        "step": period.step,
        "flops": work.model if work else None,
        "dur_ns": period.dur_ns,
        "flop_s": rate,
        "peak_flop_s": peak,
        "mfu_pct": 100 * rate / peak if rate is not None and peak else None,
        "hfu_pct": 100 * (work.model + work.again) / seconds / peak if known and work and peak else None,
        "tensor_core_pct": shares.get((period.rank, period.step)),
        "dtype": dtype,
    }


def _main_dtype(work: OpWork, rank: int) -> str | None:
    """The data type in which most of a rank's FLOPs are done."""
    mine = work.rank == rank
    totals = np.zeros(len(work.dtypes) + 1, dtype=np.int64)
    np.add.at(totals, work.dtype[mine], work.flops[mine])
    return work.dtypes[int(totals.argmax())] if totals.any() else None


def _tensor_shares(run: Run, scope: Scope) -> dict[tuple[int, int | None], float]:
    """Percent of COMPUTE kernel time on tensor cores, per rank and step and per rank."""
    spent: Counter[tuple[int, int | None]] = Counter()
    tensor: Counter[tuple[int, int | None]] = Counter()
    known: dict[str, bool] = {}
    for rank, step, name, time in run.rows(
        "SELECT rank, step, name, sum(greatest(dur_ns, 0)) FROM gpu "
        f"WHERE class = 'COMPUTE' AND {scope.where()} GROUP BY ALL"
    ):
        if name not in known:
            known[name] = on_tensor_cores(name)
        for key in {(rank, step), (rank, None)}:
            spent[key] += time
            tensor[key] += time if known[name] else 0
    return {key: 100 * tensor[key] / time for key, time in spent.items() if time}


def _said_again(done: dict[tuple[int, int | None], Done]) -> list[str]:
    whole = [work for (_, step), work in done.items() if step is None]
    again, model = sum(work.again for work in whole), sum(work.model for work in whole)
    if not again:
        return []
    share = 100 * again / model if model else 0.0
    return [
        f"activation checkpointing computes {share:.0f} % of the work a second time; HFU counts it, MFU does not"
    ]


def _formula(row: dict[str, Any]) -> str:
    """The first row's figures, written out."""
    if row["mfu_pct"] is None:
        return "MFU = FLOPs / time / peak; the peak is not known"
    flops, rate, peak = (
        format_value(unit, row[name])
        for name, unit in (("flops", "flop"), ("flop_s", "flop/s"), ("peak_flop_s", "flop/s"))
    )
    return (
        f"MFU = FLOPs / time / peak; rank {row['rank']}: {flops} / {format_value('ns', row['dur_ns'])} = {rate}, "
        f"of {peak} ({row['dtype']}) is {row['mfu_pct']:.1f} %"
    )
