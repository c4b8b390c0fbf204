"""What kind of collective a name stands for, in any of the spellings of c10d, NCCL, gloo and their kernels."""

from __future__ import annotations

import re
from functools import cache

KIND_PATTERNS = (
    ("reduce_scatter", "reducescatter"),
    ("all_reduce", "allreduce|crossdevicereduce"),
    ("all_gather", "allgather"),
    ("all_to_all", "alltoall|deepep"),
    ("barrier", "barrier"),
    ("broadcast", "broadcast"),
    ("sendrecv", "sendrecv"),
    ("send", "send"),
    ("recv", "recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
)
"""Kind, and what its name looks like in any spelling once all but the letters is taken out; the first wins."""

OTHER = "other"
"""The kind of what communicates but does not say how."""


KINDS = (*(kind for kind, _ in KIND_PATTERNS), OTHER)
"""All kinds; arrays hold the place in this list."""

TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that no rank can leave before the last one has come: their ranks leave together."""

POINT_TO_POINT = ("send", "recv")

_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in KIND_PATTERNS)


@cache
def kind_of(name: str) -> str | None:
    """The kind a name stands for; None when it does not say."""
    letters = re.sub("[^a-z]", "", name.lower())
    return next((kind for kind, pattern in _COMPILED if pattern.search(letters)), None)


def kind_sql(text: str) -> str:
    """The kind a name stands for, as a SQL expression; null when the name does not say."""
    letters = f"lower(regexp_replace({text}, '[^A-Za-z]', '', 'g'))"
    cases = " ".join(
        f"WHEN regexp_matches({letters}, '{pattern}') THEN '{kind}'" for kind, pattern in KIND_PATTERNS
    )
    return f"(CASE {cases} END)"


def bus_factor(kind: str, ranks: int) -> float | None:
    """busbw over algbw, as nccl-tests has it; None where bandwidth means nothing."""
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if kind in ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"):
        return (ranks - 1) / ranks
    return 1.0 if kind in ("broadcast", "reduce", "send", "recv", "sendrecv") else None
