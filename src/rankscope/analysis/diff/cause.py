"""Why the step time changed: a rank that only one of the runs waits for, or the part that changed most."""

from __future__ import annotations

from typing import Any, Literal

from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.diff.compare import Comparison
from rankscope.analysis.diff.samples import SHAPES
from rankscope.analysis.faults.stragglers import stragglers
from rankscope.records import dataclass
from rankscope.text.names import shorten_names
from rankscope.timeline.run import Run
from rankscope.units import format_rounded, shorten_middle

_EXPLAINS = 0.5
"""Of the change of the step time, that a rank's lateness must be."""
_TELLING = 0.3
"""Of the change of a part, that one row must be to be named for it. Both chosen, not measured."""
_KEY_CELLS = 60
_PARTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "compute": (
        ("ops", "families"),
        "compute",
        "Find the call: rankscope stats NEW -r ops --by source (needs --with-stack).",
    ),
    "exposed_comm": (
        ("collectives",),
        "exposed communication",
        "Find the ranks that wait: rankscope stats NEW -r collectives,stragglers.",
    ),
    "exposed_copy": (("ops",), "exposed copies", "Look at the copies: rankscope stats NEW -r ops,gpu."),
    "idle": (("host",), "idle GPU time", "Look at the host: rankscope stats NEW -r idle,ops,runtime_api."),
}
"""For each part of a step: the reports whose rows explain it, its name, and what to do."""


@dataclass(frozen=True)
class Cause:
    """What changed the step time, in words."""

    words: str
    evidence: str = ""
    hint: str = ""
    ranks: tuple[int, ...] = ()


def late_rank(base: Run, new: Run, scope: Scope, comparison: Comparison) -> Cause | None:
    """The rank that the others wait for in the slower run, and did not in the other."""
    row = comparison.headline_row
    if row is None or row["verdict"] not in ("slower", "faster") or max(len(base.ranks), len(new.ranks)) < 2:
        return None
    is_new = row["verdict"] == "slower"
    here, there = (_late(run, scope) for run in ((new, base) if is_new else (base, new)))
    if here is None or (there is not None and set(there.ranks) & set(here.ranks)):
        return None
    wait = next((fact.value for fact in here.facts if fact.quantity == "wait_per_step_ns"), None)
    if not isinstance(wait, (int, float)) or wait < _EXPLAINS * abs(row["new"] - row["base"]):
        return None
    words = f"{here.title[0].lower()}{here.title[1:]}"
    hint = here.hint.replace(" RUN", " NEW") if is_new else ""
    evidence = f"{here.evidence[:1].upper()}{here.evidence[1:]}"
    return Cause(words if is_new else f"in base, {words}", evidence, hint, here.ranks if is_new else ())


def _late(run: Run, scope: Scope) -> Finding | None:
    findings = stragglers(run, scope.in_run(run)).findings
    return next((finding for finding in findings if finding.ranks and finding.severity != "ok"), None)


def largest_part(comparison: Comparison) -> Cause | None:
    """The part of the step that changed most in the direction of the step time, and the row that explains it."""
    headline = comparison.headline_row
    if headline is None or headline["verdict"] not in ("slower", "faster"):
        return None
    sign: Literal[1, -1] = 1 if headline["verdict"] == "slower" else -1
    changes = {
        row["key"]: sign * _difference(row)
        for row in comparison.rows
        if row["report"] == "breakdown" and row["key"] in _PARTS
    }
    part = max(changes, key=changes.__getitem__, default=None)
    if part is None or changes[part] < _TELLING * abs(_difference(headline)):
        return None
    reports, name, hint = _PARTS[part]
    if part == "idle" and not comparison.new.on_device:
        reports, name = ("ops",), "time outside of ops"
    words = f"{name} takes {_longer(changes[part], sign)}"
    for report in reports:
        rows = [row for row in comparison.rows if row["report"] == report and row["verdict"] != "same"]
        row = max(rows, key=lambda row: sign * _difference(row), default=None)
        if row is not None and sign * _difference(row) >= _TELLING * changes[part]:
            words += f", most in {report}: {shorten_middle(short_keys([row['key']])[0], _KEY_CELLS)} ({_change(row)})"
            break
    return Cause(words, hint=hint if sign > 0 else "")


def _difference(row: dict[str, Any]) -> float:
    return float((row["new"] or 0) - (row["base"] or 0))


def _longer(time_ns: float, sign: int) -> str:
    return f"{format_rounded('ns', time_ns)} {'more' if sign > 0 else 'less'}"


def _change(row: dict[str, Any]) -> str:
    if row["verdict"] in ("new", "gone"):
        return f"{row['verdict']}, {format_rounded('ns', row['new'] or row['base'])}"
    return f"{format_rounded('ns', row['base'])} -> {format_rounded('ns', row['new'])}"


def short_keys(keys: list[str]) -> list[str]:
    """The keys of rows for display: short names, those of ops with their shapes."""
    parts = [key.partition(SHAPES) for key in keys]
    names = shorten_names([name for name, _, _ in parts])
    return [f"{short}{bracket}{shapes}" for short, (_, bracket, shapes) in zip(names, parts, strict=True)]
