"""Is the host short of CPU: waits for a core, garbage collection, compilation, and threads that compete for the GIL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import has_gpu
from rankscope.analysis.core.intervals import Ints, covered, join, union
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Why
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope, step_numbers
from rankscope.analysis.core.severity import WARNING_SHARE, graded
from rankscope.analysis.core.step_times import mean_step_ns, periods
from rankscope.analysis.within_rank.breakdown import rank_parts
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.arrays import Floats
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

TIMES = ("wall_ns", "cpu_ns", "process_ns", "run_delay_ns", "gc_ns")


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
    step: Ints
    times: Mapping[str, Floats]
    """By TIMES: of the training thread the time, its time on a core and its wait for one; CPU time of the whole
    process; garbage collection in any thread. By name the CPU time of Python's other threads that were busy."""
    window_ns: int
    process_ns: int
    busy_ns: int | None
    """Over the whole recording: how long its cores were busy, with any process."""

    @property
    def threads(self) -> list[str]:
        return [name for name in self.times if name not in TIMES]

    def of_steps(self, steps: Sequence[int | None], name: str) -> Floats:
        """One of TIMES or a thread, for these steps; NaN where a step was not recorded."""
        known = dict(zip(self.step.tolist(), self.times.get(name, ()), strict=False))
        return np.array([known.get(step, np.nan) for step in steps], dtype=np.float64)


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
            {
                str(name): np.array(values, dtype=np.float64)
                for name, values in (threads | {name: steps[name] for name in TIMES}).items()
            },
            int(recorded["window_ns"]),
            int(recorded["process_ns"]),
            None if busy is None else int(busy),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
    lengths = {len(values) for values in times.times.values()}
    return times if lengths == {len(numbers)} and len(numbers) else None


def _joined(cycles: Sequence[HostTimes]) -> HostTimes:
    """The cycles of a rank, one after another."""
    names = dict.fromkeys(name for cycle in cycles for name in cycle.times)
    busy = [cycle.busy_ns for cycle in cycles if cycle.busy_ns is not None]
    return replace(
        cycles[0],
        step=np.concatenate([cycle.step for cycle in cycles]),
        times={
            name: np.concatenate([cycle.times.get(name, np.zeros(len(cycle.step))) for cycle in cycles])
            for name in names
        },
        window_ns=sum(cycle.window_ns for cycle in cycles),
        process_ns=sum(cycle.process_ns for cycle in cycles),
        busy_ns=sum(busy) if len(busy) == len(cycles) else None,
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


COLUMNS = (
    Column("rank"),
    Column("step", help="null: the whole window"),
    Column("wall_ns", "ns", "time of the step, as the training thread measured it", title="Time"),
    Column("cpu_ns", "ns", "time of its training thread on a core", title="CPU"),
    Column(
        "run_delay_ns", "ns", "time in which its training thread could run and had no core", title="Run delay"
    ),
    Column("gc_ns", "ns", "Python's garbage collection, in any thread", title="GC"),
    Column("other_threads_ns", "ns", "CPU time of the other threads of its process", title="Other threads"),
    Column("cores", "count", "cores that it may use", title="Cores"),
    Column("thread", help="the other Python thread with most CPU time", title="Busiest thread", minor=True),
    Column("thread_ns", "ns", "its CPU time", title="Its CPU", minor=True),
)
NOT_RECORDED = (
    "CPU times of threads were not recorded; `rankscope profile` records them in each step, on Linux"
)
_LEAST_PART = 0.5
"""A reason explains at least this part of the time that a rank is late."""
_SMALL_PART, _MUCH_LONGER = 0.1, 3.0
"""Steps in which a rank is late by less than this part of its mean are not listed; one step that takes so many times as
long as the others is told apart."""
_OTHERS_SHARE = 0.1
"""Other processes are named where they use this share of the cores."""
_MUCH_SHARE = 0.25
"""Of the step: a wait for a core that is reported even where the rank's own threads take the cores. Chosen, not
measured."""
_OPS_BEFORE = 8
"""Between the time in which torch.compile loads its modules and its first range, the program makes its arguments."""
_NAME_WIDTH = 60


def host_cpu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each rank; with `by` step also one for each rank and step."""
    times = host_times(run)
    steps = step_numbers(run, scope)
    ranks = [rank for rank in scope.ranks_in(run) if rank in times]
    rows = [_row(rank, None, times[rank], steps) for rank in ranks]
    if by == "step":
        rows += [
            _row(rank, step, times[rank], [step])
            for rank in ranks
            for step in steps
            if step in times[rank].step
        ]
    every_step = step_numbers(run, Scope(steps=scope.steps))
    means = {
        rank: {name: _mean(of_rank.of_steps(every_step, name)) for name in TIMES}
        for rank, of_rank in times.items()
        if every_step
    }
    short = [rank for rank, mean in means.items() if _is_short(mean)]
    findings = (_shortage(run, scope, means, short),) if 2 * len(short) > len(run.ranks) else ()
    notes = () if rows else (NOT_RECORDED,)
    facts = {"short_ranks": [rank for rank in short if rank in ranks]} if rows else {}
    return Result("host_cpu", "CPU of the hosts", scope.window, COLUMNS, rows, findings, notes, facts=facts)


def _row(rank: int, step: int | None, times: HostTimes, steps: Sequence[int]) -> dict[str, Any]:
    sums = {name: _sum(times.of_steps(steps, name)) for name in times.times}
    busiest = max(times.threads, key=lambda name: sums[name] or 0, default=None)
    process, cpu = sums["process_ns"], sums["cpu_ns"]
    return {
        "rank": rank,
        "step": step,
        **{name: sums[name] for name in ("wall_ns", "cpu_ns", "run_delay_ns", "gc_ns")},
        "other_threads_ns": None if process is None or cpu is None else max(process - cpu, 0),
        "cores": len(times.cores),
        "thread": busiest,
        "thread_ns": sums[busiest] if busiest else None,
    }


def _sum(values: Floats) -> int | None:
    """Of the steps that were recorded; None without any."""
    return None if np.isnan(values).all() else round(float(np.nansum(values)))


# -- too few cores for all: nobody is late, everybody is slow


def _is_short(mean: Mapping[str, float]) -> bool:
    """Whether a rank waits for a core; not where it waits a little for threads of its own."""
    for_others = mean["run_delay_ns"] - (mean["process_ns"] - mean["cpu_ns"])
    return (
        for_others >= WARNING_SHARE * mean["wall_ns"] or mean["run_delay_ns"] >= _MUCH_SHARE * mean["wall_ns"]
    )


def _mean(values: Floats) -> float:
    return float("nan") if np.isnan(values).all() else float(np.nanmean(values))


def _cost_ns(run: Run, scope: Scope, means: Mapping[int, Mapping[str, float]]) -> float:
    """The wait for a core, and the same part of the time in collectives: there a rank waits for threads and ranks that
    are as short of cores."""
    parts, costs = rank_parts(run, scope), []
    for rank, mean in means.items():
        delay, cpu = mean["run_delay_ns"], mean["cpu_ns"]
        if rank in parts and delay + cpu > 0:
            blocked = max(mean["wall_ns"] - cpu - delay, 0.0)
            exposed = float(parts[rank].exposed_comm.sum()) / max(len(parts[rank].step), 1)
            costs.append(delay + delay / (delay + cpu) * min(blocked, exposed))
    return float(np.mean(costs)) if costs else 0.0


def _shortage(run: Run, scope: Scope, means: Mapping[int, Mapping[str, float]], short: list[int]) -> Finding:
    """More than half of the ranks wait for a core. Times are means over ranks and steps."""
    wall, cpu, delay = (
        _mean(np.array([mean[name] for mean in means.values()]))
        for name in ("wall_ns", "cpu_ns", "run_delay_ns")
    )
    # GPUs may hide it.
    cost = None if has_gpu(run, Scope()) else round(_cost_ns(run, Scope(steps=scope.steps), means))
    times = host_times(run)
    # Mostly all nodes are alike: the sentence is about the most common case.
    uses = {host: use_of_host(times, host) for host in sorted({times[rank].host for rank in short})}
    (count, cores), alike = Counter((use.ranks, use.cores) for use in uses.values()).most_common(1)[0]
    use = next(use for use in uses.values() if (use.ranks, use.cores) == (count, cores))
    waits, share = format_rounded("ns", delay), f"({100 * delay / wall:.0f} %)"
    if count > cores:
        on_each = f" on each of {alike} nodes" if alike > 1 else ""
        title = (
            f"{count} ranks share {_cores(cores)}{on_each}: each waits {waits} per step for a core {share}"
        )
    else:
        title = f"The ranks wait {waits} per step for their {_cores(cores)} {share}"
    if use.by_others is not None and use.by_others >= _OTHERS_SHARE * cores:
        title += f"; other processes use {use.by_others:.1f} of them"
    return Finding(
        (None if cost is None else graded(cost, mean_step_ns(run, scope), 0.0)) or "info",
        title,
        advice="Give each rank cores of its own (--cpus-per-task, the CPU limit of the container), or start fewer "
        "ranks, threads (OMP_NUM_THREADS) and data loading workers.",
        cost_ns=cost,
        alone_ns=cost,
        facts=(
            Fact("cause", "contention", "", "all ranks"),
            Fact("run_delay_per_step_ns", round(delay), "ns", "mean over the ranks"),
            Fact("run_delay_pct", 100 * delay / wall, "percent", "mean over the ranks"),
            Fact("training_thread_ns", round(cpu), "ns", "per step"),
            Fact("cores_used", use.by_ranks, "count", f"of {_cores(cores)}, by the ranks"),
            Fact("cores_used", use.by_others, "count", "by other processes"),
        ),
    )


def _cores(count: float) -> str:
    return f"{count:.3g} core{'s' * (count != 1)}"


# -- why one rank is late


@dataclass(frozen=True)
class _LateSteps:
    """A late rank in the steps of the window."""

    run: Run
    rank: int
    steps: tuple[int, ...]
    own: Floats
    """How late it is, by step; never negative."""
    mine: HostTimes | None
    peers: Mapping[int, HostTimes]

    def extra(self, name: str) -> Floats:
        """By step, how much more than on the median of the peers it is; 0 where it is less, or not known."""
        if self.mine is None:
            return np.zeros(len(self.steps))
        values = np.nan_to_num(self.mine.of_steps(self.steps, name))
        if self.peers:
            others = np.stack(
                [np.nan_to_num(peer.of_steps(self.steps, name)) for peer in self.peers.values()]
            )
            values = values - np.median(others, axis=0)
        return np.maximum(values, 0.0)

    def explains(self, extra: Floats) -> bool:
        return bool(self.own.sum() > 0 and extra.sum() >= _LEAST_PART * self.own.sum())

    def took(self, extra: Floats) -> tuple[tuple[float, str], ...]:
        """How long, and in which steps: those in which it explains most of a delay that counts."""
        late = (extra >= _LEAST_PART * self.own) & (self.own >= _SMALL_PART * self.own.mean())
        late[extra.argmax()] = True
        worst, others = int(extra.argmax()), np.flatnonzero(late)
        others = others[others != worst]
        if 2 * len(others) >= len(self.steps):
            return ((extra[late].mean(), "per step"),)
        longest = (extra[worst], f"in step {self.steps[worst]}")
        if not len(others):
            return (longest,)
        usual = np.median(extra[others])
        if extra[worst] < _MUCH_LONGER * usual:
            return ((extra[late].mean(), f"in each of {late.sum()} steps"),)
        return longest, (usual, f"in {len(others)} other step{'s' * (len(others) != 1)}")

    def took_words(self, extra: Floats) -> str:
        return ", ".join(f"{format_rounded('ns', value)} {when}" for value, when in self.took(extra))

    def facts(self, quantity: str, extra: Floats) -> tuple[Fact, ...]:
        """The mean, with the rank's row, and what the sentence says."""
        subject, mine = f"rank {self.rank}, more than its peers", (self.rank,)
        row = {"rank": self.rank}
        return (
            Fact(quantity, round(float(extra.mean())), "ns", subject, mine, row, "host_cpu"),
            *(Fact("took_ns", round(value), "ns", when, mine) for value, when in self.took(extra)),
        )


def host_reason(
    run: Run, rank: int, together: Sequence[int], steps: Sequence[int], late_ns: Floats
) -> Why | None:
    """The reason why the host of a rank is late by `late_ns` in each of these steps, where one was recorded that
    explains most of it.

    `together` are all ranks that are late for the same reason; the others are compared with.
    """
    late = _late_steps(run, rank, together, steps, late_ns)
    pauses = [pause for pause in (_garbage(late), _compilation(late)) if pause is not None]
    if pauses:
        return max(pauses, key=lambda pause: pause[0])[1]
    if late.mine is None or not late.peers:
        return None
    return _busy_thread(late) or _taken_core(late, host_times(run))


def thread_state(run: Run, rank: int, together: Sequence[int], steps: Sequence[int], late_ns: Floats) -> str:
    """What the training thread does for most of a pause: 'asleep', 'busy on a CPU', or '' where that is not known."""
    late = _late_steps(run, rank, together, steps, late_ns)
    if late.mine is None:
        return ""
    wall, cpu, delay = (
        np.nan_to_num(late.mine.of_steps(late.steps, name)) for name in ("wall_ns", "cpu_ns", "run_delay_ns")
    )
    # It ran, or waited for a core, for less than half of the pauses even if it did so nowhere else.
    paused = late.own > 0
    if wall[paused].all() and 2 * (cpu + delay)[paused].sum() < late.own.sum():
        return "asleep"
    if late.peers and late.explains(late.extra("cpu_ns")):
        return "busy on a CPU"
    is_waiting_known = late.peers and not has_gpu(run, Scope())
    asleep = is_waiting_known and late.explains(
        np.maximum(_not_running(late) - late.extra("run_delay_ns"), 0.0)
    )
    return "asleep" if asleep else ""


def _late_steps(
    run: Run, rank: int, together: Sequence[int], steps: Sequence[int], late_ns: Floats
) -> _LateSteps:
    times = host_times(run)
    peers = {other: each for other, each in times.items() if other != rank and other not in together}
    return _LateSteps(run, rank, tuple(steps), late_ns, times.get(rank), peers)


def _garbage(late: _LateSteps) -> tuple[float, Why] | None:
    extra = late.extra("gc_ns")
    if not late.explains(extra):
        return None
    return float(extra.sum()), Why(
        f"garbage collection takes {late.took_words(extra)}",
        "Collect on all ranks in the same step, or less often: gc.disable() and gc.collect() every so many steps, "
        "gc.freeze() after the set-up.",
        late.facts("gc_per_step_ns", extra),
        report="host_cpu",
    )


_COMPILES = "(name = 'dynamo' OR name LIKE '%(dynamo_timed)' OR name LIKE 'entire_frame_compile%')"


def _compilation(late: _LateSteps) -> tuple[float, Why] | None:
    """torch.compile marks its work by ranges. What it needs before the first one has none: it loads its modules."""
    run = part_of(late.run, frozenset({late.rank}))
    ranges = run.arrays(
        f"SELECT start_ns AS start, start_ns + dur_ns AS stop FROM slices WHERE rank = {late.rank} AND {_COMPILES}"
    )
    if not len(ranges["start"]):
        return None
    compiles = union(ranges["start"], ranges["stop"])
    ops = run.arrays(
        f"SELECT start_ns AS start, start_ns + dur_ns AS stop FROM slices WHERE rank = {late.rank} "
        f"AND category = 'cpu_op' AND op IS NULL AND NOT {_COMPILES} ORDER BY start"
    )
    mine = periods(late.run, Scope(frozenset({late.rank})))
    spans = dict(zip(mine.step.tolist(), zip(*mine.intervals, strict=True), strict=True))
    start, end = np.array([spans.get(step, (0, 0)) for step in late.steps], dtype=np.int64).T
    loads = [_longest_before(ops, start, at) for at in compiles.start.tolist()]
    loading = union(*(np.array(side, dtype=np.int64) for side in zip(*loads, strict=True)))
    compiling = covered(compiles, start, end).astype(np.float64)
    extra = np.where(compiling > 0, covered(join(compiles, loading), start, end), 0).astype(np.float64)
    if not late.explains(extra):
        return None
    worst, facts = int(extra.argmax()), late.facts("compile_per_step_ns", extra)
    if compiling[worst] < _LEAST_PART * extra[worst]:
        before_first, step = round(extra[worst] - compiling[worst]), f"step {late.steps[worst]}"
        facts += (Fact("before_compile_ns", before_first, "ns", step, (late.rank,)),)
    return float(extra.sum()), Why(
        f"torch.compile takes {late.took_words(extra)}",
        "Find out why it compiles again (TORCH_LOGS=recompiles), and compile before the first step.",
        facts,
        report="host_cpu",
    )


def _longest_before(ops: Mapping[str, Ints], steps: Ints, at: int) -> tuple[int, int]:
    """The longest time without an op among the last few before a moment, in its step."""
    last = int(np.searchsorted(ops["start"], at))
    first = max(last - _OPS_BEFORE, 0)
    since = steps[steps <= at].max(initial=0)
    ends = np.append(ops["start"][first:last], at)
    begins = np.maximum(
        np.append(ops["stop"][first - 1 : first] if first else since, ops["stop"][first:last]), since
    )
    longest = int((ends - begins).argmax())
    return int(begins[longest]), max(int(ends[longest]), int(begins[longest]))


def _busy_thread(late: _LateSteps) -> Why | None:
    """A Python thread that is busy while the training thread is ready and does not run: it waits for the GIL."""
    assert late.mine is not None
    name = max(late.mine.threads, key=lambda thread: late.extra(thread).sum(), default=None)
    if name is None:
        return None
    extra = np.minimum(late.extra(name), _not_running(late))
    if not late.explains(extra):
        return None
    wall = late.mine.of_steps(late.steps, "wall_ns")
    used = late.mine.of_steps(late.steps, name)
    share = np.nansum(used) / max(np.nansum(wall), 1.0)
    thread = shorten_middle(name, _NAME_WIDTH)
    runs, trains = (round(_mean(each)) for each in (used, late.mine.of_steps(late.steps, "cpu_ns")))
    return Why(
        f"thread {thread} used {share:.2f} of a core",
        "Python's threads run one at a time (GIL): move its work into another process (workers of the DataLoader).",
        (
            Fact("thread_runs_ns", runs, "ns", "per step", (late.rank,)),
            Fact("training_thread_ns", trains, "ns", "per step", (late.rank,)),
            *late.facts("thread_per_step_ns", late.extra(name)),
        ),
        (name,),
        "host_cpu",
    )


def _not_running(late: _LateSteps) -> Floats:
    """By step: how much longer than its peers the training thread neither runs nor waits in a collective."""
    parts = rank_parts(late.run, Scope(steps=(late.steps[0], late.steps[-1])))
    in_collectives = {
        rank: dict(zip(each.step.tolist(), each.exposed_comm.tolist(), strict=True))
        for rank, each in parts.items()
    }

    def blocked(rank: int, times: HostTimes) -> Floats:
        waited = np.array([in_collectives.get(rank, {}).get(step, 0) for step in late.steps])
        free = times.of_steps(late.steps, "wall_ns") - times.of_steps(late.steps, "cpu_ns") - waited
        result: Floats = np.maximum(np.nan_to_num(free), 0.0)
        return result

    assert late.mine is not None
    peers = np.stack([blocked(rank, times) for rank, times in late.peers.items()])
    extra: Floats = np.maximum(blocked(late.rank, late.mine) - np.median(peers, axis=0), 0.0)
    return extra


def _taken_core(late: _LateSteps, times: Mapping[int, HostTimes]) -> Why | None:
    """It waits for a core, and its peers do not."""
    extra = late.extra("run_delay_ns")
    if not late.explains(extra):
        return None
    use, mine = core_use(times, late.rank), times[late.rank]
    waits = f"it waits {late.took_words(extra)} for a core"
    cores = f"core{'s' * (len(mine.cores) != 1)} {as_ranges([*mine.cores])}"
    taken = use.by_others is not None and use.by_others >= _OTHERS_SHARE * use.cores
    by = f": other processes use {use.by_others:.2f} of its {cores}" if taken else ""
    return Why(
        f"{waits}{by}",
        "Look for other processes on its cores (top, ps -eLo psr,pcpu,comm) and bind them elsewhere; data loading "
        "workers of the job count too.",
        (
            *late.facts("run_delay_per_step_ns", extra),
            Fact("cores_used", use.by_ranks, "count", f"of {_cores(use.cores)}, by the ranks there"),
            Fact("cores_used", use.by_others, "count", "by other processes"),
        ),
        report="host_cpu",
        kind="contention",
    )
