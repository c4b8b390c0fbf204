"""The Python interface: `run = rankscope.open("RUN")`, then every report is a method.

run.breakdown()                            shown as a table in Jupyter and in a terminal
run.ops(by="shape", steps="3:5").rows      mappings by column name
run.kernels().to_pandas()                  or to_polars(), to_arrow()
run.kernels().chart()                      the chart of a report; run.chart("heatmap").save("ranks.svg")
run.query("SELECT name, sum(dur_ns) FROM gpu GROUP BY name")
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rankscope.analysis import REPORTS, Report
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.machine import Machine, machine_from
from rankscope.analysis.core.result import Column, Result, Row
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.diff.two_runs import diff
from rankscope.analysis.health.doctor import doctor
from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.store.ingest import IngestProgress
from rankscope.store.on_dask.option import parse_dask
from rankscope.timeline.run import Run, open_run
from rankscope.timeline.time_axis import ClockMode
from rankscope.views import render, terminal_width
from rankscope.views.charts import Chart, chart_of, find_chart
from rankscope.views.frames import arrow_table, pandas_frame, polars_frame
from rankscope.views.html import html

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Ranks = str | int | Iterable[int] | None
"""'0,8-15', a rank, or ranks; None: all."""
Steps = str | int | tuple[int, int] | None
"""'3:5', a step, or the first and the last step; None: the whole file."""
Progress = Callable[[int, int], None]
"""Is called with the bytes read and the bytes in total."""

_ROWS_SHOWN = 40
"""Of a result that is displayed; .rows has all of them."""
_FORMATS = {"torch": "kineto", "nsys": "nsys"}


@dataclass(frozen=True)
class Answer(Result):
    """The result of a report. It shows itself as a table, in Jupyter and in a terminal, and cannot be changed."""

    rows: tuple[Row, ...]
    """One read-only mapping a row, by column name; None means 'not known'."""

    @staticmethod
    def of(result: Result, top: int | None = None) -> Answer:
        same = {field.name: getattr(result, field.name) for field in fields(Result)}
        if top is not None and len(result.rows) > top:
            note = f"{len(result.rows) - top:,} more rows; all of them without top={top}"
            same |= {"rows": result.rows[:top], "notes": (*result.notes, note)}
        return Answer(**same | {"rows": tuple(same["rows"])})

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
        """Its chart, which shows itself in Jupyter; .save("x.svg") writes SVG, PNG or HTML."""
        return chart_of(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame. Integers are Int64, booleans boolean and texts string: these types can be null."""
        return pandas_frame(self)

    def to_polars(self) -> polars.DataFrame:
        """A polars DataFrame."""
        return polars_frame(self)

    def to_arrow(self) -> pyarrow.Table:
        """A pyarrow Table."""
        return arrow_table(self)

    def df(self) -> pandas.DataFrame:
        """The same as to_pandas()."""
        return self.to_pandas()

    def arrow(self) -> pyarrow.Table:
        """The same as to_arrow()."""
        return self.to_arrow()


def open(
    *paths: str | Path,
    cache: str | Path | None = None,
    jobs: int | None = None,
    dask: str | None = None,
    dask_options: Sequence[str] = (),
    rank_of: Mapping[str | Path, int] | None = None,
    clocks: ClockMode = "aligned",
    prefer: Literal["torch", "nsys"] | None = None,
    mix: bool = False,
    comm_patterns: Sequence[str] = (),
    peak: str | None = None,
    bandwidth: str | None = None,
    baseline: str | Path | None = None,
    progress: Progress | None = None,
) -> OpenRun:
    """Open a run: a folder with one trace per rank, a trace file, or several. Raw traces are read once.

    cache: keep the store under this folder, not beside the traces. jobs: files read at a time.
    dask: read on a Dask cluster: 'local', 'slurm', 'pbs', 'tcp://HOST:PORT' or the file of a scheduler.
    dask_options: with 'slurm' and 'pbs', such as ['nodes=4', 'account=A'].
    rank_of: the rank of each file that does not contain it.
    clocks: 'aligned' corrects the ranks' clocks by their collectives, 'raw' leaves them as recorded.
    prefer: the tool whose file is used for a rank that both recorded (default: torch).
    mix: open files of different runs together; they are not compared. Otherwise they are a MixedRunsError.
    comm_patterns: regular expressions of further kernels that communicate.
    peak, bandwidth: of the device, like '989TF' and '4.8TB/s'; by default from a table of devices.
    baseline: a file of `rankscope bench collectives --json` or nccl-tests, to compare collectives with.
    progress: is called with the bytes read and the bytes in total while raw traces are read.
    """
    if not paths:
        raise UsageError("no run was named", why="open() needs a path.", hint='rankscope.open("RUN")')
    _check_options(clocks, prefer, comm_patterns)
    machine = machine_from(peak, bandwidth, baseline)
    run = open_run(
        [Path(path) for path in paths],
        cache=Path(cache) if cache is not None else None,
        jobs=jobs,
        dask=parse_dask(dask, dask_options) if dask is not None else None,
        ranks={Path(path): rank for path, rank in (rank_of or {}).items()},
        clocks=clocks,
        prefer=_FORMATS[prefer] if prefer else "",
        mix=mix,
        comm_patterns=comm_patterns,
        progress=_ingest_progress(progress) if progress else None,
    )
    return OpenRun(run, machine)


def _check_options(clocks: str, prefer: str | None, comm_patterns: Sequence[str]) -> None:
    for name, value, known in (("clocks", clocks, ("aligned", "raw")), ("prefer", prefer, (None, *_FORMATS))):
        if value not in known:
            able = ", ".join(repr(one) for one in known if one is not None)
            raise UsageError(
                f"{name}={value!r} is not known", why=f"It can be: {able}.", hint="help(rankscope.open)"
            )
    for pattern in comm_patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise UsageError(
                f"comm_patterns: {pattern!r} is not a regular expression",
                why=f"{error}.",
                hint='comm_patterns=["^my_ring"]',
            ) from None


def _ingest_progress(progress: Progress) -> IngestProgress:
    read: dict[Path, int] = {}
    total = 0

    def begin(files: int, total_bytes: int) -> None:
        nonlocal total
        total = total_bytes

    def advance(path: Path, read_bytes: int, doing: str) -> None:
        read[path] = read_bytes
        progress(sum(read.values()), total)

    return IngestProgress(begin, advance)


class OpenRun:
    """An open run. Every report of `rankscope stats` is a method; `reports()` lists them.

    All reports take these arguments. ranks: '0,8-15' or numbers. steps: '3:5', (3, 5) or 3; 'file': also what
    lies outside steps. top: only so many rows.
    Some can split their rows: by.
    """

    def __init__(self, run: Run, machine: Machine | None = None) -> None:
        self._run = run
        self._machine = machine or Machine()
        self.problems: tuple[str, ...] = tuple(str(problem) for problem in run.problems)
        """Files that could not be read; the others are in the run."""

    @property
    def ranks(self) -> list[int]:
        """The ranks that were recorded."""
        return self._run.ranks

    def reports(self) -> Answer:
        """All reports, with the question that each of them answers."""
        columns = (
            Column("report"),
            Column("question", at_end=True),
            Column("by", help="what rows may be split by"),
        )
        rows = tuple(
            {"report": report.name, "question": report.question, "by": ", ".join(report.keys) or None}
            for report in REPORTS.values()
        )
        return Answer("reports", "Reports", "", columns, rows)

    def chart(self, name: str, *, ranks: Ranks = None, steps: Steps = None) -> Chart:
        """A chart of `rankscope chart -r list`; some of them belong to no report, like heatmap."""
        return find_chart(name).make(self._run, self._scope(ranks, steps))

    def query(self, sql: str) -> Answer:
        """One SELECT over the run's tables (docs/store.md)."""
        names, rows, _ = self._run.query(sql)
        distinct = [name if name not in names[:at] else f"{name}_{at}" for at, name in enumerate(names)]
        columns = tuple(Column(name, title=name) for name in distinct)
        records = tuple(dict(zip(distinct, row, strict=True)) for row in rows)
        return Answer("query", "Query", "whole file", columns, records)

    def doctor(self) -> Answer:
        """Can this trace be trusted?"""
        return Answer.of(doctor(self._run, Scope()))

    def diff(self, new: OpenRun, *, ranks: Ranks = None, steps: Steps = None) -> Answer:
        """What changed from this run to `new`, and is it more than noise?"""
        scope = self._scope(ranks, steps)
        scope.check(new._run)
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

    def __repr__(self) -> str:
        count = len(self.ranks)
        return f"<rankscope run of {count} rank{'s' * (count != 1)}: summary(), breakdown(), …; reports() lists all>"

    def _scope(self, ranks: Ranks, steps: Steps) -> Scope:
        if isinstance(ranks, str):
            wanted = parse_ranks(ranks)
        else:
            wanted = None if ranks is None else frozenset([ranks] if isinstance(ranks, int) else ranks)
        whole_file = steps == "file"
        text = f"{steps[0]}:{steps[1]}" if isinstance(steps, tuple) else steps
        chosen = None if text is None or whole_file else parse_steps(str(text))
        scope = Scope(wanted, chosen, whole_file, self._machine)
        scope.check(self._run)
        return scope

    def _ask(self, report: Report, by: str | None, ranks: Ranks, steps: Steps, top: int | None) -> Answer:
        if by is not None and by not in report.keys:
            able = ", ".join(report.keys)
            raise UsageError(
                f"{report.name} cannot be split by {by}",
                why=f"It can be by: {able}." if able else "It cannot be split.",
                hint="reports() lists what can.",
            )
        return Answer.of(report.analyse(self._run, self._scope(ranks, steps), by), top)

    # The reports, in the order of REPORTS. tests/test_notebook.py compares names, questions and keys with it.

    def summary(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How long is a step, what does it consist of, and what was found?"""
        return self._ask(REPORTS["summary"], None, ranks, steps, top)

    def findings(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """What costs most, and what can be done about it?"""
        return self._ask(REPORTS["findings"], None, ranks, steps, top)

    def breakdown(
        self,
        *,
        by: Literal["node", "group"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Where did the time go: compute, communication, copies, idle?

        by: 'node', 'group'.
        """
        return self._ask(REPORTS["breakdown"], by, ranks, steps, top)

    def overlap(
        self,
        *,
        by: Literal["step"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Is communication hidden behind compute, and behind what?

        by: 'step'.
        """
        return self._ask(REPORTS["overlap"], by, ranks, steps, top)

    def idle(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """Why is the GPU idle?"""
        return self._ask(REPORTS["idle"], None, ranks, steps, top)

    def gaps(
        self,
        *,
        by: Literal["rank", "source"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """What does the GPU wait for: before which op, annotation or line?

        by: 'rank', 'source'.
        """
        return self._ask(REPORTS["gaps"], by, ranks, steps, top)

    def phases(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How much is forward, backward, optimizer, recomputation?"""
        return self._ask(REPORTS["phases"], None, ranks, steps, top)

    def launches(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """Is the host ahead of the GPU: launch delays, queue depth?"""
        return self._ask(REPORTS["launches"], None, ranks, steps, top)

    def short(
        self,
        *,
        by: Literal["rank", "source"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which ops launch kernels that are too short?

        by: 'rank', 'source'.
        """
        return self._ask(REPORTS["short"], by, ranks, steps, top)

    def syncs(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which calls wait for the GPU, and which line of Python made them?

        by: 'rank'.
        """
        return self._ask(REPORTS["syncs"], by, ranks, steps, top)

    def dataloader(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """Does the training loop wait for data?"""
        return self._ask(REPORTS["dataloader"], None, ranks, steps, top)

    def overhead(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How much time did the profiler itself take?"""
        return self._ask(REPORTS["overhead"], None, ranks, steps, top)

    def families(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which kinds of kernels take the time?

        by: 'rank'.
        """
        return self._ask(REPORTS["families"], by, ranks, steps, top)

    def kernels(
        self,
        *,
        by: Literal["rank", "op", "module", "source"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which GPU kernels take the time?

        by: 'rank', 'op', 'module' or 'source'.
        """
        return self._ask(REPORTS["kernels"], by, ranks, steps, top)

    def ops(
        self,
        *,
        by: Literal["rank", "shape", "module", "source"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which operators take the time, on host and device?

        by: 'rank', 'shape', 'module', 'source'.
        """
        return self._ask(REPORTS["ops"], by, ranks, steps, top)

    def steps(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How long does each step take, on the host and with the GPU?"""
        return self._ask(REPORTS["steps"], None, ranks, steps, top)

    def api(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which runtime and driver calls take the host's time?

        by: 'rank'.
        """
        return self._ask(REPORTS["api"], by, ranks, steps, top)

    def memcpy(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which copies run, and how fast?

        by: 'rank'.
        """
        return self._ask(REPORTS["memcpy"], by, ranks, steps, top)

    def annotations(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """How long do the program's annotated ranges take?

        by: 'rank'.
        """
        return self._ask(REPORTS["annotations"], by, ranks, steps, top)

    def mfu(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """Which share of the device's peak does the model use?"""
        return self._ask(REPORTS["mfu"], None, ranks, steps, top)

    def roofline(
        self,
        *,
        by: Literal["shape", "kernel", "rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """How close is each op or kernel to the limits of the device?

        by: 'shape', 'kernel', 'rank'.
        """
        return self._ask(REPORTS["roofline"], by, ranks, steps, top)

    def collectives(
        self,
        *,
        by: Literal["group"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """How fast are collectives, and how long do ranks wait in them?

        by: 'group'.
        """
        return self._ask(REPORTS["collectives"], by, ranks, steps, top)

    def nccl(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How fast are collectives by NCCL's own measurement?"""
        return self._ask(REPORTS["nccl"], None, ranks, steps, top)

    def stragglers(
        self,
        *,
        by: Literal["node", "group"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which rank delays the others, and why?

        by: 'node', 'group'.
        """
        return self._ask(REPORTS["stragglers"], by, ranks, steps, top)

    def clocks(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How far apart are the clocks of the ranks?"""
        return self._ask(REPORTS["clocks"], None, ranks, steps, top)

    def layout(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which rank has which place: pipeline, data, tensor, expert?

        by: 'rank'.
        """
        return self._ask(REPORTS["layout"], by, ranks, steps, top)

    def groups(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """Which process groups exist, and what are they used for?"""
        return self._ask(REPORTS["groups"], None, ranks, steps, top)

    def critical(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """What is on the critical path through all ranks?"""
        return self._ask(REPORTS["critical"], None, ranks, steps, top)

    def bubbles(
        self,
        *,
        by: Literal["rank"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """How long are pipeline stages idle?

        by: 'rank'.
        """
        return self._ask(REPORTS["bubbles"], by, ranks, steps, top)

    def fragments(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How much reserved memory is not in use, and in which pieces?"""
        return self._ask(REPORTS["fragments"], None, ranks, steps, top)

    def flight(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """The job hung: which rank is missing at which sequence number?"""
        return self._ask(REPORTS["flight"], None, ranks, steps, top)

    def telemetry(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """What did the telemetry show, rank by rank, with which alarms?"""
        return self._ask(REPORTS["telemetry"], None, ranks, steps, top)

    def hang(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """The job makes no step: where does each rank stand?"""
        return self._ask(REPORTS["hang"], None, ranks, steps, top)

    def ncu(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How close to the device's limits are kernels, measured by ncu?"""
        return self._ask(REPORTS["ncu"], None, ranks, steps, top)

    def gpu(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer:
        """How fast was each GPU clocked, how hot was it, was it throttled?"""
        return self._ask(REPORTS["gpu"], None, ranks, steps, top)

    def memory(
        self,
        *,
        by: Literal["step"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """How much memory is used at the peak, and does it grow?

        by: 'step'.
        """
        return self._ask(REPORTS["memory"], by, ranks, steps, top)

    def allocators(
        self,
        *,
        by: Literal["module"] | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        """Which ops and modules hold the memory at the peak?

        by: 'module'.
        """
        return self._ask(REPORTS["allocators"], by, ranks, steps, top)
