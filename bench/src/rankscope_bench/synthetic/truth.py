"""truth.json: everything that was planted, with the column names of the reports that must find it.

Times under "ranks" are recorded ns: ts of the file, times 1000. Times of collectives are true ns from the run's
start, which a reader gets by correcting the clocks; durations by each rank's own clock are given too. A damaged file
is described as it was before; "defects" lists the damage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from rankscope_bench.synthetic.cluster_trace import Numbers, recorded
from rankscope_bench.synthetic.host import COMM, RankRun, Work
from rankscope_bench.synthetic.job import Job
from rankscope_bench.synthetic.plan import Plan
from rankscope_bench.synthetic.rank_grid import DESCRIPTIONS
from rankscope_bench.synthetic.recording import Integers, segment

VERSION = 1
FIRST_STEP = 2  # in the recording, as after one idle and one warm-up step
FIRST_COLLECTIVE = 41

Truth = dict[str, Any]


def rank_truth(plan: Plan, job: Job, rank: int, run: RankRun) -> dict[str, Any]:
    """The answers of one rank's file. A stream runs one thing at a time, and only collectives overlap with others, on
    a stream of their own: every figure is a sum."""
    clock, numbers = job.clocks[rank], Numbers(job)
    phases = segment("tail").events(plan.with_stack)
    flops: Counter[str] = Counter()
    kernels: dict[str, list[int]] = {}
    copies: dict[str, list[int]] = {}
    peak_bytes = peak_at_ns = 0
    busy: list[dict[str, list[Integers]]] = []
    for work in run.works:
        bases, events = numbers.of(work), work.segment
        host, start, end = (recorded(clock, times) for times in work.times())
        if events.name == "gpt.step":
            busy.append({"compute": [], "comm": [], "copy": []})
        for counts, total in ((events.events(plan.with_stack), phases), (events.flops, flops)):
            total.update({name: count * work.blocks for name, count in counts.items()})
        for i, (name, category) in enumerate(zip(events.gpu_names, events.gpu_categories, strict=True)):
            row = (kernels if category == "kernel" else copies).setdefault(name, [0, 0])
            row[0] += work.blocks
            row[1] += int((end[:, i] - start[:, i]).sum())
        is_kernel = np.array([category == "kernel" for category in events.gpu_categories], dtype=bool)
        kind = "comm" if events.stream == COMM else "compute"
        for name, chosen in ((kind, is_kernel), ("copy", ~is_kernel)):
            if chosen.any():
                busy[-1][name].append(np.stack((start[:, chosen].ravel(), end[:, chosen].ravel())))
        at, allocated = events.memory
        if len(at):
            before = bases["allocated"] + np.arange(work.blocks)[:, None] * events.strides["allocated"]
            block, which = np.unravel_index(int((before + allocated).argmax()), (work.blocks, len(at)))
            if (most := int((before + allocated)[block, which])) > peak_bytes:
                peak_bytes, peak_at_ns = most, int(host[block, at[which]])
    windows = [
        {"step": FIRST_STEP + step, "start_ns": start, "dur_ns": end - start}
        for step, (start, end) in enumerate(recorded(clock, np.array(run.steps)).tolist())
    ]
    by_step = _breakdowns(windows, busy)
    return {
        "steps": windows,
        "breakdown": [_together(by_step), *by_step],
        "kernels": _table(kernels),
        "copies": _table(copies),
        "events": {
            "total": phases.total(),
            "slices": phases["X"],
            "instants": phases["i"],
            "flows": phases["s"] + phases["f"],
            "metadata": phases["M"],
        },
        "launch_links": sum(count for count, _ in (*kernels.values(), *copies.values())),
        "flops": dict(flops),
        "peak_allocated_bytes": peak_bytes,
        "peak_at_ns": peak_at_ns,
    }


def _breakdowns(
    windows: Sequence[dict[str, int]], busy: Sequence[dict[str, list[Integers]]]
) -> list[dict[str, Any]]:
    """A step ends with its host range or its last GPU event, and begins where the one before ended."""
    begin, rows = windows[0]["start_ns"], []
    for window, classes in zip(windows, busy, strict=True):
        empty = np.zeros((2, 0), dtype=np.int64)
        spans = {name: np.concatenate([empty, *parts], axis=1) for name, parts in classes.items()}
        last = max(int(ends.max(initial=0)) for _, ends in spans.values())
        end = max(window["start_ns"] + window["dur_ns"], last, begin)
        rows.append(_breakdown(window["step"], spans, end - begin))
        begin = end
    return rows


def _covered(spans: Integers, by: Integers) -> int:
    """How much of some spans others cover; the spans of either are disjoint and in order."""
    start, end = by
    total = np.concatenate(([0], np.cumsum(end - start)))

    def before(times: Integers) -> Integers:
        index = np.searchsorted(start, times, side="right")
        unfinished = np.where(index > 0, np.maximum(end[index - 1] - times, 0), 0)
        covered: Integers = total[index] - unfinished
        return covered

    return int((before(spans[1]) - before(spans[0])).sum()) if by.size else 0


def _breakdown(step: int | None, spans: dict[str, Integers], span_ns: int) -> dict[str, Any]:
    """The figures of docs/definitions.md. A copy that runs during a collective counts as communication."""
    compute, comm, copy = (int((ends - starts).sum()) for starts, ends in spans.values())
    overlap = _covered(spans["comm"], spans["compute"])
    exposed_copy = copy - _covered(spans["comm"], spans["copy"])
    return {
        "step": step,
        "span_ns": span_ns,
        "compute_ns": compute,
        "comm_ns": comm,
        "copy_ns": copy,
        "exposed_comm_ns": comm - overlap,
        "exposed_copy_ns": exposed_copy,
        "idle_ns": span_ns - compute - (comm - overlap) - exposed_copy,
        "overlap_ns": overlap,
        "overlap_pct": 100 * overlap / comm if comm else None,
    }


def _together(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The breakdown of all steps: they do not overlap in time."""
    whole = {name: sum(row[name] for row in rows) for name in rows[0] if name.endswith("_ns")}
    share = 100 * whole["overlap_ns"] / whole["comm_ns"] if whole["comm_ns"] else None
    return {"step": None, **whole, "overlap_pct": share}


def _table(rows: dict[str, list[int]]) -> list[dict[str, Any]]:
    longest = sorted(rows.items(), key=lambda item: (-item[1][1], item[0]))
    return [{"name": name, "instances": count, "total_ns": total} for name, (count, total) in longest]


def truth(
    plan: Plan, job: Job, runs: Sequence[RankRun], ranks: list[dict[str, Any]], defects: list[dict[str, Any]]
) -> Truth:
    collectives = _collectives(job, runs)
    second_files = [record["second_file"] for record in defects if "second_file" in record]
    return {
        "version": VERSION,
        "plan": asdict(plan),
        "layers": job.layers,
        "files": sorted([rank["file"] for rank in ranks] + second_files),
        "missing": sorted(plan.missing),
        "straggler": _planted(plan, collectives),
        "stragglers": _stragglers(plan, collectives),
        # recorded ns = zero_ns + t + t * drift_ppb // 10**9 for a true time t
        "clocks": [
            {"rank": rank, **asdict(clock), "zero_ns": clock.zero_ns} for rank, clock in enumerate(job.clocks)
        ],
        "defects": defects,
        "ranks": ranks,
        "collectives": collectives,
    }


def _collectives(job: Job, runs: Sequence[RankRun]) -> list[dict[str, Any]]:
    """By step; within a step in the order in which the ranks run them."""
    members: dict[tuple[int, int, int], dict[int, Work]] = {}
    sequence: dict[tuple[int, int, int], int] = {}
    for rank, run in enumerate(runs):
        numbers, ordinal = Numbers(job), 0
        for work in run.works:
            bases = numbers.of(work)
            if work.key:
                ordinal += 1
                key = (bases["step"], ordinal, job.group_ranks(work.axis, rank)[0])
                members.setdefault(key, {})[rank] = work
                sequence[key] = FIRST_COLLECTIVE + bases["seq"]
    return [
        {"step": FIRST_STEP + key[0], "seq": sequence[key], **_collective(job, works)}
        for key, works in sorted(members.items())
    ]


def _collective(job: Job, works: dict[int, Work]) -> dict[str, Any]:
    ranks = list(works)
    work = works[ranks[0]]
    kind = work.segment.name.partition(".")[2]
    arrival = np.array([works[rank].start for rank in ranks])
    end = np.array([works[rank].end for rank in ranks])
    duration = end - arrival
    transfer = int(duration.min())  # equal to the planted transfer, unless ranks leave at random times
    wait = duration - transfer
    recorded_spans = [
        recorded(job.clocks[rank], np.array([works[rank].start, works[rank].end])) for rank in ranks
    ]
    return {
        "group": job.group_name(work.axis, ranks[0]),
        "description": DESCRIPTIONS[work.axis],
        "kind": kind,
        "dtype": "Float" if kind == "all_reduce" else "BFloat16",
        "in_nelems": work.nelems[0],
        "out_nelems": work.nelems[1],
        "bytes": max(work.nelems) * (4 if kind == "all_reduce" else 2),
        "stream": COMM,
        "transfer_ns": transfer,
        "end_ns": int(end.max()),
        "left_ns": end.tolist(),
        # No rank is last if all arrive at once.
        "last_rank": ranks[int(duration.argmin())] if wait.any() else None,
        "ranks": ranks,
        "arrival_ns": arrival.tolist(),
        "wait_ns": wait.tolist(),
        "recorded_dur_ns": [int(last - first) for first, last in recorded_spans],
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
