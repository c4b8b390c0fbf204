"""The machine this process runs on: cores, memory, processes, file descriptors. Linux and macOS.

Linux answers from /proc; macOS has neither /proc, nor sched_getaffinity, nor SC_AVPHYS_PAGES, so each function has a
fallback. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def user_name() -> str:
    """Of this process; its number where it has no name, as in a container that was started with --user."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())


def usable_cores() -> int:
    """Cores this process may run on; all of the machine's where the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes() -> int:
    """Memory that is free now; half of the machine's where the system cannot tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return physical_memory_bytes() // 2


def physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def address_space_bytes() -> int | None:
    """Address space this process has mapped; None where the system does not tell."""
    return _statm(0)


def resident_bytes() -> int | None:
    """Memory this process occupies; None where the system does not tell."""
    return _statm(1)


def _statm(field: int) -> int | None:
    try:
        pages = int((PROC / "self/statm").read_text(encoding="ascii").split()[field])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to somebody else
        return True
    return True


def has_descriptor_paths() -> bool:
    """Whether /proc/self/fd/N opens a descriptor of this process anew, with its own position."""
    return (PROC / "self/fd").is_dir()


def core_limit() -> float | None:
    """How many cores the control group of this process may use; None without a limit."""
    try:
        path = (PROC / "self/cgroup").read_text().strip().rpartition("::")[2]
        quota, period = Path(f"/sys/fs/cgroup{path}/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
