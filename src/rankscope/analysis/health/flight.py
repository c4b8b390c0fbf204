"""Find the ranks that caused a hang, from the flight-recorder dumps of all ranks."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.flight_state import (
    Group,
    Mismatch,
    Unpaired,
    read_groups,
    read_mismatches,
    read_unpaired,
)
from rankscope.model import FLIGHT
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.timeline.run import Run

COLUMNS = (
    Column("group", help="name of the process group"),
    Column("seq", help="sequence number in the group"),
    Column("kind", help="kind of collective"),
    Column(
        "missing_ranks",
        title="Missing",
        help="ranks that the others wait for: they did not join, or did not finish what others finished",
    ),
    Column("state", help="what is wrong: see docs/reports/flight_recorder.md"),
    Column("finished_ranks", title="Finished", help="ranks that have finished it", minor=True),
    Column("waiting_ranks", title="Waiting", help="ranks that have called it and wait"),
    Column("bytes", "bytes", "input size of a rank", per_row_unit=True, minor=True),
    Column("description", help="description of the process group", at_end=True, minor=True),
    Column("last_completed", help="last completed sequence number of each rank", at_end=True, minor=True),
)

MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED = "mismatch", "not finished", "no dump", "not joined"
NOT_STARTED, NO_PARTNER, WAITING = "not started", "no partner", "waiting"
STATES = (MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED, NOT_STARTED, NO_PARTNER, WAITING)
"""Strongest evidence first."""


@dataclass(frozen=True)
class Problem:
    """A collective, by sequence number, that is not completed or does not match between the ranks."""

    state: str
    group: str
    description: str
    seq: int
    kind: str
    missing: list[int]
    finished: list[int]
    waiting: list[int]
    first: bool = True
    """Whether it is the first of its group; later ones may be a consequence."""
    detail: str = ""


def flight_recorder(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each group and sequence number with a problem; the finding names the suspect ranks."""
    notes = left_out(run, scope)
    where = scope.only_ranks().where()
    ((entries,),) = run.rows(f"SELECT count(*) FROM flight WHERE {where}") if run.has(FLIGHT) else ((0,),)
    if not entries:
        notes.append(
            "no flight-recorder dumps: to record them, set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the job's environment, and TORCH_NCCL_DEBUG_INFO_TEMP_FILE to a path"
        )
        return Result("flight_recorder", "Missing ranks", "whole file", COLUMNS, [], notes=tuple(notes))
    headers = [entry.manifest["header"] for entry in run.used if entry.format == "flight"]
    notes += [
        f"dumps of version {version} are newer than any known here: read with what is known of 2.10"
        for version in sorted(
            {header["unknown_version"] for header in headers if "unknown_version" in header}
        )
    ]
    groups = read_groups(run, where, scope.ranks)
    problems = find_problems(
        groups, read_mismatches(run, where), read_unpaired(run, where, groups), run, where
    )
    sizes = _sizes(run, where)
    rows = [_row(problem, groups, sizes) for problem in problems]
    without_dump = sorted({rank for group in groups for rank in group.without_dump})
    if without_dump:
        notes.append(
            f"no dump of rank{'s' * (len(without_dump) > 1)} {as_ranges(without_dump)}, named in other dumps"
        )
    findings = _findings(problems, run, where)
    return Result("flight_recorder", "Missing ranks", "whole file", COLUMNS, rows, findings, tuple(notes))


def find_problems(
    groups: list[Group], mismatches: list[Mismatch], unpaired: list[Unpaired], run: Run, where: str
) -> list[Problem]:
    """For each group the first unfinished number, the first number not joined by all, and the first mismatch."""
    states = _states(run, where)
    by_name = {group.name: group for group in groups}
    problems = []
    for mismatch in mismatches:
        group = by_name.get(mismatch.group)
        if (
            group is not None
            and group.first_unfinished is not None
            and mismatch.seq >= group.first_unfinished
        ):
            problems.append(
                _problem(MISMATCH, group, mismatch.seq, mismatch.kinds, mismatch.minority, mismatch.detail)
            )
    kinds = _kinds(run, where)
    for group in groups:
        seq = group.first_unfinished
        if seq is None:
            continue
        kind = kinds.get((group.name, seq), "?")
        first = _first_problem(group, seq, kind, states)
        if group.without_dump:
            problems.append(_problem(NO_DUMP, group, seq, kind, group.without_dump))
        if not group.without_dump or first.state != WAITING:
            problems.append(first)
        later = group.first_not_joined
        if later is not None and later > seq:
            kind = kinds.get((group.name, later), "?")
            problems.append(_problem(NOT_JOINED, group, later, kind, group.absent(later), first=False))
    for end in unpaired:
        arrow = f"{end.rank}->{end.peer}" if end.kind == "send" else f"{end.rank}<-{end.peer}"
        problems.append(
            Problem(
                NO_PARTNER,
                end.group,
                end.description,
                end.seq,
                f"{end.kind} {arrow}",
                [end.peer],
                [],
                [end.rank],
            )
        )
    return sorted(problems, key=lambda t: (STATES.index(t.state), not t.first, -len(t.missing)))


def _first_problem(group: Group, seq: int, kind: str, states: dict[tuple[str, int, int], str]) -> Problem:
    finished, absent, waiting = group.finished(seq), group.absent(seq), group.waiting(seq)
    if absent:
        return _problem(NOT_JOINED, group, seq, kind, absent)
    if finished:
        return _problem(NOT_FINISHED, group, seq, kind, waiting)
    idle = [rank for rank in waiting if states.get((group.name, seq, rank)) == "scheduled"]
    if 0 < len(idle) < len(waiting):
        return _problem(NOT_STARTED, group, seq, kind, idle)
    return _problem(WAITING, group, seq, kind, [])


def _problem(
    state: str, group: Group, seq: int, kind: str, missing: list[int], detail: str = "", first: bool = True
) -> Problem:
    waiting = [rank for rank in group.waiting(seq) if rank not in missing]
    return Problem(
        state,
        group.name,
        group.description,
        seq,
        kind,
        sorted(missing),
        group.finished(seq),
        waiting,
        first,
        detail,
    )


def _states(run: Run, where: str) -> dict[tuple[str, int, int], str]:
    """The state of each unfinished collective."""
    rows = run.rows(
        f"SELECT group_name, seq, rank, state FROM flight WHERE NOT is_p2p AND state <> 'completed' AND {where}"
    )
    return {(group, seq, rank): state for group, seq, rank, state in rows}


def _kinds(run: Run, where: str) -> dict[tuple[str, int], str]:
    rows = run.rows(
        "SELECT group_name, seq, mode(kind) FROM flight WHERE NOT is_p2p AND state <> 'completed' "
        f"AND {where} GROUP BY group_name, seq"
    )
    return {(group, seq): kind for group, seq, kind in rows}


def _first_calls(run: Run, where: str) -> dict[tuple[str, int], int]:
    """When each collective was first called."""
    rows = run.rows(
        "SELECT group_name, coalesce(p2p_seq, seq), min(created_ns) FROM flight "
        f"WHERE created_ns IS NOT NULL AND {where} GROUP BY ALL"
    )
    return {(group, seq): when for group, seq, when in rows}


def _sizes(run: Run, where: str) -> dict[tuple[str, int], int | None]:
    """The most frequent size of each unfinished collective."""
    rows = run.rows(
        "SELECT group_name, coalesce(p2p_seq, seq), mode(bytes) FROM flight "
        f"WHERE state <> 'completed' AND {where} GROUP BY ALL"
    )
    return {(group, seq): size for group, seq, size in rows}


def _row(problem: Problem, groups: list[Group], sizes: dict[tuple[str, int], int | None]) -> dict[str, Any]:
    group = next((group for group in groups if group.name == problem.group), None)
    return {
        "group": problem.group,
        "seq": problem.seq,
        "kind": problem.kind,
        "missing_ranks": problem.missing,
        "state": problem.state,
        "finished_ranks": problem.finished,
        "waiting_ranks": problem.waiting,
        "bytes": sizes.get((problem.group, problem.seq)),
        "description": problem.description or None,
        "last_completed": _last_completed(group) if group else None,
    }


def _last_completed(group: Group) -> str:
    """'20529 (12, 14), 20536 (13, 15)'."""
    by_number: dict[int | None, list[int]] = {}
    for rank, progress in sorted(group.progress.items()):
        by_number.setdefault(progress.completed, []).append(rank)
    known = sorted(by_number.items(), key=lambda item: -1 if item[0] is None else item[0])
    return ", ".join(f"{'?' if seq is None else seq} ({as_ranges(ranks)})" for seq, ranks in known)


def suspect_ranks(problems: list[Problem]) -> tuple[list[int], list[Problem], bool]:
    """The suspect ranks, the problems that they are missing in, and whether they wait for each other in a cycle.

    Ranks with a mismatch, or that did not finish what others finished, come first. Otherwise it is the ranks that did
    not join or wrote no dump, except those that wait for another missing rank themselves.
    """
    strong = [t for t in problems if t.state in (MISMATCH, NOT_FINISHED) and t.missing]
    if strong:
        return sorted({rank for t in strong for rank in t.missing}), strong, False
    for states in ((NO_DUMP, NOT_JOINED), (NOT_STARTED,), (NO_PARTNER,)):
        evidence = [t for t in problems if t.state in states and t.first and t.missing]
        if evidence:
            missing = {rank for t in evidence for rank in t.missing}
            roots = missing - {rank for t in evidence for rank in t.waiting}
            return sorted(roots or missing), evidence, not roots
    return [], [], False


_WHY = {
    MISMATCH: "they run different collectives under one sequence number: the program took another path there",
    NOT_FINISHED: "their device or process may have stopped: look for CUDA errors in their logs, Xid in kernel logs",
    NO_DUMP: "they wrote no dump: they may have been killed, crashed or never started; check their logs first",
    NOT_JOINED: "their host code did not reach it: check what they did last (py-spy dump, DataLoader, an exception)",
    NOT_STARTED: "their devices have not reached it: earlier work on the same stream may not have ended",
    NO_PARTNER: "they have not called the other side of a send or recv",
}


def _findings(problems: list[Problem], run: Run, where: str) -> tuple[Finding, ...]:
    suspects, evidence, cycle = suspect_ranks(problems)
    if not suspects:
        return (_no_suspect(problems),)
    against = [t for t in evidence if set(t.missing) & set(suspects)]
    first_call = _first_calls(run, where)
    first = min(
        against, key=lambda t: (-len(set(t.missing) & set(suspects)), first_call.get((t.group, t.seq), 0))
    )
    who = f"rank{'s' * (len(suspects) > 1)} {as_ranges(suspects)}"
    title = f"{who} {'wait for each other' if cycle else 'stopped the job'}: {first.state} at {first.kind} {first.seq}"
    sentences = [_sentence(first)]
    others = len({t.group for t in against} - {first.group})
    if others:
        sentences.append(
            f"{others} more group{'s wait' if others > 1 else ' waits'} for one or more of these ranks."
        )
    sentences += [_sentence(t) for t in problems if not t.first and set(t.missing) & set(suspects)][:1]
    began, ended, timeout = _when(run, where, suspects)
    whose = "the ranks that stopped the job"
    figures = (
        Fact("suspect_ranks", len(suspects), "count", whose, tuple(suspects)),
        *_problem_facts(first),
        Fact("waiting_groups", others, "count", "other groups that wait for these ranks"),
        Fact("timeout_ns", timeout, "ns", "the shortest of the collectives that did not end"),
    )
    return (
        Finding(
            "critical",
            title,
            " ".join(sentences),
            ranks=tuple(suspects),
            span=(began, ended) if began is not None and ended is not None else None,
            hint=f"{who.capitalize()}: {_WHY[first.state]}.",
            facts=tuple(fact for fact in figures if fact.value is not None),
        ),
    )


def _no_suspect(problems: list[Problem]) -> Finding:
    if not problems:
        return Finding("ok", "no rank is missing", "Every recorded collective has ended on every rank.")
    first = problems[0]
    return Finding(
        "warning",
        f"{len(problems)} collective{'s wait' if len(problems) > 1 else ' waits'}, and no rank is missing",
        f"{_sentence(first)} All members have called it.",
        hint="No rank is late: check the network and the devices (NCCL_DEBUG=INFO, kernel logs of the nodes).",
        facts=(Fact("waiting_collectives", len(problems), "count", "all groups"), *_problem_facts(first)),
    )


def _problem_facts(problem: Problem) -> tuple[Fact, ...]:
    """What the sentence about a collective states."""
    key, where = {"group": problem.group, "seq": problem.seq}, f"group {problem.group}"
    return (
        Fact("seq", problem.seq, "", where, row=key),
        Fact("state", problem.state, "", where, row=key),
        Fact("missing_ranks", len(problem.missing), "count", where, tuple(problem.missing), key),
        Fact("waiting_ranks", len(problem.waiting), "count", where, tuple(problem.waiting), key),
    )


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {as_ranges(ranks)}"


def _wait(ranks: list[int]) -> str:
    """'rank 3 waits', 'ranks 0-2 wait'."""
    return f"{_ranks(ranks)} wait{'s' * (len(ranks) == 1)}" if ranks else "others wait"


def _sentence(problem: Problem) -> str:
    about = f" ({problem.description})" if problem.description else ""
    place = f"In group {problem.group}{about}, {problem.kind} {problem.seq}"
    missing, who = as_ranges(problem.missing), f"rank{'s' * (len(problem.missing) > 1)}"
    if problem.state == MISMATCH:
        return f"{place}: {problem.detail}."
    if problem.state == NOT_FINISHED:
        return f"{place}: {who} {missing} did not finish what {_ranks(problem.finished)} finished."
    if problem.state == NO_DUMP:
        return f"{place}: {who} {missing} wrote no dump; {_wait(problem.waiting)}."
    if problem.state in (NOT_JOINED, NO_PARTNER):
        return f"{place}: {who} {missing} did not join; {_wait(problem.waiting)}."
    if problem.state == NOT_STARTED:
        return f"{place}: it has started on {_ranks(problem.waiting)}, but not on {who} {missing}."
    return f"{place}: {_wait(problem.waiting)}."


def _when(run: Run, where: str, suspects: list[int]) -> tuple[int | None, int | None, int | None]:
    """When the suspects got stuck (else when any rank did), the last record, and the timeout."""
    mine = f"rank IN ({', '.join(map(str, suspects))})"
    ((began, anybody, ended, timeout),) = run.rows(
        f"SELECT min(created_ns) FILTER (state <> 'completed' AND {mine}), "
        "min(created_ns) FILTER (state <> 'completed'), max(created_ns), "
        f"min(timeout_ms) FILTER (state <> 'completed') * 1000000 FROM flight WHERE {where}"
    )
    return (began if began is not None else anybody), ended, timeout
