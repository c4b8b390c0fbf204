"""Which rank and which segment each file is. Nothing is guessed: what cannot be told is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rankscope.errors import RankError
from rankscope.readers import TraceIdentity, find_reader
from rankscope.store.layout import Index, SegmentEntry


@dataclass(frozen=True)
class Assignment:
    """One file with its place in the run."""

    path: Path
    rank: int
    segment: int
    rank_source: str


def assign(files: Iterable[Path], said: Mapping[Path, int], index: Index) -> list[Assignment]:
    """A rank and segment for each file; files the index knows keep theirs."""
    files = list(files)
    known = {entry.source: entry for entry in index.segments}
    identities = {
        path: find_reader(path).identify(path) for path in files if path not in known or path in said
    }
    _refuse_copies(identities)
    places = [_keep(known[path]) for path in files if path not in identities]
    taken = {(place.rank, place.segment) for place in places}
    for path, identity in identities.items():
        rank, source = _rank(path, identity, said, alone=len(files) == 1)
        segment = next(n for n in range(len(files) + len(taken) + 1) if (rank, n) not in taken)
        taken.add((rank, segment))
        places.append(Assignment(path, rank, segment, source))
    return sorted(places, key=lambda place: (place.rank, place.segment))


def _keep(entry: SegmentEntry) -> Assignment:
    return Assignment(entry.source, entry.rank, entry.segment, entry.rank_source)


def _rank(path: Path, identity: TraceIdentity, said: Mapping[Path, int], alone: bool) -> tuple[int, str]:
    if path in said:
        return said[path], "option"
    if identity.rank is not None:
        return identity.rank, identity.rank_source
    if alone:
        return 0, "alone"
    raise RankError(
        f"cannot tell the rank of {path}",
        why="It has no distributedInfo and no rank in its name.",
        hint=f"Say it: rankscope ingest --rank 17={path}",
    )


def _refuse_copies(identities: Mapping[Path, TraceIdentity]) -> None:
    seen: dict[str, Path] = {}
    for path, identity in identities.items():
        if identity.trace_id and identity.trace_id in seen:
            raise RankError(
                f"{seen[identity.trace_id]} and {path} are the same trace",
                why=f"Both carry the trace id {identity.trace_id}.",
                hint="Move one of them away, or name just the files you want.",
            )
        seen[identity.trace_id] = path


def refuse_overlaps(segments: Iterable[SegmentEntry]) -> None:
    """Two files of one rank must be cycles that follow each other; two of the same time are duplicates."""
    by_rank: dict[int, list[SegmentEntry]] = {}
    for entry in segments:
        by_rank.setdefault(entry.rank, []).append(entry)
    for rank, entries in by_rank.items():
        entries.sort(key=lambda e: e.unix_origin_ns)
        for before, after in pairwise(entries):
            if before.unix_origin_ns + before.manifest["end_ns"] > after.unix_origin_ns:
                raise RankError(
                    f"{before.source} and {after.source} are both of rank {rank}",
                    why="They cover the same time, so they are not two cycles of one run.",
                    hint=f"Move one away, or say whose it is: rankscope ingest --rank N={after.source}",
                )
