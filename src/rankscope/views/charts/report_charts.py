"""The charts of reports: one function per report. They select what is drawn and compute nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.analysis.core.result import Column, Result, Row
from rankscope.errors import NotATraceError
from rankscope.text.run_words import shell_word
from rankscope.units import format_bytes, format_ns, format_rounded, format_value
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.heatmap import KEYS, WAIT, keys_of
from rankscope.views.charts.plots import (
    MOST_LINES,
    WIDTH,
    Bar,
    Key,
    Line,
    Point,
    Spread,
    bars,
    joined,
    lines,
    scatter,
)
from rankscope.views.charts.theme import SERIES
from rankscope.views.columns import fields

SWEEP = "sweep"
CHANGE = "change"
TOP = 15
_MOST_POINTS = 200
_MOST_FITS = 4
_VISIBLE = 0.005
"""Curves below this share of the highest are left out: they would lie on the axis."""
_NAMES = ("name", "kind", "family", "phase", "key", "what", "op")
_PLACES = ("rank", "shape", "module", "source", "within")
_FLAT = 0.3
"""Step times that differ by less than this share are drawn from the lowest on, or their spread would be flat."""
_STEP_RANGE = re.compile(r"ProfilerStep#\d+$")
"""The profiler's own ranges; they contain all others."""
_MEASURE_TITLES = {
    "total_ns": "Total time",
    "self_device_ns": "Self time on the device",
    "device_ns": "Time on the device",
    "total_device_ns": "Time on the device",
    "self_host_ns": "Self time on the host",
    "host_ns": "Time on the host",
    "duration_ns": "Total time",
}
"""The columns that `longest` draws, the first that a table has; with their titles."""
_CLASSES = {
    "COMPUTE": Key("compute", "compute"),
    "COMM": Key("communication", "comm"),
    "COPY": Key("copies", "copy"),
}
_IDLE_CAUSES = {
    "host_bound_ns": Key("host bound", "s2"),
    "launch_latency_ns": Key("launch latency", "s6"),
    "sync_ns": Key("sync", "s4"),
    "dataloader_ns": Key("dataloader", "s5"),
    "other_ns": Key("other", "idle"),
}
_BREAKDOWN = ("compute", "exposed_comm", "exposed_wait", "exposed_copy", "idle")
_PATH_CLASSES = {
    "compute": Key("compute", "compute"), "comm": Key("communication", "comm"), "copy": Key("copies", "copy"),
    "host": Key("host", "s2"), "launch": Key("launch", "s6"), "sync": Key("sync", "s4"),
    "dataloader": Key("dataloader", "s5"), "gap": Key("gap", "idle"), "between": Key("between steps", "s7"),
}  # fmt: skip


def whole_window(result: Result) -> list[Row]:
    """The rows for the whole window, without those for single steps."""
    return [row for row in result.rows if row.get("step") is None]


def classes_by_rank(result: Result) -> list[tuple[int, list[int]]]:
    """Of a breakdown, the times of each rank in the order of KEYS."""
    return [
        (
            row["rank"],
            [
                row["compute_ns"],
                row["exposed_comm_ns"] - row["exposed_wait_ns"],
                *(row[name] for name in ("exposed_wait_ns", "exposed_copy_ns", "idle_ns")),
            ],
        )
        for row in whole_window(result)
    ]


def breakdown(result: Result) -> Chart:
    rows = [_of_rank(rank, times) for rank, times in classes_by_rank(result)]
    return _by_rank(result, result.title, "one bar per rank", *_known_parts(rows))


def _of_rank(rank: int, values: Sequence[float], note: str = "") -> Bar:
    return Bar(f"rank {rank}", values, note, rank)


def _by_rank(
    result: Result,
    title: str,
    subtitle: str,
    parts: Sequence[Key],
    rows: Sequence[Bar],
    axis: str = "Time",
    note: Callable[[Bar], str] | None = None,
) -> Chart:
    """Times of ranks; of many, those that are alike share a bar. `note` is the text at the end of what is drawn."""
    if not rows:
        raise nothing_to_draw(result)
    drawn = joined(rows)
    if note:
        drawn = [replace(bar, note=note(bar)) for bar in drawn]
    if any(bar.spread for bar in drawn):
        subtitle += "; ranks that are alike share a bar: their mean, shortest and longest"
    return bars(result.name, title, f"{result.window}; {subtitle}", parts, drawn, "ns", axis)


def _known_parts(rows: list[Bar]) -> tuple[list[Key], list[Bar]]:
    """The parts of the breakdown, and the bars with these; without waiting, where none is known."""
    keys = keys_of(any(row.values[WAIT] for row in rows))
    colours = {key.colour for key in keys}
    indices = [index for index, key in enumerate(KEYS) if key.colour in colours]
    return keys, [replace(row, values=[row.values[index] for index in indices]) for row in rows]


def change(result: Result, width: float = WIDTH) -> Chart:
    """Of a `diff`: how long a step was and is, what it consists of, and what had been predicted."""
    values = {(row["report"], row["key"]): row for row in result.rows}
    step = values.get(("steps", "step"))
    if step is None or not step["base"] or not step["new"]:
        raise nothing_to_draw(result, "has no steps in both runs")
    times = [values.get(("breakdown", part), {}) for part in _BREAKDOWN]
    rows = []
    for label, side in (("before", "base"), ("now", "new")):
        compute, comm, wait, copy, idle = (time.get(side) or 0 for time in times)
        parts = [compute, comm - wait, wait, copy, idle]
        shares = [step[side] * part / (sum(parts) or 1) for part in parts]
        percent = f" ({step['change_pct']:+.1f} %)" if side == "new" else ""
        rows.append(Bar(label, shares, f"{format_ns(step[side], 1)}{percent}"))
    keys, bars_shown = _known_parts(rows)
    title = "A step, before and now"
    kept = next((finding for finding in result.findings if finding.fact("predicted_pct")), None)
    if kept and (predicted := kept.fact("predicted_pct")):
        title, share = kept.title, float(predicted.value or 0)
        ns = step["base"] * (1 + share / 100)
        keys = [*keys, Key("predicted", "s3")]
        before, now = (replace(row, values=[*row.values, 0]) for row in bars_shown)
        note = f"{format_ns(ns, 1)} ({share:+.1f} %)"
        bars_shown = [before, Bar("predicted", [0.0] * len(before.values[1:]) + [ns], note), now]
    subtitle = f"{result.window}; the median step, and the mean shares of the ranks"
    return bars(CHANGE, title, subtitle, keys, bars_shown, "ns", "Time", width)


def overlap(result: Result) -> Chart:
    rows = [row for row in whole_window(result) if row.get("collective") is None and row.get("comm_ns")]
    if not rows:
        raise nothing_to_draw(result, "has no communication")
    return _by_rank(
        result,
        "Overlap of communication with compute",
        "communication of each rank",
        (Key("hidden behind compute", "s3"), Key("exposed", "comm")),
        [_of_rank(row["rank"], [row["hidden_ns"], row["exposed_ns"]]) for row in rows],
        note=lambda bar: f"{100 * bar.values[0] / sum(bar.values):.1f} % hidden",
    )


def idle(result: Result) -> Chart:
    rows = []
    for row in whole_window(result):
        device = row.get("device")
        label = device if isinstance(device, str) else f"GPU {device}"
        values = [row[name] or 0 for name in _IDLE_CAUSES]
        rows.append(Bar(f"rank {row['rank']} · {label}", values, rank=row["rank"]))
    parts = [*_IDLE_CAUSES.values()]
    return _by_rank(result, "Causes of GPU idle time", "idle time per device", parts, rows)


def longest(result: Result) -> Chart:
    """The largest rows of any table with names and a time or size: kernels, ops, calls, families."""
    keys, (measure, unit, title) = name_columns(result), measure_column(result)
    rows = [
        row
        for row in result.rows
        if row.get(measure) and not (result.name == "ops.annotations" and _STEP_RANGE.match(str(row["name"])))
    ]
    if not keys or not rows:
        raise nothing_to_draw(result)
    rows = sorted(rows, key=lambda row: -row[measure])
    classes = [row.get("class", "COMPUTE") for row in rows[:TOP]]
    shown = [name for name in _CLASSES if name in classes] or ["COMPUTE"]
    parts = [_CLASSES[name] for name in shown]
    if len(shown) == 1:
        parts = [replace(parts[0], label="")]
    several_ranks = len({row.get("rank") for row in rows}) > 1
    drawn = []
    for row, row_class in zip(rows[:TOP], classes, strict=True):
        label = " ".join(str(row[key]) for key in keys if key != "rank" and row.get(key) is not None)
        if several_ranks and row.get("rank") is not None:
            label = f"rank {row['rank']}: {label}"
        values = [row[measure] if (name == row_class or len(shown) == 1) else 0 for name in shown]
        share = row.get("time_pct")
        note = f"{share:.1f} %" if share is not None else format_value(unit, row[measure])
        drawn.append(Bar(label, values, note))
    subtitle = _counted(f"{result.window}; {title.lower()}", len(drawn), len(rows))
    return bars(result.name, result.title, subtitle, parts, drawn, unit, title)


def critical(result: Result) -> Chart:
    """Time of the critical path on each rank, by class."""
    sums: dict[int, dict[str, float]] = {}
    for row in result.rows:
        of_rank = sums.setdefault(-1 if row["rank"] is None else row["rank"], {})
        of_rank[row["class"]] = of_rank.get(row["class"], 0) + row["ns"]
    there = [kind for kind in _PATH_CLASSES if any(of_rank.get(kind) for of_rank in sums.values())]
    rows = [
        replace(bar, label="no rank", rank=None) if bar.rank == -1 else bar
        for rank, of_rank in sorted(sums.items())
        for bar in [_of_rank(rank, [of_rank.get(kind, 0) for kind in there])]
    ]
    parts = [_PATH_CLASSES[kind] for kind in there]
    subtitle = "time of the path on each rank, by class"
    return _by_rank(result, "Critical path", subtitle, parts, rows, "Time on the path")


def name_columns(result: Result) -> tuple[str, ...]:
    """The columns that identify a row: rank, shape, module, source or place, and last the one with names."""
    columns = [column.name for column in result.columns]
    names = [name for name in _NAMES if name in columns]
    names = names or [field.name for field in fields(result) if field.kind == "text"]
    return (*(name for name in columns if name in _PLACES), *names[:1])


def measure_column(result: Result) -> tuple[str, str, str]:
    """Name, unit and title of the column to draw: a total where there is one, else the first time or size."""
    columns = {
        column.name: column for column in result.columns if any(row.get(column.name) for row in result.rows)
    }
    for name, title in _MEASURE_TITLES.items():
        if name in columns:
            return name, columns[name].unit, columns[name].title or title
    for name, column in columns.items():
        if column.unit in ("ns", "bytes"):
            return name, column.unit, column.title or ("Time" if column.unit == "ns" else "Size")
    raise nothing_to_draw(result, "has no times or sizes")


def steps(result: Result) -> Chart:
    """For each step the spread over the ranks and their median: lines of ranks that wait for each other coincide."""
    times: dict[int, list[tuple[int, int]]] = {}
    for row in result.rows:
        times.setdefault(row["step"], []).append((row["time_ns"], row["rank"]))
    if not times:
        raise nothing_to_draw(result)
    middle: list[tuple[float, float]] = []
    spreads: list[Spread] = []
    for step, unsorted in sorted(times.items()):
        ordered = sorted(unsorted)
        (low, fastest), (high, slowest) = ordered[0], ordered[-1]
        tip = f"step {step}\nfastest: rank {fastest}, {format_ns(low)}\nslowest: rank {slowest}, {format_ns(high)}"
        middle.append((step, ordered[len(ordered) // 2][0]))
        spreads.append((step, low, high, tip))
    ranks = {row["rank"] for row in result.rows}
    median = Line("median rank" if len(ranks) > 1 else f"rank {min(ranks)}", middle)
    lowest, highest = min(low for _, low, *_ in spreads), max(high for *_, high, _ in spreads)
    from_zero = highest - lowest > _FLAT * highest
    subtitle = f"{result.window}; host and GPU" + ("" if from_zero else "; the axis does not begin at 0")
    return lines(
        result.name, "Step times", subtitle, [median], ("Step", ""), ("Duration", "ns"),
        spreads=spreads if len(ranks) > 1 else (), spread_label=f"fastest to slowest of {len(ranks)} ranks",
        whole_x=True, from_zero=from_zero,
    )  # fmt: skip


def memory(result: Result, width: float = WIDTH) -> Chart:
    """Memory over time, for the ranks and devices with the highest peaks."""
    series: dict[tuple[int, str], list[Row]] = {}
    for row in result.rows:
        series.setdefault((row["rank"], row["device"]), []).append(row)
    if not series:
        raise nothing_to_draw(result)
    several = len({rank for rank, _ in series}) > 1
    peaks = {key: max(row["allocated_bytes"] for row in rows) for key, rows in series.items()}
    visible = max(peaks.values()) * _VISIBLE
    ordered = sorted((key for key in series if peaks[key] >= visible), key=lambda key: -peaks[key])
    drawn = []
    for number, (rank, device) in enumerate(ordered[: MOST_LINES // 2]):
        label = f"rank {rank}, {device}" if several else device
        colour = f"s{number + 1}"
        for what, dashed in (("reserved_bytes", True), ("allocated_bytes", False)):
            rows = series[rank, device]
            points = [(row["ts_ns"], row[what]) for row in rows if row[what] is not None]
            if points and max(y for _, y in points):
                named = f"{label}: {what.partition('_')[0]}"
                drawn.append(Line(named, points, dashed=dashed, marks=False, colour=colour))
    subtitle = _counted(f"{result.window}; as reported by the allocator", min(len(ordered), 3), len(ordered))
    return lines(
        "memory", "Memory over time", subtitle, drawn, ("Time from the start of the run", "ns"), ("Memory", "bytes"),
        staircase=True, width=width,
    )  # fmt: skip


def held_by_line(result: Result) -> Chart:
    """Memory over time by the line of Python that allocated it."""
    by_line: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        by_line.setdefault(row["line"], []).append((row["ts_ns"], row["held_bytes"]))
    if not by_line:
        raise nothing_to_draw(result)
    first = result.rows[0]
    drawn = [Line(line, points, marks=False) for line, points in by_line.items()]
    subtitle = f"rank {first['rank']}, {first['device']}; the lines that hold most, over the whole history"
    return lines(
        "memory.allocators", result.title, subtitle, drawn, ("Time from the start of the run", "ns"),
        ("Memory", "bytes"), staircase=True,
    )  # fmt: skip


def stragglers(result: Result) -> Chart:
    rows = [row for row in result.rows if row.get("caused_wait_ns") is not None]
    if not any(row["caused_wait_ns"] for row in rows):
        raise nothing_to_draw(result, "has no rank that other ranks waited for")

    def note(bar: Bar) -> str:
        """The cause and the time: 'compute, 1.89 s', or of joined bars '0.22 to 4.6 ms'."""
        if bar.spread is None:
            return f"{bar.note}, {format_ns(bar.values[0])}" if bar.note else ""
        low, high = (format_rounded("ns", value) for value in bar.spread)
        return ", ".join(filter(None, (bar.note, low if low == high else f"{low} to {high}")))

    return _by_rank(
        result,
        "Waiting time caused by each rank",
        "summed over the waiting ranks; the label is the cause",
        [Key("", "wait")],
        [
            _of_rank(row["rank"], [row["caused_wait_ns"]], row.get("cause") or "")
            for row in sorted(rows, key=lambda row: row["rank"])
        ],
        "Time other ranks waited",
        note,
    )


def speed_of_light(result: Result) -> Chart:
    names = ("compute_pct", "memory_pct")
    rows = [row for row in result.rows if all(row.get(name) is not None for name in names)]
    if not rows:
        raise nothing_to_draw(result)
    drawn = [
        Bar(str(row["name"]), [row[name] for name in names])
        for row in sorted(rows, key=lambda row: -(row.get("duration_ns") or 0))[:TOP]
    ]
    subtitle = _counted("measured by Nsight Compute; longest first", len(drawn), len(rows))
    parts = (Key("compute (% of SM peak)", "compute"), Key("memory (% of memory peak)", "s2"))
    return bars(result.name, "Speed of light", subtitle, parts, drawn, "percent", "Share of peak", beside=100)


def sweep(result: Result) -> Chart:
    """The result of `bench sweep`: one line per series."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        series.setdefault(row["series"], []).append((row["sequence"], row["flop_s"]))
    if not series:
        raise nothing_to_draw(result)
    drawn = [Line(label, sorted(points)) for label, points in list(series.items())[:MOST_LINES]]
    subtitle = _counted("matrix multiplications of one rank, median", len(drawn), len(series))
    axes = ("Sequence length", ""), ("Rate per rank", "flop/s")
    return lines(result.name, result.title, subtitle, drawn, *axes)


def read_sweep(path: Path) -> Result:
    """What `bench sweep --format json` (or its --chart) wrote, as a table."""
    columns = (
        Column("series", help="precision, hidden size, ranks"),
        Column("sequence", "count", "length"),
        Column("flop_s", "flop/s", "both matmuls of one rank, median"),
    )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        chart = content.get("chart", content)
        rows = [
            {"series": row["series"], "sequence": row["sequence"], "flop_s": row["matmul_tflop_s"] * 1e12}
            for row in chart["data"]["values"]
            if row["matmul_tflop_s"] is not None
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotATraceError(
            f"cannot read {path} as a sweep",
            why=f"It is not what bench sweep writes ({type(error).__name__}: {error}).",
            hint=f"Make one: rankscope bench sweep -s 2304,4608 --format json > {shell_word(path.name)}",
        ) from None
    return Result(SWEEP, "Matmul rate by sequence length", "every point of the sweep", columns, rows)


def collectives(result: Result) -> Chart:
    """Bus bandwidth against message size: one mark per kind, size and group; a curve where a fit is known."""
    rows = [row for row in result.rows if row.get("bytes") and row.get("busbw_gb_s")][:_MOST_POINTS]
    if not rows:
        raise nothing_to_draw(result, "has no collective with a known size and transfer time")
    kinds = sorted({str(row["kind"]) for row in rows})
    most = max(row.get("count") or 1 for row in rows)
    points = []
    for row in rows:
        group = f" in group {row['group']}" if row.get("group") not in (None, "") else ""
        tip = (
            f"{row['kind']}{group}, {row.get('ranks', '?')} ranks\n{format_bytes(row['bytes'])} in "
            f"{format_ns(row['transfer_ns'])}, {row['count']:,} times\n"
            f"busbw {format_value('GB/s', row['busbw_gb_s'])}"
        )
        weight = 0.25 * (row.get("count") or 1) / most
        points.append(Point(row["bytes"], row["busbw_gb_s"], kinds.index(str(row["kind"])), tip, weight))
    fits = _fits(rows, {kind: SERIES[number % len(SERIES)] for number, kind in enumerate(kinds)})
    subtitle = f"{result.window}; median transfer of each kind, size and group"
    subtitle += "; dashed: fit t = a + S/b" if fits else ""
    axes = ("Size", "bytes"), ("Bus bandwidth", "GB/s")
    return scatter(result.name, "Bandwidth of collectives", subtitle, kinds, points, fits, *axes)


def _fits(rows: list[Row], colours: dict[str, str]) -> list[Line]:
    """The fitted curves, recovered from two rows each: fit_pct is the fitted time in percent of the transfer time."""
    fitted: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in rows:
        if row.get("fit_pct") and row.get("algbw_gb_s"):
            time_ns = row["fit_pct"] / 100 * row["bytes"] / row["algbw_gb_s"]  # 1 GB/s is 1 byte/ns
            factor = row["busbw_gb_s"] / row["algbw_gb_s"]
            fitted.setdefault((str(row["group"]), str(row["kind"])), {})[row["bytes"]] = (time_ns, factor)
    curves = []
    for (_, kind), by_size in sorted(fitted.items())[:_MOST_FITS]:
        low, high = min(by_size), max(by_size)
        rise = by_size[high][0] - by_size[low][0]
        if low == high or rise <= 0:
            continue
        bandwidth, factor = (high - low) / rise, by_size[high][1]
        latency = max(0.0, by_size[low][0] - low / bandwidth)
        sizes = [low * (high / low) ** (step / 24) for step in range(25)]
        line = [(size, factor * size / (latency + size / bandwidth)) for size in sizes]
        label = f"fit: {format_ns(latency, 1)} + S / {format_value('GB/s', bandwidth)}"
        curves.append(Line(label, line, dashed=True, colour=colours[kind]))
    return curves


def _counted(text: str, shown: int, there: int) -> str:
    return text if shown >= there else f"{text}; {shown} of {there:,} drawn"
