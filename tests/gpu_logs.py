"""Logs of GPU counters as nvidia-smi, dcgmi and dcgm-exporter write them, from samples with known values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from rankscope.model import MEMORY_CLOCK, POWER, SM_CLOCK, SW_THERMAL, TEMPERATURE

SECOND = 1_000_000_000
SERIES = (SM_CLOCK, MEMORY_CLOCK, POWER, TEMPERATURE)


class Sample(NamedTuple):
    """One GPU at one moment."""

    time_ns: int
    gpu: int
    sm_mhz: int = 1755
    memory_mhz: int = 2619
    power_w: float = 651.5
    celsius: int = 60
    reasons: int = 0

    @property
    def values(self) -> dict[str, float]:
        return dict(zip(SERIES, map(float, self[2:6]), strict=True))


def evenly(begin_ns: int, end_ns: int, every_ns: int, gpus: Sequence[int], **values: object) -> list[Sample]:
    """Samples of all GPUs at the same moments."""
    return [
        Sample(time, gpu, **values)  # type: ignore[arg-type]
        for time in range(begin_ns, end_ns, every_ns)
        for gpu in gpus
    ]


def _local(sample: Sample, zone_s: int) -> datetime:
    return datetime.fromtimestamp(sample.time_ns // SECOND + zone_s, tz=timezone.utc)


def _milliseconds(sample: Sample) -> str:
    return f"{sample.time_ns % SECOND // 1_000_000:03d}"


def query_csv(samples: Sequence[Sample], zone_s: int = 0, units: bool = True, spelling: str = "event") -> str:
    """nvidia-smi --query-gpu=… --format=csv, with or without nounits."""
    mhz, watt, percent = (" MHz", " W", " %") if units else ("", "", "")
    heads = [
        "timestamp",
        "index",
        "uuid",
        "name",
        "pstate",
        "clocks.current.sm [MHz]",
        "clocks.current.memory [MHz]",
    ]
    heads += [
        "power.draw [W]",
        "temperature.gpu",
        "temperature.memory",
        "utilization.gpu [%]",
        "fan.speed [%]",
    ]
    heads += [f"clocks_{spelling}_reasons.active", f"clocks_{spelling}_reasons.sw_thermal_slowdown"]
    lines = [", ".join(heads)]
    for one in samples:
        when = f"{_local(one, zone_s):%Y/%m/%d %H:%M:%S}.{_milliseconds(one)}"
        state = "Active" if one.reasons & 0x20 else "Not Active"
        lines.append(
            f"{when}, {one.gpu}, GPU-0000-{one.gpu}, NVIDIA H200, "
            f"P0, {one.sm_mhz}{mhz}, {one.memory_mhz}{mhz}, {one.power_w:.2f}{watt}, {one.celsius}, N/A, 97{percent}, "
            f"[Not Supported], 0x{one.reasons:016x}, {state}"
        )
    return "\n".join(lines) + "\n"


def dcgmi(samples: Sequence[Sample], when: Callable[[Sample], str] | None = None) -> str:
    """dcgmi dmon -e 100,101,155,150,112, with a time before each line if a program added it."""
    when = when or (lambda sample: "")
    lines = []
    for number, one in enumerate(samples):
        if number % 16 == 0:
            lines += [f"{when(one)}#Entity   SMCLK   MMCLK   POWER   TMPTR   DVCCTR", f"{when(one)}ID"]
        lines.append(
            f"{when(one)}GPU {one.gpu}     {one.sm_mhz}    {one.memory_mhz}   {one.power_w:.3f}   {one.celsius}   "
            f"{one.reasons}"
        )
    return "\n".join(lines) + "\n"


def prometheus(samples: Sequence[Sample], host: str = "node0", times: bool = True) -> str:
    """dcgm-exporter's metrics, scraped again and again."""
    names = ("SM_CLOCK", "MEM_CLOCK", "POWER_USAGE", "GPU_TEMP", "CLOCKS_EVENT_REASONS")
    lines = []
    for one in samples:
        labels = f'gpu="{one.gpu}",UUID="GPU-0000-{one.gpu}",modelName="NVIDIA H200",Hostname="{host}"'
        for name, value in zip(names, one[2:], strict=True):
            lines += [f"# TYPE DCGM_FI_DEV_{name} gauge"]
            at = f" {one.time_ns // 1_000_000}" if times else ""
            lines += [f"DCGM_FI_DEV_{name}{{{labels}}} {value}{at}"]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


__all__ = [
    "SECOND",
    "SERIES",
    "SW_THERMAL",
    "Sample",
    "dcgmi",
    "evenly",
    "prometheus",
    "query_csv",
    "write",
]
