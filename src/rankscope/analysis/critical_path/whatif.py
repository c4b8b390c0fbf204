"""Predict the step time under changes, by replaying the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, Fact, Finding, Note, NoteKind, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.savings import savings_of
from rankscope.analysis.critical_path.scenarios import (
    Scenario,
    bandwidth,
    faults_mended,
    hide_comm,
    no_gaps,
)
from rankscope.analysis.faults.faults import faults_of
from rankscope.analysis.graph.graph import Graph, graph_of
from rankscope.errors import UsageError
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("what", help="the scenario", title="Scenario", at_end=True),
    Column("base_ns", "ns", "step time as recorded: the mean over ranks and steps"),
    Column("predicted_ns", "ns", "predicted step time"),
    Column("saved_ns", "ns", "base minus predicted"),
    Column("change_pct", "percent", "change relative to base"),
)
_TITLE = "Predicted time"
_GENERAL = (
    "the order on each thread and stream does not change; dependencies between streams are known only where "
    "something waited for them"
)


def whatif(run: Run, scope: Scope, scenarios: Sequence[Scenario] = ()) -> Result:
    """One row for each scenario, and one for all together; without scenarios, the default ones."""
    scope = scope.in_run(run)
    if any(scenario.what == no_gaps().what for scenario in scenarios) and not has_gpu(run, scope):
        raise UsageError(
            "--no-gaps has no meaning for this run",
            why="It has no GPU events: no GPU waits for the host.",
            hint="See what the host does: rankscope stats RUN -r critical",
        )
    graph, savings = graph_of(run, scope), savings_of(run, scope)
    notes = [*left_out(run, scope), *graph.notes]
    if savings is None:
        notes.append(
            "nothing to replay: no GPU events and no steps in the window"
            if not graph.inside.any()
            else "no replay: the ranks wait for each other in a cycle; files may be missing or from another run"
        )
        return Result("whatif", _TITLE, scope.window, COLUMNS, [], notes=tuple(notes))
    cases = [(scenario.what, [scenario]) for scenario in scenarios or _default_scenarios(run, scope, graph)]
    if len(scenarios) > 1:
        cases.append(("all of these together", list(scenarios)))
    base = savings.step_ns
    rows: list[dict[str, Any]] = []
    for what, together in cases:
        saved = savings.saved_ns(together)
        rows.append(
            {
                "what": what,
                "base_ns": round(base),
                "predicted_ns": round(base) - round(saved),
                "saved_ns": round(saved),
                "change_pct": -100 * saved / base if base else None,
            }
        )
    assumptions = dict.fromkeys(scenario.assumption for _, together in cases for scenario in together)
    notes += [f"assumption: {text}" for text in (*assumptions, _GENERAL)]
    off = savings.off_ns
    if off:
        word = "longer" if off > 0 else "shorter"
        notes.append(
            f"a replay without changes is {format_rounded('ns', abs(off))} {word} than the recorded window"
        )
    if round(graph.unexplained_ns):
        notes.append(
            Note.of(
                NoteKind.UNEXPLAINED,
                f"{format_rounded('ns', graph.unexplained_ns)} of {'a step' if graph.steps else 'the window'} are gaps "
                "on the device that no launch, stream or other rank explains (mean over ranks); they were kept",
            )
        )
    title = f"{_TITLE} per step" if graph.steps else f"{_TITLE} of the window"
    findings = tuple(_findings(rows, bool(graph.steps)))
    return Result("whatif", title, scope.window, COLUMNS, rows, findings, tuple(notes))


def _default_scenarios(run: Run, scope: Scope, graph: Graph) -> list[Scenario]:
    scenarios = [faults_mended()] if faults_of(run, scope).listed else []
    scenarios += [no_gaps()] if has_gpu(run, scope) else []
    return [*scenarios, hide_comm(), bandwidth(2.0)] if len(graph.collectives.transfer) else scenarios


def _findings(rows: list[dict[str, Any]], has_steps: bool) -> list[Finding]:
    """The scenario that saves most."""
    best = max(rows, key=lambda row: row["saved_ns"], default=None)
    if best is None or best["saved_ns"] <= 0:
        return []
    unit = "the mean step" if has_steps else "the window"
    took, would = (format_rounded("ns", best[name]) for name in ("base_ns", "predicted_ns"))
    return [
        Finding(
            "info",
            f"With {best['what']}, {unit} would take {would} instead of {took} ({best['change_pct']:+.1f} %)",
            cost_ns=best["saved_ns"],
            facts=tuple(
                Fact(name, best[name], "ns", "the run, per step", row={"what": best["what"]}, report="whatif")
                for name in ("base_ns", "predicted_ns", "saved_ns")
            ),
        )
    ]
