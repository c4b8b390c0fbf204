"""Charts of results as SVG (docs/adr/0080). A page colours them by CSS variables, a file contains the colours.

A new chart is one function from a Result to a Chart in report_charts.py, or a module of its own, and one line in
`_OF_RESULTS`. Charts draw what `analysis` computed; they compute nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.rank_matrices import arrival_skew, lateness_by_step, traffic, who_waited
from rankscope.analysis.memory.snapshot import held_by_line
from rankscope.analysis.memory.usage import memory_curve
from rankscope.errors import UsageError
from rankscope.text.spelling import did_you_mean
from rankscope.timeline.run import Run
from rankscope.views.charts import matrices, report_charts, roofline
from rankscope.views.charts.chart import Chart, NothingToDrawError
from rankscope.views.charts.heatmap import rank_heatmap
from rankscope.views.charts.plots import WIDTH
from rankscope.views.charts.schedule import bubble_parts, bubbles_in_run, schedule

__all__ = [
    "CHARTS",
    "Chart",
    "ChartKind",
    "NothingToDrawError",
    "chart_of",
    "charts_beside",
    "find_chart",
    "memory_chart",
    "rank_heatmap",
]


_OF_RESULTS: dict[str, Callable[[Result], Chart]] = {
    "breakdown": report_charts.breakdown,
    "overlap": report_charts.overlap,
    "idle": report_charts.idle,
    "steps": report_charts.steps,
    "memory_curve": report_charts.memory,
    "held_by_line": report_charts.held_by_line,
    "collectives": report_charts.collectives,
    "stragglers": report_charts.stragglers,
    "critical": report_charts.critical,
    "bubbles": bubble_parts,
    "schedule_picture": schedule,
    "roofline": roofline.roofline,
    "diff": report_charts.change,
    "ncu": report_charts.speed_of_light,
    "sweep": report_charts.sweep,
    "lateness": matrices.lateness,
    "waits": matrices.waits,
    "traffic": matrices.traffic,
    "arrivals": matrices.arrivals,
}
_AS_BARS = (
    "kernels", "kernels.families", "ops", "idle.gaps", "idle.short_kernels", "idle.syncs", "ops.runtime_api",
    "ops.annotations", "breakdown.phases", "memcpy",
)  # fmt: skip
_IN_RUN: dict[str, Callable[[Result, Run, Scope], Chart]] = {
    "roofline": lambda result, run, scope: roofline.roofline(result, roofline.known_roofs(run, scope)),
    "bubbles": bubbles_in_run,
}
"""Charts of reports with what only the run has: the device's peaks, a schedule."""
_TABLES: dict[str, tuple[str, Callable[[Run, Scope], Result]]] = {
    "lateness": ("Which rank is late in which step?", lateness_by_step),
    "waits": ("Which rank waits for which?", who_waited),
    "traffic": ("How many bytes go from which rank to which?", traffic),
    "arrivals": ("How far apart do ranks arrive at collectives?", arrival_skew),
    "memory": ("How much memory is used when?", memory_curve),
    "memory.allocators": ("Which lines hold the memory when?", held_by_line),
}
"""Charts of tables that are no reports, with their questions."""
_BESIDE = {
    "stragglers": ("lateness", "waits"),
    "collectives": ("traffic", "arrivals"),
}
"""Charts that stand beside that of a report."""


def chart_of(result: Result) -> Chart:
    """The chart of a result; results without a chart of their own are drawn as bars of their largest rows."""
    return _OF_RESULTS.get(result.name, report_charts.longest)(result)


@dataclass(frozen=True)
class ChartKind:
    """A chart that can be requested by name."""

    name: str
    question: str

    def make(self, run: Run, scope: Scope, result: Result | None = None) -> Chart:
        """`result`: the answer of the report of this name, where it is known."""
        if self.name == "heatmap":
            return rank_heatmap(run, scope.in_run(run))
        if self.name in _TABLES:
            return chart_of(_TABLES[self.name][1](run, scope.in_run(run)))
        if result is None:
            result = REPORTS[self.name].analyse(run, scope, None)
        in_run = _IN_RUN.get(self.name)
        return in_run(result, run, scope) if in_run else chart_of(result)


def charts_beside(result: Result, run: Run, scope: Scope, all_ranks: Scope) -> list[Chart]:
    """The chart of a report and those beside it, of what there is to draw; those beside it are of all ranks."""
    drawings = [partial(CHARTS[result.name].make, run, scope, result)] if result.name in CHARTS else []
    drawings += [partial(CHARTS[name].make, run, all_ranks) for name in _BESIDE.get(result.name, ())]
    charts = []
    for draw in drawings:
        with suppress(NothingToDrawError):
            charts.append(draw())
    return charts


def memory_chart(run: Run, scope: Scope, width: float = WIDTH) -> Chart:
    return report_charts.memory(memory_curve(run, scope.in_run(run)), width)


def find_chart(name: str) -> ChartKind:
    if name not in CHARTS:
        raise UsageError(
            f"there is no chart '{name}'",
            why=f"There are: {', '.join(CHARTS)}.",
            hint=f"{did_you_mean(name, CHARTS)}See: rankscope report --chart list",
        )
    return CHARTS[name]


_REPORTS = [name for name in (*_OF_RESULTS, *_AS_BARS) if name in REPORTS and name != "roofline"]
CHARTS: dict[str, ChartKind] = {
    name: ChartKind(name, question)
    for name, question in (
        ("heatmap", "What did every rank do when?"),
        *((name, REPORTS[name].question) for name in _REPORTS),
        ("roofline", "How near is each op to what the device can do?"),
        *((name, question) for name, (question, _) in _TABLES.items()),
    )
}
