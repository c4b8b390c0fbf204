"""The faults as a table: who, on which axis, why, in which steps and for how much."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import Replays, rank_axis
from rankscope.analysis.faults.faults import Fault, faults_of
from rankscope.analysis.faults.targets import LEAST_STEPS
from rankscope.analysis.faults.words import findings_of, turns_of
from rankscope.analysis.graph.graph import graph_of
from rankscope.ranges import as_ranges
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_COLUMNS = (
    Column("axis", help="what is compared: ranks, links, steps, stages or micro-batches"),
    Column(
        "subject",
        help="the rank, group, step, stage or micro-batch (from 1); null where another one is late in each step",
    ),
    Column("cost_ns", "ns", "per step, in addition to the faults above; of all subjects of a fault together"),
    Column("alone_ns", "ns", "the same without the faults above", minor=True),
    Column("margin_ns", "ns", "what this subject costs once all else on its axis is mended"),
    Column("cause", help="compute, copy, host, dataloader or transfer"),
    Column("how", help="extra work; slower: all of it; longer: some of it"),
    Column("steps", help="in which it is late; null: in all", minor=True),
    Column("explained_ns", "ns", "what the named kernels, copies or ops cost", minor=True),
    Column("names", help="of kernels, copies or ops; of host time, what followed it", at_end=True),
)
_NOTHING = {column.name: None for column in _COLUMNS}


def faults(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each subject, those of a fault together; the largest fault first."""
    scope = scope.in_run(run)
    answer = faults_of(run, scope)
    rows = [row for fault in answer.listed for row in _rows(run, scope, fault)]
    notes = []
    if reason := nothing_compared(run, scope):
        notes.append(f"nothing to compare with: {reason}")
    elif not rows:
        notes.append(
            "no fault found: nothing would be saved if a rank, link, step, stage or micro-batch were as the others are"
            if len(run.ranks) > 1
            else "one rank: only its steps were compared"
        )
    else:
        joint = format_rounded("ns", answer.joint_ns)
        notes.append(f"together: {joint} of a step of {format_rounded('ns', answer.step_ns)}")
    notes += answer.notes
    title = "Faults: what would be saved if it were as its peers are, per step"
    return Result(
        "faults",
        title,
        scope.window,
        _COLUMNS,
        rows,
        findings_of(run, scope),
        tuple(notes),
        unknown="",
    )


def nothing_compared(run: Run, scope: Scope) -> str:
    """Why nothing was compared with anything; empty where something was."""
    replays = Replays(run, scope)
    if not replays.graph.inside.any():
        return "no events in the window"
    if not replays.is_possible:
        return "ranks wait for each other in a cycle"
    is_short = len(replays.graph.ranks) == 1 and len(replays.graph.steps) < LEAST_STEPS
    return (
        ("one rank, one step" if len(replays.graph.steps) < 2 else "one rank, two steps") if is_short else ""
    )


def has_peers(run: Run, scope: Scope) -> bool:
    """Whether every rank was compared with others that do the same work."""
    return not rank_axis(Replays(run, scope)).lone


def _rows(run: Run, scope: Scope, fault: Fault) -> list[dict[str, Any]]:
    shared = {
        **_NOTHING,
        "axis": fault.noun,
        "cost_ns": round(fault.cost_ns),
        "alone_ns": round(fault.alone_ns),
    }
    if fault.moves:
        return [{**shared, "how": "moves", "names": f"by step: {fault.axis} {turns_of(fault)}"}]
    steps = graph_of(run, scope).steps
    return [
        {
            **shared,
            "subject": each.label,
            "margin_ns": round(each.margin_ns),
            "steps": as_ranges([steps[at] for at in each.late_steps])
            if fault.axis != "step" and len(each.late_steps) < len(steps)
            else None,
            "cause": each.cause.kind,
            "how": each.cause.how_much,
            "explained_ns": round(each.cause.explained_ns),
            "names": ", ".join(each.cause.names) or None,
        }
        for each in fault.subjects
    ]
