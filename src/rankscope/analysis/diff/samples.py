"""The samples by which two runs are compared: for each measure one value per step, the mean over the ranks.

The step is the sampling unit: ranks wait for each other within a step, so their values are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

import numpy as np

from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.scope import Scope, all_steps, has_iterations
from rankscope.analysis.core.step_times import run_step, run_step_times
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.analysis.within_rank.kernel_families import family
from rankscope.collective_kinds import KINDS
from rankscope.store.arrays import number_rows
from rankscope.timeline.run import Run

Unit = Literal["ns", "bytes"]
SHAPES = " [["
"""Begins the shapes in the key of an op."""
NO_STEP = -1
"""Stands for the whole window where a run has no steps."""


_SAME_KERNELS = 0.05
"""Inferred iterations whose numbers of kernels differ by more are not the same work. Chosen, not measured."""


class Measure(NamedTuple):
    """One row of the comparison."""

    report: str
    key: str


STEP = Measure("steps", "step")
"""The step time; the headline of the comparison."""
SPAN = Measure("breakdown", "span")
"""Its place in a run without steps."""


@dataclass
class Samples:
    """The samples of one run."""

    steps: list[int]
    ranks: int
    values: dict[Measure, list[float]] = field(default_factory=dict)
    """For each measure one value per step, in the order of `steps`."""
    kernels_of: dict[str, set[str]] = field(default_factory=dict)
    """For each key of an op, the kernels it launched."""
    on_device: bool = True
    """Whether there are GPU events: without them, ops are compared by host time."""
    inferred: bool = False
    """Whether its steps are iterations that were inferred from the kernels."""
    calls: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Without steps: how often each kernel (without a GPU, each op) was called, and the time of all its calls."""
    slow_first: tuple[int, ...] = ()
    """First steps of a recording that are left out, because they take much longer than the others."""

    @property
    def index(self) -> dict[int, int]:
        """Of each step, in `steps`."""
        return {step: index for index, step in enumerate(self.steps)}

    @property
    def has_steps(self) -> bool:
        return self.steps != [NO_STEP]

    def mean(self, measure: Measure) -> float:
        values = self.values.get(measure)
        return sum(values) / len(values) if values else 0.0

    def typical(self, measure: Measure) -> float | None:
        """The figure of its row: the mean over the steps; of the step time the median, as in the summary."""
        values = self.values.get(measure)
        if not values:
            return None
        return median(values) if measure == STEP else sum(values) / len(values)

    @property
    def has_shapes(self) -> bool | None:
        """None without ops."""
        ops = [measure.key for measure in self.values if measure.report == "ops"]
        return any(SHAPES in key for key in ops) if ops else None

    def without_shapes(self) -> Samples:
        """The same with one measure an op, whatever its shapes."""
        values: dict[Measure, list[float]] = {}
        for measure, of_steps in self.values.items():
            name = Measure(measure.report, measure.key.partition(SHAPES)[0])
            values[name] = (
                [a + b for a, b in zip(values[name], of_steps, strict=True)] if name in values else of_steps
            )
        kernels: dict[str, set[str]] = {}
        for op, names in self.kernels_of.items():
            kernels.setdefault(op.partition(SHAPES)[0], set()).update(names)
        return replace(self, values=values, kernels_of=kernels)

    @property
    def step_ns(self) -> float:
        """The mean step time; rows are small or large relative to it."""
        return self.mean(STEP if self.has_steps else SPAN)


def for_equal_work(base: Samples, new: Samples) -> Samples:
    """The new run with the times that it needs for the calls of the first: where not both have steps, each window ends
    where the profiler was stopped, and holds as many calls as came until then."""
    calls = [(*base.calls[name], *new.calls[name]) for name in base.calls.keys() & new.calls.keys()]
    before, took, now, takes = np.array(calls, dtype=np.float64).reshape(-1, 4).T
    mean = (took + takes) / (before + now)
    work = now @ mean * base.ranks
    if not work:
        return new
    factor = float(before @ mean * new.ranks / work)
    times = {
        measure: values if unit_of(measure.report) == "bytes" else [value * factor for value in values]
        for measure, values in new.values.items()
    }
    return replace(new, values=times)


def are_steps_comparable(base: Run, new: Run, scope: Scope) -> bool:
    """Not where one run has none, nor inferred ones that are not the same number of kernels."""
    steps = [len(all_steps(run)["step"]) for run in (base, new)]
    if scope.steps is not None or not (has_iterations(base) or has_iterations(new)):
        return scope.steps is not None or all(steps)
    counted = "SELECT count(*) FROM gpu WHERE category = 'kernel' AND step IS NOT NULL"
    kernels = [run.rows(counted)[0][0] / max(count, 1) for run, count in zip((base, new), steps, strict=True)]
    return not scope.whole_file and max(kernels) - min(kernels) <= _SAME_KERNELS * max(kernels)


def unit_of(report: str) -> Unit:
    return "bytes" if report == "memory" else "ns"


def collect(run: Run, scope: Scope, reports: Iterable[str], by_step: bool) -> Samples:
    """The samples that the reports need: of the steps, if there are any, or of the whole window."""
    scope = scope.in_run(run)
    steps = list(run_step_times(run, scope)) if by_step else []
    ranks = len(run.ranks) if scope.ranks is None else len(scope.ranks & set(run.ranks))
    left_out = run_step(run, scope).left_out
    samples = Samples(steps or [NO_STEP], ranks, on_device=has_gpu(run, scope), slow_first=left_out)
    samples.inferred = has_iterations(run)
    if not steps:
        called = "gpu WHERE class = 'COMPUTE'" if samples.on_device else "slices WHERE category = 'cpu_op'"
        counted = run.rows(
            f"SELECT name, count(*), sum(greatest(dur_ns, 0))::DOUBLE FROM {called} AND {scope.where()} GROUP BY 1"
        )
        samples.calls = {name: (count, time) for name, count, time in counted}
    for report in dict.fromkeys(("steps", "breakdown", *reports)):  # the step time is always needed
        _COLLECTORS[report](run, scope, samples)
    return samples


def _add(run: Run, samples: Samples, report: str, rows: Iterable[tuple[int, str, int | None]]) -> None:
    """From rows of (step, key, sum over ranks), the mean over the ranks that have the step; a missing row is 0."""
    present = dict(run.rows("SELECT step, count(DISTINCT rank) FROM steps GROUP BY 1"))
    at = samples.index
    for step, key, total in rows:
        if step in at and total is not None:
            values = samples.values.setdefault(Measure(report, key), [0.0] * len(at))
            share = total / min(present.get(step, samples.ranks), samples.ranks)
            values[at[step]] += float(share)


def _step_column(samples: Samples, alias: str = "") -> str:
    return f"{alias}step" if samples.has_steps else str(NO_STEP)


def _steps(run: Run, scope: Scope, samples: Samples) -> None:
    """The step times as everywhere: host and device together (docs/definitions.md)."""
    if samples.has_steps:
        samples.values[STEP] = list(run_step_times(run, scope).values())


def _breakdown(run: Run, scope: Scope, samples: Samples) -> None:
    # The span of a step is its time, which `steps` has.
    span = () if samples.has_steps else ("span",)
    parts = (*span, "compute", "exposed_comm", "exposed_wait", "exposed_copy", "idle")
    at = samples.index
    of_steps: list[list[list[int]]] = [[] for _ in at]
    for row in breakdown(run, scope).rows:
        step = row["step"] if samples.has_steps else NO_STEP
        if (row["step"] is None) != samples.has_steps and step in at:
            of_steps[at[step]].append([row[f"{part}_ns"] for part in parts])
    if any(of_steps):
        means = [np.mean(rows, axis=0) if rows else np.zeros(len(parts)) for rows in of_steps]
        for part, values in zip(parts, np.transpose(means).tolist(), strict=True):
            samples.values[Measure("breakdown", part)] = values


# Versions of torch write the dimensions with different spaces.
_SHAPE = "concat(o.name, ' ' || replace(e.args->>'Input Dims', ' ', ''))"


def _ops(run: Run, scope: Scope, samples: Samples) -> None:
    """Device time by the op that launched it, with its shapes; without GPU events, host time of the ops."""
    if not samples.on_device:
        _host(run, scope, samples, "ops")
        return
    launched = (
        f"SELECT {_step_column(samples, 'g.')} AS step, {_SHAPE} AS key, "
        "CASE WHEN g.category = 'kernel' THEN g.name END AS kernel, "
        "sum(greatest(g.dur_ns, 0))::BIGINT AS time "
        "FROM gpu g JOIN slices o ON o.rank = g.rank AND o.segment = g.segment AND o.id = g.op "
        "JOIN events e ON e.rank = o.rank AND e.segment = o.segment AND e.id = o.id "
        f"WHERE g.class <> 'COMM' AND o.category = 'cpu_op' AND {scope.where('g')} GROUP BY ALL"
    )
    rows = run.rows(launched)
    for _, key, kernel, _ in rows:
        if kernel is not None:
            samples.kernels_of.setdefault(key, set()).add(kernel)
    _add(run, samples, "ops", ((step, key, time) for step, key, _, time in rows))


def _host(run: Run, scope: Scope, samples: Samples, report: str = "host") -> None:
    """Self time of ops on the host, by name."""
    sql = (
        f"SELECT {_step_column(samples)}, name, sum(greatest(self_ns, 0)) FROM slices "
        f"WHERE category = 'cpu_op' AND {scope.where()} GROUP BY ALL"
    )
    if report != "host" or samples.on_device:  # without GPU events, `ops` has these rows already
        _add(run, samples, report, run.rows(sql))


def _kernels(run: Run, scope: Scope, samples: Samples, report: str = "kernels") -> None:
    rows = run.rows(
        f"SELECT {_step_column(samples)} AS step, name AS key, sum(greatest(dur_ns, 0))::BIGINT AS time "
        f"FROM gpu WHERE category = 'kernel' AND class <> 'COMM' AND {scope.where()} GROUP BY ALL"
    )
    if report == "families":
        names = {name: family(name) for name in {name for _, name, _ in rows}}
        rows = [(step, names[name], time) for step, name, time in rows]
    _add(run, samples, report, rows)


def _collectives(run: Run, scope: Scope, samples: Samples) -> None:
    """Time inside collectives, including waiting, by kind and size."""
    rows = run.collectives
    inside = np.ones(len(rows.rank), dtype=bool)
    if scope.ranks is not None:
        inside &= np.isin(rows.rank, sorted(scope.ranks))
    step = rows.step if samples.has_steps else np.full_like(rows.step, NO_STEP)
    at = samples.index
    groups, group = number_rows([step[inside], rows.kind[inside], rows.bytes[inside]])
    totals = np.bincount(group, weights=rows.duration[inside], minlength=len(groups))
    for (number, kind, size), total in zip(groups.tolist(), totals.tolist(), strict=True):
        if number in at:
            key = f"{KINDS[kind]} {size} B" if size >= 0 else KINDS[kind]
            values = samples.values.setdefault(Measure("collectives", key), [0.0] * len(at))
            values[at[number]] += total / samples.ranks


def _memory(run: Run, scope: Scope, samples: Samples) -> None:
    """For each step, the highest value over ranks and devices."""
    at = samples.index
    rows = run.rows(
        f"SELECT {_step_column(samples)}, max(allocated_bytes), max(reserved_bytes) FROM instants "
        f"WHERE name = '[memory]' AND device_type <> 0 AND {scope.where()} GROUP BY 1"
    )
    of_step = {step: peaks for step, *peaks in rows if step in at}
    if len(of_step) < len(at):
        return
    for index, key in enumerate(("peak allocated", "peak reserved")):
        peaks = [of_step[step][index] for step in samples.steps]
        if None not in peaks:
            samples.values[Measure("memory", key)] = [float(peak) for peak in peaks]


Collector = Callable[[Run, Scope, Samples], None]
_COLLECTORS: dict[str, Collector] = {
    "steps": _steps,
    "breakdown": _breakdown,
    "ops": _ops,
    "host": _host,
    "families": partial(_kernels, report="families"),
    "kernels": _kernels,
    "collectives": _collectives,
    "memory": _memory,
}
REPORTS = tuple(_COLLECTORS)
"""The reports that `diff` compares, in the order of its rows."""
