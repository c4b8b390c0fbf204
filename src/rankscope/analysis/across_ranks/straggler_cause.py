"""Why a rank is late, in detail: the kernel, op, annotation, copy, data loading or host gap that takes extra time."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.across_ranks.blame import Blame
from rankscope.analysis.across_ranks.rank_activity import PARTS
from rankscope.analysis.core.collective_waits import Waits
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.model import DATALOADER_PATTERN
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE
from rankscope.store.run import Run
from rankscope.units import format_rounded, shorten_middle

_NAME_WIDTH = 60
_ANNOTATED_SHARE = 0.8
"""An annotation that contains this share of the extra time is named instead of the kernel."""


@dataclass(frozen=True)
class StragglerCause:
    """Text for the finding about a late rank."""

    title: str = ""
    """The end of the title."""
    evidence: str = ""
    hint: str = ""


def straggler_cause(
    run: Run, scope: Scope, found: Waits, why: Blame, roots: Ints, rank: int, steps: int
) -> StragglerCause:
    """The cause over `roots`, the matches at which this rank was late and did not wait for another."""
    roots = roots[(found.last[roots] != NONE)]
    spent = why.excess[:, roots].sum(axis=1)
    if len(roots) == 0 or spent.max() == 0:
        return StragglerCause(hint=_COMPARE)
    cause = PARTS[int(spent.argmax())]
    extra = int(spent.max()) / max(steps, 1)
    if cause == "compute":
        return _compute(run, scope, rank, steps, extra)
    if cause == "copy":
        return _copy(run, scope, rank, steps, extra)
    if cause == "dataloader":
        return _dataloader(run, scope, rank, steps, extra)
    if cause == "host":
        entry = found.last[roots[why.excess[PARTS.index("host"), roots].argmax()]]
        return _host(run, found, int(entry), rank, extra)
    return StragglerCause(
        f"it waits {format_rounded('ns', extra)} longer in other collectives", hint=_COMPARE
    )


_COMPARE = "Compare the ranks: rankscope stats RUN -r breakdown"


@dataclass(frozen=True)
class _Extra:
    """The name whose time on the late rank exceeds that on the other ranks most. Times are per step."""

    name: str
    mine_ns: float
    median_ns: float

    @property
    def evidence(self) -> str:
        name = shorten_middle(self.name, _NAME_WIDTH)
        return (
            f"{name}: {format_rounded('ns', self.mine_ns)} per step, "
            f"{format_rounded('ns', self.median_ns)} on the median of the other ranks"
        )

    @property
    def title(self) -> str:
        name = shorten_middle(bare_name(self.name), _NAME_WIDTH)
        if self.median_ns * 1.05 < self.mine_ns and self.median_ns > 0:
            return f"its {name} takes {self.mine_ns / self.median_ns:.1f}x the median"
        return f"{name} runs {format_rounded('ns', self.mine_ns)} on its GPU"


def bare_name(kernel: str) -> str:
    """A C++ name without its return type, namespaces, template arguments and parameters."""
    plain = re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0]
    return plain.rpartition("::")[2].strip() or kernel


_IS_DATALOADER = f"category = 'user_annotation' AND regexp_matches(name, {sql_text(DATALOADER_PATTERN)})"


def _totals(table: str, time: str, where: str, window: Scope) -> str:
    totals = f"SELECT rank, name, sum({time})::DOUBLE FROM {table}"
    return f"{totals} WHERE {where} AND {window.where()} GROUP BY ALL"


def _most_extra(run: Run, sql: str, rank: int, steps: int) -> _Extra | None:
    """From rows (rank, name, time): the name whose time exceeds the median of the other ranks most."""
    rows = run.rows(sql)
    ranks = sorted({row[0] for row in rows} | {rank})
    names = sorted({row[1] for row in rows})
    if not names:
        return None
    time = np.zeros((len(names), len(ranks)))
    for row_rank, name, total in rows:
        time[names.index(name), ranks.index(row_rank)] = total
    mine = time[:, ranks.index(rank)]
    others = np.delete(time, ranks.index(rank), axis=1)
    median = np.median(others, axis=1) if others.shape[1] else np.zeros(len(names))
    best = int((mine - median).argmax())
    if mine[best] <= median[best]:
        return None
    return _Extra(names[best], mine[best] / steps, median[best] / steps)


def _compute(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> StragglerCause:
    window = Scope(steps=scope.steps)
    on_gpu = bool(run.rows("SELECT 1 FROM gpu LIMIT 1"))
    table, where = (
        ("gpu", "class = 'COMPUTE'") if on_gpu else ("slices", "category = 'cpu_op' AND self_ns > 0")
    )
    time = "dur_ns" if on_gpu else "self_ns"
    top = _most_extra(
        run,
        _totals(table, time, where, window),
        rank,
        steps,
    )
    if top is None:
        return StragglerCause(f"it computes {format_rounded('ns', extra)} longer", hint=_COMPARE)
    if on_gpu:
        title = (_annotation_around(run, window, rank, top, steps) or top).title
    else:
        title = f"its {shorten_middle(top.name, _NAME_WIDTH)} takes {format_rounded('ns', top.mine_ns)}"
    return StragglerCause(
        title,
        f"{top.evidence}{_source(run, window, rank, top.name, table)}",
        f"List its kernels: rankscope stats RUN -r kernels --by rank --ranks {rank}"
        if on_gpu
        else f"List its ops: rankscope stats RUN -r ops --by rank --ranks {rank}",
    )


def _annotation_around(run: Run, window: Scope, rank: int, top: _Extra, steps: int) -> _Extra | None:
    """The innermost annotation of the program that contains most of the extra time of a kernel, if there is one."""
    rows = run.rows(
        f"""
        WITH launched AS (
            SELECT g.segment, g.launch_track AS track, g.launch_ns AS at, g.dur_ns FROM gpu g
            WHERE g.launch IS NOT NULL AND g.rank = {rank} AND g.name = ? AND {window.where("g")}
        ), around AS (
            SELECT k.segment, k.at, k.dur_ns, arg_max(a.name, a.start_ns) AS name
            FROM launched k JOIN slices a ON a.rank = {rank} AND a.segment = k.segment AND a.track = k.track
                AND a.start_ns <= k.at AND k.at < a.start_ns + a.dur_ns
            WHERE a.category = 'user_annotation' AND NOT regexp_matches(a.name, '^(ProfilerStep#|nccl:|gloo:)')
            GROUP BY ALL
        )
        SELECT name, sum(dur_ns)::DOUBLE FROM around GROUP BY ALL ORDER BY 2 DESC LIMIT 1
        """,
        [top.name],
    )
    if not rows or rows[0][1] < _ANNOTATED_SHARE * (top.mine_ns - top.median_ns) * steps:
        return None
    name, inside_ns = rows[0]
    spans = _most_extra(
        run,
        _totals("slices", "dur_ns", f"category = 'gpu_user_annotation' AND name = {sql_text(name)}", window),
        rank,
        steps,
    )
    if spans is None or not spans.median_ns:  # no other rank has this annotation
        return _Extra(name, inside_ns / steps, 0.0)
    return spans


def _source(run: Run, window: Scope, rank: int, name: str, table: str) -> str:
    """The op that launched a kernel, and its line of Python, where they were recorded."""
    rows = run.rows(
        f"""
        SELECT o.name, p.name FROM {table} g
        LEFT JOIN slices o ON o.rank = g.rank AND o.segment = g.segment AND o.id = g.op
        LEFT JOIN slices p ON p.rank = g.rank AND p.segment = g.segment AND p.id = g.python
        WHERE g.rank = {rank} AND g.name = ? AND {window.where("g")}
        GROUP BY ALL ORDER BY sum(g.dur_ns) DESC LIMIT 1
        """,
        [name],
    )
    if not rows:
        return ""
    op, line = rows[0]
    return (f", from {op}" if op and table == "gpu" else "") + (f" at {line}" if line else "")


def _copy(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> StragglerCause:
    window = Scope(steps=scope.steps)
    top = _most_extra(
        run,
        _totals("gpu", "dur_ns", "class = 'COPY'", window),
        rank,
        steps,
    )
    hint = f"List its copies: rankscope stats RUN -r memcpy --by rank --ranks {rank}"
    if top is None:
        return StragglerCause(f"its copies take {format_rounded('ns', extra)} longer", hint=hint)
    longer = format_rounded("ns", top.mine_ns - top.median_ns)
    return StragglerCause(f"its {top.name} takes {longer} longer", top.evidence, hint)


def _dataloader(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> StragglerCause:
    window = Scope(steps=scope.steps)
    top = _most_extra(
        run,
        _totals("slices", "dur_ns", _IS_DATALOADER, window),
        rank,
        steps,
    )
    evidence = top.evidence if top else ""
    return StragglerCause(
        f"it waits {format_rounded('ns', extra)} longer for data",
        evidence,
        "Use more workers, or check what this rank reads: storage, node, size of its files.",
    )


def _host(run: Run, found: Waits, entry: int, rank: int, extra: float) -> StragglerCause:
    """The longest time without an op on the host before the latest arrival."""
    rows = found.rows
    end = int(rows.start[entry])
    title = f"its host is {format_rounded('ns', extra)} late"
    hint = "Record Python stacks to see what the host does: rankscope profile --with-stack"
    gap = run.rows(f"""
        WITH top AS (
            SELECT name, start_ns, start_ns + dur_ns AS end_ns, python, segment,
                   lead(start_ns) OVER w AS next_ns, lead(name) OVER w AS next_name, lead(python) OVER w AS next_line
            FROM slices WHERE rank = {rank} AND category = 'cpu_op' AND op IS NULL
            AND start_ns BETWEEN {end - 10_000_000_000} AND {end}
            AND track = (SELECT track FROM slices WHERE rank = {rank} AND category = 'cpu_op' AND op IS NULL
                         GROUP BY track ORDER BY count(*) DESC LIMIT 1)
            WINDOW w AS (ORDER BY start_ns)
        )
        SELECT t.name, t.next_name, t.next_ns - t.end_ns, p.name FROM top t
        LEFT JOIN slices p ON p.rank = {rank} AND p.segment = t.segment AND p.id = t.next_line
        WHERE t.next_ns IS NOT NULL AND t.next_ns > {end} - 4 * {max(int(extra), 1)} - 1000000
        ORDER BY 3 DESC LIMIT 1
    """)
    if not gap or gap[0][2] < extra / 2:
        return StragglerCause(title, hint=hint)
    before, after, length, line = gap[0]
    if line:
        hint = f"Look at {line}"
    return StragglerCause(
        title,
        f"it runs no op for {format_rounded('ns', length)} between {before} and {after}"
        + (f", at {line}" if line else ""),
        hint,
    )
