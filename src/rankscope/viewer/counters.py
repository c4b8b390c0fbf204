"""Routes for values over time as tracks: memory per device, kernels queued on the GPU, counters of the file."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from rankscope.model import POWER, POWER_LIMIT, SM_CLOCK, SM_CLOCK_LIMIT
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Answer, columns_of, integer, window_of
from rankscope.viewer.session import Session

Series = tuple[NDArray[np.int64], NDArray[np.float64]]

_QUEUE = "queue"
_QUEUED = """
    WITH pairs AS (
        SELECT launch_ns + launch_dur_ns AS launched, start_ns AS began FROM gpu
        WHERE rank = ? AND launch IS NOT NULL
    ), changes AS (
        SELECT launched AS time, 1 AS change FROM pairs WHERE began > launched
        UNION ALL SELECT began, -1 FROM pairs WHERE began > launched
    )
    SELECT time, sum(change) OVER (ORDER BY time, change ROWS UNBOUNDED PRECEDING)::DOUBLE AS value
    FROM changes ORDER BY time, change
"""
"""Kernels launched and not yet started: +1 at the end of each launch, -1 at each start."""
_UNIT = re.compile(r"(.+) \((MHz|W|°C|%)\)")
_UNITS = {"%": "percent"}


def counters(session: Session, query: dict[str, str]) -> Answer:
    """The counters of a rank: their names are the `name` parameter of `counter`. How fast its GPU could run, the clock,
    power and reasons for throttling, is a group of tracks of its own."""
    rank = integer(query["rank"])
    with session.database() as run:
        devices = run.rows(
            "SELECT DISTINCT device_type, device FROM instants "
            "WHERE rank = ? AND allocated_bytes IS NOT NULL ORDER BY ALL",
            [rank],
        )
        # A reason for throttling that was never active would be an empty row.
        series = run.rows(
            "SELECT name, series FROM counters WHERE rank = ? GROUP BY ALL "
            "HAVING NOT starts_with(series, 'throttle: ') OR max(value) > 0 ORDER BY ALL",
            [rank],
        )
        limits = _limits(run, rank)
        launched = run.rows("SELECT 1 FROM gpu WHERE rank = ? AND launch IS NOT NULL LIMIT 1", [rank])
    listed = [
        (f"memory/{kind}/{device}", f"{f'GPU {device}' if kind else 'CPU'} memory", "bytes", "counters", 0.0)
        for kind, device in devices
    ]
    if launched:
        listed.append((_QUEUE, "queued on the GPU", "count", "counters", 0.0))
    for name, part in series:  # the unit of 'SM clock (MHz)' is shown beside its values
        label, unit = part.removeprefix("throttle: "), ""
        if with_unit := _UNIT.fullmatch(label):
            label, unit = with_unit.groups()
        is_state = part in (SM_CLOCK, POWER) or part.startswith("throttle: ")
        group = "clocks" if is_state else "counters"
        most = limits.get((name, part), 0.0)
        listed.append((f"counter/{name}/{part}", f"{name} {label}", _UNITS.get(unit, unit), group, most))
    columns = ("name", "label", "unit", "group", "most")
    return {"rank": rank, "counters": [dict(zip(columns, row, strict=True)) for row in listed]}


def _limits(run: Run, rank: int) -> dict[tuple[str, str], float]:
    """By GPU and series: the highest clock and power that are allowed, or else the highest clock in the log."""
    limited = {SM_CLOCK_LIMIT: SM_CLOCK, POWER_LIMIT: POWER}
    limits = {
        (f"GPU {gpu}", SM_CLOCK): mhz
        for entry in run.segments
        if entry.rank == rank
        for gpu, mhz in entry.header.get("gpuCounters", {}).get("highest_mhz", {}).items()
    }
    rows = run.rows(
        "SELECT name, series, max(value) FROM counters WHERE rank = ? AND series IN (?, ?) GROUP BY ALL",
        [rank, *limited],
    )
    return limits | {(gpu, limited[series]): value for gpu, series, value in rows if value}


def counter(session: Session, query: dict[str, str]) -> Answer:
    """The highest value in each column of pixels; a value holds until the next one."""
    rank, name = integer(query["rank"]), query["name"]
    times, values = series(session, rank, name)
    edges = np.linspace(*window_of(query), columns_of(query) + 1).astype(np.int64)
    highest = float(values.max(initial=0.0))
    return {"rank": rank, "name": name, "max": highest}, {"value": _highest(times, values, edges)}


def series(session: Session, rank: int, name: str) -> Series:
    """Times and values of a counter; each value holds until the next one."""
    series_of: dict[tuple[int, str], Series] = session.once("counters", dict)
    with session.database() as run:
        series = series_of.get((rank, name)) or _series(run, rank, name)
        if len(series[0]):  # names that do not exist would fill the memory
            series_of[rank, name] = series
        return series


def _series(run: Run, rank: int, name: str) -> Series:
    kind, _, rest = name.partition("/")
    if kind == "memory":
        device_type, device = rest.split("/")
        columns = run.arrays(
            "SELECT ts_ns AS time, allocated_bytes::DOUBLE AS value FROM instants WHERE rank = ? AND device_type = ? "
            "AND device = ? AND allocated_bytes IS NOT NULL ORDER BY ts_ns",
            [rank, int(device_type), int(device)],
        )
    elif kind == _QUEUE:
        columns = run.arrays(_QUEUED, [rank])
    else:
        counter_name, _, series = rest.rpartition("/")
        columns = run.arrays(
            "SELECT ts_ns AS time, value FROM counters WHERE rank = ? AND name = ? AND series = ? "
            "AND value IS NOT NULL ORDER BY ts_ns",
            [rank, counter_name, series],
        )
    return columns["time"], columns["value"]


def _highest(
    times: NDArray[np.int64], values: NDArray[np.float64], edges: NDArray[np.int64]
) -> NDArray[np.float64]:
    """For each interval between edges, the highest of its points and its initial value; 0 before the first point."""
    if len(times) == 0:
        return np.zeros(len(edges) - 1)
    ends = np.searchsorted(times, edges, side="right")
    held = np.where(ends > 0, values[np.maximum(ends - 1, 0)], 0.0)
    highest: NDArray[np.float64] = held[:-1].copy()
    full = ends[1:] > ends[:-1]
    if full.any():
        cuts = np.stack([ends[:-1][full], ends[1:][full]], axis=1).reshape(-1)
        padded = np.append(values, 0.0)
        highest[full] = np.maximum(highest[full], np.maximum.reduceat(padded, cuts)[::2])
    return highest
