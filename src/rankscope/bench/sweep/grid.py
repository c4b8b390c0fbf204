"""The points of a sweep: the seqpar command of each, their runs on this machine, and the reports of a job."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.errors import RankscopeError, ReadError

Report = dict[str, Any]

_REPORT_FILES = "point-*.json"


class Point(NamedTuple):
    """One combination of the grid."""

    sequence: int
    hidden: int
    precision: str
    ranks: int

    def __str__(self) -> str:
        return f"S {self.sequence}, H {self.hidden}, {self.precision}, {count_of_ranks(self.ranks)}"

    def words(self) -> list[str]:
        """The seqpar command line of this point, without the options that all points share."""
        words = ["bench", "seqpar", "--json", "-p", self.precision]
        return [*words, "-s", str(self.sequence), "-d", str(self.hidden)]


def count_of_ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def grid_points(
    sequences: Iterable[int], hidden_sizes: Iterable[int], precisions: Iterable[str], ranks: Iterable[int]
) -> list[Point]:
    return [Point(*values) for values in itertools.product(sequences, hidden_sizes, precisions, ranks)]


def point_name(number: int) -> str:
    """What a point's files begin with: NAME.json is its report, the folder NAME its profile."""
    return f"point-{number:03d}"


def measure_point(point: Point, shared_words: Sequence[str], profiler: Sequence[str] = ()) -> Report:
    """Run seqpar in fresh processes: memory and threads that one point leaves must not affect the next.

    ``profiler`` is the `profile …` command to put before it, without rankscope itself.
    """
    rankscope = [sys.executable, "-m", "rankscope"]
    words = [*rankscope, *point.words(), *shared_words, "--nproc", str(point.ranks)]
    if profiler:
        words = [*rankscope, *profiler, "--", *words]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RankscopeError(
            f"seqpar failed with exit code {done.returncode}",
            why="Its own error message is above.",
            hint=f"Run it alone: {shlex.join(words[1:])}",
        )
    report: Report = json.loads(done.stdout)
    return report


def job_steps(
    commands: Iterable[tuple[Sequence[str], int]], *, profiled: bool = False
) -> list[dict[str, Any]]:
    """One launcher start per point (its words and its nodes), all in one job: the queue is waited for once."""
    return [
        {
            "words": ("rankscope", *words),
            "nodes": nodes,
            "profiled": profiled,
            "output": f"{point_name(number)}.json",
            "folder": point_name(number),
        }
        for number, (words, nodes) in enumerate(commands, 1)
    ]


def remove_points(folder: Path) -> None:
    """The reports and profiles of an earlier sweep."""
    for path in folder.glob("point-[0-9][0-9][0-9]*"):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".json":
            path.unlink()


def write_report(folder: Path, number: int, report: Report) -> None:
    (folder / f"{point_name(number)}.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


def read_reports(folder: Path) -> list[Report]:
    """The seqpar reports of a sweep, each with the folder of its profile, if it has one. A failed point has none."""
    found = []
    for path in sorted(folder.glob(_REPORT_FILES)):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # its launcher failed; the reason is in the job's error file
        if isinstance(report, dict) and {"config", "parts"} <= set(report):
            profile = path.with_suffix("")
            found.append({**report, **({"profile": str(profile)} if profile.is_dir() else {})})
    if not found:
        raise ReadError(
            f"no results in {folder}",
            why="It has no point-NNN.json of a finished seqpar run.",
            hint="Look at the job's error file, or run: rankscope bench sweep --job ... -o DIR",
        )
    return found
