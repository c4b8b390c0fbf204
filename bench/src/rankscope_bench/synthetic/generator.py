"""Write the files of a plan: run/rank-00000-of-00008.pt.trace.json … and run/truth.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rankscope.errors import StoreError
from rankscope_bench.synthetic.cluster import simulate
from rankscope_bench.synthetic.cluster_trace import TRUTH_FILE, RankTrace, file_name
from rankscope_bench.synthetic.defects import Defect, damage, in_order
from rankscope_bench.synthetic.job import Clock, Job, Slower
from rankscope_bench.synthetic.plan import Plan, Straggler
from rankscope_bench.synthetic.trace_files import Progress, write_pieces
from rankscope_bench.synthetic.truth import Truth, rank_truth, truth

__all__ = ["TRUTH_FILE", "Clock", "Defect", "Plan", "Slower", "Straggler", "Truth", "write"]

_ENDINGS = (".pt.trace.json", ".pt.trace.json.gz")


def write(plan: Plan, folder: Path, *, force: bool = False, progress: Progress | None = None) -> Truth:
    """Write a plan's files and truth.json into folder, and return the truth.

    ``progress`` is called with the bytes of text that each piece added. A folder that is not empty is refused
    unless ``force`` is given; then the files of an earlier plan in it are removed first. After an error, none of
    the new files is left.
    """
    job = plan.job()  # errors in the plan are raised before any file is touched
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _make_room(folder, force=force)
        return _write(plan, job, folder, progress)
    except OSError as error:
        raise StoreError(
            f"cannot write to {folder}",
            why=f"{error.strerror or error}.",
            hint="Choose another folder with -o, on a disk with free space",
        ) from error


def _make_room(folder: Path, *, force: bool) -> None:
    if not any(folder.iterdir()):
        return
    if not force:
        raise StoreError(
            f"{folder} is not empty",
            why="Synthetic traces are not mixed with existing files.",
            hint="Choose another folder with -o, or overwrite with -f",
        )
    try:
        listed = [str(name) for name in json.loads((folder / TRUTH_FILE).read_text())["files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return  # no earlier plan: files of the same name are replaced, others are kept
    for name in listed:
        if name.endswith(_ENDINGS):
            (folder / Path(name).name).unlink(missing_ok=True)


def _write(plan: Plan, job: Job, folder: Path, progress: Progress | None) -> Truth:
    runs = simulate(job)
    written: list[Path] = []
    try:
        ranks: list[dict[str, Any]] = []
        defects: list[dict[str, Any]] = []
        reserved_bytes = 0
        for rank in plan.present:
            target = folder / (file_name(job, rank) + ".gz" * plan.gzip)
            part = target.with_name(f"part-{target.name}")
            written += [target, part]
            answers = rank_truth(plan, job, rank, runs[rank])
            reserved_bytes = -(-answers["peak_allocated_bytes"] // 2**21) * 2**21
            trace = RankTrace(job, rank, with_stack=plan.with_stack, reserved_bytes=reserved_bytes)
            nbytes = write_pieces(part, trace.file(runs[rank], target.name), progress)
            part.replace(target)
            damaged = _damage(plan, rank, target, written)
            defects += damaged
            name = damaged[-1]["file"] if damaged else target.name
            ranks.append({"rank": rank, "file": name, "text_bytes": nbytes, **answers})
        whole = {**truth(plan, job, runs, ranks, defects), "reserved_bytes": reserved_bytes}
        text = json.dumps(whole, indent=1) + "\n"
        written.append(folder / TRUTH_FILE)
        (folder / TRUTH_FILE).write_text(text)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    as_read_back: Truth = json.loads(text)  # lists, no tuples
    return as_read_back


def _damage(plan: Plan, rank: int, path: Path, written: list[Path]) -> list[dict[str, Any]]:
    records = []
    for defect in in_order([defect for defect in plan.defects if defect.rank == rank]):
        path, record = damage(path, defect)
        records.append(record)
        written.append(path)
        if "second_file" in record:
            written.append(path.with_name(record["second_file"]))
    for record in records:
        record["file"] = path.name  # a later defect may have renamed it
    return records
