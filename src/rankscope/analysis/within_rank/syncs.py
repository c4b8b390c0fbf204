"""Calls in which the host waits for the device: count, time, and the op and line of Python that made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.core.device_events import UNKNOWN, steps_in
from rankscope.analysis.core.grouping import split_by_rank
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, covered_before
from rankscope.analysis.core.names import all_names, vocabulary
from rankscope.analysis.core.notes import NO_GPU, left_out, no_lines
from rankscope.analysis.core.result import SEVERITIES, Column, Fact, Finding, Remedy, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import graded
from rankscope.analysis.within_rank.idle_causes import idle_by_device, idle_by_rank
from rankscope.analysis.within_rank.sync_calls import waiting_calls
from rankscope.model import LAUNCH_CATEGORIES
from rankscope.store.arrays import number_rows, unique_values
from rankscope.store.run import Run
from rankscope.units import format_rounded

IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL = 0.02, 0.10, 0.30
"""Shares of the span in which the device is idle while the host is in such a call."""
_MAX_FINDINGS = 3

COLUMNS = (
    Column("calls", "count"),
    Column("total_ns", "ns", "host time in the calls"),
    Column("max_ns", "ns", "longest call"),
    Column("gpu_idle_ns", "ns", "part of the total in which the GPU is idle", title="GPU idle"),
    Column(
        "name", help="runtime call; 'pageable' is a copy of pageable memory, which also waits", at_end=True
    ),
    Column("op", help="op that made the call", at_end=True),
    Column("source", help="line of Python that made the call", at_end=True),
)


def syncs(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row per call, op and line of Python."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    in_steps: dict[tuple[Any, ...], list[Any]] = {}
    span: dict[int, int] = {}
    for found in idle_by_device(run, scope):
        span[found.rank] = max(found.span, span.get(found.rank, 0))
    idle = idle_by_rank(run, scope)
    steps = steps_in(run, scope)
    waiting = waiting_calls(run, scope)
    for rank, mine in split_by_rank(waiting, unique_values(waiting["rank"]).tolist()).items():
        for key, sums, stepped in _calls(all_names(run), mine, idle.get(rank, EMPTY), steps > 0):
            named = (rank, *key) if by == "rank" else key
            _add(groups.setdefault(named, [0, 0, 0, 0]), sums)
            if stepped[0]:
                entry = in_steps.setdefault(key, [[0, 0, 0, 0], {}])
                _add(entry[0], stepped)
                entry[1][rank] = stepped
    keys = ("rank", "name", "op", "source") if by == "rank" else ("name", "op", "source")
    rows = [
        dict(zip(keys, key, strict=True))
        | dict(zip(("calls", "total_ns", "max_ns", "gpu_idle_ns"), sums, strict=True))
        for key, sums in groups.items()
    ]
    rows.sort(key=lambda row: (-row["total_ns"], *(str(row[key]) for key in keys)))
    notes = left_out(run, scope)
    if not rows:
        has_calls = bool(vocabulary(run, *LAUNCH_CATEGORIES))
        notes.append("no call in the window waits for the device" if has_calls else NO_GPU)
    elif all(row["source"] is None for row in rows):
        notes.append(no_lines(run))
    columns = (*((Column("rank"),) if by == "rank" else ()), *COLUMNS)
    findings = _findings(in_steps, span, steps)
    return Result("syncs", "Calls that wait for the GPU", scope.window, columns, rows, findings, tuple(notes))


def _add(sums: list[int], more: list[int]) -> None:
    sums[0] += more[0]
    sums[1] += more[1]
    sums[2] = max(sums[2], more[2])
    sums[3] += more[3]


def _calls(
    names: list[str], columns: dict[str, Any], idle: Intervals, has_steps: bool
) -> Iterator[tuple[tuple[Any, ...], list[int], list[int]]]:
    """For each call, op and line: [calls, time, longest, GPU idle] of all calls, and of those inside steps."""
    start, stop = columns["start"], columns["stop"]
    gpu_idle = covered_before(idle, stop) - covered_before(idle, start)
    _, key = number_rows([columns[name] for name in ("name", "waits", "op", "line")])
    order = np.argsort(key, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        first = int(mine[0])
        call = names[columns["name"][first]]
        codes = [int(columns[name][first]) for name in ("op", "line")]
        texts_of = [None if code == UNKNOWN else names[code] for code in codes]
        label = call if columns["waits"][first] else f"{call}, pageable"
        stepped = mine[columns["step"][mine] >= 0] if has_steps else mine
        yield (
            (label, *texts_of),
            _sums(start, stop, gpu_idle, mine),
            _sums(start, stop, gpu_idle, stepped),
        )


def _sums(start: Ints, stop: Ints, gpu_idle: Ints, mine: Ints) -> list[int]:
    time = stop[mine] - start[mine]
    return [len(mine), int(time.sum()), int(time.max(initial=0)), int(gpu_idle[mine].sum())]


def _findings(
    groups: dict[tuple[Any, ...], list[Any]], span: dict[int, int], steps: int
) -> tuple[Finding, ...]:
    """The calls inside steps with the most GPU idle time during them; of each the worst rank."""
    found = []
    for (name, op, source), (sums, by_rank) in groups.items():
        graded_ranks = {
            rank: graded(own[3], span.get(rank, 0), IDLE_INFO, IDLE_WARNING, IDLE_CRITICAL)
            for rank, own in by_rank.items()
        }
        rank = max(by_rank, key=lambda r: by_rank[r][3])
        calls, time, _, idle = by_rank[rank]
        severity = graded_ranks[rank]
        if severity is None:
            continue
        per_step = " per step" if steps else ""
        alike = tuple(sorted(r for r, own in graded_ranks.items() if own == severity))
        key = {"name": name, "op": op, "source": source}
        subject = f"rank {rank}"
        finding = Finding(
            severity,
            f"GPU of rank {rank} idle {format_rounded('ns', idle / max(steps, 1))}{per_step} during {name} "
            f"({source or op or 'outside any op'})",
            f"rank {rank}: {calls:,} calls, {format_rounded('ns', time)} on the host, GPU idle for "
            f"{format_rounded('ns', idle)} of it; {sums[0]:,} calls on all ranks",
            alike,
            hint="Read results later or less often (.item(), .cpu(), print). Copy from pinned memory with "
            "non_blocking=True; wait for an event, not for the whole device.",
            facts=(
                Fact("calls", calls, "count", subject, (rank,), {"rank": rank, **key}),
                Fact("total_ns", time, "ns", subject, (rank,), {"rank": rank, **key}),
                Fact("gpu_idle_ns", idle, "ns", subject, (rank,), {"rank": rank, **key}),
                Fact("calls", sums[0], "count", "all ranks", tuple(sorted(by_rank)), key),
            ),
            # A copy of pageable memory has to be made another way: there is no change to replay.
            remedy=None if name.endswith(", pageable") else Remedy("syncs gone", names=(name,)),
        )
        found.append((SEVERITIES.index(severity), idle, finding))
    found.sort(key=lambda one: one[:2], reverse=True)
    return tuple(finding for _, _, finding in found[:_MAX_FINDINGS])
