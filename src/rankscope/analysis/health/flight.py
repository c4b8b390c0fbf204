"""Who is missing: the flight recorder's dumps of all ranks, read together after a job hung."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.health.flight_state import (
    Group,
    Mismatch,
    Unpaired,
    read_groups,
    read_mismatches,
    read_unpaired,
)
from rankscope.ranges import as_ranges
from rankscope.store.run import Run

COLUMNS = (
    Column("group", help="name of the process group"),
    Column("seq", help="sequence number in the group"),
    Column("kind", help="which collective"),
    Column(
        "missing_ranks",
        title="Missing",
        help="whom the others wait for: they did not join, or not finish what others finished",
    ),
    Column("state", help="what is wrong; see docs/reports/flight.md"),
    Column("finished_ranks", title="Finished", help="done with it", minor=True),
    Column("waiting_ranks", title="Waiting", help="have asked for it, and wait"),
    Column("bytes", "bytes", "what a rank puts in", per_row_unit=True, minor=True),
    Column("description", help="of the process group", at_end=True, minor=True),
    Column("last_completed", help="sequence number each rank got to", at_end=True, minor=True),
)

MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED = "mismatch", "not finished", "no dump", "not joined"
NOT_STARTED, NO_PARTNER, WAITING = "not started", "no partner", "waiting"
STATES = (MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED, NOT_STARTED, NO_PARTNER, WAITING)
"""Strongest evidence first."""


@dataclass(frozen=True)
class Trouble:
    """One sequence number that did not end as it should."""

    state: str
    group: str
    description: str
    seq: int
    kind: str
    missing: list[int]
    finished: list[int]
    waiting: list[int]
    first: bool = True
    """The group's first; later ones may follow from it."""
    detail: str = ""


def flight(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row a group and sequence number in trouble; the guilty are named in the finding."""
    where = scope.only_ranks().where()
    groups = read_groups(run, where, scope.ranks)
    troubles = find_troubles(
        groups, read_mismatches(run, where), read_unpaired(run, where, groups), run, where
    )
    about = _about(run, where)
    rows = [_row(trouble, groups, about) for trouble in troubles]
    notes = left_out(run, scope)
    ((entries,),) = run.rows(f"SELECT count(*) FROM flight WHERE {where}")
    if not entries:
        notes.append(
            "no flight-recorder dumps; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the job's "
            "environment record them, TORCH_NCCL_DEBUG_INFO_TEMP_FILE says where"
        )
    silent = sorted({rank for group in groups for rank in group.silent})
    if silent:
        notes.append(
            f"no dump of rank{'s' * (len(silent) > 1)} {as_ranges(silent)}, which the others' groups list"
        )
    findings = _findings(troubles, run, where) if entries else ()
    return Result("flight", "Who is missing", "whole file", COLUMNS, rows, findings, tuple(notes))


def find_troubles(
    groups: list[Group], mismatches: list[Mismatch], unpaired: list[Unpaired], run: Run, where: str
) -> list[Trouble]:
    """Of each group its first unfinished number, its first one not joined by all, and its first mismatch."""
    states = _states(run, where)
    by_name = {group.name: group for group in groups}
    troubles = []
    for mismatch in mismatches:
        group = by_name.get(mismatch.group)
        if (
            group is not None
            and group.first_unfinished is not None
            and mismatch.seq >= group.first_unfinished
        ):
            troubles.append(_of(MISMATCH, group, mismatch.seq, mismatch.kinds, mismatch.odd, mismatch.detail))
    kinds = _kinds(run, where)
    for group in groups:
        seq = group.first_unfinished
        if seq is None:
            continue
        kind = kinds.get((group.name, seq), "?")
        first = _first_trouble(group, seq, kind, states)
        if group.silent:
            troubles.append(_of(NO_DUMP, group, seq, kind, group.silent))
        if not group.silent or first.state != WAITING:
            troubles.append(first)
        later = group.first_not_joined
        if later is not None and later > seq:
            kind = kinds.get((group.name, later), "?")
            troubles.append(_of(NOT_JOINED, group, later, kind, group.absent(later), first=False))
    for end in unpaired:
        arrow = f"{end.rank}->{end.peer}" if end.kind == "send" else f"{end.rank}<-{end.peer}"
        troubles.append(
            Trouble(
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
    return sorted(troubles, key=lambda t: (STATES.index(t.state), not t.first, -len(t.missing)))


def _first_trouble(group: Group, seq: int, kind: str, states: dict[tuple[str, int, int], str]) -> Trouble:
    finished, absent, waiting = group.finished(seq), group.absent(seq), group.waiting(seq)
    if absent:
        return _of(NOT_JOINED, group, seq, kind, absent)
    if finished:
        return _of(NOT_FINISHED, group, seq, kind, waiting)
    idle = [rank for rank in waiting if states.get((group.name, seq, rank)) == "scheduled"]
    if 0 < len(idle) < len(waiting):
        return _of(NOT_STARTED, group, seq, kind, idle)
    return _of(WAITING, group, seq, kind, [])


def _of(
    state: str, group: Group, seq: int, kind: str, missing: list[int], detail: str = "", first: bool = True
) -> Trouble:
    waiting = [rank for rank in group.waiting(seq) if rank not in missing]
    return Trouble(
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
    """Of what is unfinished."""
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


def _asked(run: Run, where: str) -> dict[tuple[str, int], int]:
    """When each was first asked for."""
    rows = run.rows(
        "SELECT group_name, coalesce(p2p_seq, seq), min(created_ns) FROM flight "
        f"WHERE created_ns IS NOT NULL AND {where} GROUP BY ALL"
    )
    return {(group, seq): when for group, seq, when in rows}


def _about(run: Run, where: str) -> dict[tuple[str, int], int | None]:
    """The usual size of each."""
    rows = run.rows(
        "SELECT group_name, coalesce(p2p_seq, seq), mode(bytes) FROM flight "
        f"WHERE state <> 'completed' AND {where} GROUP BY ALL"
    )
    return {(group, seq): size for group, seq, size in rows}


def _row(trouble: Trouble, groups: list[Group], about: dict[tuple[str, int], int | None]) -> dict[str, Any]:
    group = next((group for group in groups if group.name == trouble.group), None)
    return {
        "group": trouble.group,
        "seq": trouble.seq,
        "kind": trouble.kind,
        "missing_ranks": trouble.missing,
        "state": trouble.state,
        "finished_ranks": trouble.finished,
        "waiting_ranks": trouble.waiting,
        "bytes": about.get((trouble.group, trouble.seq)),
        "description": trouble.description or None,
        "last_completed": _last_completed(group) if group else None,
    }


def _last_completed(group: Group) -> str:
    """'20529 (12, 14), 20536 (13, 15)'."""
    by_number: dict[int | None, list[int]] = {}
    for rank, progress in sorted(group.progress.items()):
        by_number.setdefault(progress.completed, []).append(rank)
    known = sorted(by_number.items(), key=lambda item: -1 if item[0] is None else item[0])
    return ", ".join(f"{'?' if seq is None else seq} ({as_ranges(ranks)})" for seq, ranks in known)


def guilty_ranks(troubles: list[Trouble]) -> tuple[list[int], list[Trouble], bool]:
    """Whom to look at, what speaks against them, and whether they wait for each other in a circle.

    Who gave a number to something else, or did not finish what its peers finished, is at fault. Else those who did
    not join, or left nothing; one who waits in turn for somebody who is missing is a victim.
    """
    strong = [t for t in troubles if t.state in (MISMATCH, NOT_FINISHED) and t.missing]
    if strong:
        return sorted({rank for t in strong for rank in t.missing}), strong, False
    for states in ((NO_DUMP, NOT_JOINED), (NOT_STARTED,), (NO_PARTNER,)):
        evidence = [t for t in troubles if t.state in states and t.first and t.missing]
        if evidence:
            missing = {rank for t in evidence for rank in t.missing}
            roots = missing - {rank for t in evidence for rank in t.waiting}
            return sorted(roots or missing), evidence, not roots
    return [], [], False


_WHY = {
    MISMATCH: "they run different collectives under one number: the program took another path there",
    NOT_FINISHED: "their device or process stopped: look for CUDA errors in their logs and Xid in the kernel log",
    NO_DUMP: "they wrote no dump: killed, crashed or never started; look at their logs first",
    NOT_JOINED: "their hosts are busy elsewhere: look at what they did last (py-spy dump, DataLoader, an exception)",
    NOT_STARTED: "their devices have not come to it: work before it on the same stream does not end",
    NO_PARTNER: "they have not posted the other side of a send or recv",
}


def _findings(troubles: list[Trouble], run: Run, where: str) -> tuple[Finding, ...]:
    guilty, evidence, circle = guilty_ranks(troubles)
    if not guilty:
        return (_nobody(troubles),)
    against = [t for t in evidence if set(t.missing) & set(guilty)]
    asked = _asked(run, where)
    first = min(against, key=lambda t: (-len(set(t.missing) & set(guilty)), asked.get((t.group, t.seq), 0)))
    who = f"rank{'s' * (len(guilty) > 1)} {as_ranges(guilty)}"
    title = f"{who} {'wait for each other' if circle else 'stopped the job'}: {first.state} at {first.kind} {first.seq}"
    sentences = [_sentence(first)]
    others = len({t.group for t in against} - {first.group})
    if others:
        sentences.append(f"The same in {others} more group{'s' * (others > 1)}.")
    sentences += [_sentence(t) for t in troubles if not t.first and set(t.missing) & set(guilty)][:1]
    began, ended, timeout = _when(run, where, guilty)
    return (
        Finding(
            "critical",
            title,
            " ".join(sentences),
            ranks=tuple(guilty),
            span=(began, ended) if began is not None and ended is not None else None,
            hint=f"{who.capitalize()}: {_WHY[first.state]}.",
            cost_ns=timeout or 0,
        ),
    )


def _nobody(troubles: list[Trouble]) -> Finding:
    if not troubles:
        return Finding(
            "ok", "nobody is missing", "Every collective that was recorded has ended on every rank."
        )
    first = troubles[0]
    return Finding(
        "warning",
        f"{len(troubles)} collectives wait, and nobody is missing",
        f"{_sentence(first)} All members have asked for it.",
        hint="Nobody is late: suspect the network or a device. NCCL_DEBUG=INFO and the nodes' kernel logs tell more.",
    )


def _sentence(trouble: Trouble) -> str:
    about = f" ({trouble.description})" if trouble.description else ""
    place = f"In group {trouble.group}{about}, {trouble.kind} {trouble.seq}"
    missing, who = as_ranges(trouble.missing), f"rank{'s' * (len(trouble.missing) > 1)}"
    if trouble.state == MISMATCH:
        return f"{place}: {trouble.detail}."
    if trouble.state == NOT_FINISHED:
        return f"{place}: {who} {missing} did not finish what {as_ranges(trouble.finished)} finished."
    if trouble.state == NO_DUMP:
        return f"{place}: {who} {missing} left no dump, {as_ranges(trouble.waiting)} wait."
    if trouble.state in (NOT_JOINED, NO_PARTNER):
        return f"{place}: {who} {missing} never joined, {as_ranges(trouble.waiting) or 'others'} wait."
    if trouble.state == NOT_STARTED:
        return f"{place}: it has not started on {who} {missing}, it has on {as_ranges(trouble.waiting)}."
    return f"{place}: {as_ranges(trouble.waiting)} wait."


def _when(run: Run, where: str, guilty: list[int]) -> tuple[int | None, int | None, int | None]:
    """When the guilty got stuck (else when anybody did), the last record of all, and what the timeout cost."""
    mine = f"rank IN ({', '.join(map(str, guilty))})"
    ((began, anybody, ended, timeout),) = run.rows(
        f"SELECT min(created_ns) FILTER (state <> 'completed' AND {mine}), "
        "min(created_ns) FILTER (state <> 'completed'), max(created_ns), "
        f"min(timeout_ms) FILTER (state <> 'completed') * 1000000 FROM flight WHERE {where}"
    )
    return (began if began is not None else anybody), ended, timeout
