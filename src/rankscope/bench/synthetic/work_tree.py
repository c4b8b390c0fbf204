"""A block of training work as a tree: which ops call which, what they launch, allocate and wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rankscope.bench.synthetic.kineto_text import Piece


@dataclass(frozen=True, kw_only=True)
class GpuWork:
    """A kernel, copy or memset on the compute stream."""

    name: str
    ns: int
    """Shortest duration; jitter is added."""
    shape: str = ""
    """Launch configuration as Kineto prints it; kernels only."""
    category: str = "kernel"
    nbytes: int = 0
    """Bytes moved or set; copies only."""
    label: str = ""
    """A plan can make the work with this label longer."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A CUDA call that puts work on the compute stream."""

    work: GpuWork
    call: str = "cudaLaunchKernel"
    cbid: int = 211
    category: str = "cuda_runtime"


@dataclass(frozen=True, kw_only=True)
class CollectiveLaunch:
    """The CUDA call that starts an NCCL kernel, whose times the timeline computes."""

    name: str
    shape: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A CUDA call that starts nothing on the GPU."""

    name: str
    cbid: int
    waits_for_gpu: bool = False


@dataclass(frozen=True, kw_only=True)
class Memory:
    """An allocation (positive) or a free (negative) of this many bytes."""

    nbytes: int
    slot: int
    """Which of the block's buffers: alloc and free of one slot share an address."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Time on the host without an event."""

    ns: int
    label: str = ""
    """A plan can make the work with this label longer."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """A host op or annotation."""

    name: Sequence[Piece]
    children: Sequence[Node] = ()
    inputs: tuple[Piece, ...] = ()
    """Its shapes and other args, as printed."""
    category: str = "cpu_op"
    role: str = ""
    """forward, engine or backward for ops of autograd."""
    sequence: int = -1
    """Its number among the block's autograd nodes."""
    arrow: bool = False
    """Whether a fwdbwd flow starts (forward) or ends (backward) here."""
    flops: int = 0
    lasts_for_step: bool = False
    """It ends with the step, outside this block."""
    on_gpu: bool = False
    """Whether there is a GPU annotation around the work launched in it."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A Python function or module call; in the file only with stacks."""

    name: Sequence[Piece]
    children: Sequence[Node] = ()
    is_module: bool = False
    lasts_for_step: bool = False


Node = Launch | CollectiveLaunch | Call | Memory | Pause | Op | Frame
