"""Which rank is slow, since when and why: robust statistics of the last steps. docs/definitions.md has the formulas.

Every function takes a StepTable and returns alarms. The measure of a rank is its own work: the ranks of a synchronous
job have the same step time, whoever is slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from rankscope.records import dataclass
from rankscope.units import format_rounded
from rankscope.watch.alarms import (
    COMMUNICATION,
    COMPUTE,
    DATA,
    DATA_LOADING,
    GARBAGE,
    HOST,
    MEMORY,
    NEXT_STEP,
    OF_MEMORY,
    SLOW_NODE,
    SLOW_RANK,
    SLOWDOWN,
    SPIKE,
    UNKNOWN,
    Alarm,
    AlarmBook,
    amount,
    who,
)
from rankscope.watch.rings import RECENT
from rankscope.watch.step_table import TO_SIGMA, Numbers, StepTable, low_median, middle, sigma

STEPS = 10
"""k: steps that a slow rank is judged by."""
SLOW_SHARE = 0.05
"""Of the step time: a rank that loses less is not slow."""
STANDARD_ERRORS = 10.0
"""More than independent noise needs, for which 6 are exceeded once in 10^9 tests: on busy hosts it lasts some steps."""
_OF_A_MEDIAN = 1.2533
"""The standard error of a median is that of a mean times sqrt(pi / 2)."""
SPREADS = 3.5
"""An outlier among the ranks: so many standard deviations of their medians."""
EXPLAINS = 0.5
"""The share of an excess that makes a component its cause."""
CHANGE_SHARE = 0.10
_LEAST_BEFORE = 20
_AFTER = (10, 20, 40, 80)
SPIKE_FACTOR = 2.5
_SPIKE_SIGMAS = 10.0
_AFTER_SPIKE = 3
"""Steps that must have come after a long one: if they are long too, the job is slow, and this is no single step."""
_ROUND = 50
"""Long steps at multiples of it (or next to one) are checkpoints or evaluations."""
STARVED_SHARE = 0.20
MEMORY_SHARE = 0.02
MEMORY_BYTES = 16e6
_MEMORY_WINDOWS = (20, 100, 230)
_FILLING = 20
"""Steps before such a window: the caches of a job that begins fill."""
_BLOCKS = 5
_STEADY = 0.3
"""Of the mean growth from block to block: the least growth that counts as steady."""
_STAIRS = 4
_HIGHEST_STAIR = 0.6
"""Of the whole growth: a single large allocation is not a leak."""
_MOST_LOOKS = 100
_SETTLES = 50
"""Steps after its begin in which a later look at an alarm has better figures: the begin is still in the window."""


def judge(table: StepTable, fresh: int = STEPS) -> list[Alarm]:
    """All alarms at the table's last step. Spikes are looked for in the last `fresh` steps."""
    if len(table.steps) < STEPS:
        return []
    slow = slow_ranks(table)
    starved = data_starvation(table)
    named = {rank for alarm in slow for rank in alarm.ranks}
    single = [alarm for alarm in spikes(table, fresh) if not alarm.ranks or not named >= {*alarm.ranks}]
    return [*slow, *starved, *slowdown(table, [*slow, *starved]), *single, *creeping_memory(table)]


def _alarm(
    table: StepTable,
    begin: int,
    columns: Sequence[int],
    kind: str,
    cause: str,
    per_step: float,
    share: float,
    text: str,
    node: str = "",
    hint: str = "",
) -> Alarm:
    """About these ranks, from this row on; a spike is about this row only."""
    since = int(table.steps[begin])
    if kind == SPIKE:
        last = since
    else:
        last, text = int(table.steps[-1]), f"{text}, since step {since}"
    ranks, when = tuple(table.ranks[list(columns)].tolist()), _when(table, begin, columns)
    unit: Literal["ns", "bytes"] = "bytes" if kind == MEMORY else "ns"
    hint = hint or NEXT_STEP[cause]
    return Alarm(kind, cause, ranks, node, last, since, when, per_step, unit, share, text, hint)


def usual_step(table: StepTable) -> float:
    """The median step time of the last k steps, ns."""
    return middle(low_median(table["step_ns"][-STEPS:], 1))


def excesses(table: StepTable) -> Numbers:
    """Of each rank: the median over the last k steps of its own work minus that of the median rank, ns."""
    return _excesses(table["own_ns"][-STEPS:])


def _excesses(work_ns: Numbers) -> Numbers:
    """NaN where fewer than half of the steps are known."""
    medians = low_median(work_ns - low_median(work_ns, 1)[:, None])
    return np.where(np.isfinite(work_ns).sum(axis=0) > len(work_ns) / 2, medians, np.nan)


def slow_limit(table: StepTable) -> float:
    """The excess from which a rank is slow, ns; the table has several ranks."""
    return _limit(table["own_ns"][-STEPS:], usual_step(table))


def _limit(work_ns: Numbers, step_ns: float) -> float:
    error = _OF_A_MEDIAN * _noise(work_ns) / float(np.sqrt(STEPS))
    return max(SLOW_SHARE * step_ns, STANDARD_ERRORS * error, SPREADS * _spread(_excesses(work_ns)))


def _noise(work_ns: Numbers) -> float:
    """The standard deviation, from step to step, of what one rank takes longer than the others."""
    ranks = work_ns.shape[1]
    center = (low_median(work_ns, 1) - low_median(-work_ns, 1)) / 2  # the median, also of two
    off = work_ns - center[:, None]
    # A rank is part of the center, which therefore follows it.
    return sigma(off - low_median(off)) * float(ranks / (ranks - 1))


def _spread(excess: Numbers) -> float:
    """Between ranks or nodes, as a standard deviation. Of three or more, half being slow is no outlier."""
    off = np.sort(np.abs(excess - middle(excess)))
    off = off[np.isfinite(off)]
    return TO_SIGMA * float(off[len(off) // 2 if len(off) > 2 else 0]) if len(off) else float("nan")


def _outliers(work_ns: Numbers, step_ns: float) -> list[int]:
    if work_ns.shape[1] < 2:
        return []
    columns: list[int] = np.flatnonzero(_excesses(work_ns) > _limit(work_ns, step_ns)).tolist()
    return columns


def slow_ranks(table: StepTable) -> list[Alarm]:
    """Nodes, and ranks of other nodes, whose own work takes longer than that of the median, step after step."""
    work_ns, step_ns = table["own_ns"][-STEPS:], usual_step(table)
    nodes: dict[str, list[int]] = {}
    for column, node in enumerate(table.nodes):
        nodes.setdefault(node, []).append(column)
    of_nodes = np.stack([low_median(work_ns[:, columns], 1) for columns in nodes.values()], axis=1)
    names = [list(nodes)[index] for index in _outliers(of_nodes, step_ns)]
    slow = {name: nodes[name] for name in names if len(nodes[name]) > 1}
    inside = {column for columns in slow.values() for column in columns}
    rest = [column for column in range(len(table.ranks)) if column not in inside]
    flagged = [rest[index] for index in _outliers(work_ns[:, rest], step_ns)]
    peers = [column for column in rest if column not in flagged]
    alarms = [_slow(table, columns, peers, node) for node, columns in slow.items()]
    return alarms + [_slow(table, [column], peers, "") for column in flagged]


def _slow(table: StepTable, columns: Sequence[int], peers: Sequence[int], node: str) -> Alarm:
    lost = _more(table["own_ns"], columns, peers)
    begin = _began(lost, middle(lost[-STEPS:]))
    per_step = middle(lost[begin:])
    cause = _cause(table, columns, peers, begin, per_step)
    share = per_step / usual_step(table)
    subject = who(table.ranks[list(columns)].tolist())
    subject = f"node {node} ({subject})" if node else subject
    text = f"{subject} is slow: {amount(per_step, 'ns')} ({100 * share:.0f} % of the step), {cause}"
    kind = SLOW_NODE if node else SLOW_RANK
    return _alarm(table, begin, columns, kind, cause, per_step, share, text, node=node)


def _more(values: Numbers, columns: Sequence[int], peers: Sequence[int]) -> Numbers:
    """What the median of these columns has more than that of their peers, row by row."""
    return low_median(values[:, list(columns)], 1) - low_median(values[:, list(peers)], 1)


def _began(values: Numbers, level: float) -> int:
    """The row from which `values` are at `level` and not at 0: where the sum of what they exceed half the level by is
    lowest."""
    half = abs(level) / 2
    steps = np.nan_to_num(np.clip(values * np.sign(level) - half, -half, half))
    sums = np.concatenate([[0.0], np.cumsum(steps)])
    return min(int(np.argmin(sums)), len(values) - 1)


def _when(table: StepTable, row: int, columns: Sequence[int] = ()) -> int | None:
    ends = table["end_unix_ns"][row]
    end = middle(ends[list(columns)] if columns else ends)
    begin = end - middle(table["step_ns"][row])
    return int(begin) if np.isfinite(begin) else None


def _cause(table: StepTable, columns: Sequence[int], peers: Sequence[int], begin: int, excess: float) -> str:
    """What explains at least half of what these ranks take longer than their peers."""

    def share(field: str) -> float:
        more = _more(table[field][begin:], columns, peers)
        # Collections come every few steps: their median is 0.
        return (float(np.mean(more)) if field == "gc_ns" else middle(more)) / excess

    return _class_of({field: share(field) for field in _COMPONENTS})


_COMPONENTS = ("data_ns", "gc_ns", "cpu_ns", "forward_ns", "device_ns")


def _class_of(shares: dict[str, float]) -> str:
    """A share that is NaN is not known. On a GPU the time between CUDA events grows with everything; a slow host shows
    in the host's time until backward."""
    if shares["data_ns"] >= EXPLAINS:
        return DATA_LOADING
    if shares["gc_ns"] >= EXPLAINS:
        return GARBAGE
    if shares["cpu_ns"] >= EXPLAINS:
        return COMPUTE
    if np.isfinite(shares["device_ns"]):
        return HOST if shares["forward_ns"] >= EXPLAINS else COMPUTE
    return HOST if np.isfinite(shares["cpu_ns"]) else UNKNOWN


def data_starvation(table: StepTable) -> list[Alarm]:
    """The median rank waits for its data for more than a fifth of the step."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = low_median(table["data_ns"] / table["step_ns"], 1)
    share = middle(shares[-STEPS:])
    if not share > STARVED_SHARE:
        return []
    begin = _began(shares, share)
    wait = middle(low_median(table["data_ns"][begin:], 1))
    text = f"all ranks wait for data: {amount(wait, 'ns')} ({100 * share:.0f} % of the step)"
    hint = "More workers (num_workers), pin_memory, prefetch_factor; check the storage."
    return [_alarm(table, begin, (), DATA, DATA_LOADING, wait, share, text, hint=hint)]


def slowdown(table: StepTable, alarms: Iterable[Alarm] = ()) -> list[Alarm]:
    """The step time of the job has risen and stays there, and none of these alarms explains it."""
    times = low_median(table["step_ns"], 1)
    for after in _AFTER:
        if len(times) < after + _LEAST_BEFORE:
            break
        before, now = middle(times[:-after]), min(middle(times[-after:]), middle(times[-STEPS:]))
        noise = sigma(np.concatenate([times[:-after] - before, times[-after:] - now]))
        error = _OF_A_MEDIAN * noise * np.sqrt(1 / after + 1 / (len(times) - after))
        if not now - before > max(CHANGE_SHARE * before, STANDARD_ERRORS * error):
            continue
        begin = _began(times - before, now - before)
        before, now = middle(times[:begin]), middle(times[begin:])
        more = now - before
        # A slow rank is known after half as many steps, and explains the change.
        if len(times) - begin < STEPS or not more > CHANGE_SHARE * before:
            continue
        if any(alarm.per_step >= EXPLAINS * more for alarm in alarms):
            return []
        cause = _cause_of_change(table, begin, more)
        share = more / before
        lengths = f"{format_rounded('ns', before)} to {format_rounded('ns', now)}"
        text = f"every step takes longer: {lengths} (+{100 * share:.0f} %), {cause}"
        return [_alarm(table, begin, (), SLOWDOWN, cause, more, share, text)]
    return []


def _cause_of_change(table: StepTable, begin: int, more: float) -> str:
    """By what the median rank takes longer than before."""

    def share(field: str) -> float:
        of_median_rank = low_median(table[field], 1)
        return (middle(of_median_rank[begin:]) - middle(of_median_rank[:begin])) / more

    if share("wait_ns") >= EXPLAINS:
        return COMMUNICATION
    return _class_of({field: share(field) for field in _COMPONENTS})


def spikes(table: StepTable, fresh: int = STEPS) -> list[Alarm]:
    """Single long steps that some ranks' own work caused, or nobody's."""
    times = low_median(table["step_ns"], 1)
    usual = middle(times)
    limit = max(SPIKE_FACTOR * usual, usual + _SPIKE_SIGMAS * sigma(times - usual))
    last = len(times) - _AFTER_SPIKE
    rows = [
        row
        for row in range(max(last - fresh, 0), last)
        if times[row] > limit and middle(times[row + 1 : row + 1 + _AFTER_SPIKE]) <= limit
    ]
    judged = (
        _spike(table, row, times[row] - usual, usual) for row in rows if not _is_round(table.steps[row])
    )
    return [alarm for alarm in judged if alarm is not None]


def _is_round(step: int) -> bool:
    return step >= _ROUND and min(step % _ROUND, -step % _ROUND) <= 1


def _spike(table: StepTable, row: int, excess: float, usual: float) -> Alarm | None:
    work_ns = table["own_ns"]
    more = work_ns[row] - low_median(work_ns)
    caused = np.flatnonzero((more >= EXPLAINS * excess) & (more - middle(more) >= EXPLAINS * excess)).tolist()
    if not caused and middle(more) >= EXPLAINS * excess:
        return None  # all ranks together: a checkpoint, an evaluation
    cause = _cause_of_spike(table, row, caused, excess) if caused else UNKNOWN
    length = format_rounded("ns", usual + excess)
    whose = "no rank's own work explains it: the network, or a collective"
    if caused:
        whose = f"{who(table.ranks[caused].tolist())}, {cause}"
    text = f"step {table.steps[row]} took {length} ({1 + excess / usual:.1f} times the usual step): {whose}"
    return _alarm(table, row, caused, SPIKE, cause, excess, excess / usual, text)


def _cause_of_spike(table: StepTable, row: int, columns: Sequence[int], excess: float) -> str:
    """By what these ranks took longer than in their usual step."""

    def share(field: str) -> float:
        values = table[field][:, list(columns)]
        return float(np.mean(values[row] - low_median(values))) / excess

    return _class_of({field: share(field) for field in _COMPONENTS})


def creeping_memory(table: StepTable) -> list[Alarm]:
    """Ranks whose memory grows all the time."""
    memory = table["memory_bytes"]
    for steps in _MEMORY_WINDOWS:
        if len(memory) < steps + _FILLING:
            break
        rows = memory[-steps:]
        growth = np.maximum(_steady_growth(rows), _stairs(rows))
        limit = np.maximum(MEMORY_SHARE * rows[0], MEMORY_BYTES)
        if not (growth >= limit).any():
            continue
        # Where one rank leaks, others that leak somewhat less belong to the same alarm.
        columns = np.flatnonzero(growth >= limit / 2).tolist()
        together = [columns] if len(columns) > len(table.ranks) / 2 else [[column] for column in columns]
        return [_creeping(table, some, growth / steps) for some in together]
    return []


def _steady_growth(rows: Numbers) -> Numbers:
    """What each column gains, if it grows from block to block at about the same rate; else 0."""
    blocks = np.stack([low_median(part) for part in np.array_split(rows, _BLOCKS)])
    growth = blocks[-1] - blocks[0]
    steady = np.diff(blocks, axis=0).min(axis=0) >= _STEADY * growth / (_BLOCKS - 1)
    # The medians of the first and the last block are a block less apart than the whole window.
    return np.where(steady, growth * _BLOCKS / (_BLOCKS - 1), 0.0)


def _stairs(rows: Numbers) -> Numbers:
    """What each column gains, if it only ever grows, several times; else 0. The memory of quick steps is read once a
    second."""
    rises = np.diff(rows, axis=0)
    growth = rows[-1] - rows[0]
    several = (rises > 0).sum(axis=0) >= _STAIRS
    return np.where(
        (rises >= 0).all(axis=0) & several & (rises.max(axis=0) <= _HIGHEST_STAIR * growth), growth, 0.0
    )


def _creeping(table: StepTable, columns: Sequence[int], per_step: Numbers) -> Alarm:
    memory = table["memory_bytes"][:, list(columns)].mean(axis=1)
    mean = float(per_step[list(columns)].mean())
    begin = _bend(memory, mean)
    subject = who(table.ranks[list(columns)].tolist())
    subject = "all ranks" if len(columns) == len(table.ranks) > 1 else subject
    last = middle(memory[-_BLOCKS:])
    text = f"memory of {subject} grows: {amount(mean, 'bytes')}, to {format_rounded('bytes', last)}"
    return _alarm(table, begin, columns, MEMORY, OF_MEMORY, mean, mean / last, text)


def _bend(values: Numbers, slope: float) -> int:
    """The row from which level values rise by `slope`: the least squares of all rows."""
    rows = np.arange(len(values))
    left = values - slope * np.maximum(rows - rows[:, None], 0)
    return int(np.argmin(np.nanvar(left, axis=1)))


@dataclass(frozen=True)
class PastAlarm:
    """An alarm and how long it lasted."""

    alarm: Alarm
    last_step: int
    is_open: bool
    """Still raised at the last step."""


def alarms_over(table: StepTable) -> list[PastAlarm]:
    """All alarms of a whole ring, as a watcher would have raised them, in that order."""
    count = len(table.steps)
    every = max(STEPS, -(-count // _MOST_LOOKS))
    book = AlarmBook()
    raised: list[Alarm] = []
    last: dict[int, int] = {}
    for end in reversed(range(count, STEPS - 1, -every)):
        now = judge(table.rows(slice(max(end - RECENT, 0), end)), every)
        raised += book.new(now)
        for alarm in now:
            index = max((n for n, earlier in enumerate(raised) if earlier.key == alarm.key), default=None)
            if index is None:
                continue  # a long step that recurs
            last[index] = alarm.step
            since = raised[index].since_step
            if since is not None and alarm.step - since <= _SETTLES:
                raised[index] = alarm
    final = int(table.steps[-1])
    return [
        PastAlarm(alarm, last[index], last[index] == final and alarm.kind != SPIKE)
        for index, alarm in enumerate(raised)
    ]
