"""How right and how fast `rankscope watch` judges, on simulated jobs: `python benchmarks/watch.py`.

False alarms in healthy steps; precision and recall over planted faults, each to be named within 20 steps with its ranks
and cause; CPU seconds to read and judge 1,024 ranks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from rankscope.text.plain_table import plain_table
from rankscope.watch.alarms import SLOW_NODE, Alarm
from rankscope.watch.judge import StepWatcher
from rankscope.watch.rings import RECENT
from rankscope.watch.state import JobWatcher
from rankscope.watch.step_table import StepTable
from simulated_telemetry import KIND_CAUSES, Fault, Job, random_fault, telemetry, write_rings

WITHIN = 20
"""Steps in which a fault must be named."""
_FIRST = 15
_PLANTED_AT = 120


def watched(table: StepTable, every: int, first: int = _FIRST, confirmed_after_s: float = 0.0) -> list[Alarm]:
    """The alarms that a watcher raises that looks every so many steps; suspicions are alarms here."""
    watcher = StepWatcher(confirmed_after_s)
    raised = []
    for end in range(first, len(table.steps) + 1, every):
        raised += watcher.look(table.rows(slice(max(end - RECENT, 0), end)))
    return raised


def healthy_alarms(steps: int, every: int, seed: int) -> tuple[int, list[Alarm]]:
    """Steps judged and alarms raised, over jobs of several sizes."""
    sizes = (2, 4, 8, 16, 64)
    each = -(-steps // len(sizes))
    found: list[Alarm] = []
    for number, ranks in enumerate(sizes):
        job = Job(ranks, steps=each + _FIRST, seed=seed + number, gpu=bool(number % 2))
        found += watched(telemetry(job), every)
    return each * len(sizes), found


def planted_case(number: int, every: int = 2) -> tuple[Fault, list[Alarm]]:
    """One fault, and the alarms from its first step to WITHIN steps later."""
    random = np.random.default_rng(1000 + number)
    kinds = list(KIND_CAUSES)
    kind = kinds[number % len(kinds)]
    ranks = int(random.choice([8, 16, 32] if kind == SLOW_NODE else [4, 8, 16]))
    row = _PLANTED_AT + int(random.integers(20))
    job = Job(
        ranks, steps=row + WITHIN, seed=number, gpu=bool(random.integers(2)), step_ns=random.uniform(5e7, 1e9)
    )
    fault = random_fault(job, kind, random, row)
    return fault, watched(telemetry(job, fault), every, first=row)


def is_right(fault: Fault, alarm: Alarm) -> bool:
    """Whether an alarm names what was planted: its kind, ranks and cause."""
    everybody = fault.kind in ("slowdown", "data")
    return (
        alarm.kind == fault.kind and alarm.cause == fault.cause and (everybody or alarm.ranks == fault.ranks)
    )


def score(cases: int) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """By kind: faults planted, faults named rightly, wrong alarms."""
    planted, named, wrong = Counter[str](), Counter[str](), Counter[str]()
    for number in range(cases):
        fault, alarms = planted_case(number)
        right = [is_right(fault, alarm) for alarm in alarms]
        planted[fault.kind] += 1
        named[fault.kind] += any(right)
        wrong[fault.kind] += sum(not one for one in right)
        for alarm, good in zip(alarms, right, strict=True):
            if not good:
                print(f"case {number}: planted {fault}; raised: {alarm.text}", file=sys.stderr)
        if not any(right):
            print(f"case {number}: missed {fault}", file=sys.stderr)
    return planted, named, wrong


def reading_seconds(ranks: int) -> float:
    """CPU seconds to read and judge once, the best of five; the first look takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(ranks, per_node=8, steps=RECENT, seed=1)
        write_rings(Path(folder), job, telemetry(job), ended_unix_ns=time.time_ns())
        watcher = JobWatcher(Path(folder))
        watcher.look()
        best = float("inf")
        for _ in range(5):
            started = time.process_time()
            watcher.look()
            best = min(best, time.process_time() - started)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=20_000, help="steps")
    parser.add_argument("--ranks", type=int, default=1024, help="of the ring files that are read")
    options = parser.parse_args()
    steps, false_alarms = healthy_alarms(options.healthy, every=2, seed=0)
    print(f"{steps:,} healthy steps: {len(false_alarms)} false alarms")
    for alarm in false_alarms:
        print(f"  {alarm.text}")
    planted, named, wrong = score(options.cases)
    rows = [
        (
            kind,
            str(count),
            f"{named[kind] / count:.3f}",
            f"{named[kind] / max(named[kind] + wrong[kind], 1):.3f}",
        )
        for kind, count in planted.items()
    ]
    total, found, bad = sum(planted.values()), sum(named.values()), sum(wrong.values())
    rows.append(("all", str(total), f"{found / total:.3f}", f"{found / (found + bad):.3f}"))
    print(plain_table(("planted", "cases", "recall", "precision"), rows))
    seconds = reading_seconds(options.ranks)
    print(f"{options.ranks:,} ranks, {RECENT} steps: read and judged in {seconds:.2f} CPU seconds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
