"""Kernels and ops grouped by kind of work, kernels also by base name; both follow from the name."""

from __future__ import annotations

import re
from functools import lru_cache

from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.notes import gpu_notes
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.event_tables import kernel_totals
from rankscope.model import COLLECTIVE_NAME_PATTERN
from rankscope.sql import sql_texts
from rankscope.text.names import COLOURED, applied_function, bare_name
from rankscope.timeline.run import Run

FAMILIES = (
    (
        "collective",
        COLLECTIVE_NAME_PATTERN + r"|^c10d::|^_?c10d_functional::|^gloo:|^record_param_comms",
    ),
    ("attention", r"flash|fmha|attention|sdpa|compute_dot_do_o|scaled_dot_product"),
    (
        "matrix product",
        r"gemm|nvjet|cutlass|cublas|gemv|splitk|^ampere_|^sm\d+_|^volta_|wgmma|Cijk_|matmul|s16816|h16816"
        r"|^aten::(?:\w*mm|linear|einsum|mv|dot)\b|(?:mm|Linear)Backward",
    ),
    ("convolution", r"conv|wgrad|dgrad|winograd|implicit|fprop|nchw|nhwc"),
    ("normalisation", r"norm|rms|::bn_|\bbn_|GammaBeta"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|adam(?!ax)|\blamb\b|lamb_|sgd|^aten::_foreach_"),
    ("reduction", r"reduce"),
    (
        "elementwise",
        r"elementwise|vectorized|unrolled|pointwise|triton_poi|distribution|copy|fill|dropout|gelu|silu"
        r"|^aten::(?:add|sub|mul|div|neg|exp|pow|relu|sigmoid|tanh|where|clamp\w*|zero|threshold_backward|addcdiv|addcmul|rsqrt|sqrt)_?$",
    ),
    (
        "indexing",
        r"index|gather|scatter|embedding|sort|topk|scan|unique|compare|radix|DeviceSelect|cub::|thrust|cat(?:Array|_array)|roll|nonzero",
    ),
    ("fused", r"triton|fused|jit"),
)
"""Also of ops, by the parts that begin with ^."""
_COLOUR_OF = {"matrix product": "gemm", "convolution": "gemm", "softmax": "attention", "collective": "comm"}


@lru_cache(maxsize=16384)
def family(name: str) -> str:
    """The first family whose pattern matches the name of a kernel or op, or 'unknown'."""
    return next((family for family, pattern in _compiled() if pattern.search(name)), "unknown")


def coloured_family(name: str) -> int:
    """The index in COLOURED of the group that a kernel or op belongs to."""
    group = family(name)
    group = _COLOUR_OF.get(group, group)
    return COLOURED.index(group if group in COLOURED else "kernel")


@lru_cache
def _compiled() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Not at import: it takes 2 ms, and few commands need it."""
    return tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES)


# Parts in which the names of similar kernels differ: tile sizes and what follows them, and numbers at the end.
_TILE = re.compile(r"_?\d+x\d+(?:x\d+)?.*$")
_NUMBERED = re.compile(r"(?:_\d+)+$|_\d+d?e?\d*c?$")


@lru_cache(maxsize=16384)
def kernel_name(kernel: str) -> str:
    """The name without namespaces, template arguments, parameters and tile sizes.

    A kernel that applies a function has its name appended: 'vectorized_elementwise_kernel: GeluCUDAKernelImpl'.
    """
    bare, function = bare_name(kernel).partition(" (")[0], applied_function(kernel)
    short = _NUMBERED.sub("", _TILE.sub("", bare)).rstrip("_") or bare
    return f"{short}: {function}" if function else short


_LARGE = 0.05
"""Share of the busy time from which on a kernel is named whose name tells nothing."""


def unknown_kernels(run: Run, scope: Scope, busy_ns: int) -> list[str]:
    """A note on large kernels that may communicate: their names tell nothing, and no op is known to launch them."""
    shares = {
        name: time / busy_ns
        for (_, name), (_, time) in kernel_totals(run, scope, False).items()
        if time > _LARGE * busy_ns and family(name) == "unknown"
    }
    if not shares:
        return []
    names = run.rows(
        "SELECT DISTINCT name FROM gpu WHERE class = 'COMPUTE' AND op IS NULL "
        f"AND name IN ({sql_texts(shares)}) AND {scope.where()}"
    )
    unknown = sorted((name for (name,) in names), key=lambda name: (-shares[name], name))
    if not unknown:
        return []
    listed = ", ".join(f"{bare_name(name)} ({100 * shares[name]:.0f} % of the busy time)" for name in unknown)
    pattern = re.escape(bare_name(unknown[0]))
    return [
        f"counted as compute, not known what they do: {listed}; if one communicates: --comm-pattern '{pattern}'"
    ]


def families(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per kind of work and base name."""
    keys = ("rank", "family", "name") if by == "rank" else ("family", "name")
    groups = summed(
        (((rank,) * (by == "rank") + (family(name), kernel_name(name))), (total, count, 1))
        for (rank, name), (count, total) in kernel_totals(run, scope, by == "rank").items()
    )
    total_ns = sum(total for total, *_ in groups.values())
    rows = [
        {
            **dict(zip(keys, key, strict=True)),
            "total_ns": total,
            "instances": count,
            "variants": variants,
            "time_pct": 100 * total / total_ns if total_ns else 0.0,
            "avg_ns": total / count,
        }
        for key, (total, count, variants) in groups.items()
    ]
    rows.sort(key=lambda row: (-row["total_ns"], *(str(row[key]) for key in keys)))
    _, notes = gpu_notes(run, scope, "kernels", category="kernel")
    columns = (
        *((Column("rank"),) if by == "rank" else ()),
        Column("family", help="kind of work"),
        Column("time_pct", "percent", "share of the time of all kernels"),
        Column("total_ns", "ns"),
        Column("instances", "count"),
        Column("avg_ns", "ns", "mean duration"),
        Column("variants", "count", "number of full kernel names in the row"),
        Column("name", help="without template arguments, parameters and tile sizes", at_end=True),
    )
    return Result("kernels.families", "Kernel families", scope.window, columns, rows, notes=tuple(notes))
