"""The thread that runs the training loop, and where it does nothing that torch records."""

from __future__ import annotations

import numpy as np

from rankscope.analysis.core.intervals import Intervals, join, subtract, union
from rankscope.model import (
    CROSSING_RANGES,
    DATALOADER_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    LAUNCH_CATEGORIES,
    SYNC_CALL_PATTERN,
)
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.timeline.run import Run

_COVERS = 0.8
"""An annotation or a frame that covers this share of a gap is where the gap is."""


@dataclass(frozen=True)
class Gap:
    """Time of the main thread without an op, a synchronising call, a wait for data or for another thread."""

    dur_ns: int
    before: str = ""
    """The op before it."""
    after: str = ""
    annotation: str = ""
    """The innermost annotation of the program that covers it."""
    line: str = ""
    """The innermost Python frame that covers it."""


def main_thread(run: Run, rank: int) -> tuple[int, int] | None:
    """(segment, track) of the thread with the steps; without steps, of the thread that calls collectives; else of the
    busiest."""
    sources = (
        "category = 'user_annotation' AND name LIKE 'ProfilerStep#%'",
        "category = 'cpu_op' AND (name LIKE 'c10d::%' OR name = 'record_param_comms')",
        "category = 'cpu_op' AND op IS NULL",
    )
    for where in sources:
        rows = run.rows(
            f"SELECT segment, track FROM slices WHERE rank = {rank} AND {where} "
            "GROUP BY ALL ORDER BY count(*) DESC LIMIT 1"
        )
        for segment, track in rows:
            # The thread's track, where its steps are start/end ranges on another one beside it.
            beside = run.rows(
                f"""SELECT t.track FROM tracks t JOIN tracks beside ON beside.rank = t.rank
                    AND beside.segment = t.segment AND beside.pid = t.pid
                    AND beside.tid = t.tid || {sql_text(CROSSING_RANGES)}
                    WHERE t.rank = {rank} AND t.segment = {segment} AND t.kind = 'thread' AND beside.track = {track}"""
            )
            return segment, beside[0][0] if beside else track
    return None


def longest_gap(run: Run, rank: int, window: tuple[int, int]) -> Gap | None:
    """The longest gap of the main thread in a window of time."""
    thread = main_thread(run, rank)
    if thread is None:
        return None
    segment, track = thread
    start, end = window
    anywhere = f"rank = {rank} AND segment = {segment} AND start_ns < {end} AND start_ns + dur_ns > {start}"
    here = f"{anywhere} AND track = {track}"
    calls = ", ".join(map(sql_text, LAUNCH_CATEGORIES))
    busy = run.arrays(f"""
        SELECT start_ns AS start, start_ns + dur_ns AS stop FROM slices WHERE {here} AND dur_ns > 0 AND (
            (category = 'cpu_op' AND op IS NULL)
            OR (category IN ({calls}) AND regexp_matches(name, {sql_text(SYNC_CALL_PATTERN)}))
            OR (category = 'user_annotation' AND (regexp_matches(name, {sql_text(DATALOADER_PATTERN)})
                OR regexp_matches(name, {sql_text(HOST_COLLECTIVE_PATTERN)}))))
        UNION ALL  -- the main thread waits while another one runs the backward pass
        SELECT start_ns, start_ns + dur_ns FROM slices
        WHERE {anywhere} AND category = 'cpu_op' AND name LIKE 'autograd::engine::evaluate_function%'
    """)
    rows = run.collectives
    mine = (rows.rank == rank) & ~rows.on_device
    waits = union(rows.start[mine], rows.end[mine])
    whole = Intervals(np.array([start], dtype=np.int64), np.array([end], dtype=np.int64))
    free = subtract(whole, join(union(busy["start"], busy["stop"]), waits))
    if len(free.start) == 0:
        return None
    longest = int((free.end - free.start).argmax())
    begin, finish = int(free.start[longest]), int(free.end[longest])
    frames = "category = 'python_function'"
    named = "category = 'user_annotation' AND NOT regexp_matches(name, '^(ProfilerStep#|nccl:|gloo:)')"
    ops, before = f"{here} AND category = 'cpu_op' AND op IS NULL", f"start_ns + dur_ns <= {begin}"
    # The shortest slice that covers most of the gap.
    covered = f"least(start_ns + dur_ns, {finish}) - greatest(start_ns, {begin})"
    around = f"{here} AND {covered} >= {_COVERS * (finish - begin)}"
    return Gap(
        finish - begin,
        before=_first_name(run, f"{ops} AND {before}", "start_ns DESC"),
        after=_first_name(run, f"{ops} AND start_ns >= {finish}", "start_ns"),
        annotation=_first_name(run, f"{around} AND {named}", "dur_ns"),
        line=_first_name(run, f"{around} AND {frames}", "dur_ns"),
    )


def _first_name(run: Run, where: str, order: str) -> str:
    rows = run.rows(f"SELECT name FROM slices WHERE {where} ORDER BY {order} LIMIT 1")
    return str(rows[0][0]) if rows else ""
