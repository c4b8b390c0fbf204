"""The machine this process runs on: cores, memory, processes, file descriptors. Linux and macOS.

Linux answers from /proc; macOS has neither /proc, nor sched_getaffinity, nor SC_AVPHYS_PAGES, so each function has a
fallback. Standard library only.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import re

PROC = Path("/proc")
_KERNEL_LOG = Path("/dev/kmsg")
_LONGEST_MESSAGE = 8192
_ROOM, _HIGHEST = 8, 1024


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


def high_descriptor(descriptor: int) -> int:
    """Give an open file one of the highest numbers that the process may have, but below 1024, for select(2).

    A script may close descriptors that are not its own. Numbers are given out from the lowest, so such a number is not
    taken by a file of the script's.
    """
    import fcntl
    import resource

    least = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _HIGHEST) - _ROOM
    try:
        number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:  # none is free there
        return descriptor
    os.close(descriptor)
    return number


def kernel_messages(wanted: re.Pattern[str], since_unix_ns: int) -> list[str]:
    """The kernel's messages since then that match, the oldest first; none where this user may not read them."""
    messages = []
    try:
        log = os.open(_KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    try:
        booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        # Each read returns one record: "6,1234,98765432,-;NVRM: Xid (PCI:0000:17:00): 79, …", the time in microseconds.
        while record := os.read(log, _LONGEST_MESSAGE).decode(errors="replace"):
            header, _, text = record.partition(";")
            if wanted.search(text) and booted_ns + int(header.split(",")[2]) * 1000 >= since_unix_ns:
                messages.append(text.splitlines()[0])
    except (OSError, ValueError, IndexError):  # no more records, or the oldest one was overwritten meanwhile
        pass
    finally:
        os.close(log)
    return messages
