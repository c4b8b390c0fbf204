"""Roofline: the FLOP rate of each op or kernel against the limit for its intensity and data type."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import mean_step_ns, periods, step_count
from rankscope.analysis.efficiency.ncu_metrics import roofline_points
from rankscope.analysis.within_rank.op_work import NO_KERNEL, OpWork, RankWork, no_shapes, op_work, rank_work
from rankscope.devices import Ceilings
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

# Large matrix products reach about 80 % of the roof in practice; half of that is the threshold for a limit.
_GOOD_PCT = 80.0
_POOR_PCT = 40.0


def _columns(by: str | None) -> tuple[Column, ...]:
    key = (
        (Column(by, help="key that splits the rows", at_end=by == "shape"),)
        if by in ("rank", "shape")
        else ()
    )
    return (
        Column("name", help="op or kernel", at_end=True),
        *key,
        Column("calls", "count"),
        Column("flops", "flop", "FLOPs, from recorded shapes or counted by ncu", title="Work", minor=True),
        Column(
            "bytes",
            "bytes",
            "inputs and outputs, counted once; from ncu: measured DRAM traffic",
            title="Bytes",
            minor=True,
        ),
        Column("intensity", help="FLOPs per byte", title="FLOP/B"),
        Column("flop_s", "flop/s", "FLOPs divided by time", title="Rate"),
        Column("pct_of_roof", "percent", "of min(peak, intensity * bandwidth)", title="% of roof"),
        Column("bound", help="the lower limit: compute or memory"),
        Column("dtype", help="data type whose peak applies"),
        Column("device_ns", "ns", "time on the device; on the host if the run has no GPU", title="Time"),
        Column("source", help="where FLOPs and bytes come from: shapes or ncu", minor=True),
    )


def roofline(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per op and data type, or per kernel, shape or rank (--by); most time first."""
    work = rank_work(run, scope)
    roofs = ceilings(run, scope)
    on_host = not any(of_rank.has_device_time for of_rank in work.values()) and not has_gpu(run, scope)
    if by in ("shape", "kernel"):
        rows = _call_rows(op_work(run, scope), by, roofs, on_host)
    else:
        rows = _rows(work, by == "rank", roofs, on_host)
    measured = _measured(run, scope, roofs) if by in (None, "kernel") else []
    notes = left_out(run, scope)
    notes += ceiling_notes(run, scope, {row["dtype"] for row in rows + measured if row["dtype"]})
    if not work and not measured:
        notes.append(no_shapes(run))
    if work:
        notes += _coverage(run, scope, work)
    if on_host and not measured:
        notes.append(f"no GPU events: time is host time; on a GPU, {how_to_record(run, 'gpu')}")
    limits = _limits(run, scope, work, rows, _rows(work, True, roofs, on_host)) if by is None else ()
    return Result("roofline", "Roofline", scope.window, _columns(by), rows + measured, limits, tuple(notes))


_NCU_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp32": "float32", "fp64": "float64"}


def _measured(run: Run, scope: Scope, roofs: dict[int, Ceilings]) -> list[dict[str, Any]]:
    """Rows of the kernels that ncu measured: executed FLOPs and DRAM traffic."""
    roof = next(iter(roofs.values()), Ceilings())
    rows = []
    for point in roofline_points(run, scope):
        dtype = _NCU_TYPES.get(point.dtype or "", point.dtype)
        size, flops, time = round(point.bytes), round(point.flops), round(point.duration_ns)
        rows.append({"name": point.name} | _point(point.calls, flops, size, time, dtype, roof, "ncu"))
    return sorted(rows, key=lambda row: (-row["device_ns"], row["name"]))


def _rows(
    work: dict[int, RankWork], by_rank: bool, roofs: dict[int, Ceilings], on_host: bool
) -> list[dict[str, Any]]:
    """One row per op and data type, and per rank if asked for."""
    groups: dict[tuple[Any, ...], tuple[int, list[int]]] = {}
    for rank, of_rank in work.items():
        for op in of_rank.ops:
            timed = op.on_host if on_host else op.on_device
            if timed.calls:
                key = (op.name, op.dtype, rank) if by_rank else (op.name, op.dtype)
                _, sums = groups.setdefault(key, (rank, [0] * len(timed)))
                for i, value in enumerate(timed):
                    sums[i] += value
    rows = []
    for (name, dtype, *ranks), (first, sums) in groups.items():
        row: dict[str, Any] = {"name": name} | ({"rank": ranks[0]} if by_rank else {})
        rows.append(row | _shaped_point(sums, dtype, roofs.get(first, Ceilings())))
    return sorted(
        rows, key=lambda row: (-row["device_ns"], row["name"], str(row.get("rank")), str(row["dtype"]))
    )


def _call_rows(work: OpWork, by: str, roofs: dict[int, Ceilings], on_host: bool) -> list[dict[str, Any]]:
    """One row per name and data type, and per shape if asked for; for a kernel, its calls and their time."""
    texts, code = _names(work, by)
    spent = work.host_ns if on_host else work.kernel_ns if by == "kernel" else work.device_ns
    key = work.signature if by == "shape" else np.zeros_like(code)
    mine = (code >= 0) & (spent > 0)
    groups, group = number_rows([code[mine], work.dtype[mine], key[mine]])
    columns = (np.ones_like(code), work.flops, work.bytes, (work.bytes < 0).astype(np.int64), spent)
    sums = np.zeros((len(groups), len(columns)), dtype=np.int64)
    np.add.at(sums, group, np.stack(columns)[:, mine].T)
    ranks = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(ranks, group, work.rank[mine])
    rows = []
    for (name, dtype, value), totals, rank in zip(
        groups.tolist(), sums.tolist(), ranks.tolist(), strict=True
    ):
        row: dict[str, Any] = {"name": texts[name]}
        if by == "shape":
            row["shape"] = work.shapes[value] or None
        rows.append(row | _shaped_point(totals, work.dtypes[dtype], roofs.get(rank, Ceilings())))
    return sorted(rows, key=lambda row: (-row["device_ns"], row["name"], str(row.get(by))))


def _names(work: OpWork, by: str) -> tuple[list[str], Ints]:
    """Names of the rows, and the index of each call's name: its op or its longest kernel (-1 without a kernel)."""
    if by == "kernel":
        return work.kernels, np.where(work.kernel == NO_KERNEL, -1, work.kernel)
    texts = sorted(set(work.names))
    codes = np.array([*(texts.index(name) for name in work.names), -1], dtype=np.int64)
    return texts, codes[work.signature]


def _shaped_point(sums: Sequence[int], dtype: str | None, roof: Ceilings) -> dict[str, Any]:
    calls, flops, size, unknown, time = sums
    return _point(calls, flops, None if unknown else size, time, dtype, roof, "shapes")


def _point(
    calls: int, flops: int, size: int | None, time_ns: int, dtype: str | None, roof: Ceilings, source: str
) -> dict[str, Any]:
    """The columns of a row after its name and keys."""
    intensity = flops / size if size else None
    rate = flops * 1e9 / time_ns if time_ns > 0 else None
    peak = roof.peak(dtype)
    slope = intensity * roof.bandwidth if intensity is not None and roof.bandwidth is not None else None
    top = None if peak is None or slope is None else min(peak, slope)
    return {
        "calls": calls,
        "flops": flops,
        "bytes": size,
        "intensity": intensity,
        "flop_s": rate,
        "pct_of_roof": 100 * rate / top if rate is not None and top else None,
        "bound": None if peak is None or slope is None else "compute" if slope >= peak else "memory",
        "dtype": dtype,
        "device_ns": time_ns,
        "source": source,
    }


def _coverage(run: Run, scope: Scope, work: dict[int, RankWork]) -> list[str]:
    """The share of compute kernel time that the rows cover."""
    total = sum(count.time_ns for count in gpu_counts(run, scope) if count.kind == "COMPUTE")
    if not total:
        return []
    share = 100 * sum(of_rank.kernel_ns for of_rank in work.values()) / total
    return [f"the rows cover {share:.0f} % of the compute kernel time; the FLOPs of the rest are unknown"]


@dataclass(frozen=True)
class _Slow:
    """An op that is slower than it could be, and on which ranks it is; times are per step and rank."""

    row: dict[str, Any]
    time_ns: float
    step_ns: float
    """Without steps, what was recorded of a rank."""
    has_steps: bool
    factor: float
    """How many times as fast it could be."""
    ranks: tuple[int, ...]
    kernels: tuple[str, ...]

    @property
    def less_ns(self) -> float:
        return self.time_ns * (1 - 1 / self.factor)

    @property
    def remedy(self) -> Remedy | None:
        """Whatif replays GPU work only."""
        return Remedy("kernels faster", names=self.kernels, factor=self.factor) if self.kernels else None

    def facts(self, *more: Fact) -> tuple[Fact, ...]:
        """Its figures; those of the row are sums over all ranks in scope."""
        key = {"name": self.row["name"], "dtype": self.row["dtype"]}
        per_step = "mean over the ranks, per step"
        return (
            Fact("device_ns_per_step", round(self.time_ns), "ns", per_step, self.ranks),
            Fact("step_ns", round(self.step_ns), "ns", "mean over the ranks and steps"),
            Fact("calls", self.row["calls"], "count", "all ranks", row=key),
            Fact("flop_s", self.row["flop_s"], "flop/s", "all ranks", row=key),
            Fact("less_ns_per_step", round(self.less_ns), "ns", per_step, self.ranks),
            *more,
        )


def _limits(
    run: Run,
    scope: Scope,
    work: dict[int, RankWork],
    rows: list[dict[str, Any]],
    by_rank: list[dict[str, Any]],
) -> tuple[Finding, ...]:
    """Float32 without tensor cores, and ops far below their roof; the most time to gain first."""
    ranks = sorted({period.rank for period in periods(run, scope)})
    if not ranks or not has_gpu(run, scope):  # the time of a launch on the host is not that of the work
        return ()
    rank_steps = step_count(run, scope) * len(ranks)
    roof = ceilings(run, scope)[ranks[0]]
    limits = []
    for row in rows:
        of_ranks = [each for each in by_rank if (each["name"], each["dtype"]) == (row["name"], row["dtype"])]
        factor = _tf32_factor(row, roof)
        # Float32 concerns every rank that runs it; else only the ranks that are below the limit themselves.
        below = [each for each in of_ranks if factor or (each["pct_of_roof"] or 0.0) < _POOR_PCT]
        if factor is None and (row["pct_of_roof"] is None or row["pct_of_roof"] >= _POOR_PCT):
            continue
        slow = _Slow(
            row,
            row["device_ns"] / rank_steps,
            mean_step_ns(run, scope),
            any(period.step is not None for period in periods(run, scope)),
            factor or _GOOD_PCT / row["pct_of_roof"],
            tuple(each["rank"] for each in below),
            _kernels_of(work, row),
        )
        if slow.less_ns >= LIMIT_SHARE * slow.step_ns > 0:
            limit = _float32(slow, roof) if factor else _far_below(slow, len(of_ranks))
            limits.append((-slow.less_ns, limit))
    return tuple(limit for _, limit in sorted(limits, key=itemgetter(0)))


def _tf32_factor(row: dict[str, Any], roof: Ceilings) -> float | None:
    """How much higher the peak is on tensor cores; None for other data types, and where the memory is the limit."""
    peak, tf32 = roof.peak("float32"), roof.peaks.get("tf32")
    if row["dtype"] != "float32" or row["bound"] != "compute" or not peak or not tf32 or tf32 <= peak:
        return None
    return tf32 / peak


def _kernels_of(work: dict[int, RankWork], row: dict[str, Any]) -> tuple[str, ...]:
    """The longest kernel of each call of a row."""
    kernels = (
        op.kernels for of_rank in work.values() for op in of_rank.ops if op[:2] == (row["name"], row["dtype"])
    )
    return tuple(sorted({kernel for names in kernels for kernel in names}))


def _part_of_step(slow: _Slow) -> str:
    """Of what was recorded, where there are no steps."""
    time, whole = format_rounded("ns", slow.time_ns), format_rounded("ns", slow.step_ns)
    return f"{time} of a step of {whole}" if slow.has_steps else f"{time} of {whole}"


def _float32(slow: _Slow, roof: Ceilings) -> Finding:
    row, peak, tf32 = slow.row, roof.peak("float32") or 0.0, roof.peaks["tf32"]
    return Finding(
        "limit",
        f"Kernels faster: {row['name']} on tensor cores",
        f"it runs in float32 without them ({_part_of_step(slow)}): its {row['calls']:,} calls reach "
        f"{format_rounded('flop/s', row['flop_s'])}; the peak is {format_rounded('flop/s', peak)} in float32 and "
        f"{format_rounded('flop/s', tf32)} in TF32",
        slow.ranks,
        hint='torch.set_float32_matmul_precision("high") allows TF32; bfloat16 autocast is usually faster still.',
        facts=slow.facts(
            Fact("peak_flop_s", peak, "flop/s", "the device, float32"),
            Fact("peak_flop_s", tf32, "flop/s", "the device, tf32"),
        ),
        remedy=slow.remedy,
        names=(row["name"],),
    )


def _far_below(slow: _Slow, of_ranks: int) -> Finding:
    row = slow.row
    limit = "memory bandwidth" if row["bound"] == "memory" else "the compute peak"
    share = Fact("pct_of_roof", row["pct_of_roof"], "percent", "all ranks",
                 row={"name": row["name"], "dtype": row["dtype"]})  # fmt: skip
    below = Fact(
        "ranks_below", len(slow.ranks), "count", f"ranks under {_POOR_PCT:g} % of the roof", slow.ranks
    )
    some = f"; {below.value} of {of_ranks} ranks are under {_POOR_PCT:g} %" if of_ranks > 1 else ""
    return Finding(
        "limit",
        f"Kernels faster: {row['name']} ({row['dtype']})",
        f"it reaches {share.value:.0f} % of its roof ({_part_of_step(slow)}): its {row['calls']:,} calls reach "
        f"{format_rounded('flop/s', row['flop_s'])}, and the limit is {limit}{some}; at {_GOOD_PCT:.0f} % of the roof "
        f"they would take {format_rounded('ns', slow.less_ns)} less{' a step' if slow.has_steps else ''}",
        slow.ranks,
        hint="Small or unaligned sizes are the usual cause: rankscope stats RUN -r roofline --by shape",
        facts=slow.facts(share, below),
        remedy=slow.remedy,
        names=(row["name"],),
    )
