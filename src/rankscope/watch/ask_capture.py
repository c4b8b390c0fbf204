"""Asks a running job to record some steps: which ones, so that every rank sees the request in time."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

from rankscope.capture.capture_request import CaptureRequest, make_request, read_request
from rankscope.capture.rank import Identity
from rankscope.capture.selector import parse_selector
from rankscope.errors import CaptureError, RankscopeError, StoreError, UsageError
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.text.run_words import shell_word
from rankscope.watch.alarms import HANG, RANK_ENDED, Alarm
from rankscope.watch.hang import is_over
from rankscope.watch.judge import usual_step
from rankscope.watch.rings import RankRing, rank_folders, read_rings, tables

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
        first, last, count = self.request.first_step, self.request.last_step, len(self.ranks)
        return (
            f"steps {first} to {last} of {count} rank{'s' * (count != 1)} ({as_ranges(self.ranks)}) will be recorded, "
            f"in about {self.seconds:.0f} s"
        )


def ask_capture(run: Path, *, steps: int | None = None, ranks: str = "all", reason: str = "") -> list[Asked]:
    """Make a request for the next steps that all ranks can record; one for each role that has a folder of its own."""
    rings = read_rings(run)
    now = time.time_ns()
    running = [ring for ring in rings if ring.header.records]
    if not running:
        raise CaptureError(
            f"the job in {run} has made no step yet",
            why="The steps to record are counted from the present one.",
            hint=f"Ask again when it trains: rankscope watch {shell_word(run)} shows it.",
        )
    if is_over(running, now) and (off := next((ring.off for ring in running if ring.off), "")):
        raise CaptureError(
            f"the telemetry of {run} is off",
            why=f"A rank switched it off: {off}.",
            hint="Its ranks no longer look for requests. Start the next job with a larger --watch-budget.",
        )
    if is_over(running, now):
        raise CaptureError(
            f"the job in {run} has ended",
            why="None of its ranks writes telemetry any more.",
            hint=f"What it left: rankscope stats {shell_word(run)} -r telemetry",
        )
    chosen = _chosen(rings, ranks)
    asked = []
    for folder in dict.fromkeys(ring.path.parent for ring in running):
        of_folder = [ring for ring in running if ring.path.parent == folder]
        request, seconds = _request(of_folder, now, steps)
        selected = [ring.rank for ring in rings if ring.path.parent == folder and ring.rank in chosen]
        if selected:
            _make(folder, request._replace(ranks=ranks, reason=reason))
            asked.append(Asked(request, selected, seconds))
    return asked


def _request(running: Sequence[RankRing], now: int, steps: int | None) -> tuple[CaptureRequest, float]:
    """For steps that lie ahead of these ranks, and in how many seconds they come."""
    # Without a table there are too few steps for a median.
    step_ns = min((usual_step(table) for table in tables(running)), default=1e9)
    gap_ns = min(now - max(ring.last_end_unix_ns for ring in running), _LONGEST_GAP_S * 1e9)
    furthest = max(ring.last_step for ring in running) + max(math.floor(gap_ns / step_ns), 0)
    request = CaptureRequest(furthest, made_unix_ns=now)
    lead = max(_LEAST_LEAD, math.ceil(_LEAD_S * 1e9 / step_ns)) + request.warmup
    return request._replace(first_step=furthest + lead, steps=steps or request.steps), lead * step_ns / 1e9


def _make(folder: Path, request: CaptureRequest) -> None:
    try:
        make_request(folder.parent, request)
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}",
            why=f"{error.strerror or error}.",
            hint="Ask as the user that runs the job.",
        ) from error


def _chosen(rings: Sequence[RankRing], text: str) -> list[int]:
    selector = parse_selector(text)

    def identity(ring: RankRing) -> Identity:
        local_rank, world_size, node = map(ring.about.get, ("local_rank", "world_size", "node"))
        return Identity(ring.number, local_rank, world_size, None, node, "the job")

    chosen = [ring.rank for ring in rings if selector.selects(identity(ring))]
    if not chosen:
        raise UsageError(
            f"--ranks {text} selects no rank of this job",
            why=f"It has {rank_words([ring.rank for ring in rings])}.",
            hint="Choose among these, or leave --ranks out.",
        )
    return chosen


def capture_on_alarm(run: Path, alarms: Sequence[Alarm], most: int, between_s: float) -> str:
    """Let the job record its next steps, unless that has been done often or lately; what was done, or why not.

    A job that hangs or has failed makes no step.
    """
    causes = [alarm for alarm in alarms if alarm.kind not in (HANG, RANK_ENDED)]
    earlier_unix_ns, number = [], 1
    folder = next((folder.path.parent for folder in rank_folders(run)), run)
    while (request := read_request(folder, number)) is not None:
        earlier_unix_ns += [request.made_unix_ns] if request.reason.startswith(AUTOMATIC) else []
        number += 1
    lately = time.time_ns() - max(earlier_unix_ns, default=0) < between_s * 1e9
    if not causes or len(earlier_unix_ns) >= most or lately:
        return ""
    try:
        asked = ask_capture(run, reason=AUTOMATIC + causes[0].text)
        return f"{causes[0].kind}: {'; '.join(map(str, asked))}"
    except RankscopeError as error:
        return f"{error}"
