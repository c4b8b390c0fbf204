"""A job that makes no step: where each rank stands, and which one the others wait for (watch.hang judges)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.health.flight import judged_flight
from rankscope.analysis.health.pending import PendingCall, pending_calls, telemetry_folder
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.collective_kinds import TOGETHER, kind_of
from rankscope.errors import RankscopeError
from rankscope.inapp.hang_evidence import Frame, is_stale, own_frame, processes_path, stacks_path
from rankscope.ranges import rank_words
from rankscope.timeline.collectives.entries import parse_ranks
from rankscope.timeline.run import Run, open_run
from rankscope.watch.alarms import utc, who
from rankscope.watch.hang import (
    Evidence,
    Verdict,
    failures,
    judged_at,
    read_processes,
    read_stacks,
    stuck_ranks,
)
from rankscope.watch.rings import RankRing, has_telemetry, rank_files, read_rings

COLUMNS = (
    Column("ranks", help="ranks that stand at the same place"),
    Column("count", "count", "how many they are"),
    Column("last_step", help="the lowest of their last steps"),
    Column("phase", help="what their training threads do"),
    Column("where", help="the innermost line of the program itself", title="Where"),
    Column("waiting_ns", "ns", "the longest time since a step", title="Without a step"),
    Column("stack", help="the innermost frames of the main thread, innermost first", at_end=True),
)
_TITLE = "Where the ranks stand"
_NO_STACKS = "no stacks were written"
_SHOWN_FRAMES = 5
_FEW_DUMPS = 32
"""So many are read before worker processes have begun."""
_WRITING_S = 15.0
"""How long an alarm waits for what the ranks write, after the time of a hang."""


def hang(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each place where ranks stand; the finding names who holds up the others."""
    folder = telemetry_folder(run)
    if folder is None:
        note = "no telemetry: start the job with rankscope profile --watch"
        findings = tuple(_not_joined(run, pending_calls(run, scope)))
        return Result("hang", _TITLE, "no steps", COLUMNS, [], findings, (note,))
    return hang_in(folder, scope.ranks, run if run.store.parent == folder / FOLDER else None)


def _not_joined(run: Run, pending: dict[int, PendingCall]) -> Iterator[Finding]:
    """The recording ends in a collective that some ranks of its group have called, and the others have not."""
    rows = run.collectives
    for call in dict.fromkeys(pending.values()):
        group, kind = (call.group, parse_ranks(call.members)), kind_of(call.kind)
        mine = [number for number, each in enumerate(rows.groups) if (each.name, each.ranks) == group]
        ran = Counter(rows.rank[np.isin(rows.group, mine)].tolist())
        members = {*(group[1] or ())}.intersection(run.ranks) - cut_ranks(run)
        waiting = tuple(rank for rank in sorted(members) if pending.get(rank) == call)
        missing = tuple(sorted(members - {*pending}))
        ran_alike = len({ran[rank] for rank in waiting + missing}) == 1
        if kind in TOGETHER and waiting and missing and ran_alike:
            verdict = Verdict(missing, f"not joined at the last {kind} of group {call.group}")
            yield Finding(
                "critical",
                verdict.title(waiting=f"{who(waiting)} wait{'s' * (len(waiting) == 1)}"),
                ranks=missing,
                facts=(
                    Fact("collectives", ran[missing[0]], "count", "each, before the one that did not run"),
                ),
                advice="Look at its last calls; record where each rank stands",
                command=argv("rankscope profile --watch"),
            )


def hang_in(folder: Path, ranks: Collection[int] | None = None, opened: Run | None = None) -> Result:
    """The same of a run folder, which need not hold a trace; `opened`: its flight recorder's dumps."""
    recorder, recorded = _flight(opened or folder / FOLDER, ranks)
    rings = {ring.rank: ring for ring in (read_rings(folder, 1) if has_telemetry(folder) else ())}
    if ranks is not None:
        rings = {rank: ring for rank, ring in rings.items() if rank in ranks}
    at = judged_at([*rings.values()], time.time_ns()) if rings else time.time_ns()
    evidence = _with_files(Evidence(rings, at, stuck_ranks([*rings.values()], at)), folder, recorded, ranks)
    if (
        not evidence.stuck
    ):  # the job was ended before its time was over, or the ranks wrote before torch's timeout
        ended = [rings[rank] for rank in evidence.dumps if rank in rings and rank not in evidence.gone_on]
        evidence = replace(evidence, stuck=ended)
    failed = failures([*rings.values()], at) if rings else []
    findings = [
        Finding("critical", alarm.text[0].upper() + alarm.text[1:], ranks=alarm.ranks, advice=alarm.hint)
        for alarm in failed
    ]
    if not evidence.dumps and not evidence.stuck:
        limit = min((ring.about.get("hang_after_s") or 0 for ring in rings.values()), default=0)
        note = f"no rank has been without a step for {limit:.0f} s (--hang-after)"
        return Result("hang", _TITLE, "last step", COLUMNS, [], tuple(findings), (note,))
    silent = sorted(ring.rank for ring in evidence.stuck if ring.rank not in evidence.dumps)
    groups = evidence.groups + ([(silent, ())] if silent else [])
    notes = [
        f"stacks of {len(evidence.dumps)} ranks: {dump.heading.lstrip('# ')}"
        for dump in [*evidence.dumps.values()][:1]
    ]
    notes += [f"{rank_words(evidence.gone_on)} went on afterwards"] if evidence.gone_on else []
    notes += [f"flight recorder: {note}" for note in (recorder.notes if recorder else ())]
    # The others wait for a rank that has gone.
    has_gone = any(rings[rank].failure for alarm in failed for rank in alarm.ranks)
    findings.insert(len(findings) if has_gone else 0, _finding(evidence, recorder))
    rows = [_row(members, frames, evidence) for members, frames in groups]
    return Result("hang", _TITLE, "last step", COLUMNS, rows, tuple(findings), tuple(notes))


def _with_files(
    evidence: Evidence, folder: Path, recorded: Verdict | None, ranks: Collection[int] | None = None
) -> Evidence:
    """With what the ranks wrote about this hang, and not about an earlier one."""
    rings = evidence.rings
    dumps = {rank: dump for rank, dump in read_stacks(folder).items() if ranks is None or rank in ranks}
    processes = {
        rank: content
        for rank, content in read_processes(folder).items()
        if (ranks is None or rank in ranks)
        and (rank not in rings or content["unix_ns"] > rings[rank].last_end_unix_ns)
    }
    gone_on = [rank for rank in dumps if rank in rings and _went_on(rings[rank])]
    return replace(evidence, dumps=dumps, processes=processes, gone_on=gone_on, recorded=recorded)


def _went_on(ring: RankRing) -> bool:
    return ring.last_end_unix_ns > stacks_path(ring.path.parent, ring.number).stat().st_mtime_ns


def explain_hang(run: Path, evidence: Evidence) -> Evidence | None:
    """For an alarm: with what the ranks wrote; None while they are still writing."""
    rings = evidence.rings.values()
    written_ns = {path: path.stat().st_mtime_ns for _, path in rank_files(run, "rank-*.hang")}
    is_writing = any(
        not is_stale(ring.header, ring.about, evidence.at_unix_ns)
        and not ring.has_ended
        and written_ns.get(processes_path(ring.path.parent, ring.number), 0) < ring.last_end_unix_ns
        for ring in rings
    )
    limit = max((float(ring.about.get("hang_after_s") or 0) for ring in rings), default=0.0)
    longest = max(ring.without_step_s(evidence.at_unix_ns) for ring in evidence.stuck)
    if is_writing and longest < limit + _WRITING_S:
        return None
    return _with_files(evidence, run, _kept_flight(run, max(written_ns.values(), default=0))[1])


@lru_cache(maxsize=4)
def _kept_flight(run: Path, _written_ns: int) -> tuple[Result | None, Verdict | None]:
    """Of these files: a watcher asks every second."""
    return _flight(run / FOLDER, None)


def _row(members: Sequence[int], frames: Sequence[Frame], evidence: Evidence) -> dict[str, Any]:
    rings = [evidence.rings[rank] for rank in members if rank in evidence.rings]
    waiting_s = max((ring.without_step_s(evidence.at_unix_ns) for ring in rings), default=0)
    return {
        "ranks": list(members),
        "count": len(members),
        "last_step": min((ring.last_step for ring in rings), default=None),
        "phase": ", ".join(dict.fromkeys(ring.phase for ring in rings)) or None,
        "where": str(own_frame(frames) or _NO_STACKS),
        "waiting_ns": round(waiting_s * 1e9),
        "stack": " < ".join(map(str, frames[:_SHOWN_FRAMES])) or None,
    }


def _flight(dumps: Run | Path, ranks: Collection[int] | None) -> tuple[Result | None, Verdict | None]:
    """What the flight recorder's dumps of this hang say. They are read as any dumps, into a store beside them."""
    if isinstance(dumps, Path):
        count = len([*dumps.glob("flight-rank-*.json")])
        if not count:
            return None, None
        try:
            dumps = open_run([dumps], jobs=1 if count <= _FEW_DUMPS else None)
        except RankscopeError as error:  # damaged, or no place for a store: the rest is judged without them
            note = f"not read: {error.message}"
            return Result("hang.flight_recorder", "", "", (), [], notes=(note,)), None
    chosen = None if ranks is None else frozenset(ranks)
    return judged_flight(dumps, Scope(chosen, whole_file=True))


def _finding(evidence: Evidence, recorder: Result | None) -> Finding:
    """Who is missing, what it does and where, since when, and where the others wait."""
    verdict = evidence.verdict()
    facts = [
        Fact("stands_at", str(own_frame(frames) or _NO_STACKS), "", who(members))
        for members, frames in evidence.groups[-3:]
    ]
    facts += _logged(evidence, verdict.ranks)
    if recorder and evidence.recorded:
        facts.append(Fact("flight_recorder", evidence.recorded.why, "", who(evidence.recorded.ranks)))
        facts += [fact for fact in recorder.findings[0].facts if fact.quantity == "collective"][:1]
    if evidence.stuck:
        since = utc(min(ring.last_end_unix_ns for ring in evidence.stuck))
        by_rings = evidence.telemetry()
        facts.append(Fact("since", since, "", "without a step"))
        facts.append(Fact("telemetry", by_rings.why, "", who(by_rings.ranks) if by_rings.ranks else ""))
    return Finding(
        "info" if evidence.gone_on and not evidence.stuck else "critical",
        evidence.title(verdict),
        ranks=verdict.ranks,
        facts=tuple(facts),
        advice=verdict.advice,
    )


def _logged(evidence: Evidence, ranks: Sequence[int]) -> Iterator[Fact]:
    """Lines of the kernel's and of the job's log."""
    contents = evidence.processes
    if kernel := dict.fromkeys(line for content in contents.values() for line in content["kernel"]):
        yield Fact("log", "; ".join([*kernel][-3:]), "", "kernel log")
    for rank in (rank for rank in ranks[:1] if rank in contents):
        path, lines = contents[rank]["log"]
        if lines:
            yield Fact("log", lines[-1], "", f"last error in {Path(path).name} of rank {rank}")
