"""The telemetry of a job, read from outside while it runs or afterwards: ring files, judging, alarms, the live view.

`inapp` writes the ring files inside the job. Used by `analysis` (reports), `viewer` and `cli`; imports nothing above
`capture`. Nothing here prints.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`rankscope.watch()` of the in-app API: importing this package takes its name in `rankscope`."""
        from rankscope.inapp.watch import watch

        return watch(*args, **kwargs)


sys.modules[__name__].__class__ = _Package
