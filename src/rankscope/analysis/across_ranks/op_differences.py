"""Ops that a rank runs more or less often than its peers: evaluation, statistics or logging on one rank.

Only outermost ops are counted, those that no other op calls: how often these run is decided by the program, how often
inner ones run also by the sizes of tensors. Peers are the other ranks of the same pipeline stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.grouping import middle_of_others, split_by_rank, sums_by
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.result import Column, ColumnRows, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import NO_STEP, Scope
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, Ints, number_rows, unique_values
from rankscope.timeline.run import Run

_MOST_NAMES = 10_000
"""A rank with more names of ops than this writes data into them: they are not compared."""
_PASS_NAMES, _PASS_SHARE = 4, 0.8
"""A forward pass is so many ops or more that are repeated equally often, with this share of the extra time. Chosen, not
measured."""

COLUMNS = (
    Column("rank"),
    Column("steps", help="those in which this rank runs it more or less often than its peers"),
    Column("name", help="an op that no other op calls", at_end=True),
    Column("calls", "count", "how often this rank runs it in these steps"),
    Column(
        "median_calls",
        "count",
        "the median over the other ranks of its pipeline stage; of two middle values the one nearer to calls",
        title="Median",
    ),
    Column("host_ns", "ns", "time of its calls on the host", title="Host"),
    Column("device_ns", "ns", "device activity that these calls launched", title="Device"),
)


@dataclass(frozen=True)
class RankOps:
    """The outermost ops of one rank by step and name."""

    names: tuple[str, ...]
    step: Ints
    """NO_STEP outside steps."""
    name: Ints
    """An index into names."""
    calls: Ints
    host_ns: Ints
    device_ns: Ints


@kept_per_rank("op_calls", RankOps, any_window=True)
def rank_ops(run: Run, scope: Scope) -> dict[int, RankOps]:
    """Of the ranks that have ops."""
    rows = run.arrays(f"""
        SELECT s.rank::BIGINT AS rank, coalesce(s.step, {NO_STEP})::BIGINT AS step, n.code::BIGINT AS name,
               count(*)::BIGINT AS calls, sum(s.dur_ns)::BIGINT AS host_ns,
               coalesce(sum(s.total_device_ns), 0)::BIGINT AS device_ns
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE s.category = 'cpu_op' AND s.op IS NULL AND {scope.where("s")} GROUP BY ALL ORDER BY ALL
    """)
    texts = all_names(run)
    records = {}
    for rank, columns in split_by_rank(rows, scope.ranks_in(run)).items():
        codes = unique_values(columns["name"])
        if 0 < len(codes) <= _MOST_NAMES:
            columns["name"] = np.searchsorted(codes, columns["name"])
            records[rank] = RankOps(tuple(texts[code] for code in codes.tolist()), **columns)
    return records


@dataclass(frozen=True)
class OpCalls:
    """How often each of some ranks that are peers runs each op in each step: arrays by op and rank."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    step: Ints
    """By op: the step; NO_STEP in a run without steps."""
    name: Ints
    """By op: an index into names."""
    calls: Floats
    """NaN where a rank has no ops in that step: it was not recorded."""
    host_ns: Floats
    device_ns: Floats

    @property
    def median_calls(self) -> Floats:
        """Of the others; of two middle values the one nearer to its own."""
        low, high = middle_of_others(self.calls)
        return np.clip(self.calls, low, high)


def op_calls(run: Run, scope: Scope) -> list[OpCalls]:
    """By role and pipeline stage with several ranks, of the ranks and steps in scope."""
    layout = layout_of(run, Scope())
    stages: dict[tuple[str, int], dict[int, RankOps]] = {}
    for rank, record in rank_ops(run, Scope(ranks=scope.ranks)).items():
        stages.setdefault(layout.work(rank), {})[rank] = record
    tables = [_side_by_side(stages[stage], scope.steps) for stage in sorted(stages)]
    return [table for table in tables if len(table.ranks) > 1]


def _side_by_side(records: dict[int, RankOps], steps: tuple[int, int] | None) -> OpCalls:
    names = sorted({name for record in records.values() for name in record.names})
    code = {name: number for number, name in enumerate(names)}
    parts = [np.empty((6, 0), dtype=np.int64)]
    for number, record in enumerate(records.values()):
        codes = np.array([code[name] for name in record.names], dtype=np.int64)[record.name]
        which = np.full(len(codes), number)
        parts.append(np.stack([which, record.step, codes, record.calls, record.host_ns, record.device_ns]))
    which, step, name, *figures = np.concatenate(parts, axis=1)
    has_steps = bool((step != NO_STEP).any())
    inside = step != NO_STEP if has_steps else np.ones(len(step), dtype=bool)
    inside &= Scope(steps=steps).mask(step)
    which, step, name = which[inside], step[inside], name[inside]
    rows, row = number_rows([step, name])
    numbers, of_step = number_rows([step])
    has_step = np.zeros((len(numbers), len(records)), dtype=bool)
    has_step[of_step, which] = True
    blank = np.where(has_step[np.searchsorted(numbers[:, 0], rows[:, 0])], 0.0, np.nan)
    tables = []
    for figure in figures:
        table = blank.copy()
        table[row, which] = figure[inside]
        tables.append(table)
    return OpCalls(tuple(records), tuple(names), rows[:, 0], rows[:, 1], *tables)


def op_differences(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per rank and op whose number of calls differs from the median of its peers in some steps."""
    tables = op_calls(run, Scope(steps=scope.steps))
    names = sorted({name for table in tables for name in table.names})
    parts = [np.empty((7, 0), dtype=np.int64)]
    for table in tables:
        median = table.median_calls
        op, who = np.nonzero(np.nan_to_num(table.calls - median) != 0)
        ranks = np.array(table.ranks, dtype=np.int64)[who]
        code = np.searchsorted(names, table.names)[table.name[op]]
        of_op = (
            each[op, who].astype(np.int64) for each in (table.calls, median, table.host_ns, table.device_ns)
        )
        part = np.stack([ranks, code, table.step[op], *of_op])
        parts.append(part if scope.ranks is None else part[:, np.isin(ranks, [*scope.ranks])])
    rank, code, step, *figures = np.concatenate(parts, axis=1)
    keys, group = number_rows([rank, code])
    order = np.lexsort((step, group))
    of_group = np.split(step[order], np.flatnonzero(np.diff(group[order])) + 1) if len(keys) else []
    rows = {
        "rank": keys[:, 0],
        "steps": np.array(
            [None if NO_STEP in each else as_ranges(each.tolist()) for each in of_group], dtype=object
        ),
        "name": np.array(names, dtype=object)[keys[:, 1]],
    }
    for name, values in zip(("calls", "median_calls", "host_ns", "device_ns"), figures, strict=True):
        rows[name] = sums_by(group, values, len(keys))
    order = np.lexsort((rows["rank"], -rows["host_ns"]))
    rows = {name: values[order] for name, values in rows.items()}
    notes = []
    unknown = None
    if not tables:
        unknown = (
            "fewer than two ranks of a pipeline stage have recorded ops: ProfilerActivity.CPU records them"
        )
        notes.append(unknown)
    elif not len(order):
        unknown = ""
        notes.append("every rank runs each op as often as the median of its peers")
    return Result(
        "stragglers.op_differences",
        "Ops that a rank runs more or less often than its peers",
        scope.window,
        COLUMNS,
        ColumnRows(rows),
        notes=tuple(notes),
        unknown=unknown,
    )


class ExtraOp(NamedTuple):
    """An op that a rank runs more often than its peers in a step."""

    name: str
    calls: int
    median_calls: int
    only_here: bool
    """No other rank of the run runs it in this step; false where not all were compared."""
    host_ns: float
    """How much more time than on the median of the peers, on the host."""
    device_ns: float


@dataclass(frozen=True)
class ExtraOps:
    """What a rank runs more often than its peers."""

    ops: tuple[ExtraOp, ...]
    """Of the step asked for, by extra time on the host."""
    every_step: bool
    """The first of them runs as many times more in every step."""
    in_steps: int
    """Steps in which the rank runs an op more often than its peers."""
    steps: int
    all_host_ns: float
    """Extra time of such ops, in all steps."""
    all_device_ns: float

    def per_step_ns(self, on_device: bool) -> float:
        """Over all steps."""
        return (self.all_device_ns if on_device else self.all_host_ns) / self.steps

    def passes(self) -> tuple[Fraction, tuple[ExtraOp, ...]] | None:
        """How often the rank runs what a peer runs in a step, in addition, and the ops of it.

        Known where ops of several names, with most of the extra time, are repeated in the proportion in which the peers
        run them.
        """
        groups: dict[Fraction, list[ExtraOp]] = {}
        for op in self.ops:
            if op.median_calls:
                groups.setdefault(Fraction(op.calls, op.median_calls) - 1, []).append(op)
        times = {ratio: sum(max(op.host_ns, 0.0) for op in group) for ratio, group in groups.items()}
        best = max(times, key=times.__getitem__, default=None)
        if best is None or len(groups[best]) < _PASS_NAMES:
            return None
        whole = sum(max(op.host_ns, 0.0) for op in self.ops)
        return (best, tuple(groups[best])) if times[best] >= _PASS_SHARE * whole else None


def extra_ops(
    run: Run, scope: Scope, rank: int, together: Sequence[int], step: int | None
) -> ExtraOps | None:
    """What a rank runs more often than its peers in scope, in a step (None: without steps); None where it does not.

    Other ranks of `together` are not compared with.
    """
    left = frozenset(scope.ranks_in(run)) - {*together} | {rank}
    tables = op_calls(run, Scope(left, scope.steps))
    table = next((table for table in tables if rank in table.ranks), None)
    if table is None:
        return None
    mine = table.ranks.index(rank)
    calls, median = np.nan_to_num(table.calls[:, mine]), np.nan_to_num(table.median_calls[:, mine])
    host, device = (
        np.nan_to_num(values[:, mine] - middle_of_others(values)[0][:, mine])
        for values in (table.host_ns, table.device_ns)
    )
    more = calls > median
    here = np.flatnonzero(more & (table.step == (NO_STEP if step is None else step)))
    if not len(here):
        return None
    elsewhere = np.nansum(np.delete(table.calls, mine, axis=1), axis=1)
    compares_all = len(table.ranks) == len(run.ranks)
    here = here[np.argsort(-host[here], kind="stable")]
    ops = [
        ExtraOp(
            table.names[table.name[op]],
            int(calls[op]),
            int(median[op]),
            compares_all and not elsewhere[op],
            float(host[op]),
            float(device[op]),
        )
        for op in here.tolist()
    ]
    steps = unique_values(table.step)
    alike = (table.name == table.name[here[0]]) & (calls - median == ops[0].calls - ops[0].median_calls)
    return ExtraOps(
        tuple(ops),
        step is not None and int(alike.sum()) == len(steps),
        len(unique_values(table.step[more])),
        len(steps),
        float(np.clip(host[more], 0, None).sum()),
        float(np.clip(device[more], 0, None).sum()),
    )
