"""Offset and drift of each rank's clock, with their uncertainty."""

from __future__ import annotations

from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import TOGETHER
from rankscope.ranges import as_ranges, rank_words
from rankscope.timeline.clocks import RankClock
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("offset_ns", "ns", "how far its clock is ahead of the reference clock at the start of the run"),
    Column(
        "drift_ppm",
        "",
        "how much faster its clock runs than the reference clock, in parts per million",
        decimals=2,
    ),
    Column(
        "residual_p50_ns",
        "ns",
        "half of its collectives end within this distance of the fit; null: too few to tell",
    ),
    Column("residual_p95_ns", "ns", "95 % of its collectives end within this distance of the fit"),
    Column("error_ns", "ns", "uncertainty of the offset; null: too few collectives to tell"),
    Column("drift_error_ppm", "", "uncertainty of the drift", decimals=2, minor=True),
    Column("collectives", "count", "number of collectives in the fit", minor=True),
    Column("method", "", "how its clock was placed on the common time axis", at_end=True),
)

_DISAGREE_NS = 20_000_000
"""A median residual above this suggests that the files are from different runs. Chosen; the ends of gloo's collectives
spread by at most 0.7 ms (docs/adr/0050)."""


def clocks(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank; the fit always uses all ranks and the whole recording."""
    measured = run.clocks.ranks
    shown = [clock for clock in measured if scope.has_rank(clock.rank)]
    if len(measured) < 2:
        shown = []
    rows = [
        {
            "rank": clock.rank,
            "offset_ns": None if clock.method == "wall clock" else clock.offset_ns,
            "drift_ppm": 0.0 if clock.method == "reference" else clock.drift_ppm,
            "residual_p50_ns": clock.residual_p50_ns,
            "residual_p95_ns": clock.residual_p95_ns,
            "error_ns": clock.error_ns,
            "drift_error_ppm": clock.drift_error_ppm,
            "collectives": clock.collectives,
            "method": _method(clock),
        }
        for clock in shown
    ]
    notes = _notes(run, measured)
    return Result(
        "clocks", "Clocks of the ranks", "whole file", COLUMNS, rows, _findings(measured), tuple(notes)
    )


def _method(clock: RankClock) -> str:
    if clock.method == "one host":
        return "one clock with other ranks of its host"
    if clock.method != "collectives":
        return clock.method
    if clock.error_ns is None:
        return "collectives, error unknown" if clock.aligned else "wall clock, too few collectives"
    return "collectives" if clock.aligned else "wall clock, confirmed"


def _notes(run: Run, measured: tuple[RankClock, ...]) -> list[str]:
    if len(measured) < 2:
        return [
            "only one rank was recorded: there is no other clock to compare with (rankscope profile --ranks all)"
        ]
    notes = []
    parts = {clock.reference for clock in measured if clock.method == "collectives"}
    main = next(clock.rank for clock in measured if clock.method == "reference")
    for other in sorted(parts - {main}):
        ranks = [clock.rank for clock in measured if clock.rank == other or clock.reference == other]
        notes.append(
            f"not aligned: ranks {as_ranges(sorted(ranks))} share no collective with rank {main}; they are "
            f"aligned with each other, but with rank {main} only by their wall clocks"
        )
    alone = [c.rank for c in measured if c.method == "wall clock" and c.rank not in parts]
    if alone:
        notes.append(
            f"not aligned: {rank_words(alone)}: no {', '.join(TOGETHER[:-1])} or "
            f"{TOGETHER[-1]} shared with another rank; only their wall clocks are used"
        )
    few = [clock for clock in measured if clock.method == "collectives" and clock.error_ns is None]
    if few:
        counts = sorted({clock.collectives for clock in few})
        ranks_text = rank_words([clock.rank for clock in few])
        notes.append(
            f"error not known: {ranks_text}: so few collectives ({as_ranges(counts)} per rank) fit exactly, whatever "
            "their noise; the ends of gloo's spread by 0.1 to 0.7 ms, those of NCCL's by microseconds"
        )
    if any(c.error_ns is not None and c.drift_ppm is None and c.method != "one host" for c in measured):
        notes.append(
            "drift not known: the recording is too short, or the ends of its collectives vary too much"
        )
    if any(c.error_ns is not None and not c.aligned and c.method != "one host" for c in measured):
        notes.append("offsets smaller than their error are not applied; the wall clock is used instead")
    largest = max((abs(clock.applied_drift_ppm) for clock in measured), default=0.0)
    span = max((int(entry.manifest["end_ns"]) for entry in run.timelines), default=0)
    if largest:
        error = format_rounded("ns", round(largest * 1e-6 * span / 2))
        notes.append(f"each file is shifted as a whole; drift leaves an error of at most {error} at its ends")
    return notes


def _findings(measured: tuple[RankClock, ...]) -> tuple[Finding, ...]:
    deviating = [clock for clock in measured if (clock.residual_p50_ns or 0) > _DISAGREE_NS]
    if not deviating:
        return ()
    ranks = tuple(clock.rank for clock in deviating)
    worst = max(deviating, key=lambda clock: clock.residual_p50_ns or 0)
    subject, key = f"rank {worst.rank}, the largest of all ranks", {"rank": worst.rank}
    residual = Fact("residual_p50_ns", worst.residual_p50_ns, "ns", subject, (worst.rank,), key)
    count = Fact("ranks_over_limit", len(ranks), "count", f"of {len(measured)}: {as_ranges([*ranks])}", ranks)
    limit = Fact("residual_limit_ns", _DISAGREE_NS, "ns")
    distance = format_rounded("ns", worst.residual_p50_ns or 0)
    return (
        Finding(
            "warning",
            f"Half of the collectives of rank {worst.rank} end more than {distance} from the clock fit",
            ranks=ranks,
            advice="The files may be from different runs, or have lost events: list those of the ranks",
            command=argv("rankscope query RUN", "SELECT rank, file, unix_ns FROM segments"),
            facts=(residual, count, limit),
        ),
    )
