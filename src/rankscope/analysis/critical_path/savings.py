"""What changes would save, by a replay of the run: the answers of whatif, and the costs of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import ranks_in
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.analysis.critical_path.replay import Durations, Player, recorded
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows
from rankscope.store.run import Run

MOST_EVENTS = 30_000
"""GPU events that a replay for the costs of findings covers: a sixth of a second. Of larger runs it takes some ranks
and steps."""
MOST_RANKS = 16
MOST_GRAPH_EVENTS = 200_000
"""GPU events whose graph is built as a whole: 0.2 GB. Of larger runs, critical path and whatif take some ranks and
steps."""
_SHARE_EVENTS, _SHARE_RANKS = 60_000, 32


@dataclass(frozen=True)
class Replayed:
    """A run that can be replayed, and how long it takes without changes."""

    player: Player
    durations: Durations
    length: float
    """Of the replay without changes, all steps together."""
    step_ns: float
    """The mean step time."""

    @property
    def graph(self) -> Graph:
        return self.player.graph

    @property
    def steps(self) -> int:
        return max(len(self.graph.steps), 1)

    def saved_ns(self, changes: Iterable[Scenario]) -> float:
        """Per step, with these changes together; never more than the step. Negative: it takes longer."""
        durations = self.durations
        for scenario in changes:
            durations = scenario.change(self.graph, durations)
        times = self.player.play(durations)
        assert times is not None  # its dependencies are those of the first replay
        return min((self.length - times.length(self.graph)) / self.steps, self.step_ns)


@once_per_run
def replayed(run: Run, scope: Scope) -> Replayed | None:
    """None where there is nothing to replay, or where the ranks wait for each other in a cycle."""
    graph = graph_of(run, scope)
    durations = recorded(graph)
    if not len(graph.device.start) and not len(graph.host.time):
        return None
    player = Player(graph)
    times = player.play(durations)
    if times is None:
        return None
    return Replayed(player, durations, times.length(graph), mean_step_ns(run, scope))


def sample(run: Run, scope: Scope, named: Sequence[int]) -> Scope:
    """The scope itself, or a part of it that is quick to replay: with the ranks that findings name, and others."""
    sizes = _events_by_step(run, scope)
    ranks = ranks_in(run, scope)
    if sum(count for _, count in sizes) <= MOST_EVENTS:
        return scope
    if len(ranks) > MOST_RANKS:
        room = max(MOST_RANKS - len(set(named)), MOST_RANKS // 2)
        some = {*list(named)[: MOST_RANKS // 2], *ranks[:: -(-len(ranks) // room)]}
        scope = replace(scope, ranks=frozenset(some))
    return replace(scope, steps=_steps_that_fit(sizes, min(MOST_RANKS, len(ranks)) / len(ranks), MOST_EVENTS))


def manageable(run: Run, scope: Scope, named: Sequence[int] = ()) -> tuple[Scope, str]:
    """The scope itself, or a part of it whose graph fits into memory, and a note that says which part.

    It has the named ranks, and those that were last to arrive at most collectives: the critical path leads through
    these.
    """
    sizes = _events_by_step(run, scope)
    if sum(count for _, count in sizes) <= MOST_GRAPH_EVENTS:
        return scope, ""
    ranks = ranks_in(run, scope)
    some = ranks
    if len(ranks) > _SHARE_RANKS:
        found = waits(run, scope)
        last = Counter(found.rows.rank[found.last[found.last >= 0]].tolist())
        some = sorted(sorted(ranks, key=lambda rank: (rank not in named, -last[rank], rank))[:_SHARE_RANKS])
    steps = _steps_that_fit(sizes, len(some) / len(ranks), _SHARE_EVENTS)
    part = replace(scope, ranks=frozenset(some), steps=steps)
    which = f"the {len(some)} ranks that others waited for most" if len(some) < len(ranks) else "all ranks"
    return part, f"a large run: computed from {part.window} of {which} (--ranks and --steps choose others)"


def _events_by_step(run: Run, scope: Scope) -> list[tuple[int, int]]:
    """The GPU events of each step, over the ranks."""
    events = Counter[int]()
    for counted in gpu_counts(run, scope):
        if counted.step is not None:
            events[counted.step] += counted.events
    return sorted(events.items())


def _steps_that_fit(sizes: Sequence[tuple[int, int]], share: float, most: float) -> tuple[int, int]:
    """First and last of the steps from the middle on that have at most so many events on this share of the ranks."""
    middle = len(sizes) // 2
    first = last = sizes[middle][0]
    used = sizes[middle][1] * share
    for step, count in sizes[middle + 1 :]:
        used += count * share
        if used > most:
            break
        last = step
    return first, last


def scenario_of(run: Run, remedy: Remedy) -> Scenario:
    """The change that a finding's remedy describes."""
    if remedy.change == "rank at median":
        return scenarios.ranks_at_median(remedy.ranks, _peers(run, remedy.ranks))
    if remedy.change == "links at median":
        return scenarios.links_at_median(remedy.ranks, _members(run))
    if remedy.change == "kernels faster":
        return scenarios.kernels(remedy.names, remedy.factor)
    if remedy.change == "syncs gone":
        return scenarios.syncs_gone(remedy.names)
    return {
        "host gaps gone": scenarios.host_ahead,
        "data ready": scenarios.data_ready,
        "communication hidden": scenarios.hide_comm,
    }[remedy.change]()


def _peers(run: Run, ranks: Sequence[int]) -> dict[int, list[int]]:
    """The ranks that do the same work as each of these: pipeline stages do different work."""
    layout = layout_of(run, Scope())
    return {
        rank: [other for other in run.ranks if other != rank and layout.stage(other) == layout.stage(rank)]
        for rank in ranks
    }


@once_per_run
def _members(run: Run) -> dict[int, tuple[int, ...]]:
    """The recorded ranks of each process group."""
    rows = run.collectives
    pairs, _ = number_rows([rows.group, rows.rank])
    found: dict[int, list[int]] = {group: [] for group in range(len(rows.groups))}
    for group, rank in pairs.tolist():
        found[group].append(rank)
    return {group: tuple(ranks) for group, ranks in found.items()}
