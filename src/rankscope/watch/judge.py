"""Which rank is slow, since when and why: robust statistics of the last steps. docs/definitions.md has the formulas.

The measure of a rank is its own work: the ranks of a synchronous job have the same step time, whoever is slow. The
first part takes arrays and returns rows and columns: what has changed, and which ranks are outliers. The second takes a
StepTable and returns alarms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankscope.units import format_rounded
from rankscope.watch.alarms import (
    COMMUNICATION,
    COMPUTE,
    CONFIRMED_AFTER_S,
    CONTENTION,
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
    Episode,
    amount,
    who,
)
from rankscope.watch.rings import RECENT
from rankscope.watch.step_table import TO_SIGMA, Numbers, StepTable, low_median, middle, sigma

STEPS = 10
"""k: steps that a slow rank is judged by."""
_LATEST = (16, 40)
"""Steps by which a rank that has become slower is judged: smaller changes need more of them."""
LEAST_BEFORE = 20
"""Steps that a change is judged against."""
_LASTING = 30
"""Steps in which a rank that is slow from the start is slow."""
_LEAST_HISTORY = 50
"""Steps that a change of a rank is judged against: as many as show how long a host is busy now and then."""
_BURSTS = 1.5
"""Times the longest such time."""
SLOW_SHARE = 0.05
"""Of the step time: a rank that loses less is not slow."""
STANDARD_ERRORS = 10.0
"""More than independent noise needs, for which 6 are exceeded once in 10^9 tests: on busy hosts it lasts some steps."""
_OF_GROWTH = 7.0
"""Standard errors of a rank that has become slower: what lasts some steps only does not become an alarm."""
OF_A_MEDIAN = 1.2533
"""The standard error of a median is that of a mean times sqrt(pi / 2)."""
SPREADS = 3.5
"""An outlier among the ranks: so many standard deviations of their medians."""
_SHOWS_IN_WORK = 0.2
"""Of the growth of a part: what own work has grown by at least."""
_CHANGED = 0.25
"""Of an excess: if less of it is new, it is an old one."""
RECURRING_STEPS = 24
"""Steps in which work that comes every few steps is looked for."""
_PERIODS = (2, 3, 4, 5, 6)
_HITS = 4
"""Long steps at one distance that are no coincidence."""
_CHAIN = 12
"""Steps that they span at least: a host may be busy for a shorter time."""
_HIT_SHARE = 0.15
_HIT_SIGMAS = 6.0
"""What makes a step long: of the usual step, and of the noise."""
_MORE_OFTEN = 3.0
"""Times: a change of what a job does every few steps."""


def excesses_of(work_ns: Numbers) -> Numbers:
    """NaN where fewer than half of the steps are known."""
    medians = low_median(work_ns - low_median(work_ns, 1)[:, None])
    return np.where(np.isfinite(work_ns).sum(axis=0) > len(work_ns) / 2, medians, np.nan)


def limit_of(work_ns: Numbers, step_ns: float) -> float:
    error = OF_A_MEDIAN * _noise(work_ns) / float(np.sqrt(STEPS))
    return max(SLOW_SHARE * step_ns, STANDARD_ERRORS * error, SPREADS * _spread(excesses_of(work_ns)))


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


class Recurring(NamedTuple):
    """Work that comes every few steps."""

    every: int
    begin: int
    """The row of the first one."""


class Evidence(NamedTuple):
    """By which figure a rank or node is slow."""

    field: str
    recurring: Recurring | None
    """None where it is slow in every step."""


def outliers(
    figures: Mapping[str, Numbers], step_ns: float, before: int, same_work: bool = True
) -> dict[int, Evidence]:
    """Columns that are slow all the time (if all have the same work) or have become slower, and those that work longer
    every few steps.

    The first figure is own work. The others are parts of it that vary less on a busy host: they count where own work
    has grown too.
    """
    (first, work_ns), *_ = figures.items()
    if work_ns.shape[1] < 2:
        return {}
    excess = excesses_of(work_ns[-STEPS:])
    slow = np.minimum(excess, excesses_of(work_ns[-_LASTING:])) > limit_of(work_ns[-STEPS:], step_ns)
    evidence = {
        column: Evidence(first, None)
        for column in np.flatnonzero(slow).tolist()
        if same_work
        and len(work_ns) >= _LASTING
        and excess[column] > _bursts(np.delete(work_ns, column, axis=1))
    }
    offsets = {field: values - low_median(values, 1)[:, None] for field, values in figures.items()}
    for steps in _LATEST:
        grown = _growth(offsets[first], steps, before)
        for field, off in offsets.items():
            growth = _growth(off, steps, before)
            with_work = (grown > _SHOWS_IN_WORK * growth) & (excess > 0)
            for column in np.flatnonzero(
                with_work & _is_outlier(growth, off, steps, step_ns, before)
            ).tolist():
                evidence.setdefault(column, Evidence(field, None))
    for field, off in offsets.items():
        for column, recurring in _recurring_columns(off, step_ns, before):
            evidence.setdefault(column, Evidence(field, recurring))
    return evidence


def _recurring_columns(off: Numbers, step_ns: float, before: int) -> Iterator[tuple[int, Recurring]]:
    split = rows_before(len(off), RECURRING_STEPS, before)
    if split is None or split < (before or _LEAST_HISTORY):
        return
    usual = low_median(off[:split])
    limit = max(_HIT_SHARE * step_ns, _HIT_SIGMAS * sigma(off[:split] - usual))
    hits = (off[-RECURRING_STEPS:] - usual > limit).sum(axis=0)
    # Where half of them have long steps, they take turns.
    if len(hits) > 2 and 2 * (hits >= _HITS // 2).sum() >= len(hits):
        return
    for column in np.flatnonzero(hits >= _HITS).tolist():
        if recurring := find_recurring(off[:, column], step_ns, before):
            yield column, recurring


def rows_before(rows: int, latest: int, before: int) -> int | None:
    """The rows that a change in the latest ones is judged against; None where there are too few."""
    return before or (rows - latest if rows - latest >= LEAST_BEFORE else None)


def _bursts(values: Numbers) -> float:
    """What a healthy rank may have more for k steps, by what others had: a host is busy for some time."""
    blocks = len(values) // STEPS
    if not blocks:
        return 0.0
    off = values - low_median(values, 1)[:, None]
    off = off - low_median(off)
    rows = off[len(off) - blocks * STEPS :].reshape(blocks, STEPS, -1)
    return _BURSTS * float(np.nanmax(low_median(rows, 1), initial=0.0))


def _growth(off: Numbers, steps: int, before: int) -> Numbers:
    """What each column has more than before, in the last steps and still in the last k; NaN where that is not known."""
    split = rows_before(len(off), steps, before)
    if split is None or len(off) - split < steps or split < (before or _LEAST_HISTORY):
        return np.full(off.shape[1], np.nan)
    return np.minimum(low_median(off[-steps:]), low_median(off[-STEPS:])) - low_median(off[:split])


def _is_outlier(growth: Numbers, off: Numbers, steps: int, step_ns: float, before: int) -> NDArray[np.bool_]:
    """Columns that have grown more than their noise and the others."""
    split = rows_before(len(off), steps, before)
    slow: NDArray[np.bool_] = growth > SLOW_SHARE * step_ns
    if split is None or not slow.any():
        return slow
    earlier, latest = off[:split], off[-steps:]
    noise = max(sigma(earlier - low_median(earlier)), sigma(latest - low_median(latest)))
    error = OF_A_MEDIAN * noise * len(growth) / (len(growth) - 1) * float(np.sqrt(1 / steps + 1 / split))
    slow &= growth > _OF_GROWTH * error
    # A rank that is compared is not part of the spread: of four, it would be half of what makes it an outlier.
    for column in np.flatnonzero(slow).tolist():
        bursts = _bursts(np.delete(earlier, column, axis=1))
        slow[column] = growth[column] > max(SPREADS * _spread(np.delete(growth, column)), bursts)
    return slow


def find_recurring(values: Numbers, step_ns: float, before: int) -> Recurring | None:
    """Whether there is more every few steps than there was."""
    rows = len(values)
    split = rows_before(rows, RECURRING_STEPS, before)
    if split is None:
        return None
    usual = middle(values[:split])
    more = np.nan_to_num(values - usual)
    long = more > max(_HIT_SHARE * step_ns, _HIT_SIGMAS * sigma(values[:split] - usual))
    hits = np.flatnonzero(long[split:]) + split
    latest = hits[hits >= rows - RECURRING_STEPS]
    often = len(latest) / RECURRING_STEPS
    if len(latest) < _HITS or long[:split].mean() > often / _MORE_OFTEN:
        return None
    if more[latest[0] :].mean() < SLOW_SHARE * step_ns:
        return None
    last = int(hits[-1])
    for every in _PERIODS:
        count = max(_HITS, _CHAIN // every + 1)
        chain = long[last - (count - 1) * every : last + 1]
        if rows - last <= every + 1 and chain[::every].all() and chain.sum() <= count + 1:
            return Recurring(every, int(hits[0]))
    return None


def began(values: Numbers, level: float) -> int:
    """The row from which `values` are at `level` and not at 0: where the sum of what they exceed half the level by is
    lowest."""
    half = abs(level) / 2
    steps = np.nan_to_num(np.clip(values * np.sign(level) - half, -half, half))
    sums = np.concatenate([[0.0], np.cumsum(steps)])
    return min(int(np.argmin(sums)), len(values) - 1)


def began_lately(values: Numbers, before: int) -> int:
    """The row from which they are at the level of the latest ones, and not at 0 or at that of the first ones."""
    level = middle(values[-STEPS:])
    split = rows_before(len(values), _LATEST[-1], before) or rows_before(len(values), STEPS, before)
    usual = middle(values[:split]) if split else 0.0
    if level - usual > _CHANGED * level:
        return began(values - usual, level - usual)
    return began(values, level)


def gained(values: Numbers, begin: int, average: Callable[[Numbers], float]) -> float:
    """Their average from a row on, beyond that of the rows before it, where there are enough."""
    return average(values[begin:]) - (average(values[:begin]) if begin >= LEAST_BEFORE else 0.0)


def mean_of(values: Numbers) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else float("nan")


def mean_without_peak(values: Numbers) -> float:
    """The mean, where the largest counts as the second largest: a single long step is no part of what comes every few
    steps."""
    ordered = np.sort(values[np.isfinite(values)])
    return mean_of(np.minimum(ordered, ordered[-2])) if len(ordered) > 1 else mean_of(ordered)


EXPLAINS = 0.5
"""The share of an excess that makes a component its cause."""
CHANGE_SHARE = 0.10
_AFTER = (10, 20, 40, 80)
_SEEN = 30
"""Steps of which is said in how many a rank was the slowest."""
_SAME_RANK = 0.5
_TURNS_AFTER = 12
"""Steps after which no rank being the slowest in most means that they take turns."""
_PARTS, _PARTS_THAT_HOLD = 5, 4
"""Of the time since the begin of an alarm."""
SPIKE_FACTOR = 2.5
SPIKE_NS = 0.5e9
"""A shorter delay of a single step is not worth an alarm."""
_SPIKE_SIGMAS = 10.0
_AFTER_SPIKE = 3
"""Steps that must have come after a long one: if they are long too, the job is slow, and this is no single step."""
_ROUND = 50
"""Long steps at multiples of it (or next to one) are checkpoints or evaluations."""
STARVED_SHARE = 0.20
MEMORY_SHARE = 0.02
MEMORY_BYTES, MEMORY_BYTES_PER_STEP = 24e6, 0.1e6
"""Least growth, and more over more steps: allocators drift."""
_MEMORY_WINDOWS = (20, 100, 230)
_FILLING = 20
"""Steps before such a window: the caches of a job that begins fill."""
_BLOCKS = 5
_STEADY = 0.5
"""Of the mean growth from block to block: the least growth that counts as steady."""
_STAIRS = 4
"""Blocks in which memory that only grows does so."""
_HIGHEST_STAIR = 0.6
"""Of the whole growth: a single large allocation is not a leak."""
_LAST_BLOCK = 0.1
"""Of the whole growth, at least: an allocator's memory grows less and less after larger batches."""
_LEAST_LOOKS, _MOST_LOOKS, _MOST_LOOKS_OF_ALL = 4, 100, 6000
"""At a ring that is read as a whole; of the last, one for each rank: about a second of CPU time."""
_MOST_BEFORE = 100
"""Steps before an alarm that stay its measure."""


def judge(table: StepTable, fresh: int = STEPS, times: StepTable | None = None) -> list[Alarm]:
    """All alarms at the table's last step. Spikes are looked for in the last `fresh` steps; the step time is judged by
    `times`, where that table has other steps before."""
    if len(table.steps) < STEPS:
        return []
    slow = slow_ranks(table)
    starved = data_starvation(table)
    named = {rank for alarm in slow for rank in alarm.ranks}
    single = [alarm for alarm in spikes(table, fresh) if not alarm.ranks or not named >= {*alarm.ranks}]
    return [*slow, *starved, *slowdown(times or table, [*slow, *starved]), *single, *creeping_memory(table)]


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
    last = since if kind == SPIKE else int(table.steps[-1])
    ranks, when = tuple(table.ranks[list(columns)].tolist()), _when(table, begin, columns)
    unit: Literal["ns", "bytes"] = "bytes" if kind == MEMORY else "ns"
    hint = hint or NEXT_STEP[cause]
    return Alarm(kind, cause, ranks, node, last, since, when, per_step, unit, share, text, hint)


def usual_step(table: StepTable) -> float:
    """The median step time of the last k steps, ns."""
    return middle(low_median(table["step_ns"][-STEPS:], 1))


def excesses(table: StepTable) -> Numbers:
    """Of each rank: the median over the last k steps of its own work minus that of the median rank, ns."""
    return excesses_of(table["own_ns"][-STEPS:])


def slow_limit(table: StepTable) -> float:
    """The excess from which a rank is slow, ns; the table has several ranks."""
    return limit_of(table["own_ns"][-STEPS:], usual_step(table))


def slow_ranks(table: StepTable) -> list[Alarm]:
    """Nodes, and ranks of other nodes, whose own work takes longer than that of the median rank of their pipeline
    stage, step after step or every few steps."""
    return [alarm for stage in table.by_stage() for alarm in _slow_of_stage(stage)]


def _slow_of_stage(table: StepTable) -> list[Alarm]:
    figures, step_ns = {field: table[field] for field in _witnesses(table)}, usual_step(table)
    same_work = not table.stages_alone
    nodes: dict[str, list[int]] = {}
    for column, node in enumerate(table.nodes):
        nodes.setdefault(node, []).append(column)
    names = list(nodes)
    by_node = {
        field: np.stack([low_median(values[:, columns], 1) for columns in nodes.values()], axis=1)
        for field, values in figures.items()
    }
    slow = {
        names[index]: evidence
        for index, evidence in outliers(by_node, step_ns, table.before, same_work).items()
        if len(nodes[names[index]]) > 1
    }
    inside = {column for name in slow for column in nodes[name]}
    rest = [column for column in range(len(table.ranks)) if column not in inside]
    by_rank = {field: values[:, rest] for field, values in figures.items()}
    evidences = outliers(by_rank, step_ns, table.before, same_work)
    flagged = {rest[index]: evidence for index, evidence in evidences.items()}
    peers = [column for column in rest if column not in flagged]
    alarms = [_slow(table, nodes[name], peers, evidence, name) for name, evidence in slow.items()]
    alarms += [_slow(table, [column], peers, evidence) for column, evidence in flagged.items()]
    # What a rank does every few steps may be what it did before.
    return [alarm for alarm in alarms if alarm.per_step > EXPLAINS * SLOW_SHARE * step_ns]


def _witnesses(table: StepTable) -> tuple[str, ...]:
    """The figures that ranks are compared by. With a GPU, the host may spin while it waits: that is CPU time, and no
    work."""
    on_gpu = bool(np.isfinite(table["device_ns"][-STEPS:]).any())
    return ("own_ns", "data_ns") if on_gpu else ("own_ns", "data_ns", "cpu_ns")


def _slow(
    table: StepTable, columns: Sequence[int], peers: Sequence[int], evidence: Evidence, node: str = ""
) -> Alarm:
    lost, recurring = _more(table[evidence.field], columns, peers), evidence.recurring
    begin = recurring.begin if recurring else began_lately(lost, table.before)
    average = mean_without_peak if recurring else middle
    own_work = gained(_more(table["own_ns"], columns, peers), begin, average)
    per_step = own_work if own_work > SLOW_SHARE * usual_step(table) else gained(lost, begin, average)
    cause = _cause(table, columns, peers, begin, per_step, average)
    share = per_step / usual_step(table)
    subject = who(table.ranks[list(columns)].tolist())
    subject = f"node {node} ({subject})" if node else subject
    when = f" in one step of {recurring.every}" if recurring else ""
    text = f"{subject} is slow{when}: {amount(per_step, 'ns')} ({100 * share:.0f} % of the step), {cause}"
    if recurring is None:
        slowest = _slowest(table, begin)
        text += f", slowest in {np.isin(slowest, list(columns)).sum()} of {len(slowest)} steps"
    kind = SLOW_NODE if node else SLOW_RANK
    return _alarm(table, begin, columns, kind, cause, per_step, share, text, node=node)


def _slowest(table: StepTable, begin: int) -> NDArray[np.int64]:
    """The column with the most own work, of the last rows since `begin`."""
    rows = table["own_ns"][max(begin, len(table.steps) - _SEEN) :]
    columns: NDArray[np.int64] = np.nan_to_num(rows, nan=-1.0).argmax(axis=1)
    return columns


def _more(values: Numbers, columns: Sequence[int], peers: Sequence[int]) -> Numbers:
    """What the median of these columns has more than that of their peers, row by row."""
    return low_median(values[:, list(columns)], 1) - low_median(values[:, list(peers)], 1)


def _when(table: StepTable, row: int, columns: Sequence[int] = ()) -> int | None:
    ends = table["end_unix_ns"][row]
    end = middle(ends[list(columns)] if columns else ends)
    begin = end - middle(table["step_ns"][row])
    return int(begin) if np.isfinite(begin) else None


def _cause(
    table: StepTable,
    columns: Sequence[int],
    peers: Sequence[int],
    begin: int,
    excess: float,
    average: Callable[[Numbers], float],
) -> str:
    """What explains at least half of what these ranks take longer than their peers."""

    def share(field: str) -> float:
        # Collections come every few steps: their median is 0.
        typical = mean_without_peak if field == "gc_ns" else average
        return gained(_more(table[field], columns, peers), begin, typical) / excess

    return _class_of({field: share(field) for field in _COMPONENTS}, _density(table, peers))


def _density(table: StepTable, columns: Sequence[int]) -> float:
    """CPU time of own work without a GPU, at most 1: less on a host with more processes than cores."""
    if np.isfinite(table["device_ns"]).any():
        return 1.0
    share = middle(table["cpu_ns"][:, list(columns)]) / middle(table["own_ns"][:, list(columns)])
    return min(share, 1.0) if share > 0 else 1.0


_COMPONENTS = ("data_ns", "gc_ns", "cpu_ns", "run_delay_ns", "forward_ns", "device_ns")


def _class_of(shares: dict[str, float], density: float) -> str:
    """A share that is NaN is not known; `density` is the CPU time of ordinary work, the rest of which waits for a core.
    On a GPU the time between CUDA events grows with everything; a slow host shows in the host's time until backward."""
    if shares["data_ns"] >= EXPLAINS:
        return DATA_LOADING
    if shares["gc_ns"] >= EXPLAINS:
        return GARBAGE
    if shares["run_delay_ns"] - shares["cpu_ns"] * (1 / density - 1) >= EXPLAINS:
        return CONTENTION
    if shares["cpu_ns"] >= EXPLAINS * density:
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
    begin = began(shares, share)
    wait = middle(low_median(table["data_ns"][begin:], 1))
    text = f"all ranks wait for data: {amount(wait, 'ns')} ({100 * share:.0f} % of the step)"
    hint = "More workers (num_workers), pin_memory, prefetch_factor; check the storage."
    return [_alarm(table, begin, (), DATA, DATA_LOADING, wait, share, text, hint=hint)]


def slowdown(table: StepTable, alarms: Iterable[Alarm] = ()) -> list[Alarm]:
    """The step time of the job has risen and stays there, and none of these alarms explains it."""
    times = low_median(table["step_ns"], 1)
    begin = _rose(times, table.before)
    average, which = middle, "every step takes longer:"
    if begin is None:
        recurring = find_recurring(times, usual_step(table), table.before)
        if recurring is None:
            return []
        begin, average = recurring.begin, mean_without_peak
        which = f"one step of {recurring.every} takes longer: on average"
    before, now = average(times[:begin]), average(times[begin:])
    more = now - before
    if not more > (CHANGE_SHARE if average is middle else SLOW_SHARE) * before:
        return []
    if any(alarm.per_step >= EXPLAINS * more for alarm in alarms):
        return []
    cause = _cause_of_change(table, begin, more, average)
    share = more / before
    lengths = f"{format_rounded('ns', before)} to {format_rounded('ns', now)}"
    text = f"{which} {lengths} (+{100 * share:.0f} %), {cause}{_turns(table, begin, more)}"
    return [_alarm(table, begin, (), SLOWDOWN, cause, more, share, text)]


def _rose(times: Numbers, before_rows: int) -> int | None:
    """The row from which these times are longer than before, if they still are."""
    for after in _AFTER:
        split = rows_before(len(times), after, before_rows)
        if split is None or len(times) - split < after:
            break
        before, now = middle(times[:split]), min(middle(times[-after:]), middle(times[-STEPS:]))
        noise = sigma(np.concatenate([times[:split] - before, times[-after:] - now]))
        error = OF_A_MEDIAN * noise * np.sqrt(1 / after + 1 / split)
        if not now - before > max(CHANGE_SHARE * before, STANDARD_ERRORS * error):
            continue
        begin = began(times - before, now - before)
        # A slow rank is known after half as many steps, and explains the change.
        if len(times) - begin >= STEPS and middle(times[begin:]) - before > CHANGE_SHARE * before:
            return begin
    return None


def _cause_of_change(table: StepTable, begin: int, more: float, average: Callable[[Numbers], float]) -> str:
    """By what the slowest rank of each step takes longer than before: the others wait for it, and only if it waits too,
    that is communication."""
    work_ns = np.nan_to_num(table["own_ns"], nan=-1.0)
    rows, slowest = np.arange(len(work_ns)), work_ns.argmax(axis=1)

    def share(field: str) -> float:
        typical = mean_without_peak if field == "gc_ns" else average
        return gained(table[field][rows, slowest], begin, typical) / more

    if share("wait_ns") >= EXPLAINS:
        return COMMUNICATION
    before = table.rows(slice(0, begin))
    return _class_of(
        {field: share(field) for field in _COMPONENTS}, _density(before, range(len(table.ranks)))
    )


def _turns(table: StepTable, begin: int, more: float) -> str:
    """Whether ranks wait for each other, and for whom, where that explains the longer step."""
    work_ns = table["own_ns"]
    apart = np.nanmax(work_ns, axis=1, initial=0.0) - low_median(work_ns, 1)
    if len(table.ranks) < 2 or not gained(apart, begin, middle) >= EXPLAINS * more:
        return ""
    slowest = _slowest(table, begin)
    if len(slowest) < _TURNS_AFTER:
        return "; for which rank the others wait is not known yet"
    counts = np.bincount(slowest, minlength=len(table.ranks))
    rank, most = int(table.ranks[counts.argmax()]), int(counts.max())
    seen = f"the slowest is rank {rank} in {most} of {len(slowest)} steps"
    return f"; {seen}" if most > _SAME_RANK * len(slowest) else f"; the ranks take turns: {seen}"


def lasts(table: StepTable, alarm: Alarm) -> bool:
    """Whether most parts of the time since its begin, and the last one, show what a slow rank or longer steps cost."""
    if alarm.ranks:
        table = next(stage for stage in table.by_stage() if np.isin(alarm.ranks, stage.ranks).all())
    begin = int(np.searchsorted(table.steps, alarm.since_step or 0))
    columns = np.isin(table.ranks, alarm.ranks).nonzero()[0].tolist()
    peers = [column for column in range(len(table.ranks)) if column not in columns]
    if columns:
        figures = [_more(table[field], columns, peers) for field in _witnesses(table)]
    else:
        figures = [low_median(table["step_ns"], 1)]
    for values in figures:
        before = mean_of(values[:begin]) if begin >= LEAST_BEFORE else 0.0
        parts = [mean_of(part) - before for part in np.array_split(values[begin:], _PARTS)]
        holds = [part > EXPLAINS * alarm.per_step for part in parts]
        if holds[-1] and sum(holds) >= _PARTS_THAT_HOLD:
            return True
    return False


def spikes(table: StepTable, fresh: int = STEPS) -> list[Alarm]:
    """Single long steps that some ranks' own work caused, or nobody's."""
    times = low_median(table["step_ns"], 1)
    usual = middle(times)
    limit = max(SPIKE_FACTOR * usual, usual + _SPIKE_SIGMAS * sigma(times - usual))
    last = len(times) - _AFTER_SPIKE
    rows = [
        row
        for row in range(max(last - fresh, 0), last)
        if times[row] > max(limit, usual + SPIKE_NS)
        and middle(times[row + 1 : row + 1 + _AFTER_SPIKE]) <= limit
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

    return _class_of({field: share(field) for field in _COMPONENTS}, _density(table, columns))


def creeping_memory(table: StepTable) -> list[Alarm]:
    """Ranks whose memory grows all the time."""
    memory = table["memory_bytes"]
    for steps in _MEMORY_WINDOWS:
        if len(memory) < steps + _FILLING:
            break
        rows = memory[-steps:]
        growth = np.maximum(_steady_growth(rows), _stairs(rows))
        limit = np.maximum(MEMORY_SHARE * rows[0], MEMORY_BYTES + MEMORY_BYTES_PER_STEP * steps)
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
    """What each column gains, if it only ever grows, several times; else 0. In quick steps memory is not read each
    time."""
    rises = np.diff(rows, axis=0)
    growth = rows[-1] - rows[0]
    several = sum((part > 0).any(axis=0).astype(int) for part in np.array_split(rises, _BLOCKS)) >= _STAIRS
    latest = rises[-len(rows) // _BLOCKS :].sum(axis=0) >= _LAST_BLOCK * growth
    single = rises.max(axis=0) > _HIGHEST_STAIR * growth
    return np.where((rises >= 0).all(axis=0) & several & latest & ~single, growth, 0.0)


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


class StepWatcher:
    """Judges the steps of comparable ranks again and again. While an alarm is open, the steps before it stay the
    measure, however long ago they were."""

    def __init__(self, confirmed_after_s: float = CONFIRMED_AFTER_S) -> None:
        self.book = AlarmBook(confirmed_after_s)
        self._before: StepTable | None = None
        self.judged_step = -1

    def look(self, table: StepTable) -> list[Alarm]:
        """The alarms that are new, or confirmed now, of the last steps."""
        fresh = max(STEPS, int((table.steps > self.judged_step).sum())) if self.judged_step >= 0 else STEPS
        self.judged_step = int(table.steps[-1])
        judged = table
        if self._before is not None and np.array_equal(self._before.ranks, table.ranks):
            first = int(np.searchsorted(table.steps, self._before.steps[-1], side="right"))
            judged = table.rows(slice(first, None)).after(self._before)
        # When all steps become longer, ranks differ more: what they did before is not the measure.
        named = any(alarm.kind in (SLOW_RANK, SLOW_NODE) for alarm in self.book.open)
        alarms = judge(judged if named else table, fresh, judged)
        new = self.book.new(alarms, middle(table["end_unix_ns"][-1]), functools.partial(lasts, judged))
        self.book.close(self.judged_step)
        lasting = [alarm for alarm in self.book.open if alarm.kind in (SLOW_RANK, SLOW_NODE, SLOWDOWN)]
        since = min((alarm.since_step or 0 for alarm in lasting), default=None)
        if since is None:
            self._before = None
        elif self._before is None:
            rows = int(np.searchsorted(table.steps, since))
            self._before = (
                table.rows(slice(max(rows - _MOST_BEFORE, 0), rows)) if rows >= LEAST_BEFORE else None
            )
        return new

    def catch_up(self, table: StepTable) -> list[Alarm]:
        """Look as if it had been there all the time; what is open at the end, or has just been raised."""
        count = len(table.steps)
        looks = min(max(_MOST_LOOKS_OF_ALL // len(table.ranks), _LEAST_LOOKS), _MOST_LOOKS)
        every = max(STEPS, -(-count // looks))
        for end in reversed(range(count, 0, -every)):
            self.look(table.rows(slice(max(end - RECENT, 0), end)))
        lately = self.judged_step - STEPS
        return [each.alarm for each in self.book.episodes if each.is_open or each.last_step > lately]


def alarms_over(table: StepTable) -> list[Episode]:
    """All alarms of a whole ring, as a watcher would have raised them, in that order, and the last suspicions."""
    watcher = StepWatcher()
    watcher.catch_up(table)
    return watcher.book.noted
