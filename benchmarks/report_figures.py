"""Every figure of every report over all recorded runs, before and after a change that must not alter them.

    python benchmarks/report_figures.py save FILE.json       with the old code
    python benchmarks/report_figures.py compare FILE.json    with the new code; ends with 1 where a figure differs

The runs are those of tests/data, and of ../shared/data where it is there. Each is read anew.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from rankscope.host import usable_cores
from traces import RANKSCOPE

ROOT = Path(__file__).parents[1]
SEPARATE = ("checkpoint-cpu", "hta", "jax-toolbox", "tracelens")
"""Folders of files that are not one run."""
QUESTIONS = {
    "all": ("stats", "-r", "all"),
    "summary": ("stats",),
    "findings": ("stats", "-r", "findings"),
    "whole file": ("stats", "-r", "breakdown,idle,overlap,kernels", "--window", "file"),
    "by rank": ("stats", "-r", "kernels,ops,gaps,families", "--by", "rank"),
    "whatif": ("whatif",),
    "doctor": ("doctor",),
}


def runs() -> Iterator[tuple[str, list[Path]]]:
    """The files of every folder of traces, named by its path; one by one where they are not one run."""
    for root in (ROOT / "tests" / "data", ROOT.parent / "shared" / "data"):
        traces = {path for path in root.rglob("*") if path.is_file() and is_trace(path)}
        for folder in sorted({path.parent for path in traces}):
            name = f"{root.parent.name}/{folder.relative_to(root)}"
            files = sorted(traces & {*folder.iterdir()})
            if folder.name in SEPARATE:
                yield from ((f"{name}/{file.name}", [file]) for file in files)
            else:
                yield name, files


def is_trace(path: Path) -> bool:
    return path.suffix != ".md" and "nsys-stats" not in path.parts and "kubeflow" not in path.parts


def figures() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(usable_cores()) as pool:
        folders = (Path(temporary, str(number)) for number in count())
        answers = pool.map(_answers, folders, *zip(*runs(), strict=True))
        return {question: answer for of_run in answers for question, answer in of_run.items()}


def _answers(folder: Path, name: str, files: list[Path]) -> dict[str, Any]:
    """Of one run, by question."""
    run = folder / "run"
    run.mkdir(parents=True)
    for file in files:
        if file.suffix == ".xz":
            (run / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
        else:
            (run / file.name).symlink_to(file)
    answers = {}
    for question, (command, *options) in QUESTIONS.items():
        print(f"{name}: {question}", file=sys.stderr)
        ended = subprocess.run(
            [*RANKSCOPE, command, run, *options, "--format", "json"],
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "80"},
        )
        # Paths and the time of reading differ from one time to the next.
        text = re.sub(rf"{re.escape(str(folder))}(-\w+)?", "RUN", ended.stdout)
        answers[f"{name}: {question}"] = json.loads(text) if text else ended.returncode
    return answers


def differences(where: str, before: Any, after: Any) -> Iterator[str]:
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            name = old.get("name", number) if isinstance(old, dict) else number
            yield from differences(f"{where} / {name}", old, new)
    elif isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from differences(f"{where} / {key}", before.get(key), after.get(key))
    elif before != after:
        yield f"{where}: {json.dumps(before)[:200]} -> {json.dumps(after)[:200]}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("save", "compare"))
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    answers = figures()
    if options.action == "save":
        options.file.write_text(json.dumps(answers, indent=1))
        print(f"Wrote {options.file}: {len(answers)} answers")
        return 0
    changes = list(differences("", json.loads(options.file.read_text()), answers))
    print("\n".join(changes), f"{len(answers)} answers, {len(changes)} differences", sep="\n")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
