"""Asks about the recorded ordinary jobs, and compares the answers with what was planted.

    python -m rankscope_bench.exam.ordinary_score FOLDER [--only svd,garbage] [--write-docs]

Per job and number of steps: the median of the recordings. The true cost is what the recorded steps take longer than
those of the healthy twin: recording makes both slower alike. A rank is right when the first finding that names one
names those at fault; a cause when that finding says what EXPECTED asks for. Where nobody is at fault, nobody may be
named.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.findings import collect
from rankscope.timeline.run import Run, open_run
from rankscope_bench.arguments import parsed
from rankscope_bench.exam.fault_facts import PROBLEMS, accused, cause, faults_in, named_in
from rankscope_bench.exam.ordinary_job import FAULTS
from rankscope_bench.exam.ordinary_record import HEALTHY
from rankscope_bench.exam.report import write_section

EXPECTED: dict[str, str] = {
    "evaluation": r"more (ops|calls|forward passes|aten::|\S+ passes)",
    "checkpoint": r"\bhost\b.*(between .* and|in \S+\(\d+\): )",
    "svd": r"svd",
    "garbage": r"garbage",
    "slow-log": r"\bhost\b.*(between .* and|before|in \S+\(\d+\): )",
    "gil-thread": r"thread",
    "large-batch": r"compute|aten::",
    "uneven-batches": r"from step to step|in each step",
    "slow-data": r"data",
    "preprocessing": r"\bhost\b.*(between .* and|before|in \S+\(\d+\): )",
    "compile": r"compil|[Dd]ynamo",
    "tiny-buckets": r"small (collectives|\w+ calls)|[Cc]ommunication|buckets",
    "taken-core": r"other processes|CPU|core",
    "few-cores": r"share \d+ cores|cores",
    "save-everywhere": r"[Ss]teps? \d+",
    "micro-batch": r"micro-batch 3 of 4",
    "long-micro-batch": r"Micro-batch 3 of 4",
    "tensor-parallel": r"compute|aten::",
    "tensor-data": r"data",
    "pipeline": r"[Ss]tage 1|layers",
    "pipeline-host": r"\bhost\b|between .* and",
    "sharded": r"\bhost\b|between .* and",
}
"""What the finding on a fault has to say (a regular expression over its texts)."""
TOLERANCE = 0.25
SMALL = 0.05
"""A fault of a smaller share of the step is not asked for."""


@dataclass(frozen=True)
class Asked:
    """What was said about one recording."""

    ranks: tuple[int, ...]
    """Of the first finding of at least warning that names some."""
    text: str
    """Of that finding; where nobody is named, of the first one."""
    cost_ns: float
    title: str
    step_ns: float
    """The mean step of the window."""
    alarms: int
    """Faults of at least warning."""
    is_core: bool = False
    """The named rank's host takes longer for all that it does."""


def ask(run: Run) -> Asked:
    findings = [finding.to_dict() for finding in collect(run, Scope())]
    strong = [fault for fault in faults_in(findings) if fault["severity"] in PROBLEMS]
    naming = next((fault for fault in strong if accused(fault)), None)
    told = naming or next(iter(findings), None)
    return Asked(
        accused(naming) if naming else (),
        " ".join([told["title"], told["evidence"], told["hint"], cause(told)]) if told else "",
        float(told["cost_ns"] or 0) if told else 0.0,
        f"{told['severity']}: {told['title']}" if told else "nothing",
        mean_step_ns(run, Scope()),
        len(strong),
        naming is not None and all(each.is_core for each in named_in(naming)),
    )


@dataclass(frozen=True)
class Score:
    """A fault and a number of steps."""

    name: str
    active: int
    share: float
    """The true cost over the step."""
    true_ns: float
    said_ns: float
    rank: bool
    cause: bool
    accused: bool
    """A rank is named that is not at fault."""
    slow_core: bool
    """Likewise, because nearly all its ops take longer: its core was slow while this was recorded."""
    alarm: bool
    """Of a healthy job: it is said to have a fault."""
    title: str

    @property
    def counts(self) -> bool:
        return self.share >= SMALL

    @property
    def cost(self) -> bool:
        return abs(self.said_ns - self.true_ns) <= TOLERANCE * self.true_ns


def score(name: str, active: int, folders: Sequence[Path], twins: Sequence[Path]) -> Score:
    """By the median of several recordings."""
    answers = [ask(open_run([folder])) for folder in folders]
    step = statistics.median(answer.step_ns for answer in answers)
    true = step - statistics.median(ask(open_run([folder])).step_ns for folder in twins)
    healthy = name.startswith(HEALTHY)
    ranks = () if healthy else FAULTS[name].ranks
    says = [bool(healthy or re.search(EXPECTED[name], answer.text, re.DOTALL)) for answer in answers]
    right = [answer.ranks == ranks for answer in answers]
    wrong = [answer for answer in answers if answer.ranks and answer.ranks != ranks]
    by_core = [answer for answer in wrong if answer.is_core]
    return Score(
        name, active, 0.0 if healthy else true / step, true, statistics.median(each.cost_ns for each in answers),
        statistics.median(right) > 0.5, statistics.median(says) > 0.5, len(wrong) > len(by_core), bool(by_core),
        healthy and any(each.alarms and each not in by_core for each in answers), answers[0].title,
    )  # fmt: skip


def _of(task: tuple[str, int, list[Path], list[Path]]) -> Score:
    return score(*task)


_OPTIONS = """\
FOLDER  the recordings
--only NAMES  of faults, separated by commas
--jobs N  processes (default 2)
--write-docs  write the section of docs/accuracy.md
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, folder=Path, only="", jobs=2)
    only = [name for name in args.only.split(",") if name]
    folders: dict[tuple[str, int], list[Path]] = {}
    for folder in sorted(path for path in args.folder.iterdir() if path.is_dir()):
        name, active, _ = folder.name.rsplit("-", 2)
        if any(folder.glob("rank-00003*")):
            folders.setdefault((name, int(active)), []).append(folder)
    tasks = []
    for (name, active), mine in sorted(folders.items()):
        twin = name if name.startswith(HEALTHY) else f"{HEALTHY}-{FAULTS[name].job}"
        if (not only or name in only) and (twin, active) in folders:
            tasks.append((name, active, mine, folders[twin, active]))
    with ProcessPoolExecutor(args.jobs) as pool:
        scores = list(pool.map(_of, tasks))
    lines = [_line(each) for each in scores]
    print("\n".join([*lines, *_totals(scores)]))
    if args.write_docs:
        write_section("ordinary jobs", section(scores))
    return 0


def _line(each: Score) -> str:
    marks = "".join("x" if right else "-" for right in (each.rank, each.cause, each.cost))
    return (
        f"{each.name:18} {each.active:3} {100 * each.share:5.0f} %  {each.true_ns / 1e6:7.1f} ms, said "
        f"{each.said_ns / 1e6:7.1f}  {marks}{'  ACCUSED' if each.accused else ''}"
        f"{'  SLOW CORE' if each.slow_core else ''}"
        f"{'  ALARM' if each.alarm else ''}  {each.title}"
    )


def _totals(scores: Sequence[Score]) -> list[str]:
    asked = [each for each in scores if each.counts]
    shares = [
        f"{what}: {sum(getattr(each, what) for each in asked)} of {len(asked)}"
        for what in ("rank", "cause", "cost")
    ]
    return [
        *shares,
        f"false accusations: {sum(each.accused for each in scores)} of {len(scores)}, "
        f"false alarms: {sum(each.alarm for each in scores)}; "
        f"a rank named for a slow core: {sum(each.slow_core for each in scores)}",
    ]


def section(scores: Sequence[Score]) -> str:
    """The totals, and each fault with what it cost and what was said, by the number of recorded steps."""

    def row(name: str) -> str:
        mine = [each for each in scores if each.name == name]
        cells = [f"{each.true_ns / 1e6:.1f}, {each.said_ns / 1e6:.1f}" for each in mine]
        wrong = [
            f"{what} ({each.active} steps)"
            for each in mine
            for what in ("rank", "cause", "cost")
            if each.counts and not getattr(each, what)
        ]
        return f"| {name} | {FAULTS[name].what} | {' | '.join(cells)} | {', '.join(wrong)} |"

    names = sorted({each.name for each in scores if not each.name.startswith(HEALTHY)})
    steps = " | ".join(f"ms, said: {active} steps" for active in sorted({each.active for each in scores}))
    totals = "\n".join(f"- {line}" for line in _totals(scores))
    head = f"| job | what is planted | {steps} | not right |\n|{'---|' * (steps.count('|') + 4)}"
    return "\n".join([totals, "", head, *map(row, names), ""])


if __name__ == "__main__":
    sys.exit(main())
