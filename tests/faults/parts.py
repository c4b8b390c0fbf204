"""The parts of the fault tests."""

from __future__ import annotations

from faults.outcome import Part

PARTS: tuple[Part, ...] = ()
