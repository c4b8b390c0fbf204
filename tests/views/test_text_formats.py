"""CSV, JSON and Markdown: what other programs read."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest

from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.text.json_values import plain
from rankscope.views import render
from views.samples import BREAKDOWN, EMPTY, KERNELS, OPS


class Colour(Enum):
    RED = "red"


class Scalar:
    """Answers as numpy's scalars do."""

    def tolist(self) -> float:
        return 2.5


def named(name: str, **more: Any) -> Result:
    return Result("r", "R", "w", (Column("name"), Column("n", "count")), [{"name": name, "n": 1}], **more)


def test_csv_of_one_is_nothing_but_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(render(KERNELS, "csv"))))
    assert list(rows[0]) == [column.name for column in KERNELS.columns]
    assert rows[0]["total_ns"] == "6901364"
    assert rows[2]["name"] == KERNELS.rows[2]["name"]
    assert "#" not in render(KERNELS, "csv")


def test_csv_of_several_can_be_taken_apart() -> None:
    quoted = Result("q", 'a "title", with commas', "whole file", (Column("x"),), [{"x": None}, {"x": 'a"b'}])
    text = render([BREAKDOWN, quoted, EMPTY, OPS], "csv")
    blocks = text.split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        "# breakdown: Where the time went (whole file)",
        "# q: a 'title', with commas (whole file)",
        "# memory: Allocated memory (whole file)",
        "# ops: Operators, by self device time (whole file)",
    ]
    for block, result in zip(blocks, (BREAKDOWN, quoted, EMPTY, OPS), strict=True):
        rows = list(csv.DictReader(io.StringIO(block.partition("\n")[2])))
        assert len(rows) == len(result.rows)


def test_csv_keeps_a_record_on_one_line() -> None:
    text = render(named('a\nb\x1b[31m\u2028c,"d"'), "csv")
    assert text == 'name,n\n"a b\ufffd[31m c,""d""",1\n'


def test_json_names_and_order() -> None:
    document = json.loads(render(BREAKDOWN, "json"))
    assert list(document) == [
        *("name", "title", "window", "columns", "facts", "rows", "findings", "notes"),
        *("outcome", "reason", "evidence", "definition", "next", "truncated"),
    ]
    assert document["columns"][1] == {"name": "step", "unit": "", "help": "null = the whole window"}
    assert document["rows"] == list(BREAKDOWN.rows)
    assert document["findings"][0]["span"] == [1000, 2000]
    assert json.loads(render([KERNELS, EMPTY], "json"))["others"][0]["rows"] == []


def test_json_has_only_what_the_columns_promise() -> None:
    result = Result("r", "R", "w", (Column("a"), Column("b")), [{"b": 1, "secret": 2}])
    assert json.loads(render(result, "json"))["rows"] == [{"a": None, "b": 1}]


def test_json_survives_any_text() -> None:
    nasty = "\x1b[31m\x7f\x9b\ud800µ\u2028"
    text = render(named(nasty, notes=(nasty,)), "json")
    assert text.isascii()
    assert all(line.isprintable() for line in text.splitlines())
    assert json.loads(text)["rows"][0]["name"] == nasty


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (2**63, 2**63),
        (True, True),
        (Decimal("3"), 3),
        (Decimal("3.5"), 3.5),
        (Decimal("NaN"), None),
        (Scalar(), 2.5),
        (Colour.RED, "red"),
        (b"a\xff", "a\\xff"),
        (datetime.date(2024, 5, 1), "2024-05-01"),
        (datetime.timedelta(seconds=1), "0:00:01"),
        ((1, math.nan), [1, None]),
        ({1: {2.0}}, {"1": [2.0]}),
    ],
)
def test_plain_values(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
    result = Result("r", "R", "w", (Column("x"),), [{"x": value}])
    assert json.loads(render(result, "json"))["rows"] == [{"x": expected}]
    for format in ("table", "csv", "markdown"):
        assert render(result, format)


def test_csv_values() -> None:
    columns = tuple(Column(name) for name in "abcdef")
    row = {"a": None, "b": True, "c": 0.1 + 0.2, "d": 10**18 + 1, "e": [1, None], "f": math.nan}
    text = render(Result("r", "R", "w", columns, [row]), "csv")
    assert text.splitlines()[1] == ',true,0.30000000000000004,1000000000000000001,"[1, null]",'


def test_markdown_escapes() -> None:
    notes = ("# 1", "1. x", "<script> [a](b) _c_ a_b 3.5")
    text = render(named("a|b `c` <d>*e*_f_", notes=notes), "markdown")
    assert r"| ``a\|b `c` <d>*e*_f_`` |" in text
    assert "- \\# 1\n- 1\\. x\n- \\<script\\> \\[a\\](b) \\_c\\_ a_b 3.5\n" in text


def test_markdown_leaves_plain_words_plain() -> None:
    assert "| COMM |   1 |" in render(named("COMM"), "markdown")
    assert "|      |   1 |" in render(named(""), "markdown")


def test_markdown_cuts_names_no_one_reads() -> None:
    text = render(named("x" * 5000), "markdown")
    assert max(map(len, text.splitlines())) < 140


def test_markdown_findings_and_emptiness() -> None:
    result = Result(
        "r",
        "R",
        "",
        (Column("a"),),
        [],
        (Finding("critical", "t", facts=(Fact("example", "e"),), advice="h"),),
    )
    assert (
        render(result, "markdown")
        == "## R\n\n- **critical**: t\n  - example: e\n  - h\n\n_nothing to show_\n"
    )


def test_text_that_starts_a_formula_is_quoted_for_spreadsheets() -> None:
    names = ["=cmd()", "+1+1", "-a", "@x", "\t=1", "-1.5", "1e3", "a=b", "-", "＝1+1", "﹫x"]
    rows = [{"name": name, "n": -1.5} for name in names]
    result = Result("r", "R", "", (Column("name"), Column("n")), rows)
    shown = ["'=cmd()", "'+1+1", "'-a", "'@x", "' =1", "-1.5", "1e3", "a=b", "'-", "'＝1+1", "'﹫x"]
    assert [row["name"] for row in csv.DictReader(io.StringIO(render(result, "csv")))] == shown
    assert {row["n"] for row in csv.DictReader(io.StringIO(render(result, "csv")))} == {"-1.5"}
    # Programs compare the output of --compat with that of another tool.
    exact = csv.DictReader(io.StringIO(render(result, "csv", quote_formulas=False)))
    assert next(exact)["name"] == "=cmd()"
