"""Evidence ids: where a figure that a finding states can be looked up again.

A whole report is 'stragglers'; 'kernels:name+rank:9c0f2a17' is the row of kernels that has these key columns. The
digest of their values stands in for them, because names of kernels may be long and are not ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rankscope.analysis.core.result import Fact, Result
from rankscope.errors import UsageError
from rankscope.records import dataclass
from rankscope.text.json_values import plain
from rankscope.text.spelling import RENAMED_REPORTS

if TYPE_CHECKING:
    from rankscope.analysis.core.report import Report
    from rankscope.analysis.core.scope import Scope
    from rankscope.timeline.run import Run

_ID = re.compile(r"([a-z_.]+)(?::([a-z_+]+):([0-9a-f]{8}))?")


@dataclass(frozen=True)
class Evidence:
    """An id, taken apart."""

    report: str
    keys: tuple[str, ...] = ()
    digest: str = ""

    def rows_of(self, result: Result) -> Result:
        """The result with the rows that it means alone."""
        if not self.keys:
            return result
        rows = [
            row for row in result.rows if _digest({key: row.get(key) for key in self.keys}) == self.digest
        ]
        return replace(result, rows=rows)

    def __str__(self) -> str:
        return f"{self.report}:{'+'.join(self.keys)}:{self.digest}" if self.keys else self.report


def evidence_id(fact: Fact) -> str:
    """The id of the row that holds a fact; of the report, where it is no figure of a row."""
    keys = tuple(sorted(fact.row))
    return str(Evidence(fact.report, keys, _digest(fact.row) if keys else ""))


def parse_evidence(text: str) -> Evidence:
    match = _ID.fullmatch(text)
    if not match:
        raise UsageError(
            f"'{text[:80]}' is not an evidence id",
            why="It is the name of a report, or looks like kernels:name+rank:9c0f2a17.",
            hint="Use an id of the list `evidence` of another answer.",
        )
    report = RENAMED_REPORTS.get(match[1], match[1])
    return Evidence(report, tuple(match[2].split("+")) if match[2] else (), match[3] or "")


def looked_up(evidence: Evidence, report: Report, run: Run, scope: Scope) -> Result:
    """The rows that an id means, split by the key that has them."""
    for by in (None, *(key for key in report.keys if key in evidence.keys)):
        result = evidence.rows_of(report.analyse(run, scope, by))
        if result.rows or not evidence.keys:
            return result
    raise UsageError(
        f"{evidence} is not in this run",
        why=f"No row of {evidence.report} has these values.",
        hint="Use an id of an answer about the same run, steps and ranks.",
    )


def _digest(row: Mapping[str, Any]) -> str:
    text = json.dumps(plain(dict(row)), sort_keys=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()
