"""The clocks of the ranks: how far each is ahead and how fast it runs, and how well that is known.

Ranks leave an all_reduce and its kin together, so the end times of these tell the clocks apart (clock_fit). Wall
clocks are where the fit starts from, and all there is for ranks that share no collective with the others. What was
measured is kept in the store, in clocks.json, which may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankscope.atomic_files import write_json
from rankscope.model import FORMAT_VERSION
from rankscope.store.layout import SegmentEntry

if TYPE_CHECKING:
    from rankscope.store.clocks.fit import Fit
    from rankscope.store.collectives.entries import Collectives

CLOCKS_FILE = "clocks.json"
_VERSION = 1

Method = Literal["reference", "collectives", "wall clock"]

_USELESS_DRIFT_PPM = 100.0
"""No clock drifts so much: a measurement that cannot exclude it says nothing."""


@dataclass(frozen=True)
class RankClock:
    """One rank's clock against that of the reference rank. Positive: ahead, fast."""

    rank: int
    method: Method
    """reference, collectives (measured), or wall clock (it shares no collective with the reference)."""
    reference: int
    """The rank it was measured against."""
    offset_ns: int = 0
    """At the run's start."""
    drift_ppm: float | None = None
    """None where the recording is too short, or too noisy, to tell."""
    applied_drift_ppm: float = 0.0
    """0 where the drift is not larger than its error."""
    error_ns: int | None = None
    """The offset is known to this much; None where nothing was measured."""
    drift_error_ppm: float | None = None
    residual_p50_ns: int | None = None
    """Half of its collectives end within this of the fit."""
    residual_p95_ns: int | None = None
    collectives: int = 0
    """How many it was measured with."""
    aligned: bool = False
    """Is the clock moved by this? Not when the wall clocks agree to within the error."""
    center_ns: int = 0
    center_offset_ns: float = 0.0

    def ahead_ns(self, time_ns: float) -> float:
        """What must be taken off its time stamps at a time (ns from the run's start by wall clock)."""
        if not self.aligned:
            return 0.0
        return self.center_offset_ns + self.applied_drift_ppm * 1e-6 * (time_ns - self.center_ns)


@dataclass(frozen=True)
class Clocks:
    """All of a run."""

    ranks: tuple[RankClock, ...]

    def of(self, rank: int) -> RankClock:
        return next(clock for clock in self.ranks if clock.rank == rank)


def wall_clocks(ranks: Sequence[int]) -> Clocks:
    """Nothing measured: every rank's own word."""
    return Clocks(
        tuple(RankClock(rank, "wall clock" if i else "reference", ranks[0]) for i, rank in enumerate(ranks))
    )


def measure(rows: Collectives, ranks: Sequence[int], starts: Sequence[tuple[int, int]]) -> Clocks:
    """The clocks from matched collectives, whose times count from the run's start by wall clock.

    `starts` has the rank and the start of every file, by wall clock too.
    """
    import numpy as np

    from rankscope.store.arrays import NONE
    from rankscope.store.clocks.fit import Sightings, fit

    used = (rows.match != NONE) & rows.together
    if not used.any():
        return wall_clocks(ranks)
    _, moment = np.unique(rows.match[used], return_inverse=True)
    clock = np.searchsorted(ranks, rows.rank[used])
    sort = rows.group[used] * (1 + int(rows.kind.max())) + rows.kind[used]
    fitted = fit(Sightings(moment.reshape(-1), clock, rows.end[used], sort), len(ranks))
    main = int(np.bincount(fitted.part).argmax())
    results: list[RankClock] = []
    for i, rank in enumerate(ranks):
        part = int(fitted.part[i])
        mine = np.abs(fitted.residual[clock == i])
        if part == i:  # measured against none: the run's reference, or one that wall clocks must place
            result = RankClock(rank, "reference" if i == main else "wall clock", ranks[main])
        else:
            result = _judge(RankClock(rank, "collectives", ranks[part]), fitted, i, float(np.median(mine)))
        if len(mine):
            p50, p95 = (int(np.ceil(q)) for q in np.percentile(mine, [50, 95]))
            result = replace(result, residual_p50_ns=p50, residual_p95_ns=p95, collectives=len(mine))
        results.append(result)
    clocks = Clocks(tuple(results))
    first = min(start - clocks.of(rank).ahead_ns(start) for rank, start in starts)
    return Clocks(tuple(_at_start(clock, first) for clock in results))


def _at_start(clock: RankClock, start_ns: float) -> RankClock:
    """With the offset it has when the run starts, on the aligned axis; the drift's error comes in on the way."""
    if not clock.applied_drift_ppm:
        return replace(clock, offset_ns=round(clock.center_offset_ns))
    way = abs(clock.center_ns - start_ns) * (clock.drift_error_ppm or 0.0) * 1e-6
    return replace(
        clock, offset_ns=round(clock.ahead_ns(start_ns)), error_ns=(clock.error_ns or 0) + ceil(way)
    )


def _judge(clock: RankClock, fitted: Fit, i: int, p50: float) -> RankClock:
    """Error bars, and whether the measurement beats the wall clocks.

    A rank that always leaves a little later than the others looks like one whose clock is ahead, however often
    it is measured. So the error is never smaller than what half of the collectives deviate by.
    """
    offset, drift = float(fitted.offset[i]), float(fitted.drift[i])
    error = 2 * float(fitted.offset_error[i]) + p50
    drift_error = 2 * float(fitted.drift_error[i]) + p50 / fitted.half_ns
    told = drift_error * 1e6 < _USELESS_DRIFT_PPM
    drifts = told and abs(drift) > drift_error
    return replace(
        clock,
        drift_ppm=drift * 1e6 if told else None,
        applied_drift_ppm=drift * 1e6 if drifts else 0.0,
        error_ns=ceil(error) + 1,
        drift_error_ppm=drift_error * 1e6 if told else None,
        aligned=drifts or abs(offset) > error,
        center_ns=fitted.center_ns,
        center_offset_ns=offset,
    )


def load(store: Path, segments: Sequence[SegmentEntry]) -> Clocks | None:
    """What was measured before of exactly these files; None when there is nothing, or it is of others."""
    try:
        content = json.loads((store / CLOCKS_FILE).read_text(encoding="utf-8"))
        if content["version"] != _VERSION or content["segments"] != _key(segments):
            return None
        return Clocks(tuple(RankClock(**entry) for entry in content["ranks"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save(clocks: Clocks, store: Path, segments: Sequence[SegmentEntry]) -> None:
    """Keep it for the next time; a store that cannot be written to is measured again each time."""
    content = {
        "version": _VERSION,
        "segments": _key(segments),
        "ranks": [asdict(clock) for clock in clocks.ranks],
    }
    try:
        write_json(store / CLOCKS_FILE, content)
    except OSError:
        return


def _key(segments: Sequence[SegmentEntry]) -> list[list[Any]]:
    return [
        [e.rank, e.segment, FORMAT_VERSION, e.manifest["source"]["bytes"], e.manifest["source"]["mtime_ns"]]
        for e in segments
    ]
