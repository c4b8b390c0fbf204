"""What changes would save, by a replay of the run: the answers of whatif, and what limits cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns, step_count
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.analysis.faults.faults import faults_of
from rankscope.analysis.graph.graph import Graph, Work, graph_of
from rankscope.analysis.graph.replay import Replay
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.records import dataclass
from rankscope.timeline.run import Run


@dataclass(frozen=True)
class Savings:
    """What changes would save, by replays of a graph."""

    graph: Graph
    length_with: Callable[[Iterable[Scenario]], float]
    """How long a replay with these changes together takes, all steps together."""
    length: float
    """The same without changes."""
    off_ns: float
    """How much longer the replay without changes is than the recording."""
    step_ns: float
    """The mean step time."""
    limits: Mapping[str, float]
    """Per step, the largest time of each class of the breakdown on any rank."""
    mended_ns: float = 0.0
    """Per step, what was saved before these changes: that of the faults, where they are mended."""

    @property
    def most_ns(self) -> float:
        """What all changes together save at most."""
        return max(self.step_ns - self.mended_ns, 0.0)

    def saved_ns(self, changes: Sequence[Scenario]) -> float:
        """Per step, with these changes together; never more than the step. Negative: it takes longer."""
        saved = self.length - self.length_with(changes)
        return min(saved / max(len(self.graph.steps), 1), self._most_of(changes))

    def _most_of(self, changes: Sequence[Scenario]) -> float:
        """The changes save no more than the classes that they make shorter take."""
        most = dict.fromkeys((change.part for change in changes), 0.0)
        for change in changes:
            limit = self.limits.get(change.part, self.step_ns)
            most[change.part] = min(most[change.part] + change.most_ns, limit)
        return min(sum(most.values()), self.most_ns)


@once_per_run
def savings_of(run: Run, scope: Scope) -> Savings | None:
    """Over all steps in scope. None where there is nothing to replay, or where the ranks wait for each other in a
    cycle."""
    return _savings(run, scope, lambda work: work)


@once_per_run
def savings_after_faults(run: Run, scope: Scope) -> Savings | None:
    """The same once the faults are mended."""
    recorded = savings_of(run, scope)
    mended = recorded and _savings(run, scope, faults_of(run, scope).mended.on)
    if recorded is None or mended is None:
        return None
    saved = (recorded.length - mended.length) / max(len(mended.graph.steps), 1)
    return replace(mended, mended_ns=max(saved, 0.0))


def _savings(run: Run, scope: Scope, before: Callable[[Work], Work]) -> Savings | None:
    """With `before` changed already."""
    graph = graph_of(run, scope)
    replay = Replay(graph)
    if not graph.inside.any() or replay.has_cycle:
        return None

    def length_with(changes: Iterable[Scenario]) -> float:
        work = before(graph.work)
        for scenario in changes:
            work = scenario.change(run, graph, work)
        return replay.length_ns(work)

    length = length_with(())
    return Savings(
        graph, length_with, length, length - replay.recorded_ns, mean_step_ns(run, scope), _limits(run, scope)
    )


def _limits(run: Run, scope: Scope) -> dict[str, float]:
    rows = [row for row in breakdown(run, scope, None).rows if row["step"] is None]
    steps = step_count(run, scope)
    names = ("compute_ns", "exposed_comm_ns", "idle_ns")
    return {name: max((row[name] for row in rows), default=0) / steps for name in names}


def waits_by_rank(run: Run, scope: Scope, ranks: Sequence[int]) -> dict[int, int]:
    """How long each rank waited inside collectives; those whose waits are not known are left out."""
    all_waits = waits(run, scope)
    used = (all_waits.wait >= 0) & np.isin(all_waits.rows.rank, ranks)
    numbers, rank = np.unique(all_waits.rows.rank[used], return_inverse=True)
    sums = np.bincount(rank.reshape(-1), weights=all_waits.wait[used], minlength=len(numbers))
    return dict(zip(numbers.tolist(), sums.astype(np.int64).tolist(), strict=True))


def scenario_of(run: Run, remedy: Remedy) -> Scenario:
    """The change that a finding's remedy describes."""
    scenario = _scenario_of(run, remedy)
    return scenario if remedy.most_ns is None else replace(scenario, most_ns=remedy.most_ns)


def _scenario_of(run: Run, remedy: Remedy) -> Scenario:
    if remedy.change == "kernels faster":
        return scenarios.kernels(remedy.names, remedy.factor)
    if remedy.change in ("calls merged", "calls faster"):
        name, kind = remedy.names
        group = [each.name for each in run.collectives.groups].index(name)
        if remedy.change == "calls faster":
            return scenarios.calls_faster(group, kind, remedy.factor, remedy.most_bytes)
        return scenarios.calls_merged(group, kind, remedy.factor, remedy.latency_ns, remedy.most_bytes)
    if remedy.change == "copies gone":
        return scenarios.copies_gone(remedy.names)
    if remedy.change == "syncs gone":
        return scenarios.syncs_gone(remedy.names)
    return {
        "host gaps gone": scenarios.host_ahead,
        "data ready": scenarios.data_ready,
        "communication hidden": scenarios.hide_comm,
    }[remedy.change]()
