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
from rankscope.analysis.memory.block_map import held_by_line
from rankscope.analysis.memory.usage import memory_curve
from rankscope.errors import UsageError
from rankscope.text.spelling import did_you_mean
from rankscope.timeline.run import Run
from rankscope.views.charts import matrices, report_charts, roofline
from rankscope.views.charts.block_map import blocks_of_run
from rankscope.views.charts.chart import Chart, NothingToDrawError
from rankscope.views.charts.heatmap import rank_heatmap
from rankscope.views.charts.plots import WIDTH
from rankscope.views.charts.schedule import bubble_parts, bubbles_in_run, schedule

__all__ = [
    "CHARTS",
    "Chart",
    "ChartKind",
    "NothingToDrawError",
    "chart_in_run",
    "chart_of",
    "charts_beside",
    "find_chart",
    "memory_chart",
    "rank_heatmap",
]


@dataclass(frozen=True)
class ChartKind:
    """A chart that can be requested by name."""

    name: str
    question: str
    make: Callable[[Run, Scope], Chart]


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
    "ncu": report_charts.speed_of_light,
    "sweep": report_charts.sweep,
    "lateness": matrices.lateness,
    "waits": matrices.waits,
    "traffic": matrices.traffic,
    "arrivals": matrices.arrivals,
}
_AS_BARS = (
    "kernels", "families", "ops", "gaps", "short_kernels", "syncs", "runtime_api", "annotations", "phases", "memcpy",
)  # fmt: skip


_BESIDE = {
    "stragglers": ("lateness", "waits"),
    "collectives": ("traffic", "arrivals"),
    "memory": ("blocks",),
}
"""Charts that stand beside that of a report."""


def chart_of(result: Result) -> Chart:
    """The chart of a result; results without a chart of their own are drawn as bars of their largest rows."""
    return _OF_RESULTS.get(result.name, report_charts.longest)(result)


def chart_in_run(result: Result, run: Run, scope: Scope) -> Chart:
    """The chart of a result, with what only the run has: the device's peaks, memory over time, a schedule."""
    if result.name == "memory":
        return memory_chart(run, scope)
    if result.name == "allocators":
        return _allocators(run, scope)
    if result.name == "roofline":
        return roofline.roofline(result, roofline.known_roofs(run, scope))
    if result.name == "bubbles" and result.rows:
        return bubbles_in_run(result, run, scope)
    return chart_of(result)


def charts_beside(result: Result, run: Run, scope: Scope, all_ranks: Scope) -> list[Chart]:
    """The chart of a report and those beside it, of what there is to draw; those beside it are of all ranks."""
    drawings = [partial(chart_in_run, result, run, scope)] if result.name in CHARTS else []
    drawings += [partial(CHARTS[name].make, run, all_ranks) for name in _BESIDE.get(result.name, ())]
    charts = []
    for draw in drawings:
        with suppress(NothingToDrawError):
            charts.append(draw())
    return charts


def memory_chart(run: Run, scope: Scope, width: float = WIDTH) -> Chart:
    return report_charts.memory(memory_curve(run, scope.in_run(run)), width)


def _allocators(run: Run, scope: Scope) -> Chart:
    return report_charts.held_by_line(held_by_line(run, scope))


def _of_report(name: str, question: str = "") -> ChartKind:
    report = REPORTS[name]

    def make(run: Run, scope: Scope) -> Chart:
        return chart_in_run(report.analyse(run, scope, None), run, scope)

    return ChartKind(name, question or report.question, make)


def _of_table(name: str, question: str, table: Callable[[Run, Scope], Result]) -> ChartKind:
    return ChartKind(name, question, lambda run, scope: chart_of(table(run, scope.in_run(run))))


def find_chart(name: str) -> ChartKind:
    if name not in CHARTS:
        raise UsageError(
            f"there is no chart '{name}'",
            why=f"There are: {', '.join(CHARTS)}.",
            hint=f"{did_you_mean(name, CHARTS)}See: rankscope chart RUN -r list",
        )
    return CHARTS[name]


CHARTS: dict[str, ChartKind] = {
    kind.name: kind
    for kind in (
        ChartKind(
            "heatmap", "What did every rank do when?", lambda run, scope: rank_heatmap(run, scope.in_run(run))
        ),
        *(_of_report(name) for name in (*_OF_RESULTS, *_AS_BARS) if name in REPORTS and name != "roofline"),
        _of_report("roofline", "How near is each op to what the device can do?"),
        _of_table("lateness", "Which rank is late in which step?", lateness_by_step),
        _of_table("waits", "Which rank waits for which?", who_waited),
        _of_table("traffic", "How many bytes go from which rank to which?", traffic),
        _of_table("arrivals", "How far apart do ranks arrive at collectives?", arrival_skew),
        ChartKind("memory", "How much memory is used when?", memory_chart),
        ChartKind("allocators", "Which lines hold the memory when?", _allocators),
        ChartKind("blocks", "Which address was allocated when, and by which line?", blocks_of_run),
    )
}
