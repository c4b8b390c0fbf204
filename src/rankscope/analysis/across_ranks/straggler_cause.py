"""Why a rank is late, in detail: what it runs that others do not, or the kernel, op, micro-batch, annotation, copy,
data loading, link or host gap that takes longer."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.main_thread import Gap, OpsAround, gap_between, gaps
from rankscope.analysis.across_ranks.micro_batches import (
    LongMicroBatch,
    long_micro_batches,
    micro_batch_count,
)
from rankscope.analysis.across_ranks.op_differences import ExtraOps, extra_ops
from rankscope.analysis.across_ranks.slow_clock import SlowClock, slow_clock
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.host_spans import loading_line
from rankscope.analysis.core.result import Fact
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.slice_counts import runs_on_cpu
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.collective_kinds import KINDS
from rankscope.model import DATALOADER_PATTERN
from rankscope.ranges import rank_words
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.arrays import NONE, Floats, unique_values
from rankscope.text.names import bare_name
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

_NAME_WIDTH = 60
_MOST_PEERS = 64
"""Of more ranks than this, the late ones are compared with so many of the others: their events are read by name."""
_GAP_PEERS = 4
_EXTRA_WORK_SHARE = 0.25
"""Ops that only the late rank runs are named where they take this share of what it is late: they slow what follows
them, too (caches). Chosen, not measured."""
_ENGINE = "autograd::engine::evaluate_function: "
_LONGER = 1.25
"""A micro-batch that is long on every rank is to blame where it is longer than on the others by this factor, compared
with the rank's other micro-batches. Chosen, not measured."""
_NEARLY_ALL = 0.84
"""Everything takes longer where ops with this share of the time do. Jobs of benchmarks/exam/ordinary_job.py: from 0.85
on a slow core, up to 0.78 with a large batch."""
_ANNOTATED_SHARE = 0.8
"""An annotation that contains this share of the extra time is named instead of the kernel. Chosen, not measured."""


@dataclass(frozen=True)
class LateRank:
    """A rank, and the class of its time that is longer than that of its peers."""

    rank: int
    together: tuple[int, ...]
    """All ranks that are late for this reason; the others are compared with."""
    cause: str
    extra_ns: float
    """Per step."""
    worst_step: int | None
    """The step in which it is late most; None without steps."""
    steps: int
    own_ns: float = 0.0
    """Per step: how much longer than its peers it takes, in all classes together."""
    in_steps: tuple[int | None, ...] = ()
    """The steps in which it is late, where these are some of several."""

    @property
    def when(self) -> str:
        """Over which steps a mean is, as the end of a sentence."""
        if len(self.in_steps) == 1:
            return f" in step {self.in_steps[0]}"
        return " per late step" if self.in_steps else " per step"


@dataclass(frozen=True)
class StragglerCause:
    """Text and figures for the finding about a late rank."""

    title: str = ""
    """The end of the title."""
    evidence: str = ""
    hint: str = ""
    facts: tuple[Fact, ...] = ()
    names: tuple[str, ...] = ()
    """Names out of the trace in the texts."""
    cause: str = ""
    """Where it is another one than the class of time that is longer: contention."""


def straggler_cause(run: Run, scope: Scope, late: LateRank) -> StragglerCause:
    """What to say about the cause."""
    find = {"compute": _compute, "copy": _copy, "dataloader": _dataloader, "host": _host, "link": _link}
    if late.cause in find:
        return find[late.cause](run, Scope(_compared(run, late), scope.steps), late)
    return StragglerCause(
        f"it waits {format_rounded('ns', late.extra_ns)} longer in other collectives", hint=_COMPARE
    )


def _compared(run: Run, late: LateRank) -> frozenset[int] | None:
    """The late ranks and others, evenly chosen; None means all."""
    others = [rank for rank in run.ranks if rank not in late.together]
    if len(others) <= _MOST_PEERS:
        return None
    return frozenset({*late.together[:_MOST_PEERS], late.rank, *others[:: -(-len(others) // _MOST_PEERS)]})


_COMPARE = "Compare the ranks: rankscope stats RUN -r breakdown"


@dataclass(frozen=True)
class _Extra:
    """The name whose time on the late rank exceeds that on the other ranks most. Times are per step."""

    name: str
    mine_ns: float
    median_ns: float

    def facts(self, report: str, rank: int) -> tuple[Fact, ...]:
        row = {"name": self.name, "rank": rank}
        whose = (
            (f"rank {rank}, per step", self.mine_ns),
            ("the median of the others, per step", self.median_ns),
        )
        return tuple(Fact("total_ns", round(ns), "ns", whom, (rank,), row, report) for whom, ns in whose)

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


_IS_DATALOADER = f"category = 'user_annotation' AND regexp_matches(name, {sql_text(DATALOADER_PATTERN)})"


Totals = list[tuple[int, str, float]]
"""Rank, name and time."""


def _totals(run: Run, table: str, time: str, where: str, window: Scope) -> Totals:
    return part_of(run, window.ranks).rows(
        f"SELECT rank, name, sum({time})::DOUBLE FROM {table} WHERE {where} AND {window.where()} GROUP BY ALL"
    )


def _kernel_totals(run: Run, window: Scope) -> Totals:
    """Of the kernels that compute."""
    sums = kernel_sums(run, window)
    if sums is None:
        return _totals(run, "gpu", "dur_ns", "class = 'COMPUTE'", window)
    return [
        (rank, kernel.name, float(kernel.total_ns))
        for rank, kernels in sums.items()
        for kernel in kernels
        if kernel.kind == "COMPUTE"
    ]


@dataclass(frozen=True)
class _Compared:
    """By name, the time on the late rank and the median of the other ranks, in the window."""

    names: list[str]
    mine: Floats
    median: Floats

    @property
    def slowdown(self) -> float | None:
        """How many times as long everything takes, where nearly all of it does."""
        whole = float(self.mine.sum()) / max(float(self.median.sum()), 1.0)
        slower = self.mine >= (1 + whole) / 2 * self.median
        share = float(self.median[slower].sum()) / max(float(self.median.sum()), 1.0)
        return whole if share >= _NEARLY_ALL and whole > 1 else None


def _compare_names(rows: Totals, late: LateRank) -> _Compared:
    ranks, names = sorted({row[0] for row in rows} | {late.rank}), sorted({row[1] for row in rows})
    line_of = {name: number for number, name in enumerate(names)}
    time = np.zeros((len(names), len(ranks)))
    columns = np.searchsorted(ranks, [row[0] for row in rows])
    time[[line_of[row[1]] for row in rows], columns] = [row[2] for row in rows]
    mine = time[:, ranks.index(late.rank)]
    others = time[:, [number for number, rank in enumerate(ranks) if rank not in late.together]]
    median = np.median(others, axis=1) if others.shape[1] else np.zeros(len(names))
    return _Compared(names, mine, median)


def _most_extra(compared: _Compared, late: LateRank) -> _Extra | None:
    """The name whose time exceeds the median of the other ranks most."""
    names, mine, median = compared.names, compared.mine, compared.median
    best = int((mine - median).argmax()) if names else 0
    if not names or mine[best] <= median[best]:
        return None
    return _Extra(names[best], mine[best] / late.steps, median[best] / late.steps)


def _slow_core(slowdown: float, top: _Extra, late: LateRank) -> StragglerCause:
    """Ops on a host that take longer whatever they do."""
    return StragglerCause(
        f"nearly all its ops take {slowdown:.1f}x the median: a slow core, or more data",
        top.evidence,
        "Ops of the optimizer do not depend on the batch: where they take longer, too, the core is slow (shared with "
        "another process or virtual machine, a lower clock). "
        f"List its ops: rankscope stats RUN -r ops --by rank --ranks {late.rank}",
        (
            Fact("slowdown", slowdown, "", f"rank {late.rank}, all its ops", (late.rank,)),
            *top.facts("ops", late.rank),
        ),
        (top.name,),
    )


def _compute(run: Run, window: Scope, late: LateRank) -> StragglerCause:
    rank = late.rank
    on_gpu = has_gpu(run, Scope())
    if on_gpu:
        totals = _kernel_totals(run, window)
    else:
        totals = _totals(run, "slices", "self_ns", "category = 'cpu_op' AND self_ns > 0", window)
    compared = _compare_names(totals, late)
    top = _most_extra(compared, late)
    annotation = _annotation_around(run, window, late, top) if on_gpu and top else None
    clock = slow_clock(run, window, rank, late.together, late.extra_ns, late.steps) if on_gpu else None
    if clock is not None and top is not None:
        return _slow_clock(clock, top, late)
    if not annotation and (work := _different_work(run, window, late, on_gpu)):
        return work
    if top is None:
        return StragglerCause(f"it computes {format_rounded('ns', late.extra_ns)} longer", hint=_COMPARE)
    if not on_gpu and (slowdown := compared.slowdown) is not None:
        return _slow_core(slowdown, top, late)
    named, report = annotation or top, "kernels" if on_gpu else "ops"
    title = (
        named.title
        if on_gpu
        else f"its {shorten_middle(top.name, _NAME_WIDTH)} takes {format_rounded('ns', top.mine_ns)}"
    )
    op, line = _source(run, window, rank, top.name, "gpu" if on_gpu else "slices")
    return StragglerCause(
        title,
        top.evidence + (f", from {op}" if op else "") + (f" at {line}" if line else ""),
        f"{_what_to_do(named, late)} List its {report}: rankscope stats RUN -r {report} --by rank --ranks {rank}",
        top.facts(report, rank),
        (named.name, op, line),
    )


def _own_ns(late: LateRank) -> float:
    return max(late.own_ns, late.extra_ns)


def _different_work(
    run: Run, window: Scope, late: LateRank, on_gpu: bool, least_ns: float = 0.0
) -> StragglerCause | None:
    """Ops or a micro-batch that the peers do not have, where they explain enough of what a rank is late."""
    extra = extra_ops(run, window, late.rank, late.together, late.worst_step)
    if extra and extra.per_step_ns(on_gpu) >= max(_EXTRA_WORK_SHARE * _own_ns(late), least_ns):
        return _extra_work(run, extra, late, on_gpu)
    batch, usual_ns = _long_micro_batch(run, window, late)
    return _micro_batch(batch, usual_ns, late) if batch and batch.extra_ns - usual_ns >= least_ns else None


def _extra_work(run: Run, extra: ExtraOps, late: LateRank, on_gpu: bool) -> StragglerCause:
    """What a rank runs more often than its peers."""
    # What a peer runs in a step is a forward pass of each of its micro-batches.
    micro_batches = micro_batch_count(run, [rank for rank in run.ranks if rank not in late.together][:1])
    when = (
        " a step"
        if extra.every_step
        else f" in step {late.worst_step}"
        if late.worst_step is not None
        else ""
    )
    ops, op = extra.ops[:1], extra.ops[0]
    name = shorten_middle(op.name, _NAME_WIDTH)
    passes = extra.passes()
    number = passes[0] * micro_batches if passes else Fraction(1, 2)
    if passes and number.denominator == 1:
        ops = passes[1]
        kind = (
            "forward and backward pass" if any(op.name.startswith(_ENGINE) for op in ops) else "forward pass"
        )
        title = f"it runs {number.numerator:,} more {kind}{'es' * (number != 1)}{when} than the others"
    elif op.median_calls:
        title = f"it runs {op.calls - op.median_calls:,} more {name}{when} than the others"
    else:
        times = "once" if op.calls == 1 else f"{op.calls:,} times"
        whose = f"on rank {late.rank} only" if op.only_here else "and not on most others"
        title = f"{name} runs {times}{when} {whose}"
    took = sum(op.device_ns if on_gpu else op.host_ns for op in ops)
    listed = ", ".join(
        f"{shorten_middle(op.name, _NAME_WIDTH)} {op.calls:,} (the others: {op.median_calls:,})"
        for op in extra.ops[:3]
    )
    at = f" of step {late.worst_step}" if late.worst_step is not None else ""
    whom = f"rank {late.rank}"
    return StragglerCause(
        f"{title}, {format_rounded('ns', took)}",
        f"it runs more ops than its peers in {extra.in_steps} of {extra.steps} steps; calls{at}: {listed}",
        "Give every rank this work, do it less often, or do it outside the step. List the ops: "
        f"rankscope stats RUN -r op_differences --ranks {late.rank}",
        (
            Fact("calls", op.calls, "count", f"{whom}{at}", (late.rank,), report="op_differences"),
            Fact(
                "median_calls", op.median_calls, "count", f"{whom}{at}", (late.rank,), report="op_differences"
            ),
            Fact("extra_op_ns", round(took), "ns", whom, (late.rank,)),
        ),
        tuple(op.name for op in extra.ops[:3]),
    )


def _long_micro_batch(run: Run, window: Scope, late: LateRank) -> tuple[LongMicroBatch | None, float]:
    """The micro-batch of the late rank that explains half of what it is late, and how much longer than others the same
    one is on its peers."""
    of_rank = long_micro_batches(run, Scope(window.ranks, window.steps))
    mine = of_rank.get(late.rank)
    if mine is None:
        return None, 0.0
    layout = layout_of(run, Scope())
    others = sorted(
        (batch.extra_ns, batch.ratio) if batch is not None and batch.number == mine.number else (0.0, 1.0)
        for rank in window.ranks_in(run)
        if rank not in late.together and layout.work(rank) == layout.work(late.rank)
        for batch in [of_rank.get(rank)]
    )
    usual, ratio = others[(len(others) - 1) // 2] if others else (0.0, 1.0)
    # Where it is longer in the same proportion, all micro-batches of the rank are.
    is_longer = mine.ratio >= _LONGER * ratio and 2 * (mine.extra_ns - usual) >= _own_ns(late)
    return (mine if is_longer else None), usual


def _micro_batch(batch: LongMicroBatch, usual_ns: float, late: LateRank) -> StragglerCause:
    rank, longer = late.rank, format_rounded("ns", batch.extra_ns)
    than_peers = format_rounded("ns", batch.extra_ns - usual_ns)
    return StragglerCause(
        f"its {batch.name} takes {than_peers} longer than on the other ranks"
        if usual_ns
        else f"its {batch.words}",
        f"that micro-batch takes {longer} per step longer than the others of this rank; it is the longest in "
        f"{batch.steps} of {batch.of_steps} steps",
        f"Compare this micro-batch with those of the other ranks: sequence lengths, samples. List them: "
        f"rankscope stats RUN -r micro_batches --ranks {rank}",
        (
            Fact("ratio", batch.ratio, "", f"rank {rank}, its micro-batch {batch.number + 1}", (rank,)),
            Fact("extra_micro_batch_ns", round(batch.extra_ns), "ns", f"rank {rank}, per step", (rank,)),
        ),
    )


def _slow_clock(clock: SlowClock, top: _Extra, late: LateRank) -> StragglerCause:
    low = clock.low
    whose = "its SM clock was" if len(late.together) == 1 else f"the SM clock of rank {late.rank} was"
    return StragglerCause(
        f"{whose} {low.text}{low.reason}",
        f"its kernels take {clock.slower:.2f}x the time of the others; {low.state.samples:,} samples of its clock "
        f"while it computed; {top.evidence}",
        f"{low.hint} Compare the GPUs: rankscope stats RUN -r gpu",
        (*low.facts(), *top.facts("kernels", late.rank)),
    )


def _what_to_do(named: _Extra, late: LateRank) -> str:
    whose = rank_words(late.together)
    if named.median_ns:
        return f"Compare the work of {whose} with that of the others: shapes, number of calls, clock rate."
    name = shorten_middle(bare_name(named.name), _NAME_WIDTH)
    return f"Remove {name} from {whose}, or give every rank the same work."


def _annotation_around(run: Run, window: Scope, late: LateRank, top: _Extra) -> _Extra | None:
    """The innermost annotation of the program that contains most of the extra time of a kernel, if there is one."""
    rank, steps = late.rank, late.steps
    rows = part_of(run, frozenset({rank})).rows(
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
    same = f"category = 'gpu_user_annotation' AND name = {sql_text(name)}"
    spans = _most_extra(_compare_names(_totals(run, "slices", "dur_ns", same, window), late), late)
    if spans is None or not spans.median_ns:  # no other rank has this annotation
        return _Extra(name, inside_ns / steps, 0.0)
    return spans


def _source(run: Run, window: Scope, rank: int, name: str, table: str) -> tuple[str, str]:
    """The op that launched a kernel, and its line of Python; empty where they were not recorded."""
    rows = part_of(run, frozenset({rank})).rows(
        f"""
        SELECT o.name, p.name FROM {table} g
        LEFT JOIN slices o ON o.rank = g.rank AND o.segment = g.segment AND o.id = g.op
        LEFT JOIN slices p ON p.rank = g.rank AND p.segment = g.segment AND p.id = g.python
        WHERE g.rank = {rank} AND g.name = ? AND {window.where("g")}
        GROUP BY ALL ORDER BY sum(g.dur_ns) DESC LIMIT 1
        """,
        [name],
    )
    op, line = rows[0] if rows else (None, None)
    return (op or "") if table == "gpu" else "", line or ""


def _copy(run: Run, window: Scope, late: LateRank) -> StragglerCause:
    top = _most_extra(_compare_names(_totals(run, "gpu", "dur_ns", "class = 'COPY'", window), late), late)
    hint = f"List its copies: rankscope stats RUN -r memcpy --by rank --ranks {late.rank}"
    if top is None:
        return StragglerCause(f"its copies take {format_rounded('ns', late.extra_ns)} longer", hint=hint)
    longer = format_rounded("ns", top.mine_ns - top.median_ns)
    return StragglerCause(
        f"its {top.name} takes {longer} longer", top.evidence, hint, top.facts("memcpy", late.rank)
    )


def _dataloader(run: Run, window: Scope, late: LateRank) -> StragglerCause:
    top = _most_extra(_compare_names(_totals(run, "slices", "dur_ns", _IS_DATALOADER, window), late), late)
    line = loading_line(run, late.rank)
    return StragglerCause(
        f"it waits {format_rounded('ns', late.extra_ns)} longer for data" + (f" at {line}" if line else ""),
        top.evidence if top else "",
        f"{f'Look at {line}. ' if line else ''}"
        "Use more workers, or check what this rank reads: storage, node, size of its files.",
        top.facts("annotations", late.rank) if top else (),
        (line,),
    )


def _link(run: Run, window: Scope, late: LateRank) -> StragglerCause:
    """The collective whose transfer in a group of the late ranks exceeds that of other groups of its kind most."""
    all_waits = waits(run)
    rows = all_waits.rows
    used = np.flatnonzero(all_waits.wait != NONE)
    inside = np.isin(rows.rank[used], late.together)
    slow = unique_values(rows.group[used[inside & (rows.rank[used] == late.rank)]])
    best: tuple[float, str, float, float] | None = None
    for group in slow.tolist():
        mine = used[rows.group[used] == group]
        for kind, size in {(int(rows.kind[i]), int(rows.bytes[i])) for i in mine.tolist()}:
            alike = (rows.kind[used] == kind) & (rows.bytes[used] == size)
            here = np.median(all_waits.entry_transfer[used[alike & (rows.group[used] == group)]])
            others = all_waits.entry_transfer[used[alike & ~np.isin(rows.group[used], slow)]]
            if len(others) and (best is None or here - np.median(others) > best[0]):
                name = f"{KINDS[kind]} in group {rows.groups[group].name}"
                best = (float(here - np.median(others)), name, float(here), float(np.median(others)))
    title = f"{'its' if len(late.together) == 1 else 'their'} link is slow"
    hint = (
        f"Compare its groups: rankscope stats RUN -r collectives. Check the links of "
        f"{rank_words(late.together)}: cables, switch ports, "
        f"{'NVLink, NIC (nvidia-smi nvlink --status, ibstat)' if not runs_on_cpu(run) else 'NIC (ibstat, ethtool)'}."
    )
    if best is None:
        return StragglerCause(title, hint=hint)
    _, name, mine_ns, other_ns = best
    return StragglerCause(
        f"{title}: {mine_ns / max(other_ns, 1):.1f}x the transfer time of other groups",
        f"{name}: the transfer takes {format_rounded('ns', mine_ns)}, in groups of its kind and size "
        f"{format_rounded('ns', other_ns)}",
        hint,
        (
            Fact("transfer_ns", round(mine_ns), "ns", name, late.together, report="collectives"),
            Fact("transfer_ns", round(other_ns), "ns", "other groups of its kind", report="collectives"),
        ),
        tuple(rows.groups[group].name for group in slow.tolist()),
    )


def _host(run: Run, window: Scope, late: LateRank) -> StragglerCause:
    """The times without an op on its main thread, unless work that its peers do not have takes longer."""
    gap, spread = _longest_gap(run, window, late)
    if work := _different_work(run, window, late, on_gpu=False, least_ns=gap.extra_ns if gap else 0.0):
        return work
    title = f"its host is {format_rounded('ns', late.extra_ns)} late"
    if gap is None:
        return StragglerCause(title, spread, _host_hint(run, late.rank, None))
    rank, names = late.rank, {"annotation": gap.gap.annotation, "line": gap.gap.line}
    return StragglerCause(
        f"{title} {gap.where}".rstrip(),
        f"its main thread runs no op for {gap.text(late)}",
        _host_hint(run, rank, gap.gap),
        (
            Fact("gap_ns", round(gap.late_step_ns), "ns", f"rank {rank},{late.when}", (rank,)),
            *(Fact(name, value, "", f"rank {rank}", (rank,)) for name, value in names.items() if value),
        ),
        tuple(name for name in (*names.values(), gap.gap.before, gap.gap.after) if name),
    )


@dataclass(frozen=True)
class _LongGap:
    """The gaps of the main thread between ops of the same names that last longer than on the peers by most."""

    gap: Gap
    late_step_ns: float
    """Per step in which the rank is late."""
    peers_ns: float
    """The same on the median of the peers."""
    extra_ns: float
    """How much longer than on the peers, per step of the window."""

    @property
    def between(self) -> str:
        """The ops before and after; a gap at the end of what was recorded has none after it."""
        before, after = (
            shorten_middle(name.removeprefix(_ENGINE), _NAME_WIDTH)
            for name in (self.gap.before, self.gap.after)
        )
        return f"between {before} and {after or 'the end of the recording'}" if before else ""

    @property
    def where(self) -> str:
        annotation = shorten_middle(self.gap.annotation, _NAME_WIDTH)
        return f"in {annotation}" if annotation else self.between

    def text(self, late: LateRank) -> str:
        line = f"at {self.gap.line}" if self.gap.line else ""
        places = ", ".join(dict.fromkeys(part for part in (self.where, self.between, line) if part))
        gaps_seen = f"{self.gap.count:,} gap{'s' * (self.gap.count != 1)}"
        others = f"{format_rounded('ns', self.peers_ns)} on the others"
        return f"{format_rounded('ns', self.late_step_ns)}{late.when} {places} ({gaps_seen}; {others})"


def _longest_gap(run: Run, window: Scope, late: LateRank) -> tuple[_LongGap | None, str]:
    """The gap, if it explains half of what the host is late; else, where all gaps together do, a text about them."""
    ranks = (late.rank, *_some_peers(run, window, late))
    part = part_of(run, frozenset(ranks))
    spans: dict[int, list[tuple[int, int]]] = {rank: [] for rank in ranks}
    for period in periods(run, Scope(frozenset(ranks), window.steps)):
        if not late.in_steps or period.step in late.in_steps:
            spans[period.rank].append((period.start_ns, period.end_ns))
    mine, *others = (gaps(part, rank, spans[rank]) for rank in ranks)
    totals, usual = mine.totals(), [times.totals() for times in others]
    peers_ns = _usual_gaps(totals, usual)
    ops = max(totals, key=lambda ops: totals[ops] - peers_ns[ops], default=None)
    least, late_steps = late.extra_ns * late.steps / 2, len(late.in_steps) or late.steps
    if ops is None or totals[ops] - peers_ns[ops] < least:
        all_others = sorted(sum(of_rank.values()) for of_rank in usual) or [0]
        longer = sum(totals.values()) - all_others[(len(all_others) - 1) // 2]
        return None, (
            f"its main thread runs no op for {format_rounded('ns', longer / late_steps)}{late.when} longer than "
            f"the others, in {len(mine.start):,} gaps, none of which explains half of it"
            if longer >= least > 0
            else ""
        )
    gap = _LongGap(
        gap_between(part, late.rank, mine, ops),
        totals[ops] / late_steps,
        peers_ns[ops] / late_steps,
        (totals[ops] - peers_ns[ops]) / late.steps,
    )
    return gap, ""


def _usual_gaps(totals: dict[OpsAround, int], of_peers: list[dict[OpsAround, int]]) -> dict[OpsAround, int]:
    """For the gaps of a rank, by the ops around them: what is usual on its peers.

    Ops that only this rank runs divide a gap that its peers have too: what they have longer after the same op, or
    before the same op, is the gap's.
    """
    usual = {}
    for around in {*totals, *(each for of_rank in of_peers for each in of_rank)}:
        ordered = sorted(of_rank.get(around, 0) for of_rank in of_peers)
        usual[around] = ordered[(len(ordered) - 1) // 2] if ordered else 0
    longer: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for around, usual_ns in usual.items():
        for side in (0, 1):
            longer[side][around[side]] += max(0, usual_ns - totals.get(around, 0))
    return {
        around: usual[around]
        + (max(longer[0][around[0]], longer[1][around[1]]) if total > usual[around] else 0)
        for around, total in totals.items()
    }


def _some_peers(run: Run, window: Scope, late: LateRank) -> list[int]:
    """A few ranks of the same pipeline stage that are not late: their gaps are what is usual."""
    layout = layout_of(run, Scope())
    alike = [
        rank
        for rank in window.ranks_in(run)
        if rank not in late.together and layout.work(rank) == layout.work(late.rank)
    ]
    return alike[:: -(-len(alike) // _GAP_PEERS)] if alike else []


def _host_hint(run: Run, rank: int, gap: Gap | None) -> str:
    if gap and gap.line:
        return f"Look at {gap.line}"
    if gap and gap.annotation:
        return f"Look at what the program does in {gap.annotation}"
    if run.rows(f"SELECT 1 FROM slices WHERE rank = {rank} AND category = 'python_function' LIMIT 1"):
        return f"List its ops by Python line: rankscope stats RUN -r ops --by source --ranks {rank}"
    return "Record Python stacks to see what the host does: rankscope profile --with-stack"
