"""Writes the cases of a seed as traces, one folder each, and the truth beside them.

cases.json lists the cases with a checksum of each: of the names and the uncompressed bytes of its files, which do not
depend on the machine; compressed bytes depend on the library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rankscope_bench.blame.case_set import CAUSE_OF, CAUSES, LEAST_PCT, MOVING, Entry, prepare, write_lists
from rankscope_bench.blame.cases import Case, cases
from rankscope_bench.blame.hang_dumps import dumps
from rankscope_bench.blame.planting import Planted, plant
from rankscope_bench.synthetic.cluster_trace import RankTrace, file_name
from rankscope_bench.synthetic.trace_files import write_pieces

_RESERVED_BYTES = 4 << 30
"""By the allocator of a rank; its job allocates 3 to 3.5 GiB."""


def make(
    seed: int, size: str, folder: Path | None, truth_file: Path, jobs: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Write the cases below `folder` (None: nowhere), and their truth; returns what cases.json has."""
    if folder is not None:
        prepare(folder)
    tasks = [(case, folder / case.name if folder else None) for case in cases(seed, size)]
    # The largest first: at the end, no process waits for a run of 256 ranks.
    tasks.sort(key=lambda task: -task[0].job.ranks * task[0].job.batches)
    entries, truths = [], []
    for number, (entry, truth) in enumerate(_made(tasks, jobs), 1):
        entries.append(entry)
        truths.append(truth)
        if number % 20 == 0:
            say(f"{number} of {len(tasks)} cases")
    return write_lists(folder, truth_file, {"size": size}, {"seed": seed}, entries, truths)


def _made(tasks: list[tuple[Case, Path | None]], jobs: int) -> Iterator[tuple[Entry, Entry]]:
    if jobs == 1:
        yield from map(_make_case, tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_make_case, tasks)


def _make_case(task: tuple[Case, Path | None]) -> tuple[Entry, Entry]:
    case, folder = task
    annotated = 0.5 if case.kind == "checkpoint" else 0.0
    planted = plant(case.job, case.kind, case.share_pct, case.chance, every=case.every, annotated=annotated)
    if folder is not None:
        folder.mkdir()
    digest = hashlib.sha256()
    for name, pieces in _files(case, planted):
        digest.update(name.encode())
        content = _hashed(pieces, digest)
        if folder is None:
            for _ in content:
                pass
        else:
            write_pieces(folder / name, content)
    entry = {
        "case": case.name,
        "ranks": planted.job.ranks,
        "steps": planted.job.steps,
        "sha256": digest.hexdigest(),
    }
    return entry, truth_of(case, planted)


def _hashed(pieces: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for piece in pieces:
        digest.update(piece)
        yield piece


def _files(case: Case, planted: Planted) -> Iterator[tuple[str, Iterable[bytes]]]:
    """The files of a case, by name: a trace of each rank; of a job that hangs, the dumps of its flight recorders."""
    job = planted.job
    if case.kind == "hang":
        for rank, dump in dumps(job, planted.culprits[0], leaves_dump=job.seed % 2 == 0):
            yield f"nccl_trace_rank_{rank}", [dump]
        return
    for rank, run in enumerate(planted.runs):
        name = f"{file_name(job, rank)}.gz"
        yield name, RankTrace(job, rank, reserved_bytes=_RESERVED_BYTES).file(run, name)


def truth_of(case: Case, planted: Planted) -> Entry:
    """What a tool should say about a case."""
    job, culprits = planted.job, planted.culprits
    sized = case.kind in CAUSES or case.kind in MOVING
    who = "node" if case.kind.startswith("node") else "stage" if case.kind == "stages" else "rank"
    truth = {
        "case": case.name,
        "fault": case.kind,
        "layout": case.layout,
        "ranks_of_job": job.ranks,
        "who": who if culprits else "nobody",
        "ranks": list(culprits),
        "cause": CAUSE_OF[case.kind],
        "ms_per_step": round(planted.cost_ns / 1e6, 6) if sized else None,
        "step_ms": round(planted.step_ns / 1e6, 6),
        # Of the healthy step, as the sizes of the cases are given.
        "effect_pct": round(100 * planted.cost_ns / (planted.step_ns - planted.cost_ns), 3)
        if sized
        else None,
        "hidden": sized and planted.effect_pct < LEAST_PCT,
        "real": False,
    }
    if case.kind == "link":  # it has two ends: a group of the rank may be named
        axes = [axis for axis, size in (("tp", job.tensor), ("dp", job.data), ("pp", job.stages)) if size > 1]
        truth["groups"] = [list(job.group_ranks(axis, culprits[0])) for axis in axes]
    return truth
