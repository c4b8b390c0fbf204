"""Times of collectives measured without a training job, by `rankscope bench collectives --json` or nccl-tests.

    [{"kind": "all_reduce", "bytes": 1048576, "ranks": 8, "dtype": "float32", "time_us": 25.3, "busbw_gb_s": 72.5}, …]

For nccl-tests this is the text that all_reduce_perf and the other programs print.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope.collective_kinds import bus_factor, kind_of
from rankscope.errors import UsageError
from rankscope.records import dataclass

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
        times = {p.bytes: p.time_ns for p in self.points if (p.kind, p.ranks) == (kind, ranks)}
        for (low, fast), (high, slow) in pairwise(sorted(times.items())):
            if low <= size <= high:
                way = math.log(size / low) / math.log(high / low)
                return float(fast * (slow / fast) ** way)
        return times.get(size)

    def busbw_gb_s(self, kind: str, ranks: int, size: int) -> float | None:
        time = self.time_ns(kind, ranks, size)
        factor = bus_factor(kind, ranks)
        return size / time * factor if time and factor else None


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
