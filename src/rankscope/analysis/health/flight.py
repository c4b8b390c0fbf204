"""Find the ranks that caused a hang, from the flight-recorder dumps of all ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from typing import Any

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.model import FLIGHT
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.watch.hang import Verdict

SAME_SIZE_KINDS = (
    "all_reduce", "allreduce", "broadcast", "reduce", "barrier",
    "_all_gather_base", "all_gather_into_tensor", "_reduce_scatter_base", "reduce_scatter_tensor",
)  # fmt: skip
"""Kinds for which all ranks have inputs of equal size."""

_UNFINISHED = "NOT is_p2p AND state <> 'completed'"


@dataclass(frozen=True)
class Progress:
    """One rank in one group. The collectives of a group run in the order of their sequence numbers."""

    completed: int | None
    """Everything up to this number is completed; None when the dump does not contain it."""
    enqueued: int
    """The last number that the rank has called; -1 when none is known."""


@dataclass
class Group:
    """One process group, from the dumps of all its members."""

    name: str
    description: str
    members: list[int]
    progress: dict[int, Progress] = field(default_factory=dict)
    """For the members with a dump."""

    dumps_complete: bool = True
    """False when most ranks have no dump: then probably only some dumps were collected."""

    @property
    def without_dump(self) -> list[int]:
        """Members without a dump, where most ranks have one."""
        return [r for r in self.members if r not in self.progress] if self.dumps_complete else []

    def finished(self, seq: int) -> list[int]:
        return [r for r, p in self.progress.items() if p.completed is not None and p.completed >= seq]

    def absent(self, seq: int) -> list[int]:
        """Members that have neither called nor finished this number."""
        done = set(self.finished(seq))
        return [rank for rank, p in self.progress.items() if p.enqueued < seq and rank not in done]

    def waiting(self, seq: int) -> list[int]:
        out = {*self.finished(seq), *self.absent(seq)}
        return [rank for rank in self.progress if rank not in out]

    @property
    def first_unfinished(self) -> int | None:
        """The first number that some rank has called and not every rank has finished."""
        completed = [p.completed for p in self.progress.values() if p.completed is not None]
        if not completed:
            return None
        low = min(completed) + 1
        return low if any(p.enqueued >= low for p in self.progress.values()) else None

    @property
    def first_not_joined(self) -> int | None:
        """The first number that some ranks have called and others have not."""
        asked = [p.enqueued for p in self.progress.values() if p.enqueued >= 0]
        return min(asked) + 1 if asked and min(asked) < max(asked) else None


def _dumped(run: Run, where: str) -> set[int]:
    """The ranks that wrote a dump."""
    return {rank for (rank,) in run.rows(f"SELECT DISTINCT rank FROM flight_groups WHERE {where}")}


def _listed_members(run: Run, where: str) -> list[tuple[str, list[int]]]:
    """The members of each group, as each dump lists them."""
    return run.rows(
        f"SELECT DISTINCT group_name, ranks FROM flight_groups WHERE ranks IS NOT NULL AND {where}"
    )


def read_groups(run: Run, where: str, only: Collection[int] | None = None) -> list[Group]:
    """Groups with more than one member and at least one record, by name; of the ranks in `only`."""
    dumped = _dumped(run, where)
    members: dict[str, set[int]] = {}
    for name, ranks in _listed_members(run, where):
        members.setdefault(name, set()).update(rank for rank in ranks if only is None or rank in only)
    groups: dict[str, Group] = {}
    for rank, name, description, completed, enqueued in run.rows(_PROGRESS.format(where=where)):
        group = groups.setdefault(name, Group(name, description or "", sorted(members.get(name, ()))))
        if rank not in group.members:  # old dumps do not list the members
            group.members = sorted({*group.members, rank})
        group.progress[rank] = Progress(completed, enqueued)
    everyone = {rank for ranks in members.values() for rank in ranks}
    for group in groups.values():
        group.dumps_complete = len(everyone - dumped) <= len(dumped)
        for rank in group.members:
            if rank in dumped and rank not in group.progress:
                group.progress[rank] = Progress(None, -1)
    several = (group for group in groups.values() if len(group.members) > 1)
    return sorted(several, key=lambda g: (int(g.name), "") if g.name.isdigit() else (1 << 60, g.name))


# The status of a group in a dump counts collectives and point-to-point operations together, so it is used only where
# the group has no point-to-point operations. A dump may contain all operations of the ring, or only unfinished ones.
_PROGRESS = """
    WITH entries AS (
        SELECT rank, group_name, any_value(group_description) AS description, any_value(local_group) AS local_group,
               bool_or(is_p2p) AS has_p2p, max(seq) FILTER (NOT is_p2p) AS last,
               min(seq) FILTER (NOT is_p2p AND state <> 'completed') AS unfinished,
               max(seq) FILTER (NOT is_p2p AND state = 'completed') AS completed
        FROM flight WHERE {where} GROUP BY rank, group_name
    )
    SELECT e.rank, e.group_name, e.description,
           coalesce(e.unfinished - 1, CASE WHEN NOT e.has_p2p THEN s.last_completed END, e.completed),
           coalesce(greatest(e.last, CASE WHEN NOT e.has_p2p THEN s.last_enqueued END), -1)
    FROM entries e
    LEFT JOIN (FROM flight_groups WHERE last_enqueued IS NOT NULL) s
        ON s.rank = e.rank AND s.local_group = e.local_group
    WHERE e.last IS NOT NULL ORDER BY e.rank
"""


MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED = "mismatch", "not finished", "no dump", "not joined"
NOT_STARTED, NO_PARTNER, WAITING = "not started", "no partner", "waiting"
STATES = (MISMATCH, NOT_FINISHED, NO_DUMP, NOT_JOINED, NOT_STARTED, NO_PARTNER, WAITING)
"""Strongest evidence first."""


@dataclass(frozen=True)
class Problem:
    """A collective, by sequence number, that is not completed or does not match between the ranks."""

    state: str
    group: Group
    seq: int
    kind: str
    missing: list[int]
    first: bool = True
    """Whether it is the first of its group; later ones may be a consequence."""
    detail: str = ""

    @property
    def finished(self) -> list[int]:
        return self.group.finished(self.seq)

    @property
    def waiting(self) -> list[int]:
        if self.state == NO_PARTNER:
            return [rank for rank in self.group.members if rank not in self.missing]
        return [rank for rank in self.group.waiting(self.seq) if rank not in self.missing]


def mismatches(run: Run, where: str, groups: Iterable[Group]) -> Iterator[Problem]:
    """The first number of each group under which its members run different collectives, unless all had finished it."""
    same, by_name = sql_texts(SAME_SIZE_KINDS), {group.name: group for group in groups}
    rows = run.rows(f"""
        WITH asked AS (
            SELECT group_name, seq, rank, kind, CASE WHEN kind IN ({same}) THEN concat_ws(' ', kind, dtype, input_sizes)
                   ELSE kind END AS what
            FROM flight WHERE NOT is_p2p AND {where}
        ), differing AS (
            SELECT group_name, seq FROM asked GROUP BY ALL HAVING count(DISTINCT what) > 1
        )
        SELECT a.group_name, a.seq, a.what, any_value(a.kind), list(DISTINCT a.rank ORDER BY a.rank)
        FROM asked a
        JOIN (SELECT group_name, min(seq) AS seq FROM differing GROUP BY group_name) d
            ON d.group_name = a.group_name AND d.seq = a.seq
        GROUP BY ALL ORDER BY a.group_name, len(list(DISTINCT a.rank)) DESC, a.what
    """)
    by_group: dict[tuple[str, int], list[tuple[str, str, list[int]]]] = {}
    for name, seq, *side in rows:
        by_group.setdefault((name, seq), []).append((side[0], side[1], side[2]))
    for (name, seq), sides in by_group.items():
        group = by_name.get(name)
        if group is None or group.first_unfinished is None or seq < group.first_unfinished:
            continue
        # The ranks that differ from the majority; all ranks when there is no majority.
        largest = max(len(ranks) for *_, ranks in sides)
        tied = sum(len(ranks) == largest for *_, ranks in sides) > 1
        minority = [rank for *_, ranks in sides if tied or len(ranks) < largest for rank in ranks]
        detail = "; ".join(
            f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {what}" for what, _, ranks in sides
        )
        kinds = " / ".join(dict.fromkeys(kind for _, kind, _ in sides))
        yield Problem(MISMATCH, group, seq, kinds, sorted(minority), detail=detail)


def unpaired(run: Run, where: str, groups: Iterable[Group]) -> Iterator[Problem]:
    """Unfinished sends and recvs without one on the other side, by group and pair of ranks. The two sides
    number their operations separately, so pairs are matched."""
    members = {group.name: group.members for group in groups}
    for name, ranks in _listed_members(run, where):
        members.setdefault(name, sorted(ranks))
    rows = run.rows(f"""
        SELECT group_name, rank, peer, kind, min(p2p_seq), any_value(group_description) FROM flight
        WHERE is_p2p AND state <> 'completed' AND peer IS NOT NULL AND {where} GROUP BY ALL ORDER BY ALL
    """)
    open_ends = {
        (group, rank, members[group][peer], kind): (seq, description or "")
        for group, rank, peer, kind, seq, description in rows
        if group in members and peer < len(members[group])
    }
    dumped, other = _dumped(run, where), {"send": "recv", "recv": "send"}
    for (group, rank, peer, kind), (seq, description) in open_ends.items():
        if kind in other and peer in dumped and (group, peer, rank, other[kind]) not in open_ends:
            call = f"{kind} {rank}{'->' if kind == 'send' else '<-'}{peer}"
            yield Problem(NO_PARTNER, Group(group, description, [rank, peer]), seq, call, [peer])


COLUMNS = (
    Column("group", help="name of the process group"),
    Column("seq", help="sequence number in the group"),
    Column("kind", help="kind of collective"),
    Column(
        "missing_ranks",
        title="Missing",
        help="ranks that the others wait for: they did not join, or did not finish what others finished",
    ),
    Column("state", help="what is wrong: see docs/reports/hang.md"),
    Column("finished_ranks", title="Finished", help="ranks that have finished it", minor=True),
    Column("waiting_ranks", title="Waiting", help="ranks that have called it and wait"),
    Column("bytes", "bytes", "input size of a rank", decimals=0, minor=True),
    Column("description", help="description of the process group", at_end=True, minor=True),
    Column("last_completed", help="last completed sequence number of each rank", at_end=True, minor=True),
)


def flight_recorder(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each group and sequence number with a problem; the finding names the suspect ranks."""
    return judged_flight(run, scope)[0]


def judged_flight(run: Run, scope: Scope) -> tuple[Result, Verdict | None]:
    """The report, and its verdict if it names ranks."""
    notes = left_out(run, scope)
    where = scope.only_ranks().where()
    name, title, window = "hang.flight_recorder", "Missing ranks", "whole file"
    ((entries,),) = run.rows(f"SELECT count(*) FROM flight WHERE {where}") if run.has(FLIGHT) else ((0,),)
    if not entries:
        notes.append(
            "no flight-recorder dumps: to record them, set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
            "TORCH_NCCL_DUMP_ON_TIMEOUT=1 in the job's environment, and TORCH_NCCL_DEBUG_INFO_TEMP_FILE "
            "to a path"
        )
        return Result(name, title, window, COLUMNS, [], notes=tuple(notes)), None
    headers = [entry.manifest["header"] for entry in run.used if entry.format == "flight"]
    unknown = sorted({header["unknown_version"] for header in headers if "unknown_version" in header})
    notes += [
        f"dumps of version {version} are newer than any known here: read with what is known of 2.10"
        for version in unknown
    ]
    groups = read_groups(run, where, scope.ranks)
    problems = find_problems(run, where, groups)
    sizes = _by_call(run, where, _NUMBER, "mode(bytes)", "state <> 'completed'")
    rows = [_row(problem, sizes) for problem in problems]
    without_dump = sorted({rank for group in groups for rank in group.without_dump})
    if without_dump:
        notes.append(f"no dump of {rank_words(without_dump)}, named in other dumps")
    verdict, finding = _judged(problems, run, where)
    return Result(name, title, window, COLUMNS, rows, (finding,), tuple(notes)), verdict


def find_problems(run: Run, where: str, groups: list[Group]) -> list[Problem]:
    """For each group the first unfinished number, the first number not joined by all, and the first mismatch."""
    rows = run.rows(f"SELECT group_name, seq, rank, state FROM flight WHERE {_UNFINISHED} AND {where}")
    states = {(group, seq, rank): state for group, seq, rank, state in rows}
    problems = [*mismatches(run, where, groups), *unpaired(run, where, groups)]
    kinds = _by_call(run, where, "seq", "mode(kind)", _UNFINISHED)
    for group in groups:
        seq = group.first_unfinished
        if seq is None:
            continue
        kind = kinds.get((group.name, seq), "?")
        first = _first_problem(group, seq, kind, states)
        if group.without_dump:
            problems.append(Problem(NO_DUMP, group, seq, kind, sorted(group.without_dump)))
        if not group.without_dump or first.state != WAITING:
            problems.append(first)
        later = group.first_not_joined
        if later is not None and later > seq:
            kind = kinds.get((group.name, later), "?")
            problems.append(Problem(NOT_JOINED, group, later, kind, sorted(group.absent(later)), first=False))
    return sorted(problems, key=lambda t: (STATES.index(t.state), not t.first, -len(t.missing)))


def _first_problem(group: Group, seq: int, kind: str, states: dict[tuple[str, int, int], str]) -> Problem:
    finished, absent, waiting = group.finished(seq), group.absent(seq), group.waiting(seq)
    idle = [rank for rank in waiting if states.get((group.name, seq, rank)) == "scheduled"]
    if absent:
        return Problem(NOT_JOINED, group, seq, kind, sorted(absent))
    if finished:
        return Problem(NOT_FINISHED, group, seq, kind, sorted(waiting))
    if 0 < len(idle) < len(waiting):
        return Problem(NOT_STARTED, group, seq, kind, sorted(idle))
    return Problem(WAITING, group, seq, kind, [])


def _by_call(run: Run, where: str, number: str, value: str, condition: str) -> dict[tuple[str, int], Any]:
    """A value of each call, by group and sequence number."""
    rows = run.rows(
        f"SELECT group_name, {number}, {value} FROM flight WHERE {condition} AND {where} GROUP BY ALL"
    )
    return {(group, seq): result for group, seq, result in rows}


_NUMBER = "coalesce(p2p_seq, seq)"


def _row(problem: Problem, sizes: dict[tuple[str, int], int | None]) -> dict[str, Any]:
    return {
        "group": problem.group.name,
        "seq": problem.seq,
        "kind": problem.kind,
        "missing_ranks": problem.missing,
        "state": problem.state,
        "finished_ranks": problem.finished,
        "waiting_ranks": problem.waiting,
        "bytes": sizes.get((problem.group.name, problem.seq)),
        "description": problem.group.description or None,
        "last_completed": _last_completed(problem.group) or None,
    }


def _last_completed(group: Group) -> str:
    """'20529 (12, 14), 20536 (13, 15)'."""
    by_number: dict[int | None, list[int]] = {}
    for rank, progress in sorted(group.progress.items()):
        by_number.setdefault(progress.completed, []).append(rank)
    numbers = sorted(by_number.items(), key=lambda item: -1 if item[0] is None else item[0])
    return ", ".join(f"{'?' if seq is None else seq} ({as_ranges(ranks)})" for seq, ranks in numbers)


def suspect_ranks(problems: list[Problem]) -> tuple[list[int], list[Problem], bool]:
    """The suspect ranks, the problems that they are missing in, and whether they wait for each other in a cycle.

    Ranks with a mismatch, or that did not finish what others finished, come first. Otherwise it is the ranks that did
    not join or wrote no dump, except those that wait for another missing rank themselves. Where all of them do, it is
    the minority, if there is one.
    """
    strong = [t for t in problems if t.state in (MISMATCH, NOT_FINISHED) and t.missing]
    if strong:
        return sorted({rank for t in strong for rank in t.missing}), strong, False
    for states in ((NO_DUMP, NOT_JOINED), (NOT_STARTED,), (NO_PARTNER,)):
        evidence = [t for t in problems if t.state in states and t.first and t.missing]
        if evidence:
            missing = {rank for t in evidence for rank in t.missing}
            roots = missing - {rank for t in evidence for rank in t.waiting}
            if not roots and len(alone := min((t.missing for t in evidence), key=len)) * 2 < len(missing):
                return sorted(alone), evidence, False  # most ranks agree on where they are
            return sorted(roots or missing), evidence, not roots
    return [], [], False


_ADVICE = {
    MISMATCH: "They run different collectives under one sequence number: the program took another path there.",
    NOT_FINISHED: "Their device or process may have stopped: look for CUDA errors in their logs, Xid in kernel logs.",
    NO_DUMP: "They wrote no dump: they may have been killed, crashed or never started; check their logs first.",
    NOT_JOINED: "Their host code did not reach it: check what they did last (py-spy dump, DataLoader, an exception).",
    NOT_STARTED: "Their devices have not reached it: earlier work on the same stream may not have ended.",
    NO_PARTNER: "They have not called the other side of a send or recv.",
}


def _judged(problems: list[Problem], run: Run, where: str) -> tuple[Verdict | None, Finding]:
    suspects, evidence, in_circle = suspect_ranks(problems)
    if not suspects:
        return None, _no_suspect(problems)
    against = [t for t in evidence if set(t.missing) & set(suspects)]
    first_call = _by_call(run, where, _NUMBER, "min(created_ns)", "created_ns IS NOT NULL")
    first = min(
        against,
        key=lambda t: (-len(set(t.missing) & set(suspects)), first_call.get((t.group.name, t.seq), 0)),
    )
    why, advice = f"{first.state} at {first.kind} {first.seq}", _ADVICE[first.state]
    if in_circle:
        why = f"each group has called another collective first ({why})"
        advice = "Call the collectives of all groups in the same order on every rank."
    in_program = first.state in (NOT_JOINED, NO_DUMP) and not in_circle
    verdict = Verdict(tuple(suspects), why, advice, in_circle=in_circle, in_program=in_program)
    others = len({t.group.name for t in against} - {first.group.name})
    also = [t for t in problems if not t.first and set(t.missing) & set(suspects)][:1]
    began, ended, timeout = _when(run, where, suspects)
    figures = (
        Fact("suspect_ranks", len(suspects), "count", "the ranks that hold up the job", verdict.ranks),
        *_problem_facts(first),
        Fact("waiting_groups", others or None, "count", "other groups that wait for these ranks"),
        *map(_stated, also),
        Fact("timeout_ns", timeout, "ns", "the shortest of the collectives that did not end"),
    )
    return verdict, Finding(
        "critical",
        verdict.title(),
        ranks=verdict.ranks,
        span=(began, ended) if began is not None and ended is not None else None,
        advice=advice,
        facts=tuple(fact for fact in figures if fact.value is not None),
        why=why,
    )


def _no_suspect(problems: list[Problem]) -> Finding:
    if not problems:
        return Finding("ok", "no rank is missing: every recorded collective has ended on every rank")
    return Finding(
        "warning",
        f"{len(problems)} collective{'s wait' if len(problems) > 1 else ' waits'}, and no rank is missing",
        advice="All members have called it, and no rank is late: check the network and the devices "
        "(NCCL_DEBUG=INFO, kernel logs of the nodes).",
        facts=(
            Fact("waiting_collectives", len(problems), "count", "all groups"),
            *_problem_facts(problems[0]),
        ),
    )


def _problem_facts(problem: Problem) -> tuple[Fact, ...]:
    """What the sentence about a collective states."""
    key, where = {"group": problem.group.name, "seq": problem.seq}, f"group {problem.group.name}"
    return (
        _stated(problem),
        Fact("seq", problem.seq, "", where, row=key),
        Fact("state", problem.state, "", where, row=key),
        Fact("missing_ranks", len(problem.missing), "count", where, tuple(problem.missing), key),
        Fact("waiting_ranks", len(problem.waiting), "count", where, tuple(problem.waiting), key),
    )


def _stated(problem: Problem) -> Fact:
    about = f" ({problem.group.description})" if problem.group.description else ""
    where = f"group {problem.group.name}{about}, {problem.kind} {problem.seq}"
    missing, waiting = rank_words(problem.missing), rank_words(problem.waiting)
    wait = f"{waiting} wait{'s' * (len(problem.waiting) == 1)}" if problem.waiting else "others wait"
    what = {
        MISMATCH: problem.detail,
        NOT_FINISHED: f"{missing} did not finish what {rank_words(problem.finished)} finished",
        NO_DUMP: f"{missing} wrote no dump; {wait}",
        NOT_JOINED: f"{missing} did not join; {wait}",
        NO_PARTNER: f"{missing} did not join; {wait}",
        NOT_STARTED: f"it has started on {waiting}, but not on {missing}",
        WAITING: wait,
    }
    return Fact("collective", what[problem.state], "", where)


def _when(run: Run, where: str, suspects: list[int]) -> tuple[int | None, int | None, int | None]:
    """When the suspects got stuck (else when any rank did), the last record, and the timeout."""
    mine = f"rank IN ({', '.join(map(str, suspects))})"
    ((began, anybody, ended, timeout),) = run.rows(
        f"SELECT min(created_ns) FILTER (state <> 'completed' AND {mine}), "
        "min(created_ns) FILTER (state <> 'completed'), max(created_ns), "
        f"min(timeout_ms) FILTER (state <> 'completed') * 1000000 FROM flight WHERE {where}"
    )
    return (began if began is not None else anybody), ended, timeout
