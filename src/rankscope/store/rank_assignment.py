"""Assigns a rank and a segment number to each file. A rank that cannot be determined is an error, not a guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from rankscope.errors import RankError, RankscopeError
from rankscope.files import side_by_side
from rankscope.model import TIMELINE_FORMATS
from rankscope.readers import NodeLog, NodeReader, TraceIdentity, find_reader, identities, one_file
from rankscope.records import dataclass
from rankscope.store.discover import changed_ns
from rankscope.store.index import BY_ROLE, SegmentEntry, World, worlds_of
from rankscope.text.run_words import shell_word

ALONE = "alone"
BESIDE = "beside the only rank"
BY_GPU = "its GPU"
_OF_COMMUNICATOR = "communicator"
"""As readers of files of one NCCL communicator say."""
_ASSUMED = (ALONE, BESIDE, _OF_COMMUNICATOR)
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
    files: Iterable[Path],
    given: Mapping[Path, int],
    named: Mapping[Path, int],
    current: Sequence[SegmentEntry],
    outdated: Sequence[SegmentEntry],
) -> tuple[list[Assignment], dict[Path, NodeLog], list[RankscopeError]]:
    """A rank and segment for each file, the logs of nodes, and an error for each file that cannot be opened.

    Unchanged files in the store (`current`) keep theirs. `given` holds the ranks that the user gave, `named` those of
    the capture's manifest. The ranks of a node's log depend on the traces: they are told when these have been read
    (`assign_logs`).
    """
    files = list(files)
    sources = {entry.source for entry in (*current, *outdated)}
    is_complete = sources >= set(files)
    is_unchanged = sources == set(files) and not outdated
    worlds = worlds_of(files)
    stored: dict[Path, list[SegmentEntry]] = {}
    for entry in current:
        is_assumed = entry.rank_source in _ASSUMED and not is_complete
        depends = (entry.rank_source == BY_GPU or bool(worlds)) and not is_unchanged
        if not (is_assumed or depends or (entry.rank_source == BY_ROLE) > bool(worlds)):
            stored.setdefault(entry.source, []).append(entry)
    # A file that was replaced may be of another rank, unless the user gave it.
    named = {entry.source: entry.rank for entry in outdated if entry.rank_source == _OPTION} | {**named}
    new = [path for path in files if path not in stored or path in given]
    answers = dict(zip(new, _identify(new), strict=True)) if new else {}
    problems = [answer for answer in answers.values() if isinstance(answer, RankscopeError)]
    logs = {path: answer for path, answer in answers.items() if isinstance(answer, NodeLog)}
    identified = {path: answer for path, answer in answers.items() if isinstance(answer, tuple)}
    kept = [path for path in files if path in stored and path not in identified]
    problems += _leave_out_copies(identified, [entry for path in kept for entry in stored[path]])
    assigned = [assigned_before(entry) for path in kept for entry in stored[path]]
    if identified:
        assigned += _assign_new(_with_job_ranks(identified), assigned, given, named, stored, worlds, problems)
    if not assigned:
        raise problems[0] if problems else _no_trace_beside(next(iter(logs)))
    return sorted(assigned, key=lambda each: (each.rank, each.segment)), logs, problems


def _assign_new(
    identified: _Identified,
    assigned: Sequence[Assignment],
    given: Mapping[Path, int],
    named: Mapping[Path, int],
    stored: Mapping[Path, Sequence[SegmentEntry]],
    worlds: Mapping[Path, World],
    problems: list[RankscopeError],
) -> Iterator[Assignment]:
    """The same for files that are not in the store; what cannot be assigned is added to the problems."""
    ranks: list[tuple[Path, TraceIdentity, tuple[int, str] | None]] = []
    for path, (_, parts) in identified.items():
        if path in given:  # the rank is for the file as a whole
            parts = parts[:1] if not parts[0].part else [TraceIdentity(None, "")]
        ranks += [(path, identity, _rank(path, identity, given, named)) for identity in parts]
    if worlds:
        ranks = _after_other_worlds(ranks, worlds)
    without_rank = {path: identified[path][0] for path, _, rank in ranks if rank is None}
    assumed = _assumed(
        without_rank,
        {each.rank for each in assigned} | {rank[0] for _, _, rank in ranks if rank is not None},
        max(
            [entry.world_size for entries in stored.values() for entry in entries]
            + [identity.world_size or 1 for _, identity, _ in ranks]
        ),
    )
    unknown = [_unknown_rank(path) for path in without_rank if path not in assumed]
    if unknown and 2 * len(unknown) >= len(identified) + len({each.path for each in assigned}):
        raise unknown[0]
    problems += unknown
    taken = {(each.rank, each.segment) for each in assigned}
    for path, identity, told in ranks:
        if place := told or assumed.get(path):
            rank, source = place
            yield Assignment(path, rank, _free_segment(rank, taken), source, identity.part)


def _after_other_worlds(
    ranks: Sequence[tuple[Path, TraceIdentity, tuple[int, str] | None]], worlds: Mapping[Path, World]
) -> list[tuple[Path, TraceIdentity, tuple[int, str] | None]]:
    """The same, with the ranks of each world after those of the worlds before it. A file that is alone in its world
    needs no rank; a rank that the user gave is that of the run.
    """
    files = Counter(worlds[path] for path, _, _ in ranks)
    in_world = [told or ((0, ALONE) if files[worlds[path]] == 1 else None) for path, _, told in ranks]
    sizes = dict.fromkeys(sorted(files), 0)
    for (path, identity, _), told in zip(ranks, in_world, strict=True):
        if told is not None and told[1] != _OPTION:
            sizes[worlds[path]] = max(sizes[worlds[path]], identity.world_size or 0, told[0] + 1)
    first = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    return [
        (path, identity, told and (told if told[1] == _OPTION else (first[worlds[path]] + told[0], BY_ROLE)))
        for (path, identity, _), told in zip(ranks, in_world, strict=True)
    ]


def _free_segment(rank: int, taken: set[tuple[int, int]]) -> int:
    """The first number of a segment that no other file of this rank has; it is taken now."""
    segment = next(number for number in range(len(taken) + 1) if (rank, number) not in taken)
    taken.add((rank, segment))
    return segment


def assign_logs(
    logs: Mapping[Path, NodeLog],
    given: Mapping[Path, int],
    assigned: Iterable[Assignment],
    entries: Sequence[SegmentEntry],
) -> tuple[list[Assignment], list[RankscopeError]]:
    """Each rank's part of the nodes' logs, after the traces, and an error for each log whose ranks cannot be told."""
    from rankscope.store.node_logs import place_logs  # late: few runs have such logs

    parts, problems = place_logs(logs, entries, given)
    taken = {(each.rank, each.segment) for each in assigned}
    return [
        Assignment(path, rank, _free_segment(rank, taken), BY_GPU, part) for path, rank, part in parts
    ], problems


def _no_trace_beside(path: Path) -> RankError:
    return RankError(
        f"{path} has counters of GPUs, and there is no trace",
        why="Which rank used which GPU, and when, is known from the traces of the same job.",
        hint="Put it into the folder of the run and open that: rankscope stats FOLDER -r gpu",
    )


_Identified = dict[Path, tuple[str, list[TraceIdentity]]]
"""The format of a file, and whose it is: several ranks may have a part of it."""


def _with_job_ranks(identified: _Identified) -> _Identified:
    """The same, where each file is of one communicator: the rank in the largest one is that in the job.

    A process has a file for each of its communicators. One without a file of the largest is of no known rank, and so
    are two processes with the same number, on different nodes.
    """
    files = [parts[0] for _, parts in identified.values() if parts[0].communicator]
    members: dict[str, set[int | None]] = {}
    for file in files:
        members.setdefault(file.communicator, set()).add(file.rank)
    if len(members) < 2:
        return identified
    world = max(members, key=lambda name: (len(members[name]), name))
    ranks: dict[str, set[int | None]] = {}
    for file in files:
        if file.communicator == world:
            ranks.setdefault(file.process, set()).add(file.rank)

    def of_job(file: TraceIdentity) -> TraceIdentity:
        if not file.communicator or file.communicator == world:
            return file
        (rank, *others) = ranks.get(file.process, {None})
        return (
            replace(file, rank=None, rank_source="") if rank is None or others else replace(file, rank=rank)
        )

    return {path: (kind, [of_job(part) for part in parts]) for path, (kind, parts) in identified.items()}


def _identify(paths: list[Path]) -> list[tuple[str, list[TraceIdentity]] | NodeLog | RankscopeError]:
    """The format and the identities of each file. Runs in threads: exporting a report with nsys takes seconds."""

    def answer(path: Path) -> tuple[str, list[TraceIdentity]] | NodeLog | RankscopeError:
        try:
            with one_file(path):
                reader = find_reader(path)
                if isinstance(reader, NodeReader):
                    return reader.log(path)
                return reader.name, identities(reader, path)
        except RankscopeError as error:
            return error

    return side_by_side(answer, paths, _AT_A_TIME)


def assigned_before(entry: SegmentEntry) -> Assignment:
    """What a segment was assigned when it was read."""
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
    are of that rank, unless there are several of one kind and the job had several ranks. No others are assumed.
    """
    assumed: dict[Path, tuple[int, str]] = {}
    if not ranks:
        of_kind = ([path for path, kind in formats.items() if kind == wanted] for wanted in TIMELINE_FORMATS)
        first = next(filter(None, of_kind), list(formats))
        if len(first) == 1:
            assumed[first[0]] = (0, ALONE)
            ranks = {0}
    kinds = Counter(formats.values())
    for path, kind in formats.items():
        unambiguous = len(ranks) == 1 and kind != "kineto" and (world_size <= 1 or kinds[kind] == 1)
        if path not in assumed and unambiguous:
            assumed[path] = (min(ranks), BESIDE)
    return assumed


def _unknown_rank(path: Path) -> RankError:
    missing = next(
        (what for part, what in _TELLS_RANK.items() if part in path.name), "launcher's variables in it"
    )
    return RankError(
        f"cannot tell the rank of {path}",
        why=f"It has no {missing} and no rank in its name.",
        hint=f"Say it: rankscope ingest --rank {shell_word(f'17={path}')}\n"
        f"  If it is of another run, open it alone: rankscope stats {shell_word(path)}",
    )


def _leave_out_copies(identified: _Identified, stored: Iterable[SegmentEntry]) -> list[RankscopeError]:
    """Remove the files that have the same trace as another one; one error for each.

    What is in the store stays, else the oldest: that is the original.
    """
    originals = {str(entry.header.get("trace_id", "")): entry.source for entry in stored}
    problems: list[RankscopeError] = []
    for path in sorted(identified, key=changed_ns):
        trace_id = identified[path][1][0].trace_id
        original = originals.setdefault(trace_id, path) if trace_id else path
        if original != path:
            del identified[path]
            problems.append(
                RankError(
                    f"{path} is not read",
                    why=f"It is the same trace as {original}: both carry the trace id {trace_id}.",
                    hint="Move one of them away, or give only the files you want.",
                )
            )
    return problems
