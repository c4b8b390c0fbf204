"""Runs in Python: `run = rankscope.open("RUN")`, then every report is a method.

run.breakdown()                            a table in Jupyter, and in a terminal
run.ops(by="shape", steps="3:5").rows      plain dictionaries
run.kernels().df()                         pandas, where it is installed
run.kernels().chart()                      its chart; run.chart("heatmap").save("ranks.svg")
run.query("SELECT name, sum(dur_ns) FROM gpu GROUP BY name")
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

from rankscope.analysis import REPORTS, Report
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.given_ceilings import given_ceilings
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.diff.two_runs import diff
from rankscope.analysis.health.doctor import doctor
from rankscope.errors import UsageError
from rankscope.store.ingest import Options, Watch, ingest
from rankscope.store.run import Run
from rankscope.views import render, terminal_width
from rankscope.views.charts import Chart, chart_of, find_chart
from rankscope.views.frames import arrow_table, data_frame
from rankscope.views.html import html

Ranks = str | int | Iterable[int] | None
Steps = str | int | tuple[int, int] | None

_ROWS_SHOWN = 40
"""Of a result that is displayed; all of them are in .rows."""


@dataclass(frozen=True, repr=False)
class Answer(Result):
    """A Result that shows itself: as a table in Jupyter and in a terminal."""

    @staticmethod
    def of(result: Result, top: int | None = None) -> Answer:
        same = {field.name: getattr(result, field.name) for field in fields(Result)}
        if top is not None and len(result.rows) > top:
            note = f"{len(result.rows) - top:,} more rows; all of them without top={top}"
            same |= {"rows": result.rows[:top], "notes": (*result.notes, note)}
        return Answer(**same)

    def _repr_html_(self) -> str:
        return html(self._short())

    def __repr__(self) -> str:
        return render(self._short(), "table", terminal_width(sys.stdout)).rstrip("\n")

    __str__ = __repr__

    def __len__(self) -> int:
        return len(self.rows)

    def _short(self) -> Result:
        hidden = len(self.rows) - _ROWS_SHOWN
        if hidden <= 0:
            return self
        note = f"{hidden:,} more rows not shown; .rows has all {len(self.rows):,}"
        return replace(self, rows=self.rows[:_ROWS_SHOWN], notes=(*self.notes, note))

    def chart(self) -> Chart:
        """Its chart: shows itself in Jupyter; .save("x.svg") writes SVG, PNG or HTML."""
        return chart_of(self)

    def df(self) -> Any:
        """A pandas DataFrame."""
        return data_frame(self)

    def arrow(self) -> Any:
        """A pyarrow Table."""
        return arrow_table(self)


def open(
    *paths: str | Path,
    cache: str | Path | None = None,
    jobs: int | None = None,
    comm_patterns: Sequence[str] = (),
    peak: str | None = None,
    bandwidth: str | None = None,
) -> OpenRun:
    """A run: a folder with one trace per rank, a trace file, or several. Raw traces are read once, quietly.

    `cache`, `jobs`, `comm_patterns`, `peak` and `bandwidth` are the command line's options of these names.
    """
    if not paths:
        raise UsageError("no run was named", why="open() needs a path.", hint='rankscope.open("RUN")')
    options = Options(cache=Path(cache) if cache is not None else None, jobs=jobs)
    ingested = ingest([Path(path) for path in paths], options, Watch())
    ceilings = given_ceilings(peak, bandwidth) if peak or bandwidth else None
    return OpenRun(
        Run(ingested, comm_patterns, ceilings=ceilings), [str(problem) for problem in ingested.problems]
    )


class OpenRun:
    """A run, open for questions: every report of `rankscope stats` is a method. `reports()` lists them."""

    def __init__(self, run: Run, problems: Sequence[str] = ()) -> None:
        self._run = run
        self.problems = tuple(problems)
        """What went wrong while reading; the rest of the run is here."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that were recorded."""
        return self._run.ranks

    def reports(self) -> Answer:
        """What can be asked."""
        columns = (
            Column("report"),
            Column("question", at_end=True),
            Column("by", help="what rows may be split by"),
        )
        rows = [
            {"report": report.name, "question": report.question, "by": ", ".join(report.keys) or None}
            for report in REPORTS.values()
        ]
        return Answer("reports", "Reports", "", columns, rows)

    def chart(self, name: str, *, ranks: Ranks = None, steps: Steps = None) -> Chart:
        """Any chart of `rankscope chart -r list`, also those that are of no one report: heatmap, memory."""
        scope = _scope(ranks, steps)
        scope.check(self._run)
        return find_chart(name).make(self._run, scope)

    def query(self, sql: str) -> Answer:
        """One SELECT over the run's tables (docs/store.md)."""
        names, rows = self._run.query(sql)
        distinct = [name if name not in names[:at] else f"{name}_{at}" for at, name in enumerate(names)]
        columns = tuple(Column(name, title=name) for name in distinct)
        return Answer(
            "query", "Query", "whole file", columns, [dict(zip(distinct, row, strict=True)) for row in rows]
        )

    def doctor(self) -> Answer:
        """Can this trace be trusted?"""
        return Answer.of(doctor(self._run, Scope()))

    def diff(self, new: OpenRun, *, ranks: Ranks = None, steps: Steps = None) -> Answer:
        """What changed from this run to `new`, and whether it is more than noise?"""
        scope = _scope(ranks, steps)
        for run in (self._run, new._run):
            scope.check(run)
        return Answer.of(diff(self._run, new._run, scope))

    def compat(
        self, peer: str, report: str = "breakdown", *, ranks: Ranks = None, steps: Steps = None
    ) -> Answer:
        """The figures of another tool: 'hta', 'tracelens' or 'nsys', and one of its reports."""
        known = COMPAT.get(peer, {})
        if report not in known:
            named = ", ".join(known) if known else ", ".join(COMPAT)
            what = f"{peer} has no report '{report}'" if known else f"'{peer}' is not known"
            raise UsageError(what, why=f"There are: {named}.", hint='compat("nsys", "cuda_gpu_kern_sum")')
        return self._ask(known[report], None, ranks, steps, None)

    def _ask(self, report: Report, by: str | None, ranks: Ranks, steps: Steps, top: int | None) -> Answer:
        if by is not None and by not in report.keys:
            able = ", ".join(report.keys)
            raise UsageError(
                f"{report.name} cannot be split by {by}",
                why=f"It can be by: {able}." if able else "It cannot be split.",
                hint="reports() lists what can.",
            )
        scope = _scope(ranks, steps)
        scope.check(self._run)
        return Answer.of(report.analyse(self._run, scope, by), top)

    def __repr__(self) -> str:
        count = len(self.ranks)
        return f"<rankscope run of {count} rank{'s' * (count != 1)}: summary(), breakdown(), …; reports() lists all>"


def _scope(ranks: Ranks, steps: Steps) -> Scope:
    """As the command line writes them ('0,8-15', '3:5'), or as numbers."""
    if isinstance(ranks, str):
        wanted = parse_ranks(ranks)
    else:
        wanted = None if ranks is None else frozenset([ranks] if isinstance(ranks, int) else ranks)
    if steps is None:
        return Scope(wanted)
    return Scope(wanted, parse_steps(f"{steps[0]}:{steps[1]}" if isinstance(steps, tuple) else str(steps)))


def _method(report: Report) -> Callable[..., Answer]:
    """A report as a method, with a signature that completion and help() can show."""

    def ask(
        self: OpenRun,
        *,
        by: str | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        return self._ask(report, by, ranks, steps, top)

    ask.__name__ = report.name
    ask.__qualname__ = f"OpenRun.{report.name}"
    keys = f"\n\nby: {', '.join(map(repr, report.keys))}." if report.keys else ""
    ask.__doc__ = (
        f"{report.question}{keys}\n\nranks: '0,8-15' or numbers. steps: '3:5', (3, 5) or 3. top: rows."
    )
    names = (*(("by",) if report.keys else ()), "ranks", "steps", "top")
    own = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)]
    given = [Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in names]
    ask.__signature__ = Signature([*own, *given], return_annotation=Answer)  # type: ignore[attr-defined]
    return ask


for _report in REPORTS.values():
    setattr(OpenRun, _report.name, _method(_report))
