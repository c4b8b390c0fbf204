"""Kinds of collectives, and how to recognise them in the names used by c10d, NCCL, gloo and their kernels."""

from __future__ import annotations

import re
from functools import cache

KIND_PATTERNS = (
    ("reduce_scatter", "reducescatter"),
    ("all_reduce", "allreduce|crossdevicereduce"),
    ("all_gather", "allgather"),
    (
        "all_to_all",
        "alltoall|allall|deepep|dpskep|hybridep|(?:inter|intra)node|aadispatch|aacombine|(?:dispatch|combine)kernel",
    ),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("sendrecv", "sendrecv|collectivepermute"),
    ("send", "send"),
    ("recv", "recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
"""Kind, and a pattern for its name in lower case with letters only. The first that matches wins."""

OTHER = "other"
"""The kind of an operation whose name does not tell."""

KINDS = (*(kind for kind, _ in KIND_PATTERNS), OTHER)
"""All kinds; arrays hold indices into this tuple."""

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that no rank can leave before the last rank has entered: all ranks leave at the same time."""

POINT_TO_POINT = ("send", "recv")
BATCHED = "sendrecv"
"""The kind of a kernel with several sends and receives (batch_isend_irecv)."""

_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in KIND_PATTERNS)


@cache
def kind_of(name: str) -> str | None:
    """The kind of collective that a name stands for, or None."""
    letters = re.sub("[^a-z]", "", name.lower())
    return next((kind for kind, pattern in _COMPILED if pattern.search(letters)), None)


def bus_factor(kind: str, ranks: int) -> float | None:
    """busbw divided by algbw, as nccl-tests defines them; None for kinds without a bandwidth."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", "send", "recv", "sendrecv") else None


_ELEMENT_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float32": 4, "int32": 4, "float16": 2,
    "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "bytes": 1,
}  # fmt: skip
"""NCCL's own files have sizes in bytes, without a type."""


def element_bytes(dtype: str | None) -> int:
    """The size of an element; 0 if unknown."""
    return 1 if (dtype or "").startswith("float8") else _ELEMENT_BYTES.get(dtype or "", 0)
