"""Runs in Python: every report is a method, what comes back shows itself, data frames where the packages are."""

from __future__ import annotations

import importlib.util
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankscope
from conftest import DATA, ROOT, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Column, Finding, Result
from rankscope.errors import MissingPackageError, QueryError, StoreError, UsageError
from rankscope.notebook import Answer, OpenRun


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    opened: OpenRun = rankscope.open(DATA / "seqpar-gloo4-slow2", cache=tmp_path_factory.mktemp("stores"))
    return opened


def test_every_report_is_a_method_with_help_and_completion(run: OpenRun) -> None:
    assert set(REPORTS) <= set(dir(run))
    for name, report in REPORTS.items():
        method = getattr(run, name)
        assert report.question in (inspect.getdoc(method) or "")
        assert ("by" in inspect.signature(method).parameters) == bool(report.keys)
    assert "rank" in (inspect.getdoc(run.kernels) or "") and "4 ranks" in repr(run)
    assert [row["report"] for row in run.reports().rows] == list(REPORTS)


def test_answers_are_those_of_the_command_line(run: OpenRun) -> None:
    answer = run.breakdown(ranks="1,2", steps="3:4")
    assert isinstance(answer, Result) and answer.window == "steps 3:4" and len(answer) == 6
    assert answer.rows == run.breakdown(ranks=[1, 2], steps=(3, 4)).rows
    assert {row["rank"] for row in run.breakdown(ranks=2, steps=3).rows} == {2}
    assert len(run.kernels(by="rank", top=3)) == 3 and "more rows" in run.kernels(by="rank", top=3).notes[-1]
    assert run.doctor().title.startswith("Can this trace be trusted?")
    assert run.compat("hta").rows and run.compat("nsys", "cuda_gpu_kern_sum").rows
    assert run.diff(run).name == "diff"
    assert run.ranks == [0, 1, 2, 3] and run.problems == ()
    assert json.loads(json.dumps(answer.to_dict()))["rows"] == answer.rows


def test_it_shows_itself_as_text_and_as_html(run: OpenRun) -> None:
    answer = run.breakdown()
    assert repr(answer) == str(answer) and "Where the time went" in repr(answer)
    assert answer._repr_html_().count("<tr>") == 1 + len(answer.rows)
    hostile = Answer(
        "x", "<script>", "w", (Column("name"), Column("b", for_machines=True)),
        [{"name": '"><img onerror=1>' + "y" * 200, "b": 1}] * 50,
        (Finding("info", "<b>", "&", hint="<i>"),), ("<u>",),
    )  # fmt: skip
    page = hostile._repr_html_()
    assert not any(tag in page for tag in ("<script", "<img", "<u>", "<i>"))
    assert "&lt;script&gt;" in page and "10 more rows" in page and page.count("<tr>") == 41
    empty = Answer("x", "t", "w", (Column("a"),), [])
    assert "nothing to show" in empty._repr_html_() and "nothing to show" in repr(empty)


def test_sql(run: OpenRun) -> None:
    answer = run.query("SELECT rank, rank, count(*) AS n FROM gpu GROUP BY ALL ORDER BY rank")
    assert list(answer.rows[0]) == ["rank", "rank_1", "n"]
    with pytest.raises(QueryError):
        run.query("DROP TABLE gpu")


def test_what_is_wrong_is_said_in_three_parts(run: OpenRun, tmp_path: Path) -> None:
    wrong: list[tuple[type[Exception], Any]] = [
        (UsageError, lambda: run.kernels(by="colour")),
        (UsageError, lambda: run.breakdown(ranks=99)),
        (UsageError, lambda: run.breakdown(steps="9:3")),
        (UsageError, lambda: run.compat("nobody")),
        (UsageError, lambda: run.compat("nsys", "nothing")),
        (UsageError, lambda: rankscope.open()),
        (UsageError, lambda: rankscope.open(DATA / "ddp-gloo4", cache=tmp_path, peak="fast")),
        (StoreError, lambda: rankscope.open(tmp_path / "nowhere")),
    ]
    for kind, ask in wrong:
        with pytest.raises(kind) as caught:
            ask()
        assert getattr(caught.value, "hint", "")


VALUES = Result(
    "x", "t", "w",
    (Column("n", "ns"), Column("share", "percent"), Column("name"), Column("ranks"), Column("none", "bytes"),
     Column('a "b"'), Column("flag"), Column("mixed")),
    [
        {"n": 2**62, "share": 1, "name": "a", "ranks": [1, 2], "none": None, 'a "b"': 1, "flag": True, "mixed": 1},
        {"n": None, "share": 2.5, "name": None, "ranks": [], "none": None, 'a "b"': 2, "flag": None, "mixed": "x"},
    ],
)  # fmt: skip


def test_data_frames() -> None:
    pytest.importorskip("pandas", reason="df() gives a pandas DataFrame")
    frame = Answer.of(VALUES).df()
    assert list(frame.columns) == [column.name for column in VALUES.columns]
    assert frame["n"].iloc[0] == 2**62 and frame["share"].tolist() == [1, 2.5]
    assert list(frame["ranks"].iloc[0]) == [1, 2] and frame["mixed"].tolist() == ["1", "x"]
    assert Answer.of(Result("x", "t", "w", VALUES.columns, [])).df().shape == (0, 8)


def test_arrow_tables() -> None:
    pytest.importorskip("pyarrow", reason="arrow() gives a pyarrow Table")
    table = Answer.of(VALUES).arrow()
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["n"], types["share"], types["name"], types["none"]) == (
        "int64",
        "double",
        "string",
        "int64",
    )
    assert table.column("n").to_pylist() == [2**62, None]


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in ("pandas", "pyarrow") else real(name, *more),
    )
    for method in (Answer.of(VALUES).df, Answer.of(VALUES).arrow):
        with pytest.raises(MissingPackageError, match="needs p") as caught:
            method()
        assert "pip install" in caught.value.hint


def test_importing_rankscope_stays_free() -> None:
    code = "import sys, rankscope; print({'numpy', 'duckdb', 'rankscope.notebook'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"


def test_a_run_that_lacks_everything_answers_every_question(tmp_path: Path) -> None:
    run = rankscope.open(write_kineto(tmp_path / "t.json", [slice_event("aten::add", 0, 1)]))
    for name in REPORTS:
        answer = getattr(run, name)()
        assert answer._repr_html_() and "nan" not in repr(answer).lower()


def test_the_notebook_is_one(tmp_path: Path) -> None:
    """That it runs, and shows what it shows, is tested with the other generated pages (test_commands)."""
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum("text/html" in output.get("data", {}) for cell in code for output in cell["outputs"]) >= 5
