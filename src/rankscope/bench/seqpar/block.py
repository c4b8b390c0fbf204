"""The benchmarked block: its tensors, its synchronous and its overlapped form, and the reference result.

The reference is the same block in one process, without communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rankscope.bench.ranks.world import World, renamed_collective
from rankscope.bench.seqpar.config import ALLGATHER, MATMUL1, MATMUL2, REDUCE_SCATTER, Config
from rankscope.bench.seqpar.stopwatch import Stopwatch
from rankscope.inapp.annotate import trace
from rankscope.inapp.cuda_range import cuda_profiler_range

_SEED = 1907
# Allowed relative error. A wrong order of ranks or a missing term gives about 1.
TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
TOLERANCE_TF32 = 5e-3
_ROWS = 16


class Block:
    """One rank's share: input (S/W,1,H), weights (H/W,H) and (H,H/W)."""

    def __init__(self, config: Config, world: World) -> None:
        import torch

        self.config, self.world = config, world
        self.ranged: str | None = None
        """The part inside a CUDA profiler range, for nsys -c cudaProfilerApi and ncu; in the synchronous form."""
        rows = config.sequence // world.size
        like = {"dtype": getattr(torch, config.precision), "device": world.device}
        self.input, weight1, weight2 = tensors(config, world.rank, world.size)
        self.input = self.input.to(world.device)
        self.weight1, self.weight2 = weight1.to(world.device), weight2.to(world.device)
        self.gathered = torch.empty(config.sequence, 1, config.hidden, **like)
        self.output = torch.empty(rows, 1, config.hidden, **like)
        self._all_gather = renamed_collective("all_gather_single", "all_gather_into_tensor")
        self._reduce_scatter = renamed_collective("reduce_scatter_single", "reduce_scatter_tensor")

    def synchronous(self, watch: Stopwatch) -> None:
        """One part after the other, each timed."""
        from torch.nn.functional import linear

        part: Callable[[str], AbstractContextManager[object]] = self._in_range if self.ranged else trace
        watch.start()
        with part(ALLGATHER):
            self._all_gather(self.gathered, self.input)
        watch.lap()
        with part(MATMUL1):
            inner = linear(self.gathered, self.weight1)
        watch.lap()
        with part(MATMUL2):
            partial = linear(inner, self.weight2)
        watch.lap()
        with part(REDUCE_SCATTER):
            self._reduce_scatter(self.output, partial)
        watch.lap()

    @contextmanager
    def _in_range(self, name: str) -> Iterator[None]:
        with cuda_profiler_range() if name == self.ranged else nullcontext(), trace(name):
            yield

    def overlapped(self, watch: Stopwatch) -> None:
        """The same in chunks of every rank's rows: while one chunk is multiplied, the next is gathered and the
        previous one is reduced. The parts overlap, so only the whole iteration is timed.
        """
        from torch.nn.functional import linear

        pieces = self.config.chunks
        inputs, outputs = self.input.chunk(pieces), self.output.chunk(pieces)
        gathered = self.gathered.chunk(pieces)
        reducing = []
        watch.start()
        gathering = self._all_gather(gathered[0], inputs[0], async_op=True)
        for piece in range(pieces):
            arrived = gathering
            if piece + 1 < pieces:
                gathering = self._all_gather(gathered[piece + 1], inputs[piece + 1], async_op=True)
            arrived.wait()
            with trace(MATMUL1):
                inner = linear(gathered[piece], self.weight1)
            with trace(MATMUL2):
                partial = linear(inner, self.weight2)
            # The partial sums must stay alive until they are reduced: keep them with the handle.
            reducing.append((self._reduce_scatter(outputs[piece], partial, async_op=True), partial))
        for work, _ in reducing:
            work.wait()
        watch.lap()


def tensors(config: Config, rank: int, ranks: int) -> tuple[Any, Any, Any]:
    """A rank's input and weights, on the CPU. Any process can make those of any rank, as the reference does."""
    import torch

    generator = torch.Generator().manual_seed(_SEED + rank)
    inner = config.hidden // ranks
    scale = 1 / math.sqrt(config.hidden)  # keeps the products near 1 for every size
    shapes = (
        (config.sequence // ranks, 1, config.hidden),
        (inner, config.hidden),
        (config.hidden, inner),
    )
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    dtype = getattr(torch, config.precision)
    return drawn[0].to(dtype), drawn[1].mul_(scale).to(dtype), drawn[2].mul_(scale).to(dtype)


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
    sampled = output[rows, 0].double().cpu()
    return float((sampled - reference).norm() / reference.norm())
