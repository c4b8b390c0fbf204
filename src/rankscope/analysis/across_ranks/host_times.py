"""What `rankscope profile` records about the CPU in each step of a rank: inapp/host_cpu.py writes it into the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.cache import once_per_run
from rankscope.records import dataclass
from rankscope.timeline.run import Run

Floats = NDArray[np.float64]
COLUMNS = ("wall_ns", "cpu_ns", "process_ns", "run_delay_ns", "gc_ns")


@dataclass(frozen=True)
class HostTimes:
    """Of one rank. Arrays have an entry a step; NaN: the system did not say."""

    host: str
    cores: tuple[int, ...]
    """The training thread may run on these."""
    core_limit: float | None
    """How many cores its container may use."""
    ranks_on_host: int
    """As the launcher counts them; 0: not known."""
    step: NDArray[np.int64]
    times: Mapping[str, Floats]
    """By COLUMNS: of the training thread the time, its time on a core and its wait for one; CPU time of the whole
    process; garbage collection in any thread."""
    threads: Mapping[str, Floats]
    """CPU time of Python's other threads that were busy."""
    native: tuple[tuple[str, int, int], ...]
    """Other threads of the process over the whole recording: name, CPU time, wait for a core."""
    window_ns: int
    process_ns: int
    busy_ns: int | None
    """Over the whole recording: how long its cores were busy, with any process."""

    def of_steps(self, steps: Sequence[int | None], name: str) -> Floats:
        """One of COLUMNS or a thread, for these steps; NaN where a step was not recorded."""
        values = self.times.get(name, self.threads.get(name))
        total = np.full(len(steps), np.nan)
        if values is not None:
            at = {int(step): number for number, step in enumerate(self.step)}
            for number, step in enumerate(steps):
                if step in at:
                    total[number] = values[at[step]]
        return total


@once_per_run
def host_times(run: Run) -> dict[int, HostTimes]:
    """By rank; ranks whose recording has none are left out."""
    by_rank: dict[int, list[HostTimes]] = {}
    for entry in run.timelines:
        captured = entry.manifest.get("header", {}).get("rankscope")
        recorded = captured.get("host_cpu") if isinstance(captured, dict) else None
        if isinstance(recorded, dict) and (times := _read(str(captured.get("host")), recorded)) is not None:
            by_rank.setdefault(entry.rank, []).append(times)
    return {rank: _joined(cycles) for rank, cycles in by_rank.items()}


def _read(host: str, recorded: Mapping[str, Any]) -> HostTimes | None:
    """None where it is not what the capture writes."""
    try:
        steps, threads = recorded["steps"], recorded["threads"]
        numbers = np.array(steps["step"], dtype=np.int64)
        busy, limit = recorded["busy_ns"], recorded["core_limit"]
        times = HostTimes(
            host,
            tuple(int(core) for core in recorded["cores"]),
            None if limit is None else float(limit),
            int(recorded["ranks_on_host"] or 0),
            numbers,
            {name: np.array(steps[name], dtype=np.float64) for name in COLUMNS},
            {str(name): np.array(values, dtype=np.float64) for name, values in threads.items()},
            tuple(
                (str(thread["name"]), int(thread["cpu_ns"]), int(thread["run_delay_ns"]))
                for thread in recorded["native_threads"]
            ),
            int(recorded["window_ns"]),
            int(recorded["process_ns"]),
            None if busy is None else int(busy),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    lengths = {len(values) for values in (*times.times.values(), *times.threads.values())}
    return times if lengths == {len(numbers)} and len(numbers) else None


def _joined(cycles: Sequence[HostTimes]) -> HostTimes:
    """The cycles of a rank, one after another."""
    if len(cycles) == 1:
        return cycles[0]
    first = cycles[0]
    names = dict.fromkeys(name for cycle in cycles for name in cycle.threads)
    busy = [cycle.busy_ns for cycle in cycles]
    return HostTimes(
        first.host,
        first.cores,
        first.core_limit,
        first.ranks_on_host,
        np.concatenate([cycle.step for cycle in cycles]),
        {name: np.concatenate([cycle.times[name] for cycle in cycles]) for name in COLUMNS},
        {
            name: np.concatenate([cycle.threads.get(name, np.zeros(len(cycle.step))) for cycle in cycles])
            for name in names
        },
        tuple(thread for cycle in cycles for thread in cycle.native),
        sum(cycle.window_ns for cycle in cycles),
        sum(cycle.process_ns for cycle in cycles),
        None if None in busy else sum(value or 0 for value in busy),
    )


@dataclass(frozen=True)
class CoreUse:
    """How many cores are in use, on average, of those that some ranks may run on."""

    ranks: int
    """The ranks that may run on them."""
    cores: float
    """How many there are, or fewer where the container may use fewer."""
    by_ranks: float
    by_others: float | None
    """By other processes; None where that is not known: other ranks may use these cores."""


def core_use(times: Mapping[int, HostTimes], rank: int) -> CoreUse:
    """Of the cores that this rank may use."""
    mine = times[rank]
    on_host = {other: each for other, each in times.items() if each.host == mine.host}
    same = {other: each for other, each in on_host.items() if each.cores == mine.cores}
    overlap = any(other not in same and set(each.cores) & set(mine.cores) for other, each in on_host.items())
    by_ranks = sum(each.process_ns / max(each.window_ns, 1) for each in same.values())
    unrecorded = mine.ranks_on_host > len(on_host)
    by_others = None
    if mine.busy_ns is not None and not overlap and not unrecorded:
        by_others = max(mine.busy_ns / max(mine.window_ns, 1) - by_ranks, 0.0)
    cores = float(len(mine.cores))
    return CoreUse(len(same), min(cores, mine.core_limit or cores), by_ranks, by_others)


def use_of_host(times: Mapping[int, HostTimes], host: str) -> CoreUse:
    """Of all cores that the ranks of a host may use."""
    on_host = {rank: each for rank, each in times.items() if each.host == host}
    sets = {each.cores: rank for rank, each in on_host.items()}
    uses = [core_use(times, rank) for rank in sets.values()]
    others = [use.by_others for use in uses]
    cores = float(len({core for each in sets for core in each}))
    limit = max(each.core_limit or cores for each in on_host.values())
    # Ranks that were not recorded run there, too, where the recorded ones are not bound.
    listed = max(each.ranks_on_host for each in on_host.values()) if len(on_host) > len(sets) == 1 else 0
    return CoreUse(
        max(len(on_host), listed),
        min(cores, limit),
        sum(use.by_ranks for use in uses),
        None if None in others else sum(other or 0.0 for other in others),
    )
