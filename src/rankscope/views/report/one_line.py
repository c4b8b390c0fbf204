"""The result of a report in one line: what a folded section says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from rankscope.analysis.core.result import Result
from rankscope.text.names import shorten_name
from rankscope.units import format_bytes, format_ns, format_rounded, format_value
from rankscope.views.charts.chart import NothingToDrawError
from rankscope.views.charts.report_charts import classes_by_rank, measure_column, name_columns, whole_window

_NAME_CELLS = 40
_NAMED = 2
_CLASSES = ("compute", "transfer", "waiting for another rank", "copies", "idle")


def one_line(result: Result) -> str:
    """A finding where it has one that matters, else its main figures."""
    if result.name in _LINES and result.rows:
        return _LINES[result.name](result)
    if result.findings:
        return result.findings[0].title
    return _largest(result) if result.rows else ""


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def _largest(result: Result) -> str:
    """The names with the largest sum of times or sizes, and how many rows there are."""
    rows = counted(len(result.rows), "row")
    try:
        measure, unit, _ = measure_column(result)
    except NothingToDrawError:
        return rows
    *_, key = name_columns(result) or ("",)
    sums: Counter[str] = Counter()
    for row in result.rows:
        if isinstance(row.get(key), str) and row.get(measure):
            sums[row[key]] += row[measure]
    listed = [
        f"{shorten_name(name, _NAME_CELLS)} {format_rounded(unit, value)}"
        for name, value in sums.most_common(_NAMED)
    ]
    return f"{', '.join(listed)}; {rows}" if listed else rows


def _shares(sums: Sequence[tuple[str, float]]) -> str:
    total = sum(value for _, value in sums) or 1
    return ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in sums if value / total >= 0.005)


def _breakdown(result: Result) -> str:
    times = [of_rank for _, of_rank in classes_by_rank(result)]
    sums = dict(zip(_CLASSES, map(sum, zip(*times, strict=True)), strict=False))
    if not sums.get("waiting for another rank"):
        sums = {name if name != "transfer" else "communication": ns for name, ns in sums.items()}
    return f"{_shares([*sums.items()])}, of {counted(len(times), 'rank')}"


def _steps(result: Result) -> str:
    times = [row["time_ns"] for row in result.rows]
    ranks, steps = ({row[key] for row in result.rows} for key in ("rank", "step"))
    return (
        f"from {format_ns(min(times), 1)} to {format_ns(max(times), 1)}; "
        f"{counted(len(steps), 'step')} of {counted(len(ranks), 'rank')}"
    )


def _overlap(result: Result) -> str:
    rows = [row for row in whole_window(result) if row.get("collective") is None]
    comm, hidden = (sum(row[name] for row in rows) for name in ("comm_ns", "hidden_ns"))
    if not comm:
        return "no communication"
    return f"{100 * hidden / comm:.0f} % of communication is hidden behind compute"


def _collectives(result: Result) -> str:
    measured = [row for row in result.rows if row.get("busbw_gb_s")]
    largest = sorted(measured, key=lambda row: -(row["transfer_ns"] or 0) * row["count"])
    listed = [
        f"{row['kind']} of {format_bytes(row['bytes'], 1)} {format_value('GB/s', row['busbw_gb_s'])}"
        for row in largest[:_NAMED]
    ]
    rows = counted(len(result.rows), "row")
    return f"bus bandwidth: {', '.join(listed)}; {rows}" if listed else rows


def _critical(result: Result) -> str:
    sums: Counter[str] = Counter()
    for row in result.rows:
        sums[row["class"]] += row["ns"]
    return _shares(sums.most_common())


def _memory(result: Result) -> str:
    peaks = sorted(
        (row["peak_allocated_bytes"], row["rank"])
        for row in result.rows
        if row.get("peak_allocated_bytes") and row["device"] != "CPU"
    )
    if not peaks:
        return counted(len(result.rows), "row")
    text = f"peak of {format_bytes(peaks[-1][0], 1)} on rank {peaks[-1][1]}"
    return f"{text}; the lowest peak is {format_bytes(peaks[0][0], 1)}" if len(peaks) > 1 else text


def _clocks(result: Result) -> str:
    offsets = [abs(row["offset_ns"]) for row in result.rows if row["error_ns"] is not None]
    if not offsets:
        return f"not measured; {counted(len(result.rows), 'rank')}"
    return f"at most {format_rounded('ns', max(offsets))} from the reference clock; {counted(len(result.rows), 'rank')}"


def _mfu(result: Result) -> str:
    shares = [row["mfu_pct"] for row in whole_window(result) if row["mfu_pct"] is not None]
    if not shares:
        return "not known"
    return f"{sum(shares) / len(shares):.1f} % of the peak, mean of {counted(len(shares), 'rank')}"


_LINES: dict[str, Callable[[Result], str]] = {
    "breakdown": _breakdown,
    "steps": _steps,
    "overlap": _overlap,
    "collectives": _collectives,
    "critical": _critical,
    "clocks": _clocks,
    "memory": _memory,
    "mfu": _mfu,
}
