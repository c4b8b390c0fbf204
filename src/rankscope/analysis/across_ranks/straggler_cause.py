"""What exactly a late rank was doing: which kernel, op or annotation, copy, data loading or gap on the host."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rankscope.analysis.across_ranks.blame import Blame
from rankscope.analysis.across_ranks.collective_waits import Waits
from rankscope.analysis.across_ranks.rank_activity import PARTS
from rankscope.analysis.core.intervals import Ints
from rankscope.analysis.core.scope import Scope
from rankscope.model import DATALOADER_PATTERN
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE
from rankscope.store.run import Run
from rankscope.units import format_ns, shorten_middle

_NAME_WIDTH = 60
_MOSTLY = 0.8
"""An annotation that holds this share of the extra time is what to name."""


@dataclass(frozen=True)
class Reason:
    """Why a rank is late, for a finding: the end of its title, more of its evidence, and the next step."""

    cause: str
    text: str = ""
    evidence: str = ""
    hint: str = ""


def reason(run: Run, scope: Scope, found: Waits, why: Blame, roots: Ints, rank: int, steps: int) -> Reason:
    """Of the matches in which this rank was the first to be late."""
    roots = roots[(found.last[roots] != NONE)]
    spent = why.excess[:, roots].sum(axis=1)
    if len(roots) == 0 or spent.max() == 0:
        return Reason("", hint=_LOOK)
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
    return Reason(
        cause, f"it waits {format_ns(extra, 1)} longer in collectives that others are not in", hint=_LOOK
    )


_LOOK = "Compare the ranks: rankscope stats RUN -r breakdown"


@dataclass(frozen=True)
class _Extra:
    """A name whose time on the late rank exceeds that on the others most."""

    name: str
    mine_ns: float
    median_ns: float
    count: float

    @property
    def evidence(self) -> str:
        name = shorten_middle(self.name, _NAME_WIDTH)
        return (
            f"{name}: {format_ns(self.mine_ns, 1)} a step, {format_ns(self.median_ns, 1)} on the median rank"
        )

    @property
    def words(self) -> str:
        name = shorten_middle(bare_name(self.name), _NAME_WIDTH)
        if self.median_ns * 1.05 < self.mine_ns and self.median_ns > 0:
            return f"its {name} takes {self.mine_ns / self.median_ns:.1f}x the median"
        return f"{name} runs {format_ns(self.mine_ns, 1)} on its GPU"


def bare_name(kernel: str) -> str:
    """A C++ name without its type, namespaces, template and arguments: what people call the kernel."""
    plain = re.split(r"[<(]", kernel.removeprefix("void "), maxsplit=1)[0]
    return plain.rpartition("::")[2].strip() or kernel


_LOADING = f"category = 'user_annotation' AND regexp_matches(name, {sql_text(DATALOADER_PATTERN)})"


def _totals(table: str, time: str, where: str, window: Scope) -> str:
    totals = f"SELECT rank, name, sum({time})::DOUBLE, count(*) FROM {table}"
    return f"{totals} WHERE {where} AND {window.where()} GROUP BY ALL"


def _most_extra(run: Run, sql: str, rank: int, steps: int) -> _Extra | None:
    """From rows (rank, name, time, count): the name with the largest time per step beyond the median rank's."""
    rows = run.rows(sql)
    ranks = sorted({row[0] for row in rows} | {rank})
    names = sorted({row[1] for row in rows})
    if not names:
        return None
    time = np.zeros((len(names), len(ranks)))
    count = np.zeros(len(names))
    for row_rank, name, total, number in rows:
        time[names.index(name), ranks.index(row_rank)] = total
        if row_rank == rank:
            count[names.index(name)] = number
    mine = time[:, ranks.index(rank)]
    others = np.delete(time, ranks.index(rank), axis=1)
    median = np.median(others, axis=1) if others.shape[1] else np.zeros(len(names))
    best = int((mine - median).argmax())
    if mine[best] <= median[best]:
        return None
    return _Extra(names[best], mine[best] / steps, median[best] / steps, count[best] / steps)


def _compute(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> Reason:
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
        return Reason("compute", f"it computes {format_ns(extra, 1)} longer", hint=_LOOK)
    evidence = top.evidence
    marked = _marked(run, window, rank, top, steps) if on_gpu else None
    place = _place(run, window, rank, top.name, table)
    if marked is not None:
        shown = marked
    elif on_gpu:
        shown = top
    else:
        shown = None
    words = (
        shown.words
        if shown
        else f"its {shorten_middle(top.name, _NAME_WIDTH)} takes {format_ns(top.mine_ns, 1)}"
    )
    return Reason(
        "compute",
        words,
        f"{evidence}{place}",
        f"See all its kernels: rankscope stats RUN -r kernels --by rank --ranks {rank}"
        if on_gpu
        else f"See all its ops: rankscope stats RUN -r ops --by rank --ranks {rank}",
    )


def _marked(run: Run, window: Scope, rank: int, top: _Extra, steps: int) -> _Extra | None:
    """The innermost range of the program's own that holds most of the extra kernel's time, if there is one."""
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
    if not rows or rows[0][1] < _MOSTLY * (top.mine_ns - top.median_ns) * steps:
        return None
    name, inside_ns = rows[0]
    spans = _most_extra(
        run,
        _totals("slices", "dur_ns", f"category = 'gpu_user_annotation' AND name = {sql_text(name)}", window),
        rank,
        steps,
    )
    if spans is None or not spans.median_ns:  # no other rank has it: what it holds is all extra
        return _Extra(name, inside_ns / steps, 0.0, 0.0)
    return spans


def _place(run: Run, window: Scope, rank: int, name: str, table: str) -> str:
    """Which op launched it, and from which line, as far as the trace tells."""
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


def _copy(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> Reason:
    window = Scope(steps=scope.steps)
    top = _most_extra(
        run,
        _totals("gpu", "dur_ns", "class = 'COPY'", window),
        rank,
        steps,
    )
    hint = f"See its copies: rankscope stats RUN -r memcpy --by rank --ranks {rank}"
    if top is None:
        return Reason("copy", f"its copies take {format_ns(extra, 1)} longer", hint=hint)
    evidence = top.evidence
    return Reason(
        "copy", f"its {top.name} takes {format_ns(top.mine_ns - top.median_ns, 1)} longer", evidence, hint
    )


def _dataloader(run: Run, scope: Scope, rank: int, steps: int, extra: float) -> Reason:
    window = Scope(steps=scope.steps)
    top = _most_extra(
        run,
        _totals("slices", "dur_ns", _LOADING, window),
        rank,
        steps,
    )
    evidence = top.evidence if top else ""
    return Reason(
        "dataloader",
        f"it waits {format_ns(extra, 1)} longer for data",
        evidence,
        "More workers, or look at what this rank reads: storage, node, uneven files",
    )


def _host(run: Run, found: Waits, entry: int, rank: int, extra: float) -> Reason:
    """The longest stretch before the worst arrival in which the host ran no op."""
    rows = found.rows
    end = int(rows.start[entry])
    text = f"its host is {format_ns(extra, 1)} late"
    hint = "Record Python lines to see what the host does there: rankscope profile --with-stack"
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
        return Reason("host", text, hint=hint)
    before, after, length, line = gap[0]
    if line:
        hint = f"Look at {line}"
    return Reason(
        "host",
        text,
        f"it runs no op for {format_ns(length, 1)} between {before} and {after}"
        + (f", at {line}" if line else ""),
        hint,
    )
