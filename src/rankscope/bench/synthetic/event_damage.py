"""Defects that change some events of a file and leave the others alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rankscope.bench.synthetic.trace_bytes import EventBytes, rewrite
from rankscope.bench.synthetic.tree_compiler import COMPUTE_STREAM

MOST_DAMAGED = 20
"""Damaged events per file, spread over it; truth.json lists them."""
_OP = b'    "ph": "X", "cat": "cpu_op"'
_KERNEL = b'    "ph": "X", "cat": "kernel"'
_ON_COMPUTE_STREAM = f'"tid": {COMPUTE_STREAM},'.encode()
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
