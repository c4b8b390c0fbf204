"""A job that hangs, as the flight recorders of its ranks see it: one rank does not reach a collective.

The missing rank stops before the next collective of each of its groups. Its peers have called it and wait.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope_bench.synthetic.cluster import Job
from rankscope_bench.synthetic.rank_grid import DESCRIPTIONS

_START_NS = 1_794_701_458_600_000_000
_TIMEOUT_MS = 600_000
_DONE = 12
"""Collectives of each group that all ranks have completed."""


def write_dumps(job: Job, missing: int, folder: Path, leaves_dump: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps(job, missing, leaves_dump):
        (folder / f"nccl_trace_rank_{rank}").write_bytes(dump)


def dumps(job: Job, missing: int, leaves_dump: bool = True) -> Iterator[tuple[int, bytes]]:
    """One dump a rank; a rank that was killed leaves none."""
    for rank in range(job.ranks):
        if rank != missing or leaves_dump:
            yield rank, pickle.dumps(_dump(job, rank, missing), 2)


def _dump(job: Job, rank: int, missing: int) -> dict[str, Any]:
    axes = [axis for axis, size in (("dp", job.data), ("tp", job.tensor)) if size > 1] or ["world"]
    entries = []
    for number, axis in enumerate(axes):
        name = job.group_name(axis, rank)
        entries += [_entry(number, name, axis, seq, "completed") for seq in range(1, _DONE + 1)]
        if rank != missing:
            waits = missing in job.group_ranks(axis, rank)
            entries.append(_entry(number, name, axis, _DONE + 1, "started" if waits else "completed"))
    config = {
        job.group_name(axis, rank): {
            "name": job.group_name(axis, rank),
            "desc": DESCRIPTIONS[axis],
            "ranks": str(list(job.group_ranks(axis, rank))),
        }
        for axis in axes
    }
    return {
        "version": "2.9",
        "nccl_version": "2.27",
        "pg_config": config,
        "pg_status": {},
        "entries": entries,
    }


def _entry(number: int, group: str, axis: str, seq: int, state: str) -> dict[str, Any]:
    created = _START_NS + seq * 5_000_000
    done = state == "completed"
    return {
        "record_id": seq,
        "pg_id": number,
        "process_group": (group, DESCRIPTIONS[axis]),
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "is_p2p": False,
        "time_created_ns": created,
        "time_discovered_started_ns": created + 10_000,
        "time_discovered_completed_ns": created + 900_000 if done else None,
        "input_sizes": [[4_000_000]],
        "output_sizes": [[4_000_000]],
        "input_dtypes": ["BFloat16"],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "timeout_ms": _TIMEOUT_MS,
        "retired": done,
    }
