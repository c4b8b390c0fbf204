"""The exam: faults are planted in jobs, and the answers are scored.

    python benchmarks/exam.py [--only PATTERN] [--list] [--no-gloo] [--keep DIR] [--write-docs]

Synthetic cases are simulated (exam_cases.py), written as traces, read and analysed, two at a time. Real cases are gloo
processes on this machine (exam_gloo.py). The last line is the score; the exit status is 3 below the floor. docs/exam.md
has the design, docs/accuracy.md the results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path

from exam_cases import CAUSES, LAYOUTS, REPORTS, Case, all_cases, plant
from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.bench.synthetic.cluster_trace import write_traces
from rankscope.bench.synthetic.hang import write_dumps
from rankscope.store.ingest import Options, ingest
from rankscope.store.run import Run

FLOOR = {
    "precision": 0.98,
    "recall": 0.98,
    "cause": 0.95,
    "false_alarms": 1 / 60,
}
"""For effects of FROM_PCT or more; of false alarms, the most."""
FROM_PCT = 5.0
FIRST_FROM_PCT = 10.0
COST_TOLERANCE = 0.10
LEAST_PCT = 0.5
"""A fault that costs less than this is hidden: naming its rank is neither right nor wrong."""
PROCESSES = 2

_TRUE_OF_HEALTHY_JOBS = ("overlap", "collectives", "critical", "bubbles", "phases", "roofline", "syncs")
"""Reports on the program rather than on a fault: a healthy pipeline has bubbles, and tensor parallelism exposes
communication."""


@dataclass(frozen=True)
class Answer:
    """A case, its truth, and what was said about it."""

    name: str
    kind: str
    layout: str
    culprits: tuple[int, ...]
    effect_pct: float
    """True share of the step."""
    cost_ns: float
    step_ns: float
    real: bool = False
    named: tuple[int, ...] = ()
    """Ranks of the straggler finding, at any severity."""
    severity: str = ""
    cause: str = ""
    said_ns: int | None = None
    first_report: str = ""
    first_ranks: tuple[int, ...] = ()
    alarms: tuple[str, ...] = ()
    """Titles of warnings and critical findings."""
    title: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def has_culprit(self) -> bool:
        return self.kind in CAUSES and self.effect_pct >= LEAST_PCT

    @property
    def hit(self) -> bool:
        """A slow link has two ends: its group may be named, as long as the rank is in it."""
        if self.kind == "link":
            return set(self.culprits) <= set(self.named) and len(self.named) <= 4
        return bool(self.named) and self.named == self.culprits

    @property
    def accused(self) -> bool:
        """A wrong rank is named. Of a moving fault only an alarm is wrong."""
        if self.kind == "moving":
            return bool(self.named) and self.severity in ("warning", "critical")
        if self.kind in CAUSES and not self.has_culprit:
            return False
        return bool(self.named) and not self.hit

    @property
    def cause_right(self) -> bool:
        return self.hit and self.cause == CAUSES.get(self.kind)

    @property
    def cost_right(self) -> bool:
        return (
            self.hit
            and self.said_ns is not None
            and abs(self.said_ns - self.cost_ns) <= COST_TOLERANCE * self.cost_ns
        )

    @property
    def first_right(self) -> bool:
        if self.kind in REPORTS:
            named_right = self.kind != "hang" or self.first_ranks == self.culprits
            return self.first_report in REPORTS[self.kind] and named_right
        return self.first_report == "stragglers" and self.hit

    @property
    def wrong(self) -> str:
        """What is wrong with the answer, for the line of the case; empty where nothing is."""
        if self.error:
            return self.error
        if self.kind == "healthy":
            return f"alarm: {self.alarms[0]}" if self.alarms else f"named {self.named}" if self.named else ""
        if self.kind == "moving":
            return "one rank is blamed" if self.accused else ""
        if self.kind in REPORTS:
            return "" if self.first_right else f"first is {self.first_report} {self.first_ranks}"
        if not self.has_culprit:
            return ""
        if not self.hit:
            return f"named {self.named}" if self.named else "not found"
        return "" if self.cause_right else f"cause {self.cause}"


def answer(case: Case, folder: Path) -> Answer:
    """Plant, write, read, ask. With --keep, a store that is there is used again."""
    started = time.monotonic()
    truth = folder / "truth.json"
    if not truth.exists():
        planted = plant(case)
        if case.kind == "hang":
            write_dumps(planted.job, planted.culprits[0], folder, leaves_dump=case.seed % 2 == 0)
        else:
            write_traces(planted.job, planted.runs, folder)
        empty = Answer(
            case.name, case.kind, case.layout, planted.culprits, planted.effect_pct, planted.cost_ns, planted.step_ns
        )  # fmt: skip
        truth.write_text(json.dumps(asdict(empty)))
    return replace(judged(read_truth(truth), folder), seconds=time.monotonic() - started)


def read_truth(path: Path) -> Answer:
    stored = json.loads(path.read_text())
    lists = dict.fromkeys(("named", "first_ranks", "alarms"), ()) | {"culprits": tuple(stored["culprits"])}
    return Answer(**stored | lists)


def judged(truth: Answer, folder: Path) -> Answer:
    """What the findings say."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "truth.json"]
    found = collect(Run(ingest(sorted(files), Options(jobs=1, output=folder / "store"))), Scope())
    late = next((one.finding for one in found if one.report == "stragglers"), None)
    first = found[0] if found else None
    return replace(
        truth,
        named=tuple(sorted(late.ranks)) if late else (),
        severity=late.severity if late else "",
        cause=_cause(late),
        said_ns=late.cost_ns if late else None,
        first_report=first.report if first else "",
        first_ranks=first.finding.ranks if first else (),
        alarms=tuple(
            one.finding.title
            for one in found
            if one.finding.severity in ("warning", "critical") and one.report not in _TRUE_OF_HEALTHY_JOBS
        ),
        title=late.title if late else "",
    )


def _cause(finding: Finding | None) -> str:
    fact = finding.fact("cause") if finding else None
    return str(fact.value) if fact else ""


def share(values: Iterable[bool]) -> float | None:
    """Of the cases that are true; None without cases."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


def scores(answers: Sequence[Answer], low: float, high: float = 101.0) -> dict[str, float | None]:
    """The scores of the cases whose true effect is in [low, high) percent."""
    inside = [one for one in answers if one.has_culprit and low <= one.effect_pct < high]
    named = [one for one in inside if one.named]
    return {
        "cases": float(len(inside)),
        "precision": share(one.hit for one in named),
        "recall": share(one.hit for one in inside),
        "cause": share(one.cause_right for one in inside if one.hit),
        "cost": share(one.cost_right for one in inside if one.hit),
        "first": share(one.first_right for one in inside if one.effect_pct > FIRST_FROM_PCT),
    }


def total(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The figures of the last line. Precision counts also ranks that are named in healthy and moving cases."""
    large = scores(answers, FROM_PCT)
    healthy = [one for one in answers if one.kind == "healthy"]
    accused = sum(one.accused for one in answers if one.kind in ("healthy", "moving"))
    inside = [one for one in answers if one.has_culprit and one.effect_pct >= FROM_PCT]
    named, hits = sum(bool(one.named) for one in inside), sum(one.hit for one in inside)
    return large | {
        "precision": hits / (named + accused) if named + accused else None,
        "false_alarms": share(bool(one.alarms) for one in healthy),
        "other": share(one.first_right for one in answers if one.kind in REPORTS),
        "moving": share(not one.accused for one in answers if one.kind == "moving"),
    }


def below_floor(found: dict[str, float | None]) -> list[str]:
    """Names of the scores that miss the floor."""
    return [
        name
        for name, floor in FLOOR.items()
        if (value := found.get(name)) is not None
        and (value > floor if name == "false_alarms" else value < floor)
    ]


def text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def run_cases(cases: Sequence[Case], folder: Path, keep: bool, say: Callable[[str], None]) -> list[Answer]:
    """All cases, two at a time; a line for each wrong answer, and the time left."""
    answers: list[Answer] = []
    started = time.monotonic()
    tasks = [(case, folder / case.name.replace("%", ""), keep) for case in cases]
    # The largest first: at the end, no process waits for a run of 64 ranks.
    tasks.sort(key=lambda task: -_ranks(task[0]))
    weight = sum(_ranks(case) for case in cases) or 1
    done = 0
    with multiprocessing.get_context("spawn").Pool(min(PROCESSES, len(tasks) or 1)) as pool:
        for one in pool.imap_unordered(_task, tasks):
            answers.append(one)
            done += next(_ranks(case) for case in cases if case.name == one.name)
            if one.wrong:
                say(_line(one))
            left = (time.monotonic() - started) * (weight - done) / done
            if sys.stderr.isatty() or len(answers) % 20 == 0:
                say(f"{len(answers)} of {len(cases)} cases, {left:.0f} s left")
    order = {case.name: number for number, case in enumerate(cases)}
    return sorted(answers, key=lambda one: order[one.name])


def _ranks(case: Case) -> int:
    return prod(LAYOUTS[case.layout].values())


def _task(task: tuple[Case, Path, bool]) -> Answer:
    case, folder, keep = task
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return answer(case, folder)
    except Exception as error:  # noqa: BLE001 - one case that fails must not end the exam; it is a miss
        failed = f"{type(error).__name__}: {error}"
        return Answer(case.name, case.kind, case.layout, (), case.effect_pct, 0, 0, error=failed)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _line(one: Answer) -> str:
    size = f" {one.effect_pct:.1f} %" if one.effect_pct else ""
    truth = f", is {one.culprits}" if one.culprits else ""
    return f"wrong: {one.name}{size}: {one.wrong}{truth}; {one.severity} {one.title}".rstrip("; ")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument(
        "--only", metavar="PATTERN", default="", help="cases whose name contains this; '|' separates"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--no-gloo", action="store_true", help="leave out the real processes")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep traces and stores there, and use them again"
    )
    parser.add_argument("--write-docs", action="store_true", help="write docs/accuracy.md")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer")
    args = parser.parse_args(argv)
    started = time.monotonic()
    wanted = [part for part in args.only.split("|") if part]
    cases = [case for case in all_cases() if not wanted or any(part in case.name for part in wanted)]
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    folder = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-exam-"))
    try:
        answers = run_cases(cases, folder, bool(args.keep), say)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in answers], indent=1))
    found = total(answers)
    print(f"{len(answers)} cases in {time.monotonic() - started:.0f} s")
    missed = below_floor(found)
    if missed:
        print(f"below the floor: {', '.join(missed)}")
    print(
        "score: "
        + " · ".join(f"{name} {text(value)}" for name, value in found.items() if name != "cases")
        + f" (effects of {FROM_PCT:g} % or more)"
    )
    return 3 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
