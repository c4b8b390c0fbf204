"""The collectives of the sweep: their buffers, their call, and what must come out.

S, the size in the table, is that of nccl-tests: the larger of a rank's two buffers. Every element is a small
whole number that follows from its place and its rank, so that a sum is exact in every type, and a wrong byte shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankscope.bench.seqpar.world import World

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
DTYPES = tuple(ITEM_BYTES)
_VALUES = 4
"""Elements are 0 to 3: sums of 85 ranks are still exact in bfloat16."""


@dataclass(frozen=True)
class Kind:
    """One collective."""

    name: str
    factor: Callable[[int], float]
    """busbw over algbw, by the number of ranks (nccl-tests)."""
    given: str
    """What a rank puts in: all (S) or part (S / ranks)."""
    got: str
    call: Callable[[World, Any, Any], None]
    """Runs it once: world, what goes in, what comes out."""
    expected: Callable[[World, int, Any], Any]
    """What must come out on this rank: world, elements that come out, a maker of another rank's input."""
    least_ranks: int = 1


def elements(world: World, rank: int, count: int, dtype: str) -> Any:
    """What `rank` puts in: (place + rank) modulo 4."""
    import torch

    values = torch.arange(count, dtype=torch.int64).add_(rank).remainder_(_VALUES)
    return values.to(getattr(torch, dtype)).to(world.device)


def _all_reduce(world: World, given: Any, got: Any) -> None:
    import torch

    torch.distributed.all_reduce(got)


def _all_gather(world: World, given: Any, got: Any) -> None:
    _named("all_gather_single", "all_gather_into_tensor")(got, given)


def _reduce_scatter(world: World, given: Any, got: Any) -> None:
    _named("reduce_scatter_single", "reduce_scatter_tensor")(got, given)


def _all_to_all(world: World, given: Any, got: Any) -> None:
    import torch

    torch.distributed.all_to_all_single(got, given)


def _broadcast(world: World, given: Any, got: Any) -> None:
    import torch

    torch.distributed.broadcast(got, src=0)


def _sendrecv(world: World, given: Any, got: Any) -> None:
    """Round a ring, as nccl-tests does: to the next rank, from the one before."""
    from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

    if world.backend == "gloo" and world.device.type != "cpu":
        raise NotImplementedError("gloo sends and receives tensors of the CPU only")
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for work in batch_isend_irecv([P2POp(isend, given, to), P2POp(irecv, got, source)]):
        work.wait()


def _named(new: str, old: str) -> Any:
    """torch 2.13 renames two of them and warns about the old names; 2.4 knows only those."""
    from torch import distributed

    return getattr(distributed, new, None) or getattr(distributed, old)


Maker = Callable[[int, int], Any]
"""(rank, elements) to what that rank puts in."""


def _summed(world: World, count: int, made: Maker) -> Any:
    return sum(made(rank, count).double() for rank in range(world.size))


def _own_part_of_sum(world: World, count: int, made: Maker) -> Any:
    return _summed(world, count * world.size, made)[world.rank * count : (world.rank + 1) * count]


def _joined(world: World, count: int, made: Maker) -> Any:
    import torch

    return torch.cat([made(rank, count // world.size) for rank in range(world.size)]).double()


def _exchanged(world: World, count: int, made: Maker) -> Any:
    import torch

    part = count // world.size
    mine = slice(world.rank * part, (world.rank + 1) * part)
    return torch.cat([made(rank, count)[mine] for rank in range(world.size)]).double()


def _of_rank(which: Callable[[World], int]) -> Callable[[World, int, Maker], Any]:
    return lambda world, count, made: made(which(world), count).double()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("all_reduce", lambda n: 2 * (n - 1) / n, "all", "all", _all_reduce, _summed),
        Kind("all_gather", lambda n: (n - 1) / n, "part", "all", _all_gather, _joined),
        Kind("reduce_scatter", lambda n: (n - 1) / n, "all", "part", _reduce_scatter, _own_part_of_sum),
        Kind("all_to_all", lambda n: (n - 1) / n, "all", "all", _all_to_all, _exchanged),
        Kind("broadcast", lambda n: 1.0, "all", "all", _broadcast, _of_rank(lambda world: 0)),
        Kind(
            "sendrecv",
            lambda n: 1.0,
            "all",
            "all",
            _sendrecv,
            _of_rank(lambda world: (world.rank - 1) % world.size),
            least_ranks=2,
        ),
    )
}
IN_PLACE = ("all_reduce", "broadcast")
"""torch has these in place only: what goes in is put where it comes out."""
