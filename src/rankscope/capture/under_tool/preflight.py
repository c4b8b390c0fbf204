"""Checks before nsys or ncu start: which options can work on this machine, and whether nsys needs root for them.

With an option that cannot work, both may not start the application at all, or ignore the option silently. So such an
option is removed here, and a message says so. --run-as USER runs the job as USER and nsys as root, with sudo, where
what is asked for needs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rankscope import tools
from rankscope.errors import CaptureError
from rankscope.host import user_name
from rankscope.tools import NcuOptions, NsysOptions

_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg")
_ELSEWHERE = "no NVIDIA driver here: this is what a node with one would run"
_VIRTUAL_MAKERS = (
    *("QEMU", "KVM", "VMware", "Xen", "Virtual Machine", "Google Compute Engine", "HVM domU", "OpenStack"),
)
# Who may read the GPU's counters; the driver's default is root only.
_DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")
_PASSWORD_PROMPT = "[sudo] password for %u (nsys needs root): "
_COUNTERS, _SAMPLES = "--gpu-metrics-device", "--sample"
_LOSES_KERNELS = (
    "this nsys is older than the driver's CUDA and may stop recording kernels early in a whole run: give --steps A:B, "
    "or use a newer nsys"
)


def has_driver() -> bool:
    """Whether an NVIDIA driver is loaded (on WSL: the host's)."""
    return any(Path(name).exists() for name in _DRIVER_FILES)


def driver_branch() -> int:
    """The first number of the NVIDIA driver's version; 0 when it is not known."""
    version = re.search(r"\b(\d{3,4})\.\d", _text(_DRIVER_FILES[0]))
    return int(version[1]) if version else 0


def _text(path: str | Path) -> str:
    """The content of a file of the kernel; "" where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def is_virtual() -> bool:
    """Whether this is a virtual machine, where a guest may not set the GPU's clocks."""
    makers = [_text(f"/sys/class/dmi/id/{name}").strip() for name in ("sys_vendor", "product_name")]
    if any(name in maker for name in _VIRTUAL_MAKERS for maker in makers):
        return True
    if "Amazon EC2" in makers:
        return not any(maker.endswith(".metal") for maker in makers)
    if any(Path("/sys/bus/virtio/devices").glob("*")):  # devices that only virtual machines have
        return True
    return " hypervisor" in _text("/proc/cpuinfo")


def fit_nsys(
    options: NsysOptions, *, tool: tools.Tool, driver: bool, ranged: bool, dry_run: bool = False
) -> tuple[NsysOptions, list[str]]:
    """The options that work here, and messages. ``ranged``: steps were asked for.

    A dry run keeps them all: it is often on another machine than the job.
    """
    if options.gpu_metrics_device:
        options = replace(options, gpu_metrics_option=tools.gpu_metrics_option(str(tool.path)))
    if driver and options.capture_range is None and tools.nsys_loses_kernels(tool, driver_branch()):
        return options, [_LOSES_KERNELS]
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


def as_root(
    program: str, options: NsysOptions, *, dry_run: bool = False
) -> tuple[list[str], NsysOptions, list[str]]:
    """Root for --run-as where something that was asked for needs it, and sudo gives it: sudo with the variables that
    it would drop, none where nsys runs as this user; the options; messages."""
    if options.run_as is None or os.geteuid() == 0:
        return [], options, []
    another = options.run_as != user_name()
    given = tools.given_options("nsys", options.extra)
    counters = options.gpu_metrics_device or any(name.startswith(_COUNTERS) for name in given)
    only_root = "RmProfilingAdminOnly: 0" not in _text(_DRIVER_SETTINGS)
    sample = given.get(_SAMPLES, options.sample)
    refused = sample != "none" and tools.refuses_cpu_profiling(program, sample)
    reasons = [_COUNTERS] * bool(counters and only_root) + [_SAMPLES] * refused
    if not reasons and not another:
        note = "nothing that was asked for needs root here: --run-as is left out"
        return [], replace(options, run_as=None), [note]
    asks = sys.stdin is not None and sys.stdin.isatty()
    refusal = "" if dry_run else _sudo_refuses(asks=asks)
    if not refusal:
        names = [name for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ]
        variables = [f"{name}={os.environ[name]}" for name in names]
        return ["sudo", *([] if asks else ["-n"]), "-E", "env", *variables], options, []
    if another:
        raise CaptureError(
            f"nsys cannot run the job as {options.run_as}",
            why=f"That needs root, and sudo refuses: {refusal}.",
            hint="Start it in a terminal, where sudo can ask for the password, or allow sudo without one.",
        )
    note = (
        f"{' and '.join(reasons)} would need root, and sudo refuses ({refusal}): nsys runs without. In a terminal sudo "
        "can ask for the password"
    )
    return (
        [],
        replace(
            options,
            run_as=None,
            gpu_metrics_device=None if _COUNTERS in reasons else options.gpu_metrics_device,
            sample="none" if _SAMPLES in reasons else options.sample,
        ),
        [note],
    )


def _sudo_refuses(*, asks: bool) -> str:
    """Why sudo does not work; "" when it does. In a terminal it may ask for the password: the one prompt there is."""
    words = ["-v", "-p", _PASSWORD_PROMPT] if asks else ["-n", "-E", "env", "true"]
    try:
        done = subprocess.run(
            ["sudo", *words],
            stdin=None if asks else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=None if asks else subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return f"sudo: {error.strerror}"
    if done.returncode == 0:
        return ""
    return "no password was given" if asks else (done.stderr.strip() or "sudo failed").splitlines()[0]
