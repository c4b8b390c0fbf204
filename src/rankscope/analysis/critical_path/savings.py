"""What changes would save, by a replay of the run: the answers of whatif, and the costs of findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.gpu_counts import gpu_counts
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.core.rollups import are_worth_it
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.analysis.critical_path.reduced.run_graph import ReducedGraph, ReducedReplay, reduced_graph
from rankscope.analysis.critical_path.replay import Replay, Times, recorded
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
class Savings:
    """What changes would save, by replays of a graph."""

    graph: Graph | ReducedGraph
    length_with: Callable[[Iterable[Scenario]], float]
    """How long a replay with these changes together takes, all steps together."""
    length: float
    """The same without changes."""
    off_ns: float
    """How much longer the replay without changes is than the recording."""
    step_ns: float
    """The mean step time."""

    def saved_ns(self, changes: Iterable[Scenario]) -> float:
        """Per step, with these changes together; never more than the step. Negative: it takes longer."""
        saved = self.length - self.length_with(changes)
        return min(saved / max(len(self.graph.steps), 1), self.step_ns)


@once_per_run
def replayed(run: Run, scope: Scope) -> Savings | None:
    """None where there is nothing to replay, or where the ranks wait for each other in a cycle."""
    graph = graph_of(run, scope)
    if not len(graph.device.start) and not len(graph.host.time):
        return None
    replay = Replay(graph)
    unchanged = replay.play(recorded(graph))
    if unchanged is None:
        return None

    def length_with(changes: Iterable[Scenario]) -> float:
        durations = recorded(graph)
        for scenario in changes:
            durations = scenario.change(graph, durations)
        times = replay.play(durations)
        assert times is not None  # its dependencies are those of the first replay
        return times.length(graph)

    length = unchanged.length(graph)
    as_recorded = Times(graph.device.start, graph.device.end, graph.host.time).length(graph)
    return Savings(graph, length_with, length, length - as_recorded, mean_step_ns(run, scope))


@once_per_run
def reduced_replay(run: Run, scope: Scope) -> Savings | None:
    """The same, of the reduced graph."""
    graph = reduced_graph(run, scope)
    replay = ReducedReplay(graph)
    if not graph.inside.any() or replay.has_cycle:
        return None

    def length_with(changes: Iterable[Scenario]) -> float:
        work = graph.work
        for scenario in changes:
            work = scenario.change_reduced(graph, work)
        return replay.last_ns(work)

    length = length_with(())
    off_ns = length - replay.recorded_last_ns
    return Savings(graph, length_with, length, off_ns, mean_step_ns(run, scope))


def is_large(run: Run, scope: Scope) -> bool:
    """Whether critical path and whatif take the reduced graph."""
    return sum(count for _, count in _events_by_step(run, scope)) > MOST_GRAPH_EVENTS


def replay_for_costs(run: Run, scope: Scope) -> Savings | None:
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


def waits_by_rank(run: Run, scope: Scope, ranks: Sequence[int]) -> dict[int, int]:
    """How long each rank waited inside collectives; those whose waits are not known are left out."""
    all_waits = waits(run, scope)
    used = (all_waits.wait >= 0) & np.isin(all_waits.rows.rank, ranks)
    numbers, rank = np.unique(all_waits.rows.rank[used], return_inverse=True)
    sums = np.bincount(rank.reshape(-1), weights=all_waits.wait[used], minlength=len(numbers))
    return dict(zip(numbers.tolist(), sums.astype(np.int64).tolist(), strict=True))


def scenario_of(run: Run, remedy: Remedy) -> Scenario:
    """The change that a finding's remedy describes."""
    if remedy.change == "rank at median":
        return scenarios.ranks_at_median(remedy.ranks, _peers(run, remedy.ranks))
    if remedy.change == "links at median":
        return scenarios.links_at_median(remedy.ranks, _members(run))
    if remedy.change == "balanced" and remedy.what:
        return scenarios.balanced(remedy.what)
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
    members: dict[int, list[int]] = {group: [] for group in range(len(rows.groups))}
    for group, rank in pairs.tolist():
        members[group].append(rank)
    return {group: tuple(ranks) for group, ranks in members.items()}
