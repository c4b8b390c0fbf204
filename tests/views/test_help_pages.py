"""Each kind of finding has a page: its name is data, its text is in the terminal, in JSON, report and viewer."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from rankscope.analysis.core import finding_pages
from rankscope.analysis.core.result import Fact, Finding, Result
from rankscope.units import display_width
from rankscope.views.envelope import finding_dict
from rankscope.views.help_pages import page_names, page_text

MAPS = (finding_pages.OF_REPORTS, finding_pages.OF_FACTS, finding_pages.OF_FAULTS)


def fault(axis: str, cause: str, how: str, *more: Fact) -> Finding:
    row = {"axis": axis, "subject": "2"} if axis else {}
    facts = (Fact("cause", cause, row=row), Fact("how", how, row=row), *more)
    return Finding("warning", "Rank 2 costs 3 ms", facts=facts, report="faults")


def test_each_page_is_that_of_a_finding() -> None:
    pages = {page for each in MAPS for page in each.values()} | {finding_pages.OTHER_WORK}
    assert page_names() == sorted(pages)
    listed = re.findall(
        r"^\| \[[a-z-]+\]\(([a-z-]+)\.md\) \|", (ROOT / "docs/findings/index.md").read_text(), re.M
    )
    assert sorted(listed) == page_names()


@pytest.mark.parametrize("name", page_names())
def test_a_page_fits_a_terminal(name: str) -> None:
    for width in (80, 60):
        text = page_text(name, width)
        assert text and not re.search(r"```|\]\(|<!--|^#|\*\*", text, re.M)
        printed = False
        for line in text.splitlines():
            printed = line.startswith("$ ") or (printed and line != "What to do")
            assert printed or display_width(line) <= width, line
        order = ["What it looks like", "$ rankscope ", "What to do", "- ", "When it is wrong"]
        assert [text.index(f"\n{each}") for each in order] == sorted(
            text.index(f"\n{each}") for each in order
        )


def test_a_page_is_short() -> None:
    for path in (ROOT / "docs" / "findings").glob("*.md"):
        prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert path.stem == "index" or 90 <= len(prose.split()) <= 200, path.name


def test_an_unknown_page_has_no_text() -> None:
    assert page_text("nothing") is None and page_text("../definitions") is None and page_text("index") is None


@pytest.mark.parametrize(
    ("finding", "page"),
    [
        (fault("rank", "compute", "extra"), "slow-rank"),
        (fault("rank", "compute", "slower x1.30"), "slow-device"),
        (fault("rank", "host", "slower x1.30"), "slow-core"),
        (fault("rank", "host", "pause", Fact("thread_runs_ns", 5)), "slow-core"),
        (fault("rank", "host", "pause"), "host-pause"),
        (fault("rank", "contention", "longer"), "few-cores"),
        (fault("step", "host", "pause"), "slow-step"),
        (fault("stage", "compute", "extra"), "slow-stage"),
        (fault("link", "link", "longer"), "slow-link"),
        (fault("", "host", "pause"), "uneven-work"),
        (fault("rank", "compute", "longer", Fact("all_to_all_load", 1.3)), "uneven-work"),
        (Finding("limit", "Host gaps", report="idle"), "host-gaps"),
        (Finding("warning", "grows", facts=(Fact("growth_bytes", 1),), report="memory"), "memory-growth"),
        (Finding("warning", "full", report="memory"), "memory-full"),
        (Finding("ok", "No clear change", report="diff"), ""),
        (Finding("info", "With it, a step would take less", report="whatif"), ""),
    ],
)
def test_the_page_of_a_finding(finding: Finding, page: str) -> None:
    assert finding.page == page


def test_json_has_the_page() -> None:
    """Also of a finding that does not state its report."""
    result = Result("doctor", "", "", (), ())
    assert finding_dict(Finding("warning", "lost"), result, {}, None)["page"] == "doubtful-recording"
