"""What changes would save, by a replay of the run: the answers of whatif, and the costs of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.core.rollups import are_worth_it
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.analysis.critical_path.reduced.player import ReducedPlayer
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph, reduced_graph
from rankscope.analysis.critical_path.replay import Durations, Player, Times, recorded
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run

MOST_EVENTS = 30_000
"""GPU events that a replay for the costs of findings covers: a sixth of a second."""
MOST_GRAPH_EVENTS = 200_000
"""GPU events whose graph is built: 0.2 GB. For larger runs, critical path and whatif take the reduced graph."""
REDUCED = (
    "a large run: computed from the work between collectives, by class, on all ranks; some ranks or steps "
    "(--ranks, --steps) are computed event by event"
)


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
    def off_ns(self) -> float:
        """How much longer the replay is than the recording."""
        graph = self.graph
        return self.length - Times(graph.device.start, graph.device.end, graph.host.time).length(graph)

    def saved_ns(self, changes: Iterable[Scenario]) -> float:
        """Per step, with these changes together; never more than the step. Negative: it takes longer."""
        durations = self.durations
        for scenario in changes:
            durations = scenario.change(self.graph, durations)
        times = self.player.play(durations)
        assert times is not None  # its dependencies are those of the first replay
        saved = self.length - times.length(self.graph)
        return min(saved / max(len(self.graph.steps), 1), self.step_ns)


@dataclass(frozen=True)
class ReducedReplay:
    """The same, of a reduced graph."""

    player: ReducedPlayer
    last_ns: float
    """When the replay without changes ends."""
    step_ns: float

    @property
    def graph(self) -> ReducedGraph:
        return self.player.graph

    @property
    def off_ns(self) -> float:
        return self.last_ns - self.player.recorded_last_ns

    def saved_ns(self, changes: Iterable[Scenario]) -> float:
        """As Replayed.saved_ns."""
        work = self.graph.work
        for scenario in changes:
            work = scenario.change_reduced(self.graph, work)
        saved = self.last_ns - self.player.last_ns(work)
        return min(saved / max(len(self.graph.steps), 1), self.step_ns)


Replay = Replayed | ReducedReplay


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


@once_per_run
def reduced_replay(run: Run, scope: Scope) -> ReducedReplay | None:
    """The same, of the reduced graph."""
    graph = reduced_graph(run, scope)
    player = ReducedPlayer(graph)
    if not graph.inside.any() or player.has_cycle:
        return None
    return ReducedReplay(player, player.last_ns(graph.work), mean_step_ns(run, scope))


def is_large(run: Run, scope: Scope) -> bool:
    """Whether critical path and whatif take the reduced graph."""
    return sum(count for _, count in _events_by_step(run, scope)) > MOST_GRAPH_EVENTS


def replay_for_costs(run: Run, scope: Scope) -> Replay | None:
    """Of large runs the reduced graph; of others that would take long, the steps from the middle on that do not."""
    sizes = _events_by_step(run, scope)
    if sum(count for _, count in sizes) <= MOST_EVENTS:
        return replayed(run, scope)
    if are_worth_it(run) or is_large(run, scope):
        return reduced_replay(run, scope)
    return replayed(run, replace(scope, steps=_steps_that_fit(sizes, MOST_EVENTS)))


def _events_by_step(run: Run, scope: Scope) -> list[tuple[int, int]]:
    """The GPU events of each step, over the ranks."""
    events = Counter[int]()
    for counted in gpu_counts(run, scope):
        if counted.step is not None:
            events[counted.step] += counted.events
    return sorted(events.items())


def _steps_that_fit(sizes: Sequence[tuple[int, int]], most: int) -> tuple[int, int]:
    """First and last of the steps from the middle on that have at most so many events, but at least one."""
    middle = len(sizes) // 2
    first = last = sizes[middle][0]
    used = sizes[middle][1]
    for step, count in sizes[middle + 1 :]:
        used += count
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
