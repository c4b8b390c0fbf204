"""Building blocks of synthetic work: ops with inputs as record_shapes prints them, kernels, copies.

Names, shapes and launch configurations are those of a real GPT on an H200 (torch 2.13, bf16 autocast).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.bench.synthetic.kineto_text import Piece, launch_shape
from rankscope.bench.synthetic.work_tree import GpuWork, Launch, Node, Op

SMS = 132  # of an H200
FLOAT, BFLOAT16, LONG = "float", "c10::BFloat16", "long int"


@dataclass(frozen=True)
class Input:
    """One argument of an op."""

    type: str
    dims: str
    strides: str
    concrete: str


ABSENT = Input("", "[]", "[]", "")


def tensor(dtype: str, *dims: int) -> Input:
    """A contiguous tensor."""
    strides = [1] * len(dims)
    for i in range(len(dims) - 2, -1, -1):
        strides[i] = strides[i + 1] * dims[i + 1]
    return Input(dtype, str(list(dims)), str(strides), "")


def scalar(value: object) -> Input:
    return Input("Scalar", "[]", "[]", str(value))


def scalars(value: Sequence[int]) -> Input:
    return Input("ScalarList", "[]", "[]", str(list(value)))


def inputs(*given: Input) -> tuple[Piece, ...]:
    """The four lists record_shapes adds to an op."""

    def quoted(words: Sequence[str]) -> str:
        return "[" + ", ".join(f'"{word}"' for word in words) + "]"

    return (
        f'"Concrete Inputs": {quoted([i.concrete for i in given])}, '
        f'"Input type": {quoted([i.type for i in given])}, '
        f'"Input Strides": [{", ".join(i.strides for i in given)}], '
        f'"Input Dims": [{", ".join(i.dims for i in given)}]',
    )


def op(name: str, given: Sequence[Input], *children: Node) -> Op:
    """An op without autograd."""
    return Op(name=[name], inputs=inputs(*given), children=children)


def forward(
    name: str, sequence: int, given: Sequence[Input], *children: Node, flops: int = 0, arrow: bool = True
) -> Op:
    """An op that creates an autograd node; the flow starts at the innermost op of that node."""
    return Op(
        name=[name],
        inputs=inputs(*given),
        children=children,
        role="forward",
        sequence=sequence,
        arrow=arrow,
        flops=flops,
    )


def backward(
    name: str, sequence: int, given: Sequence[Input], *children: Node, after: Sequence[Node] = ()
) -> Op:
    """An autograd node inside the engine's op; ``after`` is what the engine does with the results."""
    node = Op(
        name=[name], inputs=inputs(*given), children=children, role="backward", sequence=sequence, arrow=True
    )
    engine = f"autograd::engine::evaluate_function: {name}"
    return Op(name=[engine], children=(node, *after), role="engine", sequence=sequence)


def accumulate_grad(*dims: int) -> Op:
    """The node that stores a parameter's gradient; it has no sequence number."""
    given = [tensor(FLOAT, *dims)]
    name = "torch::autograd::AccumulateGrad"
    node = op(name, given, op("aten::detach", given, op("detach", given)))
    return Op(name=[f"autograd::engine::evaluate_function: {name}"], children=(node,), role="engine")


def kernel(
    name: str, ns: int, registers: int, grid: int, block: int, *, shared: int = 0, label: str = ""
) -> Launch:
    shape = launch_shape(registers, shared, (grid, 1, 1), (block, 1, 1), SMS)
    return Launch(work=GpuWork(name=name, ns=ns, shape=shape, label=label))


def gemm(tile: str, ns: int, grid: int) -> Launch:
    """cuBLAS launches its kernels through the driver."""
    shape = launch_shape(168, 213188, (2, grid, 1), (384, 1, 1), SMS)
    work = GpuWork(name=f"nvjet_sm90_tst_{tile}", ns=ns, shape=shape)
    return Launch(work=work, call="cuLaunchKernelEx", cbid=652, category="cuda_driver")


def memset(nbytes: int, ns: int) -> Launch:
    work = GpuWork(name="Memset (Device)", ns=ns, category="gpu_memset", nbytes=nbytes)
    return Launch(work=work, call="cudaMemsetAsync", cbid=51)


def memcpy(kind: str, nbytes: int, ns: int, *, label: str = "") -> Launch:
    work = GpuWork(name=f"Memcpy {kind}", ns=ns, category="gpu_memcpy", nbytes=nbytes, label=label)
    return Launch(work=work, call="cudaMemcpyAsync", cbid=41)


def empty_strided(dims: Sequence[int], *children: Node) -> Op:
    whole = tensor(FLOAT, *dims)
    strides = Input("ScalarList", "[]", "[]", whole.strides)
    return op(
        "aten::empty_strided",
        [scalars(dims), strides, scalar(15), scalar(0), ABSENT, scalar(False)],
        *children,
    )


def copy_(to: str, source: str, dims: Sequence[int], launch: Launch) -> Op:
    return op("aten::copy_", [tensor(to, *dims), tensor(source, *dims), scalar(False)], launch)


def transpose(*dims: int) -> Op:
    turned, strides = scalars(tuple(reversed(dims))), scalars((1, dims[-1]))
    strided = op("aten::as_strided", [tensor(BFLOAT16, *dims), turned, strides, ABSENT])
    return op("aten::transpose", [tensor(BFLOAT16, *dims), scalar(0), scalar(1)], strided)


def view(dims: Sequence[int], to: Sequence[int]) -> Op:
    return op("aten::view", [tensor(BFLOAT16, *dims), scalars(to)])
