"""What every analysis returns: one plain table with units, the window it speaks of, and findings.

Views turn a Result into a terminal table, CSV, JSON or Markdown; no analysis draws or prints.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Unit = Literal["", "ns", "bytes", "count", "percent", "GB/s", "flop", "flop/s"]
Severity = Literal["ok", "info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("ok", "info", "warning", "critical")


@dataclass(frozen=True)
class Column:
    """One column: its machine name (stable, see docs/definitions.md), its unit, and one line of explanation."""

    name: str
    unit: Unit = ""
    help: str = ""
    title: str = ""
    """Heading for people; made from the name where it is empty."""
    per_row_unit: bool = False
    """True where each cell picks its own unit; else the whole column shares one and its heading names it."""
    at_end: bool = False
    """True for names: tables for people show them last, where there is room; machines get the order given."""
    decimals: int | None = None
    """How many digits stand behind the point, in CSV too, where a peer prints so many; None: as the value is."""
    minor: bool = False
    """True for what a narrow table leaves out first."""
    for_machines: bool = False
    """True for what tables for people say in another way: only csv and json have it."""


@dataclass(frozen=True)
class Finding:
    """One sentence with a figure, how bad it is, what it rests on, and the next step."""

    severity: Severity
    title: str
    evidence: str
    ranks: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    """Start and end in ns from the run's start, where the finding can be looked at."""
    hint: str = ""
    cost_ns: int = 0
    """What it costs the job: per step, or in the window where there are no steps. Orders findings."""


@dataclass(frozen=True)
class Result:
    """A named table. Rows are dictionaries keyed by column name; None is 'not known', never 0."""

    name: str
    title: str
    window: str
    """What the figures speak of: 'whole file', or 'steps 3:5'."""
    columns: tuple[Column, ...]
    rows: list[dict[str, Any]]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out and why, what was inferred, which option would record what is missing."""
    layout: str = ""
    """Whose tables the terminal shows it like ('nsys'); empty for our own."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; its names do not change without a major version."""
        return {
            "name": self.name,
            "title": self.title,
            "window": self.window,
            "columns": [{"name": c.name, "unit": c.unit, "help": c.help} for c in self.columns],
            "rows": self.rows,
            "findings": [asdict(finding) for finding in self.findings],
            "notes": list(self.notes),
        }

    def head(self, count: int | None) -> Result:
        """The first `count` rows, with a note on how many are not shown; all of them for None."""
        if count is None or len(self.rows) <= count:
            return self
        hidden = len(self.rows) - count
        note = f"{hidden:,} more rows not shown (--top {len(self.rows)} or --top all shows them)"
        return replace(self, rows=self.rows[:count], notes=(*self.notes, note))
