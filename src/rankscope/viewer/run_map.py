"""Routes of the first picture: the run, and the map of all its ranks.

What it needs of the database and the reports is kept in the store: a run that was looked at before is drawn without.
So this module imports neither, nor do those that it imports.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis.core.intervals import share_of
from rankscope.text.run_words import shell_word
from rankscope.timeline.run import Run
from rankscope.units import format_rounded
from rankscope.viewer.answers import KINDS, TILE_WIDTH, Answer, columns_of, window_of
from rankscope.viewer.session import ACTIVITIES, Session

_TABS = {
    "flight": {"tab": "reports", "report": "hang.flight_recorder"},
    "memory": {"tab": "memory"},
    "ncu": {"tab": "roofline"},
}
"""By format without a timeline, the tab that shows it. Of several, the first."""
_RANKS_OF_A_GROUP = 32


def run(session: Session, query: dict[str, str]) -> Answer:
    """What the page loads first: ranks, steps, bounds, names of reports."""
    begin, end = session.bounds
    return {
        "title": session.title,
        "path": shell_word(session.path),
        "places": [shell_word(session.path.name if session.is_dropped else session.path.resolve())],
        "ranks": session.run.ranks,
        "begin_ns": begin,
        "end_ns": end,
        "kinds": list(KINDS),
        "tile_width": TILE_WIDTH,
        "opens_on": _opens_on(session.run),
        **session.kept("run", lambda: _description(session)),
    }


def _opens_on(run: Run) -> dict[str, str] | None:
    """What the page shows of a run that has no timeline: a tab of the panel; None where there is one."""
    formats = {entry.format for entry in run.segments}
    if not formats or formats - _TABS.keys():
        return None
    return next(tab for name, tab in _TABS.items() if name in formats)


def _description(session: Session) -> dict[str, Any]:
    """What is asked of the database and of the reports."""
    from rankscope.analysis import REPORTS
    from rankscope.text.spelling import RENAMED_REPORTS

    with session.database() as opened:
        steps = _steps(opened)
    return {
        "steps": steps,
        "reports": [
            {"name": report.name, "question": report.question, "by": list(report.keys)}
            for report in REPORTS.values()
        ],
        "renamed_reports": RENAMED_REPORTS,
        "clocks": {"text": _clocks(session.run)},
        "device": _device(session.run),
        "world": max((entry.world_size for entry in session.run.segments), default=0) or None,
    }


def _steps(run: Run) -> list[dict[str, Any]]:
    """The steps of the first rank that has any. It is asked alone: asking all opens every file of the store."""
    from rankscope.analysis.core.scope import Scope, rank_steps

    first = next((entry.rank for entry in run.timelines if entry.manifest["steps"]), None)
    if first is None:
        return []
    steps, origin = rank_steps(run.only([first]), Scope())[first], run.origin_ns(first)
    rows: dict[int, dict[str, Any]] = {}
    for step, start, stop in zip(steps.step.tolist(), steps.begin.tolist(), steps.end.tolist(), strict=True):
        row = rows.setdefault(step, {"step": step, "start_ns": start + origin, "dur_ns": 0})
        row["start_ns"] = min(row["start_ns"], start + origin)
        row["dur_ns"] += stop - start
    return sorted(rows.values(), key=lambda row: row["start_ns"])


def _device(run: Run) -> str:
    """The model of the GPUs, without the vendor; of several, the first."""
    for entry in run.segments:
        devices = entry.manifest["header"].get("deviceProperties")
        if isinstance(devices, list) and devices and isinstance(devices[0], dict):
            return str(devices[0].get("name", "")).removeprefix("NVIDIA ")
    return ""


def _clocks(run: Run) -> str:
    """How well the clocks of the ranks are aligned, as a text for the page's header."""
    if len(run.ranks) < 2:
        return ""
    if run.clock_mode == "raw":
        return "wall clocks"
    measured = [clock.error_ns for clock in run.clocks.ranks if clock.error_ns is not None]
    not_aligned = sum(clock.method == "wall clock" for clock in run.clocks.ranks)
    unknown = sum(clock.method == "collectives" and clock.error_ns is None for clock in run.clocks.ranks)
    text = f"clocks ±{format_rounded('ns', max(measured))}" if measured else "clocks not measured"
    if unknown:  # too few collectives for an error
        text = f"{text}, error of {unknown} ranks unknown" if measured else "clocks aligned, error unknown"
    return text + (f", {not_aligned} ranks not aligned" if not_aligned else "")


def overview(session: Session, query: dict[str, str]) -> Answer:
    """For each rank and column of pixels, the share of time spent in each class, and not recorded, as 0 to 255.

    `comm` is exposed communication without `wait`, in which the rank waits for another rank. What it waits in send and
    recv, or is idle, while another stage of its pipeline computes is `bubble`.

    The rows of all ranks are concatenated. `first_ns` and `last_ns` are the bounds of each rank's own recording.
    """
    begin, end = window_of(query)
    width = columns_of(query)
    ranks = session.ranks(query)
    # Of a window that has fewer nanoseconds than columns, some columns show the same one.
    starts = np.linspace(begin, end, width, endpoint=False).astype(np.int64)
    starts, column = np.unique(starts, return_inverse=True)
    edges = np.append(starts, end)
    activities = [session.activity(rank) for rank in ranks]
    bounds = np.array([activity.bounds for activity in activities], dtype=np.float64)
    blank = [np.floor((1 - share_of(activity.recorded, edges)[column]) * 255) for activity in activities]
    return (
        {
            "ranks": ranks,
            "width": width,
            "begin_ns": begin,
            "end_ns": end,
            "on_host": any(activity.on_host for activity in activities),
        },
        {
            **{
                # Rounded up: the shortest activity stays visible.
                name: np.ceil(
                    np.concatenate(
                        [share_of(getattr(activity, name), edges)[column] for activity in activities]
                    )
                    * 255
                ).astype("u1")
                for name in ACTIVITIES
            },
            "unrecorded": np.concatenate(blank).astype("u1"),
            "first_ns": bounds[:, 0],
            "last_ns": bounds[:, 1],
        },
    )


def grid(session: Session, query: dict[str, str]) -> Answer:
    """The ranks in the order of their groups, and these as brackets: by stage, then by data group, and so on; where all
    are in one group, by machine. Few on one machine have none.

    Not a part of `run`: it needs the collectives of all ranks.
    """
    return session.kept("groups", lambda: _grid(session))


def _machines(run: Run) -> dict[int, str]:
    """By rank its machine; of many ranks whose machines are not known, so many at a time."""
    if run.hosts.keys() >= {*run.ranks} and len({*run.hosts.values()}) > 1:
        return run.hosts
    parts = [run.ranks[at : at + _RANKS_OF_A_GROUP] for at in range(0, len(run.ranks), _RANKS_OF_A_GROUP)]
    return {rank: f"{part[0]}–{part[-1]}" for part in parts for rank in part if len(parts) > 1}


def _grid(session: Session) -> dict[str, Any]:
    from rankscope.analysis.across_ranks.layout import layout_of
    from rankscope.analysis.core.scope import Scope

    with session.database() as run:
        layout = layout_of(run, Scope())
    axes: tuple[str, ...] = layout.axes
    sizes: dict[str, int] = {axis: layout.sizes[axis] for axis in layout.axes}
    labels: list[str] = []
    if (len(axes) > 1 or "pp" in axes) and all(rank in layout.places for rank in run.ranks):
        places = {rank: tuple(layout.places[rank].get(axis, 0) for axis in layout.axes) for rank in run.ranks}
    else:
        machines = _machines(session.run)
        labels = [*dict.fromkeys(machines.values())]
        places = {rank: (labels.index(label),) for rank, label in machines.items()}
        axes, sizes = ("groups",), {"groups": len(labels)}
    ranks = sorted(places, key=lambda rank: (places[rank], rank))
    levels = []
    for depth, axis in enumerate(axes[: max(len(axes) - 1, 1)]):  # one rank is no group, but a stage may be
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, rank in enumerate(ranks):
            groups.setdefault(places[rank][: depth + 1], []).append(at)
        name = "stage" if axis == "pp" else axis
        levels.append(
            [
                {
                    "label": labels[group[-1]] if labels else f"{name} {group[-1]}",
                    "from": at[0],
                    "to": at[-1] + 1,
                }
                for group, at in groups.items()
            ]
        )
    return {
        "title": " · ".join(f"{axis} {sizes[axis]}" for axis in axes),
        "ranks": ranks,
        "levels": levels,
        "stages": {str(rank): layout.stage(rank) for rank in ranks if "pp" in axes},
    }
