"""The Python interface: `run = rankscope.open("RUN")`, then every report is a method.

run                                        in Jupyter: the verdict, what was found, and the ranks
run.breakdown()                            shown as a table in Jupyter and in a terminal
run.ops(by="shape", steps="3:5").rows      mappings by column name
run.kernels().to_pandas()                  or to_polars(), to_arrow()
run.kernels().plot()                       the chart of a report; run.plot("heatmap").save("ranks.svg")
run.diff(rankscope.open("NEW")).plot()     a step before and now, and what had been predicted
run.query("SELECT name, sum(dur_ns) FROM gpu GROUP BY name")
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Optional, Protocol, TypeVar

from rankscope.analysis import REPORTS
from rankscope.analysis.compat import COMPAT
from rankscope.analysis.core.machine import Machine, machine_from
from rankscope.analysis.core.report import Report
from rankscope.analysis.core.result import Column, Result, Row, query_result
from rankscope.analysis.core.scope import Scope, parse_ranks, parse_steps
from rankscope.analysis.diff.two_runs import diff
from rankscope.analysis.health.doctor import doctor
from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.store.ingest import IngestProgress
from rankscope.store.on_dask.option import parse_dask
from rankscope.text.spelling import RENAMED_REPORTS, did_you_mean
from rankscope.timeline.clocks import ClockMode
from rankscope.timeline.run import Run, open_run
from rankscope.views import render, terminal_width
from rankscope.views.charts import Chart, chart_of, find_chart
from rankscope.views.frames import arrow_table, pandas_frame, polars_frame
from rankscope.views.html import escape, html

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
Key = TypeVar("Key", contravariant=True)

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

    def plot(self) -> Chart:
        """Its chart, which shows itself in Jupyter; .save("x.svg") writes SVG, PNG or HTML."""
        return chart_of(self)

    chart = plot

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame. Integers are Int64, booleans boolean and texts string: these types can be null."""
        return pandas_frame(self)

    def to_polars(self) -> polars.DataFrame:
        """A polars DataFrame."""
        return polars_frame(self)

    def to_arrow(self) -> pyarrow.Table:
        """A pyarrow Table."""
        return arrow_table(self)

    df = to_pandas
    arrow = to_arrow


class PlainReport(Protocol):
    """The method of a report."""

    def __call__(self, *, ranks: Ranks = None, steps: Steps = None, top: int | None = None) -> Answer: ...


class SplittableReport(Protocol[Key]):
    """The method of a report whose rows can be split."""

    def __call__(
        self, *, by: Key | None = None, ranks: Ranks = None, steps: Steps = None, top: int | None = None
    ) -> Answer: ...


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
    for name, value, choices in (
        ("clocks", clocks, ("aligned", "raw")),
        ("prefer", prefer, (None, *_FORMATS)),
    ):
        if value not in choices:
            able = ", ".join(repr(choice) for choice in choices if choice is not None)
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
    totals = [0]

    def advance(path: Path, read_bytes: int, doing: str) -> None:
        read[path] = read_bytes
        progress(sum(read.values()), totals[-1])

    return IngestProgress(lambda files, total_bytes: totals.append(total_bytes), advance)


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

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            why = f"a run has no '{name}'. {did_you_mean(name, dir(self))}reports() lists all reports"
            raise AttributeError(why, name=name, obj=None)  # or Python adds its own suggestion

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

    def plot(self, name: str = "heatmap", *, ranks: Ranks = None, steps: Steps = None) -> Chart:
        """A chart of `rankscope report --chart list`; some of them belong to no report, like heatmap."""
        return find_chart(_current_name(name)).make(self._run, self._scope(ranks, steps))

    chart = plot

    def query(self, sql: str) -> Answer:
        """One SELECT over the run's tables (docs/store.md)."""
        return Answer.of(query_result(*self._run.query(sql)))

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
        reports = COMPAT.get(peer, {})
        if report not in reports:
            what = f"{peer} has no report '{report}'" if reports else f"'{peer}' is not known"
            why = f"There are: {', '.join(reports or COMPAT)}."
            raise UsageError(what, why=why, hint='compat("nsys", "cuda_gpu_kern_sum")')
        return self._ask(reports[report], None, ranks, steps, None)

    def _repr_html_(self) -> str:
        """Called by Jupyter: the verdict, and the summary with what was found."""
        overview = self.summary()
        verdict = overview.facts["verdict"]
        return (f"<h3>{escape(verdict)}</h3>\n" if verdict else "") + overview._repr_html_()

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

    # The reports, in the order of REPORTS, as type checkers and editors see them; `_method` makes them from REPORTS.
    summary: PlainReport
    """What is a step made of, and what was found?"""
    findings: PlainReport
    """What costs most, and what can be done about it?"""
    breakdown: SplittableReport[Literal["node", "group"]]
    """Where did the time go?"""
    phases: PlainReport
    """How much is forward, backward, optimizer?"""
    steps: PlainReport
    """How long does each step take?"""
    overlap: SplittableReport[Literal["step"]]
    """Is communication hidden, and behind what?"""
    idle: PlainReport
    """Why is the GPU idle?"""
    gaps: SplittableReport[Literal["rank", "source"]]
    """Before which op or line does the GPU wait?"""
    launches: PlainReport
    """Is the host ahead: launch delays, queue depth?"""
    short_kernels: SplittableReport[Literal["rank", "source"]]
    """Which ops launch kernels that are too short?"""
    syncs: SplittableReport[Literal["rank"]]
    """Which calls and lines wait for the GPU?"""
    dataloader: PlainReport
    """Does the training loop wait for data?"""
    kernels: SplittableReport[Literal["rank", "op", "module", "source"]]
    """Which GPU kernels take the time?"""
    families: SplittableReport[Literal["rank"]]
    """Which kinds of kernels take the time?"""
    ops: SplittableReport[Literal["rank", "shape", "module", "source"]]
    """Which operators take the time?"""
    annotations: SplittableReport[Literal["rank"]]
    """How long do annotated ranges take?"""
    runtime_api: SplittableReport[Literal["rank"]]
    """Which runtime and driver calls take time?"""
    python: SplittableReport[Literal["rank"]]
    """Which Python functions take the time?"""
    memcpy: SplittableReport[Literal["rank"]]
    """Which copies run, and how fast?"""
    faults: PlainReport
    """Who costs time that peers do not need, and why?"""
    imbalance: PlainReport
    """What does uneven work cost, and whose is it?"""
    stragglers: SplittableReport[Literal["node", "group", "step"]]
    """Which rank do the others wait for, how long?"""
    op_differences: PlainReport
    """Does a rank run ops that others do not?"""
    micro_batches: PlainReport
    """How long does each micro-batch take?"""
    host_cpu: SplittableReport[Literal["step"]]
    """Do ranks lack CPU: cores, threads, Python's GC?"""
    collectives: SplittableReport[Literal["group"]]
    """How fast are collectives, and who waits?"""
    nccl: PlainReport
    """How fast are collectives, by NCCL's own times?"""
    critical: PlainReport
    """What is on the critical path of all ranks?"""
    bubbles: SplittableReport[Literal["rank"]]
    """How long are pipeline stages idle?"""
    clocks: PlainReport
    """How far apart are the clocks of the ranks?"""
    layout: SplittableReport[Literal["rank"]]
    """Which rank has which place in the parallelism?"""
    groups: PlainReport
    """Which process groups exist, and for what?"""
    mfu: PlainReport
    """Which share of the peak does the model use?"""
    roofline: SplittableReport[Literal["shape", "kernel", "rank"]]
    """How close are ops or kernels to the limits?"""
    ncu: PlainReport
    """How close to the limits are kernels, by ncu?"""
    gpu: PlainReport
    """How fast was each GPU clocked; was it throttled?"""
    memory: SplittableReport[Literal["step"]]
    """How much memory is used; does it grow?"""
    allocators: SplittableReport[Literal["module"]]
    """Which ops hold the memory at the peak?"""
    fragmentation: PlainReport
    """How much reserved memory is not in use?"""
    overhead: PlainReport
    """How much time did the profiler itself take?"""
    telemetry: PlainReport
    """What did the telemetry show, with which alarms?"""
    hang: PlainReport
    """The job makes no step: where is each rank?"""
    flight_recorder: PlainReport
    """Which rank is missing at which collective?"""
    short: SplittableReport[Literal["rank", "source"]]
    """The former name of idle.short_kernels."""
    api: SplittableReport[Literal["rank"]]
    """The former name of runtime_api."""
    flight: PlainReport
    """The former name of flight_recorder."""
    fragments: PlainReport
    """The former name of fragmentation."""


_METHODS = {name.rpartition(".")[2]: report for name, report in REPORTS.items()}
"""By the names of the methods: `gaps` for idle.gaps."""


def _current_name(name: str) -> str:
    """Today's name of a report or chart; a warning where `name` is a former one."""
    current = RENAMED_REPORTS.get(name, name)
    if current != name:
        warnings.warn(
            f"{name} is now {current}; the next release drops the old name", DeprecationWarning, stacklevel=3
        )
    return current


def _method(name: str) -> Callable[..., Answer]:
    """The method of a report, by its name or a former one, with its question as help."""
    report = _METHODS.get(name) or REPORTS[RENAMED_REPORTS[name]]

    def ask(
        self: OpenRun,
        *,
        by: str | None = None,
        ranks: Ranks = None,
        steps: Steps = None,
        top: int | None = None,
    ) -> Answer:
        if name not in _METHODS:
            _current_name(name)
        return self._ask(report, by, ranks, steps, top)

    ask.__name__, ask.__qualname__ = name, f"OpenRun.{name}"
    ask.__doc__ = report.question
    signature = inspect.signature(ask)
    parameters = dict(signature.parameters)
    if report.keys:
        ask.__doc__ += f"\n\nby: {', '.join(map(repr, report.keys))}."
        ask.__annotations__["by"] = Optional[Literal[report.keys]]  # noqa: UP045
        parameters["by"] = parameters["by"].replace(annotation=ask.__annotations__["by"])
    else:
        del parameters["by"], ask.__annotations__["by"]
    ask.__signature__ = signature.replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    return ask


for _name in (*_METHODS, *RENAMED_REPORTS.keys() - _METHODS.keys()):
    setattr(OpenRun, _name, _method(_name))
