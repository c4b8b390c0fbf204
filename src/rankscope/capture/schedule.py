"""When to record: a schedule with torch.profiler's exact meaning, a time window, or on a signal.

A step ends when the counted optimizer has stepped; steps count from 0, so step 0 is everything up to the end
of the first optimizer step. A script that calls ``prof.step()`` after ``optimizer.step()`` counts the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rankscope.errors import CaptureError, UsageError

# What is done in a step: torch.profiler.ProfilerAction.
NONE, WARMUP, RECORD, RECORD_AND_SAVE = range(4)

DEFAULT_WARMUP = 1
DEFAULT_ACTIVE = 3
# Without --active, where they cost little: what a comparison of two runs needs to be sure (docs/diff.md).
MOST_ACTIVE = 6


def unfinished_step(number: int | str) -> str:
    """The name of the range by which a recording that ends in a step says so. It must not look like a step itself."""
    return f"unfinished step {number}"


class Schedule(NamedTuple):
    """torch.profiler.schedule: skip, then repeat (wait, warm up, record); repeat 0 is without end."""

    skip_first: int = 0
    wait: int = 1
    warmup: int = DEFAULT_WARMUP
    active: int = DEFAULT_ACTIVE
    repeat: int = 1

    def action(self, step: int) -> int:
        """What is done in this step."""
        if step < self.skip_first:
            return NONE
        cycle, in_cycle = divmod(step - self.skip_first, self.wait + self.warmup + self.active)
        if (self.repeat and cycle >= self.repeat) or in_cycle < self.wait:
            return NONE
        if in_cycle < self.wait + self.warmup:
            return WARMUP
        return RECORD if in_cycle < self.wait + self.warmup + self.active - 1 else RECORD_AND_SAVE

    @property
    def first_busy_step(self) -> int:
        """The first step that is not NONE; before it, a step costs one comparison."""
        return self.skip_first + self.wait

    @property
    def first_recorded_step(self) -> int:
        return self.skip_first + self.wait + self.warmup

    def postponed(self) -> Schedule:
        """The same, one step later."""
        return self._replace(skip_first=self.skip_first + 1)

    def is_over(self, step: int) -> bool:
        """Whether nothing is done in this step and after it."""
        cycle = self.wait + self.warmup + self.active
        return bool(self.repeat) and step >= self.skip_first + self.repeat * cycle

    def validate(self) -> None:
        """Refuse the values that torch.profiler.schedule refuses."""
        for name, value in self._asdict().items():
            if value < 0 or (name == "active" and value == 0):
                least = 1 if name == "active" else 0
                raise UsageError(
                    f"--{name.replace('_', '-')} {value} cannot be scheduled",
                    hint=f"It must be at least {least}.",
                )


class ScheduleFunction:
    """Any function of the step that returns a ProfilerAction, such as torch.profiler.schedule's. In code only."""

    first_busy_step = 0

    def __init__(self, function: Callable[[int], Any], delay: int = 0) -> None:
        self._function = function
        self._delay = delay

    def action(self, step: int) -> int:
        """What is done in this step."""
        if step < self._delay:
            return NONE
        answer = self._function(step - self._delay)
        action = getattr(answer, "value", answer)
        if action not in (NONE, WARMUP, RECORD, RECORD_AND_SAVE):
            raise CaptureError(
                f"the schedule returned {answer!r} for step {step}",
                why="That is not a torch.profiler.ProfilerAction.",
                hint="Return ProfilerAction.NONE, WARMUP, RECORD or RECORD_AND_SAVE.",
            )
        return int(action)

    def postponed(self) -> ScheduleFunction:
        """The same, one step later."""
        return ScheduleFunction(self._function, self._delay + 1)

    def is_over(self, step: int) -> bool:
        """A function does not say when its last step was."""
        return False

    def _asdict(self) -> dict[str, Any]:
        """For the manifest, as the other kinds of When."""
        return {"function": getattr(self._function, "__qualname__", type(self._function).__name__)}


class TimeWindow(NamedTuple):
    """Record for ``for_s`` seconds, ``after_s`` seconds after torch was imported."""

    after_s: float
    for_s: float


class OnSignal(NamedTuple):
    """Each time the signal arrives: warm up and record the next steps."""

    signal: str
    warmup: int = DEFAULT_WARMUP
    active: int = DEFAULT_ACTIVE


class OnRequest(NamedTuple):
    """Only what is requested while the job runs (`rankscope capture`): --watch without a schedule."""


class EveryStep(NamedTuple):
    """Under nsys or ncu without a schedule: the tool records the whole run, and every step is marked in it."""

    @property
    def schedule(self) -> Schedule:
        """One cycle without end."""
        return Schedule(skip_first=0, wait=0, warmup=0, active=sys.maxsize, repeat=1)


When = Schedule | ScheduleFunction | TimeWindow | OnSignal | OnRequest | EveryStep


def steps_window(text: str, warmup: int = DEFAULT_WARMUP) -> Schedule:
    """``A:B``: steps A to B, both included, as one cycle; warm-up steps come before A where there is room."""
    first_text, colon, last_text = text.partition(":")
    if not colon or not first_text.isdecimal() or not last_text.isdecimal():
        raise UsageError(
            f"--steps {text} is not a range of steps", hint="Write it like 10:14, both ends included, from 0."
        )
    first, last = int(first_text), int(last_text)
    if last < first:
        raise UsageError(
            f"--steps {text} ends before it begins",
            why="The first number is the first step to record, the second is the last.",
            hint=f"Did you mean --steps {last}:{first}?",
        )
    warmup = min(warmup, first)
    return Schedule(first - warmup, 0, warmup, last - first + 1, 1)


def choose_when(
    cycle: Mapping[str, int], *, steps: str | None, window: TimeWindow | None, signal: str | None
) -> When:
    """One schedule from the options: ``cycle`` has the fields of Schedule that were given."""
    kinds = {
        "--steps": steps is not None,
        "--after/--for": window is not None,
        "--on-signal": signal is not None,
    }
    given = [name for name, is_given in kinds.items() if is_given]
    allowed = {"--steps": {"warmup"}, "--after/--for": set(), "--on-signal": {"warmup", "active"}}
    surplus = sorted(set(cycle) - allowed[given[0]]) if given else []
    if len(given) > 1 or surplus:
        names = [*given, *(f"--{name.replace('_', '-')}" for name in surplus)]
        raise UsageError(
            f"{' and '.join(names)} are two schedules at once",
            why="Each of them alone determines when to record.",
            hint="Keep one: the cycle (--wait, --warmup, ...), --steps, --after/--for or --on-signal.",
        )
    if steps is not None:
        return steps_window(steps, **cycle)
    if window is not None:
        return window
    schedule = Schedule(**cycle)
    schedule.validate()
    return schedule if signal is None else OnSignal(_signal_name(signal), schedule.warmup, schedule.active)


def _signal_name(text: str) -> str:
    name = text.upper().removeprefix("SIG")
    if name not in ("USR1", "USR2", "HUP", "ALRM", "WINCH", "URG"):
        raise UsageError(
            f"--on-signal {text} cannot be used",
            why="A signal that ends or stops a job, or reports on it, has another meaning already.",
            hint="Use USR2 or USR1.",
        )
    return name
