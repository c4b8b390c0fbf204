"""Nsight Compute: .ncu-rep, read with ncu or its Python module, and the csv that ncu prints.

A report has no timestamps, so its kernels are not events. They go into the tables ncu_kernels and ncu_metrics.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rankscope import tools
from rankscope.errors import ReadError, ToolError
from rankscope.model import NCU_KERNELS, NCU_METRICS, READ_EVENTS, Table
from rankscope.readers.base import Batch, EventBatch, Reader, Reading, ReadReport
from rankscope.readers.byte_stream import open_stream
from rankscope.readers.ncu.csv_pages import HEADER, MeasuredKernel, csv_text, read_csv
from rankscope.readers.row_batch import RowBatch

REPORT_MAGIC = b"NVR\x00"
_LARGEST_CSV = 1 << 30
_TIMEOUT_SECONDS = 600

Load = Callable[[Path, ReadReport], list[MeasuredKernel]]


class NcuReading(Reading):
    """One report: no events, two tables."""

    def __init__(self, path: Path, load: Load) -> None:
        super().__init__(path)
        self._load = load
        self._kernels: list[MeasuredKernel] = []

    def batches(self) -> Iterator[EventBatch]:
        self._kernels = self._load(self._path, self.report)
        yield RowBatch(READ_EVENTS, ())  # every segment has the table

    def further(self) -> Iterator[tuple[Table, Batch]]:
        yield (
            NCU_KERNELS,
            RowBatch(NCU_KERNELS, map(_kernel_row, *zip(*enumerate(self._kernels), strict=True))),
        )
        yield NCU_METRICS, RowBatch(NCU_METRICS, self._metric_rows())

    def _metric_rows(self) -> Iterator[dict[str, Any]]:
        for number, kernel in enumerate(self._kernels):
            for metric, (value, unit, text) in kernel.metrics.items():
                yield {"kernel": number, "metric": metric, "value": value, "unit": unit, "text": text}


class NcuReader(Reader):
    """Recognises reports by their first bytes, and csv by its header."""

    name = "ncu"

    def recognises(self, path: Path, head: bytes) -> bool:
        is_report = path.name.endswith(".ncu-rep") or head.startswith(REPORT_MAGIC)
        return is_report or HEADER.search(head) is not None

    def open(self, path: Path, part: str = "") -> NcuReading:
        return NcuReading(path, _load_report if path.name.endswith(".ncu-rep") else _load_csv)


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


def _load_csv(path: Path, report: ReadReport) -> list[MeasuredKernel]:
    stream = open_stream(path, lines=True)
    try:
        content = stream.read(_LARGEST_CSV)
    finally:
        stream.close()
    report.damage = stream.damage
    return read_csv(csv_text(content), str(path), report)


def _load_report(path: Path, report: ReadReport) -> list[MeasuredKernel]:
    """With ncu; if it is not installed, with its Python module."""
    try:
        tool = tools.find_tool("ncu", os.environ.get(tools.NCU_VARIABLE))
    except ToolError as missing:
        kernels = _load_with_module(path)
        if kernels:
            return kernels
        raise ReadError(
            f"cannot read {path} without Nsight Compute",
            why=f"{missing.why} Only ncu can read its format.",
            hint=f"Load the module or give --ncu PATH; or convert it where ncu is installed: "
            f"ncu --import {path.name} --csv --page raw > {path.stem}.csv",
        ) from missing
    return _load_with_ncu(path, tool, report)


def _load_with_ncu(path: Path, tool: tools.Tool, report: ReadReport) -> list[MeasuredKernel]:
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
    return read_csv(csv_text(answer.stdout), str(path), report)


def _load_with_module(path: Path) -> list[MeasuredKernel]:
    """With the module ncu_report; [] if it is missing, or older than the file."""
    try:
        context = import_module("ncu_report").load_report(str(path))
        ranges = [context.range_by_idx(index) for index in range(context.num_ranges())]
        return [
            _kernel_of_action(part.action_by_idx(index))
            for part in ranges
            for index in range(part.num_actions())
        ]
    except Exception:  # noqa: BLE001 - a third-party module of any version: a failure counts as missing
        return []


def _kernel_of_action(action: Any) -> MeasuredKernel:
    kernel = MeasuredKernel(str(action.name()), {})
    for name in action.metric_names():
        metric = action.metric_by_name(name)
        value = metric.value() if hasattr(metric, "value") else metric.as_double()
        number = float(value) if isinstance(value, (int, float)) else None
        kernel.metrics[str(name)] = (number, _module_unit(metric.unit()), str(value))
    sizes = {
        label: ", ".join(kernel.metrics[f"launch__{what}_dim_{axis}"][2] for axis in "xyz")
        for label, what in (("Grid Size", "grid"), ("Block Size", "block"))
        if all(f"launch__{what}_dim_{axis}" in kernel.metrics for axis in "xyz")
    }
    ids = {"Device": "launch__device_id", "Context": "launch__context_id", "Stream": "launch__stream_id"}
    kernel.about |= sizes | {
        label: kernel.metrics[name][2] for label, name in ids.items() if name in kernel.metrics
    }
    return kernel


def _module_unit(unit: Any) -> str:
    """The module's values are in base units, except that times are in nanoseconds under the unit 'second'."""
    above, _, below = str(unit).partition("_per_")
    if not below:
        return "ns" if above == "second" else above
    if (above, below) == ("cycle", "second"):
        return "hz"
    return f"{'' if above == '1' else above}/{'s' if below == 'second' else below}"
