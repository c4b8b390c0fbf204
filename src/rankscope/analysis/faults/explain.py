"""Why the subject of a fault is late, in words and figures: what its edits are, and never more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from rankscope.analysis.across_ranks.host_cpu import host_reason, thread_state
from rankscope.analysis.across_ranks.main_thread import gap_between, gaps, sampled_line
from rankscope.analysis.across_ranks.micro_batches import micro_batches_of
from rankscope.analysis.across_ranks.op_differences import extra_ops
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.collective_waits import waits
from rankscope.analysis.core.device_events import gpu_ranks
from rankscope.analysis.core.host_spans import dataloader_spans, latest_around, loading_line, rank_annotations
from rankscope.analysis.core.intervals import Intervals, Ints, union
from rankscope.analysis.core.names import all_names
from rankscope.analysis.core.result import Fact, Unit, Why, argv
from rankscope.analysis.core.rollups import part_of
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.faults.axes import AXES, Axis, AxisName, Replays
from rankscope.analysis.faults.causes import host_work
from rankscope.analysis.faults.faults import Fault, Subject
from rankscope.analysis.faults.targets import in_passes, peer_groups, position_targets
from rankscope.analysis.graph.events import NONE, PATH_CLASSES, Mask
from rankscope.analysis.within_rank.event_tables import kernel_sums
from rankscope.analysis.within_rank.gpu_state import explains, gpu_states, low_clock
from rankscope.collective_kinds import KINDS
from rankscope.ranges import rank_words
from rankscope.store.arrays import Floats, number_rows, quantile, unique_values
from rankscope.text.names import bare_name
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

_NAME_WIDTH = 60
_COVERS = 0.8
"""Of what is too much: an annotation or a micro-batch that has this much of it is named."""
_MOST_PEERS = 64
"""Of more ranks than this, so many are compared by the names of their ops."""
_MORE_TOKENS = 1.2
"""Times the mean of its group: what all_to_all brings to a rank that has more tokens."""
_NEARLY_ALL = 0.84
"""Everything takes longer where what has this share of the time does. In jobs of rankscope_bench/exam/ordinary_job.py:
from 0.85 on a slow core, up to 0.78 with a large batch."""
_ALIKE = 1.05
"""Times as many kernels, bytes or time: still the same work."""
_DIRECTIONS = {"HtoD": "to the GPU", "DtoH": "from the GPU", "DtoD": "on the GPU", "PtoP": "between GPUs"}


def why(run: Run, scope: Scope, fault: Fault, subject: Subject) -> Why:
    """What the subject does for too long, compared with its peers on the axis of the fault."""
    asked = _Asked(run, scope, fault, subject)
    cause = subject.cause
    if fault.axis == "position":
        answer = _micro_batch(asked)
    elif cause.kind == "transfer":
        answer = _transfer(asked)
    elif not asked.cut.any():
        answer = Why(f"{asked.it} starts late, after work that was not recorded", report="faults")
    else:
        find = {"compute": _compute, "copy": _copy, "host": _host, "dataloader": _dataloader}
        answer = find["host" if asked.is_on_host else cause.kind](asked)
    if fault.axis != "link":
        answer = replace(answer, text=answer.text + asked.in_micro_batch)
    kind = answer.kind or ("link" if cause.kind == "transfer" else cause.kind)
    facts = (
        *answer.facts,
        fault.fact(subject, "cause", kind),
        fault.fact(subject, "how", cause.how_much),
        fault.fact(subject, "explained_ns", round(cause.explained_ns), "ns"),
    )
    return replace(answer, facts=facts, names=tuple(filter(None, answer.names)))


@once_per_run
def _axis(run: Run, scope: Scope, name: AxisName) -> Axis:
    """Everything as it was recorded but the targets of this axis."""
    return AXES[name](Replays(run, scope))


class _Asked:
    """A subject, and the work of it that is too much: that of the rank that has most of it."""

    def __init__(self, run: Run, scope: Scope, fault: Fault, subject: Subject) -> None:
        self.run, self.scope, self.fault, self.subject = run, scope, fault, subject
        self.cause = subject.cause
        self.axis = axis = _axis(run, scope, fault.axis)
        self.pieces, self.graph = axis.targets.pieces, axis.replays.graph
        pieces = self.pieces
        late = set(subject.late_steps) or set(range(len(self.graph.steps)))
        self.late = sorted(late)
        """Indices of the steps in which it is late."""
        mine = axis.of_point[pieces.point] == subject.subject
        alone = fault.axis == "rank" and bool(self.graph.is_alone[subject.subject])
        self.is_on_host = alone and self.cause.kind in ("compute", "copy", "host")
        """Its rank has no GPU: what it computes and copies is time of the host."""
        kind = "host" if self.is_on_host else self.cause.kind
        if kind in PATH_CLASSES:
            mine = mine & (pieces.kind == PATH_CLASSES.index(kind))
        too_much = np.maximum(pieces.took - axis.targets.then, 0)
        if self.late and (in_late := mine & np.isin(pieces.step, self.late))[too_much > 0].any():
            mine = in_late
        self.usual = axis.targets.usual
        cut = np.where(mine, too_much, 0)
        by_rank = np.bincount(pieces.rank, weights=cut, minlength=len(self.graph.ranks))
        number = int(by_rank.argmax())
        self.rank = subject.number if fault.axis == "rank" else self.graph.ranks[number]
        self.mine: Mask = mine & (pieces.rank == number)
        self.cut: Ints = np.where(self.mine, cut, 0)
        """By piece: what is too much of it."""
        alike = [
            each
            for each in fault.subjects
            if (each.cause.kind, each.cause.how) == (self.cause.kind, self.cause.how)
        ]
        self.together = [each.number for each in alike] if fault.axis == "rank" else []
        """The ranks that are late for the same reason: the others are compared with."""
        is_everywhere = len(by_rank) > 1 and bool(2 * by_rank.min() >= by_rank.max())
        self.it, self.its = "it", "its"
        if fault.axis == "step":
            self.it = "each rank" if is_everywhere else f"rank {self.rank}"
            self.its = f"{self.it}'s"

    def of_rank(self, quantity: str, value: float | str, unit: Unit = "", report: str = "") -> Fact:
        """A figure of the rank, per late step."""
        return Fact(
            quantity,
            value,
            unit,
            f"rank {self.rank}{self.when}",
            (self.rank,),
            {"rank": self.rank} if report else {},
            report,
        )

    @property
    def when(self) -> str:
        """Over which steps a mean is."""
        if not self.graph.steps or self.fault.axis == "step":
            return ""
        if len(self.late) == 1:
            return f" in step {self.step_numbers[0]}"
        return " per step" if len(self.late) == len(self.graph.steps) else " in each late step"

    def per_step(self, total: float) -> float:
        return total / max(len(self.late), 1)

    @property
    def longer(self) -> Fact:
        """What is too much of it."""
        return self.of_rank("longer_ns", round(self.per_step(self.cut.sum())), "ns")

    def time(self, chosen: Mask | None = None) -> str:
        """What is too much of these pieces, per late step."""
        cut = self.cut if chosen is None else self.cut[chosen]
        return format_rounded("ns", self.per_step(float(cut.sum())))

    @property
    def step_numbers(self) -> list[int]:
        return [self.graph.steps[at] for at in self.late]

    @cached_property
    def factor(self) -> float:
        """How many times as long it takes for what its counterparts do as well."""
        compared = self.mine & (self.usual > 0)
        return float(self.pieces.took[compared].sum() / max(self.usual[compared].sum(), 1))

    @property
    def is_slower_everywhere(self) -> bool:
        """Nearly all that its peers do as well takes longer: kernels, or ops by their own time."""
        took, usual = self._kernels() if self.cause.kind == "compute" and not self.is_on_host else self._ops()
        whole = took.sum() / max(usual.sum(), 1.0)
        slower = took >= (1 + whole) / 2 * usual
        return bool(whole > 1 and usual[slower].sum() >= _NEARLY_ALL * usual.sum())

    def _kernels(self) -> tuple[Floats, Floats]:
        """By name: their time, and that of their counterparts."""
        compared = self.mine & (self.usual > 0)
        name = np.unique(self.pieces.name[compared], return_inverse=True)[1]
        took, usual = (
            np.bincount(name, weights=time[compared]).astype(float) for time in (self.pieces.took, self.usual)
        )
        return took, usual

    def _ops(self) -> tuple[Floats, Floats]:
        """By name: their time on the rank, and the median of the others."""
        late = f" AND step IN ({', '.join(map(str, self.step_numbers))})" if self.late else ""
        rows = part_of(self.run, self.compared.ranks).arrays(
            "SELECT rank::BIGINT AS rank, dense_rank() OVER (ORDER BY name)::BIGINT - 1 AS name, "
            "sum(self_ns)::BIGINT AS took FROM slices "
            f"WHERE category = 'cpu_op' AND self_ns > 0 AND {self.compared.where()}{late} GROUP BY rank, name"
        )
        ranks, line = np.unique(rows["rank"], return_inverse=True)
        table = np.zeros((len(ranks), int(rows["name"].max(initial=-1)) + 1))
        table[line, rows["name"]] = rows["took"]
        is_mine = ranks == self.rank
        if not is_mine.any() or is_mine.all():
            return np.zeros(0), np.zeros(0)
        return table[is_mine][0], np.median(table[~is_mine], axis=0)

    @cached_property
    def longest(self) -> Ints:
        """The pieces with most of what is too much."""
        order = np.argsort(-self.cut, kind="stable")
        return order[: int(np.searchsorted(np.cumsum(self.cut[order]), _COVERS * self.cut.sum())) + 1]

    @property
    def spans(self) -> Intervals:
        """When these were."""
        ends = self.graph.start[self.pieces.point[self.longest]]
        return union(ends - self.pieces.took[self.longest], ends)

    def of_name(self, code: int) -> Mask:
        chosen: Mask = (self.cut > 0) & (self.pieces.name == code)
        return chosen

    @cached_property
    def top(self) -> int:
        """The name of which most is too much."""
        edited = np.flatnonzero((self.cut > 0) & (self.pieces.name != NONE))
        if not len(edited):
            return NONE
        return int(np.bincount(self.pieces.name[edited], weights=self.cut[edited]).argmax())

    @property
    def top_name(self) -> str:
        return self.graph.names[self.top] if self.top != NONE else ""

    @property
    def on_gpu(self) -> bool:
        return self.rank in gpu_ranks(self.run)

    @cached_property
    def annotation(self) -> str:
        """The innermost one of the program that has most of what is too much, but not most of the rest, too."""
        pieces = self.pieces
        used = np.flatnonzero(self.mine)
        point = pieces.point[used]
        on_device = pieces.is_own[used]
        time = np.where(
            on_device, self.graph.launched[point], self.graph.start[point] - pieces.took[used] // 2
        )
        spans = rank_annotations(part_of(self.run, frozenset({self.rank})), self.rank)
        order = np.argsort(spans.start, kind="stable")
        name = latest_around(spans.start[order], spans.end[order], spans.name[order], time)
        known = name != NONE
        if not known.any():
            return ""
        cut, took = (np.bincount(name[known], weights=each[used][known]) for each in (self.cut, pieces.took))
        most = int(cut.argmax())
        has_most = cut[most] >= _COVERS * self.cut.sum()
        rest = took[most] - cut[most] >= _COVERS * max(float((pieces.took - self.cut)[used].sum()), 1.0)
        return all_names(self.run)[most] if has_most and not rest else ""

    @property
    def where(self) -> str:
        return f", most of it in {_short(self.annotation)}" if self.annotation else ""

    @property
    def in_micro_batch(self) -> str:
        """Where one of several has most of what is too much."""
        if (
            self.cause.kind not in ("compute", "host")
            or self.cause.how == "pause"
            or self.fault.axis not in ("rank", "step")
        ):
            return ""
        used, (_, batch, _, _), _ = in_passes(self.run, self.scope, self.pieces, self.mine)
        if len(unique_values(batch)) < 2:
            return ""
        cut = np.bincount(batch, weights=self.cut[used])
        if cut.max() < _COVERS * self.cut.sum():
            return ""
        return f"; most of it in micro-batch {int(cut.argmax()) + 1} of {len(unique_values(batch))}"

    @property
    def compared(self) -> Scope:
        """Its rank and others, evenly chosen, in the steps of the scope."""
        others = [rank for rank in self.run.ranks if rank != self.rank and rank not in self.together]
        chosen = others[:: -(-len(others) // _MOST_PEERS)] if others else []
        return Scope(frozenset({self.rank, *chosen}), self.scope.steps)

    @property
    def worst_step(self) -> int | None:
        """The number of the step in which it is late most."""
        return self.graph.steps[int(self.by_step.argmax())] if self.graph.steps else None

    @cached_property
    def by_step(self) -> Floats:
        """What is too much, by step of the graph."""
        used = self.mine & (self.pieces.step != NONE)
        sums = np.bincount(self.pieces.step[used], weights=self.cut[used], minlength=len(self.graph.steps))
        return sums.astype(float)


def _short(name: str) -> str:
    """A name as a sentence has it: that of a kernel without its types."""
    return shorten_middle(name if name.startswith("aten::") else bare_name(name), _NAME_WIDTH)


# -- a micro-batch


def micro_batch_ranks(run: Run, scope: Scope, numbers: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """How many micro-batches a step has, and the ranks on which these are long; the first one is 1."""
    targets, of_point = position_targets(run, scope)
    pieces = targets.pieces
    batches = micro_batches_of(run, Scope(steps=scope.steps)).number
    mine = np.isin(of_point[pieces.point], [number - 1 for number in numbers])
    cut = np.where(mine, pieces.took - targets.took, 0)
    ranks = np.flatnonzero(np.bincount(pieces.rank, weights=cut, minlength=len(pieces.graph.ranks)))
    return int(max(batches.max(initial=0), of_point.max())) + 1, tuple(pieces.graph.ranks[at] for at in ranks)


def _micro_batch(asked: _Asked) -> Why:
    """How long it takes on the rank that has most of what is too much, by the others of its steps."""
    batches = micro_batches_of(asked.run, Scope(steps=asked.scope.steps))
    used = (batches.number == asked.subject.number - 1) & (batches.rank == asked.rank)
    if asked.late:
        used &= np.isin(batches.step, asked.step_numbers)
    text, facts = "it takes longer than the others", list[Fact]()
    if used.any():
        mine, usual = float(batches.total_ns[used].mean()), float(batches.median_of_others()[used].mean())
        text = f"it takes {mine / max(usual, 1):.1f}x as long as the others"
        facts = [
            Fact("micro_batch_ns", round(mine), "ns", f"rank {asked.rank}", (asked.rank,)),
            Fact("micro_batch_ns", round(usual), "ns", "the others"),
        ]
    name = asked.top_name if asked.on_gpu else ""
    return Why(
        text,
        "Give every micro-batch the same amount of work: sort samples by length, or pack them. Else look at what runs "
        "only in this one.",
        (*facts, asked.longer, *_kernel(asked, name)),
        (name,),
        "stragglers.micro_batches",
    )


# -- compute


def _compute(asked: _Asked) -> Why:
    if asked.fault.axis == "stage":
        return _stage(asked)
    if asked.fault.axis == "rank" and (tokens := _tokens(asked)):
        return tokens
    if asked.cause.how == "slower":
        return _slow_device(asked)
    return _more_work(asked) if asked.cause.how == "extra" else _longer(asked)


def _tokens(asked: _Asked) -> Why | None:
    """Whether all_to_all brings more to the rank than to the others of its group."""
    rows = waits(asked.run, Scope(steps=asked.scope.steps)).rows
    used = np.flatnonzero((rows.kind == KINDS.index("all_to_all")) & (rows.out_elements > 0))
    if asked.graph.steps:
        used = used[np.isin(rows.step[used], asked.step_numbers)]
    if not len(used):
        return None
    places, number = number_rows([rows.group[used], rows.step[used], rows.rank[used]])
    received = np.bincount(number, weights=rows.out_elements[used])
    group = number_rows([*places[:, :2].T])[1]
    ratio = received * np.bincount(group)[group] / np.bincount(group, weights=received)[group]
    mine = ratio[places[:, 2] == asked.rank]
    load, name = float(mine.mean()) if len(mine) else 0.0, asked.top_name
    of_name = asked.of_name(asked.top) & (asked.usual > 0)
    factor = asked.pieces.took[of_name].sum() / max(asked.usual[of_name].sum(), 1)
    # The mean of the group contains its own.
    if load < (min(_MORE_TOKENS, 1 + (factor - 1) / 2) if factor > _ALIKE else _MORE_TOKENS):
        return None
    return Why(
        f"it gets more tokens: all_to_all sends it {load:.2f}x the mean of its group",
        "Balance the experts: change their capacity factor or the auxiliary loss of the router.",
        (asked.of_rank("all_to_all_load", load), *_kernel(asked, name)),
        (name,),
        "collectives",
    )


def _slow_device(asked: _Asked) -> Why:
    factor = asked.cause.factor or asked.factor
    kernels = f"its kernels take {factor:.2f}x as long"
    slower = asked.of_rank("slowdown", round(factor, 3), report="kernels")
    low = low_clock(gpu_states(asked.run, Scope(steps=asked.scope.steps)), asked.rank, tuple(asked.together))
    if low is not None and explains(low, factor):
        return Why(
            f"its GPU runs at {low.mine_mhz:,.0f} MHz, the others at {low.others_mhz:,.0f} MHz{low.slowed_by.words}: "
            f"{kernels}",
            low.advice,
            (*low.facts(), Fact("samples", low.state.samples, "count", report="gpu"), slower),
            report="gpu",
            command=low.slowed_by.command,
        )
    if asked.is_slower_everywhere:
        return Why(
            f"its GPU is slow: {kernels}",
            "Compare its clock, power and temperature with those of the others.",
            (slower,),
            report="kernels",
        )
    return Why(
        f"{kernels}: its GPU is slow, or it has more data",
        "Compare its clock and the shapes of its tensors with those of the others.",
        (slower,),
        report="kernels",
    )


def _more_work(asked: _Asked) -> Why:
    """What the rank runs in addition to its peers, by its ops, else by its kernels."""
    if asked.fault.axis == "rank" and (ops := _more_ops(asked)):
        return ops
    name, chosen = asked.top_name, asked.of_name(asked.top)
    extra = asked.per_step(int((chosen & (asked.usual == 0)).sum()))
    source = _source(asked, name)
    if not extra:
        return _longer(asked)
    number = f"{round(extra):,}" if extra >= 1 else f"{extra:.1f}"
    text = f"{asked.it} runs {number} more {_short(name)}{asked.when} ({asked.time(chosen)}){asked.where}"
    if _has_as_many_kernels(asked, extra):
        text = (
            f"{asked.its} work is larger: its kernels are as many, but longer, such as {_short(name)} "
            f"({asked.time(chosen)}{asked.when}){asked.where}"
        )
    return Why(
        text,
        "Give every rank the same work, do it less often, or do it outside the step."
        if asked.fault.axis == "rank"
        else "Do it less often, or outside the training loop.",
        (
            asked.of_rank("extra_kernels", extra, "count", "kernels"),
            *(Fact(*each) for each in source.items()),
        ),
        (name, asked.annotation, *source.values()),
        "kernels",
    )


def _has_as_many_kernels(asked: _Asked, extra: float) -> bool:
    """As its peers: what is too much are other kernels in the place of theirs, not `extra` more in a late step."""
    sums = kernel_sums(asked.run, Scope(steps=asked.scope.steps))
    if sums is None or asked.fault.axis != "rank":
        return False
    ranks = asked.graph.ranks
    group = peer_groups(asked.run, ranks)
    alike = np.array(ranks)[group == group[ranks.index(asked.rank)]].tolist()
    mine, *others = (
        sum(kernel.kernels for kernel in sums.get(rank, ()) if kernel.kind == "COMPUTE")
        for rank in (asked.rank, *(rank for rank in alike if rank not in asked.together))
    )
    return bool(others) and 2 * (mine - quantile(others, 0.5)) < extra * len(asked.late)


def _more_ops(asked: _Asked) -> Why | None:
    """Ops that it runs more often than its peers, where they have most of what is too much."""
    step = asked.worst_step
    extra = extra_ops(asked.run, asked.compared, asked.rank, asked.together, step)
    if extra is None:
        return None
    on_device = asked.cause.kind != "host" and asked.on_gpu
    times = {op: op.device_ns if on_device else op.host_ns for op in extra.ops}
    top = max(times, key=times.__getitem__)
    passes = extra.passes()
    repeated = passes[1] if passes and passes[0].denominator == 1 else ()
    took = sum(times[op] for op in repeated) if repeated else times[top]
    part = took / max(sum(max(ns, 0.0) for ns in times.values()), 1.0)
    in_step = asked.cut[asked.pieces.step == asked.graph.steps.index(step)] if step is not None else asked.cut
    if took < in_step.sum() / 2:
        return None
    name = _short(top.name)
    is_mean = step is None or extra.every_step or extra.in_steps == len(asked.late)
    when = asked.when if is_mean else f" in step {step}"
    mean_ns = part * extra.per_step_ns(on_device) * extra.steps / max(len(asked.late), 1)
    spent_ns = round(mean_ns if is_mean else took)
    spent = format_rounded("ns", spent_ns)
    if passes and repeated:
        number = passes[0].numerator
        text = f"it runs {number:,} more forward pass{'es' * (number != 1)}{when} ({spent})"
    elif top.median_calls:
        text = f"it runs {top.calls - top.median_calls:,} more {name}{when} ({spent})"
    else:
        times_run = "once" if top.calls == 1 else f"{top.calls:,} times"
        whose = "and no other rank does" if top.only_here else "and most others do not"
        text = f"it runs {name} {times_run}{when} ({spent}), {whose}"
    at = f" of step {step}" if step is not None else ""
    whom = f"rank {asked.rank}{at}"
    fact = partial(Fact, ranks=(asked.rank,), report="stragglers.op_differences")
    return Why(
        text + asked.where,
        "Give every rank this work, do it less often, or do it outside the step.",
        (
            fact("calls", top.calls, "count", whom),
            fact("median_calls", top.median_calls, "count", whom),
            Fact("in_steps", f"{extra.in_steps} of {extra.steps}", report="stragglers.op_differences"),
            fact("extra_op_ns", spent_ns, "ns", f"rank {asked.rank}{when}"),
        ),
        (*(op.name for op in extra.ops[:3]), asked.annotation),
        "stragglers.op_differences",
    )


def _longer(asked: _Asked) -> Why:
    """Kernels that take longer than their counterparts."""
    name = asked.top_name
    if not name:
        return Why(
            f"{asked.its} small kernels take {asked.time()} longer{asked.when}{asked.where}",
            advice="Compare the shapes of its tensors with those of the others.",
            names=(asked.annotation,),
            report="kernels",
        )
    chosen = asked.mine & (asked.pieces.name == asked.top)
    usual = asked.usual[chosen & (asked.usual > 0)].sum()
    factor = float(asked.pieces.took[chosen].sum() / max(usual, 1))
    times = f"takes {factor:.1f}x as long" if usual and factor >= _ALIKE else "takes longer"
    source = _source(asked, name)
    return Why(
        f"{asked.its} {_short(name)} {times} ({asked.time(chosen)} more{asked.when}){asked.where}",
        "Compare the shapes of its tensors with those of the others."
        if asked.fault.axis == "rank"
        else "Compare the shapes of its tensors with those in other steps.",
        (
            asked.of_rank("slowdown", round(factor, 3), report="kernels"),
            *(Fact(*each) for each in source.items()),
        ),
        (name, asked.annotation, *source.values()),
        "kernels",
    )


def _source(asked: _Asked, kernel: str) -> dict[str, str]:
    """The op that launches most of a kernel, and its line of Python, where they were recorded."""
    window = Scope(steps=asked.scope.steps).where()
    rows = part_of(asked.run, frozenset({asked.rank})).rows(
        f"SELECT op_name, line FROM gpu WHERE rank = {asked.rank} AND name = ? AND {window} "
        "GROUP BY ALL ORDER BY sum(dur_ns) DESC LIMIT 1",
        [kernel],
    )
    return {what: name for row in rows for what, name in zip(("op", "line"), row, strict=True) if name}


def _kernel(asked: _Asked, name: str) -> list[Fact]:
    """That with most of the time."""
    return [asked.of_rank("kernel", name, report="kernels")] if name else []


def _stage(asked: _Asked) -> Why:
    """More layers, heavier work, or slow devices: by the kernels of the same names on the other stages."""
    factor = asked.cause.factor
    if factor:
        return Why(
            f"its devices are slow: its kernels take {factor:.2f}x as long as those of the other stages",
            advice="Compare the clock, power and temperature of its GPUs with those of the others.",
            facts=(asked.of_rank("slowdown", round(factor, 3), report="kernels"),),
            report="kernels",
        )
    compared = np.flatnonzero(asked.pieces.is_own & (asked.pieces.kind == PATH_CLASSES.index("compute")))
    stage = asked.axis.of_point[asked.pieces.point[compared]]
    cells, cell = number_rows([stage, asked.pieces.rank[compared]])
    count = np.bincount(cell)
    is_mine = cells[:, 0] == asked.subject.subject
    if not is_mine.any() or is_mine.all():
        return Why("its work is heavier", advice=_MOVE_LAYERS, report="kernels")
    ratio = float(count[is_mine].mean() / quantile(count[~is_mine], 0.5))
    name = asked.top_name
    more = asked.of_rank("kernels_ratio", round(ratio, 3), report="kernels")
    on_mine = stage == asked.subject.subject
    codes = asked.pieces.name[compared]
    is_common = np.isin(codes[on_mine], codes[~on_mine])
    if ratio < _ALIKE:
        text = f"its work is heavier: it takes longer with {ratio:.2f}x as many kernels as the other stages"
    elif is_common.mean() >= 1 / 2:
        text = f"it has more layers: {ratio:.1f}x as many kernels as the other stages"
    else:
        text = f"it has work that the other stages do not have: {ratio:.1f}x their kernels"
    return Why(text, _MOVE_LAYERS, (more, *_kernel(asked, name)), (name,), "kernels")


_MOVE_LAYERS = "Move layers to other stages."


# -- copies and data


def _copy(asked: _Asked) -> Why:
    name = asked.top_name
    direction = next((words for key, words in _DIRECTIONS.items() if key in name), "")
    memory = next((word for word in ("pageable", "pinned") if word in name.lower()), "")
    copies = " ".join(filter(None, ("copies", memory and f"of {memory} memory", direction)))
    mine, others = _bytes_and_time(asked, name)
    time, facts = asked.time(), list[Fact]()
    text = f"{asked.its} {copies} take {time} longer{asked.when}{asked.where}"
    if mine[0] and others[0]:
        ratio = mine[0] / others[0]
        rates = [moved / max(took, 1) for moved, took in (mine, others)]
        facts = [
            asked.of_rank("copy_gb_s", rates[0], "GB/s", "memcpy"),
            Fact("copy_gb_s", rates[1], "GB/s", "the others", report="memcpy"),
            asked.of_rank("bytes_ratio", ratio, "", "memcpy"),
        ]
        if ratio >= _ALIKE:
            text = f"{asked.it} copies {ratio:.1f}x the bytes {direction} ({time} longer{asked.when}){asked.where}"
    elif asked.cause.how == "extra":
        text = f"{asked.it} copies more {direction} ({time}{asked.when}){asked.where}"
    pageable = (
        "Pin the memory (pin_memory=True) and copy with non_blocking=True." if memory == "pageable" else ""
    )
    return Why(
        " ".join(text.split()),
        pageable or "Compare what it copies, and the PCIe width and generation of its GPU.",
        (*facts, asked.longer),
        (name, asked.annotation),
        "memcpy",
    )


def _bytes_and_time(asked: _Asked, name: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """Bytes and time of the copies of a name on the rank, and the medians of its peers; 0 where not recorded."""
    scope = asked.compared
    rows = part_of(asked.run, scope.ranks).rows(
        "SELECT rank, coalesce(sum(bytes), 0)::DOUBLE, sum(dur_ns)::DOUBLE FROM gpu "
        f"WHERE name = ? AND {scope.where()} GROUP BY rank",
        [name],
    )
    mine = next(((moved, took) for rank, moved, took in rows if rank == asked.rank), (0.0, 0.0))
    others = [(moved, took) for rank, moved, took in rows if rank != asked.rank]
    if not others or asked.fault.axis != "rank":
        return mine, (0.0, 0.0)
    moved, took = np.median(np.array(others), axis=0).tolist()
    return mine, (moved, took)


def _dataloader(asked: _Asked) -> Why:
    run = part_of(asked.run, frozenset({asked.rank}))
    line = loading_line(run, asked.rank) or sampled_line(
        run, asked.rank, dataloader_spans(run, asked.rank), "torch/utils/data/"
    )
    return Why(
        f"{asked.it} waits {asked.time()} longer{asked.when} for its next batch"
        + (f", in {line}" if line else ""),
        advice=(f"Look at {line}. " if line else "")
        + "Use more workers, or check what this rank reads: storage, node, size of its files."
        if asked.fault.axis == "rank"
        else "Use more workers, or load further ahead (prefetch_factor).",
        facts=(asked.longer,),
        names=(line,),
        report="dataloader",
    )


# -- transfers


def _transfer(asked: _Asked) -> Why:
    """The kind and size of transfer that is too long by most, and its rate against that of others."""
    axis, graph = asked.axis, asked.graph
    matched, took = graph.collectives, graph.work.transfer
    mine = np.flatnonzero(axis.of_match == asked.subject.subject)
    cut = took[mine] - axis.targets.transfer[mine]
    alike, number = number_rows([matched.kind[mine], matched.bytes[mine], matched.group[mine]])
    most = int(np.bincount(number, weights=cut).argmax())
    kind, moved, group = alike[most].tolist()
    chosen = mine[number == most]
    own_ns, usual_ns = (float(time[chosen].mean()) for time in (took, axis.targets.transfer))
    groups = [asked.run.collectives.groups[at] for at in unique_values(matched.group[mine]).tolist()]
    name = asked.run.collectives.groups[group].name
    members = sorted({rank for each in groups for rank in each.ranks or ()})
    hosts = asked.run.hosts
    nodes = sorted({hosts[rank] for rank in members if hosts.get(rank)}) if len({*hosts.values()}) > 1 else []
    same = (matched.kind == kind) & (matched.bytes == moved) & (axis.of_match != asked.subject.subject)
    others = "in other groups" if same.any() else "in its other steps"
    whom = f"{KINDS[kind]} in group {name}"
    facts = [
        Fact("transfer_ns", round(own_ns), "ns", whom, tuple(members), report="collectives"),
        Fact("transfer_ns", round(usual_ns), "ns", f"the same {others}", report="collectives"),
        Fact("transfer_bytes", moved or None, "bytes", whom),
    ]
    if moved >= usual_ns:
        rates = [moved / max(time, 1) for time in (own_ns, usual_ns)]  # bytes per ns
        facts += [Fact("transfer_gb_s", rate, "GB/s", whom) for rate in rates]
        speed = f"runs at {rates[0]:.3g} GB/s instead of {rates[1]:.3g} GB/s"
    else:
        speed = f"takes {own_ns / max(usual_ns, 1):.1f}x as long as {others}"
    of = f"of {rank_words(members)}" if 0 < len(members) <= _FEW else f"in group {name}"
    where = f" on {nodes[0]}" if len(nodes) == 1 else f" across {len(nodes)} nodes" if nodes else ""
    several = f"; {len(groups)} of its groups are slow" if len(groups) > 1 else ""
    link = "NICs and switch ports" if len(nodes) > 1 else "NVLink or PCIe" if asked.on_gpu else "network"
    return Why(
        f"{KINDS[kind]} {of}{where} {speed}{several}",
        f"Check the links of {rank_words(members) if members else name}: {link}.",
        tuple(facts),
        (*(each.name for each in groups), *nodes),
        "collectives",
    )


_FEW = 8
"""Members of a group that are listed."""


# -- the host


def _host(asked: _Asked) -> Why:
    steps, reason = asked.graph.steps, None
    if asked.fault.axis == "rank" and steps:
        reason = host_reason(asked.run, asked.rank, asked.together, steps, asked.by_step)
    if reason is not None:
        line = sampled_line(part_of(asked.run, frozenset({asked.rank})), asked.rank, asked.spans)
        facts = (*reason.facts, Fact("line", line)) if line else reason.facts
        return replace(reason, facts=facts, names=(*reason.names, line))
    if asked.cause.how == "slower":
        return _slow_core(asked)
    if asked.cause.how != "pause" and asked.fault.axis == "rank" and (ops := _more_ops(asked)):
        return ops
    return _pause(asked) if asked.cause.how == "pause" else _long_ops(asked)


def _slow_core(asked: _Asked) -> Why:
    times = f"{asked.factor:.1f}x as long"
    text = f"{asked.its} {'host is slower' if asked.on_gpu else 'core is slow'}: all ops take {times}"
    if not asked.is_slower_everywhere:
        text = f"{asked.its} host takes {times}: its core is slow, or it has more to do"
    names = () if asked.on_gpu else asked.cause.names[:2]
    return Why(
        text,
        "Look for other processes on its cores (top, ps -eLo psr,pcpu,comm), and compare their clock with that of the "
        "others.",
        (
            asked.longer,
            *(asked.of_rank("most_in", name, report="ops") for name in names),
            asked.of_rank("slowdown", round(asked.factor, 3), report="ops"),
        ),
        report="ops",
    )


def _long_ops(asked: _Asked) -> Why:
    """Ops, or annotations around host time without one."""
    work = Counter[str]()
    for each in host_work(asked.axis.replays, asked.cut):
        work[each.around] += each.ns
    without = work.pop("", 0)
    if not work or without > work.total():
        return _pause(asked)
    (name, spent), *_ = work.most_common(1)
    time = format_rounded("ns", asked.per_step(spent))
    return Why(
        f"{asked.its} host spends {time} longer in {_short(name)}{asked.when}",
        f"Look at what {asked.it} does in {_short(name)}.",
        (asked.longer, asked.of_rank("extra_host_ns", round(asked.per_step(spent)), "ns", "ops")),
        (name,),
        "ops",
    )


def _pause(asked: _Asked) -> Why:
    """Host time in which the training thread runs no op: where, and whether it was on a CPU."""
    graph, run = asked.graph, part_of(asked.run, frozenset({asked.rank}))
    spans = asked.spans
    times = gaps(run, asked.rank, [*zip(spans.start.tolist(), spans.end.tolist(), strict=True)])
    totals = times.totals()
    state = thread_state(asked.run, asked.rank, asked.together, graph.steps, asked.by_step)
    longest = max(totals, key=totals.__getitem__, default=None)
    facts = [asked.longer]
    if longest is None or totals[longest] < asked.cut[asked.longest].sum() / 2:
        line, annotation, ops = sampled_line(run, asked.rank, spans), "", ("", asked.top_name)
    else:
        gap = gap_between(run, asked.rank, times, longest)
        facts.append(asked.of_rank("gap_ns", round(asked.per_step(gap.dur_ns)), "ns"))
        line = gap.line or sampled_line(run, asked.rank, Intervals(times.start, times.end))
        annotation, ops = gap.annotation, longest
    before, after = (_short(name.removeprefix(_ENGINE)) for name in ops)
    between = f"after {before}" if before else f"before {after}" if after else ""
    if before and after:
        between = f"between {before} and {after}"
    inside = _short(annotation) or line
    facts += [Fact("no_op", between)] if inside and between else []
    facts += [Fact("line", line)] if line else []
    advice, command = _look(asked, line, annotation)
    where = f" in {inside}" if inside else f" {between}".rstrip()
    return Why(
        f"{asked.its} host pauses {asked.time()}{asked.when}{where}{state and f', {state}'}",
        advice,
        tuple(facts),
        (annotation, line, *ops),
        "idle.gaps" if asked.on_gpu else "ops",
        command,
    )


_ENGINE = "autograd::engine::evaluate_function: "


def _look(asked: _Asked, line: str, annotation: str) -> tuple[str, tuple[str, ...]]:
    """The advice, and its command."""
    if line:
        return f"Look at {line}.", ()
    if annotation:
        return f"Look at what the program does in {_short(annotation)}.", ()
    stacks = f"SELECT 1 FROM slices WHERE rank = {asked.rank} AND category = 'python_function' LIMIT 1"
    if asked.run.rows(stacks):
        return "Look at the Python functions that run there.", ()
    return "Record Python stacks to see which function runs there.", argv("rankscope profile --with-stack")
