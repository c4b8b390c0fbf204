"""What changes would save, by a replay of the run: the answers of whatif, and what limits cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.result import Remedy
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.critical_path import scenarios
from rankscope.analysis.critical_path.scenarios import Scenario
from rankscope.analysis.faults.axes import Replays
from rankscope.analysis.faults.faults import faults_of
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.timeline.run import Run


class Savings:
    """What changes would save, by replays of a run in which something may be mended already."""

    def __init__(self, replays: Replays, recorded: Savings | None = None) -> None:
        self.replays, self.graph, self.step_ns = replays, replays.graph, replays.step_ns
        self.length = replays.before_ns
        """Of all steps together, without changes."""
        self.off_ns = self.length - replays.replay.recorded_ns
        """How much longer that is than the recording."""
        self._steps = max(len(self.graph.steps), 1)
        saved = (recorded.length - self.length) / self._steps if recorded else 0.0
        self.most_ns = max(self.step_ns - max(saved, 0.0), 0.0)
        """What all changes together save at most, per step: what is mended is saved already."""
        rows = [row for row in breakdown(replays.run, replays.scope, None).rows if row["step"] is None]
        steps = max(steps_in(replays.run, replays.scope), 1)
        names = ("compute_ns", "exposed_comm_ns", "idle_ns")
        self._limits = {name: max((row[name] for row in rows), default=0) / steps for name in names}

    def length_with(self, changes: Iterable[Scenario]) -> float:
        """How long a replay with these changes together takes, all steps together."""
        work = self.replays.mended.on(self.graph.work)
        for scenario in changes:
            work = scenario.change(self.replays.run, self.graph, work)
        return self.replays.replay.length_ns(work)

    def saved_ns(self, changes: Sequence[Scenario]) -> float:
        """Per step, with these changes together; never more than the step, nor than the classes that they make shorter
        take. Negative: it takes longer."""
        saved = self.length - self.length_with(changes)
        most = dict.fromkeys((change.part for change in changes), 0.0)
        for change in changes:
            limit = self._limits.get(change.part, self.step_ns)
            most[change.part] = min(most[change.part] + change.most_ns, limit)
        return min(saved / self._steps, sum(most.values()), self.most_ns)


@once_per_run
def savings_of(run: Run, scope: Scope) -> Savings | None:
    """Over all steps in scope. None where there is nothing to replay, or where the ranks wait for each other in a
    cycle."""
    replays = Replays(run, scope)
    return Savings(replays) if replays.is_possible else None


@once_per_run
def savings_after_faults(run: Run, scope: Scope) -> Savings | None:
    """The same once the faults are mended."""
    recorded = savings_of(run, scope)
    return recorded and Savings(Replays(run, scope, faults_of(run, scope).mended), recorded)


def waits_by_rank(run: Run, scope: Scope, ranks: Sequence[int]) -> dict[int, int]:
    """How long each rank waited inside collectives; those whose waits are not known are left out."""
    all_waits = waits(run, scope)
    used = (all_waits.wait >= 0) & np.isin(all_waits.rows.rank, ranks)
    numbers, rank = np.unique(all_waits.rows.rank[used], return_inverse=True)
    sums = np.bincount(rank, weights=all_waits.wait[used], minlength=len(numbers))
    return dict(zip(numbers.tolist(), sums.astype(np.int64).tolist(), strict=True))


def scenario_of(run: Run, remedy: Remedy) -> Scenario:
    """The change that a finding's remedy describes."""
    if remedy.change in ("calls merged", "calls faster"):
        scenario = scenarios.calls(run, remedy)
    elif remedy.change == "kernels faster":
        scenario = scenarios.kernels(remedy.names, remedy.factor)
    elif remedy.change == "copies gone":
        scenario = scenarios.copies_gone(remedy.names)
    elif remedy.change == "syncs gone":
        scenario = scenarios.syncs_gone(remedy.names)
    else:
        scenario = {
            "host gaps gone": scenarios.host_ahead,
            "data ready": scenarios.data_ready,
            "communication hidden": scenarios.hide_comm,
        }[remedy.change]()
    return scenario if remedy.most_ns is None else replace(scenario, most_ns=remedy.most_ns)
