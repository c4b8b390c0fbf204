"""Who is named on an axis (docs/definitions.md, "Faults", has the rules; the constants were chosen on 120 random
jobs)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from rankscope.analysis.faults.axes import Axis
from rankscope.analysis.faults.targets import evened_targets
from rankscope.records import dataclass
from rankscope.store.arrays import Floats, quantile

_LEAST, _MOVES, _PAUSES_MOVE = 0.02, 0.05, 0.10
"""Of a mean step: what a subject costs that is named; all of them together, where it moves, and one that is late now
and then, whose host takes a little longer everywhere, or that is compared with itself, and a micro-batch; pauses that
move, which healthy hosts have too."""
_HOSTS_DIFFER, _CORE = 0.2, 0.10
"""Of what is too much: where the hosts are as often below their peers by this share, they differ by themselves, and a
slow core is named only from this part of a mean step that mending it saves beside the other slow cores. In 22
recordings with real hosts, healthy ones save up to 0.084 and a culprit 0.108;
the share is 0.01 in 8 of 9 random jobs with slow cores, and in the ninth each saves more."""
_SURE = 4.0
"""Times the standard error of what a subject costs over the steps."""
_OF_ONE = 0.8
"""Of what is too much in a step: one rank alone is late in it. Chosen, not measured."""
_STEADY = 0.5
"""Of the mean: what three quarters of the steps cost at least."""
_LATE = 0.25
"""Of the largest, or of a mean step: what a subject costs in a step in which it is late."""
_VARIES = {"compute": 0.12}
_VARIES_ELSEWHERE = 0.4
"""Of what is too much: where a subject is as often below its peers by this share, its work varies. Of 130 culprits in
random jobs none has more than 0.07."""
_EVENED = 0.3
"""The same of all: lengths and tokens have 0.6 and more, a fault that moves 0.15 at most."""
_HOSTS_WORK = 0.25
"""Of a mean step: what hosts without a GPU would save with the mean of their work, where it varies. Those that share
cores vary, too: of 24 recordings with real hosts, healthy ones save up to 0.09, with half as many cores 0.15, two to a
core 0.18, batches of any size 0.35; planted ones 0.32."""
_DOMINATES = 2.0
"""Times what the second costs: it is one subject in each step, not the noise of all."""


@dataclass(frozen=True)
class Named:
    """The outcome of an axis."""

    subjects: tuple[int, ...] = ()
    late_steps: tuple[tuple[int, ...], ...] = ()
    """By subject, the steps in which it is late."""
    moves: bool = False
    """Nobody is named, because it is another one from step to step."""
    turns: tuple[int | None, ...] = ()
    """Where it moves: by step, whose turn it was; None where nobody was late."""
    varies: bool = False
    """Where it moves: all have more in one step and less in another."""
    firsts: tuple[int, ...] = ()
    """Slow steps that are the first of a recording: the profiler itself takes time there."""
    periodic: tuple[int, ...] = ()
    """Slow steps that recur on all ranks with a period: they belong to the job."""


def named(axis: Axis) -> Named:
    step_ns, steps = axis.replays.step_ns, axis.replays.steps
    if not axis.subjects or axis.value_ns < _LEAST * step_ns:
        return Named()
    margins, by_step = axis.margins_ns, axis.by_step

    def late(subject: int) -> tuple[int, ...]:
        return late_steps(by_step[subject], step_ns)

    usual = quantile([*margins.values()], 0.25) if len(margins) > 1 else 0.0
    spreads = [float(np.std(values, ddof=1)) for values in by_step.values()] if steps > 1 else []
    noise = quantile([*spreads, *[0.0] * (len(margins) - len(spreads))], 0.25)
    recurring, others, seldom = list[int](), list[int](), list[int]()
    irregular = list[int]()
    for subject, values in by_step.items():
        margin = margins[subject]
        is_doubtful = len(margins) == 1 or subject in axis.lone or axis.name == "position"
        is_doubtful |= axis.is_diffuse(subject)
        least = (_MOVES if is_doubtful else _LEAST) * step_ns
        kind = axis.main_class(subject)
        recurs = _recurs(values, step_ns)
        if not recurs:
            irregular.append(subject)
        if margin < least or axis.below_share(subject) > _VARIES.get(kind, _VARIES_ELSEWHERE):
            continue
        if axis.name == "rank" and axis.swings(subject, _EVENED, _LEAST * step_ns):
            continue
        if recurs:
            (recurring if len(late(subject)) > 2 else seldom).append(subject)
        elif margin - usual >= max(
            (_LEAST if axis.name == "step" else _MOVES) * step_ns, _SURE * noise / steps**0.5
        ):
            others.append(subject)
    if axis.name == "step":
        return _slow_steps(axis, others)
    if axis.name == "position":
        recurring = [each for each in recurring + seldom if 2 * len(late(each)) > steps]
        others, seldom = [], []
    # Two or more that are late now and then, at different times and for the same reason, take turns.
    apart = [late(each) for each in dict.fromkeys(seldom)]
    if sum(map(len, {*apart})) == len(set().union(*apart)) and len({*apart}) + len(others) > 1:
        others, irregular = others + seldom, irregular + seldom
    else:
        recurring += seldom
    if turns := _in_turn(axis, irregular):
        others += [each for each in recurring if each in turns]
        recurring, irregular = [each for each in recurring if each not in turns], irregular + turns
    # So do those that cost less, but not much less, all together, or in the steps in which they are late.
    single = [each for each in others if _DOMINATES * _of_rivals(axis, each, irregular) <= margins[each]]
    varies = axis.below_share(None) > _EVENED
    if varies and axis.name == "rank" and axis.main_class(None) == "compute":
        single = []  # others are as late in their turn
    who = _surely_slow(axis, sorted(recurring + single))
    # What they hide may show only once they are mended; but not where others cost as much in their turn.
    kinds = {axis.main_class(each) for each in who} if varies else {"compute"}
    hide = not _are_many(axis, who, kinds) and (not varies or {*who} <= {*recurring})
    explained = axis.alone_ns(who) if who else 0.0
    if who and hide and explained >= _LEAST * step_ns:
        explained = max(explained, axis.margin_ns(*who))
    if who and explained >= axis.value_ns / 2:
        return Named(tuple(who), tuple(late(each) for each in who))
    return _moving(axis, len(others) > len(single)) if axis.name == "rank" and by_step else Named()


def _when_late(axis: Axis, subject: int) -> tuple[tuple[int, ...], float]:
    """The steps in which a subject is late, and what it costs in one."""
    values = axis.by_step[subject]
    late = late_steps(values, axis.replays.step_ns)
    return late, float(values[[*late]].mean()) if late else 0.0


def _of_rivals(axis: Axis, subject: int, irregular: Sequence[int]) -> float:
    """M of those that do not recur either, are late in other steps and have the same class, together: each costs as
    much when it is late."""
    margins, kind = axis.margins_ns, axis.main_class(subject)
    late, cost = _when_late(axis, subject)
    rivals = {other: _when_late(axis, other) for other in irregular if axis.main_class(other) == kind}
    return sum(
        margins[other]
        for other, (steps, its_cost) in rivals.items()
        if (_DOMINATES * margins[other] > margins[subject] or _DOMINATES * its_cost > cost)
        and not are_together(steps, late)
    )


def _in_turn(axis: Axis, irregular: Sequence[int]) -> list[int]:
    """Those of whom exactly one is late in each step, each as much, where one of them does not recur: that others seem
    to is chance."""
    late = {each: _when_late(axis, each) for each in axis.by_step}
    most, kind = max((cost for _, cost in late.values()), default=0.0), axis.main_class(None)
    alike = [
        each for each, (_, cost) in late.items() if _DOMINATES * cost > most and axis.main_class(each) == kind
    ]
    in_steps = sorted(step for each in alike for step in late[each][0])
    is_turn = in_steps == [*range(axis.replays.steps)] and not {*alike}.isdisjoint(irregular)
    return alike if is_turn else []


def are_together(steps: Sequence[int], others: Sequence[int]) -> bool:
    """Whether two are late in the same steps, as a rule."""
    return 2 * len({*steps} & {*others}) > len({*steps} | {*others})


def _are_many(axis: Axis, who: Sequence[int], kinds: Collection[str]) -> bool:
    """Whether others cost half as much together in these classes of work, and are not named."""
    loud = [each for each in axis.by_step if axis.main_class(each) in kinds]
    left, cost = (
        sum(axis.margins_ns[each] for each in loud if (each in who) == is_named) for is_named in (False, True)
    )
    return cost > 0 and _DOMINATES * left > cost


def _surely_slow(axis: Axis, who: list[int]) -> list[int]:
    """Without slow cores that other hosts hide, where hosts differ by themselves."""
    cores = [each for each in who if axis.is_diffuse(each)]
    # Of two, one is always as far below as the other is above.
    if axis.below_share(None) <= _HOSTS_DIFFER or axis.is_of_pairs:
        return who
    for each in sorted(cores, key=lambda each: axis.margins_ns[each]):
        others = [other for other in cores if other != each]
        if axis.alone_ns(cores) - axis.alone_ns(others) < _CORE * axis.replays.step_ns:
            who, cores = [other for other in who if other != each], others
    return who


def _slow_steps(axis: Axis, slow: list[int]) -> Named:
    """A step in which one rank alone is late is none: that is its own fault, where it is large enough."""
    slow = [step for step in slow if not _is_of_one_rank(axis, step)]
    who = tuple(step for step in sorted(slow) if step not in axis.first_steps)
    firsts = tuple(step for step in sorted(slow) if step in axis.first_steps)
    if _is_periodic(who, axis.replays.steps):
        return Named(firsts=firsts, periodic=who)
    if not who or axis.alone_ns(who) < axis.value_ns / 2:
        return Named(firsts=firsts)
    return Named(who, tuple((step,) for step in who), firsts=firsts)


def _is_of_one_rank(axis: Axis, step: int) -> bool:
    pieces = axis.targets.pieces
    mine = axis.pieces_of(step)
    cut = np.maximum(pieces.took[mine] - axis.targets.then[mine], 0)
    by_rank = np.bincount(pieces.rank[mine], weights=cut)
    return len(axis.replays.graph.ranks) > 1 and bool(by_rank.max() >= _OF_ONE * by_rank.sum())


def _recurs(values: Floats, step_ns: float) -> bool:
    """Whether a subject is late in all steps, or in every second, third …, each time as much."""
    steps, late = len(values), late_steps(values, step_ns)
    if steps > 2 and quantile(values, 0.25) >= _STEADY * values.mean():
        late = tuple(range(steps))
    elif not _is_periodic(late, steps):
        return False
    mine = values[list(late)]
    error = float(np.std(mine, ddof=1)) / len(mine) ** 0.5
    # Noise comes on top in some steps: then the spread is large, but it never costs less.
    is_sure = mine.mean() >= _SURE * error or (len(mine) > 3 and mine.min() >= _STEADY * mine.mean())
    return bool(quantile(mine, 0.25) >= _STEADY * mine.mean() and is_sure)


def _is_periodic(late: Sequence[int], steps: int) -> bool:
    """Every second, third … of all steps."""
    if len(late) < 2 or len({*np.diff(late).tolist()}) > 1:
        return False
    period = late[1] - late[0]
    return late[0] < period and late[-1] + period >= steps


def _moving(axis: Axis, take_turns: bool) -> Named:
    by_step, step_ns, steps = axis.by_step, axis.replays.step_ns, axis.replays.steps
    if axis.value_ns < _MOVES * step_ns:
        return Named()
    subjects = [*by_step]
    costs = np.stack([by_step[each] for each in subjects])
    turn = costs.argmax(axis=0)
    ordered = np.sort(np.vstack([costs, np.zeros((2, steps))]), axis=0)
    late = costs.max(axis=0) > _LATE * costs.max()
    dominates = ordered[-1].sum() >= _DOMINATES * ordered[-2].sum()
    is_sure = not axis.lone or (dominates and 2 * np.bincount(turn[late]).max() <= late.sum())
    varies = (axis.below_share(None) > _EVENED or axis.swings(None, _EVENED, _LEAST * step_ns)) and _is_work(
        axis
    )
    is_known = axis.main_class(None) in ("compute", "copy") or axis.value_ns >= _PAUSES_MOVE * step_ns
    is_diffuse = axis.is_diffuse(None) and not varies
    if len({*turn.tolist()}) < 2 or not is_known or is_diffuse or not is_sure:
        return Named()
    if not (take_turns or dominates or quantile(axis.together_by_step(), 0.25) >= _MOVES * step_ns):
        return Named()
    turns = (
        subjects[at] if is_late else None for at, is_late in zip(turn.tolist(), late.tolist(), strict=True)
    )
    return Named(moves=True, turns=tuple(turns), varies=varies)


def _is_work(axis: Axis) -> bool:
    """What differs is compute; on ranks without a GPU the host computes."""
    replays, kind = axis.replays, axis.main_class(None)
    if kind != "host" or not replays.graph.is_alone.all():
        return kind == "compute"
    evened = evened_targets(replays.run, replays.scope, of_all_kinds=True)
    return replays.saved_ns(evened) >= _HOSTS_WORK * replays.step_ns


def late_steps(values: Floats, step_ns: float) -> tuple[int, ...]:
    """Those in which a subject costs much of what it costs at most, or of a step; all, where noise comes on top."""
    if values.min() >= _STEADY * values.mean() > 0:
        return tuple(range(len(values)))
    most = min(float(values.max()), step_ns)
    return tuple(np.flatnonzero(values > _LATE * most).tolist()) if most > 0 else ()
