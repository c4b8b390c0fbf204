"""Routes for the charts of reports: those of `rankscope chart` and of the HTML report, drawn once for all."""

from __future__ import annotations

from contextlib import suppress

from rankscope.analysis.core.scope import Scope
from rankscope.viewer.answers import Answer, columns_of, integer
from rankscope.viewer.reports import analysed
from rankscope.viewer.session import Session
from rankscope.views.charts import Chart, NothingToDrawError, charts_beside
from rankscope.views.charts.roofline import known_roofs, roofline

_AROUND = 70
"""Pixels above and below the axes of a roofline."""
_LEAST_HEIGHT, _MOST_HEIGHT = 120, 2000


def charts(session: Session, query: dict[str, str]) -> Answer:
    """The chart of a report and those beside it, as SVG. Text of the run is escaped in it."""
    with session.database() as run:
        result = analysed(run, query["name"], Scope())
        return _answer(charts_beside(result, run, Scope(), Scope()))


def roofline_chart(session: Session, query: dict[str, str]) -> Answer:
    """The roofline in `width` by `height` pixels."""
    height = min(max(integer(query.get("height", "430")) - _AROUND, _LEAST_HEIGHT), _MOST_HEIGHT)
    drawn: list[Chart] = []
    with session.database() as run, suppress(NothingToDrawError):
        result, roofs = analysed(run, "roofline", Scope()), known_roofs(run, Scope())
        drawn.append(roofline(result, roofs, columns_of(query), height))
    return _answer(drawn)


def _answer(drawn: list[Chart]) -> Answer:
    named = (
        {"title": chart.title, "subtitle": chart.subtitle, "svg": chart.inline("drawn")} for chart in drawn
    )
    return {"charts": [*named]}
