"""The diff report: two runs compared measure by measure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rankscope.analysis.core.result import Column, Fact, Finding, Result, Row, Severity, argv
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.clock import ClockChange, clock_change
from rankscope.analysis.diff.compare import FEW_CHANGE_PCT, Comparison, Rules, compare, steps_to_be_sure
from rankscope.analysis.diff.conditions import different_conditions
from rankscope.analysis.diff.moved import Moved, moved
from rankscope.analysis.diff.promise import promise
from rankscope.analysis.diff.samples import (
    SHAPES,
    SPAN,
    STEP,
    Measure,
    are_steps_comparable,
    collect,
    unit_of,
)
from rankscope.text.names import bare_name, shorten_names
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

_NAMED = ("ops", "host", "collectives", "memory")
"""Reports whose rows name something that can be changed; the others are sums of these."""
_MOST = 8
_AS_RATIO = 2.0
"""Changes from this factor on are written as a factor instead of a percentage."""
_NAME_CELLS, _KEY_CELLS = 48, 80
_WORTH_A_WARNING, _CRITICAL = 0.01, 0.25
"""Of a step, by which it is longer. Chosen, not measured."""
_BY_CLOCK = "The lower clock explains it."
_ADVICE = {
    "ops": ("Find the call (needs --with-stack)", argv("rankscope stats NEW -r ops --by source")),
    "host": ("Look at the host", argv("rankscope stats NEW -r ops,runtime_api")),
    "collectives": (
        "Find the ranks that wait",
        argv("rankscope stats NEW -r collectives,stragglers"),
    ),
    "memory": ("Look at the memory", argv("rankscope stats NEW -r memory")),
}
_NO_ADVICE: tuple[str, tuple[str, ...]] = ("", ())


def findings(
    comparison: Comparison, clock: ClockChange | None = None, what_moved: Moved | None = None
) -> Iterator[Finding]:
    """The step time with its cause: a clock, or what moved. Then the rows that changed, costliest first. A clock that
    differs comes before all rows: what it explains is no change of the program."""
    by_clock = clock if _explains(clock, comparison) else None
    yield from _step(comparison, by_clock, what_moved)
    if clock and not by_clock:
        yield clock.finding()
    least_ns = _WORTH_A_WARNING * max(comparison.base.step_ns, comparison.new.step_ns)
    changed = [
        row
        for row in comparison.rows
        if (row["verdict"] in ("slower", "faster") and row["report"] in _NAMED)
        or (row["verdict"] in ("new", "gone") and row["report"] == "ops" and abs(_more(row)) >= least_ns)
    ]
    changed.sort(key=lambda row: -abs(_more(row)) * (unit_of(row["report"]) == "ns"))
    for row in changed[:_MOST]:
        finding = _changed(comparison, row, least_ns)
        if by_clock and row["report"] == "ops" and by_clock.explains(row["base"], row["new"]):
            finding = replace(
                finding, severity="info", advice=_BY_CLOCK if finding.advice else "", command=()
            )
        yield finding
    yield from _other_kernels(comparison, changed)


def _more(row: Row) -> int:
    return int(row["new"] or 0) - int(row["base"] or 0)


def _explains(clock: ClockChange | None, comparison: Comparison) -> bool:
    headline = comparison.headline_row or {}
    return clock is not None and clock.explains(headline.get("base"), headline.get("new"))


def _step(comparison: Comparison, clock: ClockChange | None, what_moved: Moved | None) -> Iterator[Finding]:
    """The step time, with what changed it: a clock, or work that moved."""
    row = comparison.headline_row
    if row is None or row["base"] is None or row["new"] is None:
        return
    change, slower = row["change_pct"] or 0.0, row["new"] > row["base"]
    per_work = comparison.headline == SPAN
    inferred = not per_work and (comparison.base.inferred or comparison.new.inferred)
    what, subject = ("Equal work", "work") if per_work else ("A step", "step")
    if (per_work or inferred) and row["new"]:
        rate = 100 * (row["base"] / row["new"] - 1)
        what = f"{abs(rate):.0f} % {'less' if slower else 'more'} work per second: " + (
            "an inferred iteration" if inferred else "equal work"
        )
    facts, (advice, command) = _facts(comparison, row), _NO_ADVICE
    ranks, names = tuple[int, ...](), tuple[str, ...]()
    severity: Severity = "info"
    if row["verdict"] != "same":
        title = f"{what} {_longer_words(row)}"
        if slower:
            severity = "critical" if change >= 100 * _CRITICAL else "warning"
            advice = "List all rows: many may have changed a little"
            command = argv("rankscope diff BASE NEW --top all")
    elif abs(change) >= max(FEW_CHANGE_PCT, comparison.min_change_pct):
        # The steps are too few, or vary too much.
        before, after = (len(samples.steps) for samples in (comparison.base, comparison.new))
        steps = f"{before} against {after} steps" if before != after else f"{before} step{'s' * (before > 1)}"
        # One more than the test needs: the first step of a recording is often slow, and then left out.
        least = 1 + (steps_to_be_sure() if comparison.few else 2 * max(before, after))
        how = "likely" if comparison.likely else "perhaps noise"
        varied = "" if comparison.few else " that vary"
        title = f"{what} {_longer_words(row, f'{steps}{varied}: {how}; record {least} to be sure')}"
        severity = "warning" if slower and comparison.likely else "info"
        advice, command = f"Record {least} steps of each run", argv(f"rankscope profile --active {least}")
    else:
        title = f"No clear change in {subject} time ({change:+.1f} %)"
        if abs(change) >= FEW_CHANGE_PCT:
            limit = f"{comparison.min_change_pct:g} %"
            title = f"The {subject} time changed by {change:+.1f} %, less than the {limit} that count here"
        yield Finding("ok", title, facts=facts)
        return
    if clock:
        title = f"{title}: {clock.words}"
        ranks, advice, command, facts = clock.ranks, clock.advice, clock.command, (*clock.facts, *facts)
    elif what_moved and what_moved.leading:
        first = what_moved.leading[0]
        title, names, facts = f"{title}: {what_moved.words}", what_moved.names, (*facts, *what_moved.facts)
        if first.moved_ns > 0:
            ranks, (advice, command) = first.ranks, first.advice
    cost = None if row["verdict"] == "same" else max(row["new"] - row["base"], 0)
    yield Finding(
        severity,
        title,
        ranks=ranks,
        advice=advice,
        command=command,
        cost_ns=cost,
        facts=facts,
        names=names,
    )


def _facts(comparison: Comparison, row: Row) -> tuple[Fact, ...]:
    """The figures of a row."""
    unit, key = unit_of(row["report"]), {"report": row["report"], "key": row["key"]}
    over, certainty = "the highest rank" if unit == "bytes" else _per(comparison), ""
    base_steps, new_steps = (len(samples.steps) for samples in (comparison.base, comparison.new))
    if Measure(row["report"], row["key"]) in (STEP, SPAN):
        over = "median of the steps" if comparison.headline == STEP else "mean over the ranks"
        if row["p_value"] is not None:
            cases = f"in {100 * row['p_value']:.3g} % of cases ({base_steps} steps against {new_steps})"
            certainty = f"noise alone would change it as much {cases}"
    facts = (
        Fact("base", row["base"], unit, over, row=key),
        Fact("new", row["new"], unit, over, row=key),
        *([Fact("certainty", certainty)] if certainty else []),
        *(_kernels(comparison, row["key"]) if row["report"] == "ops" else ()),
        Fact("change_pct", row["change_pct"], "percent", "new against base", row=key),
        Fact("p_value", row["p_value"], "", "", row=key),
        Fact("base_steps", base_steps, "count", "base"),
        Fact("new_steps", new_steps, "count", "new"),
    )
    return tuple(fact for fact in facts if fact.value is not None)


def _changed(comparison: Comparison, row: Row, least_ns: float) -> Finding:
    is_worse, in_bytes = row["verdict"] in ("slower", "new"), unit_of(row["report"]) == "bytes"
    cost = 0 if in_bytes else max(_more(row), 0)
    advice, command = _ADVICE[row["report"]] if is_worse else _NO_ADVICE
    return Finding(
        "warning" if is_worse and (in_bytes or cost >= least_ns) else "info",
        f"{row['report']}: {shorten_middle(row['key'], _KEY_CELLS)} {_comparison_words(row)}",
        advice=advice,
        command=command,
        cost_ns=cost,
        facts=_facts(comparison, row),
    )


def _per(comparison: Comparison) -> str:
    return "per step and rank" if comparison.headline == STEP else "per rank"


def _comparison_words(row: Row) -> str:
    """'is 3.4 % slower', 'is 4.7x slower', 'takes 20.0 % less time' or, for memory, 'is 12.0 % more'."""
    base, new, slower = row["base"], row["new"], row["verdict"] == "slower"
    in_bytes = unit_of(row["report"]) == "bytes"
    word = ("more" if slower else "less") if in_bytes else row["verdict"]
    if not base or not new:
        return f"is {word}"
    ratio, percent = max(base, new) / min(base, new), f"{abs(row['change_pct']):.1f} %"
    if ratio >= _AS_RATIO and (slower or not in_bytes):
        return f"is {_times(ratio)} {word}"
    return f"is {percent} {word}" if slower or in_bytes else f"takes {percent} less time"


def _times(ratio: float) -> str:
    return f"{ratio:.1f}x" if ratio < 100 else f"{format_rounded('count', ratio)}x"


def _longer_words(row: Row, more: str = "") -> str:
    """'takes 5.99 ms longer (+32.1 %)' or 'takes 20.0 ms less (4.7x faster)', and `more` in the brackets."""
    base, new = row["base"], row["new"]
    low, high = sorted((base, new))
    change = f"{row['change_pct']:+.1f} %" if base else ""
    if low and high / low >= _AS_RATIO:
        change = f"{_times(high / low)} {'slower' if new > base else 'faster'}"
    words = f"takes {format_rounded('ns', high - low)} {'longer' if new > base else 'less'}"
    brackets = ", ".join(filter(None, (change, more)))
    return f"{words} ({brackets})" if brackets else words


def _kernels(comparison: Comparison, op: str) -> tuple[Fact, ...]:
    """The kernels that an op no longer launches, and those that it launches now."""
    before = comparison.base.kernels_of.get(op, set())
    after = comparison.new.kernels_of.get(op, set())
    if not before or not after:
        return ()
    changes = (("gone_names", before - after), ("new_names", after - before))
    return tuple(Fact(name, _listed(kernels)) for name, kernels in changes if kernels)


def _listed(kernels: set[str]) -> str:
    names = sorted({shorten_middle(bare_name(kernel), _NAME_CELLS) for kernel in kernels})
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _other_kernels(comparison: Comparison, changed: list[dict[str, Any]]) -> Iterator[Finding]:
    """Where ops launch other kernels than before, only the rows of ops can be compared."""
    count = {
        verdict: sum(row["verdict"] == verdict and row["report"] == "kernels" for row in comparison.rows)
        for verdict in ("new", "gone")
    }
    ops = [row for row in changed if row["report"] == "ops" and _kernels(comparison, row["key"])]
    if not (count["new"] and count["gone"] and ops):
        return
    saved = sum(row["base"] - row["new"] for row in ops)
    yield Finding(
        "info",
        f"Some ops launch other kernels than before (new kernels: {count['new']}, gone: {count['gone']})",
        advice="Compare the rows of ops, not those of kernels.",
        facts=(
            Fact("new_kernels", count["new"], "count", "new"),
            Fact("gone_kernels", count["gone"], "count", "base"),
            Fact("changed_ops", len(ops), "count", "ops that launch other kernels"),
            Fact("ops_saved_ns", saved, "ns", _per(comparison)),
        ),
    )


COLUMNS = (
    Column("report"),
    Column("key", at_end=True),
    Column(
        "base", help="mean per step and rank in ns, of the step time the median; for memory the peak in bytes"
    ),
    Column("new", help="the same for the second run"),
    Column("change_pct", "percent", "change relative to base; positive is slower"),
    Column(
        "p_value",
        title="p",
        decimals=4,
        help="probability that noise alone gives a difference as large: in the step time, or in any other row",
    ),
    Column("verdict", help="same, faster, slower, new or gone"),
)


def diff(base: Run, new: Run, scope: Scope, rules: Rules | None = None) -> Result:
    """One row for each measure, those that changed first."""
    rules = rules or Rules()
    by_step = are_steps_comparable(base, new, scope)
    scope = scope if by_step else replace(scope, whole_file=True)
    before, after = (collect(run, scope, rules.reports, by_step) for run in (base, new))
    comparison = compare(before, after, rules)
    steps = [len(samples.steps) if samples.has_steps else 0 for samples in (comparison.base, comparison.new)]
    clock = clock_change(base, new, scope)
    what_moved = None if _explains(clock, comparison) else _moved(base, new, scope, comparison)
    why_not = (f"what moved cannot be told: {what_moved}",) if isinstance(what_moved, str) else ()
    listed = [*findings(comparison, clock, what_moved if isinstance(what_moved, Moved) else None)]
    if isinstance(what_moved, Moved) and (kept := promise(base, new, scope, comparison, what_moved)):
        listed.insert(int(comparison.likely), kept)  # the change itself first, where it is not sure
    inferred = comparison.base.inferred or comparison.new.inferred
    unit = "inferred iteration" if inferred and all(steps) else "step" if all(steps) else ""
    counted = f"{steps[0]} {unit}s against {steps[1]}" if unit else "for equal work"
    windows = list(dict.fromkeys(scope.in_run(run).window for run in (base, new)))
    window = f"{' against '.join(windows)}, {counted}"
    return Result(
        "diff",
        f"What changed, per {unit} and rank" if unit else "What changed for equal work, per rank",
        window,
        COLUMNS,
        comparison.rows,
        findings=(*listed, *different_conditions(base, new, scope, comparison)),
        notes=(*comparison.notes, *why_not),
        facts={"likely": comparison.likely},
    ).placed()


def _moved(base: Run, new: Run, scope: Scope, comparison: Comparison) -> Moved | str | None:
    """What moved, where the step time changed; or why that cannot be told."""
    row = comparison.headline_row
    if row is None or None in (row["base"], row["new"]):
        return None
    if comparison.headline == SPAN:
        return "not all steps are known" if row["verdict"] in ("slower", "faster") else None
    if row["verdict"] == "same" and not comparison.likely:
        return None
    counted = comparison.base.steps, comparison.new.steps
    least = comparison.min_change_pct / 100
    return moved(base, new, scope, counted, row["new"] - row["base"], least)


def by_unit(result: Result) -> list[Result]:
    """For display: times and sizes in separate tables with one unit each; report and key in one column."""
    parts = []
    for unit in ("ns", "bytes"):
        rows = [row for row in shown_rows(result) if unit_of(row["report"]) == unit]
        if rows or (unit == "ns" and not result.rows):
            columns = tuple(
                replace(column, unit=unit) if column.name in ("base", "new") else column
                for column in result.columns
                if column.name not in ("report", "key")
            )
            parts.append(replace(result, columns=(*columns, Column("what", at_end=True)), rows=rows))
    for later in range(1, len(parts)):  # findings and notes only once
        parts[later] = replace(parts[later], title="Memory, highest rank", findings=(), notes=())
    return parts


def shown_rows(result: Result) -> list[dict[str, Any]]:
    """The rows for people: with short names as `what`, and verdicts that fit what they are about."""
    parts = [row["key"].partition(SHAPES) for row in result.rows]
    names = shorten_names([name for name, _, _ in parts])
    shown = [f"{short}{bracket}{shapes}" for short, (_, bracket, shapes) in zip(names, parts, strict=True)]
    return [
        {**row, "what": f"{row['report']}: {key}", "verdict": _shown_verdict(result, row)}
        for row, key in zip(result.rows, shown, strict=True)
    ]


def _shown_verdict(result: Result, row: Row) -> str:
    """Memory is more or less, not slower or faster. 'same' beside -52.6 % would contradict itself: the change is large,
    but the steps do not make it sure."""
    verdict = str(row["verdict"])
    large = row["change_pct"] is not None and abs(row["change_pct"]) >= FEW_CHANGE_PCT
    if large and verdict == "same":
        return "likely" if result.facts.get("likely") and row == result.rows[0] else "unclear"
    if unit_of(row["report"]) == "bytes":
        return {"slower": "more", "faster": "less"}.get(verdict, verdict)
    return verdict


def slower_rows(result: Result, over_pct: float, likely: bool = False) -> list[Row]:
    """Rows with the verdict slower (for memory: more) by more than `over_pct`; with `likely` also the step time where
    it is likely slower."""
    return [
        row
        for row in result.rows
        if (row["verdict"] == "slower" and (row["change_pct"] is None or row["change_pct"] > over_pct))
        or (likely and row in likely_slower(result, over_pct))
    ]


def likely_slower(result: Result, over_pct: float) -> list[Row]:
    """The row of the step time, where it is likely slower by more than `over_pct` but too few steps are known."""
    if not result.facts.get("likely"):
        return []
    return [row for row in result.rows[:1] if row["change_pct"] is not None and row["change_pct"] > over_pct]
