"""Model FLOPs utilisation (MFU): the FLOP rate of the model as a share of the peak of the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import add
from typing import Any, NamedTuple

from rankscope.analysis.core.advice import framework, how_to_record
from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.names import sql_names, vocabulary
from rankscope.analysis.core.notes import no_steps
from rankscope.analysis.core.result import Column, Note, NoteKind, Result, Unit
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.within_rank.op_work import no_shapes, rank_work
from rankscope.model import LAUNCH_CATEGORIES
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
    work, spans, roofs = rank_work(run, scope), periods(run, scope), ceilings(run, scope)
    kernels = _kernel_times(run, scope)
    has_kernels = any(compute for compute, *_ in kernels.values())
    # Step None: the sum over all steps of a rank, or over the recording if it has no steps.
    times = [(rank, None, spans.of(rank).span) for rank in sorted({*spans.rank.tolist()})]
    if spans.has_steps:
        times += zip(spans.rank.tolist(), spans.step.tolist(), spans.ns.tolist(), strict=True)
    done: dict[tuple[int, int | None], tuple[int, int]] = {}
    for rank, of_rank in work.items():
        steps = [step for step in of_rank.steps if step.step != NO_STEP]
        done |= {(rank, step.step): step[1:] for step in steps}
        whole = steps or of_rank.steps
        done[rank, None] = sum(step.model for step in whole), sum(step.recomputed for step in whole)
    rows = list[dict[str, Any]]()
    for rank, step, time_ns in times if work or has_kernels else ():
        dtype = work[rank].main_dtype if rank in work else None
        model, recomputed = done.get((rank, step), (None, 0))
        rate = both = None
        if model is not None and time_ns > 0:
            rate, both = model / (time_ns / 1e9), (model + recomputed) / (time_ns / 1e9)
        peak = roofs[rank].peak(dtype) if dtype else None
        compute, on_tensor_cores, in_steps, in_graphs = kernels.get((rank, step), (0, 0, 0, 0))
        graph_pct = 100 * in_graphs / in_steps if in_steps else None
        known = peak if (graph_pct or 0.0) <= _UNCOUNTED_PCT else None
        rows.append(
            {
                "rank": rank,
                "step": step,
                "flops": model,
                "dur_ns": time_ns,
                "flop_s": rate,
                "peak_flop_s": peak,
                "mfu_pct": 100 * rate / known if known and rate is not None else None,
                "hfu_pct": 100 * both / known if known and both is not None else None,
                "dtype": dtype,
                "tensor_core_pct": 100 * on_tensor_cores / compute if compute else None,
                "graph_pct": graph_pct,
            }
        )
    notes: list[str] = [*_graph_note(run, rows)]
    if not work:
        notes = notes or [no_shapes(run)]
    else:
        notes += [_formula(rows[0])] if rows else []
        model, recomputed = (sum(done[rank, None][at] for rank in work) for at in (0, 1))
        if recomputed:
            share = 100 * recomputed / model if model else 0.0
            notes.append(
                f"{share:.0f} % of the work is computed a second time (activation checkpointing); HFU includes it, "
                "MFU does not"
            )
        notes += ceiling_notes(run, scope, {row["dtype"] for row in rows if row["dtype"]})
    if not spans.has_steps:
        notes.append(f"one row covers the whole recording: {no_steps(run)}")
    if spans and not has_kernels:
        notes.append(f"no GPU events: time is host time; on a GPU, {how_to_record(run, 'gpu')}")
    unknown = None
    if rows and all(row["mfu_pct"] is None for row in rows):
        unknown = "; ".join(notes) or "the peak of the device is not known: --peak"
    return Result(
        "mfu", "Model FLOPs utilisation", scope.window, COLUMNS, rows, notes=tuple(notes), unknown=unknown
    )


class KernelTime(NamedTuple):
    """The time of a rank's COMPUTE kernels in one step; step None: outside steps."""

    step: int | None
    all_ns: int
    tensor_core_ns: int
    graph_ns: int
    """Launched by a CUDA graph."""


@kept_per_rank("kernel_time", list[KernelTime], any_window=True)
def rank_kernel_time(run: Run, scope: Scope) -> dict[int, list[KernelTime]]:
    """Of the ranks with such kernels."""
    graphs, in_graph = "", "false"
    if calls := [name for name in vocabulary(run, *LAUNCH_CATEGORIES) if _GRAPH_LAUNCH.match(name)]:
        launches = f"(SELECT rank, segment, id FROM slices WHERE name IN ({sql_names(calls)}))"
        graphs = f"LEFT JOIN {launches} l ON l.rank = g.rank AND l.segment = g.segment AND l.id = g.launch"
        in_graph = "l.id IS NOT NULL"
    by_rank: dict[int, list[KernelTime]] = {}
    # Names are matched by DuckDB, once each: a run may have a million.
    for rank, *times in run.rows(f"""
        WITH on_tensor_cores AS (
            SELECT name FROM internal.names WHERE category = 'kernel'
            AND regexp_matches(name, {sql_text(_TENSOR_CORE_KERNEL)})
            AND NOT regexp_matches(name, {sql_text(_OTHER_KERNEL)})
        )
        SELECT g.rank, g.step, sum(greatest(g.dur_ns, 0))::BIGINT,
               coalesce(sum(greatest(g.dur_ns, 0)) FILTER (t.name IS NOT NULL), 0)::BIGINT,
               coalesce(sum(greatest(g.dur_ns, 0)) FILTER ({in_graph}), 0)::BIGINT
        FROM gpu g LEFT JOIN on_tensor_cores t ON t.name = g.name {graphs}
        WHERE g.class = 'COMPUTE' AND {scope.where("g")} GROUP BY ALL ORDER BY ALL
    """):
        by_rank.setdefault(rank, []).append(KernelTime._make(times))
    return by_rank


def _kernel_times(run: Run, scope: Scope) -> dict[tuple[int, int | None], list[int]]:
    """By rank and step, and by rank (step None): all_ns and tensor_core_ns; then, only of those in steps where a rank
    has any, all_ns and graph_ns."""
    sums: dict[tuple[int, int | None], list[int]] = {}
    for rank, times in rank_kernel_time(run, scope).items():
        has_steps = any(time.step is not None for time in times)
        for step, all_ns, tensor_core_ns, graph_ns in times:
            is_stepped = step is not None or not has_steps
            if scope.has_step(step):
                for key in {(rank, step), (rank, None)}:
                    figures = (all_ns, tensor_core_ns, all_ns * is_stepped, graph_ns * is_stepped)
                    sums[key] = [*map(add, sums.get(key, (0, 0, 0, 0)), figures)]
    return sums


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
