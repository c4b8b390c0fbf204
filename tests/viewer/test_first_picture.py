"""The first picture of a run that was looked at before: the same, from what the store keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis.core import rollups
from rankscope.analysis.core.run_steps import rank_steps
from rankscope.analysis.core.selection import Selection
from rankscope.bench.synthetic import Plan, write
from rankscope.timeline.run import open_run
from rankscope.viewer import run_map

ASK = """
import json, sys
from pathlib import Path
from rankscope.timeline.run import open_run
from rankscope.viewer.answers import as_json
from rankscope.viewer.server import Server
from rankscope.viewer.session import Session
from rankscope.viewer.startup import Opening, routes_of

routes = routes_of(Session(open_run([Path(sys.argv[1])]), "run"))
run = routes["run"]({})
window = {"begin": str(run["begin_ns"]), "end": str(run["end_ns"]), "width": "50"}
picture = as_json(*routes["overview"](window))
loaded = [name for name in ("duckdb", "rankscope.analysis.questions") if name in sys.modules]
print(json.dumps([run, picture, loaded]))
"""


def ask(folder: Path) -> Any:
    done = subprocess.run([sys.executable, "-c", ASK, folder], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_it_needs_neither_the_database_nor_the_reports(tmp_path: Path) -> None:
    write(Plan(ranks=2, events_per_rank=1_300, steps=3, max_offset_ns=2_000_000), tmp_path)
    run, picture, loaded = ask(tmp_path)
    assert loaded == ["duckdb", "rankscope.analysis.questions"]
    assert len(run["steps"]) == 3 and any(picture["columns"]["compute"]) and any(picture["columns"]["wait"])
    assert ask(tmp_path) == [run, picture, []]
    os.utime(next(tmp_path.glob("rank-00001*")), (1, 1))  # read again: made again
    assert ask(tmp_path) == [run, picture, loaded]


@pytest.mark.slow
def test_the_steps_of_a_large_run_are_those_of_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(Plan(ranks=2, events_per_rank=1_300, steps=3, max_offset_ns=2_000_000), tmp_path)
    run = open_run([tmp_path])
    from_tables = run_map._steps(run)
    monkeypatch.setattr(rollups, "_LEAST_EVENTS", 1)
    large = open_run([tmp_path])
    assert [*run_map._kept_steps(large)] == []
    rank_steps(large, Selection())  # keeps them
    kept = [*run_map._kept_steps(open_run([tmp_path]))]
    assert len(kept) == 2 and kept[0] == from_tables and len(from_tables) == 3
