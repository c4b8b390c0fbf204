"""Run a command and measure it: seconds, CPU seconds, and the most memory its process tree held."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    peak_bytes: int


class CommandError(Exception):
    """A command that was to be measured failed, or took too long."""


def cores_in_order() -> list[int]:
    """The cores this process may use; the second threads of a core come after the first threads of all."""
    siblings: dict[int, int] = {}
    for core in sorted(os.sched_getaffinity(0)):
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/core_cpus_list")
        first = re.match(r"\d+", path.read_text()) if path.is_file() else None
        siblings[core] = int(first[0]) if first else core
    return sorted(siblings, key=lambda core: (core != siblings[core], core))


def measure(command: Sequence[object], timeout: float | None = None, cores: int | None = None) -> Cost:
    """Run to the end, its output thrown away. CPU seconds include those of the processes it started and waited for.

    `cores`: it may run on so many; None: on all.
    """
    words = [str(word) for word in command]
    allowed = os.sched_getaffinity(0)
    with tempfile.TemporaryFile() as errors:
        started = time.perf_counter()
        os.sched_setaffinity(0, cores_in_order()[:cores])  # the process inherits it
        try:
            process = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
        finally:
            os.sched_setaffinity(0, allowed)
        tree = _TreeMemory(process.pid)
        killer = threading.Timer(timeout or 0, os.killpg, (process.pid, signal.SIGKILL))
        if timeout is not None:
            killer.start()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        killer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        sampled = tree.stop()
        if timeout is not None and seconds >= timeout:
            raise CommandError(f"ended after {timeout:.0f} s")
        if process.returncode:
            errors.seek(0)
            complaint = errors.read().decode(errors="replace").strip()[-2000:]
            raise CommandError(f"{' '.join(words)[:200]} failed ({process.returncode}):\n{complaint}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, sampled)


def best_of(
    repeat: int,
    command: Sequence[object],
    prepare: Callable[[], object] = lambda: None,
    timeout: float | None = None,
    cores: int | None = None,
) -> Cost:
    """The least of some runs: what other processes add is not the command's. 10 CPU seconds are enough."""
    costs: list[Cost] = []
    while not costs or (len(costs) < repeat and costs[0].cpu_seconds < 10):
        prepare()
        costs.append(measure(command, timeout, cores))
    return Cost(
        min(cost.seconds for cost in costs),
        min(cost.cpu_seconds for cost in costs),
        max(cost.peak_bytes for cost in costs),
    )


class _TreeMemory(threading.Thread):
    """Samples the memory of a process and its descendants until it is stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._peak = tree_bytes(pid)  # on a busy machine a short command ends before the thread has run
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        pause = 0.02
        while not self._over.wait(pause):
            began = time.thread_time()
            self._peak = max(self._peak, tree_bytes(self._pid))
            pause = max(0.02, 20 * (time.thread_time() - began))  # at most 5 % of a core

    def stop(self) -> int:
        self._over.set()
        self.join()
        return self._peak


def tree_bytes(pid: int) -> int:
    """What a process and its descendants occupy. Pages that several of them share are counted once.

    A process without descendants is asked for the most it ever held, so that nothing between two samples is missed.
    (The ru_maxrss of os.wait4 would not do: at first it is that of the process that starts the command.)
    """
    tree = _descendants(pid)
    if len(tree) == 1:
        return _bytes(f"/proc/{pid}/status", "VmHWM:")
    return sum(_bytes(f"/proc/{each}/smaps_rollup", "Pss:") for each in tree)


def _descendants(pid: int) -> list[int]:
    """The process and all below it; a process is listed under the thread that started it."""
    found = [pid]
    for process in found:
        for thread in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                found += [int(child) for child in thread.read_text().split()]
            except OSError:  # the thread has ended
                continue
    return found


def _bytes(path: str, field: str) -> int:
    """A field of a file that gives sizes in kB."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:  # the process has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)
