"""The first picture of a run that was looked at before: the same, from what the store keeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankscope.timeline.run import open_run
from rankscope.viewer import run_map
from rankscope_bench.synthetic import Plan, write

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
def test_the_kept_steps_of_a_run_are_those_of_its_tables(tmp_path: Path) -> None:
    write(Plan(ranks=2, events_per_rank=1_300, steps=3, max_offset_ns=2_000_000), tmp_path)
    run = open_run([tmp_path])
    table = "SELECT step, min(end_ns - time_ns) AS start_ns, sum(time_ns)::BIGINT AS dur_ns FROM steps"
    rows = run.records(f"{table} WHERE rank = 0 GROUP BY step ORDER BY 2")
    assert run_map._steps(run) == rows and len(rows) == 3
    assert run_map._steps(open_run([tmp_path])) == rows, "as they are kept"
