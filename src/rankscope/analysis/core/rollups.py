"""Results about single ranks that the store keeps: reports of large runs read these instead of the events.

`kept_per_rank` marks a function that returns, for each rank in scope, a small record that depends neither on other
ranks nor on the rank's clock: its times count from `run.origin_ns(rank)`. The function itself makes what is kept, so
figures are the same with and without. What is kept is the default: all steps (without steps, all that was recorded),
no further patterns of collectives. For anything else the function reads the events (docs/adr/0140-rollups.md).

The records of all ranks are in one file of the store, a table for each function (store.derived).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.selection import S, Selection
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.derived import (
    LEAST_RANKS_WITH_ROLLUPS,
    ROLLUPS,
    File,
    RawTable,
    Table,
    keep_run_columns,
    key_of,
    path_of,
)
from rankscope.timeline.run import Run

T = TypeVar("T")
PerRank = Callable[[Run, S], dict[int, T]]
"""By rank, for the ranks in scope; those that have nothing to report are left out."""
Records = dict[str, dict[int, Any]]
"""By name and rank; None for a rank that has nothing to report."""

_LEAST_RANKS, _LEAST_EVENTS = LEAST_RANKS_WITH_ROLLUPS, 1_000_000
"""The events of smaller runs are read as quickly as what would be kept of them."""
_CHUNK_RANKS, _CHUNK_EVENTS = 32, 1_000_000


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
        spec = _specs[name] = RollupSpec(
            Table(name, record | None, function.__module__), function, any_window
        )

        @wraps(function)
        def answer(run: Run, scope: S) -> dict[int, T]:
            asked = scope.about_ranks()
            asked = asked.only_ranks() if any_window else asked
            return run.cache.get(function, asked, lambda: _answer(run, asked, spec))

        return answer

    return marked


def _answer(run: Run, scope: Selection, spec: RollupSpec) -> dict[int, Any]:
    ranks = scope.ranks_in(run)
    if reason := _reads_events(run, scope, spec):
        rollup_use(run).add_read(reason, ranks)
        return spec.function(run, scope)
    rollups = rollups_of(run)
    missing = [rank for rank in ranks if rank not in rollups.of(spec)]
    if missing and run.keeps_results:
        rollups.add(run.store, (encode(make(run, chunk, rollups)) for chunk in chunks(run, missing)))
        missing = []
    records = rollups.of(spec)
    answers = {rank: records[rank] for rank in ranks if rank in records}
    rollup_use(run).from_rollups.update(answers)
    if missing:
        rollup_use(run).add_read("the store has no rollups of them and is not written to", missing)
        answers |= spec.function(run, replace(scope, ranks=frozenset(missing)))
    return {rank: answers[rank] for rank in ranks if answers.get(rank) is not None}


def in_store(run: Run, name: str) -> dict[int, Any]:
    """The records of a function that are kept already, by rank: nothing is read or made for them."""
    return {} if _ignored(run) else rollups_of(run).of(_specs[name])


@once_per_run
def are_worth_it(run: Run) -> bool:
    """Whether the run is so large that results about its ranks are kept."""
    events = events_by_rank(run)
    return len(events) >= _LEAST_RANKS or sum(events.values()) >= _LEAST_EVENTS


@once_per_run
def is_large(run: Run) -> bool:
    """Whether the run, or the one that it is a part of, has so many events that not all become points of its graph."""
    return run.whole.part_of_large or sum(events_by_rank(run.whole).values()) >= _LEAST_EVENTS


def are_made_when_read(run: Run) -> bool:
    """A run of few ranks gets its rollups with the first report: several processes would make them no sooner."""
    return len(events_by_rank(run)) >= _LEAST_RANKS


@once_per_run
def events_by_rank(run: Run) -> dict[int, int]:
    """The number of events in the timelines of each rank, on host and device."""
    events: dict[int, int] = {}
    for entry in run.timelines:
        events[entry.rank] = events.get(entry.rank, 0) + int(entry.manifest["events"])
    return events


@once_per_run
def part_of(run: Run, ranks: frozenset[int] | None) -> Run:
    """Of a large run only these ranks (None: all), with the same times: what it reads does not grow with the others."""
    if ranks is None or not are_worth_it(run) or ranks.issuperset(run.ranks):
        return run
    part = run.only(ranks, on_its_axis=True)
    part.from_events = True  # it is asked for events
    return part


@once_per_run
def _ignored(run: Run) -> str:
    """Why nothing that is kept of this run is used, in a few words; '' if it is."""
    if run.from_events:
        return "--from-events"
    if len(run.comm_patterns) > 1:
        return "--comm-pattern"
    return "" if are_worth_it(run) else "a small run"


def _reads_events(run: Run, scope: Selection, spec: RollupSpec) -> str:
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
        self._keys = {rank: key_of(window, run.cache_key(rank)) for rank in run.ranks}
        self._file = File(path_of(run.store, ROLLUPS))
        self._records: Records = {}

    def of(self, spec: RollupSpec) -> dict[int, Any]:
        """The records of a function by rank."""
        name = spec.table.name
        if name not in self._records:
            self._records[name] = self._file.rows(spec.table, self._keys)
        return self._records[name]

    def add(self, store: Path, parts: Iterable[dict[str, RawTable]]) -> None:
        """Results about further ranks. They are written together, also when making them is interrupted."""
        self._file.tables = keep_run_columns(store, self._keys, parts)
        self._records = {}


def encode(records: Records) -> dict[str, RawTable]:
    """A part of the file: the tables of some ranks, without keys."""
    tables = {}
    for name, rows in records.items():
        with suppress(OverflowError):  # a number of more than 64 bits: not kept
            tables[name] = _specs[name].table.encode({rank: (0, row) for rank, row in rows.items()})
    return tables


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


_default = Selection()


def set_default_scope(scope: Selection) -> None:
    """What is kept are the answers in this scope. It is given by its module, which needs the steps that are kept."""
    global _default
    _default = scope


def make(run: Run, ranks: Collection[int], rollups: Rollups, window: str = "") -> Records:
    """The results about some ranks, computed from their events, unless all of a function are kept already.

    `window`: that of the whole run, where this one is a part of it.
    """
    part = run.only(ranks)
    part.from_events = True
    # The steps of other ranks may go further: the result is the same for every range that has all steps of a rank.
    is_default = default_window(part) == (window or default_window(run))
    scope = _default.in_run(part) if is_default else replace(_default, steps=(0, 0))
    results: Records = {}
    for name, spec in _specs.items():
        if not rollups.of(spec).keys() >= set(ranks):
            asked = (scope.only_ranks() if spec.any_window else scope).about_ranks()
            records = part.cache.get(spec.function, asked, partial(spec.function, part, asked))
            results[name] = {rank: records.get(rank) for rank in ranks}
    return results
