"""What @rankscope.trace costs a call: switched off (the promise: under 1 µs), and while torch records.

Run: python benchmarks/trace_decorator.py            (make bench runs it too; exits 1 when the promise is broken)
"""

from __future__ import annotations

import sys
import timeit

import torch

import rankscope

CALLS = 100_000
PROMISE_NS = 1_000


def nothing() -> None:
    pass


traced = rankscope.trace(nothing)
region = rankscope.trace("lines")


def with_region() -> None:
    with region:
        pass


def nanoseconds(function: object, calls: int = CALLS) -> float:
    """The fastest of five rounds, per call: what other processes add is not the decorator's."""
    return (
        min(timeit.repeat("function()", globals={"function": function}, number=calls, repeat=5)) / calls * 1e9
    )


def main() -> int:
    torch.ones(1)  # what is measured is a process in which torch is there
    bare = nanoseconds(nothing)
    off = nanoseconds(traced) - bare
    lines = nanoseconds(with_region) - bare
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        on = nanoseconds(traced, 2_000) - bare
    print(f"a call of an empty function                 {bare:8.0f} ns")
    print(f"@rankscope.trace adds, off                  {off:8.0f} ns   (promise: under {PROMISE_NS:,} ns)")
    print(f"with rankscope.trace(...) adds, off         {lines:8.0f} ns")
    print(f"@rankscope.trace adds, while torch records  {on:8.0f} ns")
    return 0 if off < PROMISE_NS and lines < PROMISE_NS else 1


if __name__ == "__main__":
    sys.exit(main())
