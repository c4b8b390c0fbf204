"""The reference result: the same block in one process, without communication."""

from __future__ import annotations

from typing import Any

from rankscope.bench.seqpar.block import tensors
from rankscope.bench.seqpar.config import Config

# Allowed relative error. A wrong order of ranks or a missing term gives about 1.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
TOLERANCE_TF32 = 5e-3
_ROWS = 16


def sample_rows(config: Config, ranks: int) -> list[int]:
    """The rows of a rank's output that are checked: evenly spaced from the first to the last, at most 16."""
    rows = config.sequence // ranks
    count = min(rows, _ROWS)
    return sorted({round(index * (rows - 1) / max(count - 1, 1)) for index in range(count)})


def reference_rows(config: Config, rank: int, ranks: int) -> Any:
    """The sampled rows of this rank's output, in float64: X·W1ᵀ·W2ᵀ with the full weights."""
    import torch

    inputs, _, _ = tensors(config, rank, ranks)
    rows = inputs[sample_rows(config, ranks), 0].double()
    total = torch.zeros(len(rows), config.hidden, dtype=torch.float64)
    for other in range(ranks):
        _, weight1, weight2 = tensors(config, other, ranks)
        total += rows @ weight1.double().T @ weight2.double().T
    return total


def relative_error(output: Any, reference: Any, rows: list[int]) -> float:
    """Of a rank's output (S/W,1,H): Frobenius norm over the sampled rows."""
    found = output[rows, 0].double().cpu()
    return float((found - reference).norm() / reference.norm())
