"""A set of cases as files: the list of the cases, the truth, and what the answers can be. Standard library only."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from rankscope_bench.synthetic.trace_files import new_folder

BENCHMARK, VERSION = "rankscope-blame", 1
"""The version changes with the bytes of the cases."""
CASES_FILE = "cases.json"
_HANDED_OUT = ("task.md", "submission.schema.json")

Entry = dict[str, Any]
CAUSES = {
    "compute": "compute",
    "throttle": "compute",
    "host": "host",
    "gc": "host",
    "contention": "host",
    "checkpoint": "host",
    "copy": "copy",
    "dataloader": "dataloader",
    "link": "link",
    "node": "compute",
    "node-host": "host",
    "expert": "compute",
    "stages": "stages",
}
"""Cause class of each fault that has a culprit and a cost."""
MOVING = {"moving": "ranks", "lengths": "ranks", "experts": "ranks"}
"""Imbalance without a culprit, and what has to be balanced."""
CAUSE_OF = {**CAUSES, **dict.fromkeys(MOVING, "uneven"), "leak": "memory", "hang": "hang", "healthy": "none"}
"""The right word for any case."""
LEAST_PCT = 0.5
"""A fault that costs less than this share of the step is hidden: naming its rank is neither right nor wrong."""


def prepare(folder: Path) -> None:
    """A new folder with the description of the task."""
    new_folder(folder, "The cases of two sets are not mixed.")
    for name in _HANDED_OUT:
        shutil.copyfile(Path(__file__).with_name(name), folder / name)


def write_lists(
    folder: Path | None,
    truth_file: Path,
    about: Entry,
    secret: Entry,
    entries: list[Entry],
    truths: list[Entry],
) -> Entry:
    """Write cases.json, and the truth with what else only it may say; returns what cases.json has."""
    entries, truths = (sorted(listed, key=lambda entry: str(entry["case"])) for listed in (entries, truths))
    checksum = hashlib.sha256("".join(str(entry["sha256"]) for entry in entries).encode()).hexdigest()
    head = {"benchmark": BENCHMARK, "version": VERSION, **about, "sha256": checksum}
    listed = {**head, "cases": entries}
    if folder is not None:
        _write_json(folder / CASES_FILE, listed)
    truth_file.parent.mkdir(parents=True, exist_ok=True)
    _write_json(truth_file, {**head, **secret, "cases": truths})
    return listed


def _write_json(path: Path, content: Entry) -> None:
    """One case a line."""
    cases_text = ",\n".join("  " + json.dumps(case) for case in content["cases"])
    head = "".join(
        f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in content.items() if key != "cases"
    )
    path.write_text(f'{{\n{head} "cases": [\n{cases_text}\n ]\n}}\n')
