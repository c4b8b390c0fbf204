"""Checks before nsys or ncu start: which options can work on this machine.

With an option that cannot work, both may not start the application at all, or ignore the option silently. So such an
option is removed here, and a message says so.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from rankscope import tools
from rankscope.errors import CaptureError
from rankscope.tools import NcuOptions, NsysOptions

_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg")
_ELSEWHERE = "no NVIDIA driver here: this is what a node with one would run"
_VIRTUAL_MAKERS = (
    "QEMU",
    "KVM",
    "VMware",
    "Xen",
    "Virtual Machine",
    "Google Compute Engine",
    "HVM domU",
    "OpenStack",
)


def has_driver() -> bool:
    """Whether an NVIDIA driver is loaded (on WSL: the host's)."""
    return any(Path(name).exists() for name in _DRIVER_FILES)


def is_virtual() -> bool:
    """Whether this is a virtual machine, where a guest may not set the GPU's clocks."""
    makers = []
    for name in ("sys_vendor", "product_name"):
        try:
            makers.append(Path(f"/sys/class/dmi/id/{name}").read_text(errors="replace").strip())
        except OSError:
            continue
    if any(name in maker for name in _VIRTUAL_MAKERS for maker in makers):
        return True
    if "Amazon EC2" in makers:
        return not any(maker.endswith(".metal") for maker in makers)
    if any(Path("/sys/bus/virtio/devices").glob("*")):  # devices that only virtual machines have
        return True
    try:
        return " hypervisor" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False


def fit_nsys(
    options: NsysOptions, *, program: str, driver: bool, ranged: bool, dry_run: bool = False
) -> tuple[NsysOptions, list[str]]:
    """The options that work here, and messages. ``ranged``: steps were asked for.

    A dry run keeps them all: it is often on another machine than the job.
    """
    if options.gpu_metrics_device:
        options = replace(options, gpu_metrics_option=tools.gpu_metrics_option(program))
    if driver:
        return options, []
    if dry_run:
        return options, [_ELSEWHERE]
    notes = []
    if options.gpu_metrics_device:
        notes.append(
            f"no NVIDIA driver here: nsys runs without {options.gpu_metrics_option}, because it would not start with it"
        )
        options = replace(options, gpu_metrics_device=None)
    if "cuda" in options.trace.split(","):
        notes.append("no NVIDIA driver here: the report will have no CUDA events")
    if ranged and options.capture_range is not None:
        options = replace(options, capture_range=None)
        notes.append(
            "no NVIDIA driver here: nsys cannot start and stop at steps, so the whole run is recorded, "
            "and only the steps asked for are marked in it"
        )
    return options, notes


def fit_ncu(
    options: NcuOptions, *, driver: bool, virtual: bool, clocks: str | None, dry_run: bool = False
) -> tuple[NcuOptions, list[str]]:
    """The options that work here, and messages. ``clocks`` is --clock-control; None: rankscope decides."""
    notes = [] if driver else [_ELSEWHERE]
    if not driver and not dry_run:
        raise CaptureError(
            "ncu cannot profile here",
            why="There is no NVIDIA driver on this machine.",
            hint="Run it on a node with a GPU.",
        )
    if clocks is not None:
        return replace(options, clock_control=clocks), notes
    why = "this is a virtual machine" if virtual else "" if os.geteuid() == 0 else "this user is not root"
    if not why:
        return options, notes
    note = f"GPU clocks are not locked, because {why}: durations vary with the clock (--clock-control base locks them)"
    return replace(options, clock_control="none"), [*notes, note]
