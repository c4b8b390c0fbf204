"""Reads the counters of some GPUs of a log as events of phase C."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope.errors import ReadError
from rankscope.model import READ_EVENTS, SM_CLOCK, gpu_label
from rankscope.readers.base import (
    LOCAL,
    NO_CLOCK,
    EventBatch,
    LoggedDevice,
    NodeLog,
    NodePart,
    NodeReader,
    Reading,
    ReadReport,
)
from rankscope.readers.byte_stream import ByteStream, line_blocks, open_stream, packed_stream
from rankscope.readers.gpu_counters.layouts import Layout, Row, layout_of
from rankscope.readers.row_batch import RowBatch, name_row

_HEAD_BYTES = 1 << 16
_FIRST_BYTES = 1 << 20
"""The GPUs of a node are all in the first lines; so much is searched for them."""
_BLOCK_BYTES = 1 << 20
_LONGEST_LINE = 1 << 16
_ROWS_PER_BATCH = 20_000
_NEAR_NS = 2 * 3_600_000_000_000
_HEADER_LINES = 20
_SECOND = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.")
_SECOND_CHARACTERS = 19
_SECOND_NS = 1_000_000_000


class GpuCountersReader(NodeReader):
    """nvidia-smi, dcgmi and dcgm-exporter, recognised by their headers."""

    name = "gpu-counters"

    def recognises(self, path: Path, head: bytes) -> bool:
        return layout_of(head) is not None

    def log(self, path: Path) -> NodeLog:
        """Raises ReadError for a file without times, without numbers of GPUs, or without a line that can be read."""
        with closing(_Lines(path)) as lines:
            first = _first_rows(lines, path)
        clock = first[0].clock
        if clock == NO_CLOCK:
            raise ReadError(
                f"{path} has no times",
                why=f"{lines.layout.tool} was started without them, so the samples cannot be put beside a trace.",
                hint=_WITH_TIMES.get(lines.layout.tool, _QUERY),
            )
        devices: dict[str, LoggedDevice] = {row.device.key: row.device for row in reversed(first)}
        if "" in devices and not _is_of_one_gpu(first):
            raise ReadError(
                f"cannot tell the GPUs in {path} apart",
                why="It has no column index, uuid or pci.bus_id.",
                hint=_QUERY,
            )
        first_ns, last_ns = first[0].time_ns, _last_time(path, clock)
        in_order = sorted(devices.values(), key=lambda gpu: (gpu.number is None, gpu.number or 0, gpu.key))
        return NodeLog(tuple(in_order), clock, first_ns, max(first_ns, last_ns), first[0].host)

    def open(self, path: Path, part: str = "") -> GpuCountersReading:
        return GpuCountersReading(path, NodePart.parse(part))


GPU_COUNTERS = GpuCountersReader()

_QUERY = (
    "Record it with nvidia-smi --query-gpu=timestamp,index,uuid,name,clocks.sm,clocks.max.sm,clocks.mem,power.draw,"
    "power.limit,temperature.gpu,clocks_event_reasons.active --format=csv -lms 100 -f FILE"
)
_WITH_TIMES = {
    "dcgmi dmon": 'Add them: dcgmi dmon … | while read -r line; do echo "$(date +%s.%N) $line"; done > FILE',
    "dcgm-exporter": "Add them behind each value, in milliseconds since 1970, as Prometheus' text format allows.",
}


_MOST_MHZ = 10_000.0
"""A higher clock is damage."""


class GpuCountersReading(Reading):
    """One pass over one log, for the GPUs of one rank and the time of its traces."""

    def __init__(self, path: Path, part: NodePart) -> None:
        super().__init__(path)
        self._part = part
        self._position = 0
        self._models: dict[str, str] = {}
        self._highest_mhz: dict[str, float] = {}
        """Of the SMs, by model, in all lines that were looked at: also before and after the traces, where it is one a
        second."""

    def batches(self) -> Iterator[EventBatch]:
        part = self._part
        wanted = (part.begin_ns - part.shift_ns, part.end_ns - part.shift_ns)
        lines = _Lines(self._path, self.report, wanted)
        rows: list[dict[str, Any]] = []
        try:
            for row in lines.rows():
                if (event := self._event(row)) is not None:
                    rows.append(event)
                if len(rows) >= _ROWS_PER_BATCH:
                    self._position = lines.position()
                    yield RowBatch(READ_EVENTS, rows)
                    rows = []
        finally:
            self._position = lines.position()
            lines.close()
        self.report.damage = lines.damage
        self.header = {
            "gpuCounters": {
                "tool": lines.layout.tool,
                "gpus": [{"gpu": key, "name": self._models.get(key, "")} for key in self._part.devices],
                "highest_mhz": {
                    key: self._highest_mhz.get(self._models.get(key, ""), 0.0) for key in self._part.devices
                },
                "times": lines.clock,
                "shift_ns": self._part.shift_ns,
            }
        }
        labels = map(gpu_label, self._part.devices)
        yield RowBatch(
            READ_EVENTS, [*rows, *(name_row("process_name", label, "", label) for label in labels)]
        )

    def _event(self, row: Row) -> dict[str, Any] | None:
        part = self._part
        time = row.time_ns + part.shift_ns
        key = row.device.key
        clock = row.values(SM_CLOCK)[0].get(SM_CLOCK, 0.0)
        if self._highest_mhz.get(row.device.name, 0.0) < clock < _MOST_MHZ:
            self._highest_mhz[row.device.name] = clock
        if not part.begin_ns <= time <= part.end_ns or key not in part.devices:
            return None
        values, broken = row.values()
        for _ in range(broken):
            self.report.repaired("a value that is no number, or too large")
        if not values:
            return None
        self._models.setdefault(key, row.device.name)
        label = gpu_label(key)
        return {
            "ph": "C", "category": "gpu_counter", "name": label, "pid": label, "tid": "", "ts_ns": time, "args": values,
        }  # fmt: skip

    def position(self) -> int:
        return self._position


class _Lines:
    """The lines of a log, in blocks: a line that never ends takes no memory."""

    def __init__(
        self, path: Path, report: ReadReport | None = None, wanted: tuple[int, int] | None = None
    ) -> None:
        """`wanted`: blocks of lines that are all before or after these times need not be read."""
        self._wanted = wanted
        self._stream: ByteStream = open_stream(path, lines=True)
        self._report = report or ReadReport()
        self._pending = self._stream.read(_HEAD_BYTES)
        layout = layout_of(self._pending)
        if layout is None:
            self._stream.close()
            raise ReadError(
                f"{path} has no counters of GPUs",
                why="Its header is not one of nvidia-smi or dcgmi.",
                hint=_QUERY,
            )
        self.layout: Layout = layout
        self.damage = ""
        self.clock = NO_CLOCK
        self._unwanted = b"-"
        """How lines begin that are of a second outside the wanted times."""

    def rows(self) -> Iterator[Row]:
        """What the lines hold. Lines that cannot be read are counted."""
        for line in self._texts():
            try:
                row = self.layout.row(line)
            except (ValueError, OverflowError, IndexError) as error:
                self._report.lose(f"{error}: {line[:80]!r}")
                continue
            if row is None:
                continue
            if self.clock == NO_CLOCK:
                self.clock = row.clock
            elif row.clock != self.clock:
                self._report.lose(f"its time is written in another way: {line[:80]!r}")
                continue
            if self._wanted is not None and row.clock == LOCAL and _SECOND.match(line):
                begin, end = self._wanted
                if (
                    not begin - _SECOND_NS <= row.time_ns <= end + _SECOND_NS
                ):  # nor is the rest of this second
                    self._unwanted = line[:_SECOND_CHARACTERS].encode()
            yield row

    def _texts(self) -> Iterator[str]:
        too_long, rest = partial(self._report.lose, "a line that is too long"), b""
        for block in line_blocks(self._stream, _BLOCK_BYTES, _LONGEST_LINE, too_long, self._pending):
            *whole, rest = block.split(b"\n")
            for line in () if self._is_unwanted(whole) else whole:
                if len(line) > _LONGEST_LINE:
                    too_long()
                elif line[:_SECOND_CHARACTERS] != self._unwanted:
                    yield line.decode("utf-8", "replace")
        self.damage = self._stream.damage
        if rest:
            # Its last number may be cut: 135 of 1350.
            self._report.lose("the last line is not complete")
            self.damage = self.damage or "the last line is not complete"

    def _is_unwanted(self, lines: list[bytes]) -> bool:
        """Whether all lines of a block are long before or after the wanted times. Clocks are set back, by an hour in
        autumn, so what is near is read."""
        if self._wanted is None:
            return False
        begin, end = self._wanted
        first, last = self._first_time(lines), self._first_time(lines[::-1])
        if first is None or last is None:
            return False
        return max(first, last) < begin - _NEAR_NS or min(first, last) > end + _NEAR_NS

    def _first_time(self, lines: list[bytes]) -> int | None:
        for line in lines[:_HEADER_LINES]:
            if row := self.row_of(line[:_LONGEST_LINE].decode("utf-8", "replace")):
                return row.time_ns
        return None

    def row_of(self, line: str) -> Row | None:
        """None also for a line that cannot be read."""
        with suppress(ValueError, OverflowError, IndexError):
            return self.layout.row(line)
        return None

    def position(self) -> int:
        return self._stream.position()

    def close(self) -> None:
        self._stream.close()


def _first_rows(lines: _Lines, path: Path) -> list[Row]:
    rows: list[Row] = []
    for row in lines.rows():
        rows.append(row)
        if lines.position() > _FIRST_BYTES or len(rows) >= 20_000:
            break
    if not rows:
        example = f" {lines._report.examples[0]}." if lines._report.examples else ""
        raise ReadError(
            f"no line of {path} can be read",
            why=f"It looks like the output of {lines.layout.tool}.{example}",
            hint="If it has no header (noheader), put the list of --query-gpu into its first line.",
        )
    return rows


def _is_of_one_gpu(rows: list[Row]) -> bool:
    """Whether a log that names no GPUs is of one: its lines are evenly spaced. Those of several come in bursts."""
    gaps = sorted(b.time_ns - a.time_ns for a, b in pairwise(rows))
    if not gaps or len({row.device for row in rows}) > 1:
        return not gaps
    short, long = gaps[len(gaps) // 20], gaps[len(gaps) - 1 - len(gaps) // 20]
    return short > 0 and long <= 2 * short


def _last_time(path: Path, clock: str) -> int:
    """The last time of a log: in its last lines, unless it is compressed."""
    with closing(_Lines(path)) as lines:
        if packed_stream(path):
            return max((row.time_ns for row in lines.rows()), default=0)
        next(lines.rows(), None)  # the header
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _HEAD_BYTES))
        tail = file.read(_HEAD_BYTES).decode("utf-8", "replace").splitlines()[1:]
    rows = map(lines.row_of, tail)
    return max([0, *(row.time_ns for row in rows if row is not None and row.clock == clock)])
