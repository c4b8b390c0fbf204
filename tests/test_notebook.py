"""The Python interface: every report is a typed method, results are read-only, frames have exact types."""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import json
import pickle
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import rankscope
from conftest import DATA, ROOT, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.errors import MissingPackageError, QueryError, StoreError, UsageError
from rankscope.notebook import Answer, OpenRun
from rankscope.text.spelling import RENAMED_REPORTS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    return rankscope.open(DATA / "seqpar-gloo4-slow2", cache=tmp_path_factory.mktemp("stores"))


_OTHER_METHODS = {"chart", "compat", "diff", "doctor", "plot", "query", "ranks", "reports"}


@pytest.mark.slow
def test_every_report_is_a_method_with_help_and_completion(run: OpenRun) -> None:
    methods = [name for name in vars(OpenRun) if not name.startswith("_") and name not in _OTHER_METHODS]
    reports = {name.rpartition(".")[2]: report for name, report in REPORTS.items()}
    assert methods[: len(reports)] == [*reports] and {*methods} == reports.keys() | RENAMED_REPORTS.keys()
    declared = ast.parse(inspect.getsource(OpenRun)).body[0]
    assert isinstance(declared, ast.ClassDef)
    shown = {  # what an editor shows: the name, and the text below it
        ast.unparse(name.target): ast.literal_eval(text.value)
        for name, text in pairwise(declared.body)
        if isinstance(name, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert {*shown} == {*methods} and all(shown[name] == report.question for name, report in reports.items())
    for name, report in reports.items():
        method = getattr(run, name)
        assert (inspect.getdoc(method) or "").splitlines()[0] == report.question
        hints = get_type_hints(method)
        keys = [key for part in get_args(hints.get("by")) for key in get_args(part)]
        assert keys == list(report.keys) and hints["return"] is Answer
        declared_type = OpenRun.__annotations__[name]
        assert re.findall(r"'(\w+)'", declared_type) == keys and (
            "by" in inspect.signature(method).parameters
        ) == bool(keys)
    assert "rank" in (inspect.getdoc(run.kernels) or "") and "4 ranks" in repr(run)
    assert [row["report"] for row in run.reports().rows] == list(REPORTS)


@pytest.mark.slow(every_variation=True)
@pytest.mark.parametrize(("former", "name"), RENAMED_REPORTS.items())
def test_former_names_of_reports_work(run: OpenRun, former: str, name: str) -> None:
    if name.endswith(f".{former}"):  # the method keeps its name
        assert getattr(run, former)().name == name
    else:
        with pytest.warns(DeprecationWarning, match=f"{former} is now {name}"):
            assert getattr(run, former)().name == name


@pytest.mark.slow
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
    assert json.loads(json.dumps(answer.to_dict()))["rows"] == list(answer.rows)


def test_it_shows_itself_as_text_and_as_html(run: OpenRun) -> None:
    answer = run.breakdown()
    assert repr(answer) == str(answer) and "Where the time went" in repr(answer)
    assert answer._repr_html_().count("<tr>") == 1 + len(answer.rows)
    hostile = Answer(
        "x", "<script>", "w", (Column("name"), Column("b", for_machines=True)),
        ({"name": '"><img onerror=1>' + "y" * 200, "b": 1},) * 50,
        (Finding("info", "<b>", facts=(Fact("example", "&"),), advice="<i>"),), ("<u>",),
    )  # fmt: skip
    page = hostile._repr_html_()
    assert not any(tag in page for tag in ("<script", "<img", "<u>", "<i>"))
    assert "&lt;script&gt;" in page and "10 more rows" in page and page.count("<tr>") == 41
    empty = Answer("x", "t", "w", (Column("a"),), ())
    assert "nothing to show" in empty._repr_html_() and "nothing to show" in repr(empty)


def test_a_run_shows_what_was_found_by_itself(run: OpenRun) -> None:
    page = run._repr_html_()
    assert page.startswith("<h3>Rank 2 costs 10.6 ms per step (62 %); it runs 10 more aten::matmul")
    assert "<b>critical</b>: Rank 2" in page and "Communication: up to 2.5 ms (14 %)" in page
    assert page.count("<tr>") == 1 + len(run.ranks)
    assert not re.search("<(script|link|img)|https?:", page), "it loads nothing"


def test_every_chart_is_drawn_by_its_name(run: OpenRun, tmp_path: Path) -> None:
    ranks = run.plot(steps="3:4")
    assert ranks.name == "heatmap" and ranks._repr_svg_().startswith("<svg") and "body=" not in repr(ranks)
    assert run.chart("heatmap", steps="3:4") == ranks, "its former name"
    assert run.stragglers().plot() == run.plot("stragglers")
    assert ranks.save(tmp_path / "ranks.svg").read_text().startswith("<svg")
    assert run.diff(run).plot().title == "A step, before and now"
    with pytest.raises(UsageError, match="there is no chart 'heat'"):
        run.plot("heat")


def test_results_cannot_be_changed(run: OpenRun) -> None:
    answer: Any = run.steps()
    before = [dict(row) for row in answer.rows]
    changes: list[Any] = [
        lambda: answer.rows.sort(),
        lambda: answer.rows.clear(),
        lambda: answer.rows[0].update(step=-1),
        lambda: answer.rows[0].__setitem__("step", -1),
        lambda: setattr(answer, "rows", ()),
    ]
    for change in changes:
        with pytest.raises((AttributeError, TypeError)):
            change()
    answer.to_dict()["rows"][0]["step"] = -1
    assert [dict(row) for row in run.steps().rows] == before and len(before) > 3


def test_values_of_rows_cannot_be_changed(run: OpenRun) -> None:
    for name in REPORTS:
        for row in getattr(run, name.rpartition(".")[2])().rows:
            assert not any(isinstance(value, (list, dict, set)) for value in row.values()), (name, row)


def test_results_can_be_pickled_and_copied(run: OpenRun) -> None:
    answer = run.breakdown()
    for again in (pickle.loads(pickle.dumps(answer)), copy.deepcopy(answer)):
        assert again == answer and type(again) is Answer
        with pytest.raises(TypeError):
            again.rows[0]["step"] = 1  # type: ignore[index]


def test_every_option_of_opening(tmp_path: Path) -> None:
    """Those of the command line: the machine is part of what is asked, the rest of how files are read."""
    baseline = tmp_path / "alone.json"
    baseline.write_text('[{"kind": "all_reduce", "bytes": 1024, "ranks": 4, "time_us": 1}]')
    named = write_kineto(tmp_path / "trace_x.json", [slice_event("aten::add", 0, 1)], distributedInfo={})
    seen: list[tuple[int, int]] = []
    opened = rankscope.open(
        named,
        cache=tmp_path / "cache",
        rank_of={named: 17},
        clocks="raw",
        prefer="nsys",
        comm_patterns=["^my_ring"],
        baseline=baseline,
        progress=lambda read, total: seen.append((read, total)),
    )
    assert opened.ranks == [17] and seen and seen[-1][1] > 0
    assert "baseline_pct" in [column.name for column in opened.collectives().columns]
    assert "baseline_pct" not in [
        column.name for column in rankscope.open(named, rank_of={named: 17}).collectives().columns
    ]


def test_sql(run: OpenRun) -> None:
    answer = run.query("SELECT rank, rank, count(*) AS n FROM gpu GROUP BY ALL ORDER BY rank")
    assert list(answer.rows[0]) == ["rank", "rank_1", "n"]
    with pytest.raises(QueryError):
        run.query("DROP TABLE gpu")


@pytest.mark.slow
def test_what_is_wrong_is_said_in_three_parts(run: OpenRun, tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"Did you mean stragglers\?"):
        run.straglers  # type: ignore[attr-defined]  # noqa: B018
    wrong: list[tuple[type[Exception], Any]] = [
        (UsageError, lambda: run.kernels(by="colour")),  # type: ignore[arg-type]
        (UsageError, lambda: run.breakdown(ranks=99)),
        (UsageError, lambda: run.breakdown(steps="9:3")),
        (UsageError, lambda: run.compat("nobody")),
        (UsageError, lambda: run.compat("nsys", "nothing")),
        (UsageError, lambda: rankscope.open()),
        (UsageError, lambda: rankscope.open(DATA / "ddp-gloo4", cache=tmp_path, peak="fast")),
        (UsageError, lambda: rankscope.open(DATA / "ddp-gloo4", cache=tmp_path, prefer="amd")),  # type: ignore[arg-type]
        (UsageError, lambda: rankscope.open(DATA / "ddp-gloo4", cache=tmp_path, comm_patterns=["("])),
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


NOTHING = Result("x", "t", "w", VALUES.columns, [])


@pytest.mark.slow
def test_pandas_frames() -> None:
    pandas = pytest.importorskip("pandas", reason="to_pandas() gives a pandas DataFrame")
    frame = Answer.of(VALUES).to_pandas()
    types = {name: str(dtype) for name, dtype in frame.dtypes.items()}
    assert types == {
        "n": "Int64", "share": "float64", "name": "string", "ranks": "object", "none": "Int64", 'a "b"': "Int64",
        "flag": "boolean", "mixed": "string",
    }  # fmt: skip
    assert frame["n"].iloc[0] == 2**62 and frame["n"].iloc[1] is pandas.NA
    assert frame["share"].tolist() == [1, 2.5]
    assert list(frame["ranks"].iloc[0]) == [1, 2] and frame["mixed"].tolist() == ["1", "x"]
    empty = Answer.of(NOTHING).to_pandas()
    assert empty.shape == (0, 8) and str(empty["n"].dtype) == "Int64"
    assert Answer.of(VALUES).df().equals(frame)


@pytest.mark.slow
def test_polars_frames() -> None:
    polars = pytest.importorskip("polars", reason="to_polars() gives a polars DataFrame")
    frame = Answer.of(VALUES).to_polars()
    assert dict(frame.schema) == {
        "n": polars.Int64, "share": polars.Float64, "name": polars.String, "ranks": polars.List(polars.Int64),
        "none": polars.Int64, 'a "b"': polars.Int64, "flag": polars.Boolean, "mixed": polars.String,
    }  # fmt: skip
    assert frame["n"].to_list() == [2**62, None] and frame["ranks"].to_list() == [[1, 2], []]
    assert Answer.of(NOTHING).to_polars().shape == (0, 8)


def test_arrow_tables() -> None:
    pytest.importorskip("pyarrow", reason="to_arrow() gives a pyarrow Table")
    table = Answer.of(VALUES).to_arrow()
    assert {field.name: str(field.type) for field in table.schema} == {
        "n": "int64", "share": "double", "name": "string", "ranks": "list<item: int64>", "none": "int64",
        'a "b"': "int64", "flag": "bool", "mixed": "string",
    }  # fmt: skip
    assert table.column("n").to_pylist() == [2**62, None] and table.equals(Answer.of(VALUES).arrow())
    assert Answer.of(NOTHING).to_arrow().num_rows == 0


def test_integers_of_more_than_64_bits_stay_exact() -> None:
    for package in ("pandas", "polars", "pyarrow"):
        pytest.importorskip(package)
    huge = Answer.of(Result("x", "t", "w", (Column("n", "flop"),), [{"n": 2**80}, {"n": None}]))
    assert huge.to_pandas()["n"].iloc[0] == 2**80
    assert huge.to_polars()["n"].to_list() == [2**80, None]
    assert huge.to_arrow().column("n").to_pylist() == [2**80, None]


def test_without_the_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *more: None if name in ("pandas", "polars", "pyarrow") else real(name, *more),
    )
    answer = Answer.of(VALUES)
    for method in (answer.df, answer.arrow, answer.to_pandas, answer.to_polars, answer.to_arrow):
        with pytest.raises(MissingPackageError, match="needs p") as caught:
            method()
        assert caught.value.why and "pip install" in caught.value.hint


def test_every_error_is_public_and_drawn() -> None:
    from rankscope import errors

    public = {name: kind for name, kind in vars(errors).items() if name.endswith("Error")}
    assert public["RankscopeError"] is rankscope.RankscopeError
    for name, kind in public.items():
        assert getattr(rankscope, name) is kind and name in rankscope.__all__
        assert kind.__doc__ and name in (errors.__doc__ or "").split()
        assert name in (ROOT / "docs" / "notebook.md").read_text(encoding="utf-8")


def test_importing_rankscope_stays_free() -> None:
    code = "import sys, rankscope; print({'numpy', 'duckdb', 'rankscope.notebook'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"


@pytest.mark.slow
def test_a_run_that_lacks_everything_answers_every_question(tmp_path: Path) -> None:
    run = rankscope.open(write_kineto(tmp_path / "t.json", [slice_event("aten::add", 0, 1)]))
    for name in REPORTS:
        answer = getattr(run, name.rpartition(".")[2])()
        assert answer._repr_html_() and "nan" not in repr(answer).lower()


def test_the_notebook_is_one(tmp_path: Path) -> None:
    """That it runs, and shows what it shows, is tested with the other generated pages (test_commands)."""
    notebook = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert sum("text/html" in output.get("data", {}) for cell in code for output in cell["outputs"]) >= 5
