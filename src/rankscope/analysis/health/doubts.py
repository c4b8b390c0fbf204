"""Checks of a recording that put its figures in doubt, each short enough for the first line of the summary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from rankscope.analysis.core.cache import once_per_run
from rankscope.analysis.core.device_events import gpu_counts, kernels_end_in, slice_counts
from rankscope.analysis.core.notes import ranks_by_session
from rankscope.analysis.core.result import Finding, Severity
from rankscope.analysis.core.scope import Scope, in_order_of_start, in_whole_files, steps_in_scope
from rankscope.analysis.core.step_times import SLOW_FIRST_STEP, median_of, run_step, run_step_times
from rankscope.capture.run_folder import rank_manifests
from rankscope.model import KNOWN_CATEGORIES
from rankscope.ranges import as_ranges, rank_words
from rankscope.readers.base import usable_world
from rankscope.records import dataclass
from rankscope.sql import sql_texts
from rankscope.timeline.run import Run
from rankscope.units import format_rounded

_MOSTLY_UNDERSTOOD_PCT, _HALF_UNDERSTOOD_PCT = 90, 50
"""Of the events: below these shares the figures are in doubt, and it is a warning. Chosen, not measured."""
_MOST_NAMES = 3
_MOST_CATEGORIES = 4
_LONGEST_NAME = 60
_UNKNOWN = f"category NOT IN ({sql_texts(KNOWN_CATEGORIES)})"


@dataclass(frozen=True)
class Understood:
    """How many of the events with a duration have a category that means something here."""

    events: int
    in_classes: int
    unknown: tuple[tuple[str, int], ...]
    """The categories without a meaning ('' for none) and their events, the most frequent first."""

    @property
    def pct(self) -> float:
        return 100 * self.in_classes / self.events if self.events else 100.0

    @property
    def categories(self) -> str:
        """'12 events of category "task", 3 without a category'."""
        shown = [
            f'{count:,} of category "{category}"' if category else f"{count:,} without a category"
            for category, count in self.unknown[:_MOST_CATEGORIES]
        ]
        return ", ".join(shown) + (", …" if len(self.unknown) > _MOST_CATEGORIES else "")


def understood(run: Run, scope: Scope) -> Understood:
    """Over the ranks in scope, whole files."""
    return _understood(run, scope.only_ranks())


@once_per_run
def _understood(run: Run, scope: Scope) -> Understood:
    counts = slice_counts(run, scope)
    unknown = tuple(
        (category, count) for category, count in counts.items() if category not in KNOWN_CATEGORIES
    )
    events = sum(counts.values())
    return Understood(events, events - sum(count for _, count in unknown), unknown)


def contents(run: Run, scope: Scope) -> str:
    """'2 threads, 3,400 ranges in 1.2 s; longest: load 12 ms, …' of a run without ops and GPU events, or ''.

    `longest` is by self time: a range around everything would hide what is inside it.
    """
    ((tracks, ranges, time),) = run.rows(f"""
        WITH files AS (
            SELECT rank, count(DISTINCT track) AS tracks, count(*) AS ranges,
                   max(start_ns + greatest(dur_ns, 0)) - min(start_ns) AS time
            FROM slices WHERE category <> 'Trace' AND {scope.where()} GROUP BY rank, segment
        ), ranks AS (SELECT sum(tracks) AS tracks, sum(ranges) AS ranges, sum(time) AS time FROM files GROUP BY rank)
        SELECT sum(tracks)::BIGINT, sum(ranges)::BIGINT, max(time)::BIGINT FROM ranks
    """)
    if not ranges:
        return ""
    named = run.rows(
        "SELECT name, sum(self_ns) AS time, count(*) FROM slices "
        f"WHERE category <> 'Trace' AND {scope.where()} GROUP BY name ORDER BY 2 DESC, 1 LIMIT {_MOST_NAMES}"
    )
    longest = ", ".join(
        f"{name[:_LONGEST_NAME] or '(no name)'} {format_rounded('ns', time)}"
        + (f" in {count:,} ranges" if count > 1 else "")
        for name, time, count in named
    )
    duration = format_rounded("ns", time)
    return (
        f"{tracks:,} thread{'s' * (tracks != 1)}, {ranges:,} range{'s' * (ranges != 1)} in {duration}; "
        f"longest: {longest}"
    )


_COMPLETE_STEP = 0.7
"""A step with a smaller share of the usual number of GPU events is incomplete. Chosen, not measured."""


class Check(NamedTuple):
    """One check of a recording: a line of `doctor`."""

    name: str
    value: str
    """What was measured."""
    finding: Finding | None = None
    """None: it is ok."""


def doubts(run: Run, scope: Scope) -> tuple[Finding, ...]:
    """The reasons to doubt the figures of the ranks and steps in scope, the gravest first: the title is for the first
    line, the advice says what it means, and what to do."""
    return tuple(check.finding for check in doubtful(run, scope.in_run(run)) if check.finding)


@once_per_run
def doubtful(run: Run, scope: Scope) -> tuple[Check, ...]:
    """The checks that put figures in doubt: `doctor` has further ones."""
    sources = (_mixed, _not_understood, _empty, _lost_kernels, _missing, _cut, _incomplete, _ended, _apart, _clocks,
               _warm_up)  # fmt: skip
    return tuple(source(run, scope) for source in sources)


def as_note(doubt: Finding) -> str:
    return f"in doubt: {doubt.title}: {doubt.advice}"


def _mixed(run: Run, scope: Scope) -> Check:
    check, runs = "runs that the files are of", len(run.runs)
    advice = (
        "runs are shown one after another and are not compared; figures of all ranks mix them. "
        f"The first: {next(iter(run.runs), '')}"
    )
    return Check(
        check, f"{runs}", Finding("critical", f"files of {runs} runs", advice=advice) if runs > 1 else None
    )


def _not_understood(run: Run, scope: Scope) -> Check:
    """Below 90 % is info, below 50 % a warning, none at all critical."""
    events, finding = understood(run, scope), None
    share = percent(events.pct)
    if events.pct < _MOSTLY_UNDERSTOOD_PCT:
        severity: Severity = "warning" if events.pct < _HALF_UNDERSTOOD_PCT else "info"
        finding = Finding(
            severity if events.in_classes else "critical",
            f"{share} % of the events understood",
            advice=f"{events.categories} have no known meaning and are in no class",
        )
    return Check("events understood", f"{share} % of {events.events:,}", finding)


def percent(share: float) -> str:
    """Two significant digits without an exponent."""
    if share == 0:
        return "0"
    return f"{share:.0f}" if share >= 10 else f"{share:.1f}" if share >= 0.1 else "under 0.1"


def _empty(run: Run, scope: Scope) -> Check:
    """Reports of a profiler that ran and recorded nothing."""
    empty = {
        entry.rank: str(why)
        for entry in run.used
        if (why := entry.manifest["header"].get("whyEmpty")) and scope.has_rank(entry.rank)
    }
    finding = None
    if empty:
        ranks = tuple(empty)
        finding = Finding("warning", f"no events of {rank_words(ranks)}", ranks, advice=empty[min(empty)])
    return Check("ranks without an event", f"{len(empty)}", finding)


def _lost_kernels(run: Run, scope: Scope) -> Check:
    lost, finding = kernels_end_in(run, in_whole_files(run, scope)), None
    if lost:
        step = lost[min(lost)]
        advice = (
            ". An nsys that is older than the driver's CUDA does so; a newer one records them, and --steps A:B may "
            "where each process has a GPU of its own"
        ) * any(entry.format == "nsys" for entry in run.used if entry.rank in lost)
        finding = Finding(
            "warning",
            f"no kernels of {rank_words([*lost])}" + ("" if step is None else f" after step {step}"),
            tuple(lost),
            advice="the profiler stopped recording kernels while the job went on: what the time was spent on is not "
            f"known{advice}",
        )
    return Check("ranks whose kernels end before their steps", f"{len(lost)}", finding)


def world_size(run: Run) -> int:
    """The number of ranks of the job, from the traces or the manifests beside them; 0 if not known."""
    sizes = {entry.world_size for entry in run.timelines} - {0}
    if not sizes:
        folders: set[Path] = {entry.source.parent for entry in run.timelines}
        manifests = (manifest for folder in folders for manifest in rank_manifests(folder))
        sizes = {size for manifest in manifests if (size := usable_world(manifest.get("world_size")))}
    return max(sizes, default=0)


def _missing(run: Run, scope: Scope) -> Check:
    recorded, world, finding = {entry.rank for entry in run.timelines}, world_size(run), None
    # Several runs have several world sizes.
    missing = sorted(set(range(world)) - recorded) if len(run.runs) == 1 else []
    if missing:
        advice = (
            f"no trace of {rank_words(missing)}: why others wait is not known (rankscope profile --ranks all)"
        )
        finding = Finding("info", f"{len(recorded)} of {world} ranks", advice=advice)
    return Check("missing ranks", f"{len(missing)} of {world or len(run.ranks)}", finding)


def _damaged(run: Run, scope: Scope) -> dict[int, str]:
    """By rank in scope, how its file ends early."""
    return {
        entry.rank: entry.manifest["reading"]["damage"]
        for entry in run.timelines
        if entry.manifest["reading"]["damage"] and scope.has_rank(entry.rank)
    }


def _cut(run: Run, scope: Scope) -> Check:
    damaged, finding = _damaged(run, scope), None
    if damaged:
        rank, why = min(damaged.items())
        advice = f"{why} (rank {rank}): any step may lack events, so figures that depend on them are left out"
        ranks = tuple(damaged)
        finding = Finding("warning", f"recording cut on {rank_words(ranks)}", ranks, advice=advice)
    return Check("files cut short", f"{len(damaged)} of {len(run.segments)}", finding)


def _incomplete(run: Run, scope: Scope) -> Check:
    """Last steps with fewer GPU events than any other of their rank. One in between may have less work: no tokens."""
    short, finding = {}, None
    if len(run.runs) == 1:  # what is usual differs between runs
        damaged = _damaged(run, scope)
        short = {rank: step for rank, step in _incomplete_last_steps(run, scope) if rank not in damaged}
    if short:
        advice = (
            f"step {as_ranges(sorted(set(short.values())))} has less than {100 * _COMPLETE_STEP:.0f} % of the usual "
            "number of GPU events: the recording ended before it did; leave it out with --steps"
        )
        ranks = tuple(short)
        finding = Finding("warning", f"last step incomplete on {rank_words(ranks)}", ranks, advice=advice)
    return Check("truncated steps", f"{len(short)}", finding)


def _ended(run: Run, scope: Scope) -> Check:
    """Windows that the end of the script has cut: the capture says when and why."""
    check = "recordings cut by the end of the job"
    steps = in_order_of_start(steps_in_scope(run, scope))
    last_step = dict(zip(*(steps[name].tolist() for name in ("rank", "step")), strict=True))
    ended: dict[int, tuple[int, str]] = {}
    for entry in run.timelines if len(run.runs) == 1 else ():
        field = entry.captured.get("ended")
        if isinstance(field, dict) and isinstance(field.get("unix_ns"), int) and entry.rank in last_step:
            ended[entry.rank] = max(ended.get(entry.rank, (0, "")), (field["unix_ns"], str(field.get("why"))))
    if not ended:
        return Check(check, "0")
    first, final = min(ended, key=ended.__getitem__), max(ended, key=ended.__getitem__)
    who = f"rank {first} ended after step {last_step[first]}"
    if final != first:
        apart = format_rounded("ns", ended[final][0] - ended[first][0])
        who = f"rank {first} ended first, after step {last_step[first]}; the last one, rank {final}, {apart} later"
        who += f", after step {last_step[final]}" if last_step[final] != last_step[first] else ""
    advice = f"the step that it ended in is left out; {who}. Record fewer steps (--active), or earlier ones"
    title = f"recording cut: {ended[first][1]}"
    return Check(check, f"{len(ended)}", Finding("info", title, tuple(ended), advice=advice))


def _incomplete_last_steps(run: Run, scope: Scope) -> list[tuple[int, int]]:
    """(rank, step) of the last steps of files that have fewer GPU events than usual, and than any other step."""
    events = Counter[tuple[int, int, int | None]]()
    for count in gpu_counts(run, scope):
        events[count.rank, count.segment, count.step] += count.events
    steps = in_order_of_start(steps_in_scope(run, scope))
    rows = list(zip(*(steps[name].tolist() for name in ("rank", "segment", "step")), strict=True))
    last = {(rank, segment): step for rank, segment, step in rows}
    of_rank: dict[int, list[int]] = {}
    for row in rows:
        of_rank.setdefault(row[0], []).append(events[row])
    return [
        (rank, step)
        for (rank, segment), step in sorted(last.items())
        if len(of_rank[rank]) > 2
        and events[rank, segment, step]
        < min(_COMPLETE_STEP * median_of(of_rank[rank]), sorted(of_rank[rank])[1])
    ]


def _apart(run: Run, scope: Scope) -> Check:
    """Ranks of one run that were not recorded at the same time."""
    parts, finding = ranks_by_session(run) if len(run.runs) == 1 else [], None
    distinct = [ranks for number, ranks in enumerate(parts) if ranks not in parts[:number]]
    if len(distinct) > 1:
        advice = (
            f"{' and '.join(rank_words(ranks) for ranks in distinct)} were recorded more than a minute apart: "
            "they are not compared"
        )
        finding = Finding("warning", "ranks not recorded at the same time", advice=advice)
    return Check("recordings at different times", f"{len(distinct) if finding else 0}", finding)


def _clocks(run: Run, scope: Scope) -> Check:
    alone, finding = [], None
    if run.clock_mode != "raw" and len({entry.rank for entry in run.timelines}) > 1:
        measured = run.clocks.ranks
        main = next(clock.rank for clock in measured if clock.method == "reference")
        alone = [c.rank for c in measured if c.method == "wall clock" or main not in (c.reference, c.rank)]
    if alone:
        advice = (
            f"they share no collective with rank {main}; their times are compared by wall clock (-r clocks)"
        )
        finding = Finding("info", f"clocks of {rank_words(alone)} not aligned", tuple(alone), advice=advice)
    return Check("clocks not aligned", f"{len(alone)}", finding)


def _warm_up(run: Run, scope: Scope) -> Check:
    scope, finding = in_whole_files(run, scope), None
    typical = run_step(run, scope)
    if typical.ns is not None and typical.left_out:
        took = run_step_times(run, scope)
        slow = ", ".join(f"step {step} ({format_rounded('ns', took[step])})" for step in typical.left_out)
        worst = max(typical.left_out, key=took.__getitem__)
        finding = Finding(
            "warning",
            f"warm-up inside: step {worst} took {took[worst] / typical.ns:.1f}x the median",
            advice=f"{slow} is left out of the step time: the first of a recording, more than {SLOW_FIRST_STEP:g} "
            "times the median of the others; it is in all other figures, unless --steps leaves it out",
            steps=typical.left_out,
        )
    return Check("warm-up inside the recording", f"{len(typical.left_out)} steps", finding)
