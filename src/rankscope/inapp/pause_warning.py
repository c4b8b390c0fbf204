"""A warning before stopping torch's profiler may pause this rank for longer than the other ranks wait.

torch post-processes a window when it is stopped, on the training thread. The others meanwhile wait in a collective,
and the job ends when that exceeds the timeout of the process group. A window of some seconds is far from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from rankscope.units import format_rounded

# Stop time per recorded time, at worst: torch 2.13 on CPU with small ops and no pause between them took 2 to 2.8, with
# stacks 4.3 to 5.8.
WORST_RATIO = 3.0
WORST_RATIO_WITH_STACKS = 6.0
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
        timeout_s: Callable[[], float | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._warn = warn
        self._with_stack = with_stack
        self._timeout_s = timeout_s or process_group_timeout_s
        self._clock = clock
        self._began = 0.0
        self._steps = 0
        self._warned = False
        self._last: _Measured | None = None

    def started(self) -> None:
        self._began, self._steps, self._warned = self._clock(), 0, False

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
        return ratio * recorded, "up to", reason


def process_group_timeout_s() -> float | None:
    """The timeout of the default process group; None where no other rank waits."""
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_world_size() < 2:
        return None
    try:
        group = distributed.distributed_c10d._get_default_group()
        backends = [group._get_backend(device) for device in group._device_types]
        return float(min(one.options._timeout.total_seconds() for one in backends))
    except (AttributeError, RuntimeError, ValueError):  # torch's private names; older versions have others
        return _NCCL_TIMEOUT_S if "nccl" in distributed.get_backend() else _OTHER_TIMEOUT_S


def _seconds(value: float) -> str:
    return format_rounded("ns", value * 1e9)
