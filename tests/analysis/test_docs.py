"""Every report has a page, and docs/definitions.md lists its columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from conftest import DATA, ROOT
from rankscope.analysis import REPORTS
from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run


def test_every_report_has_a_page() -> None:
    index = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    pages = dict(re.findall(r"^\| \[([^]]+)\]\((reports/[a-z_-]+\.md)[#)]", index, re.MULTILINE))
    listed = {name.strip() for names in pages for name in names.split(",")}
    assert set(REPORTS) - listed == set()
    for page in pages.values():
        assert (ROOT / "docs" / page).read_text(encoding="utf-8").startswith("# ")


def test_definitions_list_the_columns_of_every_report(open_real: Callable[[Path], Run]) -> None:
    run = open_real(DATA / "seqpar-gloo4-slow2")
    text = (ROOT / "docs" / "definitions.md").read_text(encoding="utf-8").partition("## Column names")[2]
    listed: dict[str, list[str]] = {}
    for names, columns in re.findall(r"^\| ([a-z_., ]+) \| ([a-z].+) \|$", text, re.MULTILINE):
        plain = re.sub(r"\([^)]*\)", "", columns)
        listed |= {name.strip(): [column.strip() for column in plain.split(",")] for name in names.split(",")}
    for name in set(REPORTS) - {"layout"}:  # its columns depend on the run
        columns = REPORTS[name].analyse(run, Scope(), None).columns
        assert listed.get(name) == [column.name for column in columns], name
