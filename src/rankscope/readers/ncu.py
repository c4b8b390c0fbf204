"""Nsight Compute: .ncu-rep, read with ncu, and the csv that ncu prints.

A report has no timestamps, so its kernels are not events. They go into the tables ncu_kernels and ncu_metrics.
Values are converted to base units without prefixes: ns, byte, byte/s, hz, …
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope import tools
from rankscope.errors import NotATraceError, ReadError, ToolError
from rankscope.model import NCU_KERNELS, NCU_METRICS, READ_EVENTS
from rankscope.readers.base import EventBatch, Reader, ReadReport
from rankscope.readers.byte_stream import read_head
from rankscope.readers.row_batch import RowBatch, TablesReading
from rankscope.text.run_words import shell_word

REPORT_MAGIC = b"NVR\x00"
_LARGEST_CSV = 1 << 30
_TIMEOUT_SECONDS = 600


class NcuReading(TablesReading):
    """One report: no events, two tables."""

    def batches(self) -> Iterator[EventBatch]:
        if self._path.name.endswith(".ncu-rep"):
            content = _raw_page(self._path)
        else:
            content, self.report.damage = read_head(self._path, _LARGEST_CSV, lines=True)
        kernels = [*enumerate(read_csv(csv_text(content), str(self._path), self.report))]
        metrics = (
            {"kernel": number, "metric": metric, "value": value, "unit": unit, "text": text}
            for number, kernel in kernels
            for metric, (value, unit, text) in kernel.metrics.items()
        )
        rows = (_kernel_row(number, kernel) for number, kernel in kernels)
        self.tables = [(NCU_KERNELS, rows), (NCU_METRICS, metrics)]
        yield RowBatch(READ_EVENTS, ())  # every segment has the table


class NcuReader(Reader):
    """Recognises reports by their first bytes, and csv by its header."""

    name = "ncu"
    reading = NcuReading

    def recognises(self, path: Path, head: bytes) -> bool:
        is_report = path.name.endswith(".ncu-rep") or head.startswith(REPORT_MAGIC)
        return is_report or HEADER.search(head) is not None


NCU = NcuReader()


def _kernel_row(number: int, kernel: MeasuredKernel) -> dict[str, Any]:
    about = kernel.about
    return {
        "kernel": number,
        "name": kernel.name,
        "grid": _dimensions(about.get("Grid Size", "")),
        "block": _dimensions(about.get("Block Size", "")),
        "device": _integer(about.get("Device", "")),
        "context": _integer(about.get("Context", "")),
        "stream": _integer(about.get("Stream", "")),
        "process_id": _integer(about.get("Process ID", "")),
        "compute_capability": about.get("CC"),
    }


def _dimensions(text: str) -> list[int] | None:
    numbers = [int(number) for number in re.findall(r"\d{1,10}", text)]
    return numbers if len(numbers) == 3 else None


def _integer(text: str) -> int | None:
    digits = text.strip().replace(",", "")
    return int(digits) if re.fullmatch(r"\d{1,18}", digits) else None


def _raw_page(path: Path) -> bytes:
    """Of a report, as ncu prints it."""
    try:
        tool = tools.find_tool("ncu", os.environ.get(tools.NCU_VARIABLE))
    except ToolError as missing:
        raise ReadError(
            f"cannot read {path} without Nsight Compute",
            why=f"{missing.why} Only ncu can read its format.",
            hint=f"Load the module or give --ncu PATH; or convert it where ncu is installed: "
            f"ncu --import {shell_word(path.name)} --csv --page raw > {shell_word(path.stem + '.csv')}",
        ) from missing
    command = tools.ncu_raw_page(tool, path)
    try:
        answer = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ReadError(
            f"cannot run {tool.path}", why=f"{error}.", hint=f"Try it: {tool.path} --version"
        ) from error
    errors = [
        line for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.startswith("==ERROR==")
    ]
    if answer.returncode or errors:
        errors += answer.stderr.decode("utf-8", "replace").strip().splitlines()
        version = ".".join(map(str, tool.version)) or "of unknown version"
        why = errors[0].removeprefix("==ERROR==").strip() if errors else f"exit code {answer.returncode}"
        raise ReadError(
            f"ncu cannot read {path}",
            why=f"ncu {version}: {why.rstrip('.')}.",
            hint="The file is damaged, or from a newer Nsight Compute: use that one (--ncu PATH), or capture again.",
        )
    return answer.stdout


_KEYS = {"ID", "Kernel Name"}
_DETAILS = {"Metric Name", "Metric Unit", "Metric Value"}
_ABOUT = {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"}
_ABOUT |= {"Grid Size", "Device", "CC", "Kernel Time"}
HEADER = re.compile(rb'^"?ID"?,"?Process ID"?,', re.MULTILINE)
_LARGEST_CELL = 16 << 20

# Display names of the details page, and the metrics of the raw page with the same values.
_RAW_NAMES = {
    ("Duration", "ns"): "gpu__time_duration.sum",
    ("Memory Throughput", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory Throughput", "byte/s"): "dram__bytes.sum.per_second",
    ("DRAM Throughput", "%"): "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ("Compute (SM) Throughput", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SM [%]", "%"): "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    ("Memory [%]", "%"): "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    ("L2 Cache Throughput", "%"): "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    ("SM Frequency", "hz"): "gpc__cycles_elapsed.avg.per_second",
    ("DRAM Frequency", "hz"): "dram__cycles_elapsed.avg.per_second",
    ("Elapsed Cycles", "cycle"): "gpc__cycles_elapsed.max",
    ("Achieved Occupancy", "%"): "sm__warps_active.avg.pct_of_peak_sustained_active",
    ("Theoretical Occupancy", "%"): "sm__maximum_warps_per_active_cycle_pct",
    ("Registers Per Thread", "register/thread"): "launch__registers_per_thread",
}

_TIME = {
    "s": 1e9,
    "second": 1e9,
    "ms": 1e6,
    "msecond": 1e6,
    "us": 1e3,
    "usecond": 1e3,
    "ns": 1.0,
    "nsecond": 1.0,
}
"""In nanoseconds; ncu 2024 writes usecond, ncu 2025 us."""
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)}
_BYTES = re.compile(r"([KMGTP]i?)?(byte|hz|bit)s?", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?")


@dataclass
class MeasuredKernel:
    """One kernel of a report and its metrics."""

    name: str
    about: dict[str, str]
    metrics: dict[str, tuple[float | None, str, str]] = field(default_factory=dict)
    """Value in its base unit, that unit, and the text in the report."""


def read_csv(text: Iterable[str], where: str, report: ReadReport) -> list[MeasuredKernel]:
    """The kernels of either page. Output of the profiled program between the rows is skipped."""
    csv.field_size_limit(_LARGEST_CELL)
    rows = csv.reader(text)
    try:
        header = next((row for row in rows if set(row) >= _KEYS), None)
        if header is None:
            raise NotATraceError(
                f"{where} is not a csv of Nsight Compute",
                why="It has no row with ID and Kernel Name.",
                hint="Make one: ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv",
            )
        kernels = _details(header, rows, report) if set(header) >= _DETAILS else _raw(header, rows, report)
    except csv.Error as error:
        raise ReadError(
            f"cannot read {where}",
            why=f"It is not csv: {error}.",
            hint="Make it again: ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv",
        ) from error
    if not kernels:
        raise ReadError(
            f"{where} has no kernels",
            why="No row below its header could be read.",
            hint="Check that the -k filter of ncu matches a kernel.",
        )
    return kernels


def _raw(header: list[str], rows: Iterator[list[str]], report: ReadReport) -> list[MeasuredKernel]:
    units = next(rows, None)
    if units is None or len(units) != len(header) or units[header.index("ID")].strip():
        raise ReadError(
            "the csv has no row of units",
            why="In the raw page of ncu, the row below the header has the units of the columns.",
            hint="Make it again: ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv",
        )
    kernels = []
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            report.lose(f"a row has {len(row)} cells, the header {len(header)}")
            continue
        about = {name: cell for name, cell in zip(header, row, strict=True) if name in _ABOUT}
        kernel = MeasuredKernel(about["Kernel Name"], about)
        for name, unit, cell in zip(header, units, row, strict=True):
            if name not in _ABOUT and cell:
                kernel.metrics[name] = (*base_value(cell, unit), cell)
        kernels.append(kernel)
    return kernels


def _details(header: list[str], rows: Iterator[list[str]], report: ReadReport) -> list[MeasuredKernel]:
    at = {name: index for index, name in enumerate(header)}
    needed = max(at[name] for name in (*_KEYS, *_DETAILS))
    kernels: dict[tuple[str, str], MeasuredKernel] = {}
    for row in rows:
        if len(row) <= needed:
            if row:
                report.lose(f"a row has {len(row)} cells, the header {len(header)}")
            continue
        about = {name: row[index] for name, index in at.items() if name in _ABOUT}
        kernel = kernels.setdefault(
            (about.get("Process ID", ""), about["ID"]), MeasuredKernel(about["Kernel Name"], about)
        )
        name, text = row[at["Metric Name"]], row[at["Metric Value"]]
        if name and text:
            value, unit = base_value(text, row[at["Metric Unit"]])
            kernel.metrics[_RAW_NAMES.get((name, unit), name)] = (value, unit, text)
    return list(kernels.values())


def csv_text(content: bytes) -> io.StringIO:
    return io.StringIO(content.decode("utf-8", "replace"), newline="")


def base_value(text: str, unit: str) -> tuple[float | None, str]:
    """The value in its base unit, and that unit: '0.887340', 'Tbyte/s' is (887340000000.0, 'byte/s').

    None for text that is not a number.
    """
    number = _number(text)
    above, slash, below = unit.strip().partition("/")
    factor, base = _base_of_part(above)
    if slash:
        divisor, base_below = _base_of_part(below)
        if base_below == "ns":  # rates are per second
            divisor, base_below = divisor / 1e9, "s"
        factor, base = factor / divisor, f"{base}/{base_below}"
    return (None if number is None else number * factor), "hz" if base == "cycle/s" else base


def _number(text: str) -> float | None:
    """A number with thousands separators, followed by its instances or not: '5 (1; 2; 2)' is 5."""
    match = _NUMBER.match(text.strip())
    if not match or text.strip()[match.end() :].strip()[:1] not in ("", "("):
        return None
    return float(match[0].replace(",", ""))


def _base_of_part(text: str) -> tuple[float, str]:
    if text in _TIME:
        return _TIME[text], "ns"
    match = _BYTES.fullmatch(text)
    if match:
        prefix = (match[1] or "").replace("k", "K").replace("I", "i")
        return _PREFIXES.get(prefix, 1.0), match[2].lower()
    return 1.0, text
