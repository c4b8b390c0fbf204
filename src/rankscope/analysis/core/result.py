"""What every analysis returns: a table with units, the window it covers, and findings.

Views turn a Result into a terminal table, CSV, JSON or Markdown; no analysis draws or prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, overload

from rankscope.analysis.core.finding_pages import finding_page
from rankscope.analysis.core.words import WORDS, value_text
from rankscope.records import dataclass
from rankscope.text.run_words import shell_words

Unit = Literal["", "ns", "bytes", "count", "percent", "GB/s", "flop", "flop/s", "MHz", "W", "°C"]
Severity = Literal["ok", "limit", "info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("ok", "limit", "info", "warning", "critical")
PROBLEMS: tuple[Severity, ...] = ("warning", "critical")
Kind = Literal["fault", "limit", "health"]


@dataclass(frozen=True)
class Column:
    """One column: its machine name (stable, see docs/definitions.md), its unit, and one line of explanation."""

    name: str
    unit: Unit = ""
    help: str = ""
    title: str = ""
    """Heading in tables for people; derived from the name where it is empty."""
    at_end: bool = False
    """True for long texts: tables for people show them last. CSV and JSON keep the given order."""
    decimals: int | None = None
    """Digits after the decimal point, in CSV too, of the unit itself; None: as many as the values need, in CSV
    all."""
    minor: bool = False
    """True for columns that a narrow table leaves out first."""
    for_machines: bool = False
    """True for columns that only CSV and JSON contain."""
    verbatim: bool = False
    """True where a table shows texts as they are, not as short names: the answers to the user's own SQL."""


@dataclass(frozen=True)
class Fact:
    """One figure that a finding states, and where it can be looked up."""

    quantity: str
    """Its machine name: the column that holds it, where a column does."""
    value: int | float | str | None
    unit: Unit = ""
    subject: str = ""
    """Of whom it is the figure: 'rank 2', 'the median rank', 'all ranks'."""
    ranks: tuple[int, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The key columns of the row that holds it."""
    report: str = ""
    """The report that has this row; filled in from the Result, as is the window."""
    window: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"row": dict(self.row)}


Change = Literal[
    "host gaps gone",
    "data ready",
    "syncs gone",
    "communication hidden",
    "copies gone",
    "calls merged",
    "calls faster",
    "kernels faster",
]
"""The changes that whatif can replay (critical_path/scenarios.py)."""


@dataclass(frozen=True)
class Remedy:
    """The change that would remove the cause of a finding: what `whatif` then saves is the finding's cost."""

    change: Change
    names: tuple[str, ...] = ()
    """The kernels, calls or copies that change; of calls their group and kind."""
    factor: float = 1.0
    """How many times as fast they become; how many calls become one."""
    latency_ns: float = 0.0
    """What a merged call need not wait for."""
    most_bytes: int | None = None
    """Only calls up to this size are merged; only those of this size become faster."""
    most_ns: float | None = None
    """Per step: the saving is not counted above this, where the finding's own table sets a limit."""


_SAME = 0.02
"""A cost and the cost alone that differ by less are told as one."""
_MOST_LINES = 5


@dataclass(frozen=True)
class Finding:
    """What is wrong, or what could be saved: its title, its severity, the evidence and the next step."""

    severity: Severity
    title: str
    ranks: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    """Where it can be seen in the timeline: start and end in ns from the run's start."""
    advice: str = ""
    """What to do, without a command."""
    cost_ns: int | None = None
    """Time that would be saved per step (in the window, where there are no steps) if the cause were gone, in addition
    to what findings before it claim; None where whatif cannot tell. Of a limit it is filled in from `remedy`, as is
    alone_ns (limits.py)."""
    facts: tuple[Fact, ...] = ()
    """The figures behind the text."""
    remedy: Remedy | None = None
    report: str = ""
    """The report that found it; filled in from the Result."""
    names: tuple[str, ...] = ()
    """Names out of the trace in its texts that no fact holds. Whoever must tell them from our own words quotes them."""
    why: str = ""
    """The end of the title, after a colon or semicolon, where that states the cause: a headline shows it apart."""
    cost_pct: float | None = None
    """The cost, of the mean step."""
    alone_ns: int | None = None
    """The same without other findings: what `whatif` says."""
    subject: str = ""
    """Of a fault: what is compared, and whose it is: 'rank 2', 'stage 1', 'step 7'."""
    steps: tuple[int, ...] = ()
    """Of a fault: in which steps it is late; none: in all."""
    command: tuple[str, ...] = ()
    """The words of a command that goes on from the advice; RUN, BASE and NEW stand for the paths of runs."""

    @property
    def hint(self) -> str:
        """The advice and its command in one line."""
        if not self.command:
            return self.advice
        return f"{self.advice.rstrip('.')}: {shell_words(self.command)}"

    @property
    def stated(self) -> dict[str, Fact]:
        """What the facts say, at most five: 'SM clock: 1,200 MHz, rank 2'; each with its fact. What the title states is
        not repeated."""
        lines: dict[str, Fact] = {}
        if self.cost_ns and self.alone_ns and abs(self.alone_ns - self.cost_ns) > _SAME * self.alone_ns:
            alone = Fact("alone_ns", self.alone_ns, "ns")
            lines[f"alone it would save: {value_text('', alone.value, 'ns')}"] = alone
        for fact in self.facts:
            value = value_text(fact.quantity, fact.value, fact.unit)
            if fact.quantity in WORDS and value and f" {value}" not in f" {self.title}":
                whom = f", {fact.subject}" if fact.subject not in ("", self.subject) else ""
                what = WORDS[fact.quantity]
                line = f"{what}: {value}{whom}" if what else f"{fact.subject}: {value}".lstrip(": ")
                lines.setdefault(line, fact)
        return dict([*lines.items()][:_MOST_LINES])

    @property
    def lines(self) -> list[str]:
        """The same as text."""
        return [*self.stated]

    @property
    def evidence(self) -> str:
        """The same in one line."""
        return "; ".join(self.lines)

    @property
    def kind(self) -> Kind:
        """A fault: as its peers are, it would cost nothing. A limit: what could be saved at most. Else something
        broke, or the recording is in doubt."""
        if self.severity == "limit":
            return "limit"
        return "fault" if self.report == "faults" else "health"

    @property
    def accuses(self) -> bool:
        """Whether the first sentence about the run may be about it."""
        return self.kind == "fault" or (self.kind == "health" and self.severity in PROBLEMS)

    @property
    def page(self) -> str:
        """The page of docs/findings that explains it; empty where it needs none."""
        return "" if self.severity == "ok" else finding_page(self.report, self.facts)

    @property
    def headline(self) -> str:
        """The title without the cause."""
        return self.title[: -len(f"; {self.why}")] if self.why else self.title

    @property
    def uncapitalised(self) -> str:
        """The title within a sentence. Names out of the trace and abbreviations stay as they are."""
        first = self.title.partition(" ")[0]
        is_name = any(self.title.startswith(name) for name in self.names if name)
        if is_name or first[1:] != first[1:].lower():
            return self.title
        return self.title[:1].lower() + self.title[1:]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        left_out = ("facts", "remedy", "names", "why")
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        facts = [fact.to_dict() for fact in self.facts]
        texts = {"evidence": self.evidence, "lines": self.lines, "hint": self.hint}
        return {"kind": self.kind, "page": self.page} | values | texts | {"facts": facts}

    def fact(self, quantity: str) -> Fact | None:
        """The first fact about a quantity."""
        return next((fact for fact in self.facts if fact.quantity == quantity), None)


def argv(command: str, *more: str) -> tuple[str, ...]:
    """The words of a command; `more` are those that may have spaces in them."""
    return (*command.split(), *more)


@dataclass(frozen=True)
class Why:
    """The cause of a delay."""

    text: str
    """What follows 'rank 2 costs 10.6 ms per step; ': a clause without the subject's name."""
    advice: str = ""
    facts: tuple[Fact, ...] = ()
    names: tuple[str, ...] = ()
    """Names out of the trace in these texts that no fact holds."""
    report: str = ""
    """Where its cause can be seen in detail."""
    command: tuple[str, ...] = ()
    """That goes on from the advice."""
    kind: str = ""
    """Where the class of the work does not tell the cause: 'contention'."""


class NoteKind(Enum):
    """What code decides by a note."""

    LEFT_OUT = "left out"
    """What the table does not contain. It is not the reason why a table is empty."""
    IN_GRAPHS = "in graphs"
    """Why MFU is not known: kernels run in CUDA graphs."""
    UNEXPLAINED = "unexplained"
    """How much of the time a replay cannot explain, and keeps."""


class Note(str):
    """A note that code decides something by: its kind, never its words. All others are plain strings."""

    kind: NoteKind | None = None

    @classmethod
    def of(cls, kind: NoteKind, text: str) -> Note:
        note = cls(text)
        note.kind = kind
        return note


def left_out_note(text: str) -> Note:
    return Note.of(NoteKind.LEFT_OUT, f"left out: {text}")


def note_kind(note: str) -> NoteKind | None:
    return note.kind if isinstance(note, Note) else None


def reworded(note: str, text: str) -> str:
    """The note with another text."""
    kind = note_kind(note)
    return Note.of(kind, text) if kind else text


Row = Mapping[str, Any]
"""By column name. The type of a value depends on its column; None means 'not known', never 0."""


class ColumnRows(Sequence[Row]):
    """Rows that exist only while they are looked at: a table of a million names shows twenty."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        """`columns` are arrays of the same length."""
        self._columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> ColumnRows: ...

    def __getitem__(self, at: int | slice) -> Row | ColumnRows:
        if isinstance(at, slice):
            return ColumnRows({name: values[at] for name, values in self._columns.items()})
        return MappingProxyType(
            {name: values[at : at + 1 or None].tolist()[0] for name, values in self._columns.items()}
        )

    def __iter__(self) -> Iterator[Row]:
        for row in zip(*(values.tolist() for values in self._columns.values()), strict=True):
            yield MappingProxyType(dict(zip(self._columns, row, strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Result:
    """A named table. It cannot be changed: the run's cache returns the same Result again."""

    name: str
    title: str
    window: str
    """What the figures cover: 'whole file', or 'steps 3:5'."""
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    """A tuple of read-only mappings, whatever sequence of mappings it is made from; or ColumnRows, as they are."""
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out and why, what was inferred, which option would record what is missing."""
    layout: str = ""
    """The tool whose tables the terminal imitates ('nsys'); empty for our own."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Figures of the whole run, by machine name: 'step_ns'."""
    unknown: str | None = None
    """Why the recording does not answer the question; empty where it does, even by an empty table. None: it does unless
    the table is empty and nothing was found."""
    hidden: int = 0
    """Rows that `head` left out."""

    def __post_init__(self) -> None:
        if isinstance(self.rows, ColumnRows):
            return
        rows = tuple(row if type(row) is MappingProxyType else MappingProxyType(row) for row in self.rows)
        object.__setattr__(self, "rows", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Read-only mappings cannot be pickled; dictionaries can."""
        values = [getattr(self, field.name) for field in fields(self)]
        return type(self), tuple(list(map(dict, value)) if value is self.rows else value for value in values)

    @property
    def unanswered(self) -> str:
        """Why the recording does not answer the question; empty where it does."""
        if self.unknown is not None:
            return self.unknown
        if self.rows or any(finding.severity != "ok" for finding in self.findings):
            return ""
        reasons = [note for note in self.notes if note_kind(note) is not NoteKind.LEFT_OUT]
        return "; ".join(reasons) or "nothing was recorded that it could be computed from"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; its names do not change without a major version."""
        return {
            "name": self.name,
            "title": self.title,
            "window": self.window,
            "columns": [{"name": c.name, "unit": c.unit, "help": c.help} for c in self.columns],
            "facts": dict(self.facts),
            "rows": [dict(row) for row in self.rows],
            "findings": [finding.to_dict() for finding in self.findings],
            "notes": list(self.notes),
        }

    def placed(self) -> Result:
        """Its findings and their facts with the report and the window that they are of."""
        findings = (
            replace(
                finding,
                report=self.name,
                facts=tuple(
                    replace(fact, report=fact.report or self.name, window=fact.window or self.window)
                    for fact in finding.facts
                ),
            )
            for finding in self.findings
        )
        return replace(self, findings=tuple(findings))

    def head(self, count: int | None) -> Result:
        """The first `count` rows, with a note on how many are not shown; all of them for None."""
        if count is None or len(self.rows) <= count:
            return self
        hidden = len(self.rows) - count
        note = f"{hidden:,} more rows not shown (--top {len(self.rows)} or --top all shows them)"
        return replace(self, rows=self.rows[:count], notes=(*self.notes, note), hidden=hidden)


def query_result(
    names: Sequence[str], rows: Iterable[Sequence[Any]], more: bool, notes: tuple[str, ...] = ()
) -> Result:
    """What an SQL query gave; `more`: it has further rows. Names that `SELECT a.*, b.*` repeats get a number."""
    distinct = [name if name not in names[:at] else f"{name}_{at}" for at, name in enumerate(names)]
    columns = tuple(Column(name, title=name, verbatim=True) for name in distinct)
    records = [dict(zip(distinct, row, strict=True)) for row in rows]
    return Result("query", "Query", "whole file", columns, records, notes=notes, unknown="", hidden=int(more))
