"""Assigns a rank and a segment number to each file. A rank that cannot be determined is an error, not a guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

from rankscope.errors import RankError, RankscopeError
from rankscope.readers import TraceIdentity, find_reader, identities, one_file
from rankscope.records import dataclass
from rankscope.store.layout import Index, SegmentEntry
from rankscope.store.separate_runs import world_size_of
from rankscope.store.side_by_side import side_by_side

ALONE = "alone"
BESIDE = "beside the only rank"
_ASSUMED = (ALONE, BESIDE)
"""Sources of a rank that hold as long as no other file is in the folder."""
_OPTION = "option"
_TELLS_RANK = {
    "trace_view.json": "profiler_info_N.json beside it",
    ".json": "distributedInfo",
    ".xplane.pb": "index of its process",
}
"""What a file's rank is read from, by a part of its name."""
_AT_A_TIME = 4


@dataclass(frozen=True)
class Assignment:
    """One file with its rank and segment."""

    path: Path
    rank: int
    segment: int
    rank_source: str
    part: str = ""
    """Which rank's part of the file; empty for the whole file."""


def assign(
    files: Iterable[Path], given: Mapping[Path, int], named: Mapping[Path, int], index: Index
) -> tuple[list[Assignment], list[RankscopeError]]:
    """A rank and segment for each file, and an error for each file that cannot be opened.

    Unchanged files in the index keep theirs. `given` holds the ranks that the user gave, `named` those of the capture's
    manifest.
    """
    files = list(files)
    known: dict[Path, list[SegmentEntry]] = {}
    complete = {entry.source for entry in index.segments} >= set(files)
    for entry in index.segments:
        if entry.rank_source in _ASSUMED and not complete:
            continue
        if entry.is_current():  # a file that was replaced may be of another rank
            known.setdefault(entry.source, []).append(entry)
        elif entry.rank_source == _OPTION:
            named = {entry.source: entry.rank, **named}
    new = [path for path in files if path not in known or path in given]
    answers = dict(zip(new, _identify(new), strict=True))
    problems = [answer for answer in answers.values() if isinstance(answer, RankscopeError)]
    found = {path: answer for path, answer in answers.items() if not isinstance(answer, RankscopeError)}
    files = [path for path in files if path in known or path in found]
    if not files:
        raise problems[0]
    _refuse_copies({path: parts[0] for path, (_, parts) in found.items()})
    places = [keep(entry) for path in files if path not in found for entry in known[path]]
    taken = {(place.rank, place.segment) for place in places}
    ranks: list[tuple[Path, TraceIdentity, tuple[int, str] | None]] = []
    for path, (_, parts) in found.items():
        if path in given:  # the rank is for the file as a whole
            parts = parts[:1] if not parts[0].part else [TraceIdentity(None, "")]
        ranks += [(path, identity, _rank(path, identity, given, named)) for identity in parts]
    assumed = _assumed(
        {path: found[path][0] for path, _, rank in ranks if rank is None},
        {place.rank for place in places} | {rank[0] for _, _, rank in ranks if rank is not None},
        max(
            [world_size_of(entry) for entries in known.values() for entry in entries]
            + [identity.world_size or 1 for _, identity, _ in ranks]
        ),
    )
    for path, identity, known_rank in ranks:
        rank, source = known_rank or assumed[path]
        segment = next(n for n in range(len(files) + len(taken) + 1) if (rank, n) not in taken)
        taken.add((rank, segment))
        places.append(Assignment(path, rank, segment, source, identity.part))
    return sorted(places, key=lambda place: (place.rank, place.segment)), problems


def _identify(paths: list[Path]) -> list[tuple[str, list[TraceIdentity]] | RankscopeError]:
    """The format and the identities of each file. Runs in threads: exporting a report with nsys takes seconds."""

    def answer(path: Path) -> tuple[str, list[TraceIdentity]] | RankscopeError:
        try:
            with one_file(path):
                reader = find_reader(path)
                return reader.name, identities(reader, path)
        except RankscopeError as error:
            return error

    return side_by_side(answer, paths, _AT_A_TIME)


def keep(entry: SegmentEntry) -> Assignment:
    """The place that a segment has."""
    return Assignment(entry.source, entry.rank, entry.segment, entry.rank_source, entry.part)


def _rank(
    path: Path, identity: TraceIdentity, given: Mapping[Path, int], named: Mapping[Path, int]
) -> tuple[int, str] | None:
    if path in given:
        return given[path], _OPTION
    if identity.rank is not None:
        return identity.rank, identity.rank_source
    return (named[path], "manifest") if path in named else None


def _assumed(formats: Mapping[Path, str], ranks: set[int], world_size: int) -> dict[Path, tuple[int, str]]:
    """Ranks of files that do not say theirs, by file; `ranks` are those of the other files.

    A trace that is alone is rank 0. Memory snapshots and reports of nsys and ncu beside the traces of a single rank
    are of that rank, unless there are several of one kind and the job had several ranks. Anything else is an error.
    """
    assumed: dict[Path, tuple[int, str]] = {}
    if not ranks:
        traces = [path for path, kind in formats.items() if kind == "kineto"]
        first = traces or [path for path, kind in formats.items() if kind == "nsys"] or list(formats)
        if len(first) == 1:
            assumed[first[0]] = (0, ALONE)
            ranks = {0}
    kinds = Counter(formats.values())
    for path, kind in formats.items():
        if path in assumed:
            continue
        unambiguous = len(ranks) == 1 and kind != "kineto" and (world_size <= 1 or kinds[kind] == 1)
        if not unambiguous:
            raise _unknown_rank(path)
        assumed[path] = (min(ranks), BESIDE)
    return assumed


def _unknown_rank(path: Path) -> RankError:
    missing = next(
        (what for part, what in _TELLS_RANK.items() if part in path.name), "launcher's variables in it"
    )
    return RankError(
        f"cannot tell the rank of {path}",
        why=f"It has no {missing} and no rank in its name.",
        hint=f"Say it: rankscope ingest --rank 17={path}\n"
        f"  If it is of another run, open it alone: rankscope stats {path}",
    )


def _refuse_copies(identities: Mapping[Path, TraceIdentity]) -> None:
    seen: dict[str, Path] = {}
    for path, identity in identities.items():
        if identity.trace_id and identity.trace_id in seen:
            raise RankError(
                f"{seen[identity.trace_id]} and {path} are the same trace",
                why=f"Both carry the trace id {identity.trace_id}.",
                hint="Move one of them away, or give only the files you want.",
            )
        seen[identity.trace_id] = path


def refuse_overlaps(segments: Iterable[SegmentEntry]) -> None:
    """Raise an error if two files of one rank and format cover the same time: one of them is a duplicate.

    Files of different formats may overlap, since several tools can record the same run.
    """
    by_rank: dict[tuple[int, str], list[SegmentEntry]] = {}
    for entry in segments:
        if entry.has_times:
            by_rank.setdefault((entry.rank, entry.format), []).append(entry)
    for (rank, _), entries in by_rank.items():
        entries.sort(key=lambda e: e.unix_origin_ns)
        for before, after in pairwise(entries):
            if before.unix_origin_ns + before.manifest["end_ns"] > after.unix_origin_ns:
                raise RankError(
                    f"{before.source} and {after.source} are both of rank {rank}",
                    why="They cover the same time, so they are not successive recordings of one run.",
                    hint=f"Move one away, or give its rank: rankscope ingest --rank N={after.source}",
                )
