"""What a window will cost, before it opens; and a warning where stopping torch's profiler may pause this rank for
longer than the other ranks wait.

torch post-processes a window when it is stopped, on the training thread. The others meanwhile wait in a collective,
and the job ends when that exceeds the timeout of the process group. A window of some seconds is far from it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from rankscope.inapp.job_log import joined_distributed
from rankscope.units import format_bytes, format_rounded

# Stop time per recorded time, at worst: torch 2.13 on CPU with small ops and no pause between them took 2 to 2.8, with
# stacks 4.3 to 5.8.
WORST_RATIO = 3.0
WORST_RATIO_WITH_STACKS = 6.0
# Stop time per autograd operation that was recorded, at worst: torch 2.13 on CPU took 0.1 to 0.3 ms (16 to 47 events of
# 7 µs: forward, backward, an optimizer that loops over the parameters); with stacks, shapes or memory 0.2 to 1.2 ms. A
# GPU has up to three events for one: its launch and its kernel.
WORST_PER_OPERATION_S = 0.001
WORST_PER_DETAILED_OPERATION_S = 0.003
# Bytes of a trace file per autograd operation: 560 to 850 in 8 recorded training jobs, on GPU and CPU, with and without
# shapes; with stacks 1.4 times as many. Fewer operations than this in a step say nothing on a GPU: it replays a graph.
BYTES_PER_OPERATION = 700
BYTES_PER_OPERATION_WITH_STACKS = 1000
_LEAST_OPERATIONS = 10
# The pause that a window may cost which has more steps than were asked for: nobody notices it in a job of minutes. Its
# file is below 100 MB then: at most 2000 operations, or 0.7 s of events.
LITTLE_PAUSE_S = 2.0
# Windows shorter than this are not judged: even at ten times the worst ratio they stop within two minutes.
SHORT_WINDOW_S = 2.0
# Where the group does not say its timeout: torch's defaults.
_NCCL_TIMEOUT_S = 600.0
_OTHER_TIMEOUT_S = 1800.0


class _Measured(NamedTuple):
    """The end of an earlier window."""

    pause_s: float
    steps: int


class _Expected(NamedTuple):
    """The pause at the end of a window."""

    pause_s: float
    about: str
    reason: str


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
        self._warned = self._warned_ahead = False
        self._last: _Measured | None = None
        self._trained: tuple[float, int | None, int] | None = None

    def trained(self, step: int) -> None:
        """A step ends outside a window. What steps take and hold is measured from the first such one on; called again
        for the same one, from now on."""
        if self._trained is None or self._trained[2] == step:
            self._trained = self._clock(), self._operations(), step

    def expect(self, first: int, steps: int) -> str:
        """A window of so many steps is about to open: what it will cost, as a line; empty where nothing is known."""
        foreseen = self._foresee(first, steps)
        if foreseen is None:
            return ""
        expected, operations = self._expected_s(*foreseen, steps), foreseen[1]
        self._warned_ahead = self._warn_of(expected)
        size = ""
        if operations is not None:
            each = BYTES_PER_OPERATION_WITH_STACKS if self._with_stack else BYTES_PER_OPERATION
            size = f"about {format_bytes(operations * each, 1)} for each rank, and "
        return (
            f"steps {first}-{first + steps - 1} will be recorded: {size}training pauses for {expected.about} "
            f"{_seconds(expected.pause_s)} when they end ({expected.reason})"
        )

    def if_little(self, first: int, steps: int) -> float:
        """How many seconds such a window is open, if it costs little; else 0."""
        foreseen = self._foresee(first, steps)
        if foreseen is None or self._expected_s(*foreseen, steps).pause_s > LITTLE_PAUSE_S:
            return 0
        return foreseen[0]

    def _foresee(self, first: int, steps: int) -> tuple[float, int | None] | None:
        """How long so many steps take, and how many operations they have, by the steps before them."""
        if self._trained is None or first <= self._trained[2]:
            return None
        since, operations_then, step = self._trained
        share = steps / (first - step)
        count, operations = self._operations(), None
        if count is not None and operations_then is not None:
            operations = round((count - operations_then) * share)
            if operations < steps * (_LEAST_OPERATIONS if _uses_cuda() else 1):
                operations = None
        return (self._clock() - since) * share, operations

    def started(self) -> None:
        self._began, self._steps, self._warned = self._clock(), 0, self._warned_ahead
        self._warned_ahead, self._trained = False, None
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
        count, first = self._operations(), self._first_operation
        count = count - first if count is not None and first is not None and count > first else None
        self._warned = self._warn_of(self._expected_s(recorded, count, self._steps))

    def _warn_of(self, expected: _Expected) -> bool:
        timeout = self._timeout_s()
        if timeout is None or expected.pause_s < timeout / 2:
            return False
        stacks = " without stacks," if self._with_stack else ""
        self._warn(
            f"stopping this window may pause training for {expected.about} {_seconds(expected.pause_s)} "
            f"({expected.reason}), and the process group's timeout is {_seconds(timeout)}: a rank that waits longer "
            f"ends the job. Record fewer steps,{stacks} or give init_process_group a longer timeout="
        )
        return True

    def ended(self, pause_ns: int) -> None:
        """The window has paused training for this long; a measure is better than any ratio."""
        if self._steps:
            self._last = _Measured(pause_ns / 1e9, self._steps)

    def _expected_s(self, recorded: float, operations: int | None, steps: int) -> _Expected:
        """Of a window with so much time, so many operations (None: not known) and so many steps."""
        last = self._last
        if last is not None and steps:
            reason = f"the last one took {_seconds(last.pause_s)} for {last.steps} steps"
            return _Expected(last.pause_s / last.steps * steps, "about", reason)
        ratio = WORST_RATIO_WITH_STACKS if self._with_stack else WORST_RATIO
        if operations is not None and (pause_s := operations * self._per_operation_s) < ratio * recorded:
            each = _seconds(self._per_operation_s)
            reason = f"{operations} operations are recorded, and torch needs up to {each} for each"
            return _Expected(pause_s, "up to", reason)
        reason = f"{_seconds(recorded)} are recorded, and torch needs up to {ratio:g} times that"
        return _Expected(ratio * recorded, "up to", reason)


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


def _uses_cuda() -> bool:
    torch = sys.modules["torch"]
    return bool(torch.cuda.is_initialized())


def process_group_timeout_s() -> float | None:
    """The shortest timeout of a process group: NCCL's watchdog ends a job that waits longer. None where no other rank
    waits."""
    distributed = joined_distributed()
    if distributed is None or distributed.get_world_size() < 2:
        return None
    try:
        c10d = distributed.distributed_c10d
        groups = {c10d._get_default_group(), *c10d._world.pg_map}
        backends = [group._get_backend(device) for group in groups for device in group._device_types]
        return float(min(backend.options._timeout.total_seconds() for backend in backends))
    except (AttributeError, RuntimeError, ValueError):  # torch's private names; older versions have others
        return _NCCL_TIMEOUT_S if "nccl" in distributed.get_backend() else _OTHER_TIMEOUT_S


def _seconds(value: float) -> str:
    return format_rounded("ns", value * 1e9)
