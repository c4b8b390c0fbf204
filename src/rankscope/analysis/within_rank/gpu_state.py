"""Clock, power, temperature and throttling of each rank's GPU while it computes, from logs of nvidia-smi and DCGM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.analysis.core.device_events import gpu_ranks, runs_on_cpu
from rankscope.analysis.core.intervals import EMPTY, Intervals, covered, intersect
from rankscope.analysis.core.rank_activity import rank_activity
from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv
from rankscope.analysis.core.rollups import kept_per_rank
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.step_times import windows
from rankscope.analysis.within_rank.event_tables import KernelSum
from rankscope.model import (
    HARDWARE_REASONS,
    MEMORY_CLOCK,
    POWER,
    POWER_LIMIT,
    POWER_REASONS,
    SM_CLOCK,
    SM_CLOCK_LIMIT,
    TEMPERATURE,
    THERMAL_REASONS,
    UTILIZATION,
    gpu_label,
)
from rankscope.ranges import as_ranges, rank_words
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import format_ns

FORMAT = "gpu-counters"
LEAST_SAMPLES = 3
"""The clock of a GPU changes within milliseconds: fewer samples are no mean."""
LOWER = 0.05
"""A clock this share below that of the other GPUs is reported. Boost clocks of equal GPUs differ by a few percent."""
_FAR_BELOW = 0.1
"""A clock this share below the highest is reported where no other GPU of the run is faster."""
_SHORT_GAP_NS = 1_000_000
"""Between kernels a GPU keeps its clock; it goes down when it is idle for longer."""
_SECOND_NS = 1_000_000_000

COLUMNS = (
    Column("rank"),
    Column("gpu", help="the number of its GPU on the node, as the log has it", title="GPU"),
    Column("model", help="its model, if the log has it", minor=True),
    Column(
        "samples", "count", "samples in the window while a compute kernel ran: the other columns are of these"
    ),
    Column("sm_clock_mhz", "MHz", "mean clock of the SMs", title="SM clock"),
    Column("sm_clock_min_mhz", "MHz", "lowest clock of the SMs", title="SM min"),
    Column("sm_clock_max_mhz", "MHz", "highest clock of the SMs", title="SM max", minor=True),
    Column("memory_clock_mhz", "MHz", "mean clock of the memory", title="Memory clock", minor=True),
    Column("power_w", "W", "mean power", title="Power"),
    Column("power_max_w", "W", "highest power", title="Power max", minor=True),
    Column("temperature_c", "°C", "mean temperature", title="Temperature"),
    Column("temperature_max_c", "°C", "highest temperature", title="Temperature max", minor=True),
    Column(
        "utilization_pct", "percent", "mean utilization as the tool reports it", "Utilization", minor=True
    ),
    Column("thermal_pct", "percent", "samples with a thermal slowdown", title="Thermal"),
    Column("power_cap_pct", "percent", "samples with a limit of power", title="Power cap"),
    Column(
        "hw_slowdown_pct", "percent", "samples with a slowdown by the hardware", "HW slowdown", minor=True
    ),
)


_REASONS = {
    "thermal_pct": (THERMAL_REASONS, "thermal slowdown", "Check the cooling", "TEMPERATURE"),
    "power_cap_pct": (
        POWER_REASONS,
        "power cap",
        "Large matrix products reach the power limit of a healthy GPU: compare it with others",
        "POWER",
    ),
    "hw_slowdown_pct": (HARDWARE_REASONS, "HW slowdown", "Check its power supply", "CLOCK,PERFORMANCE"),
}
"""By column: the series that tell it, and what is said of it."""


class Figures(NamedTuple):
    """One series over the samples of one GPU."""

    samples: int
    mean: float
    least: float
    most: float
    error: float
    """Standard error of the mean."""


@dataclass(frozen=True)
class GpuState:
    """One GPU while it computed."""

    gpu: str
    model: str
    period_ns: int
    """Usual distance of two moments in the log; 0 with fewer."""
    samples: int
    """Moments at which a compute kernel in the window ran."""
    series: dict[str, Figures]
    """Of these moments."""
    shares: dict[str, float]
    """Of these moments those with a reason for a lower clock, by _REASONS; without those that the log does not tell."""
    highest_mhz: float = 0.0
    """The highest clock of the SMs: as the tool reports it, else the highest in the log; 0 if the log has no clock."""
    is_reported: bool = False
    """The tool reports the highest clock."""

    @property
    def is_locked(self) -> bool:
        """The clock stayed the same, below its highest, and nothing slowed it down: a setting."""
        clock = self.clock
        steady = clock is not None and clock.least == clock.most < self.highest_mhz
        return steady and not any(self.shares.values())

    @property
    def clock(self) -> Figures | None:
        """Of the SMs, if there are enough samples."""
        clock = self.series.get(SM_CLOCK)
        return clock if clock is not None and clock.samples >= LEAST_SAMPLES else None


@kept_per_rank("gpu_state", list[GpuState])
def gpu_states(run: Run, scope: Scope) -> dict[int, list[GpuState]]:
    """By rank, for ranks whose GPUs a log covers."""
    logged = {entry.rank for entry in run.used if entry.format == FORMAT} & set(scope.ranks_in(run))
    if not logged:
        return {}
    values = _values_by_rank(run, sorted(logged))
    highest: dict[tuple[int, str], float] = {}
    for entry in run.used:
        for gpu, clock in entry.header.get("gpuCounters", {}).get("highest_mhz", {}).items():
            highest[entry.rank, gpu] = max(highest.get((entry.rank, gpu), 0.0), clock)
    states = {}
    for rank in sorted(logged):
        computing, models, gpus = _computing(run, rank, scope), _models(run, rank), values.get(rank, {})
        states[rank] = [
            _state(gpu, models.get(gpu, ""), gpus.get(gpu, {}), computing, highest.get((rank, gpu), 0.0))
            for gpu in sorted({*models, *gpus})
        ]
    return states


def _models(run: Run, rank: int) -> dict[str, str]:
    """The GPUs in a rank's logs and their models: from the log, else from the trace, if it has one kind of GPU."""
    headers = [entry.manifest.get("header") or {} for entry in run.used if entry.rank == rank]
    devices = [device for header in headers for device in header.get("deviceProperties") or ()]
    traced = {str(each["name"]) for each in devices if isinstance(each, dict) and each.get("name")}
    default = traced.pop() if len(traced) == 1 else ""
    models: dict[str, str] = {}
    for header in headers:
        for logged in header.get("gpuCounters", {}).get("gpus", ()):
            models[logged["gpu"]] = models.get(logged["gpu"]) or logged["name"]
    return {gpu: name or default for gpu, name in models.items()}


Series = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]
"""Times and values, by series."""


def _values_by_rank(run: Run, ranks: list[int]) -> dict[int, dict[str, Series]]:
    """By rank and GPU. A moment that two logs have counts once."""
    reasons = (*THERMAL_REASONS, *POWER_REASONS, *HARDWARE_REASONS)
    limits = (SM_CLOCK_LIMIT, POWER_LIMIT)
    wanted = sql_texts((SM_CLOCK, MEMORY_CLOCK, POWER, TEMPERATURE, UTILIZATION, *limits, *reasons))
    rows = run.rows(f"""
        WITH moments AS (
            SELECT rank, ltrim(substr(name, {len(gpu_label("")) + 1})) AS gpu, series, ts_ns, avg(value) AS value
            FROM counters JOIN segments USING (rank, segment)
            WHERE format = '{FORMAT}' AND rank IN ({", ".join(map(str, ranks))}) AND series IN ({wanted})
                AND value IS NOT NULL
            GROUP BY ALL
        )
        SELECT rank, gpu, series, list(ts_ns ORDER BY ts_ns), list(value ORDER BY ts_ns) FROM moments GROUP BY ALL
    """)
    by_rank: dict[int, dict[str, Series]] = {}
    for rank, gpu, series, times, values in rows:
        arrays = np.array(times, dtype=np.int64), np.array(values, dtype=np.float64)
        by_rank.setdefault(rank, {}).setdefault(gpu, {})[series] = arrays
    return by_rank


def _computing(run: Run, rank: int, scope: Scope) -> Intervals:
    """When the rank's GPU computed, without the short gaps between its kernels."""
    if rank not in gpu_ranks(run):
        return EMPTY
    busy = intersect(rank_activity(run, rank).compute, windows(run, scope).of(rank).intervals)
    if len(busy.start) == 0:
        return busy
    apart = busy.start[1:] - busy.end[:-1] > _SHORT_GAP_NS
    return Intervals(busy.start[np.append(True, apart)], busy.end[np.append(apart, True)])


def _state(gpu: str, model: str, series: Series, busy: Intervals, highest_mhz: float) -> GpuState:
    moments = np.unique(np.concatenate([np.empty(0, np.int64), *(times for times, _ in series.values())]))
    width = _SECOND_NS if len(moments) and not (np.diff(moments) % _SECOND_NS).any() else 1_000_000
    computing = {name: values[_while(times, busy, width)] for name, (times, values) in series.items()}
    reported = series.get(SM_CLOCK_LIMIT)
    shares = {name: _share(computing, series) for name, (series, *_) in _REASONS.items()}
    return GpuState(
        gpu,
        model,
        int(np.median(np.diff(moments))) if len(moments) > 1 else 0,
        int(_while(moments, busy, width).sum()),
        {name: _figures(values) for name, values in computing.items() if len(values)},
        {name: share for name, share in shares.items() if share is not None},
        float(reported[1].max()) if reported else highest_mhz,
        reported is not None,
    )


def _while(times: NDArray[np.int64], busy: Intervals, width: int) -> NDArray[np.bool_]:
    """Which samples are of busy times. A sample is somewhere in the `width` behind its time, which is cut off there:
    to milliseconds by nvidia-smi, to whole seconds by some programs that add times to lines of dcgmi."""
    return 2 * covered(busy, times, times + width) >= width


def _figures(values: NDArray[np.float64]) -> Figures:
    count = len(values)
    error = float(values.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    return Figures(count, float(values.mean()), float(values.min()), float(values.max()), error)


def _share(series: dict[str, NDArray[np.float64]], reasons: tuple[str, ...]) -> float | None:
    """The share of samples in which any of the reasons was active; of reasons that the log has at other moments, the
    largest."""
    active = [series[name] > 0 for name in reasons if len(series.get(name, ()))]
    if len({len(values) for values in active}) == 1:
        return float(np.logical_or.reduce(active).mean())
    return max((float(values.mean()) for values in active), default=None)


def gpu(run: Run, scope: Scope, by: str | None = None) -> Result:
    """One row for each GPU of each rank."""
    states = gpu_states(run, scope)
    rows = [_row(rank, gpu) for rank, gpus in states.items() for gpu in gpus]
    findings, notes = tuple(_findings(states)), tuple(_notes(run, scope, states))
    title = "GPU clocks, power and temperature"
    return Result("gpu", title, scope.window, COLUMNS, rows, findings, notes)


_OF_SERIES = {
    "sm_clock_mhz": (SM_CLOCK, "mean"),
    "sm_clock_min_mhz": (SM_CLOCK, "least"),
    "sm_clock_max_mhz": (SM_CLOCK, "most"),
    "memory_clock_mhz": (MEMORY_CLOCK, "mean"),
    "power_w": (POWER, "mean"),
    "power_max_w": (POWER, "most"),
    "temperature_c": (TEMPERATURE, "mean"),
    "temperature_max_c": (TEMPERATURE, "most"),
    "utilization_pct": (UTILIZATION, "mean"),
}


def _row(rank: int, gpu: GpuState) -> dict[str, Any]:
    row: dict[str, Any] = {"rank": rank, "gpu": gpu.gpu or None, "model": gpu.model or None}
    row["samples"] = gpu.samples
    for column, (series, statistic) in _OF_SERIES.items():
        figures = gpu.series.get(series)
        row[column] = None if figures is None else round(getattr(figures, statistic), 3)
    return row | {name: 100 * gpu.shares[name] if name in gpu.shares else None for name in _REASONS}


class SlowedBy(NamedTuple):
    """What limits a clock."""

    words: str
    """', thermal slowdown 64 % of the time', or nothing where the log does not tell."""
    advice: str
    command: tuple[str, ...]


_LOOK_AT = "nvidia-smi -q -d"


def _slowed_by(shares: Mapping[str, float], is_locked: bool) -> SlowedBy:
    """`shares`: of the time, by _REASONS."""
    for name, (_, words, advice, section) in _REASONS.items():
        if share := shares.get(name):
            return SlowedBy(f", {words} {100 * share:.0f} % of the time", advice, argv(_LOOK_AT, section))
    if is_locked:
        return SlowedBy("", "Unlock the clock", argv("nvidia-smi -rgc"))
    return SlowedBy("", "Check the clock settings", argv(_LOOK_AT, "CLOCK,PERFORMANCE"))


@dataclass(frozen=True)
class LowClock:
    """A GPU whose clock is lower than that of other GPUs of its model."""

    rank: int
    state: GpuState
    mine_mhz: float
    others_mhz: float
    """The median of the others."""
    others: tuple[tuple[int, GpuState], ...]

    @property
    def lower(self) -> float:
        """By which share."""
        return 1 - self.mine_mhz / self.others_mhz

    @property
    def text(self) -> str:
        return f"{100 * self.lower:.0f} % lower ({self.mine_mhz:,.0f} against {self.others_mhz:,.0f} MHz)"

    @property
    def slowed_by(self) -> SlowedBy:
        """What limited it more often than the others, where the log tells."""

        more_often = {}
        for name, mine in self.state.shares.items():
            theirs = [state.shares[name] for _, state in self.others if name in state.shares]
            if theirs and mine - float(np.median(theirs)) > 0.1:
                more_often[name] = mine
        return _slowed_by(more_often, self.state.is_locked)

    @property
    def advice(self) -> str:
        """What to do about it; the command of `slowed_by` goes on from it."""
        return f"{self.slowed_by.advice} (GPU {self.state.gpu} of rank {self.rank})"

    def facts(self) -> tuple[Fact, ...]:
        mine = (f"rank {self.rank}", (self.rank,), {"rank": self.rank}, "gpu")
        clock, others = round(self.mine_mhz, 3), round(self.others_mhz, 3)
        thermal = self.state.shares.get("thermal_pct")
        return (
            Fact("sm_clock_mhz", clock, "MHz", *mine),
            Fact("sm_clock_mhz", others, "MHz", "the median of the others", report="gpu"),
            *((Fact("thermal_pct", 100 * thermal, "percent", *mine),) if thermal else ()),
        )


def low_clock(states: dict[int, list[GpuState]], rank: int, apart: tuple[int, ...] = ()) -> LowClock | None:
    """Whether the clock of a rank's GPU is lower than that of the other ranks, those `apart` left out.

    None if that is not known: a rank with several GPUs, other models, too few samples while they computed, or a
    difference within the error of the mean.
    """
    single = {other: gpus[0] for other, gpus in states.items() if len(gpus) == 1}
    mine = single.get(rank)
    if mine is None or mine.clock is None:
        return None
    others = tuple(
        (other, state)
        for other, state in single.items()
        if other != rank and other not in apart and state.clock and state.model == mine.model
    )
    if not others:
        return None
    usual = float(np.median([state.clock.mean for _, state in others if state.clock]))
    low = LowClock(rank, mine, mine.clock.mean, usual, others)
    certain = mine.clock.mean + 2 * mine.clock.error < usual
    return low if usual > 0 and certain and low.lower >= LOWER else None


def _findings(states: dict[int, list[GpuState]]) -> Iterator[Finding]:
    low = [clock for rank in states if (clock := low_clock(states, rank))]
    if not low:
        yield from _below_highest(states)
        return
    worst = max(low, key=lambda clock: clock.lower)
    also = f"; so are the clocks of {len(low) - 1} more" if len(low) > 1 else ""
    yield Finding(
        "info",
        f"The SM clock of rank {worst.rank} is {worst.text}{worst.slowed_by.words}{also}",
        ranks=tuple(clock.rank for clock in low),
        advice=worst.advice,
        facts=(*worst.facts(), Fact("samples", worst.state.samples, "count")),
        command=worst.slowed_by.command,
    )


def _below_highest(states: dict[int, list[GpuState]]) -> Iterator[Finding]:
    """GPUs that compute with a clock far below their highest, where no other GPU of the run shows it."""
    below = [
        (1 - clock.mean / gpu.highest_mhz, rank, gpu, clock)
        for rank, gpus in states.items()
        for gpu in gpus
        if (clock := gpu.clock) and clock.mean + 2 * clock.error < (1 - _FAR_BELOW) * gpu.highest_mhz
    ]
    if not below:
        return
    lower, rank, gpu, clock = max(below, key=lambda each: each[:2])
    ranks = tuple(sorted({each[1] for each in below}))
    slowed_by, thermal = _slowed_by(gpu.shares, gpu.is_locked), gpu.shares.get("thermal_pct")
    # A GPU that the log does not tell the reasons of may be at its limit of power, which is normal.
    power = gpu.shares.get("power_cap_pct")
    is_wrong = thermal or gpu.shares.get("hw_slowdown_pct") or (gpu.is_locked and power is not None)
    locked = "locked at" if gpu.is_locked else "at"
    computing = "while they compute" if len(ranks) > 1 else "while it computes"
    which = "the highest that its driver allows" if gpu.is_reported else "the highest in the log"
    mine = (f"rank {rank}", (rank,), {"rank": rank, "gpu": gpu.gpu or None}, "gpu")
    watts, limit = gpu.series.get(POWER), gpu.series.get(POWER_LIMIT)
    steady = f"{clock.least:,.0f}" == f"{clock.most:,.0f}"
    yield Finding(
        "warning" if is_wrong else "info",
        f"The SM clock of {rank_words(ranks)} is {locked} {clock.mean:,.0f} MHz {computing}, {100 * lower:.0f} % below "
        f"{gpu.highest_mhz:,.0f} MHz{slowed_by.words}",
        ranks=ranks,
        advice=slowed_by.advice,
        command=slowed_by.command,
        facts=(
            Fact("sm_clock_mhz", round(clock.mean, 3), "MHz", *mine),
            Fact(
                "clock_range",
                f"always {clock.most:,.0f} MHz" if steady else f"{clock.least:,.0f} to {clock.most:,.0f} MHz",
                "",
                f"GPU {gpu.gpu} of rank {rank}",
            ),
            Fact("samples", gpu.samples, "count"),
            Fact("below_pct", 100 * lower, "percent"),
            Fact("thermal_pct", 100 * thermal if thermal else None, "percent"),
            Fact("power_cap_pct", 100 * power if power else None, "percent"),
            Fact("highest_mhz", gpu.highest_mhz, "MHz", which, (rank,), report="gpu"),
            Fact("power", f"{watts.mean:,.0f} W of {limit.most:,.0f} W" if watts and limit else None),
        ),
    )


def _notes(run: Run, scope: Scope, states: dict[int, list[GpuState]]) -> Iterator[str]:
    if not states and runs_on_cpu(run):
        yield "no counters of GPUs; the run uses none"
        return
    if not states:
        yield (
            "no counters of GPUs: log them while the job runs, and put the file beside the traces: nvidia-smi "
            "--query-gpu=timestamp,index,uuid,name,clocks.sm,clocks.max.sm,clocks.mem,power.draw,"
            "power.limit,temperature.gpu,clocks_event_reasons.active --format=csv -lms 100 -f HOST.csv"
        )
        return
    logs = [entry for entry in run.used if entry.format == FORMAT]
    for name, zone in sorted({(entry.source.name, entry.log_zone) for entry in logs if entry.log_zone}):
        yield f"times of {name} have no zone; read as {zone}, by which they overlap the traces"
    missing = sorted(set(scope.ranks_in(run)) - set(states))
    if missing:
        yield f"no log covers the GPU{'s' * (len(missing) > 1)} of rank{'s' * (len(missing) > 1)} {as_ranges(missing)}"
    few = [rank for rank, gpus in states.items() if any(gpu.samples < LEAST_SAMPLES for gpu in gpus)]
    if few:
        period = max(gpu.period_ns for rank in few for gpu in states[rank])
        often = f" (one every {format_ns(period, 1)})" if period else ""
        yield (
            f"rank{'s' * (len(few) > 1)} {as_ranges(few)}: fewer than {LEAST_SAMPLES} samples{often} while the GPU "
            "computed in the window; its clock is not compared"
        )


_LEAST_EXPLAINED, _MOST_EXPLAINED = 0.5, 1.5
"""A kernel bound by memory is slowed by less than the clock. Kernels slower by much more have another cause as well."""


def explains(low: LowClock, slower: float) -> bool:
    """Whether a low clock explains that something takes `slower` times as long."""
    explained = (slower - 1) / (low.others_mhz / low.mine_mhz - 1)
    return _LEAST_EXPLAINED <= explained <= _MOST_EXPLAINED


def slower_kernels(
    kernels: Sequence[KernelSum], others: Sequence[Sequence[KernelSum]]
) -> tuple[float, int] | None:
    """How much longer the kernels of a rank take than those of others, and their time. Of each name the mean duration
    is compared, so that more calls are no slower kernels; of all names the median, weighted by time, is taken."""
    theirs: dict[str, list[float]] = defaultdict(list)
    for sums in others:
        for kernel in sums:
            if kernel.kind == "COMPUTE" and kernel.total_ns > 0:
                theirs[kernel.name].append(kernel.total_ns / kernel.kernels)
    mine = [kernel for kernel in kernels if kernel.kind == "COMPUTE" and kernel.name in theirs]
    if not mine:
        return None
    usual = np.array([np.median(theirs[kernel.name]) for kernel in mine])
    weight = np.array([kernel.total_ns for kernel in mine], dtype=np.float64)
    ratio = weight / np.array([kernel.kernels for kernel in mine]) / usual
    order = np.argsort(ratio)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(ratio[order][half]), int(weight.sum())
