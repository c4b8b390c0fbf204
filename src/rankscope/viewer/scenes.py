"""Where each finding can be seen: ranks, step, window, the slices behind it and the collective in which ranks wait.

The page opens on the scene of the first finding and walks through the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.result import Finding, Found
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.sql import sql_texts
from rankscope.store.arrays import NONE
from rankscope.timeline.run import Run
from rankscope.viewer.collective_peers import describe_match
from rankscope.viewer.session import Session

_MOST_EXPANDED = 2
"""Ranks that are shown with their tracks; the others of a finding have a row each."""
_MOST_SLICES = 500
_LEAST_SHARE = 0.08
"""Of a step: a collective that is shorter is shown with some time around it instead of the whole step."""
_WHOLE_SHARE = 0.5
"""Of the run: a finding whose span is longer is about the whole run."""

_STEP_COLUMNS = {"overlap": "exposed_comm_ns", "idle": "idle_ns"}
"""By report, the column of the breakdown that is largest in the step where a finding shows best."""
_ON_HOST = ("syncs", "idle", "dataloader", "launches", "short_kernels")
"""Reports whose findings are about the host."""
_DEVICE_CAUSES = ("compute", "copy", "link", "waiting")
"""Causes of a straggler that are seen on its streams."""


@dataclass(frozen=True)
class Scene:
    """What the page shows of one finding."""

    ranks: tuple[int, ...]
    """Expanded."""
    peers: tuple[int, ...]
    """One row each, below them: the ranks that wait for them, or the other ranks of the finding."""
    step: int | None
    begin_ns: int
    end_ns: int
    groups: tuple[str, ...]
    """Groups of tracks that are unfolded."""
    slices: list[dict[str, Any]] = field(default_factory=list)
    """The slices that the finding is about, longest first."""
    collective: dict[str, Any] | None = None
    """In which ranks wait: as the route `collective` describes it."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def scene(session: Session, found: Found) -> Scene:
    """The scene of a finding. The session's database must be held."""
    run, finding = session.run, found.finding
    culprits = _culprits(finding) or tuple(run.ranks[:1])
    names = _names(finding)
    span = _span(session, finding)
    step = _step(run, found, culprits, names, span)
    match = _match(waits(run), found, culprits, step, span)
    collective = describe_match(waits(run), match) if match is not None else None
    involved = [row["rank"] for row in collective["rows"]] if collective else list(finding.ranks)
    peers = tuple(sorted(set(involved) - set(culprits[:_MOST_EXPANDED])))
    begin, end = _window(session, (*culprits, *peers), step, span, collective)
    slices = _slices(run, culprits, names, begin, end) if names else []
    return Scene(
        ranks=culprits[:_MOST_EXPANDED],
        peers=peers,
        step=step,
        begin_ns=begin,
        end_ns=end,
        groups=_groups(found),
        slices=slices,
        collective=collective,
    )


def _culprits(finding: Finding) -> tuple[int, ...]:
    """The ranks that the figures are of; a finding that holds for many ranks states those of the worst."""
    stated = finding.facts[0].ranks if finding.facts else ()
    return stated if stated and set(stated) <= set(finding.ranks) else finding.ranks


def _names(finding: Finding) -> list[str]:
    """The names of slices that the facts name."""
    rows = [fact.row.get("name") for fact in finding.facts]
    annotations = [fact.value for fact in finding.facts if fact.quantity == "annotation"]
    return [*dict.fromkeys(name for name in [*rows, *annotations] if isinstance(name, str))]


def _span(session: Session, finding: Finding) -> tuple[int, int] | None:
    begin, end = session.bounds
    span = finding.span
    return span if span and span[1] - span[0] < _WHOLE_SHARE * (end - begin) else None


def _step(
    run: Run, found: Found, culprits: tuple[int, ...], names: list[str], span: tuple[int, int] | None
) -> int | None:
    """The step in which the finding shows best; None where it has none, or is about the whole run."""
    rank = culprits[0]
    if span:
        middle = sum(span) // 2
        rows = run.rows(
            "SELECT step FROM steps WHERE rank = ? AND end_ns - time_ns <= ? AND end_ns > ? LIMIT 1",
            [rank, middle, middle],
        )
    elif found.finding.span:
        return None
    elif names:
        rows = run.rows(
            f"SELECT step FROM slices WHERE rank = ? AND step IS NOT NULL AND name IN ({sql_texts(names)}) "
            "GROUP BY step ORDER BY sum(dur_ns) DESC, step LIMIT 1",
            [rank],
        )
    elif found.report in _STEP_COLUMNS:
        column = _STEP_COLUMNS[found.report]
        parts = breakdown(run, Scope().in_run(run)).rows
        own = [row for row in parts if row["rank"] == rank and row["step"] is not None]
        rows = [(row["step"],) for row in sorted(own, key=lambda row: -row[column])[:1]]
    else:
        return None
    return int(rows[0][0]) if rows else None


def _match(
    waited: Waits, found: Found, culprits: tuple[int, ...], step: int | None, span: tuple[int, int] | None
) -> int | None:
    """Of a straggler, the collective at which the others wait for it longest; of exposed communication, the longest."""
    rows = waited.rows
    usable = rows.match != NONE
    if step is not None:
        usable &= rows.step == step
    elif span is not None:
        usable &= (rows.start < span[1]) & (rows.end > span[0])
    if found.report == "stragglers":
        usable &= (waited.wait > 0) & ~np.isin(rows.rank, culprits)
        at = np.flatnonzero(usable)
        last = waited.last[rows.match[at]]
        at = at[(last != NONE) & np.isin(rows.rank[last], culprits)]
        weight = waited.wait[at]
    elif found.report == "overlap":
        at = np.flatnonzero(usable & np.isin(rows.rank, culprits))
        weight = rows.duration[at]
    else:
        return None
    if len(at) == 0:
        return None
    return int(np.bincount(rows.match[at], weights=weight).argmax())


def _window(
    session: Session,
    ranks: tuple[int, ...],
    step: int | None,
    span: tuple[int, int] | None,
    collective: dict[str, Any] | None,
) -> tuple[int, int]:
    """The step on these ranks, or the span with some time around it; the whole run where there is neither."""
    begin, end = session.bounds
    times = [*(span or ())]
    if collective:
        for row in collective["rows"]:
            times += [row["start_ns"], row["start_ns"] + row["dur_ns"]]
    length = max(times) - min(times) if times else 0
    if step is not None:
        listed = ", ".join(map(str, ranks))
        ((first, last),) = session.run.rows(
            f"SELECT min(end_ns - time_ns), max(end_ns) FROM steps WHERE step = {step} AND rank IN ({listed})"
        )
        if not times or length >= _LEAST_SHARE * (last - first):
            margin = (last - first) // 100
            return max(begin, min(first, *times, last) - margin), min(end, max(last, *times, first) + margin)
    if not times:
        return begin, end
    return max(begin, min(times) - 2 * length), min(end, max(times) + length)


def _slices(run: Run, ranks: tuple[int, ...], names: list[str], begin: int, end: int) -> list[dict[str, Any]]:
    listed = ", ".join(map(str, ranks))
    return run.records(
        "SELECT rank, segment, id, track, depth, name, category, start_ns, dur_ns FROM slices "
        f"WHERE rank IN ({listed}) AND name IN ({sql_texts(names)}) AND start_ns < ? AND start_ns + dur_ns > ? "
        f"ORDER BY dur_ns DESC, start_ns LIMIT {_MOST_SLICES}",
        [end, begin],
    )


def _groups(found: Found) -> tuple[str, ...]:
    cause = found.finding.fact("cause")
    on_host = found.report in _ON_HOST or (cause is not None and cause.value not in _DEVICE_CAUSES)
    return ("streams", "communication", "host") if on_host else ("streams", "communication")
