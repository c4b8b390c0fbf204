"""The steps of every rank."""

from __future__ import annotations

from rankscope.analysis.core.notes import left_out
from rankscope.analysis.core.result import Column, ColumnRows, Result
from rankscope.analysis.core.run_steps import in_order_of_start
from rankscope.analysis.core.scope import Scope, steps_in_scope
from rankscope.timeline.run import Run


def steps(run: Run, scope: Scope, by: str | None = None) -> Result:
    """Training steps: their range on the host, and their time on host and GPU together."""
    table = in_order_of_start(steps_in_scope(run, scope))
    rows = ColumnRows(
        {
            "rank": table["rank"],
            "step": table["step"],
            "start_ns": table["start"],
            "dur_ns": table["stop"] - table["start"],
            "end_ns": table["end"],
            "time_ns": table["end"] - table["begin"],
        }
    )
    columns = (
        Column("rank"),
        Column("step"),
        Column("start_ns", "ns", "time since the start of the run"),
        Column("dur_ns", "ns", "duration on the host", title="On the host"),
        Column("end_ns", "ns", "end of its work on host and GPU, since the start of the run", minor=True),
        Column(
            "time_ns",
            "ns",
            "step time, host and GPU: from the end of the step before to its own end",
            title="Step time",
        ),
    )
    notes = left_out(run, scope)
    if not rows:
        notes.append(
            "no steps; call profiler.step() in the loop, or mark steps with record_function('step 1')"
        )
    return Result("steps", "Steps", scope.window, columns, rows, notes=tuple(notes))
