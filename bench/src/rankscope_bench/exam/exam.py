"""The exam: faults are planted in jobs, and the answers are scored.

Synthetic cases are simulated (cases.py), written as traces, read and analysed, one a core. Real cases are gloo
processes on this machine (gloo_jobs.py). Random jobs have several culprits each (random_jobs.py), and a table of their
own. The cases that are held out are scored apart: do not look at their answers
while you tune a rule. The last line is the score; the exit status is 3 below the floor. docs/accuracy.md has the
design and the results.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import mean_step_ns
from rankscope.analysis.findings import collect
from rankscope.host import usable_cores
from rankscope.store.ingest import Options
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope_bench.blame.planting import job_of
from rankscope_bench.exam.cases import Case, all_cases, plant, write
from rankscope_bench.exam.fault_facts import PROBLEMS, Said, accused, axis_of, cause, faults_in, moves
from rankscope_bench.exam.gloo_jobs import real_cases, record
from rankscope_bench.exam.random_jobs import Mark, marks_of, table
from rankscope_bench.exam.report import write_accuracy
from rankscope_bench.exam.score import FROM_PCT, Answer, below_floor, line_of, total

PROCESSES = usable_cores()
_RANDOM_SEED = 7
"""Of the random jobs of docs/accuracy.md."""


def answer(case: Case, folder: Path) -> Answer:
    """Plant, write, read, ask. With --keep, a store that is there is used again."""
    started = time.monotonic()
    truth = folder / "truth.json"
    if not truth.exists():
        planted = plant(case)
        write(case, planted, folder)
        empty = Answer(
            case.name, case.kind, case.layout, planted.culprits, planted.effect_pct, planted.cost_ns, planted.step_ns,
            held_out=case.held_out, balance=planted.balance,
        )  # fmt: skip
        truth.write_text(json.dumps(asdict(empty)))
    return replace(judged(read_truth(truth), folder), seconds=time.monotonic() - started)


def read_truth(path: Path) -> Answer:
    stored = json.loads(path.read_text())
    lists = dict.fromkeys(("named", "first_ranks", "warned", "alarms"), ()) | {
        "culprits": tuple(stored["culprits"])
    }
    return Answer(**stored | lists)


def judged(truth: Answer, folder: Path) -> Answer:
    """What the findings say."""
    run = _open(folder)
    findings = [finding.to_dict() for finding in collect(run, Scope())]
    faults = faults_in(findings)
    late = next((fault for fault in faults if accused(fault)), None)
    priced = late or next(filter(moves, faults), None)
    first = findings[0] if findings else None
    strong = [finding for finding in findings if finding["severity"] in PROBLEMS]
    return replace(
        truth,
        named=accused(late) if late else (),
        severity=late["severity"] if late else "",
        cause=cause(late) if late else "",
        said_ns=priced["cost_ns"] if priced else None,
        alone_ns=priced["alone_ns"] if priced else None,
        first=_first_word(first) if first else "",
        first_ranks=tuple(sorted(first["ranks"])) if first else (),
        warned=tuple(finding["report"] for finding in strong),
        alarms=tuple(fault["title"] for fault in faults_in(strong)),
        title=priced["title"] if priced else "",
        said_balance=_balance(run) if truth.balance else {},
    )


def _first_word(finding: Said) -> str:
    if finding["kind"] != "fault":
        return str(finding["report"])
    return "moves" if moves(finding) else axis_of(finding)


def _balance(run: Run) -> dict[str, float]:
    """T and the balanced times by the report `faults.imbalance`, with the keys of the truth."""
    rows = [
        row for row in REPORTS["faults.imbalance"].analyse(run, Scope(), None).rows if row["scope"] == "run"
    ]
    said = {f"{row['key']}_ns": row["balanced_ns"] for row in rows}
    for row in rows:
        said["t_ns"] = row["t_ns"]
        if row["key"] == "all":
            said["slowdown"] = row["slowdown"]
    return said


def run_gloo(folder: Path, wanted: Sequence[str], say: Callable[[str], None]) -> list[Answer]:
    """The real cases: recorded one after the other, for they need the cores; then read and judged."""
    answers = []
    for recorded in record(folder, say, wanted):
        truth = json.loads((recorded / "truth.json").read_text())
        case = next(one for one in real_cases() if one.name == truth["name"])
        step = _mean_step_ns(recorded)
        empty = Answer(
            case.name,
            case.kind,
            f"gloo{case.ranks}",
            tuple(truth["culprits"]),
            100 * truth["cost_ns"] / step if step else 0.0,
            truth["cost_ns"],
            step,
            real=True,
        )
        answers.append(judged(empty, recorded))
        if answers[-1].wrong:
            say(_line(answers[-1]))
    return answers


def _mean_step_ns(folder: Path) -> float:
    return mean_step_ns(_open(folder), Scope())


def _open(folder: Path) -> Run:
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "truth.json"]
    return Run(ingest(sorted(files), Options(jobs=1, output=folder / "store")))


def run_cases(
    cases: Sequence[Case], folder: Path, keep: bool, say: Callable[[str], None], shows_held_out: bool = True
) -> list[Answer]:
    """All cases, one a core; a line for each wrong answer, and the time left."""
    answers: list[Answer] = []
    started = time.monotonic()
    tasks = [(case, folder / case.name.replace("%", ""), keep) for case in cases]
    # The largest first: at the end, no process waits for a run of 64 ranks.
    tasks.sort(key=lambda task: -job_of(task[0].layout).ranks)
    weight = sum(job_of(case.layout).ranks for case in cases) or 1
    done = 0
    with multiprocessing.get_context("spawn").Pool(min(PROCESSES, len(tasks) or 1)) as pool:
        for one in pool.imap_unordered(_task, tasks):
            answers.append(one)
            done += next(job_of(case.layout).ranks for case in cases if case.name == one.name)
            if one.wrong and (shows_held_out or not one.held_out):
                say(_line(one))
            left = (time.monotonic() - started) * (weight - done) / done
            if sys.stderr.isatty() or len(answers) % 20 == 0:
                say(f"{len(answers)} of {len(cases)} cases, {left:.0f} s left")
    order = {case.name: number for number, case in enumerate(cases)}
    return sorted(answers, key=lambda one: order[one.name])


def _task(task: tuple[Case, Path, bool]) -> Answer:
    case, folder, keep = task
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return answer(case, folder)
    except Exception as error:  # noqa: BLE001 - one case that fails must not end the exam; it is a miss
        failed = f"{type(error).__name__}: {error}"
        held_out = case.held_out
        return Answer(
            case.name, case.kind, case.layout, (), case.effect_pct, 0, 0, held_out=held_out, error=failed
        )
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def run_random(jobs: int, seed: int, folder: Path, say: Callable[[str], None]) -> list[Mark]:
    """Random jobs, one a core; a line for each of which something wrong is said."""
    marks = list(marks_of(jobs, seed, folder, workers=PROCESSES)) if jobs else []
    for mark in marks:
        if mark.what:
            say(f"wrong: {mark.truth.name} {mark.truth.kind} {mark.truth.layout}: {mark.what}")
    return marks


def _line(one: Answer) -> str:
    size = f" {one.effect_pct:.1f} %" if one.effect_pct else ""
    truth = f", is {one.culprits}" if one.culprits else ""
    return f"wrong: {one.name}{size}: {one.wrong}{truth}; {one.severity} {one.title}".rstrip("; ")


def _is_wanted(name: str, parts: Sequence[str]) -> bool:
    return not parts or any(part in name for part in parts)


def run(args: argparse.Namespace) -> int:
    started = time.monotonic()
    wanted = [part for part in args.only.split("|") if part]
    parts = {"tuned": (False,), "held-out": (True,), "all": (False, True)}[args.part]
    cases = [
        case for case in all_cases(args.seed) if _is_wanted(case.name, wanted) and case.held_out in parts
    ]
    if args.list:
        print("\n".join(case.name for case in cases))
        print("\n".join(case.name for case in real_cases() if _is_wanted(case.name, wanted)))
        return 0

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    folder = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-exam-"))
    try:
        answers = run_cases(cases, folder, bool(args.keep), say, args.part != "all") if cases else []
        real = [] if args.no_gloo else run_gloo(folder / "gloo", wanted, say)
        chance = run_random(args.random, args.seed or _RANDOM_SEED, folder / "random", say)
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(one) for one in (*answers, *real)], indent=1))
    found = total(answers)
    print(f"{len(answers)} synthetic and {len(real)} real cases in {time.monotonic() - started:.0f} s")
    if args.write_docs:
        write_accuracy(answers, real, chance)
    for name, held_out in (("tuned", False), ("held out", True)):
        part = [one for one in answers if one.held_out == held_out]
        if part and args.part == "all":
            print(f"{name}, {len(part)} cases: {line_of(total(part))}")
    if real:
        print(
            f"real processes: {line_of(total(real))} (effects of {FROM_PCT:g} % or more; on {len(real)} gloo runs)"
        )
    if chance:
        print(f"{len(chance)} random jobs:", table(chance), sep="\n")
    missed = below_floor(found)
    if missed:
        print(f"below the floor: {', '.join(missed)}")
    print(f"score: {line_of(found)} (effects of {FROM_PCT:g} % or more)")
    return 3 if missed else 0
