"""What a command does before it answers: modules that are imported, SQL statements that are run.

Both grow unnoticed, and on a small run they are what a user waits for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankscope.analysis import REPORTS
from rankscope.analysis.core.names import all_names, categories, name_codes, vocabulary
from rankscope.analysis.core.result import ColumnRows
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.timeline.sql_views import SqlViews

HEAVY = (
    "numpy",
    "duckdb",
    "subprocess",
    "socket",
    "json",
    "dataclasses",
    "rankscope.store",
    "rankscope.analysis",
)
# numpy.ma: np.unique imports it. The readers: a run that is read already needs none of them; one file needs no threads.
NOT_FOR_STATS = (
    "numpy.ma",
    "sqlite3",
    "statistics",
    "concurrent.futures",
    "rankscope.tools",
    "rankscope.readers.kineto",
    "rankscope.readers.ncu",
    "pyarrow",
    "dask",
    "distributed",
)
MOST_STATEMENTS = 20
"""Of `stats` for one rank with GPU events and without collectives and memory events."""


PROGRAM = """
import sys
from rankscope.cli import main
try:
    main(sys.argv[1:])
except SystemExit:  # argparse ends the program after the help of a command
    pass
print(*sys.modules)
"""


def _modules_after(*words: str) -> set[str]:
    """The modules that a command line loads, without those of coverage where that is measured."""
    command = [sys.executable, "-c", PROGRAM, *words]
    env = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=env)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [("--help",), ("stats", "--help"), ("--version",)])
def test_help_imports_no_library(words: tuple[str, ...]) -> None:
    loaded = _modules_after(*words)
    assert "rankscope.cli" in loaded
    assert not loaded & set(HEAVY)


@pytest.mark.slow
def test_stats_of_a_read_run_imports_no_reader(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run]
) -> None:
    trace = dataset("gpt-graph-h200")
    loaded = _modules_after("stats", str(trace), "--cache", str(open_real(trace).store.parent))
    assert "rankscope.analysis.summary" in loaded
    assert not loaded & set(NOT_FOR_STATS)


@pytest.mark.slow
def test_few_statements(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_real(dataset("hf-trainer-h200")).with_options()
    asked: list[str] = []
    execute = SqlViews.execute

    def counted(self: SqlViews, sql: str, *rest: Any) -> Any:
        asked.append(sql)
        return execute(self, sql, *rest)

    monkeypatch.setattr(SqlViews, "execute", counted)
    for name in ("summary", "kernels"):
        REPORTS[name].analyse(run, Scope(), None)
    assert len(asked) <= MOST_STATEMENTS, "\n".join(asked)
    assert {"counters", "links", "flight", "ncu_kernels"} <= run._views.undefined.keys()
    made = len(asked)
    REPORTS["summary"].analyse(run, Scope(), None)
    assert len(asked) == made


def test_names_have_one_number(dataset: Callable[[str], Path], open_real: Callable[[Path], Run]) -> None:
    run = open_real(dataset("gpt-graph-h200"))
    names = all_names(run)
    assert names == sorted(set(names))
    for category in categories(run):
        expected = run.rows(f"SELECT DISTINCT name FROM slices WHERE category = '{category}' ORDER BY 1")
        assert vocabulary(run, category) == [name for (name,) in expected]
    several = name_codes(run, "kernel", "cpu_op", "no such category")
    assert [names[code] for code in several.tolist()] == vocabulary(run, "cpu_op", "kernel")
    assert vocabulary(run, "no such category") == []


def test_rows_of_kernels_are_made_when_they_are_looked_at(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run]
) -> None:
    run = open_real(dataset("gpt-graph-h200"))
    rows = REPORTS["kernels"].analyse(run, Scope(), None).rows
    assert isinstance(rows, ColumnRows)
    everything = [dict(row) for row in rows]
    assert [dict(rows[0]), dict(rows[-1])] == [everything[0], everything[-1]]
    assert ([*rows[:2]], len(rows[1:])) == (everything[:2], len(everything) - 1)
    assert {type(value) for value in everything[0].values()} == {str, int, float}
