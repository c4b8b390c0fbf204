"""The csv that ncu prints: the raw page (a row a kernel, units in row two) and the details page (a row a metric)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rankscope.errors import NotATraceError, ReadError
from rankscope.readers.base import ReadReport

_KEYS = {"ID", "Kernel Name"}
_DETAILS = {"Metric Name", "Metric Unit", "Metric Value"}
_ABOUT = {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size"}
_ABOUT |= {"Grid Size", "Device", "CC", "Kernel Time"}
HEADER = re.compile(rb'^"?ID"?,"?Process ID"?,', re.MULTILINE)
_LARGEST_CELL = 16 << 20

# The details page has names for people; these are the same figures under their names in the raw page.
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
"""Nanoseconds in each; ncu 2024 writes usecond where 2025 writes us."""
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIXES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", 1)}
_BYTES = re.compile(r"([KMGTP]i?)?(byte|hz|bit)s?", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?")


@dataclass
class MeasuredKernel:
    """One kernel of a report, with what was measured of it."""

    name: str
    about: dict[str, str]
    metrics: dict[str, tuple[float | None, str, str]] = field(default_factory=dict)
    """Value in its base unit, that unit, and the text as it stands in the report."""


def read_csv(text: Iterable[str], where: str, report: ReadReport) -> list[MeasuredKernel]:
    """The kernels of either page. What the profiled program printed in between is passed over."""
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
            f"{where} has no kernel",
            why="There is no row below its heading that could be read.",
            hint="Did ncu find its kernels? A -k that matches nothing profiles nothing.",
        )
    return kernels


def _raw(header: list[str], rows: Iterator[list[str]], report: ReadReport) -> list[MeasuredKernel]:
    units = next(rows, None)
    if units is None or len(units) != len(header) or units[header.index("ID")].strip():
        raise ReadError(
            "the csv has no row of units",
            why="Below the heading, ncu's raw page names the unit of each column; without it no figure is certain.",
            hint="Make it again: ncu --import REPORT.ncu-rep --csv --page raw > FILE.csv",
        )
    kernels = []
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            report.lose(f"a row of {len(row)} cells below a heading of {len(header)}")
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
                report.lose(f"a row of {len(row)} cells below a heading of {len(header)}")
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
    """'0.887340', 'Tbyte/s' is (887340000000.0, 'byte/s'); no number gives None."""
    number = _number(text)
    factor, base = _base_unit(unit.strip())
    return (None if number is None else number * factor), base


def _number(text: str) -> float | None:
    """With thousands separators; '5 (1; 2; 2)' is a value with its instances behind it."""
    match = _NUMBER.match(text.strip())
    if not match or text.strip()[match.end() :].strip()[:1] not in ("", "("):
        return None
    return float(match[0].replace(",", ""))


def _base_unit(unit: str) -> tuple[float, str]:
    """What to multiply by, and the unit that is then true."""
    above, slash, below = unit.partition("/")
    factor, name = _part(above)
    if not slash:
        return factor, name
    divisor, below_name = _part(below)
    if below_name == "ns":  # rates count per second, whatever they were written in
        divisor, below_name = divisor / 1e9, "s"
    if (name, below_name) == ("cycle", "s"):
        return factor / divisor, "hz"
    return factor / divisor, f"{name}/{below_name}"


def _part(text: str) -> tuple[float, str]:
    if text in _TIME:
        return _TIME[text], "ns"
    match = _BYTES.fullmatch(text)
    if match:
        prefix = (match[1] or "").replace("k", "K").replace("I", "i")
        return _PREFIXES.get(prefix, 1.0), match[2].lower()
    return 1.0, text
