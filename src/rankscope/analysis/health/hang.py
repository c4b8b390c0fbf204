"""A job that makes no step: where each rank stands, which one the others wait for, and why: one verdict from all that
there is (stacks, torch's flight recorder, telemetry, states of processes, logs)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.health.flight import NO_DUMP, NOT_JOINED, WAIT_FOR_EACH_OTHER, flight_recorder
from rankscope.analysis.health.telemetry import telemetry_folder
from rankscope.capture.telemetry_ring import FOLDER
from rankscope.collective_kinds import TOGETHER, kind_of
from rankscope.errors import RankscopeError
from rankscope.inapp.hang_evidence import Frame, is_stale, own_frame, processes_path, stacks_path
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.text.run_words import shell_word
from rankscope.timeline.collectives.groups import parse_ranks
from rankscope.timeline.run import Run, open_run
from rankscope.watch.alarms import Alarm, utc, who
from rankscope.watch.hang import (
    ENDED,
    Odd,
    StackDump,
    failure_of,
    failures,
    group_by_stack,
    judged_at,
    odd_ranks,
    parse_stacks,
    phase_of,
    read_processes,
    read_stacks,
    stuck_ranks,
    without_step_s,
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
_NO_STACKS = "no stacks were written"
_SHOWN_FRAMES = 5
_FEW_DUMPS = 32
"""So many are read before worker processes have begun."""
_WRITING_S = 15.0
"""How long an alarm waits for what the ranks write, after the time of a hang."""


def hang(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each place where ranks stand; the finding names the odd one out."""
    folder = telemetry_folder(run)
    if folder is None:
        note = "no telemetry: start the job with rankscope profile --watch"
        findings = tuple(_not_joined(run, pending_calls(run, scope)))
        return Result("hang", "Where the ranks stand", "no steps", COLUMNS, [], findings, (note,))
    return hang_in(folder, scope.ranks, run if run.store.parent == folder / FOLDER else None)


@dataclass(frozen=True)
class PendingCall:
    """The first of a rank's last calls of collectives, of which no kernel ran."""

    group: str
    members: str
    kind: str


@kept_per_rank("pending_call", PendingCall, any_window=True)
def pending_calls(run: Run, scope: Scope) -> dict[int, PendingCall]:
    """Of the ranks that have one. The profiler waits for the GPU where it stops, unless that never ends."""
    rows = run.rows(f"""
        WITH calls AS (
            SELECT rank, segment, id, start_ns, max(start_ns) FILTER (device_ns > 0) OVER (PARTITION BY rank) AS last_ns
            FROM slices WHERE name = 'record_param_comms' AND {scope.where()}
        )
        SELECT rank, args->>'Process Group Name', args->>'Process Group Ranks', collective
        FROM calls JOIN events USING (rank, segment, id) WHERE start_ns > last_ns
        QUALIFY start_ns = min(start_ns) OVER (PARTITION BY rank) ORDER BY rank
    """)
    return {rank: PendingCall(*map(str, call)) for rank, *call in rows}


def _not_joined(run: Run, pending: dict[int, PendingCall]) -> Iterator[Finding]:
    """The recording ends in a collective that some ranks of its group have called, and the others have not."""
    rows = run.collectives
    for call in dict.fromkeys(pending.values()):
        group = call.group, parse_ranks(call.members)
        mine = [number for number, each in enumerate(rows.groups) if (each.name, each.ranks) == group]
        ran = Counter(rows.rank[np.isin(rows.group, mine)].tolist())
        members = {*(group[1] or ())}.intersection(run.ranks) - cut_ranks(run)
        waiting = tuple(rank for rank in sorted(members) if pending.get(rank) == call)
        missing = tuple(sorted(members - {*pending}))
        if (
            kind_of(call.kind) in TOGETHER
            and waiting
            and missing
            and len({ran[r] for r in waiting + missing}) == 1
        ):
            who, others = rank_words(missing), rank_words(waiting)
            yield Finding(
                "critical",
                f"{who.capitalize()} did not join the last {kind_of(call.kind)} of group {call.group}: {others} wait",
                f"each ran {ran[missing[0]]:,} collectives of the group; then {others} called another one, "
                "which did not run until the recording ended",
                missing,
                hint="Look at its last calls. rankscope profile --watch records where each rank stands.",
            )


@dataclass(frozen=True)
class Evidence:
    """All that a run folder has about a hang."""

    rings: dict[int, RankRing]
    dumps: dict[int, StackDump]
    processes: dict[int, dict[str, Any]]
    """What each rank wrote about its workers, the ranks of its host, and logs."""
    at_unix_ns: int
    stuck: list[RankRing]
    recorder: Result | None
    """The judgement of torch's flight recorders."""
    gone_on: list[int]
    """Ranks that have made a step since they wrote their stacks."""

    def process_of(self, rank: int) -> dict[str, Any]:
        """The process of a rank that no longer writes, as another rank of its host saw it; {} of other ranks."""
        seen = [content["ranks"].get(rank) for content in self.processes.values()]
        return next((process for process in seen if process and process.get("stale")), {})

    def frames(self, rank: int) -> tuple[Frame, ...]:
        return self.dumps[rank].main if rank in self.dumps else ()


def read_evidence(folder: Path, ranks: Collection[int] | None, opened: Run | None) -> Evidence:
    def chosen(contents: dict[int, Any]) -> dict[int, Any]:
        return {rank: content for rank, content in contents.items() if ranks is None or rank in ranks}

    rings = chosen({ring.rank: ring for ring in read_rings(folder, 1)} if has_telemetry(folder) else {})
    dumps = chosen(read_stacks(folder))
    at = judged_at([*rings.values()], time.time_ns()) if rings else time.time_ns()
    gone_on = [rank for rank in dumps if rank in rings and _went_on(rings[rank])]
    stuck = stuck_ranks([*rings.values()], at)
    if not stuck:  # the job was ended before its time was over, or the ranks wrote before torch's timeout
        stuck = [rings[rank] for rank in dumps if rank in rings and rank not in gone_on]
    recorder = _flight(opened or folder / FOLDER, ranks)
    processes = {  # not those of an earlier hang
        rank: content
        for rank, content in chosen(read_processes(folder)).items()
        if rank not in rings or content["unix_ns"] > rings[rank].last_end_unix_ns
    }
    return Evidence(rings, dumps, processes, at, stuck, recorder, gone_on)


def _went_on(ring: RankRing) -> bool:
    return ring.last_end_unix_ns > stacks_path(ring.path.parent, ring.number).stat().st_mtime_ns


def hang_in(folder: Path, ranks: Collection[int] | None = None, opened: Run | None = None) -> Result:
    """The same of a run folder, which need not hold a trace; `opened`: its flight recorder's dumps."""
    evidence = read_evidence(folder, ranks, opened)
    rings, at = evidence.rings, evidence.at_unix_ns
    ended = failures([*rings.values()], at) if rings else []
    if not evidence.dumps and not evidence.stuck:
        limit = min((ring.about.get("hang_after_s") or 0 for ring in rings.values()), default=0)
        note = f"no rank has been without a step for {limit:.0f} s (--hang-after)"
        findings = tuple(_failed(alarm) for alarm in ended)
        return Result("hang", "Where the ranks stand", "last step", COLUMNS, [], findings, (note,))
    groups = group_by_stack(evidence.dumps)
    silent = sorted(ring.rank for ring in evidence.stuck if ring.rank not in evidence.dumps)
    rows = [_row(members, frames, rings, at) for members, frames in groups]
    rows += [_row(silent, (), rings, at)] if silent else []
    notes = [
        f"stacks of {len(evidence.dumps)} ranks: {dump.heading.lstrip('# ')}"
        for dump in [*evidence.dumps.values()][:1]
    ]
    notes += [f"{rank_words(evidence.gone_on)} went on afterwards"] if evidence.gone_on else []
    notes += [f"flight recorder: {note}" for note in (evidence.recorder.notes if evidence.recorder else ())]
    findings = (_verdict(evidence, groups), *map(_failed, ended))
    if any(failure_of(rings[rank]) for alarm in ended for rank in alarm.ranks):
        findings = findings[::-1]  # the others wait for a rank that has gone
    return Result("hang", "Where the ranks stand", "last step", COLUMNS, rows, findings, tuple(notes))


def explain_hang(run: Path, alarm: Alarm) -> Sequence[Alarm]:
    """The alarm of a hang with the verdict in its text; none while the ranks are still writing what they know."""
    rings = read_rings(run, 1)
    written_ns = {path: path.stat().st_mtime_ns for _, path in rank_files(run, "rank-*.hang")}
    at = judged_at(rings, time.time_ns())
    writing = [
        ring
        for ring in rings
        if not is_stale(ring.header, ring.about, at)
        and ring.header.phase != ENDED
        and written_ns.get(processes_path(ring.path.parent, ring.number), 0) < ring.last_end_unix_ns
    ]
    limit = max((float(ring.about.get("hang_after_s") or 0) for ring in rings), default=0.0)
    if writing and alarm.per_step < (limit + _WRITING_S) * 1e9:
        return []
    finding = _kept_verdict(run, max(written_ns.values(), default=0))
    if finding is None or not finding.ranks:
        return [alarm]
    what = f"{alarm.what.partition(';')[0]}; {finding.title[0].lower()}{finding.title[1:]}"
    return [
        replace(
            alarm,
            ranks=finding.ranks,
            what=what,
            hint=f"{finding.hint} Details: rankscope stats {shell_word(run)} -r hang",
        )
    ]


@lru_cache(maxsize=4)
def _kept_verdict(run: Path, _written_ns: int) -> Finding | None:
    """Of these files: a watcher asks every second."""
    return next(iter(hang_in(run).findings), None)


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
        "stack": " < ".join(map(str, frames[:_SHOWN_FRAMES])) or None,
    }


def _flight(dumps: Run | Path, ranks: Collection[int] | None) -> Result | None:
    """What the flight recorder's dumps of this hang say. They are read as any dumps, into a store beside them."""
    if isinstance(dumps, Path):
        count = len([*dumps.glob("flight-rank-*.json")])
        if not count:
            return None
        try:
            dumps = open_run([dumps], jobs=1 if count <= _FEW_DUMPS else None)
        except RankscopeError as error:  # damaged, or no place for a store: the rest is judged without them
            note = f"not read: {error.message}"
            return Result("flight_recorder", "", "", (), [], notes=(note,))
    chosen = None if ranks is None else frozenset(ranks)
    return flight_recorder(dumps, Scope(chosen, whole_file=True))


Groups = Sequence[tuple[list[int], tuple[Frame, ...]]]


def _failed(alarm: Alarm) -> Finding:
    return Finding("critical", alarm.text[0].upper() + alarm.text[1:], "", ranks=alarm.ranks, hint=alarm.hint)


def _verdict(evidence: Evidence, groups: Groups) -> Finding:
    """Who is missing, what it does and where, since when, and where the others wait."""
    judged = evidence.recorder.findings if evidence.recorder else ()
    recorded = next((finding for finding in judged if finding.severity == "critical"), None)
    odd = odd_ranks(evidence.stuck, evidence.at_unix_ns) if evidence.stuck else None
    ranks, why, hint = _named(evidence, odd, groups, recorded)
    sentences = [f"{who(members)}: {own_frame(frames) or _NO_STACKS}." for members, frames in groups[-3:]]
    if evidence.stuck:
        since = min(ring.last_end_unix_ns for ring in evidence.stuck)
        sentences.append(f"Without a step since {utc(since)}.")
    if odd is not None:
        sentences.append(f"Telemetry: {who(odd.ranks)} {odd.why}." if odd.ranks else f"Telemetry: {odd.why}.")
    if recorded is not None:
        sentences.append(f"Flight recorder: {recorded.title}. {recorded.evidence}")
    sentences += _logged(evidence, ranks)
    return Finding(
        "info" if evidence.gone_on and not evidence.stuck else "critical",
        _title(evidence, groups, ranks, why),
        " ".join(sentences),
        ranks=tuple(ranks),
        hint=hint,
    )


def _title(evidence: Evidence, groups: Groups, ranks: Sequence[int], why: str) -> str:
    if not ranks:
        return "No rank stands out"
    # A rank that does not write any more has not written its last steps either.
    steps = [ring.last_step for ring in evidence.stuck if not evidence.process_of(ring.rank)]
    after = f" after step {min(steps)}" if steps else ""
    lines = dict.fromkeys(str(own_frame(evidence.frames(rank))) for rank in ranks if evidence.frames(rank))
    at = f", at {' and '.join([*lines][:2])}" * bool(lines)
    does = "wait for each other" if why == _CYCLE else f"hold{'s' * (len(ranks) == 1)} up the job"
    title = f"{who(ranks)} {does}{after}: {why}{at}"
    waiting = [(members, frames) for members, frames in groups if not {*members} & {*ranks}]
    if waiting:
        members, frames = waiting[0]
        title += f"; {who(members)} wait{'s' * (len(members) == 1)} at {own_frame(frames)}"
    return title[0].upper() + title[1:]


_CYCLE = "each group has called another collective first"
_LOOK = "Look at what its main thread does (column stack), and at its log."
_UNEVEN = (
    "All ranks must make the same number of steps: look at the lengths of their data, and at early stops."
)
_STATES = {
    "gone": "its process has ended",
    "Z": "its process has ended",
    "T": "its process is stopped",
    "t": "its process is stopped by a debugger",
}
_STATE_HINTS = {
    "gone": "It was killed, or crashed in C: look for its exit code in the launcher's log, for OOM and Xid in dmesg.",
    "T": "Something sent it SIGSTOP: a scheduler that suspends the job, or a terminal. kill -CONT lets it go on.",
}


def _named(
    evidence: Evidence, odd: Odd | None, groups: Groups, recorded: Finding | None
) -> tuple[list[int], str, str]:
    """The ranks that the others wait for, what they do, and what to do about it.

    A process that is gone or stopped explains everything; the flight recorder knows who did not join; else the step
    and the phase tell; else the smallest group of stacks does.
    """
    unfinished = [rank for rank, ring in evidence.rings.items() if ring.header.phase != ENDED]
    states = {rank: evidence.process_of(rank).get("state", "") for rank in unfinished}
    broken = [rank for rank, state in states.items() if state in _STATES]
    if broken:
        state = states[broken[0]].replace("Z", "gone")
        return broken, _STATES[state], _STATE_HINTS.get(state, _LOOK)
    if early := [rank for rank, ring in evidence.rings.items() if _finished_early(evidence, ring)]:
        return early, "has ended its training, and the others have not", _UNEVEN
    ranks, why, hint = [], "", _LOOK
    if recorded is not None and recorded.ranks:
        ranks, why = list(recorded.ranks), recorded.why or recorded.title
        if WAIT_FOR_EACH_OTHER in recorded.title:
            return ranks, _CYCLE, "Call the collectives of all groups in the same order on every rank."
        hint = _LOOK if why.startswith((NOT_JOINED, NO_DUMP)) else recorded.hint
    elif odd is not None and odd.ranks:
        ranks, why = odd.ranks, odd.why
    elif len(groups) > 1 and len(groups[-1][0]) < len(groups[-2][0]):
        ranks, why = groups[-1][0], "it is alone there"
    if not ranks:
        return [], "", "All ranks stand at the same place: check the network and the devices."
    for explain in (_stuck_worker, _keeps_lock):
        for rank in ranks if len(ranks) == 1 else ():
            if explained := explain(evidence, rank):
                return ranks, *explained
    return ranks, why, hint


def _finished_early(evidence: Evidence, ring: RankRing) -> bool:
    """Whether a rank ended while ranks of its role go on. One that was part of the hang, and was ended, has stacks."""
    is_peer = ring.role in {other.role for other in evidence.stuck}
    as_usual = ring.header.phase == ENDED and not ring.off and not failure_of(ring)
    return is_peer and as_usual and ring.rank not in evidence.dumps


Explanation = tuple[str, str] | None


def _stuck_worker(evidence: Evidence, rank: int) -> Explanation:
    """It waits for a DataLoader, whose worker is stopped, or stuck at a line of the dataset."""
    ring = evidence.rings.get(rank)
    if ring is None or phase_of(ring) != "data loading":
        return None
    for worker in evidence.processes[rank]["children"] if rank in evidence.processes else ():
        who_waits = f"waits for its data loader, whose worker (process {worker.get('pid')})"
        if state := _STATES.get(str(worker.get("state"))):
            return f"{who_waits} {state.removeprefix('its process ')}", _LOOK
        line = own_frame(stack[0].main) if (stack := parse_stacks(str(worker.get("stack", "")))) else None
        if line is not None and "torch/utils/data" not in line.file:
            return f"{who_waits} is at {line}", "Look at what the dataset does there: files, locks, network."
    return (
        "waits for its data loader",
        "Look at what the dataset reads: files, locks, network; and at its workers.",
    )


def _keeps_lock(evidence: Evidence, rank: int) -> Explanation:
    """No thread of it runs, but its process does."""
    process = evidence.process_of(rank)
    if process.get("state") == "D":
        why = f"its process waits in the kernel ({process.get('waits_in') or 'unknown function'})"
        return why, "A file system or a device does not answer: look at the kernel's log of its node."
    if process.get("state") not in ("R", "S"):
        return None
    return (
        "in C code that keeps Python's lock",
        "Look at what is called there: a regular expression, an extension.",
    )


def _logged(evidence: Evidence, ranks: Sequence[int]) -> Iterator[str]:
    """Lines of the kernel's and of the job's log."""
    contents = evidence.processes
    if kernel := dict.fromkeys(line for content in contents.values() for line in content["kernel"]):
        yield f"Kernel log: {'; '.join([*kernel][-3:])}."
    for rank in (rank for rank in ranks[:1] if rank in contents):
        path, lines = contents[rank]["log"]
        if lines:
            yield f"Last error in {Path(path).name} of rank {rank}: {lines[-1]}"
