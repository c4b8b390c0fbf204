"""Reading a trace: rankscope against Python's json.load, HTA and trace_processor, in one run, as ratios.

    python benchmarks/ingest.py                 a trace of 1 GB
    python benchmarks/ingest.py --events 3e5    a smaller one
    python benchmarks/ingest.py --scaling       100 MB, 300 MB, 1 GB, 2.7 GB: is the cost per event constant?

The traces are synthetic, in Kineto's exact text, and kept in .bench for the next time.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path

from measure import Cost, measure
from rankscope.units import parse_count

WORK = Path(__file__).parents[1] / ".bench"
RANKSCOPE = [sys.executable, "-m", "rankscope"]
SCALING = ("3e5", "1e6", "3e6", "8.2e6")


def trace(events: str, gzip: bool = False) -> Path:
    """A folder with one synthetic trace of so many events."""
    folder = WORK / f"trace-{events}{'-gz' if gzip else ''}"
    if not (folder / "truth.json").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        options = ["--ranks", "1", "--events", events, "--steps", str(max(6, parse_count(events) // 10_000))]
        measure([*RANKSCOPE, "bench", "synthetic", *options, "-o", folder, *(["--gzip"] if gzip else [])])
    return next(folder.glob("rank-*"))


def ingest(path: Path) -> Cost:
    """Read a trace from nothing."""
    shutil.rmtree(WORK / "store", ignore_errors=True)
    return measure([*RANKSCOPE, "ingest", path, "-o", WORK / "store"])


def show(what: str, cost: Cost, note: str) -> None:
    memory = f"{cost.peak_bytes / 1e9:.2f} GB"
    print(
        f"{what:<34} {cost.seconds:>8.2f} s  {cost.cpu_seconds:>7.2f} s CPU  {memory:>9}   {note}", flush=True
    )


def compare(events: str) -> None:
    path = trace(events)
    size = path.stat().st_size
    print(f"{path.name}: {size / 1e9:.2f} GB, {parse_count(events):,} events\n")
    load = measure([sys.executable, "-c", f"import json; json.load(open({str(path)!r}))"])
    show("json.load", load, f"{size / 1e6 / load.seconds:.0f} MB/s")
    ours = ingest(path)
    show("rankscope ingest", ours, f"{load.seconds / ours.seconds:.1f} times as fast as json.load")
    second = measure([*RANKSCOPE, "stats", WORK / "store", "-r", "kernels"])
    show("rankscope stats -r kernels", second, "the second question")
    gz = ingest(trace(events, gzip=True))
    show("rankscope ingest, .json.gz", gz, f"{gz.seconds / ours.seconds:.2f} times the plain file's time")
    show("rankscope --help", measure([*RANKSCOPE, "--help"]), "")
    compare_peers(path, ours)


def compare_peers(path: Path, ours: Cost) -> None:
    if importlib.util.find_spec("hta"):
        code = (
            f"from hta.trace_analysis import TraceAnalysis; TraceAnalysis(trace_files={{0: {str(path)!r}}})"
        )
        hta = measure([sys.executable, "-c", code])
        show("HTA, opening the trace", hta, f"ours is {hta.seconds / ours.seconds:.1f} times as fast")
    else:
        print("HTA is not installed (pip install HolisticTraceAnalysis 'pandas<3'): not compared")
    processor = shutil.which("trace_processor") or shutil.which("trace_processor_shell")
    if processor:
        perfetto = measure([processor, "-Q", "select count(*) from slice", path])
        show("trace_processor", perfetto, f"ours is {perfetto.seconds / ours.seconds:.1f} times as fast")
    else:
        print("trace_processor is not on PATH: not compared")


def scaling() -> None:
    for events in SCALING:
        path, count = trace(events), parse_count(events)
        cost = ingest(path)
        per_event = f"{cost.seconds / count * 1e6:.2f} µs an event"
        show(f"{path.stat().st_size / 1e6:,.0f} MB, {count:,} events", cost, per_event)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", default="3e6", help="of the trace (default: 3e6, some 1 GB)")
    parser.add_argument("--scaling", action="store_true", help="several sizes instead of comparisons")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    if args.scaling:
        scaling()
    else:
        compare(args.events)
