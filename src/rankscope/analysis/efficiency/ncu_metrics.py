"""Metrics that Nsight Compute measured per kernel: duration, DRAM bytes, executed FLOPs, shares of the peak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field

from rankscope.analysis.core.scope import Scope
from rankscope.model import NCU_KERNELS
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run

DURATION = "gpu__time_duration.sum"
_CYCLES = "sm__cycles_elapsed.avg"
"""The cycles that ncu divides by for its .per_cycle_elapsed metrics."""
# The first metric that is present counts. Which ones a report has depends on its sections, the device and the
# version of ncu.
_ALTERNATIVES = {
    "compute_pct": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "memory_pct": ("gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",),
    "dram_pct": (
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "tensor_pct": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
}
_TENSOR = "sm__ops_path_tensor_src_"
"""Tensor core operations by input type; a multiply-add counts as two."""
_SCALAR = "smsp__sass_thread_inst_executed_op_{letter}{op}_pred_on"
# FLOPs per instruction and thread; a half-precision instruction works on two numbers.
_SCALAR_FLOPS = {
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
}


@dataclass(frozen=True)
class MeasuredKernel:
    """One launch that ncu measured; None where the report has no such metric."""

    rank: int
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    duration_ns: float | None
    dram_bytes: float | None
    flops_by_type: Mapping[str, float] = field(default_factory=dict)
    """Executed FLOPs by type: bf16, fp16, tf32, fp8, fp64 on tensor cores; fp32, fp64, fp16 on other units."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Percentages of the peak: compute_pct, memory_pct, dram_pct, tensor_pct, occupancy_pct."""

    @property
    def flops(self) -> float | None:
        return sum(self.flops_by_type.values()) if self.flops_by_type else None

    @property
    def dtype(self) -> str | None:
        """The type of most of the FLOPs; None without FLOPs."""
        most = max(self.flops_by_type, key=lambda name: self.flops_by_type[name], default=None)
        return most if most and self.flops_by_type[most] else None


@dataclass(frozen=True)
class RooflinePoint:
    """Launches of one kernel with the same FLOPs; the figures are their totals."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    calls: int
    flops: float
    bytes: float
    duration_ns: float
    dtype: str | None


def measured_kernels(run: Run, scope: Scope) -> list[MeasuredKernel]:
    """Every launch in the ncu reports of the ranks in scope, in report order."""
    if not run.has(NCU_KERNELS):
        return []
    wanted = sql_texts(name for names in _ALTERNATIVES.values() for name in names)
    rows = run.rows(f"""
        SELECT k.rank, k.segment, k.kernel, k.name, k.grid, k.block,
            map_from_entries(list((m.metric, m.value)) FILTER (m.metric IS NOT NULL))
        FROM ncu_kernels k
        LEFT JOIN ncu_metrics m ON m.rank = k.rank AND m.segment = k.segment AND m.kernel = k.kernel
            AND m.value IS NOT NULL AND (m.metric IN ({wanted}) OR m.metric LIKE 'dram\\_\\_bytes%' ESCAPE '\\'
                OR m.metric IN ('{DURATION}', '{_CYCLES}') OR starts_with(m.metric, '{_TENSOR}')
                OR regexp_matches(m.metric, '^smsp__sass_thread_inst_executed_op_[fdh](add|mul|fma)_pred_on'))
        WHERE {scope.only_ranks().where("k")}
        GROUP BY ALL ORDER BY k.rank, k.segment, k.kernel
    """)
    return [
        _measured(rank, name, grid, block, metrics or {}) for rank, _, _, name, grid, block, metrics in rows
    ]


def roofline_points(run: Run, scope: Scope) -> list[RooflinePoint]:
    """Launches with measured DRAM bytes, executed FLOPs and a duration."""
    groups: dict[tuple[object, ...], list[MeasuredKernel]] = {}
    for kernel in measured_kernels(run, scope):
        if kernel.flops and kernel.dram_bytes and kernel.duration_ns:
            # Rounded: a count computed from a rate and cycles varies in its last digits between launches.
            work = f"{kernel.flops:.6g}"
            groups.setdefault((kernel.name, kernel.grid, kernel.block, work), []).append(kernel)
    return [
        RooflinePoint(
            name=same[0].name,
            grid=same[0].grid,
            block=same[0].block,
            calls=len(same),
            flops=sum(kernel.flops or 0 for kernel in same),
            bytes=sum(kernel.dram_bytes or 0 for kernel in same),
            duration_ns=sum(kernel.duration_ns or 0 for kernel in same),
            dtype=same[0].dtype,
        )
        for same in groups.values()
    ]


def _measured(
    rank: int, name: str, grid: list[int] | None, block: list[int] | None, metrics: Mapping[str, float]
) -> MeasuredKernel:
    shares = {
        share: next(metrics[metric] for metric in names if metric in metrics)
        for share, names in _ALTERNATIVES.items()
        if any(metric in metrics for metric in names)
    }
    return MeasuredKernel(
        rank=rank,
        name=name,
        grid=tuple(grid) if grid else None,
        block=tuple(block) if block else None,
        duration_ns=metrics.get(DURATION),
        dram_bytes=_dram_bytes(metrics),
        flops_by_type=_flops(metrics),
        shares=shares,
    )


def _dram_bytes(metrics: Mapping[str, float]) -> float | None:
    if "dram__bytes.sum" in metrics:
        return metrics["dram__bytes.sum"]
    if "dram__bytes_read.sum" in metrics and "dram__bytes_write.sum" in metrics:
        return metrics["dram__bytes_read.sum"] + metrics["dram__bytes_write.sum"]
    rate, duration = metrics.get("dram__bytes.sum.per_second"), metrics.get(DURATION)
    return rate * duration / 1e9 if rate is not None and duration is not None else None


def _flops(metrics: Mapping[str, float]) -> dict[str, float]:
    """Executed FLOPs by type; empty if the report has no FLOP metrics."""
    flops = defaultdict[str, float](float)
    bases = {metric.partition(".")[0] for metric in metrics}
    for base in sorted(bases):
        if base.startswith(_TENSOR):
            count = _total(metrics, base)
            kind = base.removeprefix(_TENSOR).partition("_")[0]
            if count is not None and not kind.startswith("int"):
                flops[kind] += count
    for kind, weights in _SCALAR_FLOPS.items():
        for op, weight in weights.items():
            count = _total(metrics, _SCALAR.format(letter=op[0], op=op[1:]))
            if count is not None:
                flops[kind] += weight * count
    return flops


def _total(metrics: Mapping[str, float], base: str) -> float | None:
    """The count for the whole kernel, from the sum or else from a rate."""
    if f"{base}.sum" in metrics:
        return metrics[f"{base}.sum"]
    per_cycle, cycles = metrics.get(f"{base}.sum.per_cycle_elapsed"), metrics.get(_CYCLES)
    if per_cycle is not None and cycles is not None:
        return per_cycle * cycles
    rate, duration = metrics.get(f"{base}.sum.per_second"), metrics.get(DURATION)
    return rate * duration / 1e9 if rate is not None and duration is not None else None
