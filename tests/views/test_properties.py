"""What holds for any Result, however odd its names and figures."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.analysis.core.result import SEVERITIES, Column, Finding, Result, Unit
from rankscope.units import display_width
from rankscope.views import FORMATS, render

texts = st.one_of(
    st.text(max_size=60),
    st.text("abc|`\\*_<>\x1b\x9b\n\t训", max_size=40),
    st.builds("void at::native::{}<{}>(int)".format, st.text("kernel_", max_size=50), st.text(max_size=20)),
)
integers = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=True, allow_infinity=True)
names = st.builds(
    "{}_{}".format, st.integers(0, 99).map("col{}".format), st.sampled_from(("ns", "pct", "gb_s", "x_y"))
)
findings = st.builds(Finding, st.sampled_from(SEVERITIES), texts, texts, advice=texts)


@st.composite
def results(draw: st.DrawFn) -> Result:
    columns = []
    cells: dict[str, st.SearchStrategy[Any]] = {}
    for name in draw(st.lists(names, min_size=1, max_size=10, unique=True)):
        unit: Unit = draw(st.sampled_from(get_args(Unit)))
        columns.append(Column(name, unit, title=draw(st.just("") | texts)))
        kind = draw(st.sampled_from([integers, floats] if unit else [integers, floats, texts, texts]))
        cells[name] = st.none() | kind
    rows = draw(st.lists(st.fixed_dictionaries(cells), max_size=3))
    return Result(
        "report",
        draw(texts),
        draw(texts),
        tuple(columns),
        rows,
        tuple(draw(st.lists(findings, max_size=2))),
        tuple(draw(st.lists(texts, max_size=2))),
    )


# The machines are shared: one slow example is not a failure.
patiently = settings(deadline=None)


def known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@pytest.mark.thorough
@patiently
@given(results(), st.integers(60, 220))
def test_a_table_fits_and_shows_every_row(result: Result, width: int) -> None:
    lines = render(result, "table", width).splitlines()
    assert all(display_width(line) <= width for line in lines)
    assert all(line == line.rstrip() for line in lines)
    if result.rows:
        rule = next(number for number, line in enumerate(lines) if line and not line.strip("─ "))
        notes = next((n for n, line in enumerate(lines) if n > rule and line.startswith("· ")), None)
        end = len(lines) if notes is None else notes - 1
        assert end - rule - 1 == len(result.rows)


@pytest.mark.slow
@patiently
@given(results(), st.sampled_from(FORMATS), st.integers(20, 200))
def test_nothing_a_terminal_obeys_comes_out(result: Result, format: str, width: int) -> None:
    text = render(result, format, width)
    text.encode("utf-8")
    assert text.endswith("\n")
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]", text)


@pytest.mark.slow
@patiently
@given(results())
def test_json_comes_back(result: Result) -> None:
    document = json.loads(render(result, "json"), parse_constant=fail_on_constant)
    assert document["rows"] == [{key: known(value) for key, value in row.items()} for row in result.rows]
    for row, original in zip(document["rows"], result.rows, strict=True):
        assert all(type(row[key]) is type(known(value)) for key, value in original.items())
    assert document["notes"] == list(result.notes)


def fail_on_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.slow
@patiently
@given(results())
def test_csv_comes_back(result: Result) -> None:
    header, *rows = csv.reader(io.StringIO(render(result, "csv")))
    assert header == [column.name for column in result.columns]
    assert len(rows) == len(result.rows)
    for cells, original in zip(rows, result.rows, strict=True):
        for name, cell in zip(header, cells, strict=True):
            value = known(original[name])
            if value is None:
                assert cell == ""
            elif isinstance(value, str):
                assert cell in (value, f"'{value}") or not value.isprintable()  # ': no formula
            else:
                assert type(value)(cell) == value


@pytest.mark.slow
@patiently
@given(results())
def test_markdown_has_as_many_cells_in_every_line(result: Result) -> None:
    lines = render(result, "markdown").splitlines()
    table = [line for line in lines if line.startswith("| ")]
    assert len(table) == (len(result.rows) + 2 if result.rows else 0)
    for line in table:
        assert len(re.findall(r"(?<!\\)\|", line)) == len(result.columns) + 1
