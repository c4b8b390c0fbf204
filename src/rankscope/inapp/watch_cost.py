"""What the telemetry costs its rank, measured while the job runs, and whether that exceeds its budget."""

from __future__ import annotations

from typing import NamedTuple

from rankscope.capture.telemetry_ring import NONE
from rankscope.inapp.step_figures import FIRST_MEASURED, StepFigures
from rankscope.units import format_rounded

# A share is judged over at least so much training and so many steps in which the hooks measured themselves.
PERIOD_NS = 10 * 10**9
PERIOD_STEPS = 4
# It is over the budget when so many periods in a row are: a slow moment of a host does not end the telemetry.
PERIODS = 3
# Measured steps that are remembered.
_MOST = 4096


class Share(NamedTuple):
    """Of the step time."""

    hook_ns: int
    """Median over the measured steps: in the mean, a step in which another process takes the core counts as much as
    all others."""
    step_ns: float
    """Mean."""
    thread_pct: float
    """CPU time of the telemetry's own thread."""

    @property
    def hook_pct(self) -> float:
        return 100 * self.hook_ns / self.step_ns

    @property
    def hooks(self) -> str:
        return f"{format_rounded('ns', self.hook_ns)} of {format_rounded('ns', self.step_ns)} in its hooks"


class _Sums:
    """Over steps, without the first ones and without those that a profiler slows."""

    def __init__(self) -> None:
        self.steps = self.step_ns = self.thread_ns = 0
        self.hook_ns: list[int] = []

    def share(self, part: int = 2) -> Share:
        hook_ns = sorted(self.hook_ns)[len(self.hook_ns) // part]
        return Share(hook_ns, self.step_ns / self.steps, 100 * self.thread_ns / self.step_ns)


class WatchCost:
    """Adds up what the telemetry costs, and compares it with its budget."""

    def __init__(self, budget_pct: float) -> None:
        self._budget_pct = budget_pct
        self._all, self._period = _Sums(), _Sums()
        self._periods_over = 0

    def add_step(self, step: StepFigures) -> None:
        if step.number < FIRST_MEASURED or step.profiled:
            return
        for sums in (self._all, self._period):
            sums.steps += 1
            sums.step_ns += step.ended - step.began
            if step.hook_ns != NONE and len(sums.hook_ns) < _MOST:
                sums.hook_ns.append(step.hook_ns)

    def add_thread_ns(self, cpu_ns: int) -> None:
        if self._all.steps:
            self._all.thread_ns += cpu_ns
            self._period.thread_ns += cpu_ns

    def excess(self) -> str | None:
        """Why the telemetry has to end; None while it may go on. Asked again and again: a period ends in some calls."""
        if len(self._period.hook_ns) < PERIOD_STEPS or self._period.step_ns < PERIOD_NS:
            return None
        # The lower quartile: on a busy host others take the core in most steps, and that is not the telemetry's doing.
        share, self._period = self._period.share(4), _Sums()
        share_pct = max(share.hook_pct, share.thread_pct)  # the thread runs beside the steps
        self._periods_over = self._periods_over + 1 if share_pct > self._budget_pct else 0
        if self._periods_over < PERIODS:
            return None
        return (
            f"it costs {_percent(share_pct)} of the step time ({share.hooks}; its thread used "
            f"{_percent(share.thread_pct)} of a core), and its budget is {self._budget_pct:g} %; "
            "--watch-budget PCT allows more"
        )

    def share(self) -> Share | None:
        """Of the whole run; None before there is a step to judge by."""
        return self._all.share() if self._all.hook_ns else None

    def __str__(self) -> str:
        """One line; empty where there is no share."""
        if (share := self.share()) is None:
            return ""
        return (
            f"the telemetry cost {_percent(share.hook_pct)} of the step time: {share.hooks}, "
            f"by {len(self._all.hook_ns)} steps; its thread used {_percent(share.thread_pct)} of a core"
        )


def _percent(share: float) -> str:
    """With two digits, as 0.5 % is little here."""
    return f"{share:.2g} %" if 0.001 <= share < 99.5 else f"{share:.0f} %" if share > 1 else "under 0.001 %"
