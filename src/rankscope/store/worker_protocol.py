"""What is asked of a process that reads, and what it answers; light, so that one can be started early."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.errors import RankscopeError


@dataclass(frozen=True)
class Task:
    """What one worker is asked to do."""

    path: str
    folder: str
    """New and empty; the worker fills it."""
    threads: int
    memory_bytes: int
    part: str = ""
    """Which rank's part of the file; empty for all of it."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


Outcome = dict[str, Any] | RankscopeError
"""What segment.json holds, or why there is none."""
