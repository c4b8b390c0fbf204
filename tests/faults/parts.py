"""The parts of the fault tests."""

from __future__ import annotations

from faults import capture_trials
from faults.outcome import Part

PARTS: tuple[Part, ...] = (capture_trials.PART,)
