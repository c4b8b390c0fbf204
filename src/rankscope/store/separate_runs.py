"""Tells files of different runs apart by what each file says: job, world size, host, GPU, and when it was recorded.

Files of one run may have been recorded at different times: torch writes one file per active cycle, and not every rank
need be in every cycle. Without ids, what is far apart in time is taken to be another run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from datetime import datetime, timezone

from rankscope.errors import MixedRunsError, RankError
from rankscope.model import TIMELINE_FORMATS
from rankscope.ranges import as_ranges
from rankscope.records import dataclass
from rankscope.store.index import SegmentEntry
from rankscope.text.run_words import shell_word, short_path

SESSION_GAP_NS = 60_000_000_000
"""Recordings farther apart by wall clock are separate sessions; clocks within a cluster differ by less."""
_HOUR_NS = 3_600_000_000_000
_OTHER_RANKS_GAP_NS = _HOUR_NS
"""Ranks that were never recorded together, this far apart, are of different runs."""
_SAME_RANKS_GAP_NS = 24 * _HOUR_NS
"""Cycles of the same ranks may be hours apart, but not days."""
_MOST_FILES = 4
_MOST_GROUPS = 6


@dataclass
class RunFiles:
    """The files of one run among those that were opened together, and what they say."""

    entries: list[SegmentEntry] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    worlds: set[int] = field(default_factory=set)
    hosts: dict[tuple[int, str], str] = field(default_factory=dict)
    """By rank and format, where the file names it. Tools may spell the same name in different ways."""
    gpus: dict[tuple[int, str], frozenset[str]] = field(default_factory=dict)
    other_clocks: set[tuple[int, int]] = field(default_factory=set)
    """Rank and segment of files whose times are not of the clock of the others."""
    has_wall_clock: bool = True
    begin_ns: int = 0
    end_ns: int = 0

    def add(self, entry: SegmentEntry) -> None:
        # Nothing tells when a snapshot or a dump was, if its times are not of the clock of the traces.
        shares_clock = entry.format in TIMELINE_FORMATS or entry.has_wall_clock == self.has_wall_clock
        if self.entries and not shares_clock:
            self.entries.append(entry)
            self.other_clocks.add(entry.file)
            return
        self.begin_ns = min(self.begin_ns, entry.unix_origin_ns) if self.entries else entry.unix_origin_ns
        self.end_ns = max(self.end_ns, entry.unix_end_ns) if self.entries else entry.unix_end_ns
        self.entries.append(entry)
        self.ranks.add(entry.rank)
        self.jobs |= {entry.job} - {""}
        self.worlds |= {entry.world_size} - {0}
        if host := entry.header.get("host_name"):
            self.hosts[entry.rank, entry.format] = str(host)
        if gpus := frozenset(str(device["name"]) for device in entry.devices if device.get("name")):
            self.gpus[entry.rank, entry.format] = gpus
        self.has_wall_clock &= entry.has_wall_clock

    def differs(self, other: RunFiles) -> str:
        """Why other files are not of this run, in a few words; '' if they may be."""
        if self.jobs and other.jobs:
            return "" if self.jobs & other.jobs else "different jobs"
        worlds = self.worlds | other.worlds
        if len(worlds) > 1:
            return f"world sizes {' and '.join(map(str, sorted(worlds)))}"
        for file, host in other.hosts.items():
            if self.hosts.get(file, host) != host:
                return f"rank {file[0]} on two hosts"
        for file, gpus in other.gpus.items():
            if not self.gpus.get(file, gpus) & gpus:
                return f"rank {file[0]} on two kinds of GPU"
        if not (self.has_wall_clock and other.has_wall_clock):
            return ""
        apart = max(self.begin_ns, other.begin_ns) - min(self.end_ns, other.end_ns)
        limit = _SAME_RANKS_GAP_NS if self.ranks & other.ranks else _OTHER_RANKS_GAP_NS
        return f"recorded {_hours(apart)} apart" if apart > limit else ""

    def __str__(self) -> str:
        world = max(self.worlds, default=0)
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {as_ranges(sorted(self.ranks))}" + f" of {world}" * (
            world > 0
        )
        when = ""
        if self.has_wall_clock:
            when = f", {datetime.fromtimestamp(self.begin_ns // 10**9, tz=timezone.utc):%Y-%m-%d %H:%M} UTC"
        job = "".join(f", job {job}" for job in sorted(self.jobs)[:1])
        names = [entry.source.name for entry in self.entries]
        files = ", ".join(names[:_MOST_FILES]) + (
            f" and {len(names) - _MOST_FILES} more" * (len(names) > _MOST_FILES)
        )
        return f"{ranks}{when}{job}: {files}"


def runs_among(segments: Sequence[SegmentEntry]) -> tuple[list[RunFiles], str]:
    """The runs that these files are of, the earliest first, and why there is more than one ('' for one).

    Snapshots and dumps are written when something happens, often long after the trace: they belong to the first run
    that has their rank.
    """
    runs: list[RunFiles] = []
    why: dict[str, None] = {}
    for recorded in _recorded_together([entry for entry in segments if entry.format in TIMELINE_FORMATS]):
        reasons = [run.differs(recorded) for run in runs]
        if "" in reasons:
            for entry in recorded.entries:
                runs[reasons.index("")].add(entry)
        else:
            runs.append(recorded)
            why |= dict.fromkeys(reasons)
    for entry in segments:
        if entry.format not in TIMELINE_FORMATS:
            runs = runs or [RunFiles()]
            next((run for run in runs if entry.rank in run.ranks), runs[0]).add(entry)
    return runs, "; ".join(why)


def _recorded_together(segments: Sequence[SegmentEntry]) -> list[RunFiles]:
    """Files of the same job and world size whose times are close, in order of time."""
    together: dict[tuple[str, int, int], RunFiles] = {}
    period, reach = 0, 0
    for entry in sorted(segments, key=lambda entry: entry.unix_origin_ns):
        if entry.has_wall_clock:
            period += entry.unix_origin_ns > reach + SESSION_GAP_NS
            reach = max(reach, entry.unix_end_ns)
        key = entry.job, entry.world_size, period if entry.has_wall_clock else 0
        together.setdefault(key, RunFiles()).add(entry)
    return list(together.values())


def without_duplicates(segments: Sequence[SegmentEntry]) -> tuple[list[SegmentEntry], list[RankError]]:
    """The files without those that cover the time of another of their rank and format, and an error for each.

    Of a recording and its copies the oldest file is used, of two different recordings none. Where several ranks have
    two recordings, or nothing is left, that is an error. Files of different formats may overlap, since several tools
    can record the same run, and so may files of different communicators.
    """
    by_rank: dict[tuple[int, str, str], list[SegmentEntry]] = {}
    for entry in segments:
        if entry.has_times:
            communicator = str(entry.header.get("communicator", ""))
            by_rank.setdefault((entry.rank, entry.format, communicator), []).append(entry)
    left_out: list[SegmentEntry] = []
    problems: list[RankError] = []
    clashes: dict[int, RankError] = {}
    for (rank, _, _), entries in by_rank.items():
        before, *later = sorted(entries, key=lambda e: (e.unix_origin_ns, e.manifest["source"]["mtime_ns"]))
        for after in later:
            is_copy = (before.unix_origin_ns, before.files) == (after.unix_origin_ns, after.files)
            is_later = before.unix_end_ns <= after.unix_origin_ns
            if is_copy or not (
                is_later or _recorded_together([before])[0].differs(*_recorded_together([after]))
            ):
                why = "They are the same recording, of which the first is used."
                if not is_copy:
                    why = "They cover the same time, so they are not successive recordings of one run. Neither is used."
                problem = RankError(
                    f"{before.source} and {after.source} are both of rank {rank}",
                    why=why,
                    hint=f"Move one away, or give its rank: rankscope ingest --rank {shell_word(f'N={after.source}')}",
                )
                problems.append(problem)
                left_out.append(after)
                if not is_copy:
                    left_out.append(before)
                    clashes[rank] = problem
            before = before if is_copy else after
    kept = [entry for entry in segments if entry not in left_out]
    if clashes and (len(clashes) > 1 or not kept):
        raise next(iter(clashes.values()))
    return kept, problems


def mixed_runs(runs: Sequence[RunFiles], why: str) -> MixedRunsError:
    """The error for files of several runs, which differ in this."""
    shown = "".join(f"\n    {run}" for run in runs[:_MOST_GROUPS])
    more = f"\n    and {len(runs) - _MOST_GROUPS} more" if len(runs) > _MOST_GROUPS else ""
    return MixedRunsError(
        f"the files are of {len(runs)} different runs",
        why=f"They differ: {why}.{shown}{more}",
        hint=f"Open one run: rankscope stats {_arguments(runs[0])}\n"
        "  To open all of them together without comparing them, add --mix.",
    )


def stray(run: RunFiles, why: str) -> MixedRunsError:
    """The error for a file that is of another run than the others, and is left out."""
    path = _arguments(run)
    return MixedRunsError(
        f"{path} is not used",
        why=f"It is of another run than the other files: {why}.",
        hint=f"Open it alone: rankscope stats {path}",
    )


def _arguments(run: RunFiles) -> str:
    """Its files, as arguments of a command."""
    paths = [short_path(entry.source) for entry in run.entries]
    return " ".join(paths[:_MOST_FILES]) + " …" * (len(paths) > _MOST_FILES)


def _hours(ns: int) -> str:
    hours = round(ns / _HOUR_NS)
    return f"{hours} hours" if hours < 72 else f"{round(hours / 24):,} days"
