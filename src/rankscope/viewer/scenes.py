"""Route for findings and where each can be seen: ranks, step, window, the slices behind it, the collective of a wait.

The page opens on the scene of the first finding and walks through the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rankscope.analysis import REPORTS
from rankscope.analysis.across_ranks.schedule_picture import RECORDED, schedule_picture
from rankscope.analysis.core.collective_waits import Waits, waits
from rankscope.analysis.core.result import Finding
from rankscope.analysis.core.scope import Scope
from rankscope.analysis.findings import collect
from rankscope.analysis.within_rank.breakdown import breakdown
from rankscope.analysis.within_rank.idle import gap_words
from rankscope.sql import sql_texts
from rankscope.store.arrays import NONE, number_rows
from rankscope.timeline.run import Run
from rankscope.viewer.answers import Answer
from rankscope.viewer.collectives import describe, messages
from rankscope.viewer.session import Session
from rankscope.views.envelope import Question, envelope
from rankscope.views.help_pages import page_text

_MOST_EXPANDED = 2
"""Ranks that are shown with their tracks; the others of a finding have a row each."""
_PAGE_WIDTH = 64
_MOST_SLICES = 500
_LEAST_SHARE = 0.08
"""Of a step: a collective that is shorter is shown with some time around it instead of the whole step."""
_WHOLE_SHARE = 0.5
"""Of the run: a finding whose span is longer is about the whole run."""

_STEP_COLUMNS = {"overlap": "exposed_comm_ns", "idle": "idle_ns"}
"""By report, the column of the breakdown that is largest in the step where a finding shows best."""
_ON_HOST = ("idle.syncs", "idle", "dataloader", "idle.launches", "idle.short_kernels")
"""Reports whose findings are about the host."""
_DEVICE_CAUSES = ("compute", "copy", "link")
"""Causes of a fault that are seen on streams."""


def findings(session: Session, query: dict[str, str]) -> Answer:
    """The findings of all reports, in the order of the summary, each with the scene that shows it."""
    with session.database() as run:
        result = REPORTS["findings"].analyse(run, Scope(), None)
        scenes = [_scene(session, finding) for finding in collect(run, Scope())]
    answer = envelope(result, Question({"RUN": session.words}, whole_run=True))
    shown = zip(answer["findings"], scenes, strict=True)
    return answer | {
        "findings": [
            finding | {"scene": scene, "about": page_text(finding["page"], _PAGE_WIDTH) or ""}
            for finding, scene in shown
        ]
    }


def _scene(session: Session, finding: Finding) -> dict[str, Any]:
    """What the page shows of one finding. The session's database must be held."""
    run = session.run
    # The ranks that the figures are of; a finding that holds for all ranks states those of the worst.
    stated = next((fact.ranks for fact in finding.facts if 0 < len(fact.ranks) < len(run.ranks)), ())
    culprits = stated if stated and set(stated) <= set(finding.ranks) else finding.ranks
    culprits = culprits or tuple(run.ranks[:1])
    # The names of slices that the facts or texts name.
    rows = [fact.row.get("name") for fact in finding.facts]
    annotations = [fact.value for fact in finding.facts if fact.quantity == "annotation"]
    stated_names = (*rows, *annotations, *finding.names)
    names = [*dict.fromkeys(name for name in stated_names if isinstance(name, str))]
    begin, end = session.bounds
    span = finding.span
    if span and span[1] - span[0] >= _WHOLE_SHARE * (end - begin):
        span = None
    step = _step(run, finding, culprits, names, span)
    entry = _collective(waits(run), finding, culprits, step, span)
    collective = describe(waits(run), entry) if entry is not None else None
    if finding.kind == "fault" and step is None and entry is not None:
        step = int(waits(run).rows.step[entry])
    involved = [row["rank"] for row in collective["rows"]] if collective else list(finding.ranks)
    expanded = culprits[:_MOST_EXPANDED]
    peers = tuple(sorted(set(involved) - set(expanded)))
    begin, end = _window(session, (*culprits, *peers), step, span, collective)
    slices = []
    if names:
        slices = run.records(
            "SELECT rank, segment, id, track, depth, name, category, start_ns, dur_ns FROM slices "
            f"WHERE rank IN ({', '.join(map(str, culprits))}) AND name IN ({sql_texts(names)}) "
            f"AND start_ns < ? AND start_ns + dur_ns > ? ORDER BY dur_ns DESC, start_ns LIMIT {_MOST_SLICES}",
            [end, begin],
        )
    cause = finding.fact("cause")
    on_host = finding.report in _ON_HOST or (cause is not None and cause.value not in _DEVICE_CAUSES)
    scene = {
        "ranks": expanded,
        "peers": peers,  # one row each, below them: the ranks that wait for them, or the other ranks of the finding
        "step": step,
        "begin_ns": begin,
        "end_ns": end,
        "groups": (
            "streams",
            "communication",
            "clocks",
            *(["host"] if on_host else []),
        ),  # of tracks, unfolded
        "slices": slices,  # that the finding is about, longest first
        "gap": _gap(run, finding, culprits[0]),  # in which the GPU is idle
        "collective": collective,  # in which ranks wait: as the route `collective` describes it
        "headline": finding.headline,
        "why": finding.why,  # the cause, at the end of the finding's title
    }
    return scene | _schedule(session, finding) if finding.report == "bubbles" else scene


def _schedule(session: Session, finding: Finding) -> dict[str, Any]:
    """Of a scene, what a finding about a pipeline has: a step with one row for each stage."""
    run = session.run
    picture = schedule_picture(run, Scope().in_run(run), finding.ranks[0] if finding.ranks else None)
    rows = [row for row in picture.rows if row["schedule"] == RECORDED]
    if not rows:
        return {}
    ranks = tuple(dict.fromkeys(row["rank"] for row in rows))
    begin, end = picture.facts["begin_ns"], picture.facts["end_ns"]
    margin, (first, last) = (end - begin) // 100, session.bounds
    waited = waits(run)
    entries, sends, recvs = waited.rows, waited.rows.sends, waited.rows.recvs
    inside = np.isin(entries.rank[sends], ranks) & np.isin(entries.rank[recvs], ranks)
    inside &= (entries.end[recvs] > begin) & (entries.end[sends] < end)
    passes = [
        {
            "rank": row["rank"],
            "start_ns": begin + row["start_ns"],
            "dur_ns": row["dur_ns"],
            "label": f"{row['kind'][0].upper()}{row['micro_batch']}",
        }
        for row in rows
        if row["micro_batch"] is not None
    ]
    return {
        "ranks": (),
        "peers": ranks,
        "hot": finding.ranks,
        "step": picture.facts["step"],
        "begin_ns": max(first, begin - margin),
        "end_ns": min(last, end + margin),
        "passes": passes,  # of micro-batches through the stages: F1 is the first one forward
        "messages": messages(waited, inside),  # between the stages
        "bubbles": [dict(row) for row in REPORTS["bubbles"].analyse(run, Scope(), None).rows],
    }


def _gap(run: Run, finding: Finding, rank: int) -> dict[str, Any] | None:
    """The idle time that a finding shows, with its cause."""
    text = gap_words(run, rank, finding.span) if finding.report == "idle" and finding.span else None
    return {"rank": rank, "span": finding.span, "text": text} if text else None


def _step(
    run: Run, finding: Finding, culprits: tuple[int, ...], names: list[str], span: tuple[int, int] | None
) -> int | None:
    """The step in which the finding shows best; None where it has none, or is about the whole run."""
    rank = culprits[0]
    if span:
        middle = sum(span) // 2
        rows = run.rows(
            "SELECT step FROM steps WHERE rank = ? AND end_ns - time_ns <= ? AND end_ns > ? LIMIT 1",
            [rank, middle, middle],
        )
    elif finding.steps:
        return finding.steps[0]
    elif finding.span:
        return None
    elif names:
        rows = run.rows(
            f"SELECT step FROM slices WHERE rank = ? AND step IS NOT NULL AND name IN ({sql_texts(names)}) "
            "GROUP BY step ORDER BY sum(dur_ns) DESC, step LIMIT 1",
            [rank],
        )
    elif finding.report in _STEP_COLUMNS:
        column = _STEP_COLUMNS[finding.report]
        parts = breakdown(run, Scope().in_run(run)).rows
        steps = [row for row in parts if row["rank"] == rank and row["step"] is not None]
        rows = [(row["step"],) for row in sorted(steps, key=lambda row: -row[column])[:1]]
    else:
        return None
    return int(rows[0][0]) if rows else None


def _collective(
    waited: Waits, finding: Finding, culprits: tuple[int, ...], step: int | None, span: tuple[int, int] | None
) -> int | None:
    """An entry of the collective: of a fault, the one at which the others wait for its ranks longest; of a
    slow link and of exposed communication, the longest."""
    rows = waited.rows
    usable = (rows.match != NONE) | (waited.wait != NONE)
    if step is not None:
        usable &= rows.step == step
    elif span is not None:
        usable &= (rows.start < span[1]) & (rows.end > span[0])
    cause = finding.fact("cause")
    is_transfer = finding.report == "overlap" or (cause is not None and cause.value == "link")
    if finding.kind == "fault" and not is_transfer:
        usable &= (waited.wait > 0) & ~np.isin(rows.rank, culprits)
        at = np.flatnonzero(usable)
        last = waited.waited_for[at]
        at = at[(last != NONE) & np.isin(rows.rank[last], culprits)]
        weight = waited.wait[at]
    elif is_transfer:
        at = np.flatnonzero(usable & np.isin(rows.rank, culprits))
        weight = rows.duration[at] - np.maximum(waited.wait[at], 0)
    else:
        return None
    if len(at) == 0:
        return None
    # A batch of messages has no match: it counts alone.
    _, number = number_rows([rows.match[at], np.where(rows.match[at] == NONE, at, NONE)])
    longest = np.bincount(number, weights=weight).argmax()
    return int(at[(number == longest).argmax()])


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
