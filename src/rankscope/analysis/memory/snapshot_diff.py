"""Two memory snapshots compared by call stack: what holds more memory at the end, what is new, what is gone.

The figures are exact: nothing is estimated, and equal stacks are equal in every line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rankscope.analysis.core.grouping import summed
from rankscope.analysis.core.result import Column, Fact, Finding, Result, Severity
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.memory.snapshot import held_at_end, held_at_peak
from rankscope.model import MEMORY_SEGMENTS, SLICES
from rankscope.ranges import rank_words
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

COLUMNS = (
    Column("rank"),
    Column("change_bytes", "bytes", "at the end, new minus base", title="Change"),
    Column("base_end_bytes", "bytes", "allocated when the first snapshot was taken", title="Base"),
    Column("new_end_bytes", "bytes", "allocated when the second was taken", title="New"),
    Column("change_count", "count", "allocations at the end, new minus base", title="Count ±"),
    Column("base_end_count", "count", "allocations at the end of the first", minor=True),
    Column("new_end_count", "count", "allocations at the end of the second", minor=True),
    Column("base_peak_bytes", "bytes", "allocated at the peak of the first", title="Base peak"),
    Column("new_peak_bytes", "bytes", "allocated at the peak of the second", title="New peak"),
    Column("verdict", help="new, grown, shrunk, gone or same at the end; at the peak, if it holds nothing at the end"),
    Column("device"),
    Column("name", help="op that allocated it", at_end=True),
    Column("source", help="innermost line of Python that is not in a library", at_end=True),
    Column("frames", help="all lines of Python, innermost first", for_machines=True),
)  # fmt: skip
_LEAST_LEAK = 1_000_000
"""Less is no finding of its own. Chosen; the run leak-h200 grows by more."""
_MOST_FINDINGS = 3
_FIGURES = (
    "base_end_count", "new_end_count", "base_end_bytes", "new_end_bytes", "base_peak_bytes", "new_peak_bytes",
)  # fmt: skip


def snapshot_diff(base: Run, new: Run, scope: Scope, min_change_pct: float = 0.0) -> Result:
    """One row per rank, device and stack; what grew most at the end stands first."""
    by_stack: dict[tuple[Any, ...], dict[str, Any]] = {}
    for side, run in (("base", base), ("new", new)):
        for when, stacks in (("end", held_at_end(run, scope)), ("peak", held_at_peak(run, scope))):
            for held in stacks:
                stack = {name: getattr(held, name) for name in ("rank", "device", "name", "source", "frames")}
                row = by_stack.setdefault(tuple(stack.values()), stack | dict.fromkeys(_FIGURES, 0))
                row[f"{side}_{when}_bytes"] += held.bytes
                if when == "end":
                    row[f"{side}_end_count"] += held.count or 0
    for row in by_stack.values():
        row["change_bytes"] = row["new_end_bytes"] - row["base_end_bytes"]
        row["change_count"] = row["new_end_count"] - row["base_end_count"]
        when = "end" if row["base_end_bytes"] or row["new_end_bytes"] else "peak"
        before, after = row[f"base_{when}_bytes"], row[f"new_{when}_bytes"]
        if before == after or (before and after and abs(after - before) < before * min_change_pct / 100):
            row["verdict"] = "same"
        elif before and after:
            row["verdict"] = "grown" if after > before else "shrunk"
        else:
            row["verdict"] = "gone" if before else "new"
    # What grew at the end first, what shrank last, and between them what differs only at the peak.
    rows = sorted(
        by_stack.values(),
        key=lambda row: (
            -row["change_bytes"],
            row["base_peak_bytes"] - row["new_peak_bytes"],
            *(row[name] or "" for name in ("rank", "device", "name", "source", "frames")),
        ),
    )
    missing = [name for name, run in (("BASE", base), ("NEW", new)) if not run.has(MEMORY_SEGMENTS)]
    unknown = sorted({row["rank"] for row in rows if row["source"] is None and row["new_end_bytes"]})
    notes = [f"some blocks have no stack: {rank_words(unknown)}"] if unknown else []
    if missing:
        notes = [
            f"{' and '.join(missing)} has no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or "
            "rankscope.memory_history() writes one"
        ]
    return Result(
        "stacks",
        "Memory by call stack",
        "at the end and at the peak",
        COLUMNS,
        rows,
        findings=(*_totals(rows), *_leaks(rows)),
        notes=tuple(notes),
    )


def both_are_snapshots(base: Run, new: Run) -> bool:
    """Whether both runs have memory snapshots, and neither has events with a duration."""
    return all(run.has(MEMORY_SEGMENTS) and not run.has(SLICES) for run in (base, new))


def grown_devices(result: Result, over_pct: float) -> list[tuple[int, str, float]]:
    """Rank, device and growth in percent of those that hold over this much more at the end."""
    grown = []
    for (rank, device), (before, after) in _sums(result.rows, "end").items():
        if after > before * (1 + over_pct / 100):
            grown.append((rank, device, 100 * (after / before - 1) if before else float("inf")))
    return grown


def _sums(rows: Iterable[Any], when: str) -> dict[tuple[int, str], list[int]]:
    sides = (f"base_{when}_bytes", f"new_{when}_bytes")
    return summed(((row["rank"], row["device"]), [row[side] for side in sides]) for row in rows)


def _totals(rows: list[dict[str, Any]]) -> list[Finding]:
    peaks = _sums(rows, "peak")
    findings = []
    for (rank, device), (before, after) in sorted(_sums(rows, "end").items()):
        severity: Severity = "info" if after != before else "ok"
        if after - before >= _LEAST_LEAK:
            severity = "warning"
        change = format_rounded("bytes", abs(after - before))
        words = f"{change} {'more' if after > before else 'less'}" if after != before else "as much as before"
        subject = f"{device} of rank {rank}"
        figures = {"base_end_bytes": before, "new_end_bytes": after}
        figures |= dict(zip(("base_peak_bytes", "new_peak_bytes"), peaks[rank, device], strict=True))
        findings.append(
            Finding(
                severity,
                f"{subject} holds {words} at the end of the second snapshot",
                ranks=(rank,),
                facts=tuple(Fact(name, value, "bytes", subject, (rank,)) for name, value in figures.items()),
            )
        )
    return findings


def _leaks(rows: list[dict[str, Any]]) -> list[Finding]:
    """The stacks that grew most: of two snapshots at the same place of a training loop, the leak."""
    findings = []
    for row in rows[:_MOST_FINDINGS]:
        if row["change_bytes"] < _LEAST_LEAK:
            break
        where = row["source"] or "a place without a recorded stack"
        key = {name: row[name] for name in ("rank", "device", "name", "source")}
        subject = f"rank {row['rank']}, {row['device']}"
        fact = Fact("change_bytes", row["change_bytes"], "bytes", where, (row["rank"],), key)
        findings.append(
            Finding(
                "warning",
                f"{format_rounded('bytes', row['change_bytes'])} more is held by {row['name']} in {where}",
                ranks=(row["rank"],),
                advice="If both snapshots were taken at the same place of the training loop, look for what keeps these "
                "tensors: a list of losses, a cache, a graph that is not freed. --format json has the whole stack.",
                facts=(
                    fact,
                    Fact("base_end_bytes", row["base_end_bytes"], "bytes", subject, (row["rank"],), key),
                    Fact("new_end_bytes", row["new_end_bytes"], "bytes", subject, (row["rank"],), key),
                    Fact("blocks_change", f"{row['base_end_count']:,} -> {row['new_end_count']:,}"),
                ),
            )
        )
    return findings
