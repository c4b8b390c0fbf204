"""Charts: as they were when someone last looked at them, well-formed, readable, harmless.

After a change that is meant: RANKSCOPE_UPDATE_GOLDEN=1 python -m pytest tests/views, then look at the SVG files.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import DATA
from rankscope.analysis.core.result import Column, Result
from rankscope.analysis.core.scope import Scope
from rankscope.cli import main
from rankscope.errors import RankscopeError, UsageError
from rankscope.text.colours import DARK, LIGHT, THEMES
from rankscope.text.names import COLOURED
from rankscope.timeline.run import Run
from rankscope.viewer.answers import KINDS
from rankscope.viewer.static_files import static_files
from rankscope.views.charts import CHARTS, Chart, NothingToDrawError, chart_of, rank_heatmap
from rankscope.views.charts import chart as chart_module
from rankscope.views.charts.heatmap import Row, heatmap
from rankscope.views.charts.plots import Bar, joined
from rankscope.views.charts.scales import LEAST_TICKS, Linear, Log, decades, tick_labels
from rankscope.views.charts.svg import step_path, text_width
from rankscope.views.charts.theme import resolve
from views.charts.samples import RESULTS
from views.samples import KERNELS

GOLDEN = Path(__file__).parent / "golden"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def well_formed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def text_of(chart: Chart) -> str:
    return "\n".join(well_formed(chart.svg()).itertext())


@pytest.mark.parametrize("name", RESULTS)
def test_golden(name: str) -> None:
    svg = chart_of(RESULTS[name]).svg().replace("><", ">\n<") + "\n"
    well_formed(svg)
    path = GOLDEN / f"{name}.svg"
    if os.environ.get("RANKSCOPE_UPDATE_GOLDEN"):
        path.write_text(svg, encoding="utf-8")
    assert svg == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RESULTS)
def test_png_without_a_browser(name: str) -> None:
    assert chart_of(RESULTS[name]).png(zoom=0.5).startswith(PNG_SIGNATURE)


@pytest.mark.parametrize("theme", THEMES)
def test_a_file_has_no_variables(theme: str) -> None:
    for result in RESULTS.values():
        svg = chart_of(result).svg(theme)
        assert "var(" not in svg and "NaN" not in svg and "inf" not in svg.replace("info", "")


def test_html_is_complete() -> None:
    page = chart_of(RESULTS["roofline"]).html()
    assert "Content-Security-Policy" in page and "prefers-color-scheme: dark" in page
    assert not re.search(r'(?:src|href)="', page) and "url(http" not in page
    assert "aten::bmm &lt;b&gt;" in page and "<b>" not in page


def test_axes_and_legends_name_units() -> None:
    assert "Time (ms)" in text_of(chart_of(RESULTS["breakdown"]))
    assert "Rate (TFLOP/s)" in text_of(chart_of(RESULTS["roofline"]))
    collectives = text_of(chart_of(RESULTS["collectives"]))
    assert "Bus bandwidth (GB/s)" in collectives and "10 kB" in collectives and "10 MB" in collectives
    assert "Memory (GB)" in text_of(chart_of(RESULTS["memory"]))


def test_roofline_draws_the_roofs_that_its_rows_tell() -> None:
    text = text_of(chart_of(RESULTS["roofline"]))
    assert re.search(r"bfloat16 988\.\d TFLOP/s", text) and re.search(r"memory 4,79\d\.?\d* GB/s", text), text
    assert "bfloat16, measured by ncu" in text and "bfloat16, from shapes" in text
    ridge = re.search(r"ridge ([\d.]+) FLOP/byte", text)
    assert ridge and math.isclose(float(ridge[1]), 988.6e12 / 4.8e12, rel_tol=0.01), text
    ticks = {label for _, _, anchor, label in labels_of(chart_of(RESULTS["roofline"])) if anchor == "middle"}
    assert {"10", "100", "1,000"} <= ticks, "three decades"


def test_step_times_show_the_spread_of_the_ranks() -> None:
    few, many = (chart_of(RESULTS[name]) for name in ("steps", "steps-many"))
    assert "fastest to slowest of 2 ranks" in text_of(few) and "slowest: rank 0" in text_of(few)
    assert "fastest to slowest of 12 ranks" in text_of(many) and "slowest: rank 11" in text_of(many)
    assert "the axis does not begin at 0" in few.subtitle
    boxes = re.findall(
        r'<rect [^>]*height="([\d.]+)" fill="var\(--idle\)" stroke="var\(--ink-3\)" stroke-width="0.6"',
        many.body,
    )
    assert len(boxes) == 3 and all(float(height) > 150 for height in boxes), "a spread that can be seen"


TIMES = st.lists(st.sampled_from([0, 1, 2, 100, 101, 104, 900, 1000]), min_size=17, max_size=60)


@given(TIMES)
def test_joined_bars_keep_every_rank_and_its_time(times: list[int]) -> None:
    bars = [Bar(f"rank {r}", [ns, 10], rank=r) for r, ns in enumerate(times)]
    shown = joined(bars)
    assert len(shown) <= 16
    ranks: list[int] = []
    for bar in shown:
        first, _, listed = bar.label.partition(": ")
        members = parse_ranges(listed) if listed else [int(bar.label.removeprefix("rank "))]
        assert not listed or first == f"{len(members)} ranks"
        sums = [times[rank] + 10 for rank in members]
        assert math.isclose(sum(bar.values), sum(sums) / len(sums))
        assert bar.spread == ((min(sums), max(sums)) if listed else None)
        ranks += members
    assert sorted(ranks) == list(range(len(times)))


def parse_ranges(text: str) -> list[int]:
    pairs = [part.split("-") for part in text.split(",")]
    return [rank for pair in pairs for rank in range(int(pair[0]), int(pair[-1]) + 1)]


def test_few_bars_stay_as_they_are() -> None:
    bars = [Bar(f"rank {r}", [5], rank=r) for r in range(16)]
    assert joined(bars) == bars


def test_of_64_ranks_the_late_one_and_a_band_are_drawn() -> None:
    columns = (Column("rank"), Column("caused_wait_ns", "ns"), Column("cause"))
    rows = [
        {"rank": r, "caused_wait_ns": 1_890_000_000 if r == 37 else 220_000 + 60_000 * r, "cause": "compute"}
        for r in range(64)
    ]
    chart = chart_of(Result("stragglers", "Stragglers", "steps 0:5", columns, rows))
    beside = [text for _, _, anchor, text in labels_of(chart) if anchor == "end"]
    assert beside == ["rank 37", "63 ranks: 0-36,38-63"]
    assert "compute, 220 µs to 4.00 ms" in text_of(chart) and "share a bar" in chart.subtitle
    assert chart.height < 150


def test_annotations_are_drawn_without_the_profilers_own() -> None:
    columns = (Column("name"), Column("total_ns", "ns"))
    rows = [{"name": name, "total_ns": 5} for name in ("ProfilerStep#3", "forward")]
    text = text_of(chart_of(Result("ops.annotations", "Annotations", "whole file", columns, rows)))
    assert "forward" in text and "ProfilerStep" not in text


def labels_of(chart: Chart) -> list[tuple[float, float, str, str]]:
    """x, y, anchor and text of every label."""
    found = []
    for element in well_formed(chart.svg()).iter("{http://www.w3.org/2000/svg}text"):
        place = float(element.get("x", 0)), float(element.get("y", 0))
        found.append((*place, element.get("text-anchor", "start"), element.text or ""))
    return found[2:]  # without title and subtitle


def overlapping(chart: Chart) -> list[tuple[str, str]]:
    """Labels that touch each other, by the width of letters that charts are laid out with."""
    boxes = []
    for x, y, anchor, text in labels_of(chart):
        width = 0.85 * text_width(text)
        left = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
        boxes.append((left, left + width, y, text))
    return [
        (a[3], b[3])
        for number, a in enumerate(boxes)
        for b in boxes[:number]
        if abs(a[2] - b[2]) < 8 and a[0] < b[1] and b[0] < a[1]
    ]


@pytest.mark.parametrize("name", RESULTS)
def test_labels_do_not_overlap(name: str) -> None:
    assert overlapping(chart_of(RESULTS[name])) == []


def test_nothing_to_draw_says_why() -> None:
    for name, result in RESULTS.items():
        empty = replace(result, rows=[], notes=("the trace has none; --profile-memory records them",))
        with pytest.raises(NothingToDrawError) as caught:
            chart_of(empty)
        assert "--profile-memory records them" in caught.value.why, name


def test_any_other_result_becomes_bars() -> None:
    other = Result("mine", "Mine", "whole file", KERNELS.columns, KERNELS.rows)
    assert "nvjet_sm90" in text_of(chart_of(other))


def test_names_from_traces_stay_text() -> None:
    row = {**KERNELS.rows[0], "name": '</text><script>alert(1)</script>" onload="x\x1b[31m'}
    svg = chart_of(replace(KERNELS, rows=[row])).svg()
    assert "<script" not in svg and "\x1b" not in svg and 'onload="' not in svg
    well_formed(svg)


def test_unknown_ending() -> None:
    with pytest.raises(UsageError, match="cannot write a chart as"):
        chart_of(KERNELS).content(".pdf")


def test_png_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == "resvg_py":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(RankscopeError) as caught:
        chart_of(KERNELS).png()
    assert "resvg-py" in caught.value.why and "rankscope[png]" in caught.value.hint


def test_png_without_fonts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_module, "_FONT_FOLDERS", ("/nowhere",))
    with pytest.raises(RankscopeError) as caught:
        chart_of(KERNELS).png()
    assert "no font" in caught.value.why


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_can_be_read(theme: str) -> None:
    colours = THEMES[theme]
    for name in ("ink", "ink-2", "ink-3", "accent", "bad", "warn", "ok"):
        for ground in ("bg", "panel"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


@pytest.mark.parametrize("theme", THEMES)
def test_names_on_kernels_can_be_read(theme: str) -> None:
    colours = THEMES[theme]
    for family in COLOURED:
        assert max(contrast(colours[family], colours[ink]) for ink in ("on-compute", "on-light")) >= 4.5, (
            family
        )


def test_the_page_has_the_same_colours() -> None:
    style = static_files()["style.css"][0].decode()
    for theme, selector in (("light", ":root {"), ("dark", ':root[data-theme="dark"] {')):
        page = dict(re.findall(r"--([\w-]+): (#\w+);", style.split(selector)[1].split("}")[0]))
        assert page == THEMES[theme] and {*KINDS} - page.keys() == {f"{name}-host" for name in COLOURED}


def test_themes_have_the_same_names() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert resolve("var(--compute)", "dark") == DARK["compute"]


# Scales.

NUMBERS = st.floats(1e-3, 1e15)


@given(st.floats(-1e3, 1e3), NUMBERS)
def test_linear_ticks(low: float, span: float) -> None:
    scale = Linear(low, low + span, 0, 600)
    ticks = scale.ticks(6)
    assert LEAST_TICKS <= len(ticks) <= 8 and ticks == sorted(ticks)
    assert all(low - span * 1e-6 <= tick <= low + span * (1 + 1e-6) for tick in ticks)


@given(st.lists(NUMBERS, min_size=1, max_size=5), st.integers(1, 3))
def test_log_axis(values: list[float], least: int) -> None:
    low, high = decades(values, least)
    assert low < min(values) and high > max(values) and high / low >= 0.999 * 10**least
    scale = Log(low, high, 0, 500)
    assert len(scale.ticks()) >= LEAST_TICKS
    assert all(
        -1e-6 <= scale(value) <= 500 + 1e-6 for value in (*values, *scale.ticks(), *scale.minor_ticks())
    )


@given(
    st.lists(st.floats(0, 1e15), max_size=8),
    st.sampled_from(["ns", "bytes", "flop/s", "GB/s", "percent", ""]),
)
def test_tick_labels(ticks: list[float], unit: str) -> None:
    labels, name = tick_labels(unit, ticks)
    assert len(labels) == len(ticks)
    assert (
        len(set(labels)) == len(set(ticks)) or len(set(ticks)) < len(ticks) or max(ticks) > 1e6 * apart(ticks)
    )
    assert bool(unit) == bool(name or any(" " in label for label in labels))


def apart(ticks: list[float]) -> float:
    return min(abs(b - a) for a, b in pairwise(sorted(ticks)))


def test_ticks_of_a_late_window_are_told_apart() -> None:
    """Steps of milliseconds, half an hour after the start."""
    scale = Linear(1.8e12, 1.8e12 + 17e6, 0, 600)
    labels, _ = tick_labels("ns", scale.ticks(6))
    assert len(labels) >= LEAST_TICKS and len(set(labels)) == len(labels)


LEVELS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(LEVELS)
def test_step_path_covers_what_it_should(levels: list[int]) -> None:
    x = np.arange(len(levels) + 1, dtype=float)
    path = step_path(x, 10.0 - np.array(levels), np.full(len(levels), 10.0))
    area = 0.0
    for left, top, right, bottom in re.findall(r"M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H[\d.]+z", path):
        area += (float(right) - float(left)) * (float(bottom) - float(top))
    assert math.isclose(area, sum(levels))


def test_heatmap_marks_ranks_and_steps() -> None:
    shares = [[1.0, 0.0], [0.0, 0.3], [0.0, 0.2], [0.0, 0.0]]
    rows = [Row(f"rank {r}", shares, "tip", alarming=r == 1) for r in range(2)]
    chart = heatmap("Rank by time", "whole file", rows, [0, 500, 1000], [(0, 3)])
    root = well_formed(chart.svg())
    bold = [
        element.text
        for element in root.iter("{http://www.w3.org/2000/svg}text")
        if element.get("font-weight")
    ]
    assert "rank 1" in bold and "rank 0" not in bold
    assert "step 3" in "".join(root.itertext())


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 64, 1024])
def test_heatmap_of_many_ranks_stays_small(ranks: int) -> None:
    stretches = max(48, min(480, 26_000 // ranks))
    noisy = [[((r * 7 + at * 13) % 11) / 11 for at in range(stretches)] for r in range(ranks)]
    rows = [Row(f"rank {r}", [shares, *[[0.0] * stretches] * 3], "") for r, shares in enumerate(noisy)]
    chart = heatmap("", "", rows, list(range(stretches + 1)), [])
    assert len(chart.body) < 1_500_000 and chart.height < 2_300


# From real runs.


@pytest.mark.slow
@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("data", ["seqpar-gloo4-slow2", "gpt-h200-stack"])
def test_every_chart_of_a_real_run(name: str, data: str, open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / data)
    try:
        chart = CHARTS[name].make(run, Scope())
    except NothingToDrawError as nothing:
        assert nothing.why
        return
    well_formed(chart.svg())
    assert chart.png(zoom=0.3).startswith(PNG_SIGNATURE)
    assert overlapping(chart) == []
    beside = [text for _, _, anchor, text in labels_of(chart) if anchor == "end"]
    assert len(set(beside)) == len(beside), "no two rows or ticks have the same label"


def test_heatmap_shows_who_computes(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    root = well_formed(rank_heatmap(run, Scope(), {2}).svg())
    tips = [title.text or "" for title in root.iter("{http://www.w3.org/2000/svg}title")]
    shares = {tip.partition("\n")[0]: float(re.findall(r"compute: .*\(([\d.]+) %\)", tip)[0]) for tip in tips}
    assert shares["rank 2"] > 60 and all(shares[f"rank {r}"] < 5 for r in (0, 1, 3))
    waits = [
        float(share) for share in re.findall(r"waiting for another rank: .*\(([\d.]+) %\)", "\n".join(tips))
    ]
    assert [share > 50 for share in waits] == [True, True, False, True]


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["chart", str(DATA / "seqpar-gloo4-slow2"), "-q", "--cache", str(tmp_path / "c")]
    for ending in ("svg", "png", "html"):
        assert main([*words, "-r", "heatmap", "-o", str(tmp_path / f"x.{ending}"), "--dark"]) == 0
    assert DARK["bg"] in (tmp_path / "x.svg").read_text()
    assert main([*words, "-r", "heatmap", "-o", str(tmp_path / "x.svg")]) == 2, (
        "nothing is overwritten unasked"
    )
    assert main([*words, "-r", "ncu", "-o", str(tmp_path / "y.svg")]) == 1
    assert main([*words, "-r", "nonsense"]) == 2
    assert main([*words, "-r", "heatmap", "-o", str(tmp_path / "x.pdf")]) == 2
    assert main([*words, "-r", "list"]) == 0
    assert "roofline" in capsys.readouterr().out


def test_command_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.bench.sweep import chart as vega_lite

    row = {"sequence": 64, "hidden": 128, "precision": "float32", "ranks": 2, "matmul_tflop_s": 1.5}
    source = tmp_path / "sweep.json"
    for content in ({"rows": [row], "chart": vega_lite([row])}, vega_lite([row])):
        source.write_text(json.dumps(content))
        assert main(["chart", str(source), "-r", "sweep", "-f", "-o", str(tmp_path / "s.svg")]) == 0
        assert "float32, H 128, 2 ranks" in (tmp_path / "s.svg").read_text()
    source.write_text("[1]")
    assert main(["chart", str(source), "-r", "sweep", "-f", "-o", str(tmp_path / "s.svg")]) == 1
    assert "as a sweep" in capsys.readouterr().err


@pytest.mark.slow
def test_in_a_notebook(tmp_path: Path) -> None:
    import rankscope

    run = rankscope.open(DATA / "seqpar-gloo4-slow2", cache=tmp_path)
    chart = run.breakdown().chart()
    assert chart._repr_svg_().startswith("<svg ") and "rank 2" in text_of(chart)
    saved = run.chart("heatmap", ranks="0-1").save(tmp_path / "ranks.svg")
    assert "rank 2" not in saved.read_text() and "rank 1" in saved.read_text()
    with pytest.raises(UsageError):
        run.chart("nonsense")
