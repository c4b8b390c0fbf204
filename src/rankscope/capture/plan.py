"""The plan: everything a rank must know to capture itself.

It travels in one environment variable, the only way that reaches the processes of a script on any machine without a
file that could be missing there. Its size is bounded: of the command it holds a record, redacted and of some kilobytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from rankscope.capture.schedule import EveryStep, OnRequest, OnSignal, Schedule, TimeWindow, When
from rankscope.capture.selector import AUTO

PLAN_VARIABLE = "RANKSCOPE_PLAN"

# Without an optimizer step for this long (inference, or a custom loop), a time window is recorded.
FALLBACK_AFTER_S = 120.0
FALLBACK_FOR_S = 5.0

# With --watch, a rank that has made no step for this long writes its stacks.
HANG_AFTER_S = 600.0
# With --watch, a rank whose telemetry takes a larger share of the step time switches it off.
WATCH_BUDGET_PCT = 0.5

# The kernel takes at most 128 kB for one variable; a list of thousands of files is of no use in a record.
_RECORDED_CHARACTERS = 4000

_WHEN_KINDS: dict[str, Any] = {
    "schedule": Schedule,
    "time": TimeWindow,
    "signal": OnSignal,
    "request": OnRequest,
    "every": EveryStep,
}


class Front(NamedTuple):
    """The process in front of the job, which waits for it."""

    host: str
    pid: int
    started: int

    @classmethod
    def this_process(cls) -> Front:
        from rankscope.capture.process_state import process_state

        state = process_state(os.getpid())
        return cls(os.uname().nodename, os.getpid(), state.started if state else 0)

    @property
    def text(self) -> str:
        """As an option of the command that is inserted into a launcher's."""
        return f"{self.pid}:{self.started}:{self.host}"

    @classmethod
    def from_text(cls, text: str) -> Front:
        pid, started, host = text.split(":", 2)
        return cls(host, int(pid), int(started))

    def runs(self) -> bool:
        from rankscope.capture.process_state import still_runs

        return still_runs(self.pid, self.started)


class Plan(NamedTuple):
    """What `rankscope profile` was asked for. Every field has the default of its option."""

    when: When = Schedule()
    # A schedule may record up to so many steps where they cost little; 0: as many as it says.
    active_up_to: int = 0
    tool: str = "torch"
    ranks: str = AUTO
    output: str | None = None
    job: str | None = None
    command: tuple[str, ...] = ()
    identity: dict[str, int] = {}  # noqa: RUF012  (never changed: a NamedTuple's default)
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    activities: tuple[str, ...] = ()
    max_size: int | None = None
    tensorboard_dir: str | None = None
    step_on: str | None = None
    fallback_after_s: float = FALLBACK_AFTER_S
    force: bool = False
    quiet: bool = False
    verbose: bool = False
    # Whether the rank prints a summary at its end; False where the process in front does.
    speaks: bool = True
    # The command itself is a Python program, not a script that may start several.
    direct: bool = True
    # Under nsys or ncu: the folder where the ranks describe their windows. The tool writes the reports.
    windows: str | None = None
    # Under nsys or ncu: a window is a CUDA profiler range, which the tool waits for. Else its steps are only marked.
    opens_range: bool = True
    # Under nsys: what else becomes NVTX ranges, "ops" or "modules".
    nvtx: tuple[str, ...] = ()
    # The members of the run folder's group may read it.
    group_readable: bool = False
    front: Front | None = None
    # Telemetry of every step, of all ranks; and requested captures.
    watch: bool = False
    hang_after_s: float = HANG_AFTER_S
    watch_budget_pct: float = WATCH_BUDGET_PCT
    # The options of `rankscope watch`, which rank 0 starts beside itself.
    watcher: str | None = None

    def to_json(self) -> str:
        import json  # an unselected rank never needs it

        fields = self._asdict()
        fields["command"] = recorded_command(self.command, _RECORDED_CHARACTERS)
        kind = next(name for name, cls in _WHEN_KINDS.items() if isinstance(self.when, cls))
        fields["when"] = {"kind": kind, **self.when._asdict()}
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        import json

        fields: dict[str, Any] = json.loads(text)
        when = dict(fields["when"])
        fields["when"] = _WHEN_KINDS[when.pop("kind")](**when)
        fields["command"] = tuple(fields["command"])
        fields["activities"] = tuple(fields["activities"])
        fields["nvtx"] = tuple(fields["nvtx"])
        fields["front"] = Front(*fields["front"]) if fields["front"] else None
        return cls(**fields)


def recorded_command(command: Sequence[str], most: int | None = None) -> list[str]:
    """The command as it is kept: without secrets, and without what exceeds ``most`` characters."""
    from rankscope.text.redaction import redacted_command

    words: list[str] = []
    for word in command:  # the limit first: what exceeds it costs nothing
        if most is not None and len(word) > most:
            return [*redacted_command(words), f"... ({len(command) - len(words)} more words)"]
        most = None if most is None else most - len(word)
        words.append(word)
    return redacted_command(words)
