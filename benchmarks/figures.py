"""What a benchmark measured: kept as JSON, shown as one table of ratios, compared with the last committed figures."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from measure import Cost

OURS = "rankscope ingest"
JSON_LOAD = "json.load"
SCANNER = "the C scanner alone"
TOLERANCE = 0.10
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


@dataclass(frozen=True)
class Row:
    """One program, one input."""

    input: str
    program: str
    cost: Cost
    size_bytes: int = 0
    events: int = 0


@dataclass
class Part:
    """Rows that were measured one after the other; `base` is the program that has the ratio 1 for each input."""

    name: str
    title: str
    base: str
    date: str = ""
    load_before: float = 0.0
    load_after: float = 0.0
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    grid: bool = False
    """Shown with a column for each input and a line for each program."""
    facts: dict[str, dict[str, float]] = field(default_factory=dict)
    """By input: what was counted besides, such as the bytes of a store."""

    def find(self, input_name: str, program: str) -> Row | None:
        return next((row for row in self.rows if (row.input, row.program) == (input_name, program)), None)


@dataclass
class Figures:
    machine: dict[str, str]
    parts: dict[str, Part]


def load(path: Path) -> Figures:
    stored = json.loads(path.read_text(encoding="utf-8"))
    parts = {}
    for name, part in stored["parts"].items():
        rows = [Row(**{**row, "cost": Cost(**row["cost"])}) for row in part.pop("rows")]
        parts[name] = Part(**part, rows=rows)
    return Figures(stored["machine"], parts)


def save(figures: Figures, path: Path) -> None:
    content = {
        "machine": figures.machine,
        "parts": {name: _rounded(asdict(part)) for name, part in figures.parts.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def slower(
    last: Part, now: Part, tolerance: float = TOLERANCE, references: Sequence[str] = (JSON_LOAD,)
) -> list[str]:
    """A line for each input whose CPU time, as a ratio to that of a reference in the same run, has grown by more."""
    lines = []
    for name, reference in product(dict.fromkeys(row.input for row in now.rows), references):
        before, after = (_cpu_ratio(part, name, OURS, reference) for part in (last, now))
        if before is not None and after is not None and after > before * (1 + tolerance):
            lines.append(
                f"{name}: {OURS} needs {after:.3f} of the CPU time of {reference}; it was {before:.3f} "
                f"({100 * (after / before - 1):.0f} % more)"
            )
    return lines


def _cpu_ratio(part: Part, input_name: str, program: str, reference: str) -> float | None:
    row, base = part.find(input_name, program), part.find(input_name, reference)
    return row.cost.cpu_seconds / base.cost.cpu_seconds if row and base else None


COLUMNS = (
    "input",
    "program",
    "time",
    "CPU",
    "memory",
    "MB/s",
    "CPU an event",
    "time ratio",
    "CPU ratio",
    "CPU, scanner = 1",
)


def cells(part: Part) -> list[tuple[str, ...]]:
    """The rows of a part as text, in the order of COLUMNS."""
    return [_cells(part, row) for row in part.rows]


def _cells(part: Part, row: Row) -> tuple[str, ...]:
    cost, base = row.cost, part.find(row.input, part.base)
    to_scanner = _cpu_ratio(part, row.input, row.program, SCANNER)
    return (
        row.input,
        row.program,
        _seconds(cost.seconds),
        _seconds(cost.cpu_seconds),
        f"{cost.peak_bytes / 1e9:.2f} GB",
        f"{row.size_bytes / 1e6 / cost.seconds:,.0f}" if row.size_bytes else "",
        f"{cost.cpu_seconds / row.events * 1e6:.2f} µs" if row.events else "",
        _ratio(cost.seconds / base.cost.seconds) if base else "",
        _ratio(cost.cpu_seconds / base.cost.cpu_seconds) if base else "",
        _ratio(to_scanner) if to_scanner else "",
    )


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 10 else f"{value:.2f} s" if value >= 1 else f"{value:.3f} s"


def _ratio(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plain_table(parts: Sequence[Part]) -> str:
    """For a terminal: all parts below each other, as wide as they need."""
    table = [COLUMNS, *(line for part in parts for line in cells(part))]
    widths = [max(len(line[number]) for line in table) for number in range(len(COLUMNS))]

    def aligned(line: tuple[str, ...]) -> str:
        padded = [
            text.ljust(width) if number < 2 else text.rjust(width)
            for number, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(aligned(line) for line in table)


def part_table(part: Part) -> list[str]:
    """In Markdown. Columns that no row fills are left out."""
    lines = grid(part) if part.grid else [COLUMNS, *cells(part)]
    filled = [number for number in range(len(lines[0])) if any(line[number] for line in lines[1:])]
    shown = [[line[number] for number in filled] for line in lines]
    rule = "|" + "---|" * len(filled)
    first, *rest = ("| " + " | ".join(line) + " |" for line in shown)
    return [first, rule, *rest]


def grid(part: Part) -> list[tuple[str, ...]]:
    """A line for each program, a column for each input by its size; time, CPU time and memory in each cell."""
    inputs = sorted({row.input for row in part.rows}, key=lambda name: _largest(part, name))
    programs = list(dict.fromkeys(row.program for row in part.rows))
    programs.sort(key=lambda name: int((re.match(r"\d+", name) or "0")[0]))
    lines: list[tuple[str, ...]] = [("", *inputs)]
    for program in programs:
        rows = [part.find(name, program) for name in inputs]
        lines.append((program, *(_cost_text(row) if row else "" for row in rows)))
    return lines


def _largest(part: Part, input_name: str) -> int:
    return max(row.size_bytes for row in part.rows if row.input == input_name)


def _cost_text(row: Row) -> str:
    cost = row.cost
    each = f" ({cost.cpu_seconds / row.events * 1e6:.2f} µs an event)" if row.events else ""
    return f"{_seconds(cost.seconds)}; {_seconds(cost.cpu_seconds)} CPU{each}; {cost.peak_bytes / 1e9:.2f} GB"


def serial_seconds(part: Part, input_name: str) -> float | None:
    """By Amdahl's law, from one core and the most: what no further core shortens."""
    rows = [row for row in part.rows if row.input == input_name and row.program[0].isdigit()]
    times = {int(row.program.split()[0]): row.cost.seconds for row in rows}
    most = max(times, default=1)
    return None if most == 1 or 1 not in times else (most * times[most] - times[1]) / (most - 1)


def markdown(figures: Figures) -> str:
    """The measured part of docs/performance.md."""
    lines = ["| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in figures.machine.items()]
    for part in figures.parts.values():
        lines += ["", f"### {part.title}", "", *part_table(part)]
        lines += ["", _circumstances(part, int(figures.machine["cores"]))]
        lines += [f"\n{note}." for note in part.notes]
    return "\n".join(lines)


def _circumstances(part: Part, cores: int) -> str:
    base = f"Ratio 1: {part.base}. " if part.base else ""
    load_text = f"{part.date}; load {part.load_before:.1f} before, {part.load_after:.1f} after."
    rough = " Other programs were running: these figures are rough." if was_busy(part, cores) else ""
    return base + load_text + rough


def was_busy(part: Part, cores: int) -> bool:
    """Whether other programs ran. What was measured just before is in the load, too, and fills all cores at most."""
    return part.load_before > cores + 1


def write_between_markers(path: Path, text: str) -> None:
    page = path.read_text(encoding="utf-8")
    pattern = re.escape(_BEGIN) + ".*" + re.escape(_END)
    found, count = re.subn(pattern, lambda _: f"{_BEGIN}\n{text}\n{_END}", page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{path} needs the markers {_BEGIN} and {_END} exactly once")
    path.write_text(found, encoding="utf-8")
