"""The result of `diff` as JUnit XML, which CI systems display as test cases."""

from __future__ import annotations

import re
from collections.abc import Collection
from xml.sax.saxutils import escape, quoteattr

from rankscope.analysis.core.result import Result, Row

_PROPERTIES = ("predicted_pct", "measured_pct")
# Characters that XML 1.0 cannot represent, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: Result, failed: Collection[tuple[str, str]]) -> str:
    """One test case per row of `diff`; the rows in `failed` (report, key) have failed."""
    cases = [_case(row, (row["report"], row["key"]) in failed) for row in result.rows]
    count = sum((row["report"], row["key"]) in failed for row in result.rows)
    found = [line for finding in result.findings for line in (finding.title, *finding.lines)]
    notes = _text("\n".join([result.window, *found, *result.notes]))
    figures = "".join(
        f'    <property name="{fact.quantity}" value="{fact.value:.1f}"/>\n'
        for finding in result.findings
        for fact in finding.facts
        if fact.quantity in _PROPERTIES
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<testsuite name="rankscope diff" tests="{len(cases)}" failures="{count}" errors="0" skipped="0">\n'
        + (f"  <properties>\n{figures}  </properties>\n" if figures else "")
        + "".join(cases)
        + f"  <system-out>{notes}</system-out>\n</testsuite>\n"
    )


def _case(row: Row, failed: bool) -> str:
    name, group = _attribute(row["key"]), _attribute(f"rankscope.diff.{row['report']}")
    if not failed:
        return f"  <testcase classname={group} name={name}/>\n"
    change = "" if row["change_pct"] is None else f" ({row['change_pct']:+.1f} %)"
    message = _attribute(f"{row['base']} -> {row['new']}{change}")
    detail = _text("\n".join(f"{column}: {value}" for column, value in row.items() if value is not None))
    return (
        f"  <testcase classname={group} name={name}>\n"
        f'    <failure type="slower" message={message}>{detail}</failure>\n  </testcase>\n'
    )


def _text(text: str) -> str:
    return escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))


def _attribute(text: str) -> str:
    return quoteattr(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text))
