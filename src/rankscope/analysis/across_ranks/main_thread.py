"""The thread that runs the training loop, and where it does nothing that torch records."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from rankscope.analysis.core.grouping import sums_by
from rankscope.analysis.core.host_spans import program_frame
from rankscope.analysis.core.intervals import EMPTY, Intervals, Ints, covered, join, subtract, union
from rankscope.analysis.core.names import all_names
from rankscope.model import (
    CROSSING_RANGES,
    DATALOADER_PATTERN,
    HOST_COLLECTIVE_PATTERN,
    LAUNCH_CATEGORIES,
    SYNC_CALL_PATTERN,
)
from rankscope.records import dataclass
from rankscope.sql import sql_text
from rankscope.store.arrays import Mask, number_rows
from rankscope.timeline.run import Run

_COVERS = 0.8
"""An annotation or a frame that covers this share of a gap is where the gap is."""


@dataclass(frozen=True)
class Gaps:
    """Times of the main thread without an op, a synchronising call, a wait for data or for another thread."""

    start: Ints
    end: Ints
    before: Ints
    """The op before each, as an index into names; the last name is empty: there is none."""
    after: Ints
    names: Sequence[str]

    def between(self, ops: OpsAround) -> Mask:
        """The gaps between ops of these names."""
        return np.isin(self.before, self._codes(ops[0])) & np.isin(self.after, self._codes(ops[1]))

    def _codes(self, name: str) -> list[int]:
        return [self.names.index(name)] if name in self.names else []

    def totals(self) -> dict[OpsAround, int]:
        """The time of the gaps between the same ops."""
        pairs, pair = number_rows([self.before, self.after])
        sums = sums_by(pair, self.end - self.start)
        return {
            (self.names[before], self.names[after]): total
            for (before, after), total in zip(pairs.tolist(), sums.tolist(), strict=True)
        }


OpsAround = tuple[str, str]
"""The names of the ops before and after a gap."""


@dataclass(frozen=True)
class Gap:
    """The gaps between ops of the same names."""

    dur_ns: int
    """Their sum."""
    count: int
    before: str = ""
    """The op before them."""
    after: str = ""
    annotation: str = ""
    """The innermost annotation of the program that covers the longest of them."""
    line: str = ""
    """The program's innermost Python frame that covers it."""


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


def gaps(run: Run, rank: int, spans: Sequence[tuple[int, int]]) -> Gaps:
    """The gaps of the main thread in some spans of time, such as steps of its file."""
    thread = main_thread(run, rank)
    if thread is None or not spans:
        return _NO_GAPS
    segment, track = thread
    within = union(*np.array(spans, dtype=np.int64).T)
    calls = ", ".join(map(sql_text, LAUNCH_CATEGORIES))
    events = run.arrays(f"""
        SELECT start_ns AS start, start_ns + dur_ns AS stop, (track = {track} AND s.category = 'cpu_op') AS is_op,
               n.code::BIGINT AS name
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE rank = {rank} AND segment = {segment} AND dur_ns > 0 AND (
            (track = {track} AND (
                (s.category = 'cpu_op' AND op IS NULL)
                OR (s.category IN ({calls}) AND regexp_matches(s.name, {sql_text(SYNC_CALL_PATTERN)}))
                OR (s.category = 'user_annotation' AND (regexp_matches(s.name, {sql_text(DATALOADER_PATTERN)})
                    OR regexp_matches(s.name, {sql_text(HOST_COLLECTIVE_PATTERN)})))))
            -- the main thread waits while another one runs the backward pass
            OR (s.category = 'cpu_op' AND s.name LIKE 'autograd::engine::evaluate_function%'))
        ORDER BY start
    """)
    rows = run.collectives
    mine = (rows.rank == rank) & ~rows.on_device
    waits = union(rows.start[mine], rows.end[mine])
    busy = union(events["start"], events["stop"])
    # Steps that are in another file of the rank are not in that of the thread.
    inside = covered(busy, within.start, within.end) > 0
    free = subtract(Intervals(within.start[inside], within.end[inside]), join(busy, waits))
    is_op, texts = events["is_op"].astype(bool), [*all_names(run), ""]
    # Ops that no other op calls follow each other. The last entry stands for none.
    start, stop = events["start"][is_op], np.maximum.accumulate(events["stop"][is_op])
    name = np.append(events["name"][is_op], len(texts) - 1)
    before = name[np.searchsorted(stop, free.start, side="right") - 1]
    after = name[np.searchsorted(start, free.end)]
    return Gaps(free.start, free.end, before, after, texts)


_NO_GAPS = Gaps(*EMPTY, *EMPTY, ("",))


def gap_between(run: Run, rank: int, times: Gaps, ops: OpsAround) -> Gap:
    """The gaps between ops of these names, with the shortest annotation and frame around the longest of them."""
    mine = np.flatnonzero(times.between(ops))
    length = (times.end - times.start)[mine]
    longest = mine[length.argmax()]
    start, end = int(times.start[longest]), int(times.end[longest])
    segment, track = main_thread(run, rank) or (0, 0)
    covers = f"least(start_ns + dur_ns, {end}) - greatest(start_ns, {start}) >= {_COVERS * (end - start)}"
    named = "category = 'user_annotation' AND NOT regexp_matches(name, '^(ProfilerStep#|nccl:|gloo:)')"
    rows = run.rows(
        f"SELECT category = 'python_function', list(name ORDER BY dur_ns) FROM slices WHERE rank = {rank} "
        f"AND segment = {segment} AND track = {track} AND {covers} AND (category = 'python_function' OR ({named})) "
        "GROUP BY ALL"
    )
    around = dict(rows)
    annotation = next(iter(around.get(False, ())), "")
    return Gap(int(length.sum()), len(mine), *ops, annotation, program_frame(around.get(True, ())))


def sampled_line(run: Run, rank: int, times: Intervals, called_by: str = "") -> str:
    """The innermost function of the program that runs for most of these times, with its line; '' if none was sampled.

    ``called_by`` begins the path of a function that is around it. Short times do not count: a sample may miss them.
    """
    is_long = times.end - times.start >= _LEAST_SAMPLED_NS
    frames = run.arrays(f"""
        SELECT s.start_ns AS start, s.start_ns + s.dur_ns AS stop, s.depth::BIGINT AS depth, n.code::BIGINT AS name
        FROM slices s JOIN internal.names n ON n.category = s.category AND n.name = s.name
        WHERE s.rank = {rank} AND s.category = 'python_sample' ORDER BY depth DESC
    """)
    inside = covered(Intervals(times.start[is_long], times.end[is_long]), frames["start"], frames["stop"])
    lines = defaultdict[str, Counter[str]](Counter)
    for at in np.flatnonzero(inside).tolist():
        name = all_names(run)[frames["name"][at]]
        lines[_LINE.sub("", name)][name] += int(inside[at])
    most = int(inside[frames["depth"] == 0].sum()) / 2
    functions = [function for function, by_line in lines.items() if by_line.total() > most]
    callers = [function.startswith(called_by) for function in functions]
    if called_by:
        functions = functions[: callers.index(True)] if any(callers) else []
    return program_frame([lines[function].most_common(1)[0][0] for function in functions])


_LEAST_SAMPLED_NS = 10_000_000
"""The interval of the samples."""
_LINE = re.compile(r"\(\d+\)")
