"""How the clocks of the ranks relate, and how well that is known."""

from __future__ import annotations

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.collective_kinds import TOGETHER
from rankscope.ranges import as_ranges
from rankscope.store.clocks.alignment import RankClock
from rankscope.store.run import Run
from rankscope.units import format_ns

COLUMNS = (
    Column("rank"),
    Column("offset_ns", "ns", "by how much its clock is ahead of the reference's at the run's start"),
    Column("drift_ppm", "", "by how much it runs fast, in millionths", decimals=2),
    Column("residual_p50_ns", "ns", "half of its collectives end within this of the fit"),
    Column("residual_p95_ns", "ns", "95 % of them do"),
    Column("error_ns", "ns", "the offset is known to this much"),
    Column("drift_error_ppm", "", "the drift is known to this much", decimals=2, minor=True),
    Column("collectives", "count", "how many tell", minor=True),
    Column("method", "", "what puts it on the axis", at_end=True),
)

_DISAGREE_NS = 20_000_000
"""Ends of one collective that lie farther apart than this, for half of the collectives, are not of one run."""


def clocks(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a rank; the fit is always over all ranks and the whole recording."""
    measured = run.clocks.ranks
    shown = [clock for clock in measured if scope.ranks is None or clock.rank in scope.ranks]
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
    notes = [*left_out(run, scope), *_notes(run, measured)]
    return Result(
        "clocks", "Clocks of the ranks", "whole file", COLUMNS, rows, _findings(measured), tuple(notes)
    )


def _method(clock: RankClock) -> str:
    if clock.method != "collectives":
        return clock.method
    return "collectives" if clock.aligned else "wall clock, confirmed"


def _notes(run: Run, measured: tuple[RankClock, ...]) -> list[str]:
    if len(measured) < 2:
        return [
            "one rank: there is no other clock to compare with (rankscope profile --ranks all records all)"
        ]
    notes = []
    parts = {clock.reference for clock in measured if clock.method == "collectives"}
    main = next(clock.rank for clock in measured if clock.method == "reference")
    for other in sorted(parts - {main}):
        ranks = [clock.rank for clock in measured if clock.rank == other or clock.reference == other]
        notes.append(
            f"not aligned: ranks {as_ranges(sorted(ranks))} share no collective with rank {main}; they are "
            f"aligned with each other, and only their wall clocks put them beside it"
        )
    alone = [c.rank for c in measured if c.method == "wall clock" and c.rank not in parts]
    if alone:
        notes.append(
            f"not aligned: rank{'s' * (len(alone) > 1)} {as_ranges(alone)}: no {', '.join(TOGETHER[:-1])} or "
            f"{TOGETHER[-1]} shared with another rank; only the wall clock tells"
        )
    if any(clock.method == "collectives" and clock.drift_ppm is None for clock in measured):
        notes.append("drift: the recording is too short, or its ends spread too much, to tell it from 0")
    if any(clock.method == "collectives" and not clock.aligned for clock in measured):
        notes.append("offsets smaller than their error are not applied: there the wall clock is as good")
    largest = max((abs(clock.applied_drift_ppm) for clock in measured), default=0.0)
    span = max((int(entry.manifest["end_ns"]) for entry in run.timelines), default=0)
    if largest:
        apart = format_ns(round(largest * 1e-6 * span / 2))
        notes.append(f"each file is moved as a whole; drift leaves at most {apart} at its ends")
    return notes


def _findings(measured: tuple[RankClock, ...]) -> tuple[Finding, ...]:
    strangers = [
        clock.rank
        for clock in measured
        if clock.residual_p50_ns is not None and clock.residual_p50_ns > _DISAGREE_NS
    ]
    if not strangers:
        return ()
    worst = max(clock.residual_p50_ns or 0 for clock in measured)
    return (
        Finding(
            "warning",
            f"Ends of the same collective lie {format_ns(worst)} apart (ranks {as_ranges(strangers)})",
            "ranks leave a collective together, so these may be files of different runs, or with lost events",
            ranks=tuple(strangers),
            hint="See which file each rank's is: rankscope query RUN 'SELECT rank, file, unix_ns FROM segments'",
        ),
    )
