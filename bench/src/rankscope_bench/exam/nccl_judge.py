"""Asks about the jobs that nccl_record.sh has recorded, and compares the answers with what was planted.

    python -m rankscope_bench.exam.nccl_judge FOLDER [--only ddp,tp/host]

FOLDER holds the archives, which are unpacked, or FOLDER/KIND/VARIANT. The true cost is what a step takes longer than
those of the healthy twins, by the clock of the job; their difference is its noise.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankscope_bench.arguments import parsed
from rankscope_bench.exam.fault_facts import Answer, answer_of, cause_word, findings_in
from rankscope_bench.exam.nccl_jobs import HEALTHY, unpack

TOLERANCE = 0.10


@dataclass(frozen=True)
class Mark:
    """What is right about one answer."""

    name: str
    truth: str
    said: str
    true_ns: float
    said_ns: float
    step_ns: float
    noise_ns: float
    """What the healthy twins differ by."""
    healthy: bool = False
    who: bool = False
    cause: bool = False
    cost: bool = False


def wall_ns(truth: dict[str, Any]) -> float:
    """The mean step."""
    return float(statistics.mean(statistics.mean(steps) for steps in truth["wall_ns"]))


def marked(task: tuple[Path, dict[str, Any], list[float]]) -> Mark:
    folder, truth, twins_ns = task
    step_ns, twin_ns = wall_ns(truth), statistics.mean(twins_ns)
    healthy = truth["axis"] == "none"
    causes = {int(rank): cause_word(cause) for rank, cause in truth["causes"].items()}
    expected = "healthy" if healthy else f"{truth['axis']} {truth['ranks']} {sorted(set(causes.values()))}"
    try:
        # Without cores that are slow: the machine's own, which the healthy twins have too.
        answer = answer_of(findings_in(folder), with_cores=False)
    except Exception as error:  # noqa: BLE001 - one job that fails must not end the others
        answer, said = Answer(), f"{type(error).__name__}: {error}"
        failed = True
    else:
        said = "; ".join(
            f"{each.axis} {list(each.subjects)} {each.cause} {(each.margin_ns or 0) / 1e6:.1f}"
            for each in answer.named
        )
        said, failed = "moves; " * answer.moves + said or "nothing", False
    cost_ns = 0.0 if healthy else step_ns - twin_ns
    return Mark(
        f"{folder.parent.name}/{folder.name}", expected, said, cost_ns, answer.joint_ns, step_ns,
        max(twins_ns) - min(twins_ns), healthy,
        not failed and who_is_right(truth, answer),
        not failed and cause_is_right(truth["axis"], causes, answer),
        abs(answer.joint_ns - cost_ns) <= TOLERANCE * cost_ns,
    )  # fmt: skip


def who_is_right(truth: dict[str, Any], answer: Answer) -> bool:
    """Those planted are named, and nobody else."""
    said = {(each.axis, subject) for each in answer.named for subject in each.subjects}
    axis = truth["axis"]
    if axis in ("none", "moves"):
        return not said and answer.moves == (axis == "moves")
    if axis == "step":
        return said == {("step", truth["steps"][at]) for at, ranks in enumerate(truth["turns"]) if ranks}
    ranks = {("rank", rank) for rank in truth["ranks"]}
    if axis == "stage":  # a stage has one rank
        return said in (ranks, {("stage", rank) for rank in truth["ranks"]})
    return said == ranks and not answer.moves


def cause_is_right(axis: str, causes: dict[int, str], answer: Answer) -> bool:
    """Of each culprit that is named; where work can be moved, its place is a cause too."""
    if axis == "moves":
        return answer.moves and all(each.cause in causes.values() for each in answer.named)
    if axis == "step":
        return bool(answer.named) and all(each.cause in causes.values() for each in answer.named)
    if axis == "stage":
        return bool(answer.named) and all(each.cause in ("stages", "compute") for each in answer.named)
    named = {subject: each.cause for each in answer.named if each.axis == "rank" for subject in each.subjects}
    return all(named.get(rank) == cause for rank, cause in causes.items())


_OPTIONS = """\
FOLDER  the archives, or what was in them
--only NAMES  kinds, or kinds and variants, such as ddp,tp/host
--workers N  processes (default 1)
--json FILE  write what is right about each job
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, folder=Path, only="", workers=1, json=Path)
    unpack(args.folder)
    truths = {
        path.parent: json.loads(path.read_text()) for path in sorted(args.folder.glob("*/*/truth.json"))
    }
    only = {name for name in args.only.split(",") if name}
    tasks = []
    for folder, truth in truths.items():
        if only and not only & {truth["kind"], f"{truth['kind']}/{folder.name}"}:
            continue
        twins = [
            twin for twin in truths.values()
            if twin["kind"] == truth["kind"] and twin["variant"] in HEALTHY and not twin["error"]
        ]  # fmt: skip
        twins = [twin for twin in twins if twin["attempt"] == truth["attempt"]] or twins
        if truth["error"] or not twins:
            why = truth["error"].strip().splitlines()[-1:] or ["no healthy twin"]
            print(f"{truth['kind']}/{folder.name}: not recorded: {why[0]}")
        else:
            tasks.append((folder, truth, [wall_ns(twin) for twin in twins]))
    marks = []
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        for mark in pool.imap(marked, tasks):
            marks.append(mark)
            right = "".join("x" if each else "-" for each in (mark.who, mark.cause, mark.cost))
            right = f"{right[0]}  " if mark.healthy else right
            print(
                f"{right} {mark.name:24} step {mark.step_ns / 1e6:6.1f} cost {mark.true_ns / 1e6:6.1f} "
                f"± {mark.noise_ns / 1e6:.1f} said {mark.said_ns / 1e6:6.1f} ms  {mark.truth} -> {mark.said}",
                flush=True,
            )
    faulty = [mark for mark in marks if not mark.healthy]
    for what in ("who", "cause", "cost"):
        number = sum(getattr(mark, what) for mark in faulty)
        print(f"{what}: {number} of {len(faulty)} ({number / max(len(faulty), 1):.2f})")
    healthy = [mark for mark in marks if mark.healthy]
    print(f"healthy, and something is named: {sum(not mark.who for mark in healthy)} of {len(healthy)}")
    if args.json:
        args.json.write_text(json.dumps([asdict(mark) for mark in marks], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
