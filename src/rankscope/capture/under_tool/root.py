"""Root for nsys: --run-as USER runs the job as USER and nsys as root, with sudo, where what is asked for needs it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rankscope import tools
from rankscope.errors import CaptureError
from rankscope.host import user_name
from rankscope.tools import NsysOptions

# Who may read the GPU's counters; the driver's default is root only.
_DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")
_ANSWER_SECONDS = 30
_PASSWORD_PROMPT = "[sudo] password for %u (nsys needs root): "
_COUNTERS, _SAMPLES = "--gpu-metrics-device", "--sample"


class AsRoot(NamedTuple):
    """How nsys gets root for --run-as, where it needs it."""

    prefix: tuple[str, ...]
    """sudo with the variables that it would drop; empty where nsys runs as this user."""
    options: NsysOptions
    notes: tuple[str, ...] = ()


def as_root(program: str, options: NsysOptions, *, dry_run: bool = False) -> AsRoot:
    """Root for --run-as where something that was asked for needs it, and sudo gives it."""
    if options.run_as is None or os.geteuid() == 0:
        return AsRoot((), options)
    another = options.run_as != user_name()
    reasons = _reasons_for_root(program, options)
    if not reasons and not another:
        note = "nothing that was asked for needs root here: --run-as is left out"
        return AsRoot((), replace(options, run_as=None), (note,))
    asks = sys.stdin is not None and sys.stdin.isatty()
    refusal = "" if dry_run else _sudo_refuses(asks=asks)
    if not refusal:
        kept = [f"{name}={os.environ[name]}" for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ]
        return AsRoot(("sudo", *([] if asks else ["-n"]), "-E", "env", *kept), options)
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
    options = replace(options, run_as=None)
    if _COUNTERS in reasons:
        options = replace(options, gpu_metrics_device=None)
    if _SAMPLES in reasons:
        options = replace(options, sample="none")
    return AsRoot((), options, (note,))


def _reasons_for_root(program: str, options: NsysOptions) -> list[str]:
    """The options that were asked for and need root on this machine."""
    given = tools.given_options("nsys", options.extra)
    reasons = []
    counters = options.gpu_metrics_device or any(name.startswith(_COUNTERS) for name in given)
    if counters and _only_root_reads_counters():
        reasons.append(_COUNTERS)
    sample = given.get(_SAMPLES, options.sample)
    if sample != "none" and _refuses_samples(program, sample):
        reasons.append(_SAMPLES)
    return reasons


def _only_root_reads_counters() -> bool:
    try:
        return "RmProfilingAdminOnly: 0" not in _DRIVER_SETTINGS.read_text(errors="replace")
    except OSError:
        return True


def _refuses_samples(program: str, sample: str) -> bool:
    try:
        answer = subprocess.run(
            tools.nsys_check_privileges(program),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return tools.refuses_cpu_profiling(answer.stdout, sample)


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
    return (
        "no password was given"
        if asks
        else done.stderr.strip().splitlines()[0]
        if done.stderr.strip()
        else "sudo failed"
    )
