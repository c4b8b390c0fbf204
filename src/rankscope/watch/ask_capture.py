"""Asks a running job to record some steps: which ones, so that every rank sees the request in time."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankscope.capture.capture_request import CaptureRequest, make_request, read_request
from rankscope.capture.rank import Identity
from rankscope.capture.selector import parse_selector
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.errors import CaptureError, StoreError, UsageError
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.watch.hang import is_over
from rankscope.watch.judge import usual_step
from rankscope.watch.rings import RankRing, read_rings, tables

_LEAD_S = 6.0
"""Ranks look for requests once a second; shared filesystems show a new file after up to 3 s."""
_LEAST_LEAD = 3
_LONGEST_GAP_S = 30.0
"""A rank writes its steps every few seconds; one that has not for longer does not go on unseen."""
AUTOMATIC = "alarm: "
"""Reasons of requests that an alarm made begin so."""


@dataclass(frozen=True)
class Asked:
    """A request that was made."""

    request: CaptureRequest
    ranks: list[int]
    seconds: float
    """Until the first of these steps, by the present step time."""

    def __str__(self) -> str:
        last = self.request.first_step + self.request.steps - 1
        return (
            f"steps {self.request.first_step} to {last} of {len(self.ranks)} rank{'s' * (len(self.ranks) != 1)} "
            f"({as_ranges(self.ranks)}) will be recorded, in about {self.seconds:.0f} s"
        )


def ask_capture(run: Path, *, steps: int | None = None, ranks: str = "all", reason: str = "") -> Asked:
    """Make a request for the next steps that all ranks can record."""
    rings = read_rings(run)
    now = time.time_ns()
    running = [ring for ring in rings if ring.header.records]
    if not running:
        raise CaptureError(
            f"the job in {run} has made no step yet",
            why="The steps to record are counted from the present one.",
            hint=f"Ask again when it trains: rankscope watch {run} shows it.",
        )
    if is_over(running, now):
        raise CaptureError(
            f"the job in {run} has ended",
            why="None of its ranks writes telemetry any more.",
            hint=f"What it left: rankscope stats {run} -r telemetry",
        )
    chosen = _chosen(rings, ranks)
    # Without a table there are too few steps for a median.
    step_ns = min((usual_step(table) for table in tables(running)), default=1e9)
    gap_ns = min(now - max(ring.last_end_unix_ns for ring in running), _LONGEST_GAP_S * 1e9)
    furthest = max(ring.last_step for ring in running) + max(math.floor(gap_ns / step_ns), 0)
    request = CaptureRequest(furthest, ranks=ranks, reason=reason, made_unix_ns=now)
    lead = max(_LEAST_LEAD, math.ceil(_LEAD_S * 1e9 / step_ns)) + request.warmup
    request = request._replace(first_step=furthest + lead, steps=steps or request.steps)
    try:
        make_request(run, request)
    except OSError as error:
        raise StoreError(
            f"cannot write to {run / FOLDER}",
            why=f"{error.strerror or error}.",
            hint="Ask as the user that runs the job.",
        ) from error
    return Asked(request, chosen, lead * step_ns / 1e9)


def _chosen(rings: Sequence[RankRing], text: str) -> list[int]:
    selector = parse_selector(text)
    chosen = [ring.rank for ring in rings if selector.selects(_identity(ring))]
    if not chosen:
        raise UsageError(
            f"--ranks {text} selects no rank of this job",
            why=f"It has {as_ranges([ring.rank for ring in rings])}.",
            hint="Choose among these, or leave --ranks out.",
        )
    return chosen


def _identity(ring: RankRing) -> Identity:
    about = ring.about
    return Identity(
        ring.rank, about.get("local_rank"), about.get("world_size"), None, about.get("node"), "the job"
    )


def automatic_requests(run: Path) -> Iterator[int]:
    """When the requests that alarms made were made, Unix ns."""
    for number in itertools.count(1):
        request = read_request(run, number)
        if request is None:
            return
        if request.reason.startswith(AUTOMATIC):
            yield request.made_unix_ns
