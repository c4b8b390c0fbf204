"""A job that makes no step: where each rank stands, and which one the others wait for."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rankscope.analysis.across_ranks.recurrence import telemetry_folder
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.flight import flight_recorder
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run, open_run
from rankscope.watch.alarms import who
from rankscope.watch.hang import (
    Frame,
    Odd,
    StackDump,
    group_by_stack,
    judged_at,
    odd_ranks,
    own_frame,
    phase_of,
    read_stacks,
    stuck_ranks,
    without_step_s,
)
from rankscope.watch.rings import RankRing, has_telemetry, read_rings

COLUMNS = (
    Column("ranks", help="ranks that stand at the same place"),
    Column("count", "count", "how many they are"),
    Column("last_step", help="the lowest of their last steps"),
    Column("phase", help="what their training threads do"),
    Column("where", help="the innermost line of the program itself", title="Where"),
    Column("waiting_ns", "ns", "the longest time since a step", title="Without a step"),
    Column("stack", help="the innermost frames of the main thread, innermost first", at_end=True),
)
_NO_STACKS = "no stacks were written"


def hang(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each place where ranks stand; the finding names the odd one out."""
    folder = telemetry_folder(run)
    if folder is None:
        note = "no telemetry: start the job with rankscope profile --watch"
        return Result("hang", "Where the ranks stand", "no steps", COLUMNS, [], notes=(note,))
    return hang_in(folder, scope.ranks)


def hang_in(folder: Path, ranks: Collection[int] | None = None) -> Result:
    """The same of a run folder, which need not hold a trace."""
    rings = {
        ring.rank: ring
        for ring in (read_rings(folder, 1) if has_telemetry(folder) else [])
        if ranks is None or ring.rank in ranks
    }
    dumps = {rank: dump for rank, dump in read_stacks(folder).items() if ranks is None or rank in ranks}
    at = judged_at([*rings.values()], time.time_ns()) if rings else time.time_ns()
    stuck = stuck_ranks([*rings.values()], at)
    if not dumps and not stuck:
        limit = min((ring.about.get("hang_after_s") or 0 for ring in rings.values()), default=0)
        note = f"no rank has been without a step for {limit:.0f} s (--hang-after)"
        return Result("hang", "Where the ranks stand", "last step", COLUMNS, [], notes=(note,))
    groups = group_by_stack(dumps)
    silent = sorted(ring.rank for ring in stuck if ring.rank not in dumps)
    rows = [_row(members, frames, rings, at) for members, frames in groups]
    rows += [_row(silent, (), rings, at)] if silent else []
    recorder = _flight(folder, ranks)
    gone_on = _gone_on(dumps, rings, folder)
    headings = [
        f"stacks of {len(dumps)} ranks: {dump.heading.lstrip('# ')}" for dump in [*dumps.values()][:1]
    ]
    recorded = [f"flight recorder: {note}" for note in (recorder.notes if recorder else ())]
    notes = [*headings, *gone_on, *recorded]
    odd = odd_ranks(stuck, at) if stuck else None
    finding = _finding(odd, groups, recorder, over=bool(gone_on) and not stuck)
    return Result("hang", "Where the ranks stand", "last step", COLUMNS, rows, (finding,), tuple(notes))


def _row(
    members: Sequence[int], frames: Sequence[Frame], rings: dict[int, RankRing], at: int
) -> dict[str, Any]:
    own_rings = [rings[rank] for rank in members if rank in rings]
    phases = dict.fromkeys(phase_of(ring) for ring in own_rings)
    return {
        "ranks": list(members),
        "count": len(members),
        "last_step": min((ring.last_step for ring in own_rings), default=None),
        "phase": ", ".join(phases) or None,
        "where": str(own_frame(frames) or _NO_STACKS),
        "waiting_ns": round(max((without_step_s(ring, at) for ring in own_rings), default=0) * 1e9),
        "stack": " < ".join(map(str, frames)) or None,
    }


def _gone_on(dumps: dict[int, StackDump], rings: dict[int, RankRing], folder: Path) -> list[str]:
    """Ranks that have made a step since they wrote their stacks."""
    moved = [
        rank
        for rank in dumps
        if rank in rings
        and rings[rank].last_end_unix_ns
        > (folder / FOLDER / f"stacks-rank-{rank:05d}.txt").stat().st_mtime_ns
    ]
    return [f"{rank_words(moved)} went on afterwards"] if moved else []


def _flight(folder: Path, ranks: Collection[int] | None) -> Result | None:
    """What the flight recorder's dumps of this hang say. They are read as any dumps, into a store beside them."""
    files = sorted((folder / FOLDER).glob("flight-rank-*.json"))
    if not files:
        return None
    chosen = None if ranks is None else frozenset(ranks)
    return flight_recorder(open_run(files), Scope(chosen, whole_file=True))


Groups = Sequence[tuple[list[int], tuple[Frame, ...]]]


def _finding(odd: Odd | None, groups: Groups, recorder: Result | None, *, over: bool) -> Finding:
    """`over`: the job has gone on since."""
    judged = recorder.findings if recorder else ()
    recorded = next((finding for finding in judged if finding.severity == "critical"), None)
    ranks, why = _named(odd, groups, recorded)
    evidence = [f"{who(members)}: {own_frame(frames) or _NO_STACKS}." for members, frames in groups[-3:]]
    if odd is not None:
        evidence.append(f"Telemetry: {who(odd.ranks)} {odd.why}." if odd.ranks else f"Telemetry: {odd.why}.")
    if recorded is not None:
        evidence.append(f"Flight recorder: {recorded.title}.")
    title = f"{who(ranks)} hold{'s' * (len(ranks) == 1)} up the job: {why}" if ranks else "no rank stands out"
    return Finding(
        "info" if over else "critical",
        title[0].upper() + title[1:],
        " ".join(evidence),
        ranks=tuple(ranks),
        hint="Look at what its main thread does (column stack), and at its log."
        if ranks
        else "All ranks stand at the same place: check the network and the devices.",
    )


def _named(odd: Odd | None, groups: Groups, recorded: Finding | None) -> tuple[list[int], str]:
    """The flight recorder knows who did not join; else the step and the phase tell; else the smallest group does."""
    if recorded is not None and recorded.ranks:
        return list(recorded.ranks), recorded.why or recorded.title
    if odd is not None and odd.ranks:
        return odd.ranks, odd.why
    members, frames = groups[-1] if groups else ([], ())
    if len(groups) > 1 and len(members) < len(groups[-2][0]):
        return members, f"alone at {own_frame(frames) or _NO_STACKS}"
    return [], ""
