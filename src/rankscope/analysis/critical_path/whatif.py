"""What would it be worth? The run played again with something different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.collective_waits import waits
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.graph.build import graph_of
from rankscope.analysis.critical_path.graph.nodes import Graph
from rankscope.analysis.critical_path.replay import Times, recorded, replay
from rankscope.analysis.critical_path.scenarios import Scenario, bandwidth, hide_comm, no_gaps, rank_at_median
from rankscope.store.run import Run
from rankscope.units import format_ns

COLUMNS = (
    Column("what", at_end=True),
    Column("base_ns", "ns", "a step as it was: the slowest rank's window over its steps"),
    Column("predicted_ns", "ns", "a step as it would be"),
    Column("saved_ns", "ns", "the difference"),
    Column("change_pct", "percent", "of a step"),
)
_GENERAL = (
    "the replay keeps the order of everything on each thread and stream, and the dependencies that showed; a wait "
    "between streams that never held anything up is not known"
)


def whatif(run: Run, scope: Scope, scenarios: Sequence[Scenario] = ()) -> Result:
    """One row a scenario, and one for all together; without any, the usual questions one by one."""
    graph = graph_of(run, scope)
    notes = [*left_out(run, scope), *graph.notes]
    steps = max(len(graph.steps), 1)
    durations = recorded(graph)
    played = replay(graph, durations)
    if not len(graph.device.start) and not len(graph.host.time):
        notes.append("nothing to play: no GPU events and no steps in the window")
        return Result("whatif", "What it would be worth", scope.window, COLUMNS, [], notes=tuple(notes))
    if played is None:
        notes.append("the ranks wait for each other in a circle: some files are missing or from another run")
        return Result("whatif", "What it would be worth", scope.window, COLUMNS, [], notes=tuple(notes))
    base = played.length(graph)
    asked = [(scenario.what, [scenario]) for scenario in scenarios or _usual(run, scope, graph)]
    if len(scenarios) > 1:
        asked.append(("all of these together", list(scenarios)))
    rows: list[dict[str, Any]] = []
    for what, together in asked:
        changed = durations
        for scenario in together:
            changed = scenario.change(graph, changed)
        times = replay(graph, changed)
        assert times is not None  # the same order that could be played before
        length = times.length(graph)
        rows.append(
            {
                "what": what,
                "base_ns": round(base / steps),
                "predicted_ns": round(length / steps),
                "saved_ns": round(base / steps) - round(length / steps),
                "change_pct": 100 * (length - base) / base if base else None,
            }
        )
    assumptions = dict.fromkeys(scenario.assumption for _, together in asked for scenario in together)
    notes += [f"assumed: {text}" for text in (*assumptions, _GENERAL)]
    off = base - Times(graph.device.start, graph.device.end, graph.host.time).length(graph)
    if off:
        word = "longer" if off > 0 else "shorter"
        notes.append(f"played unchanged, the window is {format_ns(abs(off))} {word} than recorded")
    title = "What it would be worth, per step" if graph.steps else "What it would be worth, in the window"
    return Result("whatif", title, scope.window, COLUMNS, rows, tuple(_findings(rows)), tuple(notes))


def _usual(run: Run, scope: Scope, graph: Graph) -> list[Scenario]:
    found = [no_gaps()]
    if len(graph.meetings.transfer):
        found += [hide_comm(), bandwidth(2.0)]
    rank = _slowest(run, scope)
    # Stages of a pipeline do different work: their median says nothing.
    if rank is not None and len(graph.ranks) > 2 and "pp" not in layout_of(run, Scope()).axes:
        found.append(rank_at_median(rank))
    return found


def _slowest(run: Run, scope: Scope) -> int | None:
    """The rank that waited least, where the others waited."""
    found = waits(run, scope)
    known = found.wait >= 0
    if not known.any():
        return None
    ranks, place = np.unique(found.rows.rank[known], return_inverse=True)
    return int(ranks[np.bincount(place.reshape(-1), weights=found.wait[known]).argmin()])


def _findings(rows: list[dict[str, Any]]) -> list[Finding]:
    best = max(rows, key=lambda row: row["saved_ns"], default=None)
    if best is None or best["saved_ns"] <= 0:
        return []
    took, would = format_ns(best["base_ns"]), format_ns(best["predicted_ns"])
    return [
        Finding(
            "info",
            f"With {best['what']}, a step would take {would} instead of {took} ({best['change_pct']:+.1f} %)",
            f"{format_ns(best['saved_ns'])} a step, from playing the run again",
            cost_ns=best["saved_ns"],
        )
    ]
