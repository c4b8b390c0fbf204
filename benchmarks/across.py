"""What comparing ranks costs: collectives matched, clocks aligned, waits blamed; and how that grows.

    python benchmarks/across.py [--ranks 64] [--collectives 10000] [--keep DIR]

Writes traces with a planted straggler and planted clocks, reads them, and asks for clocks, collectives and
stragglers in a process of its own: seconds from opening the store to the three answers, and its peak memory. The
same with a quarter of the collectives shows that cost grows with their number. The answer is checked.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LATE_RANK, LATE_NS = 2, 400_000
PER_STEP = 50
MAX_OFFSET_NS, MAX_DRIFT_PPB = 5_000_000, 50_000


def write_run(folder: Path, ranks: int, collectives: int) -> None:
    """One compute kernel and one all_reduce after the other; rank 2 computes longer before the first of a step."""
    source = random.Random(7)
    clocks = [
        (
            source.randint(-MAX_OFFSET_NS, MAX_OFFSET_NS) * bool(rank),
            source.randint(-MAX_DRIFT_PPB, MAX_DRIFT_PPB) * bool(rank),
        )
        for rank in range(ranks)
    ]
    free = 1_000_000
    arrivals = []
    for number in range(collectives):
        late = [free + 60_000 + source.randrange(8_000) for _ in range(ranks)]
        late[LATE_RANK] += LATE_NS * (number % PER_STEP == 0)
        end = max(late) + 40_000 + source.randrange(2_000)
        arrivals.append((free, late, end))
        free = end
    folder.mkdir(parents=True)
    for rank in range(ranks):
        _write_rank(folder / f"rank-{rank:05d}.pt.trace.json", rank, ranks, arrivals, clocks[rank])


def _write_rank(
    path: Path, rank: int, ranks: int, arrivals: list[tuple[int, list[int], int]], clock: tuple[int, int]
) -> None:
    def us(true_ns: int) -> str:
        own = true_ns + clock[0] + true_ns * clock[1] // 1_000_000_000 + 10_000_000_000
        return f"{own // 1000}.{own % 1000:03d}"

    meta = (
        '"device": 0, "stream": 20, "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1048576, '
        f'"Out msg nelems": 1048576, "Group size": {ranks}, "Process Group Name": "0", '
        '"Process Group Description": "default_pg"'
    )
    with path.open("w", encoding="utf-8") as file:
        info = json.dumps({"backend": "nccl", "rank": rank, "world_size": ranks})
        file.write(
            f'{{\n  "distributedInfo": {info},\n  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": ['
        )
        separator = "\n"
        for number, (free, late, end) in enumerate(arrivals):
            if number % PER_STEP == 0:
                last = arrivals[min(number + PER_STEP, len(arrivals)) - 1][2]
                step = f"ProfilerStep#{number // PER_STEP}"
                file.write(
                    f'{separator}  {{\n    "ph": "X", "cat": "user_annotation", "name": "{step}", "pid": 1, "tid": 1,\n'
                    f'    "ts": {us(free)}, "dur": {(last - free) / 1000:.3f}\n  }}'
                )
                separator = ",\n"
            start = late[rank]
            for name, stream, begin, finish, args in (
                ("gemm", 7, free + 2_000, start - 1_000, '"device": 0, "stream": 7'),
                ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, start, end, f'{meta}, "Seq": {number}'),
            ):
                file.write(
                    f'{separator}  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},\n'
                    f'    "ts": {us(begin)}, "dur": {(finish - begin) / 1000:.3f},\n'
                    f'    "args": {{\n      {args}\n    }}\n  }}'
                )
        file.write('\n  ],\n  "traceName": "x"\n}')


def ask(folder: Path) -> dict[str, float]:
    """In this process: the three answers."""
    from rankscope.analysis import REPORTS
    from rankscope.analysis.core.scope import Scope
    from rankscope.store.derived import CLOCKS, path_of
    from rankscope.timeline.reading import ingest
    from rankscope.timeline.run import Run

    ingested = ingest([folder])
    path_of(ingested.store, CLOCKS).unlink(missing_ok=True)
    began = time.perf_counter()
    run = Run(ingested)
    seconds = {}
    for name in ("clocks", "collectives", "stragglers"):
        result = REPORTS[name].analyse(run, Scope(), None)
        seconds[name] = time.perf_counter() - began
    assert result.rows[0]["rank"] == LATE_RANK and result.rows[0]["cause"] == "compute", result.rows[0]
    assert run.collectives.unmatched == ()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {**seconds, "peak_mb": peak / 1024, "collectives": len(run.collectives.rank)}


def measure(folder: Path, ranks: int, collectives: int) -> dict[str, float]:
    from rankscope.timeline.reading import ingest

    if not folder.exists():
        write_run(folder, ranks, collectives)
    ingest([folder])
    child = subprocess.run(
        [sys.executable, __file__, "--ask", str(folder)], check=True, capture_output=True, text=True
    )
    answers: dict[str, float] = json.loads(child.stdout)
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--collectives", type=int, default=10_000, help="of each rank")
    parser.add_argument("--keep", type=Path, help="write the traces here and leave them")
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.ask:
        print(json.dumps(ask(args.ask)))
        return
    folder = args.keep or Path(tempfile.mkdtemp(prefix="rankscope-across-"))
    print(
        f"{'ranks':>5} {'collectives':>11} {'clocks s':>9} {'all three s':>11} {'peak MB':>8} {'µs each':>8}"
    )
    try:
        for count in (args.collectives // 4, args.collectives):
            answers = measure(folder / f"{args.ranks}x{count}", args.ranks, count)
            each = answers["stragglers"] / answers["collectives"] * 1e6
            print(
                f"{args.ranks:>5} {count:>11,} {answers['clocks']:>9.2f} {answers['stragglers']:>11.2f} "
                f"{answers['peak_mb']:>8.0f} {each:>8.2f}"
            )
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
