"""Op calls with known FLOPs: the FLOPs, bytes, data type and device time of each.

FLOPs and bytes of a call follow from its recorded shapes. A matrix product has 2·M·N·K FLOPs. A convolution has 2 per
output and weight of its group. Attention has 4·B·H·Sq·Sk·D, half of that if causal, and 2.5 times as many in its
backward pass (flash kernels recompute the scores). Bytes are inputs and outputs, counted once.

Where such ops call each other (linear calls addmm), only the innermost counts, so nothing counts twice. Device
activity belongs to the counted call around the op that launched it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import how_to_record
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import COPY, UNKNOWN, device_events
from rankscope.analysis.core.grouping import last_before, sums_by
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.analysis.within_rank.phases import RECOMPUTE, Partition, partition_of
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows, unique_values
from rankscope.text.json_values import listed
from rankscope.timeline.run import Run


def no_shapes(run: Run) -> str:
    return f"the trace has no shapes, so FLOPs are unknown; {how_to_record(run, 'shapes')}"


NO_KERNEL = -1

# Names in cuBLAS and CUTLASS of kernels that multiply float32 on tensor cores.
_TF32_KERNEL = re.compile(r"tf32|s1688|tensorop|nvjet|wgmma|hmma", re.IGNORECASE)


# Type names in a trace -> (our name, bytes per element).
_TYPES = {
    "c10::BFloat16": ("bfloat16", 2),
    "c10::Half": ("float16", 2),
    "float": ("float32", 4),
    "double": ("float64", 8),
    "c10::Float8_e4m3fn": ("float8", 1),
    "c10::Float8_e5m2": ("float8", 1),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
    "short int": ("int16", 2),
    "int": ("int32", 4),
    "long int": ("int64", 8),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
}


@dataclass(frozen=True)
class Call:
    """The recorded arguments of one call; a list may be shorter than the signature of the op."""

    dims: list[list[int]]
    types: list[str]
    concrete: list[str]

    def flag(self, index: int) -> bool:
        return index < len(self.concrete) and self.concrete[index] == "True"

    def numbers(self, index: int) -> list[int]:
        """The integers of an argument such as '[1, 1]' or '1'."""
        text = self.concrete[index] if index < len(self.concrete) else ""
        return [int(number) for number in re.findall(r"-?\d+", text)]


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one call."""

    flops: int
    bytes: int | None
    """Inputs and outputs, counted once; None if the types were not recorded."""
    dtype: str | None
    """Of the first operand."""


@dataclass(frozen=True)
class FormulaResult:
    """FLOPs, number of elements written, and index of the argument whose type is the dtype."""

    flops: int
    written: int
    operand: int = 0


Formula = Callable[[Call], FormulaResult | None]


def _product(call: Call, first: int) -> FormulaResult | None:
    """a[…, M, K] times b[…, K, N]; b may be a single matrix."""
    a, b = call.dims[first], call.dims[first + 1]
    if len(a) < 2 or len(b) not in (2, len(a)) or a[-1] != b[-2]:
        return None
    return FormulaResult(2 * prod(a) * b[-1], prod(a[:-1]) * b[-1], first)


def _linear(call: Call) -> FormulaResult | None:
    """x[…, K] times w[N, K] transposed."""
    x, w = call.dims[0], call.dims[1]
    if len(w) != 2 or not x or x[-1] != w[1]:
        return None
    return FormulaResult(2 * prod(x) * w[0], prod(x[:-1]) * w[0])


def _convolution(
    call: Call, stride: int, padding: int, dilation: int, transposed: int | None
) -> FormulaResult | None:
    """Each output element (each input element if transposed) is multiplied with every weight of its group."""
    x, weight = call.dims[0], call.dims[1]
    if len(x) < 3 or len(weight) != len(x):
        return None
    if transposed is not None and call.flag(transposed):
        return FormulaResult(2 * prod(x) * prod(weight[1:]), prod(x) // x[1] * weight[1])
    sizes = []
    for i in range(len(x) - 2):
        step, pad, spread = (_at(call.numbers(index), i, default) for index, default in
                             ((stride, 1), (padding, 0), (dilation, 1)))  # fmt: skip
        sizes.append((x[i + 2] + 2 * pad - spread * (weight[i + 2] - 1) - 1) // step + 1)
    out = x[0] * weight[0] * prod(sizes)
    return FormulaResult(2 * out * prod(weight[1:]), out)


def _at(values: list[int], index: int, default: int) -> int:
    """values[index]; a shorter list repeats its first value."""
    if not values:
        return default
    return values[index] if index < len(values) else values[0]


def _convolution_backward(call: Call) -> FormulaResult | None:
    """The FLOPs of one convolution for each requested gradient, of the input and of the weight."""
    grad, x, weight = call.dims[:3]
    if len(grad) < 3 or len(weight) != len(grad):
        return None
    transposed = call.flag(7)
    per_gradient = 2 * prod(x if transposed else grad) * prod(weight[1:])
    mask = re.findall(r"True|False|[01]", call.concrete[10]) if len(call.concrete) > 10 else []
    requested = [flag in ("True", "1") for flag in mask[:2]] or [True, True]
    return FormulaResult(
        per_gradient * sum(requested),
        sum(prod(dims) for dims, wanted in zip((x, weight), requested, strict=False) if wanted),
    )


def _attention(
    call: Call, causal: int, first: int = 0, passes: float = 1, sequence_first: bool = False
) -> FormulaResult | None:
    """q[B, H, Sq, D] against k and v; with sequence_first, q[B, Sq, H, D]."""
    q, k, v = call.dims[first : first + 3]
    if not len(q) == len(k) == len(v) == 4:
        return None
    heads, length = (2, 1) if sequence_first else (1, 2)
    scores = q[0] * q[heads] * q[length] * k[length]
    whole = 2 * scores * (q[3] + v[3])
    flops = int(passes * (whole // 2 if call.flag(causal) else whole))
    out = q[0] * q[heads] * q[length] * v[3]
    return FormulaResult(flops, out if passes == 1 else prod(q) + prod(k) + prod(v), first)


_FLASH_BACKWARD = 2.5
_conv_first = partial(_convolution, stride=3, padding=4, dilation=5, transposed=6)
_backward = partial(_attention, first=1, passes=_FLASH_BACKWARD)

FORMULAS: dict[str, Formula] = {
    **{
        f"aten::{name}": partial(_product, first=0)
        for name in ("mm", "bmm", "matmul", "_scaled_mm", "_int_mm")
    },
    **{f"aten::{name}": partial(_product, first=1) for name in ("addmm", "baddbmm", "_addmm_activation")},
    **{f"aten::{name}": _linear for name in ("linear", "mkldnn_linear", "_mkldnn_linear")},
    **{f"aten::{name}": _conv_first for name in ("convolution", "_convolution")},
    "aten::cudnn_convolution": partial(_convolution, stride=3, padding=2, dilation=4, transposed=None),
    "aten::mkldnn_convolution": partial(_convolution, stride=4, padding=3, dilation=5, transposed=None),
    "aten::miopen_convolution": partial(_convolution, stride=4, padding=3, dilation=5, transposed=None),
    "aten::convolution_backward": _convolution_backward,
    "aten::scaled_dot_product_attention": partial(_attention, causal=5),
    "aten::_scaled_dot_product_flash_attention": partial(_attention, causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": partial(_attention, causal=4),
    "aten::_scaled_dot_product_efficient_attention": partial(_attention, causal=6),
    "aten::_scaled_dot_product_cudnn_attention": partial(_attention, causal=6),
    "aten::_scaled_dot_product_flash_attention_backward": partial(_backward, causal=11),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": partial(_backward, causal=7),
    "aten::_scaled_dot_product_efficient_attention_backward": partial(_backward, causal=11),
    "aten::_scaled_dot_product_cudnn_attention_backward": partial(_backward, causal=14),
    "flash_attn::_flash_attn_forward": partial(_attention, causal=5, sequence_first=True),
    "flash_attn::_flash_attn_backward": partial(_backward, causal=11, sequence_first=True),
}
"""Ops whose FLOPs follow from their inputs. Where one calls another, only the inner one counts."""


def work_of(name: str, dims: str | None, types: str | None, concrete: str | None) -> Work | None:
    """The work of one call from its recorded arguments (JSON texts); None if they are not sufficient."""
    # The sizes of each argument; empty for an argument that is not a tensor.
    shapes = [
        sizes if isinstance(sizes, list) and all(type(size) is int and size >= 0 for size in sizes) else []
        for sizes in listed(dims)
    ]
    call = Call(shapes, [str(t) for t in listed(types)], [str(c) for c in listed(concrete)])
    try:
        counted = FORMULAS[name](call)
    except (KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return None  # another signature of the op, or arguments that are not shapes
    if counted is None or counted.flops <= 0:
        return None
    dtype, size = _TYPES.get(call.types[counted.operand], (None, 0)) if call.types else (None, 0)
    if not dtype:
        return Work(int(counted.flops), None, None)
    # A float8 product has a bfloat16 output.
    written = counted.written * (2 if dtype == "float8" else size)
    arguments = zip(call.dims, call.types, strict=False)
    read = sum(prod(shape) * _TYPES[kind][1] for shape, kind in arguments if shape and kind in _TYPES)
    return Work(int(counted.flops), read + written, dtype)


@dataclass(frozen=True)
class OpWork:
    """One entry per call, in order of file, track and time."""

    number: Ints
    """Identifies the slice in the run: the row of its file in segments times 2**40, plus its id."""
    rank: Ints
    step: Ints
    start: Ints
    """On the host, in ns."""
    host_ns: Ints
    signature: Ints
    """Index into names, shapes and works."""
    flops: Ints
    device_ns: Ints
    """All device activity that the call launched."""
    kernel: Ints
    """Index into kernels of the longest kernel, or NO_KERNEL."""
    kernel_ns: Ints
    """Duration of that kernel, without helper kernels (fills, split-K sums)."""

    dtype: Ints
    """Index into dtypes of the data type whose peak applies; float32 on tensor cores is tf32."""

    names: list[str]
    shapes: list[str]
    works: list[Work]
    kernels: list[str]
    dtypes: list[str | None]

    @property
    def bytes(self) -> Ints:
        """Inputs and outputs, counted once; -1 where unknown."""
        sizes = [-1 if work.bytes is None else work.bytes for work in self.works]
        return np.array([*sizes, -1], dtype=np.int64)[self.signature]


@once_per_run
def op_work(run: Run, scope: Scope) -> OpWork:
    """The counted calls of the ops in scope."""
    distinct_ops = run.rows(
        f"SELECT DISTINCT name, shapes FROM computing_ops WHERE {scope.where()} ORDER BY name, shapes"
    )
    works = []
    for name, (dims, types, concrete, *recorded) in distinct_ops:
        work = work_of(name, dims, types, concrete)
        if work is None:
            try:
                flops = int(float(next(filter(None, recorded), 0)))  # the figure that with_flops recorded
            except ValueError:
                flops = 0
            work = Work(flops, None, None)
        works.append(work)
    calls = _candidates(run, scope, distinct_ops)
    counted = np.array([work.flops > 0 for work in works], dtype=bool)
    calls = {name: values[counted[calls["signature"]]] for name, values in calls.items()}
    # Calls nest on their track, so a call contains another exactly if the next one starts before its end.
    thread, start, end = calls["thread"], calls["start"], calls["end"]
    innermost = np.ones(len(thread), dtype=bool)
    innermost[:-1] = (thread[1:] != thread[:-1]) | (start[1:] >= end[:-1])
    calls = {name: values[innermost] for name, values in calls.items()}
    kernel_names, signature = all_names(run), calls["signature"]
    device_ns, kernel, kernel_ns = _device_time(calls, _launched(run, scope))
    # The data type is evaluated once per pair of signature and kernel.
    pairs, which = number_rows([signature, kernel])
    codes: dict[str | None, int] = {}
    of_pair = []
    for of_work, of_kernel in pairs.tolist():
        dtype = works[of_work].dtype
        if dtype == "float32" and of_kernel >= 0 and _TF32_KERNEL.search(kernel_names[of_kernel]):
            dtype = "tf32"
        of_pair.append(codes.setdefault(dtype, len(codes)))
    return OpWork(
        number=calls["number"],
        rank=calls["rank"],
        step=calls["step"],
        start=calls["start"],
        host_ns=calls["end"] - calls["start"],
        signature=signature,
        flops=np.array([*(work.flops for work in works), 0], dtype=np.int64)[signature],
        device_ns=device_ns,
        kernel=kernel,
        kernel_ns=kernel_ns,
        dtype=np.array(of_pair, dtype=np.int64)[which],
        names=[name for name, _ in distinct_ops],
        shapes=[shapes[0] or "" for _, shapes in distinct_ops],
        works=works,
        kernels=kernel_names,
        dtypes=list(codes),
    )


def _candidates(run: Run, scope: Scope, signatures: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Ops that have a formula, in order of file, track and time, the outer before the inner."""
    sql = f"""
        WITH op_signatures AS MATERIALIZED (
            SELECT unnest(?::VARCHAR[]) AS name, unnest(?::VARCHAR[][]) AS shapes, unnest(range(?)) AS code
        )
        SELECT (f.rowid << 40) | o.id AS number, (f.rowid << 24) | o.track AS thread, o.rank::BIGINT AS rank,
               coalesce(o.step, {NO_STEP})::BIGINT AS step, o.start_ns AS start,
               o.start_ns + greatest(o.dur_ns, 0) AS end, g.code AS signature
        FROM computing_ops o
        JOIN segments f ON f.rank = o.rank AND f.segment = o.segment
        JOIN op_signatures g ON g.name = o.name AND g.shapes IS NOT DISTINCT FROM o.shapes
        WHERE {scope.where("o")}
        ORDER BY thread, start, "end" DESC, number
    """
    if not signatures:
        columns = ("number", "thread", "rank", "step", "start", "end", "signature")
        return {name: np.empty(0, dtype=np.int64) for name in columns}
    names, shapes = ([row[column] for row in signatures] for column in range(2))
    return run.arrays(sql, [names, shapes, len(signatures)])


def _launched(run: Run, scope: Scope) -> dict[str, Any]:
    """For each device event the track and start time of the op that launched it."""
    # The table `segments` has the files in this order: rowid in `_candidates`.
    rows = {(entry.rank, entry.segment): row for row, entry in enumerate(run.segments)}
    parts = []
    for rank in scope.ranks_in(run):
        events = device_events(run, rank, scope.only_ranks())
        events = events.pick(events.op != UNKNOWN)
        segments, which = np.unique(events.segment, return_inverse=True)
        row = np.array([rows[rank, segment] for segment in segments.tolist()], dtype=np.int64)[which]
        parts.append(
            {
                "thread": (row << 24) | events.op_track,
                "at": events.op_start,
                "dur": events.end - events.start,
                "name": events.work,
                "is_kernel": events.kind != COPY,
            }
        )
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _device_time(calls: dict[str, Any], launched: dict[str, Any]) -> tuple[Ints, Ints, Ints]:
    """For each call: device time, longest kernel, and the duration of that kernel."""
    count = len(calls["thread"])
    device_ns, kernel_ns = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    kernel = np.full(count, NO_KERNEL, dtype=np.int64)
    if count == 0 or len(launched["thread"]) == 0:
        return device_ns, kernel, kernel_ns
    # The call around each launch. Calls of a thread do not overlap.
    at = last_before(calls["thread"], calls["start"], launched["thread"], launched["at"])
    mine = (at != NONE) & (launched["at"] <= calls["end"][at])
    device_ns = sums_by(at[mine], launched["dur"][mine], count)
    kernels = np.flatnonzero(mine & launched["is_kernel"])
    kernels = kernels[np.lexsort((launched["name"][kernels], launched["dur"][kernels]))]
    # Assigned in order of duration, so the longest kernel remains.
    kernel[at[kernels]] = launched["name"][kernels]
    kernel_ns[at[kernels]] = launched["dur"][kernels]
    return device_ns, kernel, kernel_ns


class TimedSums(NamedTuple):
    """Calls that took time: number, FLOPs, bytes, calls whose bytes are unknown, time."""

    calls: int
    flops: int
    bytes: int
    unknown: int
    time_ns: int


class CallSums(NamedTuple):
    """The counted calls of one op with the same shapes, data type and longest kernel."""

    name: str
    shape: str
    dtype: str | None
    kernel: str | None
    on_device: TimedSums
    on_host: TimedSums
    kernel_ns: int
    """Time of the longest kernel of each call."""


class StepFlops(NamedTuple):
    """FLOPs of the model in one step, without recomputation, and FLOPs of the recomputation."""

    step: int
    """NO_STEP: outside steps."""
    model: int
    recomputed: int


@dataclass(frozen=True)
class RankWork:
    """The counted calls of one rank."""

    calls: tuple[CallSums, ...]
    steps: tuple[StepFlops, ...]
    main_dtype: str | None
    """The data type of most of the FLOPs."""


@kept_per_rank("op_work", RankWork)
def rank_work(run: Run, scope: Scope) -> dict[int, RankWork]:
    """Of the ranks with counted calls."""
    work = op_work(run, scope)
    places = [*zip(work.names, work.shapes, strict=True)]
    first = {place: number for number, place in reversed([*enumerate(places)])}
    place = np.array([*(first[each] for each in places), NO_KERNEL], dtype=np.int64)[work.signature]
    records = {}
    for rank in unique_values(work.rank).tolist():
        mine = np.flatnonzero(work.rank == rank)
        flops = np.zeros(len(work.dtypes) + 1, dtype=np.int64)
        np.add.at(flops, work.dtype[mine], work.flops[mine])
        records[rank] = RankWork(
            tuple(_call_sums(work, mine, place[mine])),
            tuple(_step_flops(work, mine, partition_of(run, rank, scope))),
            work.dtypes[int(flops.argmax())] if flops.any() else None,
        )
    return records


def _call_sums(work: OpWork, mine: Ints, place: Ints) -> Iterator[CallSums]:
    groups, group = number_rows([place, work.dtype[mine], work.kernel[mine]])
    size = work.bytes[mine]
    columns = [np.ones_like(mine), work.flops[mine], size, (size < 0).astype(np.int64)]
    timed = np.zeros((2, len(groups), 5), dtype=np.int64)
    for sums, time in zip(timed, (work.device_ns[mine], work.host_ns[mine]), strict=True):
        # A call without device time (its launch is not in the file) would raise the rate of the others.
        took = time > 0
        np.add.at(sums, group[took], np.stack([*columns, time])[:, took].T)
    kernel_ns = sums_by(group, work.kernel_ns[mine]).tolist()
    kernels = [*work.kernels, None]
    for (at, dtype, kernel), on_device, on_host, time in zip(
        groups.tolist(), *timed.tolist(), kernel_ns, strict=True
    ):
        yield CallSums(
            work.names[at], work.shapes[at], work.dtypes[dtype], kernels[kernel], TimedSums(*on_device),
            TimedSums(*on_host), time,
        )  # fmt: skip


def _step_flops(work: OpWork, mine: Ints, partition: Partition) -> Iterator[StepFlops]:
    """By step; which calls belong to a forward pass that runs again follows from the phase that they are in."""
    recomputed = (partition.at(work.start[mine]) == RECOMPUTE).astype(np.int64)
    steps, which = np.unique(work.step[mine], return_inverse=True)
    sums = np.zeros((2, len(steps)), dtype=np.int64)
    np.add.at(sums, (recomputed, which), work.flops[mine])
    for row in zip(steps.tolist(), *sums.tolist(), strict=True):
        yield StepFlops(*row)
