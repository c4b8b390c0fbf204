"""What a device could do at most, for 'percent of peak'."""

from __future__ import annotations

from rankscope.devices import find_device


def peak_tflops(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """The peak that this precision runs against on this device, or None where it is not known."""
    kind = "tf32" if precision == "float32" and tf32 else precision
    device = find_device(device_name)
    return device.tflops.get(kind) if device else None
