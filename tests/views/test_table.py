"""What the table decides: units, columns left out, names, findings, colour."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rankscope.analysis.core.result import SEVERITIES, Column, Fact, Finding, Result, Unit
from rankscope.errors import UsageError
from rankscope.units import display_width
from rankscope.views import render
from views.samples import BREAKDOWN, EMPTY, KERNELS, OPS


def one_column(values: list[Any], unit: Unit = "ns", name: str = "total_ns", **more: Any) -> Result:
    return Result("r", "R", "", (Column(name, unit, **more),), [{name: value} for value in values])


def grid(result: Result, width: int = 160) -> list[str]:
    """Heading, rule and rows of a result without findings."""
    return render(result, "table", width).split("\n\n")[1].splitlines()


def without_color(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([6_901_364, 1_234_000], ["Total (ms)", "6.901", "1.234"]),
        ([2_000_000_000, 1_500_000_000], ["Total (s)", "2.000", "1.500"]),
        ([1234, 3], ["Total (µs)", "1.234", "0.003"]),
        ([234, 3], ["Total (ns)", "234", "3"]),
        # The unit of the median, also where one is large.
        ([12_000_000, 3_100, 2_900, 1_050], ["Total (µs)", "12,000.00", "3.10", "2.90", "1.05"]),
        ([5_000, None, 0], ["Total (µs)", "5.000", "-", "0"]),
        ([float("nan"), float("inf")], ["Total (ns)", "-", "-"]),
        ([], ["nothing to show"]),
    ],
)
def test_one_unit_for_the_column(values: list[Any], lines: list[str]) -> None:
    assert [line.strip() for line in grid(one_column(values)) if "─" not in line] == lines


def test_exact_figures_where_they_are_asked_for() -> None:
    result = Result(
        "r", "R", "", (Column("bytes", "bytes", decimals=0),), [{"bytes": 8}, {"bytes": 104_857_600}]
    )
    assert [line.strip() for line in grid(result)] == ["Size (B)", "─" * 11, "8", "104,857,600"]


def test_neighbours_share_a_unit_unless_it_would_show_only_zeros() -> None:
    row = {"span_ns": 600_000_000, "comm_ns": 90_000_000, "idle_ns": 900_000, "copy_ns": 2_400}
    columns = tuple(Column(name, "ns") for name in row)
    heading, _, figures = grid(Result("r", "R", "", columns, [row]))
    assert heading.split("  ") == ["Span (ms)", "Comm (ms)", "Idle (ms)", "Copy (µs)"]
    assert figures.split() == ["600.000", "90.000", "0.900", "2.400"]


@pytest.mark.parametrize(
    ("column", "heading"),
    [
        (Column("total_ns", "ns"), "Total (ns)"),
        (Column("time_pct", "percent"), "Time %"),
        (Column("pct_of_roof", "percent"), "% of roof"),
        (Column("self_host_ns", "ns"), "Self host (ns)"),
        (Column("gb_s", "GB/s"), "GB/s"),
        (Column("algbw_gb_s", "GB/s"), "Algbw (GB/s)"),
        (Column("stddev_ns", "ns"), "StdDev (ns)"),
        (Column("flops", "flop"), "FLOP"),
        (Column("flop_s", "flop/s"), "FLOP/s"),
        (Column("bytes", "bytes"), "Size (B)"),
        (Column("ns", "ns"), "Time (ns)"),
        (Column("instances", "count"), "Instances"),
        (Column("rank"), "Rank"),
        (Column("peak_reserved_bytes", "bytes", title="Peak"), "Peak (B)"),
        (Column("time_pct", "percent", title="Share %"), "Share %"),
        (Column("calls_ns", "ns", title="Calls in ns"), "Calls in ns"),
    ],
)
def test_headings(column: Column, heading: str) -> None:
    assert grid(Result("r", "R", "", (column,), [{column.name: 7}]))[0].strip() == heading


def test_kernels_at_80_columns_keep_what_matters() -> None:
    text = render(KERNELS, "table", 80)
    lines = grid(KERNELS, 80)
    for word in ("Time", "Total", "Instances", "Avg", "Name"):
        assert word in lines[0] + lines[1]
    widths = dict(zip(lines[1].split(), map(len, lines[2].split()), strict=True))
    assert widths["Name"] >= 24
    assert "Not shown at 80 columns: Min, Max, StdDev" in text
    assert "--format csv" in text
    assert "Not shown" not in render(KERNELS, "table", 160)


@pytest.mark.slow
def test_no_column_is_lost_without_a_word() -> None:
    for width in range(20, 170):
        for result in (KERNELS, OPS, BREAKDOWN):
            text = " ".join(render(result, "table", width).replace("· ", "").split())
            for column in result.columns:
                word = column.name.split("_")[0].lower().replace("flops", "flop")
                assert word in text.lower(), (result.name, width, column.name)


def test_several_long_texts_share_the_room() -> None:
    columns = (Column("name"), Column("source"), Column("calls", "count"))
    row = {"name": "n" * 200, "source": "s" * 200, "calls": 7}
    lines = grid(Result("r", "R", "", columns, [row]), 80)
    assert [len(rule) for rule in lines[1].split()] == [36, 35, 5]


def test_an_absurd_number_is_cut_rather_than_wrapped() -> None:
    columns = (Column("id"), Column("other"))
    lines = grid(Result("r", "R", "", columns, [{"id": 10**80, "other": 10**90}]), 60)
    assert all(display_width(line) <= 60 for line in lines)


def test_values_of_other_kinds() -> None:
    columns = tuple(Column(name) for name in ("flag", "ranks", "p_value", "args"))
    rows: list[dict[str, Any]] = [
        {"flag": True, "ranks": [1, 2], "p_value": 0.03125, "args": {"µ": 1}},
        {"flag": False},
    ]
    assert grid(Result("r", "R", "", columns, rows))[2:] == [
        'yes   1, 2   0.03125  {"µ": 1}',
        "no    -            -  -",
    ]


def test_empty_says_so_and_why() -> None:
    text = render(EMPTY, "table", 100)
    assert "nothing to show" in text
    assert "profile_memory=True" in text


def test_names_cannot_reach_the_terminal() -> None:
    nasty = "evil\x1b]0;owned\x07\r\n\x9b31m\u202egpj\ud800"
    result = Result(
        nasty, nasty, nasty, (Column("name", title=nasty),), [{"name": nasty}],
        (Finding("critical", nasty, facts=(Fact("example", nasty),), advice=nasty),), (nasty,),
    )  # fmt: skip
    for format in ("table", "markdown"):
        text = render(result, format, 80)
        assert all(line.isprintable() for line in text.splitlines())
        text.encode("utf-8")
    assert "evil\\x1b]0;owned\\x07" in render(result, "table", 80)


def test_findings_are_words_first() -> None:
    for severity in SEVERITIES:
        result = Result(
            "r",
            "R",
            "",
            (),
            [],
            (Finding(severity, "a title", facts=(Fact("example", "some evidence"),), advice="do this"),),
        )
        plain_text = render(result, "table", 80)
        assert f"{severity}: a title\n  example: some evidence\n  → do this\n" in plain_text
        colored = render(result, "table", 80, color=True)
        assert "\x1b[" in colored
        assert without_color(colored) == plain_text
    bare = Result("r", "R", "", (), [], (Finding("info", ""),))
    assert "info:\n" in render(bare, "table", 80)


def test_color_changes_nothing_but_color() -> None:
    for result in (KERNELS, BREAKDOWN, OPS, EMPTY):
        assert without_color(render(result, "table", 80, color=True)) == render(result, "table", 80)


def test_a_long_title_wraps_and_keeps_its_window() -> None:
    result = Result("r", "word " * 30, "steps 3:5", (), [])
    lines = render(result, "table", 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert "· steps 3:5" in lines


def test_none_and_many() -> None:
    assert render([], "table") == ""
    assert render([EMPTY], "table") == render(EMPTY, "table")
    assert render([EMPTY, EMPTY], "table", 90) == "\n".join([render(EMPTY, "table", 90)] * 2)


def test_unknown_format() -> None:
    with pytest.raises(UsageError, match="'xml' is not a format"):
        render(EMPTY, "xml")
