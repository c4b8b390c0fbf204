"""Kernels measured by Nsight Compute: how close each runs to the limits of the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import field

from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, argv
from rankscope.analysis.core.scope import Scope
from rankscope.model import NCU_KERNELS
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import shorten_middle

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
    kernels = []
    for rank, _, _, name, grid, block, recorded in rows:
        metrics = recorded or {}
        known = {share: [each for each in names if each in metrics] for share, names in _ALTERNATIVES.items()}
        kernels.append(
            MeasuredKernel(
                rank=rank,
                name=name,
                grid=tuple(grid) if grid else None,
                block=tuple(block) if block else None,
                duration_ns=metrics.get(DURATION),
                dram_bytes=_dram_bytes(metrics),
                flops_by_type=_flops(metrics),
                shares={share: metrics[names[0]] for share, names in known.items() if names},
            )
        )
    return kernels


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


OF_PEAKS = (
    Column("compute_pct", "percent", "of the peak throughput of the SMs (speed of light)"),
    Column("memory_pct", "percent", "of the peak throughput of the memory system (speed of light)"),
)
RATE = Column("flop_s", "flop/s", "executed FLOPs per second")
SIZE_COLUMNS = (
    Column("grid", help="blocks in x, y, z", minor=True),
    Column("block", help="threads per block in x, y, z", minor=True),
)
LOW_PCT = 60.0
"""A kernel below this share of both peaks is near neither limit; ncu uses the same threshold."""

MIN_SHARE = 0.1
"""Share of the measured time; kernels below it give no finding. Chosen, not measured."""

COLUMNS = (
    Column("rank"),
    Column("name", at_end=True),
    *SIZE_COLUMNS,
    Column("duration_ns", "ns", "of this launch, at the clocks that ncu set"),
    *OF_PEAKS,
    Column("dram_pct", "percent", "of the peak DRAM bandwidth", title="DRAM", minor=True),
    Column("tensor_pct", "percent", "share of cycles in which the tensor cores are active"),
    Column("occupancy_pct", "percent", "active warps, of the maximum per SM", minor=True),
    Column("dram_bytes", "bytes", "read from and written to DRAM", title="DRAM traffic", minor=True),
    Column("flops", "flop", "executed FLOPs of all types", minor=True),
    RATE,
    Column("dtype", help="data type of most of the FLOPs"),
)


def ncu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per launch that ncu measured, longest first."""
    kernels = sorted(measured_kernels(run, scope), key=lambda kernel: -(kernel.duration_ns or 0))
    notes = []
    if not kernels:
        notes.append("no Nsight Compute report; rankscope profile --tool ncu -k REGEX -- COMMAND records one")
    elif all(kernel.flops is None for kernel in kernels):
        notes.append("the report counts no FLOPs; rankscope profile --tool ncu --set roofline records them")
    if kernels and all("occupancy_pct" not in kernel.shares for kernel in kernels):
        notes.append("the report has no occupancy; rankscope profile --tool ncu --set detailed records it")
    rows = [
        {
            "rank": kernel.rank,
            "name": kernel.name,
            "grid": _size(kernel.grid),
            "block": _size(kernel.block),
            "duration_ns": kernel.duration_ns,
            **{name: kernel.shares.get(name) for name in _ALTERNATIVES},
            "dram_bytes": kernel.dram_bytes,
            "flops": kernel.flops,
            "flop_s": kernel.flops / kernel.duration_ns * 1e9
            if kernel.flops is not None and kernel.duration_ns
            else None,
            "dtype": kernel.dtype,
        }
        for kernel in kernels
    ]
    findings = tuple(_findings(kernels))
    title = "Kernels measured by Nsight Compute"
    return Result("ncu", title, "whole file", COLUMNS, rows, findings, tuple(notes))


def _size(dimensions: tuple[int, ...] | None) -> str | None:
    return "x".join(map(str, dimensions)) if dimensions else None


def _findings(kernels: list[MeasuredKernel]) -> Iterator[Finding]:
    """One per kernel with at least a tenth of the measured time that is near neither limit."""
    total = sum(kernel.duration_ns or 0 for kernel in kernels)
    by_name: dict[tuple[int, str], list[MeasuredKernel]] = {}
    for kernel in kernels:
        by_name.setdefault((kernel.rank, kernel.name), []).append(kernel)
    for launches in by_name.values():
        time = sum(kernel.duration_ns or 0 for kernel in launches)
        kernel = max(launches, key=lambda launch: launch.duration_ns or 0)
        compute, memory = kernel.shares.get("compute_pct"), kernel.shares.get("memory_pct")
        # A report may have no durations.
        if not time or time < MIN_SHARE * total or compute is None or memory is None:
            continue
        if (nearest := max(compute, memory)) >= LOW_PCT:
            continue
        key = {"rank": kernel.rank, "name": kernel.name, "grid": _size(kernel.grid)}
        ranks, short = (kernel.rank,), shorten_middle(kernel.name, 60)
        longest = (f"its longest launch on rank {kernel.rank}", ranks, key)
        share = 100 * time / total
        yield Finding(
            "limit",
            f"Kernels faster: {short}",
            ranks=ranks,
            advice="Usual causes are latency and too little work: give each launch more, or fuse it with its "
            "neighbours",
            command=argv("rankscope profile --tool ncu --set detailed"),
            cost_ns=round(time * (1 - nearest / LOW_PCT)),
            facts=(
                Fact("compute_pct", compute, "percent", *longest),
                Fact("memory_pct", memory, "percent", *longest),
                Fact("duration_ns", kernel.duration_ns or 0, "ns", *longest),
                Fact("time_pct", share, "percent", f"all its launches on rank {kernel.rank}", ranks),
                *(
                    []
                    if kernel.dram_bytes is None
                    else [Fact("dram_bytes", kernel.dram_bytes, "bytes", *longest)]
                ),
            ),
            remedy=Remedy(
                "kernels faster", names=(kernel.name,), factor=LOW_PCT / nearest if nearest else float("inf")
            ),
            names=(short,),
        )
