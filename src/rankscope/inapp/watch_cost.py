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


class Sums(NamedTuple):
    """Over steps, without the first ones and without those that a profiler slows."""

    steps: int = 0
    step_ns: int = 0
    measured: int = 0
    hook_ns: int = 0
    """Of the measured steps."""
    thread_ns: int = 0
    """CPU time of the telemetry's own thread."""

    @property
    def hook_pct(self) -> float:
        """Mean time in hooks over the mean step."""
        return 100 * (self.hook_ns / self.measured) / (self.step_ns / self.steps)

    @property
    def thread_pct(self) -> float:
        return 100 * self.thread_ns / self.step_ns

    @property
    def hooks_of_step(self) -> str:
        """Both means, in words."""
        hooks, step = self.hook_ns / self.measured, self.step_ns / self.steps
        return f"{format_rounded('ns', hooks)} of {format_rounded('ns', step)}"


class WatchCost:
    """Adds up what the telemetry costs, and compares it with its budget."""

    def __init__(self, budget_pct: float) -> None:
        self.sums = Sums()
        self._budget_pct = budget_pct
        self._judged = Sums()
        self._periods_over = 0

    def add_step(self, step: StepFigures) -> None:
        if step.number < FIRST_MEASURED or step.profiled:
            return
        measured = step.hook_ns != NONE
        self.sums = self.sums._replace(
            steps=self.sums.steps + 1,
            step_ns=self.sums.step_ns + step.ended - step.began,
            measured=self.sums.measured + measured,
            hook_ns=self.sums.hook_ns + step.hook_ns * measured,
        )

    def add_thread_ns(self, cpu_ns: int) -> None:
        if self.sums.steps:
            self.sums = self.sums._replace(thread_ns=self.sums.thread_ns + cpu_ns)

    def excess(self) -> str | None:
        """Why the telemetry has to end; None while it may go on. Asked again and again: a period ends in some calls."""
        period = Sums(*(now - before for now, before in zip(self.sums, self._judged, strict=True)))
        if period.measured < PERIOD_STEPS or period.step_ns < PERIOD_NS:
            return None
        self._judged = self.sums
        share_pct = period.hook_pct + period.thread_pct
        self._periods_over = self._periods_over + 1 if share_pct > self._budget_pct else 0
        if self._periods_over < PERIODS:
            return None
        return (
            f"it costs {_percent(share_pct)} of the step time ({period.hooks_of_step} in its hooks), and its budget is "
            f"{self._budget_pct:g} %; --watch-budget PCT allows more"
        )

    def __str__(self) -> str:
        """One line; empty before there is a step to judge by."""
        sums = self.sums
        if not sums.measured:
            return ""
        return (
            f"the telemetry cost {_percent(sums.hook_pct)} of the step time: {sums.hooks_of_step} in its hooks, mean "
            f"of {sums.measured} steps; its thread used {_percent(sums.thread_pct)} of a core"
        )


def _percent(share: float) -> str:
    """With two digits, as 0.5 % is little here."""
    return f"{share:.2g} %" if 0.001 <= share < 99.5 else f"{share:.0f} %" if share > 1 else "under 0.001 %"
