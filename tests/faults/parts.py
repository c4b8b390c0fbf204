"""The parts of the fault tests."""

from __future__ import annotations

from faults import capture_trials, mutated_files, second_user, surroundings, viewer_abuse, watch_trials
from faults.byte_flips import BYTE_FLIPS
from faults.ingest_kills import INGEST_KILLS
from faults.outcome import Part

PARTS: tuple[Part, ...] = (
    INGEST_KILLS,
    BYTE_FLIPS,
    mutated_files.PART,
    capture_trials.PART,
    watch_trials.PART,
    viewer_abuse.PART,
    second_user.PART,
    surroundings.PART,
)
