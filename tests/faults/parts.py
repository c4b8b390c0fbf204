"""The parts of the fault tests."""

from __future__ import annotations

from faults import second_user, viewer_abuse
from faults.outcome import Part

PARTS: tuple[Part, ...] = (viewer_abuse.PART, second_user.PART)
