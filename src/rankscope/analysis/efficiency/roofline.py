"""How near the roof: FLOP/s of each op or kernel against what its intensity and data type allow."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.efficiency.mfu import NO_SHAPES
from rankscope.analysis.efficiency.ncu_metrics import roofline_points
from rankscope.analysis.efficiency.roofline_findings import findings
from rankscope.analysis.within_rank.op_work import NO_KERNEL, OpWork, op_work
from rankscope.devices import Ceilings
from rankscope.store.arrays import number_rows
from rankscope.store.run import Run


def _columns(by: str | None) -> tuple[Column, ...]:
    key = (
        (Column(by, help="what the rows are split by", at_end=by == "shape"),)
        if by in ("rank", "shape")
        else ()
    )
    return (
        Column("name", help="the op, or the kernel", at_end=True),
        *key,
        Column("calls", "count"),
        Column("flops", "flop", "from the shapes, or as ncu counted them", title="Work", minor=True),
        Column(
            "bytes",
            "bytes",
            "inputs and outputs once; from ncu, what crossed the memory's bus",
            title="Bytes",
            minor=True,
        ),
        Column("intensity", help="FLOP a byte", title="FLOP/B"),
        Column("flop_s", "flop/s", "FLOPs over device time", title="Rate"),
        Column("pct_of_roof", "percent", "of min(peak, intensity * bandwidth)", title="% of roof"),
        Column("bound", help="what the roof is made of there: compute or memory"),
        Column("dtype", help="the data type whose peak applies"),
        Column("device_ns", "ns", "time on the device; on the host in a run without a GPU", title="Time"),
        Column("source", help="shapes, or ncu", minor=True),
    )


def roofline(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row an op and data type, or one a kernel (--by kernel), shape or rank; most time first."""
    work = op_work(run, scope)
    roofs = ceilings(run, scope)
    on_host = not work.device_ns.any() and not _has_gpu(run, scope)
    rows = _rows(work, by, roofs, on_host)
    measured = _measured(run, scope, roofs) if by in (None, "kernel") else []
    notes = left_out(run, scope)
    notes += ceiling_notes(run, scope, {row["dtype"] for row in rows + measured if row["dtype"]})
    if not len(work.flops) and not measured:
        notes.append(NO_SHAPES)
    if len(work.flops):
        notes += _coverage(run, scope, work)
    if on_host and not measured:
        notes.append("no GPU events: time is the host's; ProfilerActivity.CUDA records the GPU")
    found = findings(run, scope, rows) if by is None else ()
    return Result("roofline", "Roofline", scope.window, _columns(by), rows + measured, found, tuple(notes))


_NCU_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp32": "float32", "fp64": "float64"}


def _measured(run: Run, scope: Scope, roofs: dict[int, Ceilings]) -> list[dict[str, Any]]:
    """The same kernels as ncu measured them: executed FLOPs, and bytes that crossed the memory's bus."""
    roof = next(iter(roofs.values()), Ceilings())
    rows = []
    for found in roofline_points(run, scope):
        dtype = _NCU_TYPES.get(found.dtype or "", found.dtype)
        size, flops, time = round(found.bytes), round(found.flops), round(found.duration_ns)
        rows.append({"name": found.name} | point(found.calls, flops, size, time, dtype, roof, "ncu"))
    return sorted(rows, key=lambda row: (-row["device_ns"], row["name"]))


def _has_gpu(run: Run, scope: Scope) -> bool:
    return bool(run.rows(f"SELECT 1 FROM gpu WHERE {scope.where()} LIMIT 1"))


def _rows(work: OpWork, by: str | None, roofs: dict[int, Ceilings], on_host: bool) -> list[dict[str, Any]]:
    """Grouped by name and data type, and by what was asked for."""
    texts, code = _names(work, by)
    spent = work.host_ns if on_host else work.kernel_ns if by == "kernel" else work.device_ns
    key = {"rank": work.rank, "shape": work.signature}.get(by or "", np.zeros_like(code))
    # A call with no device time of its own (its launch was lost) would spoil the rate of the others.
    mine = (code >= 0) & (spent > 0)
    groups, group = number_rows([code[mine], work.dtype[mine], key[mine]])

    def total(values: Ints) -> list[int]:
        sums = np.zeros(len(groups), dtype=np.int64)
        np.add.at(sums, group, values[mine])
        return [int(value) for value in sums]

    counted = zip(
        groups.tolist(), total(np.ones_like(code)), total(work.flops), total(work.bytes),
        total((work.bytes < 0).astype(np.int64)), total(spent), strict=True,
    )  # fmt: skip
    ranks = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(ranks, group, work.rank[mine])
    rows = []
    for index, ((name, dtype, value), calls, flops, size, unknown, time) in enumerate(counted):
        roof = roofs.get(int(ranks[index]), Ceilings())
        row: dict[str, Any] = {"name": texts[name]}
        if by in ("rank", "shape"):
            row[by] = value if by == "rank" else work.shapes[value] or None
        rows.append(
            row | point(calls, flops, None if unknown else size, time, work.dtypes[dtype], roof, "shapes")
        )
    return sorted(rows, key=lambda row: (-row["device_ns"], row["name"], str(row.get(by or ""))))


def _names(work: OpWork, by: str | None) -> tuple[list[str], Ints]:
    """What a row is called: the op, or its longest kernel (-1 where it has none)."""
    if by == "kernel":
        return work.kernels, np.where(work.kernel == NO_KERNEL, -1, work.kernel)
    texts = sorted(set(work.names))
    codes = np.array([*(texts.index(name) for name in work.names), -1], dtype=np.int64)
    return texts, codes[work.signature]


def point(
    calls: int, flops: int, size: int | None, time_ns: int, dtype: str | None, roof: Ceilings, source: str
) -> dict[str, Any]:
    """Where a row lies under its roof."""
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


def _coverage(run: Run, scope: Scope, work: OpWork) -> list[str]:
    """How much of the device's time these rows speak of."""
    ((total,),) = run.rows(
        f"SELECT sum(greatest(dur_ns, 0)) FROM gpu WHERE class = 'COMPUTE' AND {scope.where()}"
    )
    if not total:
        return []
    share = 100 * int(work.kernel_ns.sum()) / int(total)
    return [f"{share:.0f} % of the compute kernels' time is here; the rest has no FLOPs that shapes tell"]
