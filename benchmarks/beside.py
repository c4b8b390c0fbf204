"""Two versions' answers about the same runs side by side, each asked in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

_HERE = Path(__file__).parent
_SHOWN = 3
"""Findings of an answer; the others are counted."""
HEADINGS = ("case", "truth", "before", "now")


class Case(NamedTuple):
    """A run whose traces are in a folder, and what is wrong in it."""

    name: str
    truth: str
    folder: Path


class Version:
    """The rankscope of a checkout, in a process that answers one folder after the other."""

    def __init__(self, checkout: Path) -> None:
        python = checkout / ".venv" / "bin" / "python"
        paths = [str(checkout / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [str(python if python.exists() else sys.executable), str(_HERE / "ask_findings.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def __enter__(self) -> Version:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()

    def ask(self, folder: Path) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": "the process ended"}


def rows(cases: Iterable[Case], before: Path, now: Path) -> Iterator[tuple[str, str, str, str]]:
    """A row of the table for each case; both versions answer at the same time."""
    with ExitStack() as stack:
        versions = [stack.enter_context(Version(checkout)) for checkout in (before, now)]
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                # A store is written beside the traces: each version has its own.
                for name, version in zip(("before", "now"), versions, strict=True):
                    place = Path(folder, name)
                    place.mkdir()
                    for file in case.folder.iterdir():
                        (place / file.name).symlink_to(file.resolve())
                    version.ask(place)
                said = [in_words(version.answer()) for version in versions]
            yield case.name, case.truth, said[0], said[1]


def in_words(answer: Sequence[Mapping[str, Any]] | Mapping[str, str]) -> str:
    """The first findings, without limits; where there is nothing else, the largest limit."""
    if isinstance(answer, Mapping):
        return answer["error"]
    told = [each for each in answer if each["severity"] not in ("ok", "limit")]
    told = told or [each for each in answer if each["severity"] == "limit"][:1]
    more = [f"{len(told) - _SHOWN} more"] * (len(told) > _SHOWN)
    return "; ".join([*map(_finding, told[:_SHOWN]), *more]) or "nothing"


def _finding(finding: Mapping[str, Any]) -> str:
    cause = next((fact["value"] for fact in finding["facts"] if fact["quantity"] == "cause"), "")
    ranks = ",".join(map(str, finding["ranks"]))
    who = finding.get("subject") or (f"ranks {ranks}" if ranks else "")
    # Before there were limits, what peers did not show to be possible was one.
    is_limit = finding["severity"] == "limit" if "kind" in finding else not finding["reachable"]
    cost = finding["cost_ns"]
    size = "" if cost is None else f"{'up to ' * is_limit}{cost / 1e6:.2f} ms"
    parts = (finding["severity"], finding["report"], who, str(cause), size)
    return " ".join(filter(None, parts))


def as_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
