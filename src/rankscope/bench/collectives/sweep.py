"""Time every collective at every size and check every element; all ranks get the same rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.bench.collectives.kinds import IN_PLACE, ITEM_BYTES, Kind, elements
from rankscope.bench.ranks.world import World
from rankscope.errors import RankscopeError

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
    found = []
    size = first
    while size <= last:
        found.append(size)
        size *= factor
    return tuple(found)


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
