"""NCCL Inspector's Prometheus text: means by communicator, function and range of sizes, one file per GPU.

The text has neither times nor counts of operations, and a GPU instead of a rank.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.model import NCCL, READ_EVENTS, Table
from rankscope.readers.base import Batch, EventBatch, Reader, Reading, ReadReport, TraceIdentity
from rankscope.readers.byte_stream import read_head
from rankscope.readers.checked_values import text
from rankscope.readers.nccl.operations import OperationRows
from rankscope.readers.row_batch import RowBatch

_METRICS = {
    "nccl_bus_bandwidth_gbs": ("busbw_gb_s", 1.0),
    "nccl_collective_exec_time_microseconds": ("duration_ns", 1000.0),
    "nccl_p2p_bus_bandwidth_gbs": ("busbw_gb_s", 1.0),
    "nccl_p2p_exec_time_microseconds": ("duration_ns", 1000.0),
}
"""NCCL's names, the columns of the table, and what turns one into the other."""
_LINE = re.compile(r"^(\w+)\{(.*)\}\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_GPU = re.compile(r"^GPU(\d{1,3})$")
_LARGEST_TEXT = 64 << 20
"""One communicator takes about 1 kB; the file is rewritten, and does not grow."""


class PrometheusReading(Reading):
    """One text, or what it says of one GPU."""

    def __init__(self, path: Path, part: str) -> None:
        super().__init__(path)
        self._part = part
        self._rows: list[dict[str, Any]] = []

    def batches(self) -> Iterator[EventBatch]:
        rows: dict[tuple[str, ...], dict[str, Any]] = {}
        for name, labels, value in _metrics(self._path, self.report):
            if self._part and _gpu_of(labels) != self._part:
                continue
            self.header |= {"inspector_version": labels.get("version"), "host": labels.get("node")}
            row = rows.setdefault(tuple(labels.values()), _row(labels))
            column, factor = _METRICS[name]
            row[column] = round(value * factor) if column.endswith("_ns") else value
        self._rows = list(rows.values())
        if not self._rows:
            raise ReadError(
                f"{self._path} has no metrics of NCCL",
                why=f"{self.report.events_lost:,} lines of its metrics could not be read.",
                hint="NCCL Inspector writes it with NCCL_INSPECTOR_PROM_DUMP=1; it may have been cut off.",
            )
        yield RowBatch(READ_EVENTS, ())

    def further(self) -> Iterator[tuple[Table, Batch]]:
        yield NCCL, OperationRows(self._rows)


def _row(labels: dict[str, str]) -> dict[str, Any]:
    algorithm, _, protocol = labels.get("algo_proto", "").rpartition("_")
    return {
        "communicator": text(labels.get("comm_name", "unknown")),
        "communicator_name": text(labels.get("comm_name", "unknown")),
        "ranks": _number(labels.get("nranks")),
        "nodes": _number(labels.get("n_nodes")),
        "function": text(labels.get("collective", labels.get("p2p_operation", "?"))),
        "size_range": text(labels.get("message_size")),
        "algorithm": text(algorithm.upper()) or None,
        "protocol": text(protocol.upper()) or None,
        "is_mean": True,
    }


def _metrics(path: Path, report: ReadReport) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of each line with a metric of NCCL. Other lines, such as those of other exporters, are not
    of interest."""
    content, report.damage = read_head(path, _LARGEST_TEXT + 1, lines=True)
    if len(content) > _LARGEST_TEXT:
        report.damage = "the text is longer than any that NCCL writes"
    for line in content.decode("utf-8", "replace").splitlines():
        if line.partition("{")[0] not in _METRICS:
            continue
        match = _LINE.match(line)
        try:
            value = float(match[3] if match else "nan")
        except ValueError:
            value = math.nan
        if match and 0 <= value < 2**53:
            yield match[1], dict(_LABEL.findall(match[2])), value
        else:
            report.lose(f"a line is not a metric: {line[:60]}")


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\d{1,7}", value) else None


def _gpu_of(labels: dict[str, str]) -> str:
    return f"{labels.get('node', '')} {labels.get('gpu', '')}"


class PrometheusReader(Reader):
    """Recognises the text by the names of NCCL's metrics."""

    name = "nccl_prometheus"

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        """One for each GPU. In a job on one node the rank is taken to be the number of the GPU; no other is known."""
        nodes: dict[str, int] = {}
        for _, labels, _ in _metrics(path, ReadReport()):
            gpu = _gpu_of(labels)
            nodes[gpu] = max(nodes.get(gpu, 0), _number(labels.get("n_nodes")) or 0)
        named = super().identify_parts(path)
        if named[0].rank is not None or not nodes:
            return named
        identities = []
        for gpu, count in sorted(nodes.items()):
            number = _GPU.match(gpu.rpartition(" ")[2]) if count == 1 else None
            rank, source = (int(number[1]), "GPU number") if number else (None, "")
            identities.append(TraceIdentity(rank, source, part=gpu if len(nodes) > 1 else ""))
        return identities

    def open(self, path: Path, part: str = "") -> PrometheusReading:
        return PrometheusReading(path, part)


PROMETHEUS = PrometheusReader()
