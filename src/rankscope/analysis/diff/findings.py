"""What a comparison comes to, in sentences: the step first, then what moved it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rankscope.analysis.core.result import Finding, Severity
from rankscope.analysis.diff.compare import Comparison
from rankscope.analysis.diff.samples import SPAN, STEP, Measure, short_name, unit_of
from rankscope.units import format_bytes, format_ns, shorten_middle

_NAMED = ("ops", "host", "collectives", "memory")
"""Reports whose rows point at something one can change; the others say the same in sums."""
_MOST = 8
_SAME_PCT = 1.0
_NAME_CELLS = 48
_WORTH_A_WARNING = 0.01
_CRITICAL = 0.25
_HINTS = {
    "ops": "See where it is called from: rankscope stats NEW -r ops --by source (needs --with-stack).",
    "host": "See what the host does: rankscope stats NEW -r ops,api.",
    "collectives": "See who waits for whom: rankscope stats NEW -r collectives,stragglers.",
    "memory": "See who holds it: rankscope stats NEW -r memory.",
}


def findings(comparison: Comparison) -> Iterator[Finding]:
    """The step's own, then rows that changed, the costliest first."""
    yield from _step(comparison)
    called = [
        row for row in comparison.rows if row["verdict"] in ("slower", "faster") and row["report"] in _NAMED
    ]
    called.sort(key=lambda row: -abs(row["new"] - row["base"]) * (unit_of(row["report"]) == "ns"))
    for row in called[:_MOST]:
        yield _changed(comparison, row)
    yield from _arrived(comparison)
    yield from _renamed(comparison, called)


def _step(comparison: Comparison) -> Iterator[Finding]:
    measure = max(STEP, SPAN, key=lambda one: comparison.base.mean(one) + comparison.new.mean(one))
    row = next((row for row in comparison.rows if (row["report"], row["key"]) == measure), None)
    if row is None or row["base"] is None or row["new"] is None:
        return
    change = row["change_pct"] or 0.0
    where = "on the device" if measure == SPAN else "on the host"
    took = f"{format_ns(row['base'])} -> {format_ns(row['new'])} a step {where}"
    if row["verdict"] == "same":
        if abs(change) < _SAME_PCT:
            title = f"The step takes as long as before ({change:+.1f} %)"
        else:
            title = f"No change of the step that is more than noise ({change:+.1f} %)"
        yield Finding("ok", title, f"{took}{_chance(row)}")
        return
    slower = row["verdict"] == "slower"
    severity: Severity = "info"
    if slower:
        severity = "critical" if change >= 100 * _CRITICAL else "warning"
    yield Finding(
        severity,
        f"A step is {abs(change):.1f} % {row['verdict']}",
        f"{took}{_chance(row)}{_effect(comparison, row)}",
        hint="The rows below say what moved." if slower else "",
        cost_ns=max(row["new"] - row["base"], 0),
    )


def _changed(comparison: Comparison, row: dict[str, Any]) -> Finding:
    in_bytes = unit_of(row["report"]) == "bytes"
    show = format_bytes if in_bytes else format_ns
    word = {"slower": "more", "faster": "less"}[row["verdict"]] if in_bytes else row["verdict"]
    cost = 0 if in_bytes else max(row["new"] - row["base"], 0)
    worth = row["verdict"] == "slower" and (in_bytes or cost >= _WORTH_A_WARNING * comparison.new.step_ns)
    by = f"{abs(row['change_pct']):.1f} % " if row["change_pct"] is not None else ""
    kernels = _kernels(comparison, row["key"]) if row["report"] == "ops" else ""
    return Finding(
        "warning" if worth else "info",
        f"{row['report']}: {row['key']} {'takes' if in_bytes else 'is'} {by}{word}",
        f"{show(row['base'])} -> {show(row['new'])} a step and rank{_chance(row)}{_effect(comparison, row)}{kernels}",
        hint=_HINTS[row["report"]] if row["verdict"] == "slower" else "",
        cost_ns=cost,
    )


def _arrived(comparison: Comparison) -> Iterator[Finding]:
    """Ops that only one of the runs has, where they weigh."""
    least = _WORTH_A_WARNING * max(comparison.base.step_ns, comparison.new.step_ns)
    rows = [row for row in comparison.rows if row["report"] == "ops" and row["verdict"] in ("new", "gone")]
    for row in rows[:_MOST]:
        is_new = row["verdict"] == "new"
        takes = row["new"] if is_new else row["base"]
        if takes >= least:
            yield Finding(
                "warning" if is_new else "info",
                f"ops: {row['key']} is {row['verdict']}",
                f"it {'takes' if is_new else 'took'} {format_ns(takes)} a step and rank",
                hint=_HINTS["ops"] if is_new else "",
                cost_ns=takes if is_new else 0,
            )


def _chance(row: dict[str, Any]) -> str:
    return f", p {row['p_value']:.2g}" if row["p_value"] is not None else ""


def _effect(comparison: Comparison, row: dict[str, Any]) -> str:
    """The change in standard deviations between steps (Cohen's d), where steps differ at all."""
    measure = Measure(row["report"], row["key"])
    before, after = comparison.base.values[measure], comparison.new.values[measure]
    if len(before) < 2 or len(after) < 2:
        return ""
    spread = ((np.var(before, ddof=1) + np.var(after, ddof=1)) / 2) ** 0.5
    if spread <= 1e-9 * max(before):
        return ""
    return f", {abs(row['new'] - row['base']) / spread:.1f} standard deviations of a step"


def _kernels(comparison: Comparison, op: str) -> str:
    """An op that runs other kernels than before: which."""
    before = comparison.base.kernels_of.get(op, set())
    after = comparison.new.kernels_of.get(op, set())
    if not before or not after or before == after:
        return ""
    gone, come = _listed(before - after), _listed(after - before)
    return f"; its kernels changed: {gone or 'nothing gone'} -> {come or 'nothing new'}"


def _listed(kernels: set[str]) -> str:
    names = sorted({shorten_middle(short_name(kernel), _NAME_CELLS) for kernel in kernels})
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _renamed(comparison: Comparison, called: list[dict[str, Any]]) -> Iterator[Finding]:
    """Kernels under new names are not new work: the ops that launch them are what can be compared."""
    count = {
        verdict: sum(row["verdict"] == verdict and row["report"] == "kernels" for row in comparison.rows)
        for verdict in ("new", "gone")
    }
    changed = [row for row in called if row["report"] == "ops" and _kernels(comparison, row["key"])]
    if not (count["new"] and count["gone"] and changed):
        return
    saved = sum(row["base"] - row["new"] for row in changed)
    word = "less" if saved > 0 else "more"
    yield Finding(
        "info",
        f"{count['new']} kernels are new and {count['gone']} gone, but the ops that launch them are the same",
        f"{len(changed)} ops run other kernels and take {format_ns(abs(saved))} {word} a step and rank; "
        "compare the rows of ops, not those of kernels",
    )
