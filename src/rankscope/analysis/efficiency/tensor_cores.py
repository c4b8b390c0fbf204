"""Which kernels run on tensor cores, by what libraries call them."""

from __future__ import annotations

import re

# Instruction shapes (884, 1688, 16816, …), the instructions' names, and the generators that use nothing else.
_TENSOR = re.compile(
    r"(?:^|[^0-9])(?:[hsid]?(?:884|1688|16816|16832|8816|8832)|16816)(?:[^0-9]|$)"
    r"|hmma|imma|wgmma|gmma|tensorop|nvjet|tcgen05|flash_(?:fwd|bwd|attn)|sdpa_.*flash|fmha_(?:cutlass|v\d)"
    r"|xmma_\w*(?:bf16|f16|tf32|e4m3)|mfma|Cijk_\w*MFMA",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"ffma|simt|(?:^|_)[sd]gemm_(?!tf32)|gemv", re.IGNORECASE)


def on_tensor_cores(kernel: str) -> bool:
    """Whether a kernel of this name does its products on tensor cores (AMD: matrix cores)."""
    return bool(_TENSOR.search(kernel)) and not _PLAIN.search(kernel)
