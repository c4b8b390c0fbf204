"""The text of each tool, line by line: which GPU, when, and the values under our names (rankscope.gpu_counters)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from datetime import date, datetime
from functools import lru_cache
from typing import NamedTuple, Protocol

from rankscope.model import (
    HW_POWER_BRAKE,
    HW_SLOWDOWN,
    HW_THERMAL,
    MEMORY_CLOCK,
    MEMORY_TEMPERATURE,
    MEMORY_USED,
    MEMORY_UTILIZATION,
    POWER,
    POWER_LIMIT,
    REASON_BITS,
    SM_CLOCK,
    SM_CLOCK_LIMIT,
    SW_POWER_CAP,
    SW_THERMAL,
    TEMPERATURE,
    UTILIZATION,
)
from rankscope.readers.base import LOCAL, NO_CLOCK, UNIX, LoggedDevice

_MOST_GPUS = 1024
_LONGEST_NAME = 100
_MOST_COLUMNS = 500
_LARGEST_VALUE = 1e15
"""DCGM writes 9223372036854775794 and 140737488355328e3 for values it does not have."""
_REASONS = "reasons"
"""In place of a series: the value is a bit mask of throttle reasons."""

_COLUMNS = {
    # nvidia-smi --query-gpu
    "clocks.sm": SM_CLOCK, "clocks.current.sm": SM_CLOCK,
    "clocks.max.sm": SM_CLOCK_LIMIT, "power.limit": POWER_LIMIT, "enforced.power.limit": POWER_LIMIT,
    "clocks.mem": MEMORY_CLOCK, "clocks.current.memory": MEMORY_CLOCK,
    "power.draw": POWER, "temperature.gpu": TEMPERATURE, "temperature.memory": MEMORY_TEMPERATURE,
    "utilization.gpu": UTILIZATION, "utilization.memory": MEMORY_UTILIZATION, "memory.used": MEMORY_USED,
    # dcgmi dmon
    "smclk": SM_CLOCK, "mmclk": MEMORY_CLOCK, "power": POWER, "tmptr": TEMPERATURE, "mmtmp": MEMORY_TEMPERATURE,
    "gputl": UTILIZATION, "mcutl": MEMORY_UTILIZATION, "fbusd": MEMORY_USED, "dvcctr": _REASONS,
    # dcgm-exporter
    "dcgm_fi_dev_sm_clock": SM_CLOCK, "dcgm_fi_dev_mem_clock": MEMORY_CLOCK, "dcgm_fi_dev_power_usage": POWER,
    "dcgm_fi_dev_max_sm_clock": SM_CLOCK_LIMIT, "dcgm_fi_dev_enforced_power_limit": POWER_LIMIT,
    "dcgm_fi_dev_gpu_temp": TEMPERATURE, "dcgm_fi_dev_memory_temp": MEMORY_TEMPERATURE,
    "dcgm_fi_dev_gpu_util": UTILIZATION, "dcgm_fi_dev_mem_copy_util": MEMORY_UTILIZATION,
    "dcgm_fi_dev_fb_used": MEMORY_USED, "dcgm_fi_dev_clock_throttle_reasons": _REASONS,
    "dcgm_fi_dev_clocks_event_reasons": _REASONS,
}  # fmt: skip
_REASON_COLUMNS = {
    "active": _REASONS, "gpu_idle": REASON_BITS[0x01], "applications_clocks_setting": REASON_BITS[0x02],
    "sw_power_cap": SW_POWER_CAP, "hw_slowdown": HW_SLOWDOWN, "sync_boost": REASON_BITS[0x10],
    "sw_thermal_slowdown": SW_THERMAL, "hw_thermal_slowdown": HW_THERMAL,
    "hw_power_brake_slowdown": HW_POWER_BRAKE,
}  # fmt: skip
_REASON_COLUMN = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_NOT_COUNTERS = re.compile(
    r"(?:count|driver_version|name|gpu_name|vbios_version|serial|gpu_serial|pci\..*|.*_date)"
)
_MISSING = frozenset(
    {"", "-", "n/a", "[n/a]", "[not supported]", "not supported", "[unknown error]", "unknown error"}
)
_STATES = {"not active": 0.0, "active": 1.0, "disabled": 0.0, "enabled": 1.0, "no": 0.0, "yes": 1.0}


class Row(NamedTuple):
    """One line: a GPU at a moment. Its values are read only if they are wanted."""

    device: LoggedDevice
    clock: str
    """Of which clock `time_ns` is: readers.base."""
    time_ns: int
    series: list[tuple[int, str]]
    """The columns that are counters, and their series."""
    parts: list[str]
    """The text of each column."""
    host: str = ""

    def values(self, only: str = "") -> tuple[dict[str, float], int]:
        """By series, or of one; and how many values are not numbers, or larger than any counter."""
        return _values((name, self.parts[at]) for at, name in self.series if only in ("", name))


class Layout(Protocol):
    """The text of one tool. It keeps the columns of the last header."""

    tool: str

    def row(self, line: str) -> Row | None:
        """What a line holds; None for headers and empty lines. Raises ValueError for a damaged line."""


def layout_of(head: bytes) -> Layout | None:
    """What wrote a file that begins like this; None if it is none of these tools."""
    lines = [line for line in head.decode("utf-8", "replace").splitlines()[:200] if line.strip()]
    for line in lines[:3]:
        if CsvTable.is_header(line) or _QUERY_LINE.match(line):
            return CsvTable("nvidia-smi")
    if any(_DCGM_HEADER.search(line) for line in lines[:20]):
        return Monitor("dcgmi dmon")
    if any(_METRIC.match(line) for line in lines if line.startswith("DCGM_FI_")):
        return Metrics()
    return None


def _name_and_unit(head: str) -> tuple[str, str]:
    """Of a heading such as 'clocks.current.sm [MHz]', the name in lower case."""
    name, _, unit = head.strip().rstrip("]").partition(" [")
    return name.strip().lower(), unit


def _column(name: str, unit: str) -> str:
    """The series of a column; '' if it is no counter."""
    if reason := _REASON_COLUMN.fullmatch(name):
        return _REASON_COLUMNS.get(reason[1], "")
    if name in _COLUMNS:
        return _COLUMNS[name]
    if _NOT_COUNTERS.fullmatch(name) or not name:
        return ""
    return f"{name[:_LONGEST_NAME]} ({unit})" if unit else name[:_LONGEST_NAME]


def _values(pairs: Iterable[tuple[str, str]]) -> tuple[dict[str, float], int]:
    """Numbers by series, from series and texts."""
    numbers: dict[str, float] = {}
    broken = 0
    for series, text in pairs:
        lower = text.strip().lower()
        if lower in _MISSING:
            continue
        value = _STATES.get(lower)
        if value is None:
            try:
                value = _number(lower)
            except ValueError:
                # Texts of columns that are no counters are not damage: P0, Default, 550.54.14.
                broken += series in _KNOWN
                continue
        if not math.isfinite(value) or abs(value) > _LARGEST_VALUE:
            broken += 1
        elif series == _REASONS:
            mask = int(value)
            numbers |= {name: float(bool(mask & bit)) for bit, name in REASON_BITS.items()}
        else:
            numbers[series] = value
    return numbers, broken


_KNOWN = frozenset({*_COLUMNS.values(), *_REASON_COLUMNS.values()})


def _number(text: str) -> float:
    """45, 45 %, 1410 MHz, 0x0000000000000004. Digits only as float writes them: no 1_000."""
    first = text.split(None, 1)[0]
    if first.startswith("0x"):
        return float(int(first[:40], 16))
    if "_" in first:
        raise ValueError("no number")
    return float(first)


@lru_cache(maxsize=4096)
def _device(number: str, uuid: str = "", bus: str = "", name: str = "") -> LoggedDevice:
    """One object for each GPU, however many lines it has."""
    index = int(number) if number else None
    if index is not None and not 0 <= index < _MOST_GPUS:
        raise ValueError(f"no GPU has the number {index}")
    return LoggedDevice(index, *(text.strip()[:_LONGEST_NAME] for text in (uuid, bus, name)))


class _Table:
    """Lines below a header."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self._names: list[str] = []
        self._series: list[tuple[int, str]] = []

    def _learn_series(self, heads: Iterable[tuple[str, str]], others: Iterable[int] = ()) -> None:
        """From names and units of columns; `others` are those that tell of which GPU and time a line is."""
        columns = ((at, _column(name, unit)) for at, (name, unit) in enumerate(heads) if at not in others)
        self._series = [(at, series) for at, series in columns if series]

    def _check(self, parts: list[str]) -> None:
        if not self._names:
            raise ValueError("no header before it")
        if len(parts) != len(self._names):
            raise ValueError(f"{len(parts)} values below {len(self._names)} columns")


class CsvTable(_Table):
    """nvidia-smi --query-gpu=… --format=csv: a header, then a line a GPU and moment."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)
        self._time: int | None = None
        self._ids: list[int | None] = []
        """Columns of the number, uuid, bus and model of the GPU."""

    @staticmethod
    def is_header(line: str) -> bool:
        names = [_name_and_unit(part)[0] for part in line.split(",")]
        counters = sum(name in _QUERIED or bool(_REASON_COLUMN.fullmatch(name)) for name in names)
        return counters >= 1 and len(names) >= 2

    def row(self, line: str) -> Row | None:
        if not line[:1].isdigit():  # most lines begin with their time
            if not line.strip():
                return None
            if self.is_header(line):
                self._learn(line)
                return None
        parts = line.split(",")
        self._check(parts)
        clock, time = NO_CLOCK, 0
        if self._time is not None:
            clock, time, _ = read_time(parts[self._time].strip())
        device = _device(*["" if at is None else parts[at] for at in self._ids])
        return Row(device, clock, time, self._series, parts)

    def _learn(self, line: str) -> None:
        heads = [_name_and_unit(part) for part in line.split(",")][:_MOST_COLUMNS]
        self._names = [name for name, _ in heads]
        at_heads = [(name, at) for at, name in enumerate(self._names) if name in _NOT_SERIES]
        # Scripts that ask each GPU for itself add a column gpu; index may then be 0 everywhere.
        column_of = {
            _NOT_SERIES[name]: at for name, at in sorted(at_heads, key=lambda head: head[0] == "gpu")
        }
        *self._ids, self._time = (column_of.get(key) for key in ("index", "uuid", "bus", "name", "time"))
        self._learn_series(heads, {at for _, at in at_heads})


_NOT_SERIES = {
    "index": "index", "gpu": "index", "uuid": "uuid", "gpu_uuid": "uuid", "name": "name", "gpu_name": "name",
    "pci.bus_id": "bus", "gpu_bus_id": "bus", "timestamp": "time",
}  # fmt: skip
"""Columns that tell of which GPU and time a line is."""
_QUERIED = frozenset(
    {"clocks.gr", "clocks.current.graphics", "power.draw.instant", "power.draw.average"}
    | {name for name in _COLUMNS if "." in name}
)
"""Columns that no other program's csv has."""
_QUERY_LINE = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, .*(?: MHz| W| MiB|GPU-|, P\d+|, \d+)")
_DCGM_HEADER = re.compile(r"#\s*Entity\s+[A-Z]")
_ENTITY = re.compile(r"\s*GPU[ \t]+(\d{1,4})[ \t]+")


class Monitor(_Table):
    """dcgmi dmon: headers that repeat, then a line a GPU and moment, in columns.

    It writes no time: each line has one before it if the output went through a program that adds it (ts, awk).
    """

    def row(self, line: str) -> Row | None:
        if "#" in line:
            names = line[line.index("#") + 1 :].lower().split()[:_MOST_COLUMNS]
            if names[:1] == ["entity"]:
                self._names = names[1:]
                self._learn_series((name, "") for name in self._names)
            return None
        text = line.strip()
        clock, time, at = NO_CLOCK, 0, 0
        with suppress(ValueError):
            clock, time, at = read_time(text)
        rest = text[at:].lstrip()
        if rest in ("", "ID", "Id"):  # the second line of a header
            return None
        entity = _ENTITY.match(rest)
        if entity is None:
            raise ValueError("no GPU")
        parts = rest[entity.end() :].split()
        self._check(parts)
        return Row(_device(entity[1]), clock, time, self._series, parts)


_METRIC = re.compile(r"(DCGM_FI_\w{1,80})\{(.{0,2000})\}\s+(\S{1,60})(?:\s+(\S{1,40}))?\s*$")
_LABEL = re.compile(r'(\w{1,40})="((?:[^"\\]|\\.){0,200})"')


class Metrics:
    """dcgm-exporter in Prometheus' text format, scraped with timestamps: a line a GPU, metric and moment."""

    tool = "dcgm-exporter"

    def row(self, line: str) -> Row | None:
        if not line.strip() or line.startswith("#") or not line.startswith("DCGM_"):
            return None
        match = _METRIC.match(line)
        if match is None:
            raise ValueError("no metric")
        name, text, value, at = match.groups()
        labels = {key: label[:_LONGEST_NAME] for key, label in _LABEL.findall(text)}
        clock, time = NO_CLOCK, 0
        if at is not None:
            if not EPOCH.fullmatch(at):
                raise ValueError("no time")
            clock, time = UNIX, epoch_ns(at)
        series = _column(name.lower(), "")
        device = _device(*(labels.get(name, "") for name in ("gpu", "UUID", "pci_bus_id", "modelName")))
        return Row(device, clock, time, [(0, series)], [value], labels.get("Hostname", ""))


_SECOND = 1_000_000_000
_DAY_NS = 86_400 * _SECOND
_EPOCH = date(1970, 1, 1).toordinal()
_LATEST_SECOND = 1 << 32
_MILLISECONDS_FROM = 100_000_000_000
"""As seconds this would be the year 5138, as milliseconds it is 1973."""

_DATE = r"(?:\d{4}/\d\d/\d\d|\d{4}-\d\d-\d\d)"
_CLOCK = r"\d{1,2}:\d\d:\d\d(?:[.,]\d{1,9})?"
DATE_AND_TIME = re.compile(rf"({_DATE})[ \tT,]+({_CLOCK})(Z|[+-]\d\d:?\d\d)?")
EPOCH = re.compile(r"(\d{9,16}(?:\.\d{1,9})?)(?![\d.:/-])")


def read_time(text: str) -> tuple[str, int, int]:
    """The time at the start of a text: what clock it is of, nanoseconds, and where it ends. ValueError without one."""
    if len(text) == 23 and text[19] == "." and text[20:].isdecimal() and text[4] == "/":
        # As nvidia-smi writes it. The lines of a second share all but the end.
        return LOCAL, _second_ns(text[:19]) + int(text[20:]) * 1_000_000, 23
    if match := DATE_AND_TIME.match(text):
        day, clock, zone = match.groups()
        time = _day_ns(day) + clock_ns(clock)
        if zone is None:
            return LOCAL, time, match.end()
        return UNIX, time - _zone_ns(zone), match.end()
    if match := EPOCH.match(text):
        return UNIX, epoch_ns(match[1]), match.end()
    raise ValueError("no time")


@lru_cache(maxsize=64)
def _second_ns(text: str) -> int:
    return read_time(text)[1]


@lru_cache(maxsize=16)
def _day_ns(text: str) -> int:
    digits = text.replace("/", "").replace("-", "")
    return (date(int(digits[:4]), int(digits[4:6]), int(digits[6:])).toordinal() - _EPOCH) * _DAY_NS


def clock_ns(text: str) -> int:
    """A time of day. A leap second, 23:59:60, is a second like others."""
    whole, _, fraction = text.replace(",", ".").partition(".")
    hours, minutes, seconds = map(int, whole.split(":"))
    if hours > 23 or minutes > 59 or seconds > 60:
        raise ValueError("no time of day")
    return (hours * 3600 + minutes * 60 + seconds) * _SECOND + int(fraction.ljust(9, "0") or 0)


def _zone_ns(text: str) -> int:
    offset = datetime.strptime(text.replace("Z", "+0000").replace(":", ""), "%z").utcoffset()
    return round(offset.total_seconds()) * _SECOND if offset else 0


def epoch_ns(text: str) -> int:
    """Seconds or milliseconds since 1970, exactly."""
    whole, _, fraction = text.partition(".")
    factor = _SECOND // 1000 if int(whole) >= _MILLISECONDS_FROM else _SECOND
    time = int(whole) * factor + int(fraction.ljust(9, "0") or 0) * factor // _SECOND
    if not 0 < time < _LATEST_SECOND * _SECOND:
        raise ValueError("no time since 1970")
    return time
