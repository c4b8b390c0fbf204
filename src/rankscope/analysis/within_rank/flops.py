"""FLOPs and bytes of one op call, from its recorded shapes.

A matrix product has 2·M·N·K FLOPs. A convolution has 2 per output and weight of its group. Attention has
4·B·H·Sq·Sk·D, half of that if causal, and 2.5 times as many in its backward pass (flash kernels recompute the
scores). Bytes are inputs and outputs, counted once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import prod

from rankscope.records import dataclass
from rankscope.text.json_values import listed

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
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::_mkldnn_linear": _linear,
    "aten::convolution": _conv_first,
    "aten::_convolution": _conv_first,
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
    call = Call(_shapes(dims), [str(t) for t in listed(types)], [str(c) for c in listed(concrete)])
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


def _shapes(text: str | None) -> list[list[int]]:
    """The sizes of each argument; empty for an argument that is not a tensor."""
    return [
        dims if isinstance(dims, list) and all(type(size) is int and size >= 0 for size in dims) else []
        for dims in listed(text)
    ]
