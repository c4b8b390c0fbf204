"""Results about single ranks that the store keeps: reports of large runs read these instead of the events.

`kept_per_rank` marks a function that returns, for each rank in scope, a small record that depends neither on other
ranks nor on the rank's clock: its times count from `run.origin_ns(rank)`. The function itself makes what is kept, so
figures are the same with and without. What is kept is the default: all steps (without steps, all that was recorded),
no further patterns of collectives. For anything else the function reads the events (docs/adr/0140-rollups.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import field, replace
from functools import wraps
from typing import Any, TypeVar

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.record_json import Codec, codec_of
from rankscope.analysis.core.selection import S, Selection
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store import rollups
from rankscope.timeline.run import Run

T = TypeVar("T")
PerRank = Callable[[Run, S], dict[int, T]]
"""By rank, for the ranks in scope; those that have nothing to report are left out."""
Made = dict[int, dict[str, Any]]
"""By rank and name, the version of a result and its JSON value."""

_LEAST_RANKS, _LEAST_EVENTS = 8, 1_000_000
"""The events of smaller runs are read as quickly as what would be kept of them."""
_CHUNK_RANKS, _CHUNK_EVENTS = 32, 1_000_000


@dataclass(frozen=True)
class _Kept:
    """A function whose results are kept."""

    name: str
    version: int
    function: PerRank[Any, Any]
    codec: Codec
    any_window: bool


_kept: dict[str, _Kept] = {}


def kept_per_rank(
    name: str, record: type[T], *, version: int, any_window: bool = False
) -> Callable[[PerRank[S, T]], PerRank[S, T]]:
    """Keep the records that a function returns. Their version changes with what it computes.

    With `any_window` they do not depend on the steps in scope: the function gets a scope without them.
    """

    def marked(function: PerRank[S, T]) -> PerRank[S, T]:
        kept = _kept[name] = _Kept(name, version, function, codec_of(record), any_window)

        @wraps(function)
        def answer(run: Run, scope: S) -> dict[int, T]:
            asked = scope.about_ranks()
            asked = asked.only_ranks() if any_window else asked
            return run.cache.get(function, asked, lambda: _answer(run, asked, kept))

        return answer

    return marked


def _answer(run: Run, scope: Selection, kept: _Kept) -> dict[int, Any]:
    if reason := _reads_events(run, scope, kept):
        rollup_use(run).add_read(reason, scope.ranks_in(run))
        return kept.function(run, scope)
    found, ranks = _stored(run), scope.ranks_in(run)
    found.load(run, ranks)
    missing = [rank for rank in ranks if not found.has(rank, kept)]
    if missing and run.keeps_results:
        for chunk in chunks(run, missing):
            found.add(make(run, chunk))
        missing = [rank for rank in ranks if not found.has(rank, kept)]
    answers = {rank: found.get(rank, kept) for rank in ranks if rank not in missing}
    rollup_use(run).kept.update(answers)
    if missing:
        rollup_use(run).add_read("the store has no rollups of them and is not written to", missing)
        answers |= kept.function(run, replace(scope, ranks=frozenset(missing)))
    return {rank: answers[rank] for rank in ranks if answers.get(rank) is not None}


@once_per_run
def are_worth_it(run: Run) -> bool:
    """Whether the run is so large that results about its ranks are kept."""
    events = events_by_rank(run)
    return len(events) >= _LEAST_RANKS or sum(events.values()) >= _LEAST_EVENTS


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


def _reads_events(run: Run, scope: Selection, kept: _Kept) -> str:
    """Why a function reads events; '' if it need not."""
    if (reason := _ignored(run)) or kept.any_window:
        return reason
    if scope.whole_file:
        return "--window file"
    return "" if scope.has_all_steps(run) else "--steps"


@dataclass
class Use:
    """The ranks that were answered from rollups, and those that were read from events, by reason."""

    kept: set[int] = field(default_factory=set)
    read: dict[str, set[int]] = field(default_factory=dict)

    def add_read(self, reason: str, ranks: Collection[int]) -> None:
        self.read.setdefault(reason, set()).update(ranks)

    def __str__(self) -> str:
        """'from rollups: 256 of 256 ranks; from events: ranks 3-5 (why)'."""
        every = self.kept.union(*self.read.values())
        parts = [f"from rollups: {len(self.kept)} of {len(every)} ranks"] if self.kept else []
        for reason, ranks in self.read.items():
            whose = f"all {len(every)} ranks" if ranks == every else f"ranks {as_ranges(sorted(ranks))}"
            parts.append(f"from events: {whose} ({reason})")
        return "; ".join(parts)


@once_per_run
def rollup_use(run: Run) -> Use:
    """What was used so far."""
    return Use()


class _Stored:
    """What the store keeps of the ranks that were asked for so far."""

    def __init__(self) -> None:
        self._results: Made = {}

    def load(self, run: Run, ranks: Collection[int]) -> None:
        window = _window(run)
        for rank in ranks:
            if rank not in self._results:
                self._results[rank] = rollups.load(run.store, rank, [window, *run.cache_key(rank)])

    def has(self, rank: int, kept: _Kept) -> bool:
        return kept.name in self._results[rank] and self._results[rank][kept.name][0] == kept.version

    def get(self, rank: int, kept: _Kept) -> Any:
        value = self._results[rank][kept.name][1]
        return None if value is None else kept.codec.decode(value)

    def add(self, made: Made) -> None:
        self._results |= made


@once_per_run
def _stored(run: Run) -> _Stored:
    return _Stored()


@once_per_run
def _window(run: Run) -> str:
    """What the default window of the run is: its steps, or whole files."""
    return "steps" if any(entry.manifest["steps"] for entry in run.timelines) else "file"


def chunks(run: Run, ranks: Collection[int], workers: int = 1) -> Iterator[list[int]]:
    """Ranks whose results are made together: they share SQL statements, and their events fit into memory."""
    most = max(_LEAST_RANKS, min(_CHUNK_RANKS, len(ranks) // workers))
    chunk: list[int] = []
    size = 0
    for rank in sorted(ranks):
        own = events_by_rank(run).get(rank, 0)
        if chunk and (len(chunk) == most or size + own > _CHUNK_EVENTS):
            yield chunk
            chunk, size = [], 0
        chunk.append(rank)
        size += own
    if chunk:
        yield chunk


_default = Selection()


def keep_in(scope: Selection) -> None:
    """What is kept are the answers in this scope. It is given by its module, which needs the steps that are kept."""
    global _default
    _default = scope


def make(run: Run, ranks: Collection[int]) -> Made:
    """All results about some ranks, read or computed from their events; what is new is written to the store."""
    made: Made = {}
    identity = {rank: [_window(run), *run.cache_key(rank)] for rank in ranks}
    known = {rank: rollups.load(run.store, rank, identity[rank]) for rank in ranks}
    part = run.only(ranks)
    part.from_events = True
    # The steps of other ranks may go further: the result is the same for every range that has all steps of a rank.
    scope = _default.in_run(part) if _window(part) == _window(run) else replace(_default, steps=(0, 0))
    for kept in _kept.values():
        if all(known[rank].get(kept.name, [None])[0] == kept.version for rank in ranks):
            continue
        found = kept.function(part, scope.only_ranks() if kept.any_window else scope)
        for rank in ranks:
            value = kept.codec.encode(found[rank]) if rank in found else None
            known[rank][kept.name] = [kept.version, value]
    for rank in ranks:
        made[rank] = known[rank]
        rollups.save(run.store, rank, identity[rank], known[rank])
    return made
