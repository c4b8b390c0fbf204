"""truth.json: everything that was planted, with the column names of the reports that must find it.

Times under "ranks" are recorded ns: ts of the file, times 1000. Times of collectives are true ns from the run's
start, which a reader gets by correcting the clocks; durations by each rank's own clock are given too. A damaged file
is described as it was before; "defects" lists the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rankscope.bench.synthetic.plan import Clock, Group, Plan
from rankscope.bench.synthetic.rank_identity import STREAMS
from rankscope.bench.synthetic.timeline import StepTimes, Timeline, recorded
from rankscope.bench.synthetic.workload import FIRST_STEP, Collective

VERSION = 1

Truth = dict[str, Any]


def truth(timeline: Timeline, ranks: list[dict[str, Any]], defects: list[dict[str, Any]]) -> Truth:
    plan = timeline.plan
    clocks = plan.clocks()
    collectives = list(_collectives(timeline, clocks))
    second_files = [record["second_file"] for record in defects if "second_file" in record]
    return {
        "version": VERSION,
        "plan": asdict(plan),
        "layers": timeline.workload.layers,
        "reserved_bytes": timeline.workload.reserved_bytes,
        "files": sorted([rank["file"] for rank in ranks] + second_files),
        "missing": sorted(plan.missing),
        "straggler": _planted(plan, collectives),
        "stragglers": _stragglers(plan, collectives),
        "clocks": [_clock(rank, clock) for rank, clock in enumerate(clocks)],
        "defects": defects,
        "ranks": ranks,
        "collectives": collectives,
    }


def _clock(rank: int, clock: Clock) -> dict[str, int]:
    """recorded ns = zero_ns + t + t * drift_ppb // 10**9 for a true time t."""
    return {"rank": rank, **asdict(clock), "zero_ns": clock.zero_ns}


def _collectives(timeline: Timeline, clocks: Sequence[Clock]) -> Iterator[dict[str, Any]]:
    """By step; within a step in the order in which the ranks run them."""
    for step, (times, parts) in enumerate(zip(timeline.steps, timeline.workload.steps, strict=True)):
        for index, part in enumerate(parts):
            if part.collective:
                sequence = timeline.workload.numbering[step][index]["collective_sequence"]
                for group in timeline.plan.groups(part.collective.axis):
                    row = _collective(part.collective, group, times, clocks)
                    yield {"step": FIRST_STEP + step, "seq": sequence, **row}


def _collective(
    collective: Collective, group: Group, times: StepTimes, clocks: Sequence[Clock]
) -> dict[str, Any]:
    members, ordinal = list(group.ranks), collective.ordinal
    arrival = times.collective_start[ordinal, members]
    end = times.collective_end[ordinal, members]
    duration = end - arrival
    transfer = int(duration.min())  # equal to the planted transfer, unless ranks leave at random times
    wait = duration - transfer
    span = np.stack((arrival, end))
    own = [recorded(clocks[rank], span[:, i]) for i, rank in enumerate(members)]
    return {
        "group": group.name,
        "description": group.description,
        "kind": collective.kind.kind,
        "dtype": collective.kind.dtype,
        "in_nelems": collective.in_elements,
        "out_nelems": collective.out_elements,
        "bytes": collective.nbytes,
        "stream": STREAMS[collective.axis],
        "transfer_ns": transfer,
        "end_ns": int(end.max()),
        "left_ns": end.tolist(),
        # No rank is last if all arrive at once.
        "last_rank": members[int(duration.argmin())] if wait.any() else None,
        "ranks": members,
        "arrival_ns": arrival.tolist(),
        "wait_ns": wait.tolist(),
        "recorded_dur_ns": [int(last - first) for first, last in own],
    }


def _stragglers(plan: Plan, collectives: Sequence[dict[str, Any]]) -> list[dict[str, int]]:
    """For each rank: how often it was last, the wait it caused, and its own wait."""
    rows = [
        {"rank": rank, "last_count": 0, "caused_wait_ns": 0, "own_wait_ns": 0} for rank in range(plan.ranks)
    ]
    for collective in collectives:
        for rank, wait in zip(collective["ranks"], collective["wait_ns"], strict=True):
            rows[rank]["own_wait_ns"] += wait
        if collective["last_rank"] is not None:
            rows[collective["last_rank"]]["last_count"] += 1
            rows[collective["last_rank"]]["caused_wait_ns"] += sum(collective["wait_ns"])
    return rows


def _planted(plan: Plan, collectives: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    if plan.straggler is None:
        return None
    caused = [0] * plan.steps
    for collective in collectives:
        if collective["last_rank"] == plan.straggler.rank:
            caused[collective["step"] - FIRST_STEP] += sum(collective["wait_ns"])
    return {
        "rank": plan.straggler.rank,
        "cause": plan.straggler.cause,
        "ns_per_step": plan.straggler.ns,
        "caused_wait_ns": sum(caused),
        "caused_wait_ns_by_step": caused,
    }
