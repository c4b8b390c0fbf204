"""Calls in which the host waits for the device: count, time, and the op and line of Python that made them."""

from __future__ import annotations

import re
from operator import itemgetter
from typing import NamedTuple

from rankscope.analysis.core.advice import framework, read_later
from rankscope.analysis.core.device_events import UNKNOWN, gpu_ranks, has_launches, kernels_end_in
from rankscope.analysis.core.grouping import split_by_rank, summed
from rankscope.analysis.core.host_spans import waiting_calls
from rankscope.analysis.core.intervals import EMPTY, Ints, covered
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.notes import no_gpu, no_lines
from rankscope.analysis.core.result import Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope, steps_in
from rankscope.analysis.core.severity import mean_on, that_matter
from rankscope.analysis.within_rank.idle import waits_for_host
from rankscope.model import COMMUNICATING_OP_PATTERN
from rankscope.store.arrays import grouped, number_rows, unique_values
from rankscope.timeline.run import Run

_MAX_LIMITS = 3
_LONGEST = (2,)
"""Among _MEASURES."""
Caller = tuple[str, str | None, str | None]
"""A call, and the op and the line of Python that made it."""
_KEYS, _MEASURES = ("name", "op", "source"), ("calls", "total_ns", "max_ns", "gpu_idle_ns")

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

    caller: Caller
    sums: tuple[int, ...]
    in_steps: tuple[int, ...]
    """The same of the calls inside steps; of all calls where there are no steps."""


@kept_per_rank("syncs", list[CallSums])
def rank_syncs(run: Run, scope: Scope) -> dict[int, list[CallSums]]:
    """Of the ranks that have such calls."""
    has_steps = scope.steps is not None or steps_in(run, scope) > 0
    waiting, names, syncs = waiting_calls(run, scope), all_names(run), dict[int, list[CallSums]]()
    for rank, mine in split_by_rank(waiting, unique_values(waiting["rank"]).tolist()).items():
        idle = waits_for_host(run, rank, scope) if rank in gpu_ranks(run) else EMPTY
        time, gpu_idle = mine["stop"] - mine["start"], covered(idle, mine["start"], mine["stop"])
        groups, key = number_rows([mine[name] for name in ("name", "waits", "op", "line")])

        def sums(used: Ints, time: Ints = time, gpu_idle: Ints = gpu_idle) -> tuple[int, ...]:
            return len(used), int(time[used].sum()), int(time[used].max(initial=0)), int(gpu_idle[used].sum())

        order, first = grouped(key, len(groups))
        for number, (call, waits, *callers) in enumerate(groups.tolist()):
            at = order[first[number] : first[number + 1]]
            op, line = (None if code == UNKNOWN else names[code] for code in callers)
            label = names[call] if waits else f"{names[call]}{_PAGEABLE}"
            stepped = at[mine["step"][at] >= 0] if has_steps else at
            syncs.setdefault(rank, []).append(CallSums((label, op, line), sums(at), sums(stepped)))
    return syncs


def syncs(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per call, op and line of Python."""
    calls = [(rank, call) for rank, calls in rank_syncs(run, scope).items() for call in calls]
    keys = ("rank", *_KEYS) if by == "rank" else _KEYS
    groups = summed((((rank,) * (by == "rank") + call.caller, call.sums) for rank, call in calls), _LONGEST)
    rows = [dict(zip((*keys, *_MEASURES), (*key, *sums), strict=True)) for key, sums in groups.items()]
    rows.sort(key=lambda row: (-row["total_ns"], *(str(row[key]) for key in keys)))
    notes = []
    has_calls = has_launches(run)
    if not rows:
        notes.append("no call in the window waits for the device" if has_calls else no_gpu(run))
    elif all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*((Column("rank"),) if by == "rank" else ()), *COLUMNS)
    title, unknown = "Calls that wait for the GPU", "" if has_calls else None
    limits = _limits(run, scope, calls)
    return Result("idle.syncs", title, scope.window, columns, rows, limits, tuple(notes), unknown=unknown)


def _limits(run: Run, scope: Scope, calls: list[tuple[int, CallSums]]) -> tuple[Finding, ...]:
    """By call, those inside steps during which a GPU is idle. Waiting for communication is no synchronisation of the
    program's own, and copies of pageable memory are the copies report's. A rank that has lost kernels only seems
    idle."""
    lost, by_name = kernels_end_in(run, scope), dict[str, list[tuple[int, CallSums]]]()
    for rank, call in calls:
        name, op, _ = call.caller
        if (
            call.in_steps[0]
            and rank not in lost
            and not (name.endswith(_PAGEABLE) or (op and _COMMUNICATES.search(op)))
        ):
            by_name.setdefault(name, []).append((rank, call))
    limits = []
    for name, mine in by_name.items():
        idle = summed((rank, call.in_steps[3:]) for rank, call in mine)
        if ranks := that_matter(run, scope, {rank: time for rank, (time,) in idle.items()}):
            limits.append((-max(ranks.values()), _limit(run, scope, name, mine, ranks)))
    return tuple(limit for _, limit in sorted(limits, key=itemgetter(0))[:_MAX_LIMITS])


def _limit(
    run: Run, scope: Scope, name: str, calls: list[tuple[int, CallSums]], idle: dict[int, float]
) -> Finding:
    """With the caller during whose calls the GPU is idle longest."""
    callers = summed((call.caller, call.in_steps) for _, call in calls)
    caller = max(callers, key=lambda caller: callers[caller][3])
    every = tuple(sorted(rank for rank, call in calls if call.caller == caller))
    place = caller[2] or caller[1]
    advice = f"Read results later or less often ({read_later(run)})."
    if framework(run) != "jax":
        advice += " Wait for an event, not for the whole device."
    return Finding(
        "limit",
        f"Synchronising calls: {name}",
        ranks=tuple(sorted(idle)),
        advice=advice,
        facts=(
            mean_on(run, scope, "in_call_ns", idle),
            Fact(
                "calls",
                callers[caller][0],
                "count",
                "all ranks",
                every,
                dict(zip(_KEYS, caller, strict=True)),
            ),
            *([Fact("most_in", place)] if place else []),
        ),
        remedy=Remedy("syncs gone", names=(name,), most_ns=max(idle.values()) / max(steps_in(run, scope), 1)),
        names=(name, place) if place else (name,),
    )


_PAGEABLE = ", pageable"
_COMMUNICATES = re.compile(f"{COMMUNICATING_OP_PATTERN}|^record_param_comms$|^nccl:|^gloo:")
