"""Damage that occurs in real trace files: the catalogue, which defects can be combined, and the damage itself.

Files are changed as bytes: an event is what stands between two separators of Kineto's text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rankscope.errors import UsageError
from rankscope_bench.synthetic.trace_files import read_bytes, write_pieces


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


# Kineto's text: the first event follows _HEAD_END, the last one ends with _TAIL.
_HEAD_END, _SEPARATOR, _TAIL = b'"traceEvents": [\n  {\n', b"\n  },\n  {\n", b"\n  }\n  ],\n"
_KEPT_PERCENT = 60
_MOST_DAMAGED = 20  # events of a file, spread over it; truth.json lists them
_TRACEBACK = b"""Traceback (most recent call last):
  File "train.py", line 88, in train_step
    loss.backward()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.
"""
_OTHER_JSON = (
    b'{"name": "left-pad", "version": "1.3.0", "scripts": {"test": "node test"}, "files": ["index.js"]}\n'
)


def damage(path: Path, defect: Defect) -> tuple[Path, dict[str, Any]]:
    """Apply one defect; returns the path of the damaged file and its record for truth.json."""
    kind = CATALOGUE[defect.name]
    record: dict[str, Any] = {"name": defect.name, "rank": defect.rank, "what": kind.what, "damaged": 0}
    if kind.scope == "name":
        if defect.name == "no-rank":
            return _remove_rank(path), record
        second = path.with_name(path.name.replace(".pt.trace", ".again.pt.trace"))
        shutil.copyfile(path, second)
        return path, {**record, "second_file": second.name}
    head, _, rest = read_bytes(path).partition(_HEAD_END)
    body, _, end = rest.rpartition(_TAIL)
    events = body.split(_SEPARATOR)
    total = len(events)
    whole = total * _KEPT_PERCENT // 100
    target = path
    if kind.scope == "event":
        record["events"] = _damage_events(defect.name, events)
        record["damaged"] = len(record["events"])
    elif defect.name == "truncated":
        record |= {"damaged": total - whole, "whole_events": whole}
        events[whole:] = [events[whole][: len(events[whole]) // 2]]
    elif defect.name == "truncated-gzip" and path.suffix != ".gz":
        target = path.with_name(f"{path.name}.gz")
    content = head + _HEAD_END + _SEPARATOR.join(events)
    if defect.name != "truncated":
        content += _TAIL + end
    if kind.scope == "file":
        content, record["damaged"] = _content(defect.name, content, total)
    path.unlink()
    write_pieces(target, [content])
    if defect.name == "truncated-gzip":
        os.truncate(target, target.stat().st_size * _KEPT_PERCENT // 100)
        unpacked = zlib.decompressobj(wbits=31).decompress(target.read_bytes())
        whole = unpacked.count(_SEPARATOR)
        record |= {"damaged": total - whole, "whole_events": whole}
    return target, record


def _content(name: str, content: bytes, total: int) -> tuple[bytes, int]:
    """What is in the file instead, and how many events are lost."""
    if name in ("one-line", "indented"):
        trace = json.loads(content)
        return json.dumps(trace, indent=2 if name == "indented" else None).encode(), 0
    if name == "empty-events":
        head, _, rest = content.partition(_HEAD_END)
        return head + b'"traceEvents": [\n  ],\n' + rest.rpartition(_TAIL)[2], total
    return {"empty": b"", "not-json": _TRACEBACK, "other-json": _OTHER_JSON}[name], total


def _remove_rank(path: Path) -> Path:
    """Remove distributedInfo, and rename the file to one without a rank."""
    content = read_bytes(path)
    identity = re.search(rb'"trace_id": "([0-9A-F]{8})', content)
    ending = "".join(path.suffixes[-4:]) if path.suffix == ".gz" else "".join(path.suffixes[-3:])
    target = path.with_name(f"trace-{identity[1].decode().lower() if identity else 'unknown'}{ending}")
    content = re.sub(rb' *"distributedInfo": .*?,\n', b"", content, count=1)
    content = re.sub(rb'"traceName": "[^"]*"', f'"traceName": "{target.name}"'.encode(), content)
    path.unlink()
    write_pieces(target, [content])
    return target


# Defects of some events

_OP = b'    "ph": "X", "cat": "cpu_op"'
_KERNEL = b'    "ph": "X", "cat": "kernel"'
_NAME = re.compile(rb'"name": "([^"]*)"')
_TS = re.compile(rb'"ts": ([0-9]+)\.([0-9]{3})')
_DURATION = re.compile(rb'"dur": ([0-9]+)\.([0-9]{3})')
_CORRELATION = re.compile(rb'"correlation": ([0-9]+)')
_LAUNCH = re.compile(
    rb'    "ph": (?:"X", "cat": "cuda_(?:runtime|driver)".*"correlation": ([0-9]+)|"s", "id": ([0-9]+),.*"ac2g")',
    re.DOTALL,
)
_NUMBER = re.compile(rb'("(?:ts|dur|pid|tid|External id|correlation|Ev Idx)": )(-?[0-9.]+)')
_FIELDS = {
    "dur": re.compile(rb', "dur": [0-9.]+'),
    "ts": re.compile(rb'"ts": [0-9.]+, '),
    "name": re.compile(rb', "name": "[^"]*"'),
    "cat": re.compile(rb', "cat": "[^"]*"'),
    "pid": re.compile(rb', "pid": [0-9]+'),
    "tid": re.compile(rb', "tid": [0-9]+'),
    "args": re.compile(rb',\n    "args": \{.*\}', re.DOTALL),
}
_NOT_NUMBERS = (
    (_DURATION, b'"dur": NaN', "dur = NaN"),
    (_DURATION, b'"dur": Infinity', "dur = Infinity"),
    (_TS, b'"ts": -Infinity', "ts = -Infinity"),
)

Edit = Callable[[bytes, int], tuple[bytes, str]]
"""(event, its number among the damaged ones) -> (new event, description of the change)."""


def _into_name(*insertions: bytes) -> Edit:
    def edit(event: bytes, turn: int) -> tuple[bytes, str]:
        insertion = insertions[turn % len(insertions)]
        return event.replace(b'"name": "', b'"name": "' + insertion, 1), f"name begins with {insertion!r}"

    return edit


def _not_a_number(event: bytes, turn: int) -> tuple[bytes, str]:
    pattern, text, what = _NOT_NUMBERS[turn % 3]
    return pattern.sub(text, event, count=1), what


def _without_field(event: bytes, turn: int) -> tuple[bytes, str]:
    field, pattern = list(_FIELDS.items())[turn % len(_FIELDS)]
    return pattern.sub(b"", event, count=1), f"no {field}"


_EDITS: dict[str, tuple[bytes, Edit]] = {
    "control-characters": (_OP, _into_name(b"\x01", b"\t", b"\n")),
    "invalid-utf8": (_OP, _into_name(b"\xff\xfe", b"\xc3")),
    "lone-surrogate": (_OP, _into_name(rb"\ud83d")),
    "unescaped-quotes": (_OP, _into_name(b'{"device": "cpu"} ')),
    "nan": (_OP, _not_a_number),
    "numbers-as-strings": (
        _KERNEL,
        lambda event, turn: (_NUMBER.sub(rb'\1"\2"', event), "its numbers are strings"),
    ),
    "missing-fields": (_OP, _without_field),
    "ts-zero": (_OP, lambda event, turn: (_TS.sub(b'"ts": 0.000', event, count=1), "ts = 0")),
    "negative-duration": (
        _KERNEL,
        lambda event, turn: (_DURATION.sub(rb'"dur": -\1.\2', event, count=1), "dur is negative"),
    ),
}


def _damage_events(defect: str, events: list[bytes]) -> list[dict[str, Any]]:
    """Apply one defect; returns the changed events, numbered as in the original file."""
    opening, edit = _EDITS.get(defect, (_KERNEL, None))
    choice = [index for index, event in enumerate(events) if event.startswith(opening)]
    following: dict[int, int] = {}
    if defect == "overlapping":
        following = dict(pairwise(index for index in choice if b'"tid": 7,' in events[index]))
        choice = list(following)
    count = min(_MOST_DAMAGED, len(choice))
    picked = [choice[(2 * i + 1) * len(choice) // (2 * count)] for i in range(count)]
    notes, orphans = [], set()
    for turn, index in enumerate(picked):
        event = events[index]
        if edit:
            events[index], change = edit(event, turn)
        elif defect == "overlapping":  # it ends inside the next kernel of its stream
            after = events[following[index]]
            duration = _ns(_TS, after) + _ns(_DURATION, after) // 2 - _ns(_TS, event)
            change = f'"dur": {duration // 1000}.{duration % 1000:03d}'
            events[index] = _DURATION.sub(change.encode(), event, count=1)
        else:
            launch = _CORRELATION.findall(event)[0]
            orphans.add(launch)
            change = f"launch {launch.decode()} left out"
        name = _NAME.search(event)
        notes.append({"index": index, "name": name[1].decode() if name else "", "change": change})
    if orphans:  # the call and its arrow
        launches = (_LAUNCH.match(event) for event in events)
        events[:] = [
            event
            for event, launch in zip(events, launches, strict=True)
            if not launch or (launch[1] or launch[2]) not in orphans
        ]
    return notes


def _ns(pattern: re.Pattern[bytes], event: bytes) -> int:
    ((whole, rest),) = pattern.findall(event)
    return int(whole) * 1000 + int(rest)
