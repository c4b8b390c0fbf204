"""A warning before stopping torch's profiler may pause this rank for longer than the other ranks wait.

torch post-processes a window when it is stopped, on the training thread. The others meanwhile wait in a collective,
and the job ends when that exceeds the timeout of the process group. A window of some seconds is far from it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from rankscope.inapp.job_log import joined_distributed
from rankscope.units import format_rounded

# Stop time per recorded time, at worst: torch 2.13 on CPU with small ops and no pause between them took 2 to 2.8, with
# stacks 4.3 to 5.8.
WORST_RATIO = 3.0
WORST_RATIO_WITH_STACKS = 6.0
# Stop time per autograd operation that was recorded, at worst: torch 2.13 on CPU took 0.1 to 0.3 ms (16 to 47 events of
# 7 µs: forward, backward, an optimizer that loops over the parameters); with stacks, shapes or memory 0.2 to 1.2 ms. A
# GPU has up to three events for one: its launch and its kernel.
WORST_PER_OPERATION_S = 0.001
WORST_PER_DETAILED_OPERATION_S = 0.003
# Windows shorter than this are not judged: even at ten times the worst ratio they stop within two minutes.
SHORT_WINDOW_S = 2.0
# Where the group does not say its timeout: torch's defaults.
_NCCL_TIMEOUT_S = 600.0
_OTHER_TIMEOUT_S = 1800.0


class _Measured(NamedTuple):
    """The end of an earlier window."""

    pause_s: float
    steps: int


class PauseWarning:
    """``started``, ``step`` and ``ended`` follow a window; ``warn`` is called at most once for each window."""

    def __init__(
        self,
        warn: Callable[[str], None],
        *,
        with_stack: bool,
        detailed: bool = False,
        operations: Callable[[], int | None] | None = None,
        timeout_s: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``detailed``: stacks, shapes or memory are recorded. ``operations`` counts those of this thread until now."""
        self._warn = warn
        self._per_operation_s = (
            WORST_PER_DETAILED_OPERATION_S if detailed or with_stack else WORST_PER_OPERATION_S
        )
        self._operations = operations or autograd_operations
        self._first_operation: int | None = None
        self._with_stack = with_stack
        self._timeout_s = timeout_s or process_group_timeout_s
        self._clock = clock
        self._began = 0.0
        self._steps = 0
        self._warned = False
        self._last: _Measured | None = None

    def started(self) -> None:
        self._began, self._steps, self._warned = self._clock(), 0, False
        self._first_operation = self._operations()

    def step(self) -> None:
        """A step begins inside the window."""
        self.check()
        self._steps += 1

    def check(self) -> None:
        """Warn if stopping now might take more than half of the group's timeout."""
        recorded = self._clock() - self._began
        if self._warned or recorded < SHORT_WINDOW_S:
            return
        expected, about, reason = self._expected_s(recorded)
        timeout = self._timeout_s()
        if timeout is None or expected < timeout / 2:
            return
        self._warned = True
        stacks = " without stacks," if self._with_stack else ""
        self._warn(
            f"stopping this window may pause training for {about} {_seconds(expected)} ({reason}), and the "
            f"process group's timeout is {_seconds(timeout)}: a rank that waits longer ends the job. Record fewer "
            f"steps,{stacks} or give init_process_group a longer timeout="
        )

    def ended(self, pause_ns: int) -> None:
        """The window has paused training for this long; a measure is better than any ratio."""
        if self._steps:
            self._last = _Measured(pause_ns / 1e9, self._steps)

    def _expected_s(self, recorded: float) -> tuple[float, str, str]:
        last = self._last
        if last is not None and self._steps:
            expected = last.pause_s / last.steps * self._steps
            return expected, "about", f"the last one took {_seconds(last.pause_s)} for {last.steps} steps"
        ratio = WORST_RATIO_WITH_STACKS if self._with_stack else WORST_RATIO
        reason = f"{_seconds(recorded)} are recorded, and torch needs up to {ratio:g} times that"
        count = self._operations()
        if count is not None and self._first_operation is not None and count > self._first_operation:
            count -= self._first_operation
            if (expected := count * self._per_operation_s) < ratio * recorded:
                each = _seconds(self._per_operation_s)
                reason = f"{count} operations are recorded, and torch needs up to {each} for each"
                return expected, "up to", reason
        return ratio * recorded, "up to", reason


def autograd_operations() -> int | None:
    """How many operations of this thread autograd has noted; None where they say little: graphs are compiled."""
    import torch

    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters["frames"]["ok"]:
        return None
    try:
        return int(torch._C._autograd._get_sequence_nr())
    except AttributeError:  # not a public name: a version of torch may lack it
        return None


def process_group_timeout_s() -> float | None:
    """The timeout of the default process group; None where no other rank waits."""
    distributed = joined_distributed()
    if distributed is None or distributed.get_world_size() < 2:
        return None
    try:
        group = distributed.distributed_c10d._get_default_group()
        backends = [group._get_backend(device) for device in group._device_types]
        return float(min(backend.options._timeout.total_seconds() for backend in backends))
    except (AttributeError, RuntimeError, ValueError):  # torch's private names; older versions have others
        return _NCCL_TIMEOUT_S if "nccl" in distributed.get_backend() else _OTHER_TIMEOUT_S


def _seconds(value: float) -> str:
    return format_rounded("ns", value * 1e9)
