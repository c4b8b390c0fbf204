"""Every report has a page, and a table of its columns."""

from __future__ import annotations

import re

from conftest import ROOT
from rankscope.analysis import REPORTS


def test_every_report_has_a_page() -> None:
    index = (ROOT / "docs" / "reports.md").read_text(encoding="utf-8")
    pages = dict(re.findall(r"^\| \[([^]]+)\]\((reports/[a-z_-]+\.md)[#)]", index, re.MULTILINE))
    listed = {name.strip() for names in pages for name in names.split(",")}
    assert set(REPORTS) - listed == set()
    for page in pages.values():
        assert (ROOT / "docs" / page).read_text(encoding="utf-8").startswith("# ")


def test_the_columns_of_every_report_are_listed() -> None:
    """That they are those of the code, tests/cli/test_commands.py asserts."""
    text = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    assert set(re.findall("^## (.+)", text, re.MULTILINE)) == set(REPORTS) - {"layout"}
