"""Names of the counters that are read from nvidia-smi, DCGM and amd-smi: clocks, power, temperature, throttle reasons.

In the table `counters`, `name` is the GPU ("GPU 3") and `series` is one of these. Readers write them, reports look for
them. Standard library only.
"""

from __future__ import annotations

SM_CLOCK = "SM clock (MHz)"
MEMORY_CLOCK = "memory clock (MHz)"
POWER = "power (W)"
TEMPERATURE = "temperature (°C)"
MEMORY_TEMPERATURE = "memory temperature (°C)"
UTILIZATION = "utilization (%)"
MEMORY_UTILIZATION = "memory utilization (%)"
MEMORY_USED = "memory used (MiB)"

SW_POWER_CAP = "throttle: SW power cap"
HW_SLOWDOWN = "throttle: HW slowdown"
SW_THERMAL = "throttle: SW thermal slowdown"
HW_THERMAL = "throttle: HW thermal slowdown"
HW_POWER_BRAKE = "throttle: HW power brake"
POWER_VIOLATION = "throttle: power violation (%)"
THERMAL_VIOLATION = "throttle: thermal violation"

REASON_BITS = {
    0x01: "throttle: GPU idle",
    0x02: "throttle: application clocks",
    0x04: SW_POWER_CAP,
    0x08: HW_SLOWDOWN,
    0x10: "throttle: sync boost",
    0x20: SW_THERMAL,
    0x40: HW_THERMAL,
    0x80: HW_POWER_BRAKE,
    0x100: "throttle: display clocks",
}
"""Bits of NVML's clock event reasons. A value of 1 means that the reason was active when the sample was taken."""

THERMAL_REASONS = (SW_THERMAL, HW_THERMAL, THERMAL_VIOLATION)
POWER_REASONS = (SW_POWER_CAP, HW_POWER_BRAKE, POWER_VIOLATION)
HARDWARE_REASONS = (HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE)


def gpu_label(number: object) -> str:
    """The name of a GPU's counters; without a number it is the only one."""
    return f"GPU {number}".rstrip()
