"""Which rank makes the others wait, how long, and why it is late."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from rankscope.analysis.across_ranks.blame import WAITING, Blame, blame
from rankscope.analysis.across_ranks.comparison_notes import comparison_notes, missing_ranks
from rankscope.analysis.across_ranks.data_imbalance import data_evidence
from rankscope.analysis.across_ranks.host_cpu import Shortage, shortage_of_cores
from rankscope.analysis.across_ranks.lateness import OWN, Culprits, Lateness, culprits, lateness
from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.across_ranks.nodes import node_of
from rankscope.analysis.across_ranks.op_differences import most_extra
from rankscope.analysis.across_ranks.recurrence import recurrence
from rankscope.analysis.across_ranks.segments import runs_more_kernels
from rankscope.analysis.across_ranks.straggler_cause import LateRank, StragglerCause, straggler_cause
from rankscope.analysis.across_ranks.time_split import PARTS
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.intervals import Axis, Ints, union
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import at_most, graded
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.store.arrays import NONE, number_rows, unique_values
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("last_count", "count", "collectives at which it arrived last", title="Last"),
    Column(
        "caused_wait_ns",
        "ns",
        "time that other ranks waited because of it, summed over them; each counts at most the time by which it was "
        "slower than its peers in that step",
        title="Caused wait",
    ),
    Column("own_wait_ns", "ns", "time that it waited for other ranks", title="Own wait"),
    Column(
        "compute_ns", "ns", "extra compute time before those collectives, over the median of the other ranks"
    ),
    Column("host_ns", "ns", "extra time in none of the other classes: the host is late"),
    Column("copy_ns", "ns", "extra time in copies", minor=True),
    Column("dataloader_ns", "ns", "extra time waiting for data", minor=True),
    Column("waiting_ns", "ns", "extra time waiting in other collectives", minor=True),
    Column("link_ns", "ns", "extra time in the transfers of other collectives", minor=True),
    Column(
        "cause",
        "",
        "the largest of these; of the rank that the finding names, the cause that it states",
        at_end=True,
    ),
)

_CAUSES = ("compute", "host", "copy", "dataloader", "waiting", "link")
_SHORT_OF_CORES = Finding("ok", "No straggler", "all ranks are short of cores (-r host_cpu)")
_LEAST_SHARE = 0.01
"""Waits below this share of a step are not reported as moving between ranks. Cases healthy-*; moving-5% is above."""


@dataclass(frozen=True)
class CausedWait:
    """How long some ranks made the others wait, over all steps; without steps, over the window."""

    ranks: tuple[int, ...]
    """One rank, or those of a node or of a slow link."""
    waiting_ranks: int
    per_step_ns: float
    """Per waiting rank and step; time spent waiting in two collectives at once counts once."""
    share: float
    """per_step_ns as a share of a step."""
    worst_steps: int
    """Steps in which they caused more waiting than any other rank."""
    steps: int
    """0 in a run without steps."""


def stragglers(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank, by the wait it caused."""
    all_waits, why = waits(run), blame(run)
    used, late, who, caused = _judged(run, scope)
    # Own times compare ranks that wait for each other: without any communication that is not known.
    meets = len(all_waits.rows.rank) > 0
    finding = _finding(run, scope, all_waits, late, who, caused) if late is not None and meets else None
    rows = _rows(all_waits, why, used, scope, finding, caused if run.has_traces else None)
    if not run.has_traces:
        rows = [row | dict.fromkeys((*(f"{name}_ns" for name in PARTS), "cause")) for row in rows]
        finding = _late_without_trace(all_waits, used, rows)
    notes = comparison_notes(run, scope)
    if not used.any():
        notes.append(
            "waiting times are not known: no all_reduce, all_gather, reduce_scatter, all_to_all or barrier in the "
            "window was matched across ranks"
        )
    elif late is not None and late.steps == (None,):
        notes.append(
            "no steps in the window: waits are of the whole window, and whether they repeat is not known"
        )
    # Nobody among the recorded ranks may be late because one that is missing is.
    missing = [] if finding else missing_ranks(run)
    return Result(
        "stragglers",
        "Stragglers",
        scope.window,
        COLUMNS,
        rows,
        (finding,) if finding else (),
        tuple(notes),
        unknown=missing[0] if missing else None,
    )


@once_per_run
def _judged(run: Run, scope: Scope) -> tuple[Any, Lateness | None, Culprits, _Caused | None]:
    """Which arrivals are used, how late ranks are in the steps in scope, who is named, and who caused which wait."""
    all_waits, why = waits(run), blame(run)
    arrivals = why.arrivals
    # By arrival: its waits are known and it lies in the window.
    used = np.ones(len(arrivals.step), dtype=bool)
    used[: len(all_waits.transfer)] = all_waits.transfer != NONE
    if scope.steps is not None:
        used &= (arrivals.step >= scope.steps[0]) & (arrivals.step <= scope.steps[1])
    late = lateness(run, Scope(steps=scope.steps))
    who = culprits(late) if late is not None else Culprits()
    if late is not None and _is_stage_with_more_layers(run, late, who.ranks):
        who = Culprits()  # the report `bubbles` has it
    caused = _caused(run, all_waits, why, used, late, who)
    # Work that moves between GPUs is more ops on one of them in each step.
    if late is None or who.ranks or caused is None or (who.moves and not late.on_host):
        return used, late, who, caused
    # Where times tell nobody, what only one rank runs may.
    extra = _with_extra_ops(run, scope, late)
    by_ops = _caused(run, all_waits, why, used, late, extra) if extra.ranks else caused
    is_waited_for = by_ops is not None and bool(extra.ranks) and by_ops.by(extra.ranks).share >= _LEAST_EXTRA
    return (used, late, extra, by_ops) if is_waited_for else (used, late, who, caused)


def caused_waits(run: Run, scope: Scope) -> tuple[Ints, Ints, Ints]:
    """The rank that caused a wait, the rank that waited, and how long; empty where waits are not known."""
    caused = _judged(run, scope)[3]
    if caused is None:
        return (np.zeros(0, dtype=np.int64),) * 3
    return caused.groups[:, 1], caused.groups[:, 2], caused.waited


_LEAST_EXTRA = 0.05
"""Of the mean step that a rank spends with what its peers do not run, and that others wait for it. A rank that prints
or saves does a little more in any job. Jobs svd and evaluation of benchmarks/exam/ordinary_job.py."""


def _with_extra_ops(run: Run, scope: Scope, late: Lateness) -> Culprits:
    """The rank that runs ops which its peers do not run, or not as often, for a considerable time."""
    extra = most_extra(run, scope, on_device=not late.on_host)
    if extra is None or extra.per_step_ns < _LEAST_EXTRA * late.mean_step_ns or extra.rank not in late.ranks:
        return Culprits()
    steps = tuple(step for step in late.steps if step in extra.in_steps)
    count = len(steps) or len(late.steps)
    return Culprits((extra.rank,), own_ns=extra.per_step_ns, late_steps=count, in_steps=steps)


def _is_stage_with_more_layers(run: Run, late: Lateness, ranks: tuple[int, ...]) -> bool:
    """Whether the late rank is alone in its pipeline stage and runs more kernels than others: no fault of the rank."""
    if len(ranks) != 1:
        return False
    number = late.ranks.index(ranks[0])
    is_compute = OWN[int(late.excess[:, number].mean(axis=1).argmax())] == "compute"
    alone = is_compute and not late.has_peers[number]
    return alone and runs_more_kernels(run, layout_of(run, Scope()).stage(ranks[0])) is True


def _late_without_trace(all_waits: Waits, used: Any, rows: list[dict[str, Any]]) -> Finding | None:
    """The rank that made the others wait most, where only collectives were recorded: its cause is not known."""
    worst, matches, ranks = next(iter(rows), None), int(used.sum()), len(rows)
    if worst is None or ranks < 2 or not worst["caused_wait_ns"]:
        return None
    span = int(all_waits.rows.end.max() - all_waits.rows.start.min())
    each = worst["caused_wait_ns"] / (ranks - 1)
    share = each / span if span else 0.0
    if 2 * worst["last_count"] <= matches or share <= _LEAST_SHARE:
        return Finding("ok", "No straggler", "No rank is last in more than half of the collectives.")
    rank = worst["rank"]
    return Finding(
        at_most(graded(each, span, 0.0) or "info", "warning"),
        f"Rank {rank} made the others wait {format_rounded('ns', each)} of the window ({100 * share:.0f} %)",
        f"it is last in {worst['last_count']:,} of {matches:,} collectives",
        ranks=(rank,),
        hint="Why is not in NCCL's files: record a trace of this rank and one other (rankscope profile --ranks).",
        facts=(
            Fact("wait_ns", round(each), "ns", "each other rank, mean", (rank,), {"rank": rank}),
            Fact("caused_wait_pct", 100 * share, "percent", "of the window", (rank,)),
            Fact("last_count", worst["last_count"], "count", f"rank {rank}", (rank,), {"rank": rank}),
            Fact("collectives", matches, "count", "matched across ranks"),
        ),
    )


def _rows(
    all_waits: Waits, why: Blame, used: Any, scope: Scope, finding: Finding | None, charged: _Caused | None
) -> list[dict[str, Any]]:
    """`charged`: who caused which wait; without traces it is not known what a rank may be charged with."""
    entries, arrivals = all_waits.rows, why.arrivals
    stated = finding.fact("cause") if finding else None
    ranks = unique_values(entries.rank)
    count = int(ranks.max(initial=-1)) + 1
    waited = np.flatnonzero((all_waits.wait > 0) & (arrivals.of_entry != NONE))
    waited = waited[used[arrivals.of_entry[waited]]]
    own_wait = _sums(entries.rank[waited], all_waits.wait[waited], count)
    if charged is not None:
        caused = _sums(charged.groups[:, 1], charged.waited, count)
    else:
        blamed = waited[why.rank[arrivals.of_entry[waited]] != NONE]
        caused = _sums(why.rank[arrivals.of_entry[blamed]], all_waits.wait[blamed], count)
    last = np.flatnonzero(used & (arrivals.last != NONE))
    last_rank = entries.rank[arrivals.last[last]]
    lasts = np.bincount(last_rank, minlength=count)
    parts = {name: _sums(last_rank, why.excess[i, last], count) for i, name in enumerate(PARTS)}
    rows = []
    for rank in ranks.tolist():
        if scope.ranks is not None and rank not in scope.ranks:
            continue
        spent = {name: int(parts[name][rank]) for name in PARTS}
        cause = max(spent, key=lambda name: spent[name])
        rows.append(
            {
                "rank": rank,
                "last_count": int(lasts[rank]),
                "caused_wait_ns": int(caused[rank]),
                "own_wait_ns": int(own_wait[rank]),
                **{f"{name}_ns": spent[name] for name in _CAUSES},
                "cause": stated.value if stated and rank in stated.ranks else cause if spent[cause] else None,
            }
        )
    return sorted(rows, key=lambda row: (-row["caused_wait_ns"], row["rank"]))


def _sums(index: Ints, value: Ints, count: int) -> Ints:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, index, value)
    return total


@dataclass(frozen=True)
class _Caused:
    """Waiting by step, by the rank that caused it and by the rank that waited."""

    steps: tuple[int | None, ...]
    groups: Ints
    """Rows of (index of the step, causing rank, waiting rank)."""
    waited: Ints
    mean_step_ns: float

    def by(self, ranks: tuple[int, ...]) -> CausedWait:
        """What these ranks together made the others wait."""
        causing, waiting = self.groups[:, 1], self.groups[:, 2]
        mine = np.isin(causing, ranks)
        theirs = mine & ~np.isin(waiting, ranks)
        table = np.zeros((len(self.steps), max(int(causing.max(initial=0)), *ranks) + 1), dtype=np.int64)
        # A node counts as one: its ranks add up in the column of the first.
        np.add.at(table, (self.groups[:, 0], np.where(mine, ranks[0], causing)), self.waited)
        count = len(unique_values(waiting[theirs]))
        per_step = float(self.waited[theirs].sum()) / max(count, 1) / len(self.steps)
        worst = (table.argmax(axis=1) == ranks[0]) & (table.max(axis=1) > 0)
        return CausedWait(
            ranks=ranks,
            waiting_ranks=count,
            per_step_ns=per_step,
            share=per_step / self.mean_step_ns if self.mean_step_ns else 0.0,
            worst_steps=int(worst.sum()),
            steps=0 if self.steps == (None,) else len(self.steps),
        )

    def largest(self) -> CausedWait | None:
        """Of the single rank that caused most; None where no rank waited."""
        if len(self.groups) == 0:
            return None
        total = np.zeros(int(self.groups[:, 1].max()) + 1, dtype=np.int64)
        np.add.at(total, self.groups[:, 1], self.waited)
        return self.by((int(total.argmax()),))


def _caused(
    run: Run, all_waits: Waits, why: Blame, used: Any, late: Lateness | None, who: Culprits
) -> _Caused | None:
    """None where waits are not known."""
    if late is None:
        return None
    entries, arrivals = all_waits.rows, why.arrivals
    at = np.flatnonzero((all_waits.wait > 0) & (arrivals.of_entry != NONE))
    at = at[used[arrivals.of_entry[at]] & (why.rank[arrivals.of_entry[at]] != NONE)]
    if late.steps == (None,):
        step = np.zeros(len(at), dtype=np.int64)
    else:
        numbers = np.array(late.steps, dtype=np.int64)
        at = at[np.isin(arrivals.step[arrivals.of_entry[at]], numbers)]
        step = np.searchsorted(numbers, arrivals.step[arrivals.of_entry[at]])
    blamed = _through_chains(run, why, late, who, arrivals.of_entry[at], step)
    groups, group = number_rows([step, blamed, entries.rank[at]])
    start, end = entries.start[at], entries.start[at] + all_waits.wait[at]
    axis = Axis.over(start, end, len(groups))
    # Waits of a rank that overlap count once.
    waited = axis.lengths(union(axis.place(start, group), axis.place(end, group)))
    waited = _charged(late, groups, waited)
    return _Caused(late.steps, groups[waited > 0], waited[waited > 0], late.mean_step_ns)


def _charged(late: Lateness, groups: Ints, waited: Ints) -> Ints:
    """Of each wait what its cause is charged with: at most by how much its activities exceed those of its peers.

    What it saves elsewhere counts for nothing: a rank that others wait for often has less left to do on its host. What
    it is late at the end of a step, others wait for in the next one: that part of its excess is left for it.
    """
    excess = np.zeros(
        (max(*late.ranks, int(groups[:, 1].max(initial=0))) + 1, len(late.steps)), dtype=np.int64
    )
    excess[list(late.ranks)] = np.maximum(late.excess, 0).sum(axis=0)
    pairs, pair = number_rows([groups[:, 1], groups[:, 2]])
    waits = np.zeros((len(pairs), len(late.steps)), dtype=np.int64)
    waits[pair, groups[:, 0]] = waited
    charged, left = np.zeros_like(waits), np.zeros(len(pairs), dtype=np.int64)
    for step in range(len(late.steps)):
        allowed = excess[pairs[:, 0], step]
        charged[:, step] = np.minimum(waits[:, step], allowed + left)
        left = np.minimum(allowed, allowed + left - charged[:, step])
    result: Ints = charged[pair, groups[:, 0]]
    return result


def _through_chains(run: Run, why: Blame, late: Lateness, who: Culprits, arrival: Ints, step: Ints) -> Ints:
    """By wait: the rank to blame. A chain of waiting that ends nowhere, at a receive or at a slow transfer, goes on to
    the late rank of the same pipeline or group."""
    blamed: Ints = why.rank[arrival].copy()
    if not who.ranks:
        return blamed
    ends_nowhere = np.isin(why.cause[why.root[arrival]], [NONE, WAITING, PARTS.index("link")])
    layout = layout_of(run, Scope())
    excess = late.own_excess
    for rank in who.ranks:
        near = {other for axis in layout.axes for other in layout.group_of(rank, axis)}
        is_late = excess[late.ranks.index(rank)] > 0
        blamed[ends_nowhere & np.isin(blamed, sorted(near - set(who.ranks))) & is_late[step]] = rank
    return blamed


def _finding(
    run: Run, scope: Scope, all_waits: Waits, late: Lateness, who: Culprits, caused: _Caused | None
) -> Finding | None:
    largest = caused.largest() if caused else None
    wait = caused.by(who.ranks) if caused and who.ranks else None
    if who.ranks and (wait is None or not wait.waiting_ranks):  # send and receive have no known waits
        steps = 0 if late.steps == (None,) else len(late.steps)
        share = who.own_ns / late.mean_step_ns
        waiting = len(late.ranks) - len(who.ranks)
        wait = CausedWait(who.ranks, waiting, who.own_ns, share, who.late_steps, steps)
    if wait is not None:
        straggler = _straggler(run, scope, all_waits, late, wait, who.in_steps)
        short = shortage_of_cores(run, scope)
        return _SHORT_OF_CORES if short is not None and _is_shortage(straggler, who, short) else straggler
    if largest is None:
        return None
    if who.moves and largest.share >= _LEAST_SHARE:
        return _SHORT_OF_CORES if shortage_of_cores(run, scope) else _moving(run, scope, late)
    unit = "per step" if largest.steps else "of the window"
    text = f"{format_rounded('ns', largest.per_step_ns)} {unit} ({100 * largest.share:.1f} %)"
    return Finding("ok", "No straggler", f"the longest wait is for rank {largest.ranks[0]}: {text}")


def _is_shortage(straggler: Finding, who: Culprits, short: Shortage) -> bool:
    """Whether a late rank may only be the one that waited longest for a core, where all ranks wait for cores."""
    stated = straggler.fact("cause")
    if stated is not None and stated.value == "contention":
        return True
    # Pauses that were measured, or ops that only this rank runs.
    is_certain = any(fact.report in ("host_cpu", "op_differences") for fact in straggler.facts)
    return not is_certain and who.own_ns < short.run_delay_ns


def _straggler(
    run: Run,
    scope: Scope,
    all_waits: Waits,
    late: Lateness,
    wait: CausedWait,
    in_steps: tuple[int | None, ...],
) -> Finding:
    """`in_steps`: those in which it is late, where these are some of several."""
    # Of the ranks of a node, what most of them have: a pause of one of them adds to it.
    numbers = [late.ranks.index(rank) for rank in wait.ranks]
    excess = np.median(late.excess[:, numbers], axis=1) if late.node else late.excess[:, numbers[0]]
    per_part = excess.mean(axis=1)
    cause = longest = OWN[int(per_part.argmax())] if per_part.max() > 0 else "waiting"
    extra = float(per_part.max()) if per_part.max() > 0 else wait.per_step_ns
    worst = late.steps[int(excess[int(per_part.argmax())].argmax())]
    ranks = tuple(sorted(wait.ranks))
    node = node_of(run, ranks)
    late_ns = float(excess.sum(axis=0).mean())
    why = straggler_cause(
        run, scope, LateRank(wait.ranks[0], ranks, cause, extra, worst, wait.steps or 1, late_ns, in_steps)
    )
    cause = why.cause or longest
    unit = "per step" if wait.steps else "of the window"
    of = "step" if wait.steps else "window"
    name = f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {as_ranges(list(ranks))}"
    subject = rank_words(ranks)
    others = f"{wait.waiting_ranks} other{'s' * (wait.waiting_ranks != 1)}"
    share = min(100 * wait.share, 100.0)
    # A rank alone in its pipeline stage has no peers: whether the stage or the rank is slow is not known.
    is_stage = len(ranks) == 1 and not late.has_peers[late.ranks.index(ranks[0])]
    if node:
        name = f"Node {node} ({name.lower()})"
    elif is_stage:
        name = f"Stage {layout_of(run, Scope()).stage(ranks[0])} ({name.lower()})"
    title = f"{name} made {others} wait {format_rounded('ns', wait.per_step_ns)} {unit} ({share:.0f} %)"
    if len(in_steps) == 1:
        title += f", late in step {in_steps[0]}"
    elif in_steps:
        title += f", late in {len(in_steps)} of {wait.steps} steps"
    took = f"{'it takes' if len(ranks) == 1 else 'they take'} {format_rounded('ns', extra)} {unit} longer ({cause})"
    evidence = [
        f"it caused the largest wait in {wait.worst_steps} of {wait.steps} steps" if wait.steps else took
    ]
    how_often, hint = "", why.hint
    if in_steps:
        number = late.ranks.index(wait.ranks[0])
        least = min(late.own_excess[number, late.steps.index(step)] for step in in_steps)
        how_often, more = recurrence(run, ranks, _numbers(in_steps), _numbers(late.steps), float(least))
        hint = ". ".join(filter(None, (hint.rstrip("."), more)))
    row = {"rank": ranks[0]}
    facts = (
        Fact("cause", cause, "", subject, ranks, row),
        Fact("wait_per_step_ns", round(wait.per_step_ns), "ns", f"each waiting rank, {unit}", ranks),
        Fact("caused_wait_pct", share, "percent", f"of the {of}", ranks),
        Fact(f"extra_{longest}_ns", round(extra), "ns", f"{subject}, {unit}, more than its peers", ranks),
        Fact("waiting_ranks", wait.waiting_ranks, "count", "ranks that waited"),
        Fact("worst_steps", wait.worst_steps, "count", subject, ranks),
        Fact("steps", wait.steps, "count", "the window"),
        *((Fact("late_steps", len(in_steps), "count", subject, ranks),) if in_steps else ()),
        *((Fact("node", node, "", subject, ranks),) if node else ()),
        *why.facts,
    )
    return Finding(
        graded(wait.per_step_ns, late.mean_step_ns, 0.0) or "info",
        f"{title}; {why.title}" if why.title else title,
        "; ".join(filter(None, [*evidence, how_often, why.evidence])),
        ranks=ranks,
        span=_span(all_waits, ranks, worst),
        hint=hint,
        facts=facts,
        remedy=_remedy(run, cause, ranks, is_stage),
        names=(*why.names, *([node] if node else ())),
        why=why.title,
        most_severity=_most_severity(late, cause, why, wait, in_steps),
    )


_LEAST_ON_CPU = 0.15
"""Of the step: cores of one machine differ by less in the same ops. Jobs healthy-* of ordinary_job.py."""


def _most_severity(
    late: Lateness, cause: str, why: StragglerCause, wait: CausedWait, in_steps: tuple[int | None, ...]
) -> Severity:
    """Once is at most a warning. A core that takes longer for the same ops, once or by little, is an info."""
    once = len(in_steps) == 1
    is_different = any(fact.report in ("op_differences", "micro_batches", "host_cpu") for fact in why.facts)
    if late.on_host and cause == "compute" and not is_different and (once or wait.share < _LEAST_ON_CPU):
        return "info"
    return "warning" if once else "critical"


def _numbers(steps: tuple[int | None, ...]) -> list[int]:
    return [step for step in steps if step is not None]


def _remedy(run: Run, cause: str, ranks: tuple[int, ...], is_stage: bool) -> Remedy:
    """A stage that may have more layers gets the mean work of all: its work has to be done somewhere."""
    if (
        is_stage
        and cause == "compute"
        and runs_more_kernels(run, layout_of(run, Scope()).stage(ranks[0])) is None
    ):
        return Remedy("balanced", ranks=ranks, what="stages")
    return Remedy("links at median" if cause == "link" else "rank at median", ranks=ranks)


def _moving(run: Run, scope: Scope, late: Lateness) -> Finding:
    """The last rank of a step is late, but nobody is named: imbalance of the work, not a slow rank."""
    own_excess = late.own_excess
    worst = own_excess.argmax(axis=0)
    names = [late.ranks[rank] for rank in worst.tolist()]
    excess = late.excess[:, worst, np.arange(len(late.steps))]
    cause = OWN[int(excess.mean(axis=1).argmax())]
    per_step = float(own_excess.max(axis=0).mean())
    share = min(per_step / late.mean_step_ns, 1.0) if late.mean_step_ns else 0.0
    listed = ", ".join(map(str, names[:8])) + (", …" if len(names) > 8 else "")
    in_one_step = _mostly_in_one_step(run, scope, late)
    data = data_evidence(run, scope)
    facts = [
        Fact("cause", cause, "", "the last rank of each step"),
        Fact("wait_per_step_ns", round(per_step), "ns", "the last rank of each step"),
        Fact("caused_wait_pct", 100 * share, "percent", "of the mean step"),
        Fact("late_ranks", len(set(names)), "count", "ranks that were the last in some step"),
    ]
    return Finding(
        graded(per_step, late.mean_step_ns, 0.0) or "info",
        f"The work of the ranks differs from step to step: the last one is {format_rounded('ns', per_step)} "
        f"({100 * share:.0f} %) late on average",
        f"no rank is named; the last ranks, step by step: {listed}; most of it is {cause}{data.text}{in_one_step}",
        hint=data.hint or "Balance the work of the ranks: batches of equal length, experts of equal load.",
        facts=(*facts, *data.facts),
        remedy=Remedy("balanced", what="ranks"),
    )


def _mostly_in_one_step(run: Run, scope: Scope, late: Lateness) -> str:
    """Why the last rank of a step is late, where that step has more than half of all lateness; the end of a text."""
    own_excess = late.own_excess
    latest = own_excess.max(axis=0)
    worst = int(latest.argmax())
    if len(late.steps) < 2 or 2 * latest[worst] <= latest.clip(min=0).sum():
        return ""
    at = int(own_excess[:, worst].argmax())
    rank, step, parts = late.ranks[at], late.steps[worst], late.excess[:, at, worst]
    late_ns, steps = float(latest[worst]), len(late.steps)
    cause = OWN[int(parts.argmax())]
    why = straggler_cause(
        run,
        scope,
        LateRank(rank, (rank,), cause, float(parts.max()) / steps, step, steps, late_ns / steps, (step,)),
    )
    reason = why.evidence or why.title
    return (
        f"; over half of it is in step {step}: rank {rank} is {format_rounded('ns', late_ns)} late, {reason}"
    )


_NAMED_SHARE = 0.02
"""Of the mean step: a rank that the finding names is late in the steps in which it exceeds its peers by more."""
STEP_COLUMNS = (
    Column("step"),
    Column(
        "last_rank", help="the rank that caused most of the waiting in this step, chains of waits followed"
    ),
    Column("excess_ns", "ns", "how much longer than its peers it took in this step, without waiting"),
    Column("cause", help="the part of its time with the largest excess"),
    Column(
        "caused_wait_ns",
        "ns",
        "time that other ranks waited because of it, summed over them",
        title="Caused wait",
    ),
    Column("late", help="whether the excess is beyond the noise of clocks and steps"),
)


def stragglers_by_step(run: Run, scope: Scope) -> Result:
    """One row per step: does it happen in every step, and is it always the same rank?"""
    _, late, who, caused = _judged(run, scope)
    rows: list[dict[str, Any]] = []
    if late is not None and late.steps != (None,):
        rows = [_of_step(late, who, caused, number) for number in range(len(late.steps))]
    last = Counter(row["last_rank"] for row in rows if row["late"])
    notes = comparison_notes(run, scope)
    if not rows:
        notes.append("no steps of two or more ranks in the window")
    else:
        ranks = ", ".join(f"rank {rank} in {count}" for rank, count in last.most_common(8))
        notes.append(
            f"a rank is late beyond noise in {last.total()} of {len(rows)} steps"
            + (f": {ranks}" if ranks else "")
        )
    return replace(
        stragglers(run, scope),
        title="Stragglers by step",
        columns=STEP_COLUMNS,
        rows=rows,
        notes=tuple(notes),
        facts={"steps": len(rows), "late_steps": last.total(), "late_ranks": sorted(last)},
    )


def _of_step(late: Lateness, who: Culprits, caused: _Caused | None, number: int) -> dict[str, Any]:
    """Without known waits, the last rank is the one that took longest without waiting."""
    excess = late.own_excess[:, number]
    last, wait = late.ranks[int(excess.argmax())], None
    if caused is not None and len(caused.groups):
        mine = caused.groups[:, 0] == number
        waits_by = np.bincount(
            caused.groups[mine, 1], weights=caused.waited[mine], minlength=max(late.ranks) + 1
        )
        wait = int(waits_by.max())
        last = int(waits_by.argmax()) if wait else last
    at = late.ranks.index(last)
    parts = late.excess[:, at, number]
    is_late = bool(excess[at] > (_NAMED_SHARE * late.mean_step_ns if last in who.ranks else late.least_ns))
    if last in who.ranks and who.in_steps:
        is_late = late.steps[number] in who.in_steps
    return {
        "step": late.steps[number],
        "last_rank": last,
        "excess_ns": round(float(excess[at])),
        "cause": OWN[int(parts.argmax())] if parts.max() > 0 else None,
        "caused_wait_ns": wait,
        "late": is_late,
    }


def _span(all_waits: Waits, ranks: tuple[int, ...], step: int | None) -> tuple[int, int] | None:
    """The longest wait of another rank in this step."""
    rows = all_waits.rows
    mine = (all_waits.wait > 0) & ~np.isin(rows.rank, ranks)
    at = np.flatnonzero(mine & (rows.step == step)) if step is not None else np.flatnonzero(mine)
    if len(at) == 0:
        return None
    longest = at[all_waits.wait[at].argmax()]
    return int(rows.start[longest]), int(rows.end[longest])
