"""Routes for the charts of reports: those of `rankscope report --chart` and of the HTML report, drawn once for all."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.usage import memory_curve
from rankscope.viewer.answers import Answer, columns_of, integer
from rankscope.viewer.reports import analysed
from rankscope.viewer.session import Session
from rankscope.views.charts import Chart, NothingToDrawError, chart_of, charts_beside
from rankscope.views.charts.roofline import known_roofs
from rankscope.views.charts.roofline import roofline as roofline_chart

_AROUND = 70
"""Pixels above and below the axes of a roofline."""
_LEAST_HEIGHT, _MOST_HEIGHT = 120, 2000


def charts(session: Session, query: dict[str, str]) -> Answer:
    """The chart of a report and those beside it, as SVG. Text of the run is escaped in it."""
    with session.database() as run:
        result = analysed(run, query["name"], Scope())
        return _answer(charts_beside(result, run, Scope(), Scope()))


def roofline(session: Session, query: dict[str, str]) -> Answer:
    """The roofline in `width` by `height` pixels."""
    height = min(max(integer(query.get("height", "430")) - _AROUND, _LEAST_HEIGHT), _MOST_HEIGHT)
    drawn: list[Chart] = []
    with session.database() as run, suppress(NothingToDrawError):
        result, roofs = analysed(run, "roofline", Scope()), known_roofs(run, Scope())
        drawn.append(roofline_chart(result, roofs, columns_of(query), height))
    return _answer(drawn)


def memory(session: Session, query: dict[str, str]) -> Answer:
    """Allocated and reserved bytes of a rank over time, and the peak of each device."""
    rank = integer(query["rank"])
    drawn: list[Chart] = []
    with session.database() as run, suppress(NothingToDrawError):
        curve = memory_curve(run, Scope(frozenset([rank])))
        drawn.append(chart_of(curve))
    peaks: dict[str, dict[str, Any]] = {}
    for row in sorted(curve.rows, key=lambda row: -row["allocated_bytes"]):
        peaks.setdefault(row["device"], {name: row[name] for name in ("device", "ts_ns", "allocated_bytes")})
    return {"rank": rank, "peaks": [*peaks.values()], **_answer(drawn)}


def _answer(drawn: list[Chart]) -> dict[str, Any]:
    named = (
        {"title": chart.title, "subtitle": chart.subtitle, "svg": chart.inline("drawn")} for chart in drawn
    )
    return {"charts": [*named]}
