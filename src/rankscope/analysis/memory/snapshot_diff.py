"""Two memory snapshots compared by call stack: what holds more memory at the end, what is new, what is gone.

The figures are exact: nothing is estimated, and equal stacks are equal in every line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
    rows = _rows(base, new, scope)
    for row in rows:
        row["verdict"] = _verdict(row, min_change_pct)
    rows.sort(key=_order)
    return Result(
        "stacks",
        "Memory by call stack",
        "at the end and at the peak",
        COLUMNS,
        rows,
        findings=(*_totals(rows), *_leaks(rows)),
        notes=_notes(base, new, rows),
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


def _rows(base: Run, new: Run, scope: Scope) -> list[dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for side, run in (("base", base), ("new", new)):
        for when, stacks in (("end", held_at_end(run, scope)), ("peak", held_at_peak(run, scope))):
            for held in stacks:
                stack = {"rank": held.rank, "device": f"GPU {held.device}", "name": held.op,
                         "source": held.source, "frames": held.frames}  # fmt: skip
                row = rows.setdefault(tuple(stack.values()), stack | dict.fromkeys(_FIGURES, 0))
                row[f"{side}_{when}_bytes"] += held.bytes
                if when == "end":
                    row[f"{side}_end_count"] += held.count or 0
    for row in rows.values():
        row["change_bytes"] = row["new_end_bytes"] - row["base_end_bytes"]
        row["change_count"] = row["new_end_count"] - row["base_end_count"]
    return list(rows.values())


def _verdict(row: dict[str, Any], min_change_pct: float) -> str:
    at_end = row["base_end_bytes"] or row["new_end_bytes"]
    before, after = (row[f"{side}_{'end' if at_end else 'peak'}_bytes"] for side in ("base", "new"))
    if before == after or (before and after and abs(after - before) < before * min_change_pct / 100):
        return "same"
    if not before or not after:
        return "gone" if before else "new"
    return "grown" if after > before else "shrunk"


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """What grew at the end first, what shrank last, and between them what differs only at the peak."""
    at_peak = row["new_peak_bytes"] - row["base_peak_bytes"]
    who = (row["rank"], row["device"], row["name"], row["source"] or "", row["frames"])
    return -row["change_bytes"], -at_peak, *who


def _sums(rows: Iterable[Any], when: str) -> dict[tuple[int, str], tuple[int, int]]:
    sums: dict[tuple[int, str], tuple[int, int]] = {}
    for row in rows:
        before, after = sums.get((row["rank"], row["device"]), (0, 0))
        before, after = before + row[f"base_{when}_bytes"], after + row[f"new_{when}_bytes"]
        sums[row["rank"], row["device"]] = (before, after)
    return sums


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
                f"{_arrow(before, after)} at the end, {_arrow(*peaks[rank, device])} at the peak",
                ranks=(rank,),
                facts=tuple(Fact(name, value, "bytes", subject, (rank,)) for name, value in figures.items()),
            )
        )
    return findings


def _arrow(before: int, after: int) -> str:
    return f"{format_rounded('bytes', before)} -> {format_rounded('bytes', after)}"


def _leaks(rows: list[dict[str, Any]]) -> list[Finding]:
    """The stacks that grew most: of two snapshots at the same place of a training loop, the leak."""
    findings = []
    for row in rows[:_MOST_FINDINGS]:
        if row["change_bytes"] < _LEAST_LEAK:
            break
        where = row["source"] or "a place without a recorded stack"
        key = {name: row[name] for name in ("rank", "device", "name", "source")}
        fact = Fact("change_bytes", row["change_bytes"], "bytes", where, (row["rank"],), key)
        findings.append(
            Finding(
                "warning",
                f"{format_rounded('bytes', row['change_bytes'])} more is held by {row['name']} in {where}",
                f"{_arrow(row['base_end_bytes'], row['new_end_bytes'])}, allocations {row['base_end_count']:,} -> "
                f"{row['new_end_count']:,}; rank {row['rank']}, {row['device']}",
                ranks=(row["rank"],),
                hint="If both snapshots were taken at the same place of the training loop, look for what keeps these "
                "tensors: a list of losses, a cache, a graph that is not freed. --format json has the whole stack.",
                facts=(fact,),
            )
        )
    return findings


def _notes(base: Run, new: Run, rows: list[dict[str, Any]]) -> tuple[str, ...]:
    missing = [name for name, run in (("BASE", base), ("NEW", new)) if not run.has(MEMORY_SEGMENTS)]
    if missing:
        return (
            f"{' and '.join(missing)} has no memory snapshot; torch.cuda.memory._dump_snapshot(FILE) or "
            "rankscope.memory_history() writes one",
        )
    unknown = sorted({row["rank"] for row in rows if row["source"] is None and row["new_end_bytes"]})
    if not unknown:
        return ()
    return (f"some blocks have no stack: {rank_words(unknown)}",)
