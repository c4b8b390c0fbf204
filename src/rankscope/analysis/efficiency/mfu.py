"""Model FLOPs utilisation (MFU): the FLOP rate of the model as a share of the peak of the device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from rankscope.analysis.core.advice import framework, how_to_record
from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.names import sql_names, vocabulary
from rankscope.analysis.core.notes import left_out, no_steps
from rankscope.analysis.core.result import Column, Note, NoteKind, Result, Unit
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.run_steps import NO_STEP
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import Period, periods
from rankscope.analysis.within_rank.op_work import RankWork, StepFlops, no_shapes, rank_work
from rankscope.devices import Ceilings
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column("flops", "flop", "of matrix products, convolutions and attention, without recomputation",
           title="Work"),
    Column("dur_ns", "ns", "duration of the step, host and device together", title="Time"),
    Column("flop_s", "flop/s", "work divided by time", title="Rate"),
    Column("peak_flop_s", "flop/s", "peak of the device for this dtype", title="Peak"),
    Column("mfu_pct", "percent", "100 * rate / peak", title="MFU"),
    Column("hfu_pct", "percent", "the same with recomputation (hardware FLOPs utilisation)", title="HFU", minor=True),
    Column("tensor_core_pct", "percent", "share of compute kernel time in kernels on tensor cores",
           title="Tensor cores"),
    Column("dtype", help="data type of most of the work"),
    Column("graph_pct", "percent", "share of compute kernel time in CUDA graphs, whose ops and shapes are not recorded",
           for_machines=True),
)  # fmt: skip

_UNCOUNTED_PCT = 1.0
"""With a larger share of compute kernel time in CUDA graphs, MFU is not known: their FLOPs are not recorded.
Chosen, not measured."""
_GRAPH_LAUNCH = re.compile(r"(?:cuda|cu|hip)GraphLaunch")


# Instruction shapes (884, 1688, 16816, …), instruction names, and libraries whose kernels always use tensor cores.
_TENSOR_CORE_KERNEL = (
    r"(?i)(?:^|[^0-9])(?:[hsid]?(?:884|1688|16816|16832|8816|8832)|16816)(?:[^0-9]|$)"
    r"|hmma|imma|wgmma|gmma|tensorop|nvjet|tcgen05|flash_(?:fwd|bwd|attn)|sdpa_.*flash|fmha_(?:cutlass|v\d)"
    r"|xmma_\w*(?:bf16|f16|tf32|e4m3)|mfma|Cijk_\w*_MI(?:16x16|32x32|4x4)"
)
# DuckDB's expressions have no look-ahead: the part after gemm_ means "not followed by tf32".
_OTHER_KERNEL = r"(?i)ffma|simt|(?:^|_)[sd]gemm_(?:$|[^t]|t(?:$|[^f])|tf(?:$|[^3])|tf3(?:$|[^2]))|gemv"


def mfu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank for the whole window, then one per rank and step."""
    work = rank_work(run, scope)
    spans = periods(run, scope)
    roofs = ceilings(run, scope)
    spent = [(c.rank, c.step, c.time_ns) for c in gpu_counts(run, scope) if c.kind == "COMPUTE"]
    shares = _shares(_summed(_times(run, scope, "tensor_cores")), _summed(spent))
    in_graphs = _graph_shares(run, scope, spent)
    main = {rank: work[rank].main_dtype if rank in work else None for rank in roofs}
    totals = Counter[int]()  # time between recording cycles does not count
    for period in spans:
        totals[period.rank] += period.dur_ns
    wanted = [Period(rank, None, 0, total) for rank, total in sorted(totals.items())]
    wanted += [period for period in spans if period.step is not None]
    if not work and not shares:
        wanted = []  # nothing is known about any step
    done = _work_by_step(work)
    rows = [_row(done, period, main[period.rank], roofs[period.rank], shares, in_graphs) for period in wanted]
    uncounted = _graph_note(run, rows)
    notes = [*left_out(run, scope), *uncounted]
    if not work:
        notes += [] if uncounted else [no_shapes(run)]
    else:
        notes += [_formula(rows[0])] if rows else []
        notes += _recomputation_note(done)
        notes += ceiling_notes(run, scope, {dtype for dtype in main.values() if dtype})
    if not any(period.step is not None for period in spans):
        notes.append(f"one row covers the whole recording: {no_steps(run)}")
    if spans and not shares:
        notes.append(f"no GPU events: time is host time; on a GPU, {how_to_record(run, 'gpu')}")
    unknown = None
    if rows and all(row["mfu_pct"] is None for row in rows):
        unknown = "; ".join(notes) or "the peak of the device is not known: --peak"
    return Result(
        "mfu", "Model FLOPs utilisation", scope.window, COLUMNS, rows, notes=tuple(notes), unknown=unknown
    )


def _work_by_step(work: dict[int, RankWork]) -> dict[tuple[int, int | None], StepFlops]:
    """By rank and step; step None is the sum over all steps of a rank, or over the recording if it has no steps."""
    done: dict[tuple[int, int | None], StepFlops] = {}
    for rank, of_rank in work.items():
        stepped = [step for step in of_rank.steps if step.step != NO_STEP]
        done |= {(rank, step.step): step for step in stepped}
        whole = stepped or of_rank.steps
        model, recomputed = sum(step.model for step in whole), sum(step.recomputed for step in whole)
        done[rank, None] = StepFlops(NO_STEP, model, recomputed)
    return done


def _row(
    done: dict[tuple[int, int | None], StepFlops],
    period: Period,
    dtype: str | None,
    roof: Ceilings,
    shares: dict[tuple[int, int | None], float],
    in_graphs: dict[tuple[int, int | None], float],
) -> dict[str, Any]:
    work = done.get((period.rank, period.step))
    seconds = period.dur_ns / 1e9
    rate = work.model / seconds if work and seconds > 0 else None
    peak = roof.peak(dtype) if dtype else None
    in_graph = in_graphs.get((period.rank, period.step))
    counted = in_graph is None or in_graph <= _UNCOUNTED_PCT
    has_share = counted and rate is not None and peak
    return {
        "rank": period.rank,
        "step": period.step,
        "flops": work.model if work else None,
        "dur_ns": period.dur_ns,
        "flop_s": rate,
        "peak_flop_s": peak,
        "mfu_pct": 100 * rate / peak if has_share and rate is not None and peak else None,
        "hfu_pct": 100 * (work.model + work.recomputed) / seconds / peak
        if has_share and work and peak
        else None,
        "tensor_core_pct": shares.get((period.rank, period.step)),
        "dtype": dtype,
        "graph_pct": in_graph,
    }


Times = Counter[tuple[int, int | None]]
"""Nanoseconds by rank and step; step None is the whole window."""


@dataclass(frozen=True)
class RankKernelTime:
    """Time of some COMPUTE kernels of one rank, by step; step None: outside steps."""

    tensor_cores: tuple[tuple[int | None, int], ...]
    in_graphs: tuple[tuple[int | None, int], ...]
    """Launched by a CUDA graph."""


@kept_per_rank("kernel_time", RankKernelTime, any_window=True)
def rank_kernel_time(run: Run, scope: Scope) -> dict[int, RankKernelTime]:
    """Of the ranks with such kernels."""
    # Names are matched by DuckDB, once each: a run may have a million.
    on_tensor_cores = run.rows(f"""
        SELECT rank, step, sum(greatest(dur_ns, 0))::BIGINT FROM gpu
        WHERE class = 'COMPUTE' AND {scope.where()} AND name IN (
            SELECT name FROM internal.names WHERE category = 'kernel'
            AND regexp_matches(name, {sql_text(_TENSOR_CORE_KERNEL)})
            AND NOT regexp_matches(name, {sql_text(_OTHER_KERNEL)})
        ) GROUP BY ALL ORDER BY ALL
    """)
    calls = [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if _GRAPH_LAUNCH.match(name)]
    in_graphs = []
    if calls:
        in_graphs = run.rows(f"""
            WITH graphs AS (SELECT rank, segment, id FROM slices WHERE name IN ({sql_names(calls)}))
            SELECT g.rank, g.step, sum(greatest(g.dur_ns, 0))::BIGINT
            FROM gpu g JOIN graphs l ON l.rank = g.rank AND l.segment = g.segment AND l.id = g.launch
            WHERE g.class = 'COMPUTE' AND {scope.where("g")} GROUP BY ALL ORDER BY ALL
        """)
    ranks = sorted({row[0] for row in (*on_tensor_cores, *in_graphs)})
    parts = [
        {rank: tuple((step, time) for owner, step, time in rows if owner == rank) for rank in ranks}
        for rows in (on_tensor_cores, in_graphs)
    ]
    return {rank: RankKernelTime(parts[0][rank], parts[1][rank]) for rank in ranks}


def _times(
    run: Run, scope: Scope, which: Literal["tensor_cores", "in_graphs"]
) -> list[tuple[int, int | None, int]]:
    """By rank and step in scope."""
    low, high = scope.steps or (None, None)
    return [
        (rank, step, time)
        for rank, kernel_time in rank_kernel_time(run, scope).items()
        for step, time in getattr(kernel_time, which)
        if low is None or high is None or (step is not None and low <= step <= high)
    ]


def _summed(rows: Iterable[tuple[int, int | None, int]]) -> Times:
    """Times by rank and step, and by rank."""
    sums = Times()
    for rank, step, time in rows:
        for key in {(rank, step), (rank, None)}:
            sums[key] += time
    return sums


def _shares(part: Times, whole: Times) -> dict[tuple[int, int | None], float]:
    return {key: 100 * part[key] / time for key, time in whole.items() if time}


def _graph_shares(
    run: Run, scope: Scope, spent: list[tuple[int, int | None, int]]
) -> dict[tuple[int, int | None], float]:
    """Percentage of COMPUTE kernel time that graph launches started, by rank and step; step None as in the rows."""
    stepped = {rank for rank, step, _ in spent if step is not None}
    part, whole = (
        _summed(row for row in rows if row[1] is not None or row[0] not in stepped)
        for rows in (_times(run, scope, "in_graphs"), spent)
    )
    return _shares(part, whole)


def _graph_note(run: Run, rows: Sequence[dict[str, Any]]) -> list[Note]:
    """The share of the work that FLOPs do not cover because it runs in CUDA graphs, for the rank with most of it."""
    whole = [row for row in rows if row["step"] is None and row["graph_pct"]]
    if not whole:
        return []
    row = max(whole, key=lambda row: row["graph_pct"])
    where = f" of rank {row['rank']}" if len({row["rank"] for row in rows}) > 1 else ""
    text = (
        f"{row['graph_pct']:.1f} % of the compute kernel time{where} is in CUDA graphs: a replayed graph records "
        "neither ops nor shapes, so its FLOPs are not counted"
    )
    if row["graph_pct"] > _UNCOUNTED_PCT:
        least = 100 * row["flop_s"] / row["peak_flop_s"] if row["flop_s"] and row["peak_flop_s"] else None
        bound = "not known" if least is None else f"at least {least:.1f} %, and not known exactly"
        text += f"; MFU is {bound}"
        if framework(run) == "torch":
            text += " (profile the run without CUDA graphs and with --record-shapes to measure it)"
    return [Note.of(NoteKind.IN_GRAPHS, text)]


def _recomputation_note(done: dict[tuple[int, int | None], StepFlops]) -> list[str]:
    whole = [work for (_, step), work in done.items() if step is None]
    recomputed, model = sum(work.recomputed for work in whole), sum(work.model for work in whole)
    if not recomputed:
        return []
    share = 100 * recomputed / model if model else 0.0
    return [
        f"{share:.0f} % of the work is computed a second time (activation checkpointing); HFU includes it, MFU does not"
    ]


def _formula(row: dict[str, Any]) -> str:
    """The MFU formula with the figures of the first row."""
    if row["peak_flop_s"] is None or row["flop_s"] is None:
        return "MFU = FLOPs / time / peak; the peak is unknown"
    units: tuple[tuple[str, Unit], ...] = (
        ("flops", "flop"), ("dur_ns", "ns"), ("flop_s", "flop/s"), ("peak_flop_s", "flop/s"),
    )  # fmt: skip
    flops, time, rate, peak = (format_rounded(unit, row[name]) for name, unit in units)
    share = 100 * row["flop_s"] / row["peak_flop_s"]
    return (
        f"MFU = FLOPs / time / peak; rank {row['rank']}: {flops} / {time} = {rate}, which is {share:.1f} % of "
        f"{peak} ({row['dtype']})"
    )
