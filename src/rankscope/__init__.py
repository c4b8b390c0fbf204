"""rankscope: see where every rank's time goes.

In a training program (standard library and torch only)::

    with rankscope.profile(schedule=rankscope.schedule(wait=1, warmup=1, active=3)) as prof:
        for batch in loader:
            train(batch)
            prof.step()

In a notebook, or any other program::

    run = rankscope.open("RUN")
    run.breakdown()

Every error is a rankscope.RankscopeError; rankscope.errors draws the hierarchy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rankscope.version import __version__

# Module -> its public names. It is imported when one of them is first used: `import rankscope` takes almost no time.
_NAMES = {
    "notebook": ("open", "OpenRun", "Answer"),
    "inapp.profiler": ("profile", "schedule"),
    "inapp.engine": ("mark_step",),
    "inapp.watch": ("watch",),
    "inapp.annotate": ("trace",),
    "inapp.cuda_range": ("cuda_profiler_range",),
    "inapp.timers": ("Timers",),
    "inapp.window_handlers": ("Recorded", "ChromeTrace", "TensorBoard"),
    "inapp.operator_table": ("Summary",),
    "inapp.memory": ("memory_history", "memory_line", "memory_now"),
    "inapp.flags": ("add_profile_arguments", "profiler_from_args"),
    "errors": (
        "RankscopeError", "UsageError", "ReadError", "NotATraceError",
        "EmptyTraceError", "MixedRunsError", "RankError", "StoreError", "CaptureError",
        "ToolError", "RemoteError", "MissingPackageError", "QueryError",
    ),
}  # fmt: skip
_PUBLIC = {name: f"rankscope.{module}" for module, names in _NAMES.items() for name in names}

if TYPE_CHECKING:
    from rankscope.errors import (
        CaptureError,
        EmptyTraceError,
        MissingPackageError,
        MixedRunsError,
        NotATraceError,
        QueryError,
        RankError,
        RankscopeError,
        ReadError,
        RemoteError,
        StoreError,
        ToolError,
        UsageError,
    )
    from rankscope.inapp.annotate import trace
    from rankscope.inapp.cuda_range import cuda_profiler_range
    from rankscope.inapp.engine import mark_step
    from rankscope.inapp.flags import add_profile_arguments, profiler_from_args
    from rankscope.inapp.memory import memory_history, memory_line, memory_now
    from rankscope.inapp.operator_table import Summary
    from rankscope.inapp.profiler import profile, schedule
    from rankscope.inapp.timers import Timers
    from rankscope.inapp.watch import watch
    from rankscope.inapp.window_handlers import ChromeTrace, Recorded, TensorBoard
    from rankscope.notebook import Answer, OpenRun, open
else:  # hidden from type checkers, which would accept any attribute because of it

    def __getattr__(name: str) -> Any:
        if name not in _PUBLIC:
            raise AttributeError(f"module 'rankscope' has no attribute '{name}'")
        value = getattr(import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value


__all__ = [
    "Answer", "CaptureError", "ChromeTrace", "EmptyTraceError", "MissingPackageError", "MixedRunsError",
    "NotATraceError", "OpenRun", "QueryError", "RankError", "RankscopeError", "ReadError",
    "Recorded", "RemoteError", "StoreError", "Summary", "TensorBoard", "Timers", "ToolError", "UsageError",
    "__version__", "add_profile_arguments", "cuda_profiler_range", "mark_step",
    "memory_history", "memory_line", "memory_now", "open", "profile", "profiler_from_args", "schedule",
    "trace", "watch",
]  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
