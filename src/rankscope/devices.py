"""Peak rates of devices: dense FLOP/s by data type and memory bandwidth, from the vendors' data sheets.

Used by the benchmark, the roofline and MFU. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from rankscope.records import dataclass


@dataclass(frozen=True)
class Device:
    """One GPU model: TFLOP/s without sparsity, memory bandwidth in TB/s."""

    name: str
    pattern: str
    """Regular expression, searched in the driver's device name."""
    tflops: Mapping[str, float]
    """By data type. float32 is torch's default; tf32 applies to float32 where TF32 is allowed."""
    bandwidth_tb_s: float | None
    least_memory_gb: float = 0
    """Tells apart models that share a name: this one has at least this much memory."""


def _hopper(bfloat16: float, float32: float, tf32: float) -> dict[str, float]:
    return {
        "bfloat16": bfloat16,
        "float16": bfloat16,
        "float8": 2 * bfloat16,
        "float32": float32,
        "tf32": tf32,
    }


_A100 = {"bfloat16": 312.0, "float16": 312.0, "float32": 19.5, "tf32": 156.0}

# The first entry that matches the name, and whose least_memory_gb the device has, is used.
DEVICES = (
    Device("H200", r"\bH200\b", _hopper(989, 67, 494), 4.8),
    Device("GH200", r"\bGH200\b", _hopper(989, 67, 494), 4.0),
    Device("H100 PCIe", r"\bH100 PCIe\b", _hopper(756, 51, 378), 2.0),
    Device("H100 SXM", r"\bH100\b", _hopper(989, 67, 494), 3.35),
    Device("A100 80 GB", r"\bA100\b", _A100, 2.04, least_memory_gb=60),
    Device("A100 80 GB", r"\bA100\b.*80GB", _A100, 2.04),
    Device("A100 40 GB", r"\bA100\b", _A100, 1.555),
    Device("B200", r"\bB200\b", {"bfloat16": 2250, "float16": 2250}, 8.0),
    Device("MI300X", r"\bMI300X\b", {"bfloat16": 1300, "float16": 1300}, 5.3),
)


def find_device(name: str, memory_bytes: int | None = None) -> Device | None:
    """The entry for this device name, or None."""
    memory_gb = (memory_bytes or 0) / 1e9
    for device in DEVICES:
        if re.search(device.pattern, name, re.IGNORECASE) and memory_gb >= device.least_memory_gb:
            return device
    return None


def peak_tflops(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """The dense peak of this precision on this device, or None where it is not known."""
    kind = "tf32" if precision == "float32" and tf32 else precision
    device = find_device(device_name)
    return device.tflops.get(kind) if device else None


@dataclass(frozen=True)
class Ceilings:
    """The peak rates that a run is compared with; None and missing data types are unknown."""

    peaks: Mapping[str, float] = field(default_factory=dict)
    """FLOP/s by data type."""
    any_peak: float | None = None
    """FLOP/s for every data type, where the user gave one number."""
    bandwidth: float | None = None
    """Bytes per second."""
    source: str = ""

    def peak(self, dtype: str | None) -> float | None:
        return self.any_peak if self.any_peak is not None else self.peaks.get(dtype or "")

    def over(self, table: Ceilings) -> Ceilings:
        """These values, with those of ``table`` where one is missing."""
        return Ceilings(
            {**table.peaks, **self.peaks},
            self.any_peak,
            self.bandwidth if self.bandwidth is not None else table.bandwidth,
            " and ".join(dict.fromkeys(part for part in (self.source, table.source) if part)),
        )


def ceilings_of(device: Device) -> Ceilings:
    """A device's peaks in FLOP/s and bytes per second."""
    bandwidth = device.bandwidth_tb_s
    return Ceilings(
        {dtype: value * 1e12 for dtype, value in device.tflops.items()},
        bandwidth=None if bandwidth is None else bandwidth * 1e12,
        source=f"the data sheet of {device.name}",
    )
