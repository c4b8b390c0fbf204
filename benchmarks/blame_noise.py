"""Measures how durations vary in real jobs, for the simulated cases of `rankscope bench blame`.

    python benchmarks/blame_noise.py HEALTHY... [--write]

Kernels and launches: the GPT, Hugging Face and CUDA graph jobs of tests/data, recorded on an H200. What happens at the
same position of each step is compared with its median over the steps. Hiccups: HEALTHY are folders of 20 steps of the
healthy twins of ordinary_record.py (4 real processes, a core each). The time from the begin of a step to its first
collective, which waits for nobody, is compared with its median; a hiccup is more than three robust standard deviations
and 0.3 ms above it. Those above 2 ms are left out: one of them in eight steps is as long as a planted pause, and nobody
could tell them apart. `--write` replaces the table of the simulation.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rankscope_bench.arguments import parsed

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "bench" / "src" / "rankscope_bench" / "synthetic" / "measured_noise.json"
GPU_RUNS = ("gpt-h200", "gpt-h200-stack", "hf-trainer-h200", "gpt-graph-h200")
HOST_RUNS = GPU_RUNS[:3]
SHORTEST_US = 3.0
LONGEST_GAP_US = 3_000.0
"""Between two launches; longer ones are waits."""
HICCUP_US = (300.0, 2_000.0)
POINTS = 128

Event = dict[str, Any]


def events_of(path: Path) -> list[Event]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [event for event in json.loads(raw)["traceEvents"] if event.get("ph") == "X"]


def steps_of(events: Sequence[Event]) -> list[tuple[float, float]]:
    return sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"].startswith("ProfilerStep#") and event.get("cat") == "user_annotation"
    )


def launched(path: Path) -> list[list[tuple[float, Event]]]:
    """By step: the kernels with the time of their launch. Only steps with the usual kernels."""
    events = events_of(path)
    calls = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    kernels = [event for event in events if event.get("cat") == "kernel"]
    timed = [
        (float(calls.get(kernel["args"].get("correlation")) or kernel["ts"]), kernel) for kernel in kernels
    ]
    timed.sort(key=lambda pair: (pair[0], pair[1]["ts"]))
    steps = [[pair for pair in timed if begin <= pair[0] < end] for begin, end in steps_of(events)]
    names = [tuple(kernel["name"] for _, kernel in step) for step in steps]
    usual = max(names, key=names.count)
    return [step for step, listed in zip(steps, names, strict=True) if listed == usual]


def ratios(columns: Iterator[Sequence[float]], low: float, high: float) -> Iterator[float]:
    """Of each value to the median of its column."""
    for column in columns:
        middle = median(column)
        if low <= middle <= high:
            yield from (value / middle for value in column)


def kernel_ratios(path: Path) -> Iterator[float]:
    columns = zip(*([kernel["dur"] for _, kernel in step] for step in launched(path)), strict=True)
    return ratios(columns, SHORTEST_US, float("inf"))


def launch_ratios(path: Path) -> Iterator[float]:
    gaps = ([after[0] - before[0] for before, after in pairwise(step)] for step in launched(path))
    return ratios(zip(*gaps, strict=True), SHORTEST_US, LONGEST_GAP_US)


def before_first_collective(path: Path) -> list[float]:
    events = events_of(path)
    starts = sorted(event["ts"] for event in events if event["name"].startswith(("gloo:", "c10d::")))
    firsts = [
        (begin, next((start for start in starts if begin <= start < end), None))
        for begin, end in steps_of(events)
    ]
    return [first - begin for begin, first in firsts if first is not None]


def hiccups(path: Path) -> tuple[int, list[float]]:
    """The number of steps of a rank, and the lengths of its hiccups in µs."""
    windows = before_first_collective(path)
    if not windows:
        return 0, []
    middle = median(windows)
    limit = max(3 * 1.4826 * median(abs(window - middle) for window in windows), HICCUP_US[0])
    return len(windows), [window - middle for window in windows if window - middle > limit]


def quantiles(values: Sequence[float], scale: float, points: int = POINTS) -> list[int]:
    """At equal distances, from the least value to that which 0.1 % exceed."""
    ordered = sorted(values)
    last = round(0.999 * (len(ordered) - 1))
    return [round(scale * ordered[last * point // points]) for point in range(points + 1)]


def traces(run: Path) -> list[Path]:
    return sorted([*run.glob("*.json.gz"), *run.glob("rank-*trace.json")])


_OPTIONS = """\
HEALTHY ...  folders of healthy jobs
--write  replace the table of the simulation
"""


def main(argv: Sequence[str] | None = None) -> int:
    args = parsed(__doc__, _OPTIONS, argv, healthy=Path)
    data = ROOT / "tests" / "data"
    gpu = [ratio for run in GPU_RUNS for path in traces(data / run) for ratio in kernel_ratios(path)]
    host = [ratio for run in HOST_RUNS for path in traces(data / run) for ratio in launch_ratios(path)]
    counted = [hiccups(path) for run in args.healthy for path in traces(run)]
    steps = sum(count for count, _ in counted)
    pauses = [length for _, lengths in counted for length in lengths if length <= HICCUP_US[1]]
    longer = sum(length > HICCUP_US[1] for _, lengths in counted for length in lengths)
    table = {
        "sources": {
            "gpu": f"{len(gpu)} kernels of {', '.join(GPU_RUNS)} in tests/data (H200)",
            "host": f"{len(host)} intervals between launches of {', '.join(HOST_RUNS)} in tests/data (H200)",
            "hiccups": f"{len(pauses)} in {steps} steps of ranks of {len(args.healthy)} healthy jobs of "
            "rankscope_bench/exam/ordinary_record.py (4 real processes over gloo, a core each, 20 steps); "
            f"{longer} longer than 2 ms are left out",
        },
        "gpu_per_10000": quantiles(gpu, 1e4),
        "host_per_10000": quantiles(host, 1e4),
        "hiccup_chance_per_10000": round(1e4 * len(pauses) / steps),
        "hiccup_us": quantiles(pauses, 1, 32),
    }
    text = "{\n" + ",\n".join(f' "{key}": {json.dumps(value)}' for key, value in table.items()) + "\n}\n"
    print(text, end="")
    if args.write:
        TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
