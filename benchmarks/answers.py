"""The answers to all questions about the recorded runs and some simulated ones, as text: what a change did to them.

    python benchmarks/answers.py                      compares them with tests/answers; ends with 1 where one differs
    python benchmarks/answers.py --write              writes tests/answers (make answers)
    python benchmarks/answers.py [--write] --folder FOLDER [TRACES …]      the same elsewhere, of other runs
    python benchmarks/answers.py --beside CHECKOUT [--only PATTERN] [TRACES …]
                                                      a table of every case: its truth, and what an older version says

A run's file has its headline, its notes, its findings (severity, cost, cause, ranks, title), and of each report the
title and the sum of each column of numbers: where a figure changes, its report and column are told. The simulated runs
are the cases of SIMULATED. With TRACES, the runs are the folders of traces below them. The table
also has the cases of the exam.
"""

from __future__ import annotations

import argparse
import difflib
import lzma
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from beside import HEADINGS, Case, as_line, rows
from rankscope.analysis.core.result import Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.critical_path.whatif import whatif
from rankscope.analysis.health.doctor import doctor
from rankscope.analysis.reports import REPORTS
from rankscope.analysis.summary import subject
from rankscope.errors import RankscopeError
from rankscope.timeline.run import Run, open_run
from rankscope_bench.blame.planting import job_of
from rankscope_bench.exam.cases import all_cases, plant
from rankscope_bench.synthetic.cluster import RankRun, simulate, step_ns
from rankscope_bench.synthetic.cluster_trace import write_traces
from rankscope_bench.synthetic.job import Fault, Job

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "answers"
RECORDED = (ROOT / "tests" / "data", ROOT / "src" / "rankscope" / "demo")
SEPARATE = ("checkpoint-cpu", "hta", "jax-toolbox", "tracelens")
"""Folders of files that are not one run."""
SIMULATED = (
    "dp4", "dp8", "dp4tp2", "ep4", "fsdp4", "pp4-1f1b-batched", "dp4 compute:1:0.6", "dp4 throttle:2:0.8",
    "dp4 host:3:1", "dp4 gc:0:0.8", "dp4 checkpoint:1:0.8", "dp4 copy:2:0.7", "dp4 dataloader:0:1", "dp4 moving:all:1",
    "dp4 lengths:all:0.5", "dp4 overlap:all:0", "dp4 fusion:all:2", "dp4 leak:1:64", "dp8 throttle:node1:0.9",
    "ep4 experts:2:0.8", "ep4 experts:all:0.8", "fsdp4 host:2:0.8", "tp4 compute:1:0.7", "tp4 host:2:0.2",
    "dp2tp2 link:1:1", "dp4tp2 link:3:1 host:5:1", "dp4 compute:0:0.5 host:2:0.7",
    "dp4 compute:0:1 compute:1:1 host:2:1 dataloader:3:1", "dp4 compute:1:0.8/2 host:2:0.8/3",
    "dp4 host:0:0.3/5 host:1:0.3/6 host:2:0.3/7 host:3:0.3/8", "dp4 host:all:0.8/4",
    "pp4-1f1b-batched stages:stage2:8", "pp2dp4 stages:stage0:4", "pp2dp4 compute:5:1", "pp2dp2 dataloader:1:1",
    "pp4dp2-interleaved-batched throttle:3:2",
)  # fmt: skip
"""Layout and faults, KIND:RANKS:MS as those of `rankscope bench cluster`, which has the same words."""


def recorded_runs(root: Path) -> Iterator[tuple[str, list[Path]]]:
    """The files of every folder of traces, named by its path; one by one where they are not one run."""
    traces = {path for path in root.rglob("*") if path.is_file() and is_trace(path)}
    for folder in sorted({path.parent for path in traces}):
        name = f"{root.name}-{folder.relative_to(root)}".replace("/", "-").removesuffix("-.")
        files = sorted(traces & {*folder.iterdir()})
        if folder.name in SEPARATE:
            yield from ((f"{name}-{file.name.partition('.')[0]}", [file]) for file in files)
        else:
            yield name, files


def is_trace(path: Path) -> bool:
    return path.suffix != ".md" and not {"nsys-stats", "kubeflow", ".rankscope"} & {*path.parts}


@contextmanager
def unpacked(files: Sequence[Path]) -> Iterator[Path]:
    """A folder with the files of a run, in which a store can be written."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary, "run")
        run.mkdir()
        for file in files:
            if file.suffix == ".xz":
                (run / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
            else:
                (run / file.name).symlink_to(file.resolve())
        yield run


def simulated_job(text: str) -> Job:
    """A job by its words."""
    layout, *faults = text.split()
    job = replace(job_of(layout.replace("fsdp", "dp")), seed=len(text), offset_ns=1_000_000, layers=2)
    job = replace(job, steps=8 if "/" in text else 4, ranks_per_node=2 if "node" in text else 8)
    if job.stages > 1:
        job = replace(job, micro_batches=4, layers=job.chunks, kernels=1, norm_ns=40_000)
    if layout.startswith("fsdp"):
        job = replace(job, model="gpt", sharded=True, micro_batches=1, bus_gb_s=300.0)
    return replace(job, faults=tuple(_fault(fault, job) for fault in faults))


def _fault(text: str, job: Job) -> Fault:
    kind, who, size = text.split(":")
    ms, _, every = size.partition("/")
    word, number = who.rstrip("0123456789"), int(re.sub(r"\D", "", who) or 0)
    width = {"node": job.ranks_per_node, "stage": job.data * job.tensor, "all": job.ranks, "": 1}[word]
    ranks = tuple(range(number * width, (number + 1) * width))
    return Fault(
        kind, ranks, round(float(ms) * (1 << 20 if kind == "leak" else 1_000_000)), every=int(every or 0)
    )


def answers(run: Run) -> str:
    """All answers about one run."""
    scope = Scope().in_run(run)
    summary = REPORTS["summary"].analyse(run, scope, None)
    lines = [
        summary.title,
        f"{subject(run, scope, summary)} · {summary.window}",
        *(f"note: {note}" for note in summary.notes),
    ]
    for number, finding in enumerate(summary.findings, 1):
        lines += ["", f"{number}. {_cost_line(finding)}", f"   {finding.title}"]
    lines.append("")
    for name, report in REPORTS.items():
        if name != "findings":
            lines += _report_lines(name, report.analyse(run, Scope(), None))
    lines += _report_lines("whatif", whatif(run, Scope()))
    lines += _report_lines("doctor", doctor(run, Scope()))
    return "\n".join(lines)


def _cost_line(finding: Finding) -> str:
    cost = (
        "no cost"
        if finding.cost_ns is None
        else f"{'up to ' * (finding.kind == 'limit')}{finding.cost_ns:,} ns"
    )
    alone = f", alone {finding.alone_ns:,} ns" if finding.alone_ns not in (None, finding.cost_ns) else ""
    cause = finding.fact("cause")
    why = f"; cause {cause.value}" if cause else ""
    ranks = f"; ranks {', '.join(map(str, finding.ranks))}" if finding.ranks else ""
    steps = f"; steps {', '.join(map(str, finding.steps))}" if finding.steps else ""
    severity = f", {finding.severity}" if finding.kind != "limit" else ""
    return f"{finding.kind}{severity}, {cost}{alone}{ranks}{steps}{why} (-r {finding.report})"


def _report_lines(name: str, result: Result) -> list[str]:
    """The title of a report, and the sums of its columns."""
    sums = []
    for column in result.columns:
        values = [value for row in result.rows if (value := row.get(column.name)) is not None]
        values = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if values and column.name not in ("rank", "step"):
            total = sum(values)
            sums.append(f"{column.name} {total if isinstance(total, int) else format(total, '.6g')}")
    lines = [f"-r {name}, {len(result.rows)} rows: {result.title}"]
    return lines + ["   " + " · ".join(sums)] * bool(sums)


def run_folders(folders: Sequence[Path] = ()) -> Iterator[tuple[str, Path]]:
    """Name and folder of each run, which is there until the next is asked for."""
    for root in folders or RECORDED:
        for name, files in recorded_runs(root):
            with unpacked(files) as run:
                yield name, run
    for text in () if folders else SIMULATED:
        with tempfile.TemporaryDirectory() as temporary:
            job, run = simulated_job(text), Path(temporary, "run")
            write_traces(job, simulate(job), run)
            yield f"simulated-{text}".replace(" ", "-").replace(":", "-").replace("/", "-every"), run


def dumps(
    folders: Sequence[Path] = (), also: Callable[[str, Run], None] = lambda name, run: None
) -> Iterator[tuple[str, str]]:
    """Name and answers of each run. `also` is done with each that can be opened."""
    for name, folder in run_folders(folders):
        try:
            run = open_run([folder], jobs=1)
        except RankscopeError as error:
            text = str(error)
        else:
            text = answers(run)
            also(name, run)
        yield name, text.replace(str(folder), "RUN") + "\n"


def cases(folders: Sequence[Path], wanted: str) -> Iterator[Case]:
    """Every recorded, simulated and exam case whose name contains a text, with what is planted in it."""
    for root in folders or RECORDED:
        for name, files in recorded_runs(root):
            if wanted in name:
                with unpacked(files) as run:
                    yield Case(name, "-", run)
    for text in () if folders else SIMULATED:
        if wanted in text:
            job = simulated_job(text)
            runs = simulate(job)
            lost_ns = step_ns(runs) - step_ns(simulate(job.healthy()))
            yield from _written(text, _truth(text.partition(" ")[2], lost_ns), job, runs)
    for case in () if folders else all_cases():
        if wanted in case.name and case.kind != "hang":
            planted = plant(case)
            truth = _truth(f"{case.kind} {planted.culprits or ''}".strip(), planted.cost_ns)
            yield from _written(case.name, truth, planted.job, planted.runs)


def _written(name: str, truth: str, job: Job, runs: list[RankRun]) -> Iterator[Case]:
    with tempfile.TemporaryDirectory() as run:
        write_traces(job, runs, Path(run))
        yield Case(name, truth, Path(run))


def _truth(planted: str, cost_ns: float) -> str:
    return f"{planted or 'healthy'}, {cost_ns / 1e6:.2f} ms" if cost_ns else planted or "healthy"


def differences(before: Path, now: Iterator[tuple[str, str]]) -> Iterator[str]:
    """What differs from the files of a folder, as a diff."""
    unseen = {path.stem for path in before.glob("*.txt")}
    for name, text in now:
        stored = before / f"{name}.txt"
        unseen.discard(name)
        old = stored.read_text() if stored.exists() else ""
        names = f"{name}, before", f"{name}, now"
        yield from difflib.unified_diff(old.splitlines(), text.splitlines(), *names, lineterm="", n=1)
    yield from (f"{name}: not asked any more" for name in sorted(unseen))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="*", help="folders with recorded runs below them")
    parser.add_argument("--write", action="store_true", help="write the answers instead of comparing them")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where they are kept (default: tests/answers)"
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="CHECKOUT",
        help="print what the rankscope of a checkout says, and this one",
    )
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="with --beside: names that contain this"
    )
    options = parser.parse_args(argv)
    if options.beside:
        print(as_line(HEADINGS), as_line(["---"] * len(HEADINGS)), sep="\n")
        for row in rows(cases(options.traces, options.only), options.beside, ROOT):
            print(as_line(row), flush=True)
        return 0
    if options.traces and options.folder == FOLDER:
        parser.error("the answers about other runs need a --folder of their own")
    now = dumps(options.traces)
    if not options.write:
        lines = [*differences(options.folder, now)]
        print(*lines, sep="\n", end="\n" * bool(lines))
        return int(bool(lines))
    options.folder.mkdir(parents=True, exist_ok=True)
    for path in options.folder.glob("*.txt"):
        path.unlink()
    for name, text in now:
        (options.folder / f"{name}.txt").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
