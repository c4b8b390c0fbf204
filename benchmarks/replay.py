"""What the critical path and a what-if cost over many ranks, and how that grows.

    python benchmarks/replay.py [--ranks 64] [--collectives 10000] [--keep DIR]

The traces are those of across.py (a planted straggler, planted clocks). CPU seconds from the open store to the
answer, in a process of its own, and its peak memory; the same with a quarter of the collectives. The answers are
checked: the path adds up to its window, and the run played unchanged gives the recorded times.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from across import LATE_RANK, write_run


def ask(folder: Path) -> dict[str, float]:
    """In this process: both questions, timed."""
    from rankscope.analysis.core.scope import Scope
    from rankscope.analysis.critical_path.report import critical
    from rankscope.analysis.critical_path.scenarios import rank_at_median
    from rankscope.analysis.critical_path.whatif import whatif
    from rankscope.analysis.graph.graph import graph_of
    from rankscope.timeline.reading import ingest
    from rankscope.timeline.run import Run

    run = Run(ingest([folder]))
    run.rows("SELECT 1")
    began = time.process_time()
    graph = graph_of(run, Scope())
    built = time.process_time()
    path = critical(run, Scope())
    walked = time.process_time()
    predicted = whatif(run, Scope(), [rank_at_median(LATE_RANK)])
    played = time.process_time()
    assert sum(row["ns"] for row in path.rows) == graph.window[1] - graph.window[0]
    assert not any("played unchanged" in note for note in predicted.notes), predicted.notes
    assert predicted.rows[0]["saved_ns"] >= 0
    return {
        "points": len(graph.rank),
        "build_s": built - began,
        "critical_s": walked - built,
        "whatif_s": played - walked,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="where to write the traces, and to leave them")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        print(json.dumps(ask(args.ask)))
        return
    root = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-replay-"))
    try:
        print("ranks  collectives     points  build s  critical s  whatif s  peak MB")
        for count in (args.collectives // 4, args.collectives):
            folder = root / str(count)
            if not folder.exists():
                write_run(folder, args.ranks, count)
            words = [sys.executable, "-m", "rankscope", "ingest", "-q", str(folder)]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
            done = subprocess.run(
                [sys.executable, __file__, "--ask", str(folder)], check=True, capture_output=True, text=True
            )
            found = json.loads(done.stdout)
            seconds = f"{found['build_s']:7.2f}  {found['critical_s']:10.2f}  {found['whatif_s']:8.2f}"
            print(f"{args.ranks:5}  {count:11,}  {found['points']:9,}  {seconds}  {found['peak_mb']:7.0f}")
    finally:
        if not args.keep:
            shutil.rmtree(root)


if __name__ == "__main__":
    main()
