"""What the user tells about the machine: peak rates of its devices, and times of collectives measured on it.

The latter without a training job, by `rankscope bench collectives --json` or nccl-tests:

    [{"kind": "all_reduce", "bytes": 1048576, "ranks": 8, "dtype": "float32", "time_us": 25.3, "busbw_gb_s": 72.5}, …]

For nccl-tests this is the text that all_reduce_perf and the other programs print.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope.collective_kinds import bus_factor, kind_of
from rankscope.devices import Ceilings
from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.text.run_words import shell_word
from rankscope.units import parse_byte_rate, parse_flop_rate

DTYPES = ("bfloat16", "float16", "float8", "tf32", "float32", "float64", "int8")
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp8": "float8", "fp32": "float32",
          "fp64": "float64"}  # fmt: skip
_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+(\w+)\s+\S+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+[\d.]+")
"""size count type redop root time algbw busbw …"""
_STARTING = re.compile(r"([a-z_]+)_perf")


@dataclass(frozen=True)
class Point:
    """One size of one kind."""

    kind: str
    ranks: int
    bytes: int
    time_ns: float


@dataclass(frozen=True)
class Baseline:
    """Measured points; times of sizes in between are interpolated."""

    source: str
    points: tuple[Point, ...]

    def time_ns(self, kind: str, ranks: int, size: int) -> float | None:
        """Interpolated between the two nearest sizes, logarithmically; None outside the measured range."""
        sizes = {p.bytes: p.time_ns for p in self.points if (p.kind, p.ranks) == (kind, ranks)}
        for (low, fast), (high, slow) in pairwise(sorted(sizes.items())):
            if low <= size <= high:
                way = math.log(size / low) / math.log(high / low)
                return float(fast * (slow / fast) ** way)
        return sizes.get(size)

    def busbw_gb_s(self, kind: str, ranks: int, size: int) -> float | None:
        time = self.time_ns(kind, ranks, size)
        factor = bus_factor(kind, ranks)
        return size / time * factor if time and factor else None


@dataclass(frozen=True)
class Machine:
    """What is known of the machine besides the files of the run. It is part of a Scope, since figures depend on it."""

    ceilings: Ceilings = field(default_factory=Ceilings)
    """Peak rates that take precedence over the table of devices."""
    baseline: Baseline | None = None
    """Times of collectives measured without a training job."""


def machine_from(
    peak: str | None = None, bandwidth: str | None = None, baseline: str | Path | None = None
) -> Machine:
    """From the values of --peak, --bandwidth and --baseline."""
    return Machine(
        given_ceilings(peak, bandwidth) if peak or bandwidth else Ceilings(),
        load_baseline(Path(baseline)) if baseline else None,
    )


def given_ceilings(peak: str | None = None, bandwidth: str | None = None) -> Ceilings:
    """`peak`: '989TF', 'bf16=989TF,tf32=494TF' or a file of `rankscope bench seqpar --json`; `bandwidth`: '4.8TB/s'."""
    rate = parse_byte_rate(bandwidth) if bandwidth is not None else None
    said = " and ".join(name for name, value in (("--peak", peak), ("--bandwidth", bandwidth)) if value)
    if peak is None:
        return Ceilings(bandwidth=rate, source=said)
    if Path(peak).is_file():
        return Ceilings(_measured(Path(peak)), bandwidth=rate, source=f"measured in {Path(peak).name}")
    if peak.endswith(".json"):
        raise UsageError(
            f"--peak: no file {peak}",
            why="It does not exist.",
            hint=f"Measure it: rankscope bench seqpar --json > {shell_word(peak)}",
        )
    peaks = {}
    for part in peak.split(","):
        name, equals, value = part.rpartition("=")
        if not equals:
            return Ceilings(any_peak=_rate(peak), bandwidth=rate, source=said)
        dtype = _SHORT.get(name.strip().lower(), name.strip().lower())
        if dtype not in DTYPES:
            raise UsageError(
                f"--peak: '{name}' is not a data type",
                why=f"There are: {', '.join(DTYPES)}.",
                hint="See: --help",
            )
        peaks[dtype] = _rate(value)
    return Ceilings(peaks, bandwidth=rate, source=said)


def _rate(text: str) -> float:
    rate = parse_flop_rate(text)
    if rate <= 0:
        raise UsageError(
            f"--peak {text} is not a rate", why="It must be more than 0.", hint="Example: --peak 989TF"
        )
    return rate


def _measured(path: Path) -> dict[str, float]:
    """The rate of the fastest matrix product of a seqpar report, by its data type."""
    wrong = UsageError(
        f"{path} is not a report of the benchmark",
        why="--peak takes a rate (989TF) or a file that `rankscope bench seqpar --json` wrote.",
        hint=f"Measure it: rankscope bench seqpar -p bfloat16 --json > {shell_word(path)}",
    )
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        config = report["config"]
        best = max(float(part["tflop_s"]) for part in report["parts"] if part["kind"] == "matmul")
        dtype = "tf32" if config["precision"] == "float32" and config["tf32"] else str(config["precision"])
    except (ValueError, KeyError, TypeError, OSError):
        raise wrong from None
    return {dtype: best * 1e12}


def load_baseline(path: Path) -> Baseline:
    """The points of a file in either form."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot read the baseline {path}", why=f"{why}.", hint="See: --help") from None
    try:
        rows = json.loads(text)
    except ValueError:
        points = tuple(_of_nccl_tests(text, path.name))
    else:
        points = tuple(_of_rows(rows if isinstance(rows, list) else []))
    if not points:
        raise UsageError(
            f"{path} has no times of collectives",
            why="It is neither rows of kind, bytes, ranks and time_us, nor a table of nccl-tests.",
            hint="Make one: rankscope bench collectives --json > collectives.json",
        )
    return Baseline(path.name, points)


def _of_rows(rows: Iterable[Any]) -> Iterable[Point]:
    for row in rows:
        if not isinstance(row, dict):
            continue
        kind, ranks, size = kind_of(str(row.get("kind", ""))), row.get("ranks"), row.get("bytes")
        if kind is None or not isinstance(ranks, int) or not isinstance(size, int) or size <= 0:
            continue
        time = row.get("time_us")
        if isinstance(time, (int, float)) and time > 0:
            yield Point(kind, ranks, size, time * 1e3)
            continue
        factor = bus_factor(kind, ranks) or 1.0
        for name, over in (("algbw", 1.0), ("algbw_gb_s", 1.0), ("busbw", factor), ("busbw_gb_s", factor)):
            rate = row.get(name)
            if isinstance(rate, (int, float)) and rate > 0 and over:
                yield Point(kind, ranks, size, size / (rate / over))
                break


def _of_nccl_tests(text: str, name: str) -> Iterable[Point]:
    """The out-of-place columns. The collective is named in the text since 2.14, before that in the file's name."""
    ranks = len(re.findall(r"^#\s+Rank\s+\d+\b", text, re.MULTILINE))
    named = _STARTING.search(text) or _STARTING.search(name)
    kind = kind_of(named[1]) if named else kind_of(Path(name).stem)
    rows = [match for line in text.splitlines() if (match := _ROW.match(line))]
    if rows and (kind is None or ranks == 0):
        raise UsageError(
            f"{name} does not say which collective it is, or of how many ranks",
            why="nccl-tests prints both above its table.",
            hint="Keep the whole output, and name the file after the test: all_reduce_perf.txt",
        )
    for match in rows:
        if kind is not None and int(match[1]) > 0 and float(match[3]) > 0:
            yield Point(kind, ranks, int(match[1]), float(match[3]) * 1e3)
