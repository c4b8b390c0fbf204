"""The exam for assistants: questions with known answers, answered through the tools alone by the scripted client.

    python -m rankscope_bench.exam.agents [--only PATTERN] [--keep DIR] [--verbose]

The runs are planted (cases.py, whose truth is known from the simulation) and real (tests/data, and those of
../shared/data/public where it is there; their answers were found independently: what was planted in them, or counted
from their files). The client (scripted_client.py) gets a path and a question, nothing else.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.agents.small_answers import size_of
from rankscope.agents.tools import Tools
from rankscope_bench.arguments import parsed
from rankscope_bench.blame.case_set import CAUSES
from rankscope_bench.blame.planting import Planted
from rankscope_bench.exam.cases import REPORTS, all_cases, plant, write
from rankscope_bench.exam.scripted_client import Reply, ask

ROOT = Path(__file__).parents[4]
DATA = ROOT / "tests" / "data"
PUBLIC = ROOT.parent / "shared" / "data" / "public"
COST_TOLERANCE = 0.10
STEP_TOLERANCE = 0.02

PLANTED = (
    *("compute-10%-dp4-0", "throttle-10%-dp8-0", "host-10%-dp4-0", "gc-20%-dp4-0", "checkpoint-20%-dp4-0"),
    *("copy-10%-dp4-0", "dataloader-10%-dp4-1", "link-20%-dp2tp2-0", "node-10%-dp8-0", "moving-20%-dp4-0"),
    *("overlap-dp4-0", "fusion-dp4-0", "leak-dp4-0", "hang-dp4-0", "hang-dp2tp2-0", "healthy-dp4-0"),
    *("healthy-pp2dp2-0", "healthy-dp2tp2-1"),
)
"""One of each fault. A name that is no case of the exam means the first case with this fault and effect."""

WHO = "Which rank delays the others?"
WHY = "Why is that rank late?"
SAVES = "What would be saved in a step if it were as fast as the others?"
WRONG = "Is anything wrong with this run?"
FIRST = "What costs most?"
STEP = "How long is a step on average?"
RANKS = "How many ranks are in the run?"
STEPS = "How many steps were recorded?"
BLAMED = "Who is to blame for the longest wait?"
MISSING = "Which rank is missing in a hang?"
GROWS = "Does memory grow?"
SLOWER = "Did the second run become slower?"

Check = Callable[[Reply], bool]


@dataclass(frozen=True)
class Question:
    """A question about a run, and whether a reply is right."""

    run: str
    text: str
    truth: str
    """In words, for the line of a wrong answer."""
    is_right: Check
    base: str = ""
    """The other run of a comparison."""


def value(expected: Any, at: int = 0) -> Check:
    return lambda reply: len(reply.values) > at and reply.values[at] == expected


def near(expected: float, tolerance: float, at: int = 0) -> Check:
    def check(reply: Reply) -> bool:
        said = reply.values[at]
        return isinstance(said, (int, float)) and abs(said - expected) <= tolerance * expected

    return check


def outcome(*expected: str) -> Check:
    return lambda reply: reply.outcome in expected


def is_nobody(reply: Reply) -> bool:
    """It was compared, and no value names anybody."""
    return reply.outcome == "none" and not any(reply.values)


def cannot_answer(run: str, text: str) -> Question:
    return Question(run, text, "it cannot be answered", outcome("cannot_answer"))


def planted_questions(name: str, planted: Planted, kind: str) -> Iterator[Question]:
    """What the simulation knows."""
    ranks = planted.job.ranks
    if kind == "hang":
        missing = list(planted.culprits)
        yield Question(name, MISSING, f"rank {missing}", value(missing))
        yield cannot_answer(name, "What is on the critical path?")
        return
    yield Question(name, RANKS, str(ranks), value(ranks))
    yield Question(name, STEP, f"{planted.step_ns:.0f} ns", near(planted.step_ns, STEP_TOLERANCE))
    yield cannot_answer(name, MISSING)
    if kind in CAUSES:
        culprits = list(planted.culprits)
        link = kind == "link"
        # A slow link has two ends: its group may be named.
        yield Question(
            name,
            WHO,
            f"rank {culprits}",
            (lambda reply: set(culprits) <= set(reply.values[0] or [])) if link else value(culprits),
        )
        yield Question(name, WHY, CAUSES[kind], value(CAUSES[kind]))
        yield Question(name, SAVES, f"{planted.cost_ns:.0f} ns", near(planted.cost_ns, COST_TOLERANCE))
    elif kind == "healthy":
        yield Question(name, WHO, "nobody", is_nobody)
    elif kind == "moving":
        # Uneven work costs time (a problem), and no rank is to blame for it.
        yield Question(name, WHO, "each in turn", lambda reply: str(reply.values[1]).startswith("each "))
    elif kind in REPORTS:
        if kind == "leak":  # has no cost, so what costs most is something else
            yield Question(name, WRONG, "yes", outcome("problem"))
        else:
            yield Question(
                name, FIRST, f"one of {REPORTS[kind]}", lambda reply: reply.values[0] in REPORTS[kind]
            )
        grows = "problem" if kind == "leak" else "cannot_answer"
        yield Question(name, GROWS, grows, outcome(grows, "none") if kind != "leak" else outcome(grows))


def real_questions() -> Iterator[Question]:
    """Recorded runs: what was planted in them, and what their files hold."""
    slow, healthy, ddp = "seqpar-gloo4-slow2", "seqpar-gloo4", "ddp-gloo4"
    yield Question(slow, WRONG, "yes", outcome("problem"))
    yield Question(slow, WHO, "rank 2", value([2]))
    yield Question(slow, WHY, "compute", value("compute"))
    yield Question(slow, BLAMED, "rank 2", value(2))
    yield Question(slow, FIRST, "faults", value("faults"))
    # Its ten matmuls take 12.8 ms, and the others wait 10.5 to 12.2 ms in each of six steps (tests/data/README.md).
    three_wait = near(3 * 6 * 11_350_000, 0.08, at=1)
    yield Question(slow, "How long do the others wait for it, added up?", "189 to 220 ms", three_wait)
    yield Question(slow, SAVES, "10.5 to 12.8 ms", near(11_650_000, 0.1))
    yield Question(slow, STEPS, "6", value(6))
    yield Question(slow, "How long are pipeline stages idle?", "no pipeline", outcome("cannot_answer"))
    yield Question(healthy, WHO, "no rank", outcome("none"))
    yield Question(healthy, RANKS, "4", value(4))
    yield Question(healthy, STEPS, "6", value(6))
    yield Question(slow, SLOWER, "yes", outcome("problem"), base=healthy)
    yield Question(healthy, SLOWER, "no", outcome("none"), base=healthy)
    yield Question(ddp, RANKS, "4", value(4))
    yield cannot_answer(ddp, MISSING)
    one = "seqpar-nccl1-bf16"
    yield Question(one, WHO, "nobody: only its steps can be compared", is_nobody)
    yield Question(one, WHY, "nobody is late", is_nobody)
    yield Question(one, RANKS, "1", value(1))
    yield Question(one, "Does the training loop wait for data?", "not recorded", outcome("cannot_answer"))
    yield Question(one, "Which calls wait for the GPU?", "none", outcome("none"))
    cpu = "checkpoint-cpu/plain.pt.trace.json.gz"
    yield cannot_answer(cpu, "Why is the GPU idle?")
    yield cannot_answer(cpu, "What is the MFU?")
    yield cannot_answer(cpu, GROWS)
    gpt = "gpt-h200"
    yield Question(gpt, STEPS, "3", value(3))
    # It is recorded in this job: a limit, for there are no other ranks that would not wait.
    yield Question(gpt, "Does the training loop wait for data?", "yes", lambda reply: bool(reply.values[0]))
    yield Question(
        gpt, "Which kernel takes most time?", "the largest sum of durations", value(_longest_kernel(gpt))
    )
    if (PUBLIC / "flight-recorder").is_dir():
        found = sorted(PUBLIC.glob("flight-recorder/**/*_0"))
        if found:
            flight = str(found[0].parent)
            # The ranks in which a fault was injected (fault_injection.log).
            yield Question(
                flight, MISSING, "rank 12 or 14", lambda reply: bool({12, 14} & set(reply.values[0] or []))
            )
            yield cannot_answer(flight, "What is on the critical path?")


def _longest_kernel(run: str) -> str:
    """Counted from the file itself, in the steps: launched within a ProfilerStep."""
    (file,) = (DATA / run).glob("*.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    steps = [
        (one["ts"], one["ts"] + one["dur"])
        for one in events
        if str(one.get("name")).startswith("ProfilerStep#")
    ]
    calls = {
        one["args"]["correlation"]: one["ts"]
        for one in events
        if one.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in one.get("args", {})
    }
    total: dict[str, float] = {}
    for one in events:
        if one.get("cat") == "kernel":
            at = calls.get(one["args"].get("correlation"), one["ts"])
            if any(begin <= at < end for begin, end in steps):
                total[one["name"]] = total.get(one["name"], 0) + one["dur"]
    return max(total, key=lambda name: total[name])


@dataclass(frozen=True)
class Marked:
    """A question with the client's reply."""

    question: Question
    reply: Reply
    right: bool


def case_named(name: str) -> Any:
    cases = [case for case in all_cases() if not case.held_out]
    exact = [case for case in cases if case.name == name]
    kind, *rest = name.split("-")
    kind = "node-host" if name.startswith("node-host") else kind
    alike = [
        case for case in cases if case.kind == kind and (not rest[0].endswith("%") or rest[0] in case.name)
    ]
    return (exact or alike)[0]


def questions(folder: Path, wanted: Callable[[str], bool], names: Sequence[str] = PLANTED) -> list[Question]:
    """Plant the cases below `folder`, and list all questions with the paths of their runs."""
    found = []
    for name in filter(wanted, names):
        case = case_named(name)
        planted = plant(case)
        place = folder / case.name.replace("%", "")
        if not place.exists():
            write(case, planted, place)
        found += list(planted_questions(str(place), planted, case.kind))
    for question in real_questions():
        if wanted(question.run):
            run, base = (_unpacked(text, folder) if text else "" for text in (question.run, question.base))
            found.append(Question(run, question.text, question.truth, question.is_right, base))
    return found


def _unpacked(run: str, folder: Path) -> str:
    """The path of a recorded run; packed ones are unpacked."""
    source = DATA / run
    if Path(run).is_absolute() or not any(source.rglob("*.xz")):
        return str(Path(run) if Path(run).is_absolute() else source)
    target = folder / run
    for file in source.rglob("*.xz"):
        to = target / file.relative_to(source).with_suffix("")
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(lzma.decompress(file.read_bytes()))
    return str(target)


def examine(asked: Sequence[Question], tools: Tools) -> list[Marked]:
    """Every question through the tools."""
    marked = []
    for question in asked:
        for path in filter(None, (question.base, question.run)):
            if path not in map(str, tools.runs.paths):
                tools.call("open", {"path": path})
        run = {"base": question.base, "new": question.run} if question.base else {"run": question.run}
        reply = ask(tools.call, question.text, size_of, **run)
        marked.append(Marked(question, reply, question.is_right(reply)))
    return marked


def summary_of(marked: Sequence[Marked]) -> str:
    right, largest = sum(one.right for one in marked), max((one.reply.size for one in marked), default=0)
    share = 100 * right / len(marked) if marked else 0.0
    return f"assistants: {right} of {len(marked)} questions right ({share:.1f} %), largest answer {largest:,} bytes"


_OPTIONS = """\
--only PATTERN  runs whose name contains this
--keep DIR  keep traces there, and use them again
--verbose  a line for every question
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, only="", keep=Path)
    started = time.process_time()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-exam-"))
    tools = Tools([], folder / "stores", lambda text: print(text, file=sys.stderr))
    try:
        marked = examine(questions(folder, lambda name: args.only in name), tools)
    finally:
        tools.close()
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    for one in marked:
        if args.verbose or not one.right:
            mark = "right" if one.right else "wrong"
            run = Path(one.question.run).name
            print(
                f"{mark}: {run}: {one.question.text} {one.reply.outcome} {one.reply.values}, is {one.question.truth}"
            )
    if not (PUBLIC / "flight-recorder").is_dir():
        print("left out: questions about ../shared/data/public, which is not there")
    print(f"{time.process_time() - started:.0f} s of CPU time")
    print(summary_of(marked))
    return 0 if all(one.right for one in marked) else 3


if __name__ == "__main__":
    sys.exit(main())
