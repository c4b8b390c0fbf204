"""make faults: hurt rankscope some hundred times and compare what happened with what is promised.

    python tests/faults/run.py [--part NAME] [--count N] [--seed N]

Prints a table (its sums are in docs/reliability.md) and every difference; ends with 1 when there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.parts import PARTS


def main() -> int:
    options = _options()
    differences = 0
    print(f"seed {options.seed}")
    print("| part | what is done | trials | differences |")
    print("|---|---|---:|---:|")
    for part in PARTS:
        if options.part not in (None, part.name):
            continue
        began = time.monotonic()
        tried: Counter[str] = Counter()
        wrong: Counter[str] = Counter()
        stopped = False
        try:
            for outcome in part.trials(options.count or part.many, Random(options.seed)):
                tried[outcome.kind] += 1
                if outcome.difference:
                    wrong[outcome.kind] += 1
                    print(
                        f"\n{part.name}, {outcome.kind}, {outcome.what}: {outcome.difference}",
                        file=sys.stderr,
                    )
                if sys.stderr.isatty():
                    print(f"\r{part.name}: {tried.total()} trials", end="", file=sys.stderr)
        except KeyboardInterrupt:
            stopped = True  # the table of what was done is still worth having
        for kind, count in tried.items():
            print(f"| {part.name} | {kind} | {count} | {wrong[kind]} |")
        took = (time.monotonic() - began) / 60
        print(f"| **{part.name}** | all, in {took:.1f} min | {tried.total()} | {wrong.total()} |", flush=True)
        differences += wrong.total()
        if stopped:
            return 130
    return 1 if differences else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=[part.name for part in PARTS], help="only this one")
    parser.add_argument(
        "--count", type=int, help="so many trials of each part (default: each part's own number)"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
