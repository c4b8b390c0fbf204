"""Named timers for a training loop, as in Megatron: cheap, with min, max and mean over the ranks.

    timers = rankscope.Timers()
    with timers("forward"):
        loss = model(batch)
    if step % 100 == 0:
        timers.log()                        # a collective: all ranks must call it
        timers.write(writer, step)          # TensorBoard's SummaryWriter, wandb, or None: nothing

On a GPU the times are device times, from CUDA events; nothing waits until a report is made.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rankscope.errors import RankscopeError
from rankscope.inapp.job_log import joined_distributed
from rankscope.units import format_ns

Clock = tuple[Callable[[], Any], Callable[[Any, Any], int]]
"""Marks a moment, and gives the nanoseconds between two."""


class Figures(NamedTuple):
    """One timer since the last report: nanoseconds of each rank."""

    name: str
    calls: int
    by_rank: tuple[int, ...]

    @property
    def mean(self) -> float:
        return sum(self.by_rank) / len(self.by_rank)

    @property
    def fastest(self) -> int:
        return self.by_rank.index(min(self.by_rank))

    @property
    def slowest(self) -> int:
        return self.by_rank.index(max(self.by_rank))


class Timer:
    """One timer: ``start`` and ``stop``, or ``with``."""

    def __init__(self, name: str, mark: Callable[[], Any], between: Callable[[Any, Any], int]) -> None:
        self.name = name
        self._mark, self._between = mark, between
        self._started: Any = None
        self._pairs: list[tuple[Any, Any]] = []

    def start(self) -> None:
        if self._started is not None:
            raise RankscopeError(
                f"the timer '{self.name}' runs already",
                why="start() was called twice with no stop() between.",
                hint="Use `with timers(name):`, which always stops it.",
            )
        self._started = self._mark()

    def stop(self) -> None:
        if self._started is None:
            raise RankscopeError(f"the timer '{self.name}' does not run", why="stop() came before start().")
        self._pairs.append((self._started, self._mark()))
        self._started = None

    def __enter__(self) -> Timer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def ran(self) -> bool:
        """Whether it has run since the last ``take``."""
        return bool(self._pairs)

    def take(self) -> tuple[int, int]:
        """Calls and nanoseconds since the last call of this. On a GPU it waits for the timer's last event."""
        pairs, self._pairs = self._pairs, []
        return len(pairs), sum(self._between(begin, end) for begin, end in pairs)


class Timers:
    """Timers by name, and their reports."""

    def __init__(self, device: str | None = None) -> None:
        """``device="cpu"`` uses the host clock even where there is a GPU."""
        self._device = device
        self._clock: Clock | None = None
        self._timers: dict[str, Timer] = {}
        self._last: list[Figures] = []

    def __call__(self, name: str) -> Timer:
        timer = self._timers.get(name)
        if timer is None:
            if self._clock is None:
                self._clock = _device_clock() if self._uses_cuda() else _HOST_CLOCK
            timer = self._timers[name] = Timer(name, *self._clock)
        return timer

    def collect(self, names: Iterable[str] | None = None) -> list[Figures]:
        """Figures since the last call, over all ranks. A collective: every rank must call it."""
        chosen = [self._timers[name] for name in names] if names is not None else list(self._timers.values())
        return self._take(chosen, _gather)

    def log(
        self, names: Iterable[str] | None = None, *, per: int = 1, say: Callable[[str], object] | None = None
    ) -> None:
        """Collect and print, by default on rank 0's stderr. ``per`` divides: 100 for 100 steps per report."""
        figures = self.collect(names)
        distributed = joined_distributed()
        if say is None and distributed is not None and distributed.get_rank():
            return
        say = say or (lambda text: sys.stderr.write(f"rankscope: {text}\n"))
        for timer in figures:
            low, high = (format_ns(timer.by_rank[rank] / per) for rank in (timer.fastest, timer.slowest))
            say(
                f"{timer.name}: mean {format_ns(timer.mean / per)}, min {low} (rank {timer.fastest}), "
                f"max {high} (rank {timer.slowest}), {timer.calls} calls"
            )

    def write(self, writer: Any, step: int, *, per: int = 1) -> None:
        """The last collected figures in seconds to TensorBoard (``add_scalar``) or wandb (``log``).

        Where ``log`` or ``collect`` did not come first, they are those of this rank: ``write`` is not a collective.
        With None as the writer, as on the other ranks, nothing is written.
        """
        if not self._last or any(self._timers[timer.name].ran for timer in self._last):
            self._take(list(self._timers.values()), lambda totals: [totals])
        if writer is None:
            return
        values = {}
        for timer in self._last:
            figures = {"mean": timer.mean, "min": min(timer.by_rank), "max": max(timer.by_rank)}
            values.update({f"timers/{timer.name}-{kind}": ns / per / 1e9 for kind, ns in figures.items()})
        if hasattr(writer, "add_scalar"):
            for tag, value in values.items():
                writer.add_scalar(tag, value, step)
        elif hasattr(writer, "log"):
            writer.log(values, step=step)
        else:
            raise RankscopeError(
                f"timers cannot be written to a {type(writer).__name__}",
                why="It has neither add_scalar (TensorBoard) nor log (wandb).",
                hint="Pass a torch.utils.tensorboard.SummaryWriter, or wandb itself.",
            )

    def _take(self, timers: Sequence[Timer], gather: Callable[[list[int]], list[list[int]]]) -> list[Figures]:
        mine = [timer.take() for timer in timers]
        ranks = gather([total for _, total in mine])
        self._last = [
            Figures(timer.name, calls, tuple(rank[index] for rank in ranks))
            for index, (timer, (calls, _)) in enumerate(zip(timers, mine, strict=True))
        ]
        return self._last

    def _uses_cuda(self) -> bool:
        if self._device is not None:
            return not self._device.startswith("cpu")
        torch = sys.modules.get("torch")
        return torch is not None and bool(torch.cuda.is_available())


_HOST_CLOCK: Clock = (time.perf_counter_ns, lambda begin, end: int(end - begin))


def _device_clock() -> Clock:
    """CUDA events. They are reused, because making one is a driver call."""
    import torch

    free: list[Any] = []

    def mark() -> Any:
        event = free.pop() if free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(begin: Any, end: Any) -> int:
        end.synchronize()
        nanoseconds: int = round(begin.elapsed_time(end) * 1e6)
        free.extend((begin, end))
        return nanoseconds

    return mark, between


def _gather(values: list[int]) -> list[list[int]]:
    """Every rank's list."""
    distributed = joined_distributed()
    if distributed is None:
        return [values]
    import torch

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    mine = torch.tensor(values, dtype=torch.int64, device=device)
    parts = [torch.empty_like(mine) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, mine)
    return [part.tolist() for part in parts]
