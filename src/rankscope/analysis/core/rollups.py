"""Results about single ranks that the store keeps: reports read these instead of the events.

`kept_per_rank` marks a function that returns, for each rank in scope, a small record that depends neither on other
ranks nor on the rank's clock: its times count from `run.origin_ns(rank)`. The function itself makes what is kept, so
figures are the same with and without. What is kept is the default: all steps (without steps, all that was recorded),
no further patterns of collectives. For anything else the function reads the events
(docs/adr/0163-one-derived-cache.md).

Each function has a table (store.derived). What the store lacks is made when it is asked for, chunk by chunk: ranks
whose events fit into memory together. A run of several chunks gets all tables when it is read, in several processes
(analysis.rollups).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

from rankscope.analysis.core.cache import once_per_run
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.derived import Table, key_of
from rankscope.timeline.run import Run

S = TypeVar("S")
"""A scope (analysis.core.scope), which is made with the steps that are kept."""
T = TypeVar("T")
PerRank = Callable[[Run, S], dict[int, T]]
"""By rank, for the ranks in scope; those that have nothing to report are left out."""
Records = dict[str, dict[int, Any]]
"""By name and rank; None for a rank that has nothing to report."""

_LEAST_RANKS, _CHUNK_RANKS, _CHUNK_EVENTS = 8, 32, 1_000_000


@dataclass(frozen=True)
class RollupSpec:
    """A function whose results are kept."""

    table: Table[Any]
    function: PerRank[Any, Any]
    any_window: bool


_specs: dict[str, RollupSpec] = {}


def kept_per_rank(
    name: str, record: type[T], *, any_window: bool = False
) -> Callable[[PerRank[S, T]], PerRank[S, T]]:
    """Keep the records that a function returns.

    With `any_window` they do not depend on the steps in scope: the function gets a scope without them.
    """

    def marked(function: PerRank[S, T]) -> PerRank[S, T]:
        spec = _specs[name] = RollupSpec(Table(name, record | None), function, any_window)

        @wraps(function)
        def answer(run: Run, scope: S) -> dict[int, T]:
            of_ranks: Any = scope
            asked = (of_ranks.only_ranks() if any_window else of_ranks).about_ranks()
            return run.cache.get(function, asked, lambda: _answer(run, asked, spec))

        return answer

    return marked


def _answer(run: Run, scope: Any, spec: RollupSpec) -> dict[int, Any]:
    ranks = scope.ranks_in(run)
    if reason := _reads_events(run, scope, spec):
        rollup_use(run).add_read(reason, ranks)
        return spec.function(run, scope)
    rollups = rollups_of(run)
    missing = [rank for rank in ranks if rank not in rollups.of(spec)]
    if missing:
        rollups.add(_made(run, scope, spec, missing))
    records = rollups.of(spec)
    rollup_use(run).from_rollups.update(ranks)
    return {rank: records[rank] for rank in ranks if records[rank] is not None}


def _made(run: Run, scope: Any, spec: RollupSpec, ranks: list[int]) -> Iterator[Records]:
    """What the store lacks of some ranks. Chunk by chunk all functions are asked, since the events are dropped then."""
    if fits_in_memory(run):
        records = spec.function(run, replace(scope, ranks=frozenset(ranks)))
        yield {spec.table.name: {rank: records.get(rank) for rank in ranks}}
    else:
        yield from (make(run, chunk, scope) for chunk in chunks(run, ranks))


def not_kept(run: Run) -> set[int]:
    """The ranks of which the store has nothing that this code has made: they are new, or it is."""
    return set(run.ranks) - rollups_of(run).of(_specs["steps"]).keys()


def in_store(run: Run, name: str) -> dict[int, Any]:
    """The records of a function that are kept already, by rank: nothing is read or made for them."""
    return {} if _ignored(run) else rollups_of(run).of(_specs[name])


@once_per_run
def fits_in_memory(run: Run) -> bool:
    """Whether the events of all ranks can be read together; else nothing is read of ranks that are not asked for."""
    return len([*chunks(run, run.ranks)]) == 1


@once_per_run
def is_large(run: Run) -> bool:
    """Whether the run, or the one that it is a part of, has so many events that not all become points of its graph."""
    return run.whole.part_of_large or sum(events_by_rank(run.whole).values()) >= _CHUNK_EVENTS


@once_per_run
def events_by_rank(run: Run) -> dict[int, int]:
    """The number of events in the timelines of each rank, on host and device."""
    events: dict[int, int] = {}
    for entry in run.timelines:
        events[entry.rank] = events.get(entry.rank, 0) + int(entry.manifest["events"])
    return events


@once_per_run
def part_of(run: Run, ranks: frozenset[int] | None) -> Run:
    """Only these ranks (None: all) of a run of several chunks, with the same times."""
    if ranks is None or fits_in_memory(run) or ranks.issuperset(run.ranks):
        return run
    part = run.only(ranks, on_its_axis=True)
    part.from_events = True  # it is asked for events
    return part


@once_per_run
def _ignored(run: Run) -> str:
    """Why nothing that is kept of this run is used, in a few words; '' if it is."""
    if run.from_events:
        return "--from-events"
    return "--comm-pattern" if len(run.comm_patterns) > 1 else ""


def _reads_events(run: Run, scope: Any, spec: RollupSpec) -> str:
    """Why a function reads events; '' if it need not."""
    if (reason := _ignored(run)) or spec.any_window:
        return reason
    if scope.whole_file:
        return "--window file"
    return "" if scope.has_all_steps(run) else "--steps"


@dataclass
class Use:
    """The ranks that were answered from rollups, and those that were read from events, by reason."""

    from_rollups: set[int] = field(default_factory=set)
    read: dict[str, set[int]] = field(default_factory=dict)

    def add_read(self, reason: str, ranks: Collection[int]) -> None:
        self.read.setdefault(reason, set()).update(ranks)

    def __str__(self) -> str:
        """'from rollups: 256 of 256 ranks; from events: ranks 3-5 (why)'."""
        every = self.from_rollups.union(*self.read.values())
        parts = [f"from rollups: {len(self.from_rollups)} of {len(every)} ranks"] if self.from_rollups else []
        for reason, ranks in self.read.items():
            whose = f"all {len(every)} ranks" if ranks == every else f"ranks {as_ranges(sorted(ranks))}"
            parts.append(f"from events: {whose} ({reason})")
        return "; ".join(parts)


@once_per_run
def rollup_use(run: Run) -> Use:
    """What was used so far."""
    return Use()


class Rollups:
    """What the store keeps about the ranks of a run, and what is added to it."""

    def __init__(self, run: Run) -> None:
        window = default_window(run)
        self._run, self._rows = run, dict[str, dict[int, tuple[int, Any]]]()
        self._keys = {rank: key_of(window, run.cache_key(rank)) for rank in run.ranks}

    def of(self, spec: RollupSpec) -> dict[int, Any]:
        """The records of a function by rank."""
        rows = self._rows_of(spec.table)
        return {
            rank: rows[rank][1] for rank, key in self._keys.items() if rank in rows and rows[rank][0] == key
        }

    def _rows_of(self, table: Table[Any]) -> dict[int, tuple[int, Any]]:
        if table.name not in self._rows:
            self._rows[table.name] = table.rows(self._run.store)
        return self._rows[table.name]

    def add(self, parts: Iterable[Records]) -> None:
        """Results about further ranks. They are written together, also when making them is interrupted."""
        changed: dict[str, Table[Any]] = {}
        try:
            for part in parts:
                for name, records in part.items():
                    changed[name] = _specs[name].table
                    rows = {rank: (self._keys[rank], record) for rank, record in records.items()}
                    self._rows_of(changed[name]).update(rows)
        finally:
            for table in changed.values() if self._run.keeps_results else ():
                table.write(self._run.store, self._rows_of(table))


@once_per_run
def rollups_of(run: Run) -> Rollups:
    """Of the store, read once."""
    return Rollups(run)


@once_per_run
def default_window(run: Run) -> str:
    """What the default window of the run is: its steps, or whole files."""
    return "steps" if any(entry.manifest["steps"] for entry in run.timelines) else "file"


def chunks(run: Run, ranks: Collection[int], workers: int = 1) -> Iterator[list[int]]:
    """Ranks whose results are made together: they share SQL statements, and their events fit into memory."""
    most = max(_LEAST_RANKS, min(_CHUNK_RANKS, len(ranks) // workers))
    chunk: list[int] = []
    size = 0
    for rank in sorted(ranks):
        events = events_by_rank(run).get(rank, 0)
        if chunk and (len(chunk) == most or size + events > _CHUNK_EVENTS):
            yield chunk
            chunk, size = [], 0
        chunk.append(rank)
        size += events
    if chunk:
        yield chunk


def make(run: Run, ranks: Collection[int], scope: Any, window: str = "") -> Records:
    """All results about some ranks, computed from their events.

    `scope`: any; what is kept are the answers in the default one. `window`: that of the whole run, where this one is a
    part of it.
    """
    part = run.only(ranks)
    part.from_events = True
    # The steps of other ranks may go further: the result is the same for every range that has all steps of a rank.
    is_default = default_window(part) == (window or default_window(run))
    scope = replace(scope, ranks=None, steps=None if is_default else (0, 0), whole_file=False).in_run(part)
    results: Records = {}
    for name, spec in _specs.items():
        asked = (scope.only_ranks() if spec.any_window else scope).about_ranks()
        records = part.cache.get(spec.function, asked, partial(spec.function, part, asked))
        results[name] = {rank: records.get(rank) for rank in ranks}
    return results


def write_part(records: Records, folder: Path) -> None:
    """Tables of some ranks, without keys."""
    for name, rows in records.items():
        _specs[name].table.write(folder, {rank: (0, record) for rank, record in rows.items()})


def read_part(folder: Path) -> Records:
    """Those of `write_part`."""
    return {
        name: {rank: record for rank, (_, record) in spec.table.rows(folder).items()}
        for name, spec in _specs.items()
    }
