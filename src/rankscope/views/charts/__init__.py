"""Charts: SVG of our own, coloured by CSS variables in a page, by themselves in a file (docs/adr/0080).

A new one is one function from a Result to a Chart in report_charts.py or log_charts.py, and one line below.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.heatmap import CLASSES, rank_times
from rankscope.analysis.core.result import Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.curve import memory_curve
from rankscope.errors import UsageError
from rankscope.store.run import Run
from rankscope.views.charts import log_charts, report_charts
from rankscope.views.charts.chart import Chart
from rankscope.views.charts.heatmap import Row, Step, heatmap, tip_of
from rankscope.views.charts.report_charts import NothingToDrawError

__all__ = ["CHARTS", "Chart", "ChartKind", "NothingToDrawError", "chart_of", "rank_heatmap"]

_MOST_CELLS = 26_000
"""Of the heat map: what keeps a report of 64 ranks small, and a thousand ranks readable."""


@dataclass(frozen=True)
class ChartKind:
    """A chart that can be asked for by name."""

    name: str
    question: str
    make: Callable[[Run, Scope], Chart]


_OF_RESULTS: dict[str, Callable[[Result], Chart]] = {
    "breakdown": report_charts.breakdown,
    "overlap": report_charts.overlap,
    "idle": report_charts.idle,
    "steps": report_charts.steps,
    "memory_curve": report_charts.memory,
    "collectives": log_charts.collectives,
    "stragglers": report_charts.stragglers,
    "critical": report_charts.critical,
    "roofline": log_charts.roofline,
    "ncu": report_charts.speed_of_light,
    "sweep": report_charts.sweep,
}
_AS_BARS = ("kernels", "families", "ops", "gaps", "short", "syncs", "api", "annotations", "phases", "memcpy")


def chart_of(result: Result) -> Chart:
    """The chart of a result; bars of its largest rows where it has none of its own."""
    return _OF_RESULTS.get(result.name, report_charts.longest)(result)


def _of_report(name: str) -> ChartKind:
    report = REPORTS[name]
    return ChartKind(name, report.question, lambda run, scope: chart_of(report.analyse(run, scope, None)))


def _roofline(run: Run, scope: Scope) -> Chart:
    return log_charts.roofline(REPORTS["roofline"].analyse(run, scope, None), known_roofs(run, scope))


def known_roofs(run: Run, scope: Scope) -> log_charts.Roofs | None:
    """Of the first rank whose device is known."""
    from rankscope.analysis.core.ceilings import ceilings

    for ceiling in ceilings(run, scope).values():
        if ceiling.peaks or ceiling.bandwidth:
            return log_charts.Roofs(ceiling.peaks, ceiling.bandwidth)
    return None


def rank_heatmap(run: Run, scope: Scope, alarming: Collection[int] = ()) -> Chart:
    """Rank by time; `alarming` ranks are written in bold."""
    ranks = [rank for rank in run.ranks if scope.ranks is None or rank in scope.ranks]
    times = [time for time in rank_times(run, scope, ranks) if time.bounds]
    if not times:
        empty = Result("heatmap", "Rank by time", scope.window, (), [], notes=("no rank did anything",))
        raise report_charts.nothing(empty, "has no activity")
    low = min(time.bounds[0] for time in times if time.bounds)
    high = max(time.bounds[1] for time in times if time.bounds)
    stretches = int(np.clip(_MOST_CELLS // len(times), 48, 480))
    edges = np.linspace(low, high, stretches + 1).astype(np.int64)
    rows = []
    for time in times:
        spans = dict(zip(CLASSES, (time.compute, time.comm, time.copy), strict=True))
        parts = {name: float(np.sum(span.end - span.start)) for name, span in spans.items()}
        first, last = time.bounds or (0, 0)
        parts["idle"] = last - first - sum(parts.values())
        label = f"rank {time.rank}"
        shares = time.shares(edges)
        rows.append(Row(label, shares.tolist(), tip_of(label, parts), time.rank in alarming))
    first_rank = times[0].rank
    steps = [
        Step(f"step {step}", start)
        for step, start in run.rows(
            f"SELECT step, start_ns FROM steps WHERE rank = {first_rank} AND {scope.where()} "
            f"AND start_ns BETWEEN {low} AND {high} ORDER BY start_ns"
        )
    ]
    on_host = all(time.on_host for time in times)
    what = "the host's work, there is no GPU in it" if on_host else "the GPU's work"
    step_note = f"; steps as rank {first_rank} marks them" if steps else ""
    return heatmap("Rank by time", f"{scope.window}; {what}{step_note}", rows, edges.tolist(), steps)


def find_chart(name: str) -> ChartKind:
    if name not in CHARTS:
        raise UsageError(
            f"there is no chart '{name}'",
            why=f"There are: {', '.join(CHARTS)}.",
            hint="See: rankscope chart -r list",
        )
    return CHARTS[name]


CHARTS: dict[str, ChartKind] = {
    kind.name: kind
    for kind in (
        ChartKind("heatmap", "What did every rank do when?", rank_heatmap),
        *(
            _of_report(name)
            for name in (*_OF_RESULTS, *_AS_BARS)
            if name in REPORTS and name not in ("roofline",)
        ),
        ChartKind("roofline", "How near is each op to what the device can do?", _roofline),
        ChartKind(
            "memory",
            "How much memory is used when?",
            lambda run, scope: report_charts.memory(memory_curve(run, scope)),
        ),
    )
}
