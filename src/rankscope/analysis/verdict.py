"""The first sentence about a run: what is wrong with it, or that nothing was found."""

from __future__ import annotations

from rankscope.analysis.core.result import PROBLEMS
from rankscope.analysis.core.scope import Scope, cut_ranks
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.faults.report import has_peers, nothing_compared
from rankscope.analysis.findings import collect
from rankscope.records import dataclass
from rankscope.timeline.run import Run
from rankscope.units import format_pair


@dataclass(frozen=True)
class Verdict:
    """The sentence, and which of the limits it names."""

    text: str
    """Empty where nothing was recorded that takes time, and nothing is wrong."""
    limit: str = ""


def verdict(run: Run, scope: Scope, step_ns: float | None) -> Verdict:
    """A fault or what broke; else that nothing was found, among whom, and the largest limit."""
    found = collect(run, scope)
    limits = [each for each in found if each.kind == "limit"]
    problem = next(
        (
            each
            for each in found
            if each.kind == "fault" or (each.kind == "health" and each.severity in PROBLEMS)
        ),
        None,
    )
    if problem:
        return Verdict(f"{problem.title}.")
    if not periods(run, scope):
        return Verdict("")
    text = _nothing_found(run, scope)
    if not limits or not step_ns:
        return Verdict(text)
    cost = format_pair(limits[0].cost_ns or 0, step_ns)
    return Verdict(f"{text} Largest limit: {limits[0].uncapitalised}, up to {cost}.", limits[0].title)


def _nothing_found(run: Run, scope: Scope) -> str:
    if cut_ranks(run):
        return "Nothing to compare: a recording is cut."
    if reason := nothing_compared(run, scope):
        return f"Nothing to compare with: {reason}."
    ranks = scope.ranks_in(run)
    world = max((entry.world_size or 0 for entry in run.timelines), default=0)
    if len(ranks) < world:
        return f"No fault found among the {len(ranks)} of {world} ranks recorded."
    if len(ranks) == 1:
        return "No fault found: the steps are alike."
    if not has_peers(run, scope):
        return "No fault found; not every rank has others that do the same work."
    return f"No fault found: the {len(ranks)} ranks are alike."
