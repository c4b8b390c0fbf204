"""Defects of whole files: another layout or content, a missing end, a name without a rank."""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rankscope.bench.synthetic.defects import CATALOGUE, Defect
from rankscope.bench.synthetic.event_damage import damage_events
from rankscope.bench.synthetic.kineto_text import SEPARATOR
from rankscope.bench.synthetic.trace_bytes import EventBytes, is_gzip, open_bytes, replace_with, rewrite

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
            yield SEPARATOR.encode() if index else events.head
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
    unpack, separator = zlib.decompressobj(wbits=31), SEPARATOR.encode()
    count, rest = 0, b""
    with path.open("rb") as raw:
        while piece := raw.read(1 << 20):
            rest += unpack.decompress(piece)
            count += rest.count(separator)
            _, _, rest = rest.rpartition(separator)
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
