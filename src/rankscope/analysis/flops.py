"""Floating-point operations of matrix products from recorded shapes: 2·M·N·K."""

from __future__ import annotations

from math import prod
from typing import Any

FLOP_OPS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")
"""The ops that do the work; linear and matmul call one of them and are not counted again."""


def flops(name: str, dims: list[Any]) -> int | None:
    """Operations of one call, or None when the shapes do not tell."""
    first = 1 if name in ("aten::addmm", "aten::baddbmm") else 0
    try:
        a, b = dims[first], dims[first + 1]
        if len(a) < 2 or len(b) != len(a) or a[-1] != b[-2]:
            return None
        return int(2 * prod(a) * b[-1])
    except (IndexError, TypeError):
        return None
