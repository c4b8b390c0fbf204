"""A sweep over collectives and sizes, in the conventions of nccl-tests. Standard library and torch only.

The size S of the table follows nccl-tests: the larger of a rank's two buffers. Every element is a small whole
number computed from its index and its rank: sums are exact in every type, and a misplaced element is detected.
All ranks get the same rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.bench.ranks.world import World, renamed_collective
from rankscope.collective_kinds import bus_factor
from rankscope.errors import RankscopeError, UsageError
from rankscope.text.plain_table import plain_table
from rankscope.units import format_count

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


Row = dict[str, Any]
# Largest sizes by default. The whole sweep then takes about a minute.
_CPU_LAST, _GPU_LAST = 16 * 2**20, 256 * 2**20
# Sums above this are rounded in these types; whole numbers up to it are exact.
_EXACT_UP_TO = {"bfloat16": 256, "float16": 2048}
_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One sweep."""

    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]
    """Bytes. A size that is not a multiple of the number of ranks is rounded down."""
    dtype: str = "float32"
    iterations: int = 20
    warmup: int = 5


def sizes(first: int, last: int, factor: int) -> tuple[int, ...]:
    """From ``first`` to ``last``, each ``factor`` times the one before."""
    wanted = []
    size = first
    while size <= last:
        wanted.append(size)
        size *= factor
    return tuple(wanted)


def sizes_for(device_type: str, first: int, last: int | None, factor: int) -> tuple[int, ...]:
    """The sizes from ``first`` on; without a ``last``, up to the default of this type of device."""
    if last is not None:
        return sizes(first, last, factor)
    default = _CPU_LAST if device_type == "cpu" else _GPU_LAST
    return sizes(min(first, default), default, factor)


def sweep(config: Config, world: World) -> Iterator[Row]:
    """One row per kind and size, the same on every rank. A kind that the backend lacks gives one row with a note."""
    for kind in config.kinds:
        if world.size < kind.least_ranks:
            yield _row(kind, None, config, world, note=f"needs {kind.least_ranks} ranks")
            continue
        for size in config.sizes:
            count = max(size // ITEM_BYTES[config.dtype] // world.size, 1) * world.size
            try:
                yield _measured(kind, count, config, world)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                yield _row(kind, None, config, world, note=_unsupported(error, world))
                break


def _unsupported(error: Exception, world: World) -> str:
    import torch

    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"not with {world.backend} of torch {torch.__version__}: {reason}"


def _measured(kind: Kind, count: int, config: Config, world: World) -> Row:
    import torch

    shares = {"all": count, "part": count // world.size}
    like = {"dtype": getattr(torch, config.dtype), "device": world.device}
    # Zeros do not overflow however often they are summed; _wrong uses other values.
    sent, received = torch.zeros(shares[kind.sent], **like), torch.zeros(shares[kind.received], **like)
    took = _timed(lambda: kind.call(world, sent, received), config, world)
    wrong = _wrong(kind, sent, received, config, world)
    times = [float(part) for part in world.gather(torch.tensor([took], dtype=torch.float64))]
    return _row(kind, count, config, world, time_ns=sum(times) / len(times), wrong=wrong)


def _timed(call: Callable[[], None], config: Config, world: World) -> float:
    """Mean nanoseconds per call. No barrier between the iterations, as in nccl-tests."""
    for _ in range(config.warmup):
        call()
    world.barrier()
    began = time.perf_counter_ns()
    for _ in range(config.iterations):
        call()
    world.synchronize()
    return (time.perf_counter_ns() - began) / config.iterations


def _wrong(kind: Kind, sent: Any, received: Any, config: Config, world: World) -> int:
    """How many elements have a wrong value, over all ranks."""
    import torch

    def elements_of(rank: int, count: int) -> Any:
        return elements(world, rank, count, config.dtype)

    sent.copy_(elements_of(world.rank, len(sent)))
    if kind.name in IN_PLACE:
        received.copy_(sent)
    kind.call(world, sent, received)
    world.synchronize()
    expected = kind.expected(world, len(received), elements_of)
    allowed = torch.where(
        expected > _EXACT_UP_TO.get(config.dtype, 2**24),
        expected * _ROUNDING.get(config.dtype, 2.0**-23),
        0.0,
    )
    mine = int(((received.double() - expected).abs() > allowed).sum())
    return sum(int(part) for part in world.gather(torch.tensor([mine], dtype=torch.int64)))


def _row(
    kind: Kind,
    count: int | None,
    config: Config,
    world: World,
    time_ns: float | None = None,
    wrong: int | None = None,
    note: str = "",
) -> Row:
    size = count * ITEM_BYTES[config.dtype] if count is not None else None
    algbw = size / time_ns if size and time_ns else None  # bytes per nanosecond = GB/s
    return {
        "kind": kind.name,
        "bytes": size,
        "ranks": world.size,
        "dtype": config.dtype,
        "time_us": time_ns / 1e3 if time_ns is not None else None,
        "algbw_gb_s": algbw,
        "busbw_gb_s": algbw * kind.factor(world.size) if algbw is not None else None,
        "wrong": wrong,
        "backend": world.backend,
        "note": note,
    }


def is_right(rows: Sequence[Row]) -> bool:
    return not any(row["wrong"] for row in rows)


def check_results(rows: Sequence[Row], backend: str) -> None:
    """Raise an error if any collective gave a wrong result."""
    if not is_right(rows):
        raise RankscopeError(
            "a collective gave a wrong result",
            why=f"{sum(row['wrong'] or 0 for row in rows)} elements have a wrong value.",
            hint=f"The times are meaningless. Try another --backend ({backend} was used) or torch.",
        )


def report_text(rows: list[Row], config: Config, world: World) -> str:
    ranks = f"{world.size} rank{'s' * (world.size != 1)}"
    head = [
        f"collectives: {ranks}, {world.backend}, {config.dtype}, {world.device_name}",
        f"{config.iterations} iterations after {config.warmup} of warm-up; GB = 1e9; "
        "sizes and factors as in nccl-tests",
        *world.notes,
    ]
    table = plain_table(
        ("Kind", "Bytes", "Time µs", "algbw GB/s", "busbw GB/s", "Wrong"),
        [
            (
                row["kind"],
                format_count(row["bytes"]),
                f"{row['time_us']:,.1f}",
                f"{row['algbw_gb_s']:.3f}",
                f"{row['busbw_gb_s']:.3f}",
                str(row["wrong"]),
            )
            for row in rows
            if row["bytes"] is not None
        ],
    )
    missing = [f"{row['kind']}: {row['note']}" for row in rows if row["note"]]
    return "\n".join([*head, "", table, *(["", *missing] if missing else [])]) + "\n"
