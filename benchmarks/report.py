"""The report of a large run: seconds, memory and size of the file, beside what reading the traces takes.

    python benchmarks/report.py                           64 ranks of 100,000 events
    python benchmarks/report.py --ranks 8 --events 1e5    fewer
    python benchmarks/report.py --reports                 what each of its reports takes

The bounds it is held against: 10 s after ingest, 1 GB, 3 MB. The traces are synthetic, with shapes and memory, and kept
in .bench for the next time.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from measure import measure
from rankscope.units import parse_count
from traces import RANKSCOPE, WORK

BOUNDS = {"seconds": 10.0, "memory": 1e9, "size": 3e6}


def traces(ranks: int, events: str) -> Path:
    """A folder of synthetic traces, one a rank."""
    folder = WORK / f"ranks-{ranks}-{events}"
    if not (folder / "truth.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--ranks", ranks, "--events", events, "--gzip", "-o", folder]
        measure([*RANKSCOPE, "bench", "synthetic", *options])
    return folder


def held(value: float, bound: float) -> str:
    return "within" if value <= bound else f"{value / bound:.1f} times"


def compare(ranks: int, events: str) -> None:
    source, store = traces(ranks, events), WORK / "report-store"
    shutil.rmtree(store, ignore_errors=True)
    print(f"{ranks} ranks of {parse_count(events):,} events\n", flush=True)
    ingest = measure([*RANKSCOPE, "ingest", source, "-o", store, "-q"])
    print(
        f"{'rankscope ingest':<22} {ingest.seconds:>7.1f} s  {ingest.peak_bytes / 1e9:>5.2f} GB", flush=True
    )
    target = WORK / "report.html"
    report = measure([*RANKSCOPE, "report", store, "-o", target, "-f", "-q"])
    size = target.stat().st_size
    print(
        f"{'rankscope report':<22} {report.seconds:>7.1f} s  {report.peak_bytes / 1e9:>5.2f} GB  {size / 1e6:.2f} MB  "
        f"({report.cpu_seconds:.1f} s CPU; {report.seconds / ingest.seconds:.2f} times ingest)"
    )
    print(
        f"bound {held(report.seconds, BOUNDS['seconds'])} for the time, {held(report.peak_bytes, BOUNDS['memory'])} "
        f"for the memory, {held(size, BOUNDS['size'])} for the size"
    )


def each_report(ranks: int, events: str) -> None:
    """In one process, as the report asks them: what is shared is paid by the first."""
    from rankscope.analysis import REPORTS
    from rankscope.analysis.core.scope import Scope
    from rankscope.timeline.reading import ingest
    from rankscope.timeline.run import Run
    from rankscope.views.report.content import report_order

    run = Run(ingest([traces(ranks, events)]))
    for name, _ in report_order():
        before, cpu = time.perf_counter(), time.process_time()
        rows = len(REPORTS[name].analyse(run, Scope(), None).rows)
        print(
            f"{name:<14} {time.perf_counter() - before:>6.2f} s  {time.process_time() - cpu:>6.2f} s CPU  {rows:,}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", default="1e5", help="of each rank (default: 1e5)")
    parser.add_argument("--reports", action="store_true", help="report by report")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if args.reports:
        each_report(args.ranks, args.events)
    else:
        compare(args.ranks, args.events)
