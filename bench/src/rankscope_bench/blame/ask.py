"""Asks a tool about the cases of `rankscope bench blame make`, and writes its answers as a submission.

    python -m rankscope_bench.blame.ask TOOL DIR -o submission.json [--jobs N] [--python PATH] [--only case-01]

TOOL is rankscope, baseline, mcp, hta or tracelens. HTA and TraceLens run in the environment whose Python `--python`
names: benchmarks/peers.py installs them, in .bench. Cases that the file has an answer to are not asked
again. An adapter takes a folder and gives one answer; it
sees neither the truth nor the other cases. What it cannot answer is `unknown`.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from rankscope_bench.arguments import parsed
from rankscope_bench.exam.fault_facts import Said, accused, cause, faults_in, is_growth, moves, who

HERE = Path(__file__).parent
Answer = dict[str, Any]
UNKNOWN: Answer = {"who": "unknown"}
NOBODY: Answer = {"who": "nobody", "ranks": [], "cause": "none"}
_SEVERITIES = {"info": 0.3, "warning": 0.6, "critical": 0.9}
_SURE = 0.5
_LEAST_WAIT = 0.02
"""The baseline names nobody where ranks wait less than this share of the step."""


# rankscope through its command line


def ask_rankscope(folder: Path) -> Answer:
    """The first fault that names ranks, at any severity, and what it saves alone."""
    with tempfile.TemporaryDirectory() as store:
        command = [
            sys.executable,
            "-m",
            "rankscope",
            "stats",
            str(folder),
            "-r",
            "findings",
            "--format",
            "json",
        ]
        done = subprocess.run([*command, "--cache", store], capture_output=True, text=True, check=False)
    if done.returncode:
        return UNKNOWN | {"why": done.stderr[-300:]}
    return answer_of(json.loads(done.stdout)["findings"])


def answer_of(findings: Sequence[Answer]) -> Answer:
    """The findings of a run as an answer."""
    hang = next(
        (each for each in findings if each["report"] in ("hang.flight_recorder", "hang") and each["ranks"]),
        None,
    )
    if hang:
        return _blame("rank", hang, "hang")
    faults = faults_in(findings)
    late = next((each for each in faults if accused(each)), None)
    growing = next((each for each in findings if is_growth(each)), None)
    if growing and (late is None or late["severity"] == "info"):
        return _blame("rank", growing, "memory")
    if late:
        return _blame(who(late), late, cause(late))
    uneven = next(filter(moves, faults), None)
    return _blame("nobody", uneven, "uneven") if uneven else NOBODY


def _blame(whose: str, finding: Said, why: str) -> Answer:
    cost = finding["alone_ns"]
    return {
        "who": whose,
        "ranks": [] if whose == "nobody" else sorted(finding["ranks"]),
        "cause": why,
        "ms_per_step": None if cost is None else cost / 1e6,
        "confidence": _SEVERITIES[finding["severity"]],
        "why": finding["title"],
    }


# The baseline: the rank that spends least time in collectives is the one the others wait for.


def ask_baseline(folder: Path) -> Answer:
    """Without collectives on the GPU, the rank with the longest step."""
    totals, steps, count = {}, {}, 1
    for rank, path in traces(folder):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        spans = [
            event["dur"]
            for event in events
            if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
        ]
        steps[rank], count = sum(spans), max(count, len(spans))
        totals[rank] = sum(
            event["dur"]
            for event in events
            if (event.get("cat") == "kernel" and event["name"].startswith("nccl"))
            or (event.get("cat") in ("cpu_op", "user_annotation") and event["name"].startswith("gloo:"))
        )
    if len(totals) < 2:
        return UNKNOWN
    if any(totals.values()):
        rank = min(totals, key=lambda rank: totals[rank])
        wait = median(totals.values()) - totals[rank]
    else:
        rank = max(steps, key=lambda rank: steps[rank])
        wait = steps[rank] - median(steps.values())
    share = wait / max(median(steps.values()), 1.0)
    sure = min(share, 1.0)
    if share < _LEAST_WAIT:
        return {"who": "nobody", "ranks": [], "confidence": sure}
    return {"who": "rank", "ranks": [rank], "ms_per_step": wait / count / 1000, "confidence": sure}


def traces(folder: Path) -> Iterator[tuple[int, Path]]:
    for path in sorted(folder.glob("rank-*.json.gz")):
        yield int(path.name.split("-")[1]), path


# Peers, in their own environments: the script there gets the folder and prints its answer.


def ask_peer(name: str, python: Path) -> Callable[[Path], Answer]:
    """A process for each case, so that its CPU time is counted as rankscope's is."""

    def ask(folder: Path) -> Answer:
        done = subprocess.run(
            [str(python), str(HERE / f"ask_{name}.py"), str(folder.resolve())],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return (
            dict(json.loads(done.stdout)) if done.returncode == 0 else UNKNOWN | {"why": done.stderr[-300:]}
        )

    return ask


def adapter(tool: str, python: Path | None) -> Callable[[Path], Answer]:
    if tool == "rankscope":
        return ask_rankscope
    if tool == "baseline":
        return ask_baseline
    if tool == "mcp":
        from rankscope_bench.blame.ask_mcp import ask_mcp

        return ask_mcp
    if python is None:
        raise SystemExit(f"{tool} runs in an environment of its own: name its Python with --python")
    return ask_peer(tool, python)


def cpu_seconds() -> float:
    """Of this process and the children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def write(path: Path, tool: str, cpu_s: float, answers: Sequence[Answer]) -> None:
    path.write_text(json.dumps({"tool": tool, "cpu_seconds": cpu_s, "answers": answers}, indent=1) + "\n")


_OPTIONS = """\
TOOL  whom to ask: rankscope, baseline, mcp, hta or tracelens
FOLDER  the cases
-o, --output FILE  the submission
--python FILE  of the environment of HTA or TraceLens
--jobs N  how many cases are asked about at a time (default 1)
--only PATTERN  cases whose name contains this
--name NAME  of the tool, with its version (default: TOOL)
--sure FILE  write also: nobody is named at a confidence below 0.5
"""


def main(argv: Sequence[str] | None = None) -> int:
    tool: Any = {"choices": ("rankscope", "baseline", "mcp", "hta", "tracelens")}
    output: Any = {"type": Path, "required": True}
    args = parsed(
        __doc__,
        _OPTIONS,
        argv,
        tool=tool,
        folder=Path,
        output=output,
        python=Path,
        jobs=1,
        only="",
        sure=Path,
    )
    ask, name = adapter(args.tool, args.python), args.name or args.tool
    earlier: dict[str, Any] = {"cpu_seconds": 0, "answers": []}
    if args.output.exists():
        earlier = json.loads(args.output.read_text())
    answers, asked = earlier["answers"], {answer["case"] for answer in earlier["answers"]}
    cases = sorted(
        path
        for path in args.folder.iterdir()
        if path.is_dir() and args.only in path.name and path.name not in asked
    )
    # Threads that wait: the tools run in processes of their own, all but the baseline.
    with ThreadPoolExecutor(args.jobs) as pool:
        for case, answer in zip(cases, pool.map(ask, cases), strict=True):
            answers.append({"case": case.name, **answer})
            cpu_s = round(earlier["cpu_seconds"] + cpu_seconds(), 1)
            write(args.output, name, cpu_s, answers)
            print(json.dumps(answers[-1]), file=sys.stderr, flush=True)
    if args.sure:
        cpu_s = json.loads(args.output.read_text())["cpu_seconds"]
        sure = [
            answer if answer.get("confidence", 1) >= _SURE else {**answer, **NOBODY} for answer in answers
        ]
        write(args.sure, f"{name}, warnings", cpu_s, sure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
