"""The same commands with two versions of rankscope, in turns: CPU seconds and memory of the new one, against the old.

    python benchmarks/two_versions.py OLD [--repeat 5] [--only TEXT] [--most-cpu 3 --most-memory 5]

OLD is another checkout, its C parts built. Ends with 1 where a median needs more than so many percent more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import accelerators
import nsys
import snapshots
import traces
from measure import Cost, measure
from rankscope_bench.synthetic.cluster import Job, simulate
from rankscope_bench.synthetic.cluster_trace import write_traces
from traces import RANKSCOPE, ROOT, WORK


class Case(NamedTuple):
    title: str
    words: tuple[object, ...]
    """STORE stands for a folder of the version."""
    is_new: bool = True
    """The store is removed before each run."""


def cases() -> Iterator[Case]:
    yield Case("--help", ("--help",))
    stacks, ranks = traces.stacks("100MB").path, WORK / "cluster-64"
    if not ranks.is_dir():
        job = Job(data=64, steps=6, seed=1)
        write_traces(job, simulate(job), ranks)
    snapshot = WORK / "snapshot-50mb.pickle"
    if not snapshot.is_file():
        snapshots.write_snapshot(snapshot, 50_000_000)
    files = {
        "Kineto, 100 MB": stacks,
        "nsys, 50 MB": nsys.make_export(nsys.SOURCE, 50),
        "xplane.pb, 30 MB": accelerators.xplane(30).path,
        "snapshot, 50 MB": snapshot,
        "64 ranks": ranks,
    }
    for title, path in files.items():
        yield Case(f"ingest: {title}", ("ingest", "-q", path, "--cache", "STORE"))
    for name, path in (("64 ranks", ranks), ("hf-trainer", ROOT / "tests" / "data" / "hf-trainer-h200")):
        yield Case(f"first stats: {name}", ("stats", "-q", path, "--cache", "STORE"))
        yield Case(f"second stats: {name}", ("stats", "-q", path, "--cache", "STORE"), is_new=False)
        for report in ("breakdown", "stragglers", "critical"):
            yield Case(
                f"{report}: {name}", ("stats", "-q", "-r", report, path, "--cache", "STORE"), is_new=False
            )


def cost(case: Case, version: Path, store: Path) -> Cost:
    if case.is_new:
        shutil.rmtree(store, ignore_errors=True)
        store.mkdir()
    os.environ["PYTHONPATH"] = str(version / "src")
    return measure([*RANKSCOPE, *(store if word == "STORE" else word for word in case.words)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their title")
    parser.add_argument("--most-cpu", type=float, default=3.0, metavar="PERCENT")
    parser.add_argument("--most-memory", type=float, default=5.0, metavar="PERCENT")
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    worse = 0
    print(f"{'':34} {'CPU s, old':>10} {'new':>8} {'':>7} {'MB, old':>9} {'new':>7}")
    with tempfile.TemporaryDirectory() as folder:
        stores = {args.old.resolve(): Path(folder, "old"), ROOT: Path(folder, "new")}
        for case in cases():
            if args.only not in case.title:
                continue
            costs: dict[Path, list[Cost]] = {version: [] for version in stores}
            for _ in range(args.repeat):
                for version, store in stores.items():
                    costs[version].append(cost(case, version, store))
            old, new = (
                (
                    statistics.median(c.cpu_seconds for c in each),
                    statistics.median(c.peak_bytes for c in each) / 1e6,
                )
                for each in costs.values()
            )
            cpu, memory = (100 * (after / before - 1) for before, after in zip(old, new, strict=True))
            worse += cpu > args.most_cpu or memory > args.most_memory
            print(
                f"{case.title:34} {old[0]:>10.3f} {new[0]:>8.3f} {cpu:>+6.1f}% {old[1]:>9.1f} {new[1]:>7.1f} "
                f"{memory:>+6.1f}%",
                flush=True,
            )
    sys.exit(worse > 0)


if __name__ == "__main__":
    main()
