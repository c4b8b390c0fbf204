"""What a fault is called: its title, its evidence, its advice and the figures behind them (docs/definitions.md,
"Findings")."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from rankscope.analysis.across_ranks.layout import layout_of
from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.result import Fact, Finding, Severity, Why, argv
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.core.severity import at_most, graded
from rankscope.analysis.core.step_times import periods
from rankscope.analysis.faults.axes import NOUNS
from rankscope.analysis.faults.explain import micro_batch_ranks, why
from rankscope.analysis.faults.faults import Fault, Subject, faults_of
from rankscope.analysis.graph.graph import graph_of
from rankscope.ranges import as_ranges, rank_words
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_LARGE_OF_CORES = 0.1
"""Of a mean step: a core that is slower than the others and costs less is no problem of the job, but of its machine."""
_MOST_LISTED = 4
_BALANCE = (
    "Give every rank the same amount of work in each step: sort samples by length, pack them, or balance the experts. "
    "Ranks that share cores differ, too."
)


class _Who(NamedTuple):
    """Whose fault it is, as a title begins."""

    name: str
    subject: str
    ranks: tuple[int, ...]
    is_many: bool
    names: tuple[str, ...] = ()
    """Out of the trace."""
    where: str = ""
    """Of a micro-batch: on which ranks it is long."""


@once_per_run
def findings_of(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """The faults, the largest first."""
    answer = faults_of(run, scope)
    return tuple(_finding(run, scope, fault, answer.step_ns) for fault in answer.listed)


def _finding(run: Run, scope: Scope, fault: Fault, step_ns: float) -> Finding:
    steps = graph_of(run, scope).steps
    subjects = fault.subjects or ((fault.example,) if fault.example else ())
    reasons = [why(run, scope, fault, each) for each in subjects]
    who = _who(run, scope, fault)
    late = sorted({at for each in fault.subjects for at in each.late_steps})
    some = tuple(steps[at] for at in late) if len(late) < len(steps) else ()
    if fault.axis == "step":
        some = tuple(each.number for each in fault.subjects)
    share = fault.cost_ns / step_ns
    cost = f"{format_rounded('ns', fault.cost_ns)}{' per step' * bool(steps)} ({100 * share:.0f} %)"
    at_once = fault.varies or not reasons
    head, cause = _head(fault, who, cost, some, len(steps)), _reason(fault, who, reasons)
    return Finding(
        _severity(fault, share, len(some) == 1 < len(steps)),
        f"{head}; {cause}" if cause else head,
        ranks=who.ranks,
        span=_span(run, scope, fault, subjects),
        advice=_BALANCE if at_once else _advice(fault, reasons),
        cost_ns=round(fault.cost_ns),
        facts=(
            *_each(fault, reasons),
            *(
                fact if fault.subjects else replace(fact, row={})
                for fact in (
                    *(fault.fact(each, "margin_ns", round(each.margin_ns), "ns") for each in subjects),
                    *(fact for reason in reasons for fact in reason.facts),
                )
            ),
            *([Fact("in_step_ns", _longest(fault, len(steps)), "ns")] if fault.axis == "step" else []),
            *(Fact("compared", f"{NOUNS[axis]}s") for axis in dict.fromkeys(fault.others)),
            *([Fact("turns", turns_of(fault), "", who.subject)] if fault.moves else []),
        ),
        names=(*who.names, *(name for reason in reasons for name in reason.names)),
        why=cause,
        cost_pct=100 * share,
        alone_ns=round(fault.alone_ns),
        subject=who.subject,
        steps=some,
        command=argv("rankscope stats RUN -r host_cpu") if at_once else reasons[0].command,
    )


def _severity(fault: Fault, share: float, is_once: bool) -> Severity:
    """A hiccup of the machine is no critical problem."""
    severity = graded(share, 1.0, 0.0) or "info"
    if fault.is_of_cores and share < _LARGE_OF_CORES:
        return "info"
    return at_most(severity, "warning") if is_once else severity


def _who(run: Run, scope: Scope, fault: Fault) -> _Who:
    numbers = tuple(sorted(each.number for each in fault.subjects))
    every = tuple(run.ranks)
    if fault.moves:
        return _Who("", "each rank in turn", every, True)
    if fault.axis == "rank":
        return _who_of_ranks(run, fault, numbers)
    if fault.axis == "step":
        words = f"step{'s' * (len(numbers) > 1)} {as_ranges([*numbers])}"
        return _Who(words.capitalize(), words, every, len(numbers) > 1)
    if fault.axis == "link":
        return _who_of_links(run, fault)
    word, ranks = fault.noun, every
    if fault.axis == "stage":
        layout = layout_of(run, Scope())
        ranks = tuple(rank for rank in every if layout.stage(rank) in numbers)
    subject = f"{word}{'s' * (len(numbers) > 1)} {as_ranges([*numbers])}"
    name = subject.capitalize() + (f" ({rank_words(ranks)})" if fault.axis == "stage" else "")
    if fault.axis == "position":
        batches, slow = micro_batch_ranks(run, scope, numbers)
        where = "all ranks" if slow == every else rank_words(slow)
        return _Who(f"{name} of {batches}", subject, slow, len(numbers) > 1, where=where)
    return _Who(name, subject, ranks, len(numbers) > 1)


def _who_of_ranks(run: Run, fault: Fault, ranks: tuple[int, ...]) -> _Who:
    if 2 < len(ranks) == len(run.ranks):
        return _Who(
            f"All {len(ranks)} ranks, each in a different place,", f"all {len(ranks)} ranks", ranks, True
        )
    on_nodes = {rank for node in fault.nodes for rank in node.ranks}
    alone = [rank for rank in ranks if rank not in on_nodes]
    nodes = [f"node {node.name} ({rank_words(node.ranks)})" for node in fault.nodes]
    words = " and ".join([*nodes, *([rank_words(alone)] if alone else [])])
    subject = f"node {fault.nodes[0].name}" if len(fault.nodes) == 1 and not alone else rank_words(ranks)
    is_many = len(fault.nodes) + len(alone) > 1
    return _Who(words[:1].upper() + words[1:], subject, ranks, is_many, tuple(n.name for n in fault.nodes))


def _who_of_links(run: Run, fault: Fault) -> _Who:
    """The slow groups; the ranks that are in all of them."""
    every = run.collectives.groups
    groups = [every[at] for each in fault.subjects for at in each.groups or (each.number,)]
    names = tuple(dict.fromkeys(group.name for group in groups))
    members = [set(group.ranks or ()) for group in groups]
    ranks = tuple(sorted(set.intersection(*members) or set.union(*members)))
    subject = f"group{'s' * (len(names) > 1)} {', '.join(names[:_MOST_LISTED])}"
    subject += f" and {len(names) - _MOST_LISTED} more" * (len(names) > _MOST_LISTED)
    if len(names) > 1 and len(ranks) == 1:
        return _Who(f"The link of rank {ranks[0]} ({subject})", subject, ranks, False, names)
    name = subject.replace("group", "Group", 1) + (f" ({rank_words(ranks)})" if ranks else "")
    return _Who(name, subject, ranks, len(names) > 1, names)


def _head(fault: Fault, who: _Who, cost: str, some: tuple[int, ...], steps: int) -> str:
    """Who, how much and when."""
    if fault.varies:
        return f"The work of the ranks differs from step to step: {cost}"
    if fault.moves:
        return f"A different rank is late in each step: {cost}"
    if fault.axis == "step":
        longest = format_rounded("ns", _longest(fault, steps))
        takes = "take up to" if who.is_many else "takes"
        return f"{who.name} {takes} {longest} longer on all ranks: {cost}"
    if fault.axis == "position":
        return f"{who.name} cost{'s' * (not who.is_many)} {cost} on {who.where}"
    where = f", in step{'s' * (len(some) > 1)} {as_ranges([*some])}" if some else ""
    return f"{who.name} cost{'s' * (not who.is_many)} {cost}{where}"


def _reason(fault: Fault, who: _Who, reasons: list[Why]) -> str:
    """The cause of the first one, who costs most; of many, whether the others have it too."""
    if not reasons or fault.varies:
        return ""
    text = reasons[0].text
    if fault.moves:
        return f"for example rank {fault.example.number}: {text}" if fault.example else ""
    if not _is_alike(fault):
        return "each for a different reason"
    is_one_of_many = fault.axis == "rank" and who.is_many
    return f"rank {fault.subjects[0].number}, like the others: {text}" if is_one_of_many else text


def _advice(fault: Fault, reasons: list[Why]) -> str:
    """That of the first one; where the others have other causes, it says for whom."""
    if len(fault.subjects) < 2 or _is_alike(fault):
        return reasons[0].advice
    return f"{fault.noun.capitalize()} {fault.subjects[0].number}: {reasons[0].advice}"


def _is_alike(fault: Fault) -> bool:
    """The subjects have one cause; where all that a device or core does is slower, whatever it runs most."""
    causes = [each.cause for each in fault.subjects]
    return len({(each.kind, each.how, each.names[:1] * (each.how != "slower")) for each in causes}) == 1


def _each(fault: Fault, reasons: list[Why]) -> list[Fact]:
    """Of many subjects: what each costs once all else is mended, and where they differ, why."""
    if len(fault.subjects) < 2:
        return []
    is_alike = _is_alike(fault)
    return [
        Fact(
            "reason",
            format_rounded("ns", each.margin_ns) + ("" if is_alike else f", {reason.text}"),
            "",
            f"{fault.noun} {each.number}",
        )
        for each, reason in zip(fault.subjects[:_MOST_LISTED], reasons, strict=False)
    ]


def _longest(fault: Fault, steps: int) -> int:
    """By how much the longest of the steps is longer."""
    return round(max(each.margin_ns for each in fault.subjects) * max(steps, 1))


def turns_of(fault: Fault) -> str:
    """By step, which rank was late."""
    return ", ".join("-" if rank is None else str(rank) for rank in fault.turns)


def _span(run: Run, scope: Scope, fault: Fault, subjects: tuple[Subject, ...]) -> tuple[int, int] | None:
    """The step in which it costs most, on the rank that it is about."""
    steps = graph_of(run, scope).steps
    if not subjects or not steps:
        return None
    first = subjects[0]
    if fault.axis == "step":
        step = first.number
    elif len(first.by_step):
        step = steps[max(range(len(first.by_step)), key=first.by_step.__getitem__)]
    else:
        step = steps[first.late_steps[0] if first.late_steps else len(steps) // 2]
    windows = periods(run, scope)
    there = windows.pick(windows.step == step)
    mine = (fault.axis == "rank" and there.of(first.number)) or there
    return (int(mine.start.min()), int(mine.end.max())) if mine else None
