"""Time every collective at every size, check what comes out, and agree on one row for all ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.bench.collectives.kinds import IN_PLACE, ITEM_BYTES, Kind, elements
from rankscope.bench.seqpar.world import World

Row = dict[str, Any]
# A sum of many ranks in a short type is rounded; whole numbers below this are exact.
_EXACT_UP_TO = {"bfloat16": 256, "float16": 2048}
_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


@dataclass(frozen=True, kw_only=True)
class Config:
    """One sweep."""

    kinds: tuple[Kind, ...]
    sizes: tuple[int, ...]
    """Bytes, as asked for; a size that the ranks cannot share evenly is rounded down."""
    dtype: str = "float32"
    iterations: int = 20
    warmup: int = 5


def sizes(first: int, last: int, factor: int) -> tuple[int, ...]:
    """From first to last, each `factor` times the one before."""
    found = []
    size = first
    while size <= last:
        found.append(size)
        size *= factor
    return tuple(found)


def sweep(config: Config, world: World) -> Iterator[Row]:
    """One row a kind and size, the same on every rank. A kind that this backend lacks gives one row that says so."""
    for kind in config.kinds:
        if world.size < kind.least_ranks:
            yield _row(kind, None, config, world, note=f"needs {kind.least_ranks} ranks")
            continue
        for size in config.sizes:
            count = max(size // ITEM_BYTES[config.dtype] // world.size, 1) * world.size
            try:
                yield _measured(kind, count, config, world)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                yield _row(kind, None, config, world, note=_missing(error, world))
                break


def _missing(error: Exception, world: World) -> str:
    import torch

    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"not with {world.backend} of torch {torch.__version__}: {said}"


def _measured(kind: Kind, count: int, config: Config, world: World) -> Row:
    import torch

    shares = {"all": count, "part": count // world.size}
    like = {"dtype": getattr(torch, config.dtype), "device": world.device}
    # Zeros stay zeros however often they are summed; the check below uses numbers.
    given, got = torch.zeros(shares[kind.given], **like), torch.zeros(shares[kind.got], **like)
    took = _timed(lambda: kind.call(world, given, got), config, world)
    wrong = _wrong(kind, given, got, config, world)
    times = [float(part) for part in world.gather(torch.tensor([took], dtype=torch.float64))]
    return _row(kind, count, config, world, time_ns=sum(times) / len(times), wrong=wrong)


def _timed(call: Callable[[], None], config: Config, world: World) -> float:
    """Nanoseconds a call, over all iterations; they follow each other without a barrier, as in nccl-tests."""
    for _ in range(config.warmup):
        call()
    world.barrier()
    began = time.perf_counter_ns()
    for _ in range(config.iterations):
        call()
    world.synchronize()
    return (time.perf_counter_ns() - began) / config.iterations


def _wrong(kind: Kind, given: Any, got: Any, config: Config, world: World) -> int:
    """Elements that are not what they must be, over all ranks."""
    import torch

    def made(rank: int, count: int) -> Any:
        return elements(world, rank, count, config.dtype)

    given.copy_(made(world.rank, len(given)))
    if kind.name in IN_PLACE:
        got.copy_(given)
    kind.call(world, given, got)
    world.synchronize()
    expected = kind.expected(world, len(got), made)
    allowed = torch.where(
        expected > _EXACT_UP_TO.get(config.dtype, 2**24),
        expected * _ROUNDING.get(config.dtype, 2.0**-23),
        0.0,
    )
    mine = int(((got.double() - expected).abs() > allowed).sum())
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
    algbw = size / time_ns if size and time_ns else None  # bytes a nanosecond are GB/s
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
