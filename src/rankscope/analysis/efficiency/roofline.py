"""Roofline: the FLOP rate of each op or kernel against the limit for its intensity and data type."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.ceilings import ceiling_notes, ceilings
from rankscope.analysis.core.device_events import gpu_counts, has_gpu
from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, argv
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.severity import LIMIT_SHARE
from rankscope.analysis.core.step_times import mean_step_ns, periods
from rankscope.analysis.efficiency.ncu import measured_kernels
from rankscope.analysis.within_rank.op_work import CallSums, no_shapes, rank_work
from rankscope.devices import Ceilings
from rankscope.timeline.run import Run

# Large matrix products reach about 80 % of the roof in practice; half of that is the threshold for a limit.
_GOOD_PCT = 80.0
_POOR_PCT = 40.0
_COVERED = "the rows cover {:.0f} % of the compute kernel time; the FLOPs of the rest are unknown"
_BY_SHAPE = argv("rankscope stats RUN -r roofline --by shape")


def roofline(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per op and data type, or per kernel, shape or rank (--by); most time first."""
    work = rank_work(run, scope)
    roofs = ceilings(run, scope)
    calls = [(rank, call) for rank, of_rank in work.items() for call in of_rank.calls]
    on_host = not any(call.on_device.calls for _, call in calls) and not has_gpu(run, scope)
    rows = _rows(calls, by, roofs, on_host)
    measured = _measured(run, scope, roofs) if by in (None, "kernel") else []
    notes = []
    notes += ceiling_notes(run, scope, {row["dtype"] for row in rows + measured if row["dtype"]})
    if not work and not measured:
        notes.append(no_shapes(run))
    if work:
        total = sum(count.time_ns for count in gpu_counts(run, scope) if count.kind == "COMPUTE")
        share = 100 * sum(call.kernel_ns for _, call in calls) / (total or 1)
        notes += [_COVERED.format(share)] if total else []
    if on_host and not measured:
        notes.append(f"no GPU events: time is host time; on a GPU, {how_to_record(run, 'gpu')}")
    limits = _limits(run, scope, calls, rows, _rows(calls, "rank", roofs, on_host)) if by is None else ()
    key = (
        (Column(by, help="key that splits the rows", at_end=by == "shape"),)
        if by in ("rank", "shape")
        else ()
    )
    columns = (
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
    return Result("roofline", "Roofline", scope.window, columns, rows + measured, limits, tuple(notes))


_NCU_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp32": "float32", "fp64": "float64"}


def _measured(run: Run, scope: Scope, roofs: dict[int, Ceilings]) -> list[dict[str, Any]]:
    """Rows of the kernels that ncu measured: executed FLOPs and DRAM traffic."""
    roof, parts, rows = next(iter(roofs.values()), Ceilings()), [], []
    for kernel in measured_kernels(run, scope):
        if kernel.flops and kernel.dram_bytes and kernel.duration_ns:
            # Rounded: a count computed from a rate and cycles varies in its last digits between launches.
            key = kernel.name, kernel.grid, kernel.block, f"{kernel.flops:.6g}", kernel.dtype
            parts.append((key, (1, kernel.flops, kernel.dram_bytes, 0, kernel.duration_ns)))
    for (name, *_, dtype), sums in summed(parts).items():
        dtype = _NCU_TYPES.get(dtype or "", dtype)
        rows.append({"name": name} | _point([*map(round, sums)], dtype, roof, "ncu"))
    return sorted(rows, key=lambda row: (-row["device_ns"], row["name"]))


def _rows(
    calls: list[tuple[int, CallSums]], by: str | None, roofs: dict[int, Ceilings], on_host: bool
) -> list[dict[str, Any]]:
    """One row per op or kernel and data type, and per rank or shape if asked for."""
    first, parts = dict[tuple[Any, ...], int](), []
    for rank, call in calls:
        timed = call.on_host if on_host else call.on_device
        name = call.name
        if by == "kernel":
            name, timed = call.kernel or "", timed._replace(time_ns=call.kernel_ns)
        if timed.calls and name:
            key = (name, call.dtype, {"rank": rank, "shape": call.shape or None}.get(by or ""))
            first.setdefault(key, rank)
            parts.append((key, timed))
    rows = []
    for key, sums in summed(parts).items():
        row: dict[str, Any] = {"name": key[0]} | ({by: key[2]} if by in ("rank", "shape") else {})
        rows.append(row | _point(sums, key[1], roofs.get(first[key], Ceilings())))
    return sorted(
        rows, key=lambda row: (-row["device_ns"], row["name"], str(row.get(by or "")), str(row["dtype"]))
    )


def _point(sums: Sequence[int], dtype: str | None, roof: Ceilings, source: str = "shapes") -> dict[str, Any]:
    """The columns of a row after its name and keys."""
    calls, flops, size, unknown, time_ns = sums
    intensity = flops / size if size and not unknown else None
    rate = flops * 1e9 / time_ns if time_ns > 0 else None
    peak = roof.peak(dtype)
    slope = intensity * roof.bandwidth if intensity is not None and roof.bandwidth is not None else None
    top = None if peak is None or slope is None else min(peak, slope)
    return {
        "calls": calls,
        "flops": flops,
        "bytes": None if unknown else size,
        "intensity": intensity,
        "flop_s": rate,
        "pct_of_roof": 100 * rate / top if rate is not None and top else None,
        "bound": None if peak is None or slope is None else "compute" if slope >= peak else "memory",
        "dtype": dtype,
        "device_ns": time_ns,
        "source": source,
    }


def _limits(
    run: Run,
    scope: Scope,
    calls: list[tuple[int, CallSums]],
    rows: list[dict[str, Any]],
    by_rank: list[dict[str, Any]],
) -> tuple[Finding, ...]:
    """Float32 without tensor cores, and ops far below their roof; the most time to gain first."""
    recorded = {*periods(run, scope).rank.tolist()}
    if not recorded or not has_gpu(run, scope):  # the time of a launch on the host is not that of the work
        return ()
    step_ns, roof = mean_step_ns(run, scope), ceilings(run, scope)[min(recorded)]
    peak, tf32 = roof.peak("float32"), roof.peaks.get("tf32")
    limits = []
    for row in rows:
        key = {"name": row["name"], "dtype": row["dtype"]}
        of_ranks = [each for each in by_rank if key.items() <= each.items()]
        below = [each for each in of_ranks if (each["pct_of_roof"] or 0.0) < _POOR_PCT]
        text, command, facts = "Small or unaligned sizes are the usual cause", _BY_SHAPE, list[Fact]()
        if row["dtype"] == "float32" and row["bound"] == "compute" and peak and tf32 and tf32 > peak:
            factor, below, command = tf32 / peak, of_ranks, ()
            title = f"Kernels faster: {row['name']} on tensor cores"
            text = 'torch.set_float32_matmul_precision("high") allows TF32; bfloat16 autocast is usually faster still.'
            for dtype, of_dtype in (("float32", peak), ("tf32", tf32)):
                facts.append(Fact("peak_flop_s", of_dtype, "flop/s", f"the device, {dtype}"))
        elif (row["pct_of_roof"] or _POOR_PCT) < _POOR_PCT:
            factor = _GOOD_PCT / row["pct_of_roof"]
            title = f"Kernels faster: {row['name']} ({row['dtype']})"
            bound = "memory bandwidth" if row["bound"] == "memory" else "the compute peak"
            facts.append(Fact("pct_of_roof", row["pct_of_roof"], "percent", "all ranks", row=key))
            facts.append(Fact("bound", bound))
        else:
            continue
        ranks = tuple(each["rank"] for each in below)
        took_ns = row["device_ns"] / (max(steps_in(run, scope), 1) * len(recorded))
        less_ns, per_step = took_ns * (1 - 1 / factor), "mean over the ranks, per step"
        if not less_ns >= LIMIT_SHARE * step_ns > 0:
            continue
        if len(ranks) < len(of_ranks):
            facts.append(Fact("ranks_below", len(ranks), "count", f"of {len(of_ranks)} ranks", ranks))
        facts.append(Fact("device_ns_per_step", round(took_ns), "ns", per_step, ranks))
        facts.append(Fact("flop_s", row["flop_s"], "flop/s", "all ranks", row=key))
        facts.append(Fact("less_ns_per_step", round(less_ns), "ns", per_step, ranks))
        # The longest kernel of each call: whatif replays GPU work only.
        of_row = (call for _, call in calls if (call.name, call.dtype) == (row["name"], row["dtype"]))
        kernels = tuple(sorted({call.kernel for call in of_row if call.kernel}))
        remedy = Remedy("kernels faster", names=kernels, factor=factor) if kernels else None
        limit = Finding(
            "limit",
            title,
            ranks=ranks,
            advice=text,
            command=command,
            facts=tuple(facts),
            remedy=remedy,
            names=(row["name"],),
        )
        limits.append((-less_ns, limit))
    return tuple(limit for _, limit in sorted(limits, key=itemgetter(0)))
