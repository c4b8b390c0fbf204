"""How the host ran the steps of a window: CPU time and waits for a core, other threads, garbage collection.

It reads at the beginning of each step, and more at the window's beginning and end. No torch. What the system does not
tell is left out; nothing here fails the job. Functions of the library that are written in Python are avoided in a step:
with stacks, torch records them as the job's.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections.abc import Iterator
from io import FileIO
from typing import Any, NamedTuple

from rankscope.host import PROC, core_limit
from rankscope.inapp.added_events import AddedEvents

# Shorter collections are counted, but not shown.
SHORT_GC_NS = 100_000
# The header has room for so many steps, and the threads of so many names.
MOST_STEPS = 300
MOST_NAMES = 4
_MOST_THREADS = 256
# A thread that uses less of a core than this is not listed.
_LEAST_SHARE = 0.02
# Of the columns of /proc/stat: user, nice, system, irq, softirq, steal.
_BUSY_COLUMNS = (1, 2, 3, 6, 7, 8)


class _Reading(NamedTuple):
    """At the beginning of a step."""

    step: int
    wall_ns: int
    cpu_ns: int
    process_ns: int
    run_delay_ns: int | None
    gc_ns: int
    threads: dict[int, int]
    """CPU time of Python's other threads, by native id."""


class HostCpu:
    """Of one window, on the training thread. ``off`` ends it, also where ``fields`` was not asked for."""

    def __init__(self, added: AddedEvents, ranks_on_host: int | None) -> None:
        self._added = added
        self._ranks = ranks_on_host
        self._readings: list[_Reading] = []
        self._thread = threading.get_native_id()
        self._names: dict[int, str] = {}
        self._gc_ns = self._gc_began = 0
        self._native = _native_threads()
        self._busy_ns = _busy_ns()
        gc.callbacks.append(self._collecting)

    def step(self, number: int) -> None:
        """A step begins."""
        if len(self._readings) <= MOST_STEPS:
            try:
                self._readings.append(self._read(number))
            except Exception:  # noqa: BLE001  (the job must go on; the step is missing)
                return

    def off(self) -> None:
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)

    def fields(self) -> dict[str, Any]:
        """Of the window, which ends now."""
        self.off()
        if not self._readings:
            return {}
        first, last = self._readings[0], self._read(0)
        readings = [*self._readings, last][: MOST_STEPS + 1]
        wall = last.wall_ns - first.wall_ns
        busy, started = _busy_ns(), self._busy_ns
        return {
            "cores": _cores(),
            "core_limit": core_limit(),
            "ranks_on_host": self._ranks,
            "window_ns": wall,
            "process_ns": last.process_ns - first.process_ns,
            "busy_ns": None if busy is None or started is None else busy - started,
            "steps": _columns(readings),
            "threads": self._by_thread(readings, wall),
            "native_threads": self._native_times(wall),
        }

    def _read(self, number: int) -> _Reading:
        threads = {}
        # As threading.enumerate, native_id and name: these are in Python.
        for thread in [*getattr(threading, "_active", {}).values()][:_MOST_THREADS]:
            native = thread._native_id
            if native is not None and native != self._thread:
                try:
                    threads[native] = _thread_time_ns(native)
                except OSError:
                    continue  # it has ended
                self._names[native] = str(thread._name)
        return _Reading(
            number,
            time.perf_counter_ns(),
            _thread_time_ns(self._thread),
            time.process_time_ns(),
            _schedstat(self._thread)[1],
            self._gc_ns,
            threads,
        )

    def _by_thread(self, readings: list[_Reading], wall_ns: int) -> dict[str, list[int]]:
        """CPU time in each step of Python's threads that were busy, by name."""
        times: dict[str, list[int]] = {}
        for step, (before, after) in enumerate(itertools.pairwise(readings)):
            for native, cpu_ns in after.threads.items():
                row = times.setdefault(self._names[native], [0] * (len(readings) - 1))
                row[step] += max(0, cpu_ns - before.threads.get(native, 0))
        busy = {name: row for name, row in times.items() if sum(row) > _LEAST_SHARE * wall_ns}
        return dict(sorted(busy.items(), key=lambda item: -sum(item[1]))[:MOST_NAMES])

    def _native_times(self, wall_ns: int) -> list[dict[str, Any]]:
        """The other threads that were busy or waited for a core, by name, over the window."""
        times: dict[str, tuple[int, int]] = {}
        for native, (name, cpu_ns, delay_ns) in _native_threads().items():
            _, cpu_before, delay_before = self._native.get(native, ("", 0, 0))
            if native != self._thread:
                name = self._names.get(native, name)
                cpu, delay = times.get(name, (0, 0))
                times[name] = (cpu + cpu_ns - cpu_before, delay + delay_ns - delay_before)
        ordered = sorted(times.items(), key=lambda item: -sum(item[1]))[:MOST_NAMES]
        return [
            {"name": name, "cpu_ns": cpu, "run_delay_ns": delay}
            for name, (cpu, delay) in ordered
            if cpu + delay > _LEAST_SHARE * wall_ns
        ]

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        """Called by the garbage collector, in the thread that collects."""
        if phase == "start":
            self._gc_began = time.perf_counter_ns()
        elif self._gc_began:
            took = time.perf_counter_ns() - self._gc_began
            self._gc_began = 0
            self._gc_ns += took
            if took >= SHORT_GC_NS:
                name = f"garbage collection (generation {info['generation']})"
                self._added.add(name, time.time_ns() - took, took, {"collected": info["collected"]})


def _columns(readings: list[_Reading]) -> dict[str, list[int | None]]:
    pairs = list(itertools.pairwise(readings))
    return {
        "step": [before.step for before, _ in pairs],
        "wall_ns": [after.wall_ns - before.wall_ns for before, after in pairs],
        "cpu_ns": [after.cpu_ns - before.cpu_ns for before, after in pairs],
        "process_ns": [after.process_ns - before.process_ns for before, after in pairs],
        "run_delay_ns": [
            None
            if before.run_delay_ns is None or after.run_delay_ns is None
            else after.run_delay_ns - before.run_delay_ns
            for before, after in pairs
        ],
        "gc_ns": [after.gc_ns - before.gc_ns for before, after in pairs],
    }


def _thread_time_ns(native: int) -> int:
    """CPU time of a thread of this process, by the number that Linux makes of its id for its clock."""
    return time.clock_gettime_ns((~native << 3) | 6)


def _schedstat(native: int) -> tuple[int | None, int | None]:
    """A thread's time on a core, and the time that it could run and had none; None where Linux does not say."""
    try:
        with FileIO(f"/proc/self/task/{native}/schedstat") as file:  # each step: Path takes longer
            cpu_ns, delay_ns, _ = map(int, file.read(100).split())
    except (OSError, ValueError):
        return None, None
    return (cpu_ns, delay_ns) if cpu_ns else (None, None)


def _native_threads() -> dict[int, tuple[str, int, int]]:
    """Name, CPU time and run delay of the threads of this process."""

    def threads() -> Iterator[tuple[int, tuple[str, int, int]]]:
        for native in os.listdir("/proc/self/task")[:_MOST_THREADS]:  # noqa: PTH208
            cpu_ns, delay_ns = _schedstat(int(native))
            if cpu_ns is not None and delay_ns is not None:
                with FileIO(f"/proc/self/task/{native}/comm") as file:
                    name = file.read(100).decode(errors="replace").strip()
                yield int(native), (name, cpu_ns, delay_ns)

    try:
        return dict(threads())
    except OSError:
        return {}


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _busy_ns() -> int | None:
    """How long the cores of this process have been busy, also with other processes."""
    cores = {f"cpu{number}" for number in _cores()}
    try:
        with (PROC / "stat").open(encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        ticks = sum(int(words[column]) for words in lines if words[0] in cores for column in _BUSY_COLUMNS)
        return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None
