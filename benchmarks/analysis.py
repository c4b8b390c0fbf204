"""All reports of a run: their time and memory, whether the cost is linear, and rankscope against HTA, in one run.

    python benchmarks/analysis.py                 every report of 8 ranks of 1,000,000 events each, after reading
    python benchmarks/analysis.py --scaling       1, 3, 10 and 30 million events: is the cost per event constant?
    python benchmarks/analysis.py --hta           breakdown, overlap and kernels of one trace, reading included

The traces are synthetic, in Kineto's exact text, and kept in .bench for the next time. HTA lives in a virtual
environment of its own there, made when it is missing: it needs pandas < 3.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from measure import Cost, measure
from rankscope.units import parse_count

WORK = Path(__file__).parents[1] / ".bench"
RANKSCOPE = [sys.executable, "-m", "rankscope"]
RANKS = 8
SCALING = ("1e6", "3e6", "1e7", "3e7")
HTA_PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3")
HTA_CODE = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]})
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
analysis.get_gpu_kernel_breakdown(visualize=False)
"""


def run_folder(ranks: int, events: int) -> Path:
    """A folder with a synthetic run of so many events per rank."""
    folder = WORK / f"run-{ranks}x{events}"
    if not (folder / "truth.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        steps = str(max(6, events // 10_000))
        options = ["--ranks", ranks, "--events", events, "--steps", steps, "-o", folder]
        measure([*RANKSCOPE, "bench", "synthetic", *options])
    return folder


def busy() -> str:
    """How much else ran meanwhile."""
    return f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def show(what: str, cost: Cost, note: str) -> None:
    memory = f"{cost.peak_bytes / 1e9:.2f} GB"
    print(
        f"{what:<34} {cost.seconds:>8.2f} s  {cost.cpu_seconds:>7.2f} s CPU  {memory:>9}   {note}", flush=True
    )


def all_reports(ranks: int, events: int) -> Cost:
    """Every report in one process, after reading."""
    folder = run_folder(ranks, events)
    measure([*RANKSCOPE, "ingest", folder])
    return measure([sys.executable, __file__, "--report-times", folder])


def report_times(folder: Path) -> None:
    """One line a report, in this process."""
    from rankscope.analysis import REPORTS
    from rankscope.analysis.core.scope import Scope
    from rankscope.store.ingest import ingest
    from rankscope.store.run import Run

    run = Run(ingest([folder]))
    run.rows("SELECT 1")
    everything = [0.0, 0.0]
    for name, report in REPORTS.items():
        started, cpu = time.perf_counter(), time.process_time()
        report.analyse(run, Scope(), None)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        everything = [everything[0] + seconds, everything[1] + cpu]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{name:<14} {seconds:>7.2f} s  {cpu:>6.2f} s CPU   {peak:.2f} GB so far", flush=True)
    print(f"{'all':<14} {everything[0]:>7.2f} s  {everything[1]:>6.2f} s CPU")


def eight_ranks(events: int) -> None:
    folder = run_folder(RANKS, events)
    measure([*RANKSCOPE, "ingest", folder])
    print(f"{RANKS} ranks of {events:,} events; {busy()}\n", flush=True)
    subprocess.run([sys.executable, __file__, "--report-times", str(folder)], check=True)
    show("rankscope stats -r all", measure([*RANKSCOPE, "stats", folder, "-r", "all"]), "start-up included")
    print(busy())


def scaling() -> None:
    print(busy())
    for text in SCALING:
        total = parse_count(text)
        cost = all_reports(RANKS, total // RANKS)
        show(f"all reports, {total:,} events", cost, f"{cost.seconds / total * 1e6:.2f} µs an event")
    print(busy())


def hta_python() -> Path:
    """The interpreter of HTA's own environment; made when it is not there."""
    python = WORK / "hta" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(WORK / "hta")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *HTA_PACKAGES], check=True)
    return python


def against_hta(events: int, python: Path | None) -> None:
    folder = run_folder(1, events)
    path = next(folder.glob("rank-*"))
    print(f"{path.stat().st_size / 1e9:.2f} GB, {events:,} events, one rank; {busy()}\n", flush=True)
    asked = [*RANKSCOPE, "stats", path, "--cache", WORK / "store"]

    def read_and_ask() -> Cost:
        shutil.rmtree(WORK / "store", ignore_errors=True)
        return measure([*asked, "-r", "breakdown,overlap,kernels"])

    # Both before and after HTA's minute: machines that others use too are not equally fast all the time.
    runs = [read_and_ask() for _ in range(3)]
    hta = measure([python or hta_python(), "-c", HTA_CODE, path])
    runs += [read_and_ask() for _ in range(2)]
    show("rankscope, every report, afterwards", measure([*asked, "-r", "all"]), "")
    ours = sorted(runs, key=lambda cost: cost.seconds)[len(runs) // 2]
    times = ", ".join(f"{cost.seconds:.2f}" for cost in runs)
    show("rankscope, reading and 3 reports", ours, f"median of {times}")
    show("HTA, reading and 3 analyses", hta, f"ours is {hta.seconds / ours.seconds:.1f} times as fast")
    print(busy())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default="1e6", help="per rank (default: 1e6)")
    parser.add_argument("--scaling", action="store_true", help="several sizes instead")
    parser.add_argument("--hta", action="store_true", help="against HTA instead")
    parser.add_argument("--hta-python", type=Path, help="an interpreter that has HTA already")
    parser.add_argument("--report-times", type=Path, metavar="RUN", help="time every report of this run")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if args.report_times:
        report_times(args.report_times)
    elif args.scaling:
        scaling()
    elif args.hta:
        against_hta(parse_count(args.events), args.hta_python)
    else:
        eight_ranks(parse_count(args.events))
