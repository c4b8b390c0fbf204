"""The collectives of the benchmark: buffer sizes, the call, and the expected result.

The size S of the table follows nccl-tests: the larger of a rank's two buffers. Every element is a small whole
number computed from its index and its rank: sums are exact in every type, and a misplaced element is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankscope.bench.ranks.world import World, renamed_collective
from rankscope.collective_kinds import bus_factor
from rankscope.errors import UsageError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}
DTYPES = tuple(ITEM_BYTES)
_VALUES = 4
"""Elements are 0 to 3: sums over 85 ranks are still exact in bfloat16."""

ElementsOf = Callable[[int, int], Any]
"""(rank, count) -> the input of that rank."""


@dataclass(frozen=True)
class Kind:
    """One collective."""

    name: str
    sent: str
    """The size of a rank's input: "all" (S) or "part" (S / ranks)."""
    received: str
    """The size of a rank's output, likewise."""
    call: Callable[[World, Any, Any], None]
    """Run it once: (world, input, output)."""
    expected: Callable[[World, int, ElementsOf], Any]
    """The right output of this rank: (world, its number of elements, the inputs of all ranks)."""
    least_ranks: int = 1

    def factor(self, ranks: int) -> float:
        """busbw over algbw."""
        factor = bus_factor(self.name, ranks)
        assert factor is not None  # every kind of this table has one
        return factor


def elements(world: World, rank: int, count: int, dtype: str) -> Any:
    """The input of ``rank``: (index + rank) modulo 4."""
    import torch

    values = torch.arange(count, dtype=torch.int64).add_(rank).remainder_(_VALUES)
    return values.to(getattr(torch, dtype)).to(world.device)


def _all_reduce(world: World, sent: Any, received: Any) -> None:
    import torch

    torch.distributed.all_reduce(received)


def _all_gather(world: World, sent: Any, received: Any) -> None:
    renamed_collective("all_gather_single", "all_gather_into_tensor")(received, sent)


def _reduce_scatter(world: World, sent: Any, received: Any) -> None:
    renamed_collective("reduce_scatter_single", "reduce_scatter_tensor")(received, sent)


def _all_to_all(world: World, sent: Any, received: Any) -> None:
    import torch

    torch.distributed.all_to_all_single(received, sent)


def _broadcast(world: World, sent: Any, received: Any) -> None:
    import torch

    torch.distributed.broadcast(received, src=0)


def _sendrecv(world: World, sent: Any, received: Any) -> None:
    """Around a ring, as in nccl-tests: send to the next rank, receive from the previous one."""
    from torch.distributed import P2POp, batch_isend_irecv, irecv, isend

    if world.backend == "gloo" and world.device.type != "cpu":
        raise NotImplementedError("gloo sends and receives tensors of the CPU only")
    to, source = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    for work in batch_isend_irecv([P2POp(isend, sent, to), P2POp(irecv, received, source)]):
        work.wait()


def _summed(world: World, count: int, elements_of: ElementsOf) -> Any:
    return sum(elements_of(rank, count).double() for rank in range(world.size))


def _own_part_of_sum(world: World, count: int, elements_of: ElementsOf) -> Any:
    return _summed(world, count * world.size, elements_of)[world.rank * count : (world.rank + 1) * count]


def _joined(world: World, count: int, elements_of: ElementsOf) -> Any:
    import torch

    return torch.cat([elements_of(rank, count // world.size) for rank in range(world.size)]).double()


def _exchanged(world: World, count: int, elements_of: ElementsOf) -> Any:
    import torch

    part = count // world.size
    mine = slice(world.rank * part, (world.rank + 1) * part)
    return torch.cat([elements_of(rank, count)[mine] for rank in range(world.size)]).double()


def _of_rank(which: Callable[[World], int]) -> Callable[[World, int, ElementsOf], Any]:
    return lambda world, count, elements_of: elements_of(which(world), count).double()


KINDS = {
    kind.name: kind
    for kind in (
        Kind("all_reduce", "all", "all", _all_reduce, _summed),
        Kind("all_gather", "part", "all", _all_gather, _joined),
        Kind("reduce_scatter", "all", "part", _reduce_scatter, _own_part_of_sum),
        Kind("all_to_all", "all", "all", _all_to_all, _exchanged),
        Kind("broadcast", "all", "all", _broadcast, _of_rank(lambda world: 0)),
        Kind(
            "sendrecv",
            "all",
            "all",
            _sendrecv,
            _of_rank(lambda world: (world.rank - 1) % world.size),
            least_ranks=2,
        ),
    )
}
IN_PLACE = ("all_reduce", "broadcast")
"""torch has these only in place: the input is copied into the output buffer first."""


def parse_kinds(text: str | None) -> tuple[Kind, ...]:
    """The kinds of a comma-separated list; None selects all."""
    if text is None:
        return tuple(KINDS.values())
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in KINDS:
            raise UsageError(
                f"'{name}' is not in the sweep", why=f"There are: {', '.join(KINDS)}.", hint="See: --help"
            )
    return tuple(KINDS[name] for name in names)
