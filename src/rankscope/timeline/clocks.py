"""Offset and drift of each rank's clock, with their errors.

Ranks leave an all_reduce at the same time, and so most other collectives; the differences of the recorded end times
are those of the clocks (`fit`). Between ranks that share no collective, such as the stages of a pipeline, a send and
its receive serve: they mostly end together. Ranks without either keep their wall clock. Ranks of one host have one
clock, whatever their collectives seem to say, unless the times are impossible on one clock and possible on those of the
fit. The store keeps the result (store.derived).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankscope.records import dataclass
from rankscope.store.derived import CLOCKS, Table
from rankscope.store.index import File, SegmentEntry

if TYPE_CHECKING:
    from rankscope.timeline.clock_fit import Fit
    from rankscope.timeline.collectives.entries import Collectives

Method = Literal["reference", "collectives", "one host", "wall clock"]

_USELESS_DRIFT_PPM = 100.0
"""No clock drifts this much. A drift with a larger error is not reported."""
# Where too few collectives were recorded to tell how far their ends spread: offsets within these are not applied.
# Ends of gloo spread by up to 0.7 ms (p50), those of NCCL by microseconds (docs/reports/clocks.md).
_ASSUMED_HOST_NS, _ASSUMED_DEVICE_NS = 1_400_000, 50_000
_MOST_IMPOSSIBLE = 0.05
"""Share of the collectives that a rank of a host may leave before another one has come: less than 1 % of gloo's are
recorded so on one clock."""
_SLACK_NS = 50_000
"""A collective begins a little before its start is recorded on a busy host."""


@dataclass(frozen=True)
class RankClock:
    """One rank's clock relative to that of the reference rank. Positive: ahead, fast."""

    rank: int
    method: Method
    """reference, collectives (measured), one host (that of the reference or of the first rank of its host: the clock is
    the same), or wall clock (it shares no collective with the reference)."""
    reference: int
    """The rank whose clock it is compared with."""
    offset_ns: int = 0
    """At the run's start."""
    drift_ppm: float | None = None
    """None if the recording is too short or too noisy to measure it."""
    applied_drift_ppm: float = 0.0
    """0 if the drift is not larger than its error."""
    error_ns: int | None = None
    """Error of the offset; None if it was not measured, or if too few collectives were recorded to tell."""
    drift_error_ppm: float | None = None
    residual_p50_ns: int | None = None
    """Half of its collectives end within this distance of the fit; None with too few collectives to tell."""
    residual_p95_ns: int | None = None
    collectives: int = 0
    """The number of collectives used for the fit."""
    aligned: bool = False
    """True if the correction is applied; false if the wall clocks agree within the error."""
    center_ns: int = 0
    center_offset_ns: float = 0.0

    def ahead_ns(self, time_ns: float) -> float:
        """How far the clock is ahead at a time, in ns from the run's start by wall clock."""
        if not self.aligned:
            return 0.0
        return self.center_offset_ns + self.applied_drift_ppm * 1e-6 * (time_ns - self.center_ns)


@dataclass(frozen=True)
class Clocks:
    """The clocks of all ranks."""

    ranks: tuple[RankClock, ...]

    @cached_property
    def _by_rank(self) -> dict[int, RankClock]:
        return {clock.rank: clock for clock in self.ranks}

    def of(self, rank: int) -> RankClock:
        return self._by_rank[rank]

    def ahead_ns(self, rank: int, time_ns: float) -> float:
        """How far the clock of a rank is ahead at a time, in ns from the run's start by wall clock."""
        return self.of(rank).ahead_ns(time_ns)


_KEPT = Table[Clocks](CLOCKS, Clocks)


def wall_clocks(ranks: Sequence[int], hosts: Mapping[int, str] | None = None) -> Clocks:
    """Clocks without a measurement: every rank keeps its wall clock."""
    if not ranks:
        return Clocks(())
    home = (hosts or {}).get(ranks[0])
    methods: list[Method] = [
        "one host" if home and (hosts or {}).get(rank) == home else "wall clock" for rank in ranks
    ]
    methods[0] = "reference"
    return Clocks(
        tuple(RankClock(rank, method, ranks[0]) for rank, method in zip(ranks, methods, strict=True))
    )


def measure(
    rows: Collectives,
    ranks: Sequence[int],
    starts: Sequence[tuple[int, int]],
    hosts: Mapping[int, str] | None = None,
) -> Clocks:
    """The clocks from matched collectives. All times are in ns from the run's start by wall clock.

    `starts` has the rank and the start of every file, `hosts` the machine of each rank where that is recorded.
    """
    # Late: most commands do not measure clocks and need no numpy.
    import numpy as np

    from rankscope.store.arrays import NONE
    from rankscope.timeline.clock_fit import LEAST_MOMENTS, Sightings, connected_parts, few_moments, fit_many

    used = (rows.match != NONE) & rows.together
    if len(rows.sends):
        clock = np.searchsorted(ranks, rows.rank)
        seen = Sightings(rows.match[used], clock[used], rows.end[used], rows.kind[used])
        part_of = connected_parts(seen, len(ranks))[clock]
        joins = (rows.match[rows.sends] != NONE) & (part_of[rows.sends] != part_of[rows.recvs])
        used[rows.sends[joins]] = used[rows.recvs[joins]] = True
    if not used.any():
        return wall_clocks(ranks, hosts)
    _, moment = np.unique(rows.match[used], return_inverse=True)
    clock = np.searchsorted(ranks, rows.rank[used])
    # The two ends of a message are of one class.
    kind = np.where(rows.together, rows.kind, int(rows.kind.max()) + 1)
    noise_class = rows.group[used] * (1 + int(kind.max())) + kind[used]
    fitted = fit_many(Sightings(moment.reshape(-1), clock, rows.end[used], noise_class), len(ranks))
    main = int(np.bincount(fitted.part).argmax())
    results: list[RankClock] = []
    by_clock = np.argsort(clock, kind="stable")
    bounds = np.searchsorted(clock[by_clock], np.arange(len(ranks) + 1))
    on_device = rows.on_device[used]
    for i, rank in enumerate(ranks):
        part = int(fitted.part[i])
        mine = by_clock[bounds[i] : bounds[i + 1]]
        told = np.abs(fitted.residual[mine[fitted.tells[mine]]])
        if part == i:  # the reference of its part; other parts keep their wall clock
            result = RankClock(rank, "reference" if i == main else "wall clock", ranks[main])
        elif np.isnan(fitted.spread[i]):
            assumed = _ASSUMED_DEVICE_NS if on_device[mine].all() else _ASSUMED_HOST_NS
            result = _without_error(RankClock(rank, "collectives", ranks[part]), fitted, i, assumed)
        else:
            p50 = float(fitted.spread[i])
            if len(told) >= LEAST_MOMENTS:
                p50 = few_moments(len(told)) * float(np.median(told))
            result = _with_errors(RankClock(rank, "collectives", ranks[part]), fitted, i, p50)
        if len(told):
            half, most = (int(np.ceil(q)) for q in np.percentile(told, [50, 95]))
            result = replace(result, residual_p50_ns=half, residual_p95_ns=most)
        result = replace(result, collectives=len(mine))
        results.append(result)
    if hosts:
        results = _one_clock_a_host(results, hosts, _apart(rows, hosts, Clocks(tuple(results))))
    clocks = Clocks(tuple(results))
    if len(rows.sends) and _too_early(rows, clocks) > max(_MOST_IMPOSSIBLE, _too_early(rows, Clocks(()))):
        # Sends that left early do not end with their receives.
        none = rows.sends[:0]
        without = measure(replace(rows, sends=none, recvs=none), ranks, starts, hosts)
        return Clocks(tuple(_by_messages(rows, without.ranks)))
    first = min(start - clocks.ahead_ns(rank, start) for rank, start in starts)
    return Clocks(tuple(_at_start(clock, first) for clock in results))


def _apart(rows: Collectives, hosts: Mapping[int, str], fitted: Clocks) -> set[str]:
    """The hosts whose ranks do not have one clock: with one they would leave collectives before others have come."""
    import numpy as np

    from rankscope.store.arrays import NONE, number_rows, starts_group

    names = sorted(set(hosts.values()) - {""})
    number = {rank: names.index(host) if host else NONE for rank, host in hosts.items()}
    clock = np.searchsorted([clock.rank for clock in fitted.ranks], rows.rank)
    host = np.array([number.get(clock.rank, NONE) for clock in fitted.ranks], dtype=np.int64)[clock]
    met = np.flatnonzero((rows.match != NONE) & rows.together & (host != NONE))
    cells, cell = number_rows([host[met], rows.match[met]])
    order = np.argsort(cell, kind="stable")
    first = np.flatnonzero(starts_group([cell[order]])) if len(order) else order
    several = np.diff(first, append=len(order)) > 1
    inside = (host[rows.sends] == host[rows.recvs]) & (host[rows.sends] != NONE)
    sends, recvs = rows.sends[inside], rows.recvs[inside]
    center, offset, drift = np.array(
        [
            (c.center_ns, c.center_offset_ns, c.applied_drift_ppm * 1e-6) if c.aligned else (0, 0, 0)
            for c in fitted.ranks
        ]
    ).T[:, clock]
    ahead = offset + drift * (rows.end - center)

    def impossible(by: Any) -> Any:
        """Of the collectives of each host, and of its messages: a receive does not end before its send begins."""
        start, end = rows.start - by, rows.end - by
        early = start[sends] > end[recvs] + _SLACK_NS
        if not len(order):
            return early
        entered = np.maximum.reduceat(start[met[order]], first)
        left = np.minimum.reduceat(end[met[order]], first)
        return np.concatenate([(entered > left + _SLACK_NS)[several], early])

    on_one_clock, on_fitted = impossible(0), impossible(ahead)
    at_host = np.concatenate([cells[several, 0], host[sends]])
    return {
        name
        for at, name in enumerate(names)
        if (of := at_host == at).any() and on_one_clock[of].mean() > _MOST_IMPOSSIBLE >= on_fitted[of].mean()
    }


def _too_early(rows: Collectives, clocks: Clocks) -> float:
    """The share of messages that end before they were sent, by these clocks."""
    ahead = {clock.rank: clock.center_offset_ns if clock.aligned else 0.0 for clock in clocks.ranks}
    pairs = zip(
        rows.rank[rows.sends].tolist(), rows.start[rows.sends].tolist(),
        rows.rank[rows.recvs].tolist(), rows.end[rows.recvs].tolist(), strict=True,
    )  # fmt: skip
    early = [bool(start - ahead.get(a, 0) > end - ahead.get(b, 0) + _SLACK_NS) for a, start, b, end in pairs]
    return sum(early) / max(len(early), 1)


def _by_messages(rows: Collectives, results: Sequence[RankClock]) -> list[RankClock]:
    """Ranks that keep their wall clocks, by the messages that they exchange with others: one takes no time in either
    direction, so the shortest of both directions tell the offset and its error."""
    shortest: dict[tuple[int, int], int] = {}
    for send, recv in zip(rows.sends.tolist(), rows.recvs.tolist(), strict=True):
        pair = int(rows.rank[send]), int(rows.rank[recv])
        took = int(rows.end[recv] - rows.end[send])
        shortest[pair] = min(took, shortest.get(pair, took))
    fitted = {clock.rank: clock for clock in results if clock.method != "wall clock"}
    waiting = [*fitted]
    while waiting:
        a = waiting.pop()
        for clock in results:
            b = clock.rank
            if b in fitted or (a, b) not in shortest or (b, a) not in shortest:
                continue
            offset = fitted[a].center_offset_ns + (shortest[a, b] - shortest[b, a]) / 2
            error = ceil(abs(shortest[a, b] + shortest[b, a]) / 2) + (fitted[a].error_ns or 0) + 1
            fitted[b] = replace(
                clock, method="collectives", reference=fitted[a].reference, center_offset_ns=offset,
                offset_ns=round(offset), error_ns=error, aligned=abs(offset) > error,
            )  # fmt: skip
            waiting.append(b)
    return [fitted.get(clock.rank, clock) for clock in results]


def _one_clock_a_host(
    results: Sequence[RankClock], hosts: Mapping[int, str], apart: set[str]
) -> list[RankClock]:
    """Ranks of one host as far ahead as the reference, if it is there, else as their median."""
    from statistics import median_low

    main = next(clock for clock in results if clock.method == "reference")
    by_host: dict[str, list[RankClock]] = {}
    for clock in results:
        name = hosts.get(clock.rank, "")
        if name and name not in apart:
            by_host.setdefault(name, []).append(clock)
    changed: dict[int, RankClock] = {}
    for name, clocks in by_host.items():
        if len(clocks) < 2:
            continue
        if name == hosts.get(main.rank):
            shared = main
        else:
            fitted = [
                clock for clock in clocks if clock.method == "collectives" and clock.reference == main.rank
            ]
            if not fitted:
                continue
            offset = median_low(clock.center_offset_ns for clock in fitted)
            shared = next(clock for clock in fitted if clock.center_offset_ns == offset)
        for clock in clocks:
            if clock.rank == shared.rank:
                continue
            changed[clock.rank] = replace(
                shared,
                rank=clock.rank,
                method="one host",
                reference=main.rank,
                drift_ppm=shared.drift_ppm or 0.0,
                **{
                    name: getattr(clock, name)
                    for name in ("error_ns", "residual_p50_ns", "residual_p95_ns", "collectives")
                },
            )
    return [changed.get(clock.rank, clock) for clock in results]


def _at_start(clock: RankClock, start_ns: float) -> RankClock:
    """The clock with its offset at the run's start, to which the drift adds its error; if not applied, also itself."""
    unknown_ppm = (clock.drift_error_ppm or 0.0) + abs((clock.drift_ppm or 0.0) - clock.applied_drift_ppm)
    offset = clock.ahead_ns(start_ns) if clock.applied_drift_ppm else clock.center_offset_ns
    error = clock.error_ns
    if error is not None:
        error += ceil(abs(clock.center_ns - start_ns) * unknown_ppm * 1e-6)
    return replace(clock, offset_ns=round(offset), error_ns=error)


def _with_errors(clock: RankClock, fitted: Fit, i: int, p50: float) -> RankClock:
    """Errors of offset and drift, and whether the correction is applied.

    A rank that always leaves collectives a little later than the others looks like one whose clock is ahead, and
    more samples do not help. So the error is at least the median residual.
    """
    offset, drift = float(fitted.offset[i]), float(fitted.drift[i])
    error = 2 * float(fitted.offset_error[i]) + p50
    drift_error = 2 * float(fitted.drift_error[i]) + p50 / fitted.half_ns
    measured = drift_error * 1e6 < _USELESS_DRIFT_PPM
    drifts = measured and abs(drift) > drift_error
    return replace(
        clock,
        drift_ppm=drift * 1e6 if measured else None,
        applied_drift_ppm=drift * 1e6 if drifts else 0.0,
        error_ns=ceil(error) + 1,
        drift_error_ppm=drift_error * 1e6 if measured else None,
        aligned=drifts or abs(offset) > error,
        center_ns=fitted.center_ns,
        center_offset_ns=offset,
    )


def _without_error(clock: RankClock, fitted: Fit, i: int, assumed_ns: int) -> RankClock:
    """So few collectives that they fit exactly: the offset is known, its error is not."""
    offset = float(fitted.offset[i])
    return replace(
        clock, aligned=abs(offset) > assumed_ns, center_ns=fitted.center_ns, center_offset_ns=offset
    )


def load(store: Path, segments: Sequence[SegmentEntry]) -> Clocks | None:
    """The stored clocks, if they were measured from these files; else None."""
    return _KEPT.load(store, _cache_key(segments))


def save(clocks: Clocks, store: Path, segments: Sequence[SegmentEntry]) -> None:
    """Store the clocks. With a read-only store they are measured again each time."""
    _KEPT.save(store, _cache_key(segments), clocks)


def _cache_key(segments: Sequence[SegmentEntry]) -> list[tuple[int, int, str]]:
    return [(*entry.file, entry.build) for entry in segments]


ClockMode = Literal["aligned", "raw"]


@dataclass(frozen=True)
class TimeAxis:
    """The first of the files begins at `shifted_by_ns`. A file is shifted as a whole, by the clock offset at its
    middle, so durations stay as recorded."""

    clocks: Clocks
    """As measured, or the wall clocks of the hosts."""
    files: Sequence[SegmentEntry]
    """Those that have times."""
    begins: Mapping[File, int]
    """From the run's start to each file by the wall clock of its host."""
    shifted_by_ns: int = 0

    @cached_property
    def ahead(self) -> Mapping[File, int]:
        """What is taken off the wall clock of each file."""
        ahead = {}
        for entry in self.files:
            middle = self.begins[entry.file] + int(entry.manifest["end_ns"]) / 2
            ahead[entry.file] = round(self.clocks.ahead_ns(entry.rank, middle))
        return ahead

    @cached_property
    def shifts(self) -> Mapping[File, int]:
        """From the run's start to the origin of each file."""
        shifts = {file: self.begins[file] - ahead_ns for file, ahead_ns in self.ahead.items()}
        later = self.shifted_by_ns - min(shifts.values(), default=0)
        return {file: shift + later for file, shift in shifts.items()}
