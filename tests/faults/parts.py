"""The parts of the fault tests."""

from __future__ import annotations

from faults.byte_flips import BYTE_FLIPS
from faults.ingest_kills import INGEST_KILLS
from faults.outcome import Part

PARTS: tuple[Part, ...] = (BYTE_FLIPS, INGEST_KILLS)
