"""Damage that occurs in real trace files: the catalogue, which defects can be combined, and the damage itself.

Files are changed as bytes, event by event, without parsing.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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


# Files as bytes

_READ_BYTES = 1 << 22
# Kineto's text: the first event follows _HEAD_END, the last one ends with _TAIL.
_HEAD_END, _SEPARATOR, _TAIL = b'"traceEvents": [\n  {\n', b"\n  },\n  {\n", b"\n  }\n  ],\n"


def is_gzip(path: Path) -> bool:
    return path.name.endswith(".gz")


def open_bytes(path: Path) -> IO[bytes]:
    """The text of a trace, decompressed."""
    stream: IO[bytes] = _gzip_file()(path, "rb") if is_gzip(path) else path.open("rb")
    return stream


def _gzip_file() -> Any:
    """isal's class where it is installed: several times as fast as zlib's."""
    try:
        from isal.igzip import IGzipFile
    except ImportError:
        return gzip.GzipFile
    return IGzipFile


def write_pieces(path: Path, pieces: Iterable[bytes], on_bytes: Callable[[int], None] | None = None) -> int:
    """Write a file, compressed if its name ends in .gz; returns the bytes before compression.

    The gzip header has no file name and time 0, so that the same plan gives the same bytes.
    """
    total = 0
    with path.open("wb") as raw:
        sink: IO[bytes] = raw
        if is_gzip(path):
            sink = _gzip_file()(filename="", mode="wb", compresslevel=1, fileobj=raw, mtime=0)
        for piece in pieces:
            sink.write(piece)
            total += len(piece)
            if on_bytes:
                on_bytes(len(piece))
        if sink is not raw:
            sink.close()
    return total


class EventBytes:
    """The events of an undamaged file in Kineto's layout, one by one; ``head`` and ``tail`` are set meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head = b""
        self.tail = b""

    def __iter__(self) -> Iterator[bytes]:
        with open_bytes(self.path) as stream:
            rest = stream.read(_READ_BYTES)
            head, _, rest = rest.partition(_HEAD_END)
            self.head = head + _HEAD_END
            while more := stream.read(_READ_BYTES):
                *events, rest = (rest + more).split(_SEPARATOR)
                yield from events
            *events, rest = rest.split(_SEPARATOR)
            yield from events
            last, tail, end = rest.rpartition(_TAIL)
            self.tail = tail + end
            yield last

    def count(self) -> int:
        return sum(1 for _ in self)

    def before(self) -> dict[str, Any]:
        """The fields before traceEvents; known from the first event on."""
        fields = self.head[: self.head.rindex(b'"traceEvents"')].rstrip().removesuffix(b",")
        before: dict[str, Any] = json.loads(fields + b"}")
        return before

    def after(self) -> dict[str, Any]:
        """The fields after traceEvents; known after the last event."""
        after: dict[str, Any] = json.loads(b"{" + self.tail.removeprefix(_TAIL))
        return after


def rewrite(path: Path, target: Path, edit: Callable[[Iterator[bytes]], Iterator[bytes]]) -> None:
    """Rewrite a file with its events passed through ``edit``; the layout stays Kineto's."""
    events = EventBytes(path)

    def pieces() -> Iterator[bytes]:
        opening = b""
        for event in edit(iter(events)):
            yield opening or events.head
            yield event
            opening = _SEPARATOR
        yield events.tail

    replace_with(path, target, pieces())


def replace_with(path: Path, target: Path, pieces: Iterable[bytes]) -> None:
    """Write ``target`` and remove ``path``, which may be the same file and may be read meanwhile."""
    # The ending stays: it selects compression.
    part = target.with_name(f"part-{target.name}")
    try:
        write_pieces(part, pieces)
        path.unlink()
        part.rename(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


# Defects of some events

MOST_DAMAGED = 20
"""Damaged events per file, spread over it; truth.json lists them."""
_OP = b'    "ph": "X", "cat": "cpu_op"'
_KERNEL = b'    "ph": "X", "cat": "kernel"'
_ON_COMPUTE_STREAM = b'"tid": 7,'
_NAME = re.compile(rb'"name": "([^"]*)"')
_TS = re.compile(rb'"ts": ([0-9]+)\.([0-9]{3})')
_DURATION = re.compile(rb'"dur": ([0-9]+)\.([0-9]{3})')
_CORRELATION = re.compile(rb'"correlation": ([0-9]+)')
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

Edit = Callable[[bytes, int], tuple[bytes, str]]
"""(event, its number among the damaged ones) -> (new event, description of the change)."""


def _into_name(*insertions: bytes) -> Edit:
    def edit(event: bytes, turn: int) -> tuple[bytes, str]:
        insertion = insertions[turn % len(insertions)]
        return event.replace(b'"name": "', b'"name": "' + insertion, 1), f"name begins with {insertion!r}"

    return edit


def _not_a_number(event: bytes, turn: int) -> tuple[bytes, str]:
    field, value = (("dur", "NaN"), ("dur", "Infinity"), ("ts", "-Infinity"))[turn % 3]
    pattern = _DURATION if field == "dur" else _TS
    return pattern.sub(f'"{field}": {value}'.encode(), event, count=1), f"{field} = {value}"


def _as_strings(event: bytes, turn: int) -> tuple[bytes, str]:
    return _NUMBER.sub(rb'\1"\2"', event), "its numbers are strings"


def _without_field(event: bytes, turn: int) -> tuple[bytes, str]:
    field, pattern = list(_FIELDS.items())[turn % len(_FIELDS)]
    return pattern.sub(b"", event, count=1), f"no {field}"


def _at_zero(event: bytes, turn: int) -> tuple[bytes, str]:
    return _TS.sub(b'"ts": 0.000', event, count=1), "ts = 0"


def _negative(event: bytes, turn: int) -> tuple[bytes, str]:
    return _DURATION.sub(rb'"dur": -\1.\2', event, count=1), "dur is negative"


_EDITS: dict[str, tuple[bytes, Edit]] = {
    "control-characters": (_OP, _into_name(b"\x01", b"\t", b"\n")),
    "invalid-utf8": (_OP, _into_name(b"\xff\xfe", b"\xc3")),
    "lone-surrogate": (_OP, _into_name(rb"\ud83d")),
    "unescaped-quotes": (_OP, _into_name(b'{"device": "cpu"} ')),
    "nan": (_OP, _not_a_number),
    "numbers-as-strings": (_KERNEL, _as_strings),
    "missing-fields": (_OP, _without_field),
    "ts-zero": (_OP, _at_zero),
    "negative-duration": (_KERNEL, _negative),
}


class _Damage:
    """One defect applied to a file: selects the events and notes the changes."""

    def __init__(self, path: Path, wanted: Callable[[bytes], bool]) -> None:
        self.wanted = wanted
        total = sum(map(wanted, EventBytes(path)))
        count = min(MOST_DAMAGED, total)
        self._picked = {(2 * i + 1) * total // (2 * count) for i in range(count)}
        self._seen = 0
        self.notes: list[dict[str, Any]] = []

    def takes(self, event: bytes) -> bool:
        if not self.wanted(event):
            return False
        self._seen += 1
        return self._seen - 1 in self._picked

    def note(self, index: int, event: bytes, change: str) -> None:
        name = _NAME.search(event)
        self.notes.append({"index": index, "name": name[1].decode() if name else "", "change": change})


def damage_events(path: Path, defect: str) -> list[dict[str, Any]]:
    """Apply one defect; returns the changed events, numbered as in the original file."""
    if defect == "overlapping":
        damage = _Damage(path, lambda event: event.startswith(_KERNEL) and _ON_COMPUTE_STREAM in event)
        rewrite(path, path, lambda events: _overlapping(events, damage))
    elif defect == "no-launch":
        damage = _Damage(path, lambda event: event.startswith(_KERNEL))
        rewrite(path, path, lambda events: _without_launch(events, damage))
    else:
        opening, edit = _EDITS[defect]
        damage = _Damage(path, lambda event: event.startswith(opening))
        rewrite(path, path, lambda events: _edited(events, damage, edit))
    return damage.notes


def _edited(events: Iterator[bytes], damage: _Damage, edit: Edit) -> Iterator[bytes]:
    for index, event in enumerate(events):
        if damage.takes(event):
            changed, what = edit(event, len(damage.notes))
            damage.note(index, event, what)
            yield changed
        else:
            yield event


def _nanoseconds(pattern: re.Pattern[bytes], event: bytes) -> int:
    match = pattern.search(event)
    assert match, event
    return int(match[1]) * 1000 + int(match[2])


def _overlapping(events: Iterator[bytes], damage: _Damage) -> Iterator[bytes]:
    """Hold a picked kernel back until the next one of its stream, and make it end inside that one."""
    held: list[bytes] = []
    held_index = 0
    for index, event in enumerate(events):
        picked = damage.takes(event)
        if held and damage.wanted(event):
            middle = _nanoseconds(_TS, event) + _nanoseconds(_DURATION, event) // 2
            duration = middle - _nanoseconds(_TS, held[0])
            text = f'"dur": {duration // 1000}.{duration % 1000:03d}'
            damage.note(held_index, held[0], text)
            yield _DURATION.sub(text.encode(), held[0], count=1)
            yield from held[1:]
            held = []
        if held or picked:
            held_index = held_index if held else index
            held.append(event)
        else:
            yield event
    yield from held


def _without_launch(events: Iterator[bytes], damage: _Damage) -> Iterator[bytes]:
    """Leave out the launches of picked kernels. Kineto writes a kernel before its launch: one pass is enough."""
    orphans: set[bytes] = set()
    for index, event in enumerate(events):
        if damage.takes(event):
            correlation = _CORRELATION.search(event)
            assert correlation, event
            orphans.add(correlation[1])
            damage.note(index, event, f"launch {correlation[1].decode()} left out")
        if not _is_launch_of(orphans, event):
            yield event


def _is_launch_of(orphans: set[bytes], event: bytes) -> bool:
    if event.startswith((b'    "ph": "X", "cat": "cuda_runtime"', b'    "ph": "X", "cat": "cuda_driver"')):
        correlation = _CORRELATION.search(event)
        return correlation is not None and correlation[1] in orphans
    arrow = re.match(rb'    "ph": "s", "id": ([0-9]+),.*"cat": "ac2g"', event, re.DOTALL)
    return arrow is not None and arrow[1] in orphans


# Defects of whole files

_KEPT_PERCENT = 60
_HEAD_BYTES, _TAIL_BYTES = 1 << 16, 1 << 10  # enough for the header and the last lines
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
    record: dict[str, Any] = {"name": defect.name, "rank": defect.rank, "what": kind.what}
    if kind.scope == "event":
        record["events"] = damage_events(path, defect.name)
        record["damaged"] = len(record["events"])
    elif kind.scope == "file":
        record["damaged"] = EventBytes(path).count() if defect.name not in _HARMLESS else 0
        replace_with(path, path, _NEW_CONTENT[defect.name](path))
    elif defect.name == "truncated":
        record |= _truncate(path)
    elif defect.name == "truncated-gzip":
        path, facts = _truncate_gzip(path)
        record |= facts
    elif defect.name == "no-rank":
        path = _remove_rank(path)
        record["damaged"] = 0
    else:
        second = path.with_name(path.name.replace(".pt.trace", ".again.pt.trace"))
        shutil.copyfile(path, second)
        record |= {"damaged": 0, "second_file": second.name}
    return path, record


def _truncate(path: Path) -> dict[str, Any]:
    total = EventBytes(path).count()
    whole = total * _KEPT_PERCENT // 100

    def pieces() -> Iterator[bytes]:
        events = EventBytes(path)
        for index, event in enumerate(events):
            yield _SEPARATOR if index else events.head
            if index == whole:
                yield event[: len(event) // 2]
                return
            yield event

    replace_with(path, path, pieces())
    return {"damaged": total - whole, "whole_events": whole}


def _truncate_gzip(path: Path) -> tuple[Path, dict[str, Any]]:
    total = EventBytes(path).count()
    if not is_gzip(path):
        packed = path.with_name(f"{path.name}.gz")
        rewrite(path, packed, lambda events: events)
        path = packed
    os.truncate(path, path.stat().st_size * _KEPT_PERCENT // 100)
    whole = _events_in_broken_gzip(path)
    return path, {"damaged": total - whole, "whole_events": whole}


def _events_in_broken_gzip(path: Path) -> int:
    """How many whole events can still be decompressed."""
    unpack = zlib.decompressobj(wbits=31)
    count, rest = 0, b""
    with path.open("rb") as raw:
        while piece := raw.read(1 << 20):
            rest += unpack.decompress(piece)
            count += rest.count(_SEPARATOR)
            _, _, rest = rest.rpartition(_SEPARATOR)
    return count


def _remove_rank(path: Path) -> Path:
    """Remove distributedInfo, and rename the file to one without a rank."""
    ending = ".pt.trace.json.gz" if is_gzip(path) else ".pt.trace.json"
    with open_bytes(path) as stream:
        identity = re.search(rb'"trace_id": "([0-9A-F]{8})', stream.read(_HEAD_BYTES))
    target = path.with_name(f"trace-{identity[1].decode().lower() if identity else 'unknown'}{ending}")
    own_name = f'"traceName": "{target.name}"'.encode()

    def pieces() -> Iterator[bytes]:
        with open_bytes(path) as stream:
            held = re.sub(rb' *"distributedInfo": .*?,\n', b"", stream.read(_HEAD_BYTES), count=1)
            while piece := stream.read(1 << 20):
                yield held[:-_TAIL_BYTES]
                held = held[-_TAIL_BYTES:] + piece
            yield re.sub(rb'"traceName": "[^"]*"', own_name, held)

    replace_with(path, target, pieces())
    return target


def _one_line(path: Path) -> Iterator[bytes]:
    """As json.dump(trace, file) would write it, without loading the whole trace."""
    events = EventBytes(path)
    for index, event in enumerate(events):
        yield b", " if index else json.dumps(events.before())[:-1].encode() + b', "traceEvents": ['
        yield json.dumps(json.loads(b"{" + event + b"}")).encode()
    yield b"], " + json.dumps(events.after())[1:].encode()


def _indented(path: Path) -> Iterator[bytes]:
    """As json.dump(trace, file, indent=2) would write it."""
    events = EventBytes(path)

    def shifted(value: object, blanks: int) -> str:
        return json.dumps(value, indent=2).replace("\n", "\n" + " " * blanks)

    for index, event in enumerate(events):
        if not index:
            yield json.dumps(events.before(), indent=2)[:-2].encode() + b',\n  "traceEvents": ['
        yield b",\n    " if index else b"\n    "
        yield shifted(json.loads(b"{" + event + b"}"), 4).encode()
    yield b"\n  ],\n" + json.dumps(events.after(), indent=2)[2:].encode()


def _without_events(path: Path) -> Iterator[bytes]:
    events = EventBytes(path)
    events.count()
    yield events.head.removesuffix(b"  {\n")
    yield events.tail.removeprefix(b"\n  }\n")


_NEW_CONTENT: dict[str, Callable[[Path], Iterator[bytes]]] = {
    "empty": lambda path: iter(()),
    "empty-events": _without_events,
    "not-json": lambda path: iter((_TRACEBACK,)),
    "other-json": lambda path: iter((_OTHER_JSON,)),
    "one-line": _one_line,
    "indented": _indented,
}
_HARMLESS = ("one-line", "indented")
