"""The report: complete in one file, harmless, true to the tables, and of use when half of the data is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, kernel_event, open_trace, slice_event, write_kineto
from rankscope.analysis import REPORTS
from rankscope.analysis.core.result import Column, Fact, Finding, Result
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.analysis.questions import QUESTIONS
from rankscope.cli import main
from rankscope.errors import StoreError
from rankscope.timeline.reading import ingest
from rankscope.timeline.run import Run
from rankscope.views.help_pages import page_names
from rankscope.views.report.content import Content, Request, build
from rankscope.views.report.definitions import definition, to_html
from rankscope.views.report.html_report import html_page
from rankscope.views.report.markdown_report import markdown_page, markdown_summary


class Page(HTMLParser):
    """Tags balanced, ids unique, text by section and folded part."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self._opened: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str, str]] = []
        self.sections: dict[str, str] = {}
        self._section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        values = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in values.items()]
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "section" or (tag == "details" and "id" in values):
            self._section = values["id"]
        if tag != "meta":
            self.open.append(tag)
            self._opened.append(self._section)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        self._opened.pop()
        self._section = self._opened[-1] if self._opened else ""

    def handle_data(self, data: str) -> None:
        self.sections[self._section] = self.sections.get(self._section, "") + data


def report(run: Run, scope: Scope | None = None, compared: Result | None = None) -> tuple[Content, str]:
    content = build(Request(run, scope or Scope(), "my run", "my runs/slow 2"), compared)
    return content, html_page(content)


@pytest.fixture(scope="module")
def slow2(open_real: Callable[[Path], Run]) -> tuple[Content, str, Run]:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    return *report(run), run


@pytest.mark.slow
def test_page_is_well_formed_and_complete(slow2: tuple[Content, str, Run]) -> None:
    _, html, _ = slow2
    page = Page(html)
    assert len(page.ids) == len(set(page.ids))
    assert not page.tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    for tag, name, value in page.attributes:
        assert name not in ("src", "style", "srcset", "action", "xlink:href"), (tag, name, value)
        assert not name.startswith("on"), (tag, name)
        if name == "href" and value.startswith(picture := "data:image/svg+xml;base64,"):
            saved = base64.b64decode(value.removeprefix(picture)).decode()
            assert saved.startswith("<svg xmlns=") and "<script" not in saved and "href" not in saved
        elif name == "href":
            assert value.startswith("#") and value[1:] in page.ids, value
        if "url(" in value:
            assert re.fullmatch(r"url\(#[\w-]+\)", value) and value[5:-1] in page.ids, value
    assert "@import" not in html and "http" not in re.sub(r"http-equiv", "", html)


def test_only_our_own_script_and_style_may_run(slow2: tuple[Content, str, Run]) -> None:
    html = slow2[1]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    for tag in ("style", "script"):
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert len(blocks) == 1
        digest = base64.b64encode(hashlib.sha256(blocks[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


@pytest.mark.slow
def test_the_first_screen_is_the_answer(slow2: tuple[Content, str, Run]) -> None:
    content, html, _ = slow2
    answer = Page(html).sections["answer"]
    assert content.headline.title.startswith("Rank 2 costs 10.6 ms per step (62 %); ")
    assert "-62 %" in answer and "saves 10.6 of 17.2 ms a step" in answer
    assert content.headline.advice and content.headline.advice in answer
    for command in (
        "rankscope view 'my runs/slow 2'",
        "rankscope whatif 'my runs/slow 2'",
    ):
        assert command in answer
    assert not re.search(r"\bRUN\b", answer + Page(html).sections["finding-2"])
    assert '<b class="">-62 %</b>' in html, "a saving is neither better nor worse"


@pytest.mark.slow
def test_the_picture_marks_the_culprit_and_those_who_wait(slow2: tuple[Content, str, Run]) -> None:
    picture = slow2[0].headline.picture
    assert picture is not None
    for chart in (picture.narrow, picture.usual, picture.wide):
        text = re.findall(r">([^<>]+)</text>", chart.body)
        assert "slow_extra, 11.2 ms" in text and sum(label.startswith("waits 11.") for label in text) == 3
        assert re.search(r'font-weight="700">rank 2<', chart.body)
    assert "The dashed line is the arrival of rank 2, the last, at reduce_scatter." in picture.wide.subtitle
    assert picture.narrow.width < 400


@pytest.mark.slow
def test_findings_are_those_of_stats_in_its_order(slow2: tuple[Content, str, Run]) -> None:
    content, html, run = slow2
    listed = [found.title for found in content.findings]
    assert listed == [found.title for found in collect(run, Scope())]
    assert re.findall(r'id="finding-(\d+)"', html) == [str(n) for n in range(1, len(listed) + 1)]


def test_every_report_has_its_place(slow2: tuple[Content, str, Run]) -> None:
    content, html, _ = slow2
    page = Page(html)
    for section in content.sections:
        assert section.name in page.sections["not-recorded" if section.empty else section.name]
        if not section.empty:
            assert section.command in page.sections[section.name]
            assert "Definition" in page.sections[section.name], section.name
            assert section.line and section.line in page.sections[section.name]
    assert {section.name for section in content.sections} == set(QUESTIONS)


@pytest.mark.slow
def test_of_one_rank_nothing_is_said_about_waiting(tmp_path: Path) -> None:
    """How long it waited for the others is not known: not 0 %."""
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    events = [slice_event("ProfilerStep#1", 0, 100, cat="user_annotation")]
    events += [kernel_event("k", 10, 20, 1), kernel_event(nccl, 40, 30, 2)]
    content, html = report(open_trace(write_kineto(tmp_path / "rank-0.json", events)))
    labels = [figure.label for figure in content.figures]
    assert "exposed communication" in labels and "waiting for another rank" not in labels
    assert "exposed transfer" not in html and ">waiting for another rank<" not in html


@pytest.mark.slow
def test_everything_is_folded(slow2: tuple[Content, str, Run]) -> None:
    html = slow2[1]
    assert not re.search(r'<details class="row"[^>]* open', html)
    assert html.count('<details class="row"') > 20


LINES = {
    "breakdown": "compute 19 %, transfer 14 %, waiting for another rank 50 %, idle 17 %, of 4 ranks",
    "steps": "from 16.7 ms to 18.1 ms; 6 steps of 4 ranks",
    "overlap": "0 % of communication is hidden behind compute",
    "memory": "peak of 443.0 MB on rank 2; the lowest peak is 42.5 MB",
    "mfu": "16.2 % of the peak, mean of 4 ranks",
}


@pytest.mark.slow
def test_sections_say_their_result_in_one_line(slow2: tuple[Content, str, Run]) -> None:
    lines = {section.name: section.line for section in slow2[0].sections}
    assert {name: lines[name] for name in LINES} == LINES
    assert lines["kernels"].startswith("nvjet_sm90_tst_") and lines["kernels"].endswith(" 247 µs; 2 rows")
    assert lines["idle.launches"] == "76 rows", "streams have no names"


def test_figures_are_those_of_the_tables(slow2: tuple[Content, str, Run]) -> None:
    content, html, run = slow2
    breakdown = REPORTS["breakdown"].analyse(run, Scope(), None)
    rows = [row for row in breakdown.rows if row["step"] is None]
    share = 100 * sum(row["compute_ns"] for row in rows) / sum(row["span_ns"] for row in rows)
    figures = {figure.label: figure.value for figure in content.figures}
    assert figures["compute"] == f"{share:.1f} %"
    assert content.subtitle.startswith("4 of 4 ranks (0-3) · steps 2-7 · NVIDIA H200 · trace grade ")
    assert "NVIDIA H200" in Page(html).sections["run-info"]


@pytest.mark.slow
def test_sections_without_data_say_what_records_it(tmp_path: Path) -> None:
    run = open_trace(write_kineto(tmp_path / "rank-0.json", [slice_event("aten::mm", 0, 5)]))
    content, html = report(run)
    page = Page(html)
    missing = page.sections["not-recorded"]
    assert re.search(r"profile.memory", missing) and re.search(r"record.shapes", missing)
    assert content.headline.title and "None" not in page.sections["answer"]
    assert "NaN" not in html


@pytest.mark.slow
@pytest.mark.parametrize(
    "events",
    [
        pytest.param([kernel_event("k", 10, 5)], id="one kernel, no steps"),
        pytest.param([slice_event("aten::add", 0, 0)], id="nothing takes time"),
        pytest.param(
            [slice_event(f"ProfilerStep#{n}", n * 10, 9, cat="user_annotation") for n in range(3)], id="steps only"
        ),
    ],
)  # fmt: skip
def test_odd_runs(events: list[object], tmp_path: Path) -> None:
    _, html = report(open_trace(write_kineto(tmp_path / "rank-7.json", events)))
    Page(html)
    assert "Traceback" not in html and "nan" not in html.lower().replace("nano", "").replace("nant", "")


@pytest.mark.slow
def test_names_from_a_trace_stay_text(tmp_path: Path) -> None:
    evil = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&\x1b[31m\u202e"
    events = [
        kernel_event(evil, 10, 5, 1),
        slice_event(evil, 0, 100),
        slice_event(evil, 1, 3, cat="user_annotation"),
    ]
    run = open_trace(write_kineto(tmp_path / "rank-0.json", events, deviceProperties=[{"name": evil}]))
    content = build(Request(run, Scope(), evil, f"'{evil}'"))
    html = html_page(content)
    page = Page(html)
    assert "img" not in page.tags and html.count("<script>") == 1 and html.count("</script>") == 1
    assert "document.title='owned'" in page.sections["kernels"]
    assert "\x1b" not in html and "\u202e" not in html
    assert "<script>" not in re.sub(r"`[^`\n]*`", "", markdown_page(content))


@pytest.mark.slow
def test_findings_come_worst_and_dearest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Finding("ok", "fine"),
        Finding("warning", "cheap", cost_ns=1),
        Finding(
            "critical",
            "rank 0 burns",
            facts=(Fact("example", "It is hot."),),
            ranks=(0,),
            advice="Put it out.",
            cost_ns=20,
        ),
        Finding("warning", "dear", cost_ns=9),
    )
    run = open_trace(write_kineto(tmp_path / "rank-0.json", [kernel_event("k", 10, 5)]))
    real = QUESTIONS["idle.short_kernels"]

    def analyse(run: Run, scope: Scope, by: str | None) -> Result:
        result = real.analyse(run, scope, by)
        return Result(result.name, result.title, result.window, result.columns, result.rows, found)

    monkeypatch.setitem(QUESTIONS, "idle.short_kernels", replace(real, analyse=analyse))
    content, html = report(run)
    titles = [one.title for one in content.findings if one in found]
    assert titles == ["rank 0 burns", "dear", "cheap"], "the worst first, then the dearest"
    headline = content.headline
    assert (headline.title, headline.detail, [*headline.facts]) == (
        "rank 0 burns.",
        "",
        ["example: It is hot."],
    )
    assert (headline.advice, headline.change_note) == ("Put it out.", "saves 20 ns in total")
    assert '<i class="dot critical">' in html and "critical, saves 20 ns in total" in html


@pytest.mark.slow
def test_a_report_that_fails_does_not_take_the_others_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: Run, scope: Scope, by: str | None) -> Result:
        raise StoreError("the store is damaged", why="A file is gone.", hint="Read it again.")

    real = QUESTIONS["ops"]
    monkeypatch.setitem(QUESTIONS, "ops", type(real)("ops", real.question, broken))
    _, html = report(open_trace(write_kineto(tmp_path / "rank-0.json", [kernel_event("k", 10, 5)])))
    page = Page(html)
    assert "The store is damaged" in page.sections["not-recorded"] and "k" in page.sections["kernels"]


@pytest.mark.slow
def test_a_time_beside_a_finding_has_a_bar_of_the_step(slow2: tuple[Content, str, Run]) -> None:
    items = dict(re.findall(r"<li><span>([^<]+)</span>(.*?)</li>", slow2[1]))
    assert 'width="61.5"' in items["saves 10.6 of 17.2 ms a step"]
    assert items["of it waiting for other ranks: 67.1 ms, rank 0, all steps"] == "", (
        "longer than a step: a sum"
    )
    assert items["steps in which it runs more ops than its peers: 6 of 6"] == ""


@pytest.mark.slow
def test_the_summary_to_post_is_that_of_the_markdown_report(slow2: tuple[Content, str, Run]) -> None:
    content, html, _ = slow2
    text = markdown_summary(content)
    assert text in markdown_page(content) and text in unescape(html)
    assert text.splitlines()[2].startswith("**Rank 2 costs 10.6 ms per step (62 %)") and len(text) < 3000


@pytest.mark.slow
def test_two_runs(slow2: tuple[Content, str, Run]) -> None:
    from rankscope.analysis.diff.two_runs import diff

    run = slow2[2]
    content = build(Request(run, Scope(), "my run", "new", base="base"), diff(run, run, Scope()))
    page = Page(html_page(content))
    assert content.headline.title == "No clear change in step time (+0.0 %)"
    assert "17.2 ms before, 17.2 ms now" in page.sections["answer"]
    assert "rankscope view base new" in page.sections["answer"] and content.headline.picture is not None
    assert "What changed" in page.sections["diff"] and "unclear" not in page.sections["diff"]


@pytest.mark.slow
def test_a_faster_run_is_the_headline(tmp_path: Path) -> None:
    from rankscope.analysis.diff.two_runs import diff

    runs = {}
    for name, took in (("base", 900), ("new", 400)):
        events = [slice_event(f"ProfilerStep#{n}", n * 1000, 950, cat="user_annotation") for n in range(6)]
        events += [kernel_event("k", n * 1000 + 5, took + n, n) for n in range(6)]
        if name == "new":
            events = [e | {"ts": e["ts"] / 2, "dur": e["dur"] / 2} for e in events]
        runs[name] = open_trace(write_kineto(tmp_path / name / "rank-0.json", events))
    request = Request(runs["new"], Scope(), "new", "new", base="base")
    content = build(request, diff(runs["base"], runs["new"], Scope()))
    assert "2.0x faster" in content.headline.title and content.headline.change == "-50.0 %"
    assert content.headline.judged == "better" and 'class="better"' in html_page(content)


def test_markdown_is_short(slow2: tuple[Content, str, Run]) -> None:
    text = markdown_page(slow2[0])
    assert text.startswith("# my run\n") and "| " in text
    assert (
        "rankscope report 'my runs/slow 2' --format markdown" in text
        and "`rankscope view 'my runs/slow 2'`" in text
    )
    assert len(text.splitlines()) < 120 and "<" not in re.sub(r"`[^`\n]*`", "", text).replace("\\<", "")


def test_definitions_of_every_report() -> None:
    for name in REPORTS:
        assert definition(name), f"docs/reports has no page for {name}"


def test_pages_of_findings() -> None:
    for name in page_names():
        page = definition(f"findings/{name}")
        assert page.startswith("<p>") and "<h4>When it is wrong</h4>" in page


def test_markdown_of_our_pages() -> None:
    html = to_html(
        "A *b* **c** `d <e>` [f](g.md) <script>x</script> ![i](j.png) [k](javascript:l)\n\n## h\n\n"
        "- one\n  more\n- two\n\n| a | b |\n|---|--:|\n| 1 \\| 2 | 3 |\n\n```\nx < y\n```"
    )
    assert html == (
        "<p>A <em>b</em> <strong>c</strong> <code>d &lt;e&gt;</code> f &lt;script&gt;x&lt;/script&gt; "
        "!i [k](javascript:l)</p>\n<h4>h</h4>\n"
        "<ul>\n<li>one\nmore</li>\n<li>two</li>\n</ul>\n"
        '<div class="wide"><table>\n<thead>\n<tr>\n<th>a</th>\n<th>b</th>\n</tr>\n</thead>\n'
        "<tbody>\n<tr>\n<td>1 | 2</td>\n<td>3</td>\n</tr>\n</tbody>\n</table></div>\n"
        "<pre><code>x &lt; y\n</code></pre>\n"
    )


def test_pages_without_a_markdown_library_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    assert to_html("A *b* <i>") == "<pre>A *b* &lt;i&gt;</pre>"


@pytest.mark.slow
def test_facts_of_a_captured_run(tmp_path: Path) -> None:
    write_kineto(tmp_path / "rank-00000.pt.trace.json", [kernel_event("k", 10, 5)])
    (tmp_path / "rankscope.json").write_text(
        json.dumps({"job": "j1", "command": ["torchrun", "train.py"], "tool": "torch", "rankscope": "0.1"})
    )
    (tmp_path / "rank-00000.rankscope.json").write_text(
        json.dumps({"rank": 0, "host": "node7", "torch": "2.13.0", "python": "3.11.7", "world_size": 8})
    )
    text = Page(report(open_trace(tmp_path))[1]).sections["run-info"]
    for fact in ("torchrun train.py", "node7", "2.13.0", "8; not all ranks were recorded", "j1"):
        assert fact in text
    assert str(tmp_path) not in text


@pytest.mark.slow
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("webbrowser.open", shown.append)
    source = str(write_kineto(tmp_path / "rank-0.json", [kernel_event("k", 10, 5)]))
    target = tmp_path / "r.html"
    words = ["report", source, "-q", "-o", str(target)]
    assert main([*words, "--open"]) == 0
    assert shown == [target.as_uri()] and "Wrote" in capsys.readouterr().out
    assert main(words) == 2, "nothing is overwritten unasked"
    assert main(["report", source, "-q", "-o", "-", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("# rank-0")
    assert main(["report", source, source, "-q", "-f", "-o", str(target)]) == 0
    assert "What changed" in target.read_text() and f"rankscope diff {source} {source}" in target.read_text()
    assert main(["report", source, source, source]) == 2


@pytest.mark.slow
def test_a_thousand_rows_are_cut_and_said(tmp_path: Path) -> None:
    kernels = [kernel_event(f"kernel number {n}", n * 10, 5, n) for n in range(300)]
    content, html = report(open_trace(write_kineto(tmp_path / "rank-0.json", kernels)))
    section = next(section for section in content.sections if section.name == "kernels")
    assert len(section.result.rows) == 100 and "200 more rows not shown" in html


def test_a_sum_is_in_the_unit_of_its_column() -> None:
    from rankscope.views.report.content import Section
    from rankscope.views.report.html_report import _table

    columns = (Column("name"), Column("bytes", "bytes"))
    rows: list[dict[str, Any]] = [
        {"name": "a", "bytes": size} for size in (2_000_000, 700_000, None, 998_000_000)
    ]
    html = _table(Section("m", "?", Result("memory.allocators", "M", "w", columns, rows), (), "c"))
    assert (
        "Size (MB)" in html and "1,000.700</td></tr></tfoot>" in html and ">-</td>" in html
    ) or "</svg>-</td>" in html


@pytest.mark.slow
def test_charts_stand_beside_a_table(slow2: tuple[Content, str, Run]) -> None:
    names = {section.name: [chart.name for chart in section.charts] for section in slow2[0].sections}
    assert names["stragglers"] == ["stragglers", "lateness", "waits"]
    assert names["collectives"] == ["collectives", "traffic", "arrivals"]
    assert names["clocks"] == []
    assert "Who waited for whom" in Page(slow2[1]).sections["stragglers"]


@pytest.mark.slow
def test_a_snapshot_has_its_curve(tmp_path: Path) -> None:
    packed = DATA / "leak-h200" / "snapshot_rank0.pickle.xz"
    (tmp_path / "snapshot_rank0.pickle").write_bytes(lzma.decompress(packed.read_bytes()))
    content, _ = report(open_trace(tmp_path / "snapshot_rank0.pickle"))
    sections = {section.name: section for section in content.sections}
    assert [chart.name for chart in sections["memory"].charts] == ["memory"]
    assert content.headline.picture and content.headline.picture.wide.name == "memory"


def test_tables_that_add_up_have_bars_and_a_total() -> None:
    from rankscope.views.report.content import Section
    from rankscope.views.report.html_report import _table

    columns = (
        Column("name"),
        Column("class"),
        Column("total_ns", "ns"),
        Column("instances", "count"),
        Column("avg_ns", "ns"),
    )
    rows: list[dict[str, Any]] = [
        {"name": name, "class": kind, "total_ns": total, "instances": 4, "avg_ns": total // 4}
        for name, kind, total in (("a", "COMM", 900_000), ("b", "COMPUTE", 300_000), ("c", "COMPUTE", 90_000))
    ]
    result = Result("kernels", "Kernels", "w", columns, rows)
    html = _table(Section("kernels", "?", result, (), "c"))
    assert re.findall(r'class="bar (\w+)".*?width="([\d.]+)"', html) == [
        ("comm", "100.0"), ("compute", "33.3"), ("compute", "10.0"),
    ]  # fmt: skip
    total = re.findall(r"<td[^>]*>(.*?)</td>", html.partition("<tfoot>")[2])
    assert total == ["Total", "", "1,290.00", "12", ""], "means do not add up"
    cut = _table(Section("kernels", "?", replace(result, hidden=5), (), "c"))
    assert "Total of these 3" in cut
    other = _table(Section("steps", "?", replace(result, name="steps"), (), "c"))
    assert "<tfoot" not in other and "bar" not in other


@pytest.mark.thorough
def test_of_many_ranks_a_few_tell_the_details(tmp_path: Path) -> None:
    for rank in range(20):
        write_kineto(
            tmp_path / f"rank-{rank}.json", [slice_event("aten::mm", 0, 5), kernel_event("k", 10, 5)]
        )
    run = Run(ingest([tmp_path]))
    content = build(Request(run, Scope(), "many", "RUN"))
    sections = {section.name: section for section in content.sections}
    ops = sections["ops"]
    assert ops.command == "rankscope stats RUN --ranks 0,3,6,9,12,15,18 -r ops"
    assert ops.result.rows[0]["calls"] == 7 and "of 7 ranks, 0,3,6,9,12,15,18" in ops.result.notes[0]
    assert len(sections["breakdown"].result.rows) == 20
    Page(html_page(content))
    narrowed = build(Request(run, Scope(frozenset(range(4))), "few", "RUN", ("--ranks", "0-3")))
    assert (
        next(s for s in narrowed.sections if s.name == "ops").command
        == "rankscope stats RUN --ranks 0-3 -r ops"
    )


def test_long_names_show_where_they_differ_and_stay_whole() -> None:
    from rankscope.views.report.content import Section
    from rankscope.views.report.html_report import _table

    names = ["gemm_" * 10 + f"{size}_" + "tail_" * 10 for size in ("128x256", "256x128")]
    result = Result("k", "K", "w", (Column("name"),), [{"name": name} for name in names])
    html = _table(Section("k", "?", result, (), "c"))
    cells = re.findall(r'<td class="t">(.*?)</td>', html)
    assert [re.sub(r"<[^>]+>", "", cell) for cell in cells] == names, "copied and searched whole"
    shown = [re.sub(r'<span class="cut">.*?</span>', "…", cell) for cell in cells]
    assert shown[0].startswith("gemm_gemm_…") and "128x256" in shown[0] and "256x128" in shown[1]
    assert all(len(text) <= 42 for text in shown)
