"""Damage that occurs in real trace files: the catalogue, and which defects can be combined.

event_damage and file_damage apply it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.errors import UsageError


@dataclass(frozen=True)
class Defect:
    """One kind of damage to one rank's file."""

    name: str
    """One of CATALOGUE."""
    rank: int = 0
    """Whose file is damaged."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a defect does, and to how much of a file."""

    what: str
    scope: str
    """event (some events change), cut (the end is missing), file (all of it changes), name (the file's name or
    rank changes)."""


CATALOGUE = {
    "truncated": Kind(scope="cut", what="the file ends in the middle of an event, as when a job is killed"),
    "truncated-gzip": Kind(scope="cut", what="the file is a .json.gz whose compressed bytes end too early"),
    "control-characters": Kind(scope="event", what="raw control characters (01, tab, newline) inside names"),
    "invalid-utf8": Kind(scope="event", what="bytes inside names that are not UTF-8 (FF FE, a lone C3)"),
    "lone-surrogate": Kind(scope="event", what="half of a surrogate pair, \\ud83d, inside names"),
    "nan": Kind(scope="event", what="NaN, Infinity and -Infinity in dur and ts"),
    "unescaped-quotes": Kind(
        scope="event", what='quotes inside names that are not escaped: {"device": "cpu"}'
    ),
    "numbers-as-strings": Kind(
        scope="event", what='ts, dur, pid, tid and ids written as "12.5"; values are right'
    ),
    "missing-fields": Kind(
        scope="event", what="events without dur, ts, name, cat, pid, tid or args, in turn"
    ),
    "ts-zero": Kind(scope="event", what="events with ts 0"),
    "duplicate-rank": Kind(scope="name", what="a second file, with another name, that claims the same rank"),
    "empty": Kind(scope="file", what="a file of no bytes"),
    "empty-events": Kind(scope="file", what="header and end are there, traceEvents is []"),
    "not-json": Kind(scope="file", what="a Python traceback where the trace should be"),
    "other-json": Kind(scope="file", what="good JSON that is no trace"),
    "one-line": Kind(scope="file", what="all on one line, as json.dump writes it; values are right"),
    "indented": Kind(scope="file", what="every value on its own line, json.dump(indent=2); values are right"),
    "no-rank": Kind(scope="name", what="no distributedInfo, and no rank in the file's name"),
    "overlapping": Kind(scope="event", what="kernels of one stream that run into the next one"),
    "negative-duration": Kind(scope="event", what="events that end before they start"),
    "no-launch": Kind(scope="event", what="kernels whose launch call, and its arrow, is not in the file"),
}


def parse_defect(text: str) -> Defect:
    """'truncated' or 'truncated@3'."""
    name, at, rank = text.partition("@")
    if name not in CATALOGUE or (at and not rank.isdecimal()):
        raise UsageError(
            f"'{text}' is not a defect",
            why=f"There are: {', '.join(CATALOGUE)}; NAME@RANK damages that rank's file instead of rank 0's.",
            hint="See: rankscope bench synthetic --defect list",
        )
    return Defect(name, int(rank) if at else 0)


def check_combination(defects: Iterable[Defect]) -> None:
    """Refuse a second defect on a file that is replaced as a whole, and cutting or renaming a file twice."""
    by_rank: dict[int, list[str]] = {}
    for defect in defects:
        by_rank.setdefault(defect.rank, []).append(defect.name)
    for rank, names in by_rank.items():
        scopes = [CATALOGUE[name].scope for name in names]
        alone = scopes.count("file") and len([scope for scope in scopes if scope != "name"]) > 1
        twice = scopes.count("cut") > 1 or scopes.count("name") > 1 or len(set(names)) < len(names)
        if alone or twice:
            raise UsageError(
                f"rank {rank}'s file cannot have all of: {', '.join(names)}",
                why="Defects of the whole file exclude all others; a file is cut or renamed only once.",
                hint="Give them to different ranks: --defect NAME@RANK",
            )


def in_order(defects: Sequence[Defect]) -> list[Defect]:
    """Events first, then whole files, then the cut, then the name."""
    order = ("event", "file", "cut", "name")
    return sorted(defects, key=lambda defect: order.index(CATALOGUE[defect.name].scope))
