"""What kind of work a kernel does, by its name; 'unknown' is a kind too, and its share is reported."""

from __future__ import annotations

import re

FAMILIES = (
    ("collective", r"nccl|rccl|oneccl|msccl|nvshmem|deep_?ep|cross_device_reduce"),
    ("attention", r"flash|fmha|attention|sdpa|cudnn_generated_fort_native_sdpa"),
    (
        "matrix product",
        r"gemm|nvjet|cutlass|cublas|gemv|splitk|^ampere_|^sm\d+_|^volta_|wgmma|Cijk_|matmul|s16816|h16816",
    ),
    ("convolution", r"conv|wgrad|dgrad|winograd|implicit|fprop|nchw|nhwc"),
    ("normalisation", r"norm|rms|::bn_|\bbn_"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|adam|lamb|sgd"),
    ("reduction", r"reduce"),
    (
        "elementwise",
        r"elementwise|vectorized|unrolled|pointwise|triton_poi|distribution|copy|fill|dropout|gelu|silu",
    ),
    (
        "indexing",
        r"index|gather|scatter|embedding|sort|topk|scan|unique|compare|radix|DeviceSelect|cub::|thrust|cat(?:Array|_array)|roll|nonzero",
    ),
    ("fused", r"triton|fused|jit"),
)
_COMPILED = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in FAMILIES)


def family(kernel: str) -> str:
    """The first family whose pattern the name holds."""
    return next((name for name, pattern in _COMPILED if pattern.search(kernel)), "unknown")
