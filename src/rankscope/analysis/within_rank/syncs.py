"""Calls in which the host waits for the device: count, time, and the op and line of Python that made them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rankscope.analysis.core.advice import framework, read_later
from rankscope.analysis.core.device_events import UNKNOWN, gpu_ranks, steps_in
from rankscope.analysis.core.gpu_counts import kernels_end_in
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.host_spans import waiting_calls
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, covered
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import left_out, no_gpu, no_lines
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import LIMIT_SHARE, mean_on
from rankscope.analysis.core.slice_counts import has_launches
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.idle_gaps import waits_for_host
from rankscope.model import COMMUNICATING_OP_PATTERN
from rankscope.records import dataclass
from rankscope.store.arrays import number_rows, unique_values
from rankscope.timeline.run import Run

_MAX_LIMITS = 3

COLUMNS = (
    Column("calls", "count"),
    Column("total_ns", "ns", "host time in the calls"),
    Column("max_ns", "ns", "longest call"),
    Column(
        "gpu_idle_ns",
        "ns",
        "part of the total in which the GPU is idle with nothing queued",
        title="GPU idle",
    ),
    Column(
        "name", help="runtime call; 'pageable' is a copy of pageable memory, which also waits", at_end=True
    ),
    Column("op", help="op that made the call", at_end=True),
    Column("source", help="line of Python that made the call", at_end=True),
)


class CallSums(NamedTuple):
    """Calls of one name by one op and line of Python: number, time, longest, GPU idle time during them."""

    name: str
    op: str | None
    source: str | None
    sums: tuple[int, ...]
    in_steps: tuple[int, ...]
    """The same of the calls inside steps; of all calls where there are no steps."""


@dataclass(frozen=True)
class RankSyncs:
    """The calls of one rank that wait."""

    calls: tuple[CallSums, ...]
    span: int
    """The length of the window; 0 without GPU events."""


@kept_per_rank("syncs", RankSyncs)
def rank_syncs(run: Run, scope: Scope) -> dict[int, RankSyncs]:
    """Of the ranks that have such calls."""
    has_steps = scope.steps is not None or steps_in(run, scope) > 0
    waiting = waiting_calls(run, scope)
    syncs = {}
    for rank, mine in split_by_rank(waiting, unique_values(waiting["rank"]).tolist()).items():
        idle, window = EMPTY, windows(run, rank, scope)
        if has_gpu := rank in gpu_ranks(run):
            idle = waits_for_host(run, rank, scope)
        calls = tuple(_calls(all_names(run), mine, idle, has_steps))
        syncs[rank] = RankSyncs(calls, window.span if has_gpu else 0)
    return syncs


def syncs(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per call, op and line of Python."""
    groups: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    in_steps: dict[tuple[Any, ...], dict[int, tuple[int, ...]]] = {}
    span: dict[int, int] = {}
    lost = kernels_end_in(run, scope)
    for rank, record in rank_syncs(run, scope).items():
        span[rank] = record.span
        for call in record.calls:
            key = (call.name, call.op, call.source)
            groups.setdefault((rank, *key) if by == "rank" else key, []).append(call.sums)
            if call.in_steps[0] and rank not in lost:  # then its GPU only seems idle
                in_steps.setdefault(key, {})[rank] = call.in_steps
    keys = ("rank", "name", "op", "source") if by == "rank" else ("name", "op", "source")
    rows = []
    for key, sums in groups.items():
        calls, total, longest, idle = zip(*sums, strict=True)
        measures = {
            "calls": sum(calls),
            "total_ns": sum(total),
            "max_ns": max(longest),
            "gpu_idle_ns": sum(idle),
        }
        rows.append(dict(zip(keys, key, strict=True)) | measures)
    rows.sort(key=lambda row: (-row["total_ns"], *(str(row[key]) for key in keys)))
    notes = left_out(run, scope)
    has_calls = has_launches(run)
    if not rows:
        notes.append("no call in the window waits for the device" if has_calls else no_gpu(run))
    elif all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*((Column("rank"),) if by == "rank" else ()), *COLUMNS)
    limits = _limits(run, in_steps, span, steps_in(run, scope))
    title, unknown = "Calls that wait for the GPU", "" if has_calls else None
    return Result("syncs", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown)


def _calls(names: list[str], columns: dict[str, Any], idle: Intervals, has_steps: bool) -> Iterator[CallSums]:
    """For each call, op and line."""
    time = columns["stop"] - columns["start"]
    gpu_idle = covered(idle, columns["start"], columns["stop"])

    def sums(mine: Ints) -> tuple[int, ...]:
        return len(mine), int(time[mine].sum()), int(time[mine].max(initial=0)), int(gpu_idle[mine].sum())

    groups, key = number_rows([columns[name] for name in ("name", "waits", "op", "line")])
    order = np.argsort(key, kind="stable")
    for (call, waits, *callers), mine in zip(
        groups.tolist(), np.split(order, np.flatnonzero(np.diff(key[order])) + 1), strict=True
    ):
        op, line = (None if code == UNKNOWN else names[code] for code in callers)
        stepped = mine[columns["step"][mine] >= 0] if has_steps else mine
        label = names[call] if waits else f"{names[call]}{_PAGEABLE}"
        yield CallSums(label, op, line, sums(mine), sums(stepped))


def _hint(run: Run) -> str:
    text = f"Read results later or less often ({read_later(run)})."
    return text if framework(run) == "jax" else f"{text} Wait for an event, not for the whole device."


def _limits(
    run: Run, groups: dict[tuple[Any, ...], dict[int, tuple[int, ...]]], span: dict[int, int], steps: int
) -> tuple[Finding, ...]:
    """By call, those inside steps during which a GPU is idle. Waiting for communication is no synchronisation of the
    program's own, and copies of pageable memory are the copies report's."""
    callers: dict[str, list[tuple[Any, dict[int, tuple[int, ...]]]]] = {}
    for (name, op, source), by_rank in groups.items():
        if not name.endswith(_PAGEABLE) and not (op and _COMMUNICATES.search(op)):
            callers.setdefault(name, []).append(((op, source), by_rank))
    limits = []
    for name, mine in callers.items():
        idle: Counter[int] = Counter()
        for _, by_rank in mine:
            idle.update({rank: sums[3] for rank, sums in by_rank.items()})
        ranks = {rank: time for rank, time in idle.items() if time > 0 and time >= LIMIT_SHARE * span[rank]}
        if ranks:
            limits.append((max(ranks.values()), _limit(run, name, mine, ranks, len(span), steps)))
    limits.sort(key=itemgetter(0), reverse=True)
    return tuple(limit for _, limit in limits[:_MAX_LIMITS])


def _limit(
    run: Run,
    name: str,
    callers: list[tuple[Any, dict[int, tuple[int, ...]]]],
    idle: dict[int, int],
    ranks_in_scope: int,
    steps: int,
) -> Finding:
    """With the caller during whose calls the GPU is idle longest."""
    (op, source), by_rank = max(callers, key=lambda caller: sum(sums[3] for sums in caller[1].values()))
    key, place = {"name": name, "op": op, "source": source}, source or op
    calls, every = sum(sums[0] for sums in by_rank.values()), tuple(sorted(by_rank))
    return Finding(
        "limit",
        f"Synchronising calls: {name}",
        f"a GPU is idle during these calls: {mean_on(idle, ranks_in_scope, steps)}"
        + (f", most of it at {place}" if place else "")
        + f"; {calls:,} calls there",
        tuple(sorted(idle)),
        hint=_hint(run),
        facts=(Fact("calls", calls, "count", "all ranks", every, key),),
        remedy=Remedy("syncs gone", names=(name,), most_ns=max(idle.values()) / max(steps, 1)),
        names=(name, place) if place else (name,),
    )


_PAGEABLE = ", pageable"
_COMMUNICATES = re.compile(f"{COMMUNICATING_OP_PATTERN}|^record_param_comms$|^nccl:|^gloo:")
