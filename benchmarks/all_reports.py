"""All reports of a run: their time and memory, and whether the cost is linear.

    python benchmarks/all_reports.py                 every report of 8 ranks of 1,000,000 events each, after reading
    python benchmarks/all_reports.py --scaling       1, 3, 10 and 30 million events: is the cost per event constant?

The traces are synthetic, in Kineto's exact text, and kept in .bench for the next time.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from measure import Cost, measure
from rankscope.units import parse_count
from traces import RANKSCOPE, WORK, synthetic_run

RANKS = 8
SCALING = ("1e6", "3e6", "1e7", "3e7")


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
    folder = synthetic_run(ranks, events)
    measure([*RANKSCOPE, "ingest", folder])
    return measure([sys.executable, __file__, "--report-times", folder])


def report_times(folder: Path) -> None:
    """One line a report, in this process."""
    from rankscope.analysis import REPORTS
    from rankscope.analysis.core.scope import Scope
    from rankscope.timeline.reading import ingest
    from rankscope.timeline.run import Run

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
    folder = synthetic_run(RANKS, events)
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default="1e6", help="per rank (default: 1e6)")
    parser.add_argument("--scaling", action="store_true", help="several sizes instead")
    parser.add_argument("--report-times", type=Path, metavar="RUN", help="time every report of this run")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if args.report_times:
        report_times(args.report_times)
    elif args.scaling:
        scaling()
    else:
        eight_ranks(parse_count(args.events))
