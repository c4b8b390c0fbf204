"""The progress of each rank in each process group, from the flight-recorder dumps."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import field

from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run

SAME_SIZE_KINDS = (
    "all_reduce", "allreduce", "broadcast", "reduce", "barrier",
    "_all_gather_base", "all_gather_into_tensor", "_reduce_scatter_base", "reduce_scatter_tensor",
)  # fmt: skip
"""Kinds for which all ranks have inputs of equal size."""


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
        known = [p.completed for p in self.progress.values() if p.completed is not None]
        if not known:
            return None
        low = min(known) + 1
        return low if any(p.enqueued >= low for p in self.progress.values()) else None

    @property
    def first_not_joined(self) -> int | None:
        """The first number that some ranks have called and others have not."""
        asked = [p.enqueued for p in self.progress.values() if p.enqueued >= 0]
        return min(asked) + 1 if asked and min(asked) < max(asked) else None


def read_groups(run: Run, where: str, only: Collection[int] | None = None) -> list[Group]:
    """Groups with more than one member and at least one record, by name; of the ranks in `only`."""
    dumped = [
        rank for (rank,) in run.rows(f"SELECT DISTINCT rank FROM flight_groups WHERE {where} ORDER BY 1")
    ]
    members: dict[str, set[int]] = {}
    for name, ranks in run.rows(
        f"SELECT DISTINCT group_name, ranks FROM flight_groups WHERE ranks IS NOT NULL AND {where}"
    ):
        members.setdefault(name, set()).update(rank for rank in ranks if only is None or rank in only)
    groups: dict[str, Group] = {}
    for rank, name, description, completed, enqueued in run.rows(_PROGRESS.format(where=where)):
        group = groups.setdefault(name, Group(name, description or "", sorted(members.get(name, ()))))
        if rank not in group.members:  # old dumps do not list the members
            group.members = sorted({*group.members, rank})
        group.progress[rank] = Progress(completed, enqueued)
    everyone = {rank for ranks in members.values() for rank in ranks}
    for group in groups.values():
        group.dumps_complete = len(everyone - set(dumped)) <= len(dumped)
        for rank in group.members:
            if rank in dumped and rank not in group.progress:
                group.progress[rank] = Progress(None, -1)
    return sorted((g for g in groups.values() if len(g.members) > 1), key=lambda g: _natural(g.name))


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


@dataclass(frozen=True)
class Mismatch:
    """Members that run different collectives under one sequence number."""

    group: str
    seq: int
    kinds: str
    minority: list[int]
    """The ranks that differ from the majority; all ranks when there is no majority."""
    detail: str


def read_mismatches(run: Run, where: str) -> list[Mismatch]:
    """The first mismatch of each group."""
    same = sql_texts(SAME_SIZE_KINDS)
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
    for group, seq, what, kind, ranks in rows:
        by_group.setdefault((group, seq), []).append((what, kind, ranks))
    return [_mismatch(group, seq, sides) for (group, seq), sides in by_group.items()]


def _mismatch(group: str, seq: int, sides: list[tuple[str, str, list[int]]]) -> Mismatch:
    largest = max(len(ranks) for _, _, ranks in sides)
    tied = sum(len(ranks) == largest for _, _, ranks in sides) > 1
    minority = sorted(r for _, _, ranks in sides if tied or len(ranks) < largest for r in ranks)
    detail = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {what}" for what, _, ranks in sides
    )
    return Mismatch(group, seq, " / ".join(dict.fromkeys(kind for _, kind, _ in sides)), minority, detail)


@dataclass(frozen=True)
class Unpaired:
    """An unfinished send or recv without a matching one on the other side."""

    group: str
    seq: int
    kind: str
    rank: int
    peer: int
    description: str = ""


def read_unpaired(run: Run, where: str, groups: Iterable[Group]) -> list[Unpaired]:
    """One for each group and pair of ranks. The two sides number their operations separately, so pairs are matched."""
    members = {group.name: group.members for group in groups}
    for name, ranks in run.rows(
        f"SELECT DISTINCT group_name, ranks FROM flight_groups WHERE ranks IS NOT NULL AND {where}"
    ):
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
    dumped = {rank for (rank,) in run.rows(f"SELECT DISTINCT rank FROM flight_groups WHERE {where}")}
    other = {"send": "recv", "recv": "send"}
    return [
        Unpaired(group, seq, kind, rank, peer, description)
        for (group, rank, peer, kind), (seq, description) in open_ends.items()
        if kind in other and peer in dumped and (group, peer, rank, other[kind]) not in open_ends
    ]


def _natural(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1 << 60, name)
