"""What a device could do at most, for 'percent of peak': dense TFLOP/s by precision, from the vendors' sheets."""

from __future__ import annotations

# The first name that is part of the device's wins. float32 is what torch does by default, tf32 what it does
# after torch.set_float32_matmul_precision("high").
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H100 PCIe", {"bfloat16": 756, "float32": 51, "tf32": 378}),
    ("H200", {"bfloat16": 989, "float32": 67, "tf32": 494}),
    ("H100", {"bfloat16": 989, "float32": 67, "tf32": 494}),
    ("A100", {"bfloat16": 312, "float32": 19.5, "tf32": 156}),
    ("B200", {"bfloat16": 2250}),
    ("MI300X", {"bfloat16": 1300}),
)


def peak_tflops(device_name: str, precision: str, *, tf32: bool = False) -> float | None:
    """The peak that this precision runs against on this device, or None where it is not known."""
    kind = "tf32" if precision == "float32" and tf32 else precision
    return next((peaks.get(kind) for name, peaks in _PEAKS if name in device_name), None)
