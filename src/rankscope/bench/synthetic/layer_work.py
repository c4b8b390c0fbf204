"""One layer of the model in synthetic traces, forward and backward, as trees of work.

It is the feed-forward half of a transformer block under bf16 autocast: layer norm, linear, gelu, linear, add.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.bench.synthetic import kernel_names
from rankscope.bench.synthetic import op_library as lib
from rankscope.bench.synthetic.kineto_text import Count
from rankscope.bench.synthetic.op_library import ABSENT, BFLOAT16, FLOAT, op, scalar, scalars, tensor
from rankscope.bench.synthetic.work_tree import Frame, Memory, Node, Op

TOKENS, HIDDEN, INNER = 8192, 1024, 4096
BATCH, CONTEXT = 8, TOKENS // 8
FULL_UNIT = 2 * TOKENS * HIDDEN


@dataclass(frozen=True)
class Buffers:
    """Sizes of a layer's buffers; a smaller unit lets a very deep model fit into the GPU's memory."""

    unit: int
    """Bytes of one activation: FULL_UNIT, [8192, 1024] in bf16, if it fits."""

    @property
    def kept(self) -> Sequence[int]:
        """The buffers that forward keeps for backward."""
        unit = self.unit
        # layer norm's output, mean, rstd; first weight and input in bf16; its product; gelu's result; second
        # weight in bf16; its product; the sum with the residual
        return (2 * unit, 512, 512, unit // 2, unit, 4 * unit, 4 * unit, unit // 2, unit, 2 * unit)

    @property
    def layer_bytes(self) -> int:
        return sum(self.kept)

    def allocate(self, which: int) -> Memory:
        return Memory(nbytes=self.kept[which], slot=which)

    def free(self, *which: int) -> list[Memory]:
        return [Memory(nbytes=-self.kept[i], slot=i) for i in which]

    def temporary(self, units: int, number: int) -> tuple[Memory, Memory]:
        """A temporary buffer of one block: its alloc and its free."""
        nbytes, slot = units * self.unit, len(self.kept) + number
        return Memory(nbytes=nbytes, slot=slot), Memory(nbytes=-nbytes, slot=slot)


def _module(kind: str, source: str, function: str, *children: Node) -> Frame:
    """The Python frames of one nn.Module call."""
    built_in = Frame(
        name=[f"<built-in method {function} of type object at 0x7f91d38e5de0>"], children=children
    )
    inner = Frame(name=[f"torch/nn/modules/{source}: forward"], children=(built_in,))
    called = Frame(name=["torch/nn/modules/module.py(1787): _call_impl"], children=(inner,))
    wrapped = Frame(name=["torch/nn/modules/module.py(1775): _wrapped_call_impl"], children=(called,))
    return Frame(name=[f"nn.Module: {kind}_", Count("layer")], children=(wrapped,), is_module=True)


def _cast(dims: Sequence[int], sequence: int, memory: Memory, ns: int) -> Op:
    """autocast: a float weight or input becomes bf16."""
    whole = tensor(FLOAT, *dims)
    grid = max(1, dims[0] * dims[-1] // 8192)
    copy = lib.copy_(BFLOAT16, FLOAT, dims, lib.kernel(kernel_names.COPY_BF16, ns, 32, grid, 128))
    made = lib.empty_strided(dims, memory)
    given = [whole, scalar(15), ABSENT, ABSENT, ABSENT, scalar(False), ABSENT]
    body = lib.forward("aten::_to_copy", sequence, given, made, copy)
    given = [whole, scalar(15), scalar(False), scalar(False), ABSENT]
    return lib.forward("aten::to", sequence, given, body, arrow=False)


def _linear(rows: int, columns: int, sequence: int, casts: Sequence[Op], product: Sequence[Node]) -> Op:
    """y = x W^T + b: casts, view, t, addmm, view, as F.linear does under autocast."""
    flat, batch, result = (TOKENS, columns), (BATCH, CONTEXT, columns), (BATCH, CONTEXT, rows)
    after = sequence + len(casts)
    addmm = [tensor(BFLOAT16, rows), tensor(BFLOAT16, *flat), tensor(BFLOAT16, columns, rows)]
    weight = tensor(BFLOAT16, rows, columns)
    return lib.forward(
        "aten::linear",
        sequence,
        [tensor(FLOAT, *batch), tensor(FLOAT, rows, columns), tensor(FLOAT, rows)],
        *casts,
        lib.forward("aten::view", after, [tensor(BFLOAT16, *batch), scalars(flat)]),
        lib.forward("aten::t", after + 1, [weight], lib.transpose(rows, columns)),
        lib.forward(
            "aten::addmm",
            after + 2,
            [*addmm, scalar(1), scalar(1)],
            *product,
            flops=2 * TOKENS * rows * columns,
        ),
        lib.forward("aten::view", after + 3, [tensor(BFLOAT16, TOKENS, rows), scalars(result)]),
        arrow=False,
    )


def _layer_norm(buffers: Buffers) -> Op:
    whole = tensor(FLOAT, BATCH, CONTEXT, HIDDEN)
    weight = tensor(FLOAT, HIDDEN)
    given = [whole, scalars((HIDDEN,)), weight, weight, scalar("1.0000000000000001e-05")]
    sizes = ((BATCH, CONTEXT, HIDDEN), (TOKENS,), (TOKENS,))
    empties = [
        op("aten::empty", [scalars(size), scalar(6), scalar(0), ABSENT, ABSENT, ABSENT], buffers.allocate(i))
        for i, size in enumerate(sizes)
    ]
    views = [op("aten::view", [tensor(FLOAT, TOKENS), scalars((BATCH, CONTEXT, 1))]) for _ in range(2)]
    launch = lib.kernel(kernel_names.LAYER_NORM, 27_000, 39, 8192, 128, shared=24)
    native = lib.forward("aten::native_layer_norm", 0, given, *empties, launch, *views)
    return lib.forward("aten::layer_norm", 0, [*given, scalar(True)], native, arrow=False)


def forward_layer(buffers: Buffers) -> list[Node]:
    """One layer forward: 14 autograd nodes, eight kernels and a memset."""
    workspace, freed = buffers.temporary(1, 0)
    inner = (BATCH, CONTEXT, INNER)
    first = _linear(
        INNER,
        HIDDEN,
        1,
        [
            _cast((INNER, HIDDEN), 1, buffers.allocate(3), 7_000),
            _cast((BATCH, CONTEXT, HIDDEN), 2, buffers.allocate(4), 12_000),
        ],
        [
            buffers.allocate(5),
            workspace,
            lib.memset(4, 700),
            lib.gemm("256x128_64x4_1x2_h_bz_coopA_bias_TNT", 88_000, 66),
            freed,
        ],
    )
    second = _linear(
        HIDDEN,
        INNER,
        8,
        [_cast((HIDDEN, INNER), 8, buffers.allocate(7), 7_000)],
        [buffers.allocate(8), lib.gemm("192x192_64x4_2x1_v_bz_coopB_bias_TNN", 92_000, 66)],
    )
    gelu = lib.forward(
        "aten::gelu",
        7,
        [tensor(BFLOAT16, *inner), scalar("none")],
        buffers.allocate(6),
        lib.kernel(kernel_names.GELU, 41_000, 32, 32768, 128),
    )
    residual = lib.forward(
        "aten::add",
        13,
        [tensor(FLOAT, BATCH, CONTEXT, HIDDEN), tensor(BFLOAT16, BATCH, CONTEXT, HIDDEN), scalar(1)],
        buffers.allocate(9),
        lib.kernel(kernel_names.ADD, 29_000, 32, 16384, 128),
    )
    body = Frame(
        name=["train.py(41): forward"],
        children=(
            _module("LayerNorm", "normalization.py(229)", "layer_norm", _layer_norm(buffers)),
            _module("ColumnLinear", "linear.py(134)", "linear", first),
            _module("GELU", "activation.py(816)", "gelu", gelu),
            _module("RowLinear", "linear.py(134)", "linear", second),
            residual,
        ),
    )
    return [Frame(name=["nn.Module: Block_", Count("layer")], children=(body,), is_module=True)]


def _view_backward(sequence: int, dims: Sequence[int], to: Sequence[int]) -> Op:
    given = [tensor(BFLOAT16, *dims), scalars(to)]
    return lib.backward("ViewBackward0", sequence, given[:1], op("aten::reshape", given, lib.view(dims, to)))


def _cast_backward(sequence: int, dims: Sequence[int], buffers: Buffers, ns: int, number: int) -> Op:
    whole = tensor(BFLOAT16, *dims)
    taken, freed = buffers.temporary(1, number)
    grid = max(1, dims[0] * dims[-1] // 2048)
    copy = lib.copy_(FLOAT, BFLOAT16, dims, lib.kernel(kernel_names.COPY_FLOAT, ns, 32, grid, 128))
    given = [whole, scalar(6), scalar(0), ABSENT, ABSENT, scalar(False), ABSENT]
    inner = op("aten::_to_copy", given, lib.empty_strided(dims, taken), copy)
    outer = op("aten::to", [*given[:-1], scalar(False), ABSENT], inner)
    return lib.backward("ToCopyBackward0", sequence, [whole], outer, after=[freed])


def _mm(rows: int, shared: int, columns: int, memory: Memory, tile: str, ns: int) -> Op:
    return Op(
        name=["aten::mm"],
        inputs=lib.inputs(tensor(BFLOAT16, rows, shared), tensor(BFLOAT16, shared, columns)),
        children=(memory, lib.gemm(tile, ns, 66)),
        flops=2 * rows * shared * columns,
    )


def _addmm_backward(sequence: int, rows: int, columns: int, buffers: Buffers, number: int) -> Op:
    """Gradients of a linear's input, weight and bias."""
    by_input, input_freed = buffers.temporary(4, number)
    by_weight, weight_freed = buffers.temporary(1, number + 1)
    by_bias, bias_freed = buffers.temporary(1, number + 2)
    grad = tensor(BFLOAT16, TOKENS, rows)
    total = op(
        "aten::sum",
        [grad, scalars((0,)), scalar(True), ABSENT],
        by_bias,
        lib.kernel(kernel_names.SUM, 24_000, 54, 2250, 128, shared=2064),
    )
    return lib.backward(
        "AddmmBackward0",
        sequence,
        [grad],
        op("aten::t", [tensor(BFLOAT16, columns, rows)], lib.transpose(columns, rows)),
        _mm(TOKENS, rows, columns, by_input, "256x128_64x4_1x2_h_bz_coopA_NNT", 86_000),
        op("aten::t", [grad], lib.transpose(TOKENS, rows)),
        _mm(rows, TOKENS, columns, by_weight, "128x256_64x4_2x1_v_bz_coopA_NTN", 91_000),
        op("aten::t", [tensor(BFLOAT16, rows, columns)], lib.transpose(rows, columns)),
        after=[total, lib.view((1, rows), (rows,)), input_freed, weight_freed, bias_freed],
    )


def _transpose_backward(sequence: int, rows: int, columns: int) -> Op:
    whole = [tensor(BFLOAT16, rows, columns)]
    return lib.backward("TBackward0", sequence, whole, op("aten::t", whole, lib.transpose(rows, columns)))


def _gelu_backward(buffers: Buffers) -> Op:
    whole = tensor(BFLOAT16, BATCH, CONTEXT, INNER)
    taken, freed = buffers.temporary(4, 8)
    launch = lib.kernel(kernel_names.GELU_BACKWARD, 58_000, 32, 32768, 128)
    return lib.backward(
        "GeluBackward0",
        7,
        [whole],
        op("aten::gelu_backward", [whole, whole, scalar("none")], taken, launch),
        after=[*buffers.free(6, 5), freed],
    )


def _layer_norm_backward(buffers: Buffers) -> Op:
    whole, weight = tensor(FLOAT, BATCH, CONTEXT, HIDDEN), tensor(FLOAT, HIDDEN)
    stats = tensor(FLOAT, BATCH, CONTEXT, 1)
    taken, freed = buffers.temporary(2, 9)
    given = [whole, whole, scalars((HIDDEN,)), stats, stats, weight, weight, ABSENT]
    native = op(
        "aten::native_layer_norm_backward",
        given,
        op(
            "aten::empty",
            [scalars((BATCH, CONTEXT, HIDDEN)), scalar(6), scalar(0), ABSENT, ABSENT, ABSENT],
            taken,
        ),
        lib.kernel(kernel_names.LAYER_NORM_INPUT, 26_000, 32, 8192, 128, shared=16),
        lib.kernel(kernel_names.LAYER_NORM_WEIGHT, 41_000, 31, 32, 1024, shared=8448),
    )
    residual = op(
        "aten::add_", [whole, whole, scalar(1)], lib.kernel(kernel_names.ADD, 21_000, 32, 8192, 128)
    )
    return lib.backward(
        "NativeLayerNormBackward0", 0, [whole], native, after=[residual, *buffers.free(0, 1, 2), freed]
    )


def backward_layer(buffers: Buffers) -> list[Node]:
    """The same layer backward: its 14 nodes from the last to the first, thirteen kernels."""
    hidden, inner = (BATCH, CONTEXT, HIDDEN), (BATCH, CONTEXT, INNER)
    whole = tensor(FLOAT, *hidden)
    return [
        lib.backward("AddBackward0", 13, [whole], after=buffers.free(9)),
        _view_backward(12, hidden, (TOKENS, HIDDEN)),
        _addmm_backward(11, HIDDEN, INNER, buffers, 1),
        _transpose_backward(10, INNER, HIDDEN),
        _view_backward(9, (TOKENS, INNER), inner),
        _cast_backward(8, (HIDDEN, INNER), buffers, 9_000, 10),
        lib.accumulate_grad(HIDDEN, INNER),
        *buffers.free(8, 7),
        _gelu_backward(buffers),
        _view_backward(6, inner, (TOKENS, INNER)),
        _addmm_backward(5, INNER, HIDDEN, buffers, 4),
        _transpose_backward(4, HIDDEN, INNER),
        _view_backward(3, (TOKENS, HIDDEN), hidden),
        _cast_backward(2, hidden, buffers, 15_000, 11),
        _cast_backward(1, (INNER, HIDDEN), buffers, 9_000, 12),
        lib.accumulate_grad(INNER, HIDDEN),
        *buffers.free(4, 3),
        _layer_norm_backward(buffers),
        lib.accumulate_grad(HIDDEN),
    ]
