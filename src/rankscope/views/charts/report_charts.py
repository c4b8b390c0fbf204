"""Bar and line charts of reports: one function per report. They select what is drawn and compute nothing."""

from __future__ import annotations

import re
from dataclasses import replace

from rankscope.analysis.core.result import Result, Row
from rankscope.units import format_ns, format_value
from rankscope.views.charts.bars import Bar, Part, bars, paired_bars
from rankscope.views.charts.chart import Chart, nothing_to_draw
from rankscope.views.charts.heatmap import KEYS, WAIT, keys_of
from rankscope.views.charts.lines import MOST_LINES, Line, Spread, Spreads, lines
from rankscope.views.columns import fields

TOP = 15
_MOST_ROWS = 512
_VISIBLE = 0.005
"""Curves below this share of the highest are left out: they would lie on the axis."""
_NAMES = ("name", "kind", "family", "phase", "key", "what", "op")
_PLACES = ("rank", "shape", "module", "source", "within")
_FLAT = 0.3
"""Step times that differ by less than this share are drawn from the lowest on, or their spread would be flat."""
_STEP_RANGE = re.compile(r"ProfilerStep#\d+$")
"""The profiler's own ranges; they contain all others."""
_MEASURE_TITLES = {
    "self_device_ns": "Self time on the device",
    "total_device_ns": "Time on the device",
    "device_ns": "Time on the device",
    "self_host_ns": "Self time on the host",
    "host_ns": "Time on the host",
}
_CLASS_COLOURS = {"COMPUTE": "compute", "COMM": "comm", "COPY": "copy"}


def whole_window(result: Result) -> list[Row]:
    """The rows for the whole window, without those for single steps."""
    return [row for row in result.rows if row.get("step") is None]


def breakdown(result: Result) -> Chart:
    rows = [
        Bar(
            f"rank {row['rank']}",
            [
                row["compute_ns"],
                row["exposed_comm_ns"] - row["exposed_wait_ns"],
                row["exposed_wait_ns"],
                row["exposed_copy_ns"],
                row["idle_ns"],
            ],
        )
        for row in whole_window(result)[:_MOST_ROWS]
    ]
    if not rows:
        raise nothing_to_draw(result)
    subtitle = _counted(f"{result.window}; one bar per rank", len(rows), len(whole_window(result)))
    return bars(result.name, result.title, subtitle, *_known_parts(rows), "ns", "Time")


def _known_parts(rows: list[Bar]) -> tuple[list[Part], list[Bar]]:
    """The parts of the breakdown, and the bars with these; without waiting, where none is known."""
    keys = keys_of(any(row.values[WAIT] for row in rows))
    values = [place for place, key in enumerate(KEYS) if key.colour in {known.colour for known in keys}]
    parts = [Part(key.label, key.colour) for key in keys]
    return parts, [replace(row, values=[row.values[place] for place in values]) for row in rows]


def two_breakdowns(base: Result, new: Result, width: float) -> Chart:
    """The mean step of two runs, from their summaries: how long it is and what it consists of."""
    names = ("compute_pct", "transfer_pct", "exposed_wait_pct", "exposed_copy_pct", "idle_pct")
    rows = []
    for label, result in (("before", base), ("now", new)):
        total, shares = result.facts["mean_step_ns"], [result.facts[name] for name in names]
        if total is None or None in shares:
            raise nothing_to_draw(result, "has no steps, or no classes of time")
        rows.append(Bar(label, [total * share / 100 for share in shares], format_ns(total, 1)))
    subtitle = "The mean step of both runs, over all ranks and steps."
    return bars("change", "A step, before and now", subtitle, *_known_parts(rows), "ns", "Time", width)


def overlap(result: Result) -> Chart:
    rows = [row for row in whole_window(result) if row.get("collective") is None and row.get("comm_ns")]
    if not rows:
        raise nothing_to_draw(result, "has no communication")
    drawn = [
        Bar(
            f"rank {row['rank']}",
            [row["hidden_ns"], row["exposed_ns"]],
            "" if row["overlap_pct"] is None else f"{row['overlap_pct']:.1f} % hidden",
        )
        for row in rows[:_MOST_ROWS]
    ]
    parts = (Part("hidden behind compute", "s3"), Part("exposed", "comm"))
    subtitle = _counted(f"{result.window}; communication of each rank", len(drawn), len(rows))
    return bars(result.name, "Overlap of communication with compute", subtitle, parts, drawn, "ns", "Time")


def idle(result: Result) -> Chart:
    parts = (
        Part("host bound", "s2"),
        Part("launch latency", "s6"),
        Part("sync", "s4"),
        Part("dataloader", "s5"),
        Part("other", "idle"),
    )
    names = ("host_bound_ns", "launch_latency_ns", "sync_ns", "dataloader_ns", "other_ns")
    rows = [
        Bar(f"rank {row['rank']} · {_device(row.get('device'))}", [row[name] or 0 for name in names])
        for row in whole_window(result)[:_MOST_ROWS]
    ]
    if not rows:
        raise nothing_to_draw(result)
    subtitle = f"{result.window}; idle time per device"
    return bars(result.name, "Causes of GPU idle time", subtitle, parts, rows, "ns", "Time")


def _device(device: object) -> str:
    return device if isinstance(device, str) else f"GPU {device}"


def longest(result: Result) -> Chart:
    """The largest rows of any table with names and a time or size: kernels, ops, calls, families."""
    name, measure = name_columns(result), measure_column(result)
    rows = [
        row
        for row in result.rows
        if row.get(measure[0]) and not (result.name == "annotations" and _STEP_RANGE.match(str(row["name"])))
    ]
    if not name or not rows:
        raise nothing_to_draw(result)
    rows = sorted(rows, key=lambda row: -row[measure[0]])
    classes = [row.get("class", "COMPUTE") for row in rows[:TOP]]
    shown = [c for c in _CLASS_COLOURS if c in classes] or ["COMPUTE"]
    labels = {"COMPUTE": "compute", "COMM": "communication", "COPY": "copies"}
    parts = [Part(labels[c] if len(shown) > 1 else "", _CLASS_COLOURS[c]) for c in shown]
    ranks = {row.get("rank") for row in rows}
    drawn = [
        Bar(
            _label(row, name, len(ranks) > 1),
            [row[measure[0]] if (c == kind or len(shown) == 1) else 0 for c in shown],
            _note(row, measure),
        )
        for row, kind in zip(rows[:TOP], classes, strict=True)
    ]
    subtitle = _counted(f"{result.window}; {measure[2].lower()}", len(drawn), len(rows))
    return bars(result.name, result.title, subtitle, parts, drawn, measure[1], measure[2])


def _label(row: Row, keys: tuple[str, ...], name_rank: bool) -> str:
    texts = [str(row[key]) for key in keys if key != "rank" and row.get(key) is not None]
    return " ".join([f"rank {row['rank']}:", *texts] if name_rank and row.get("rank") is not None else texts)


def critical(result: Result) -> Chart:
    """Time of the critical path on each rank, by class."""
    colours = {
        "compute": "compute", "comm": "comm", "copy": "copy", "host": "s2", "launch": "s6", "sync": "s4",
        "dataloader": "s5", "gap": "idle", "between": "s7",
    }  # fmt: skip
    sums: dict[int, dict[str, float]] = {}
    for row in result.rows:
        mine = sums.setdefault(-1 if row["rank"] is None else row["rank"], {})
        mine[row["class"]] = mine.get(row["class"], 0) + row["ns"]
    if not sums:
        raise nothing_to_draw(result)
    there = [kind for kind in colours if any(mine.get(kind) for mine in sums.values())]
    rows = [
        Bar(f"rank {rank}" if rank >= 0 else "no rank", [mine.get(kind, 0) for kind in there])
        for rank, mine in sorted(sums.items())[:_MOST_ROWS]
    ]
    labels = {"comm": "communication", "copy": "copies", "between": "between steps"}
    parts = [Part(labels.get(kind, kind), colours[kind]) for kind in there]
    subtitle = f"{result.window}; time of the path on each rank, by class"
    return bars(result.name, "Critical path", subtitle, parts, rows, "ns", "Time on the path")


def _note(row: Row, measure: tuple[str, str, str]) -> str:
    share = row.get("time_pct")
    return f"{share:.1f} %" if share is not None else format_value(measure[1], row[measure[0]])


def name_columns(result: Result) -> tuple[str, ...]:
    """The columns that identify a row: rank, shape, module, source or place, and last the one with names."""
    columns = [column.name for column in result.columns]
    names = [name for name in _NAMES if name in columns]
    names = names or [field.name for field in fields(result) if field.kind == "text"]
    return (*(name for name in columns if name in _PLACES), *names[:1])


def measure_column(result: Result) -> tuple[str, str, str]:
    """Name, unit and title of the column to draw: a total where there is one, else the first time or size."""
    best = (
        "total_ns",
        "self_device_ns",
        "device_ns",
        "total_device_ns",
        "self_host_ns",
        "host_ns",
        "duration_ns",
    )
    for wanted in best:
        for column in result.columns:
            if column.name == wanted and any(row.get(wanted) for row in result.rows):
                return wanted, column.unit, column.title or _MEASURE_TITLES.get(wanted, "Total time")
    for column in result.columns:
        if column.unit in ("ns", "bytes") and any(row.get(column.name) for row in result.rows):
            return column.name, column.unit, column.title or ("Time" if column.unit == "ns" else "Size")
    raise nothing_to_draw(result, "has no times or sizes")


def steps(result: Result) -> Chart:
    """For each step the spread over the ranks and their median: lines of ranks that wait for each other coincide."""
    times: dict[int, list[tuple[int, int]]] = {}
    for row in result.rows:
        times.setdefault(row["step"], []).append((row["time_ns"], row["rank"]))
    if not times:
        raise nothing_to_draw(result)
    ordered = {step: sorted(own) for step, own in sorted(times.items())}
    ranks = {row["rank"] for row in result.rows}
    middle = [(step, own[len(own) // 2][0]) for step, own in ordered.items()]
    median = Line("median rank" if len(ranks) > 1 else f"rank {min(ranks)}", middle)
    subtitle = f"{result.window}; host and GPU"
    spreads = [
        Spread(
            step,
            own[0][0],
            own[-1][0],
            f"step {step}\nfastest: rank {own[0][1]}, {format_ns(own[0][0])}\n"
            f"slowest: rank {own[-1][1]}, {format_ns(own[-1][0])}",
        )
        for step, own in ordered.items()
    ]
    lowest = min(spread.low for spread in spreads)
    highest = max(spread.high for spread in spreads)
    from_zero = highest - lowest > _FLAT * highest
    return lines(
        result.name,
        "Step times",
        subtitle + ("" if from_zero else "; the axis does not begin at 0"),
        [median],
        ("Step", ""),
        ("Duration", "ns"),
        spreads=Spreads(f"fastest to slowest of {len(ranks)} ranks", spreads) if len(ranks) > 1 else None,
        whole_x=True,
        from_zero=from_zero,
    )


def memory(result: Result) -> Chart:
    """Memory over time, for the ranks and devices with the highest peaks."""
    series: dict[tuple[int, str], list[Row]] = {}
    for row in result.rows:
        series.setdefault((row["rank"], row["device"]), []).append(row)
    if not series:
        raise nothing_to_draw(result)
    several = len({rank for rank, _ in series}) > 1
    ordered = sorted(series.items(), key=lambda item: -max(row["allocated_bytes"] for row in item[1]))
    highest = max(row["allocated_bytes"] for row in ordered[0][1])
    ordered = [item for item in ordered if max(r["allocated_bytes"] for r in item[1]) >= highest * _VISIBLE]
    drawn = []
    for number, ((rank, device), rows) in enumerate(ordered[: MOST_LINES // 2]):
        label = f"rank {rank}, {device}" if several else device
        colour = f"s{number + 1}"
        for what, dashed in (("reserved_bytes", True), ("allocated_bytes", False)):
            points = [(row["ts_ns"], row[what]) for row in rows if row[what] is not None]
            if points and max(y for _, y in points):
                named = f"{label}: {what.partition('_')[0]}"
                drawn.append(Line(named, points, dashed=dashed, marks=False, colour=colour))
    subtitle = _counted(f"{result.window}; as reported by the allocator", min(len(ordered), 3), len(ordered))
    return lines(
        "memory", "Memory over time", subtitle, drawn, ("Time from the start of the run", "ns"), ("Memory", "bytes"),
        staircase=True,
    )  # fmt: skip


def stragglers(result: Result) -> Chart:
    rows = [row for row in result.rows if row.get("caused_wait_ns") is not None]
    if not any(row["caused_wait_ns"] for row in rows):
        raise nothing_to_draw(result, "has no rank that other ranks waited for")
    worst = max(row["caused_wait_ns"] for row in rows)
    blamed = {rank for finding in result.findings if finding.severity != "info" for rank in finding.ranks}
    drawn = [
        Bar(
            f"rank {row['rank']}",
            [row["caused_wait_ns"]],
            f"{row['cause']}, {format_ns(row['caused_wait_ns'])}" if row.get("cause") else "",
            alarming=row["rank"] in blamed and row["caused_wait_ns"] == worst,
        )
        for row in sorted(rows, key=lambda row: row["rank"])[:_MOST_ROWS]
    ]
    subtitle = _counted(
        f"{result.window}; summed over the waiting ranks; the label is the cause",
        len(drawn),
        len(rows),
    )
    return bars(
        result.name,
        "Waiting time caused by each rank",
        subtitle,
        [Part("", "wait")],
        drawn,
        "ns",
        "Time other ranks waited",
    )


def speed_of_light(result: Result) -> Chart:
    rows = [
        row for row in result.rows if row.get("compute_pct") is not None and row.get("memory_pct") is not None
    ]
    if not rows:
        raise nothing_to_draw(result)
    drawn = [
        Bar(str(row["name"]), [row["compute_pct"], row["memory_pct"]])
        for row in sorted(rows, key=lambda row: -(row.get("duration_ns") or 0))[:TOP]
    ]
    subtitle = _counted("measured by Nsight Compute; longest first", len(drawn), len(rows))
    parts = (
        Part("compute (% of SM peak)", "compute"),
        Part("memory (% of memory peak)", "s2"),
    )
    return paired_bars(
        result.name, "Speed of light", subtitle, parts, drawn, "percent", "Share of peak", highest=100
    )


def sweep(result: Result) -> Chart:
    """The result of `bench sweep`: one line per series."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        series.setdefault(row["series"], []).append((row["sequence"], row["flop_s"]))
    if not series:
        raise nothing_to_draw(result)
    drawn = [Line(label, sorted(points)) for label, points in list(series.items())[:MOST_LINES]]
    subtitle = _counted("matrix multiplications of one rank, median", len(drawn), len(series))
    return lines(
        result.name, result.title, subtitle, drawn, ("Sequence length", ""), ("Rate per rank", "flop/s")
    )


def _counted(text: str, shown: int, there: int) -> str:
    return text if shown >= there else f"{text}; {shown} of {there:,} drawn"
