"""A recorded training step, cut into segments whose text can be written again and again with other times and ids.

`recorded_step.txt` has the events of one step in Kineto's text: of a GPT with one layer ("gpt"; names, shapes, launch
configurations and memory are those of torch 2.13 with bf16 autocast on an H200, times are rounded) and the bare events
of a simulated cluster ("plain"). A line `## gpt.forward` begins a segment. Line breaks, runs of blanks and the order of
keys are Kineto's, because a fast reader may depend on them.

A segment has points: the moments of its host events in order, then the starts and then the ends of its work on the GPU.
Every time in its text is one of them; every id, address and byte count is a counter. `render` fills in many
repetitions at once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
PID, AUTOGRAD_TID = 4100, 4127
"""In the recorded text; main thread and process have the same number, the GPU is 0."""
_BEGIN_NS = 1_000_000
"""Every segment begins at this time of the recording."""
_SECTIONS = {
    "cpu_op": "ops",
    "user_annotation": "ops",
    "fwdbwd": "ops",
    "cpu_instant_event": "memory",
    "python_function": "python",
    "gpu_user_annotation": "annotations",
}
# What changes from one repetition to the next: times, and the counters with the number they have in the recording.
_NUMBER = re.compile(
    r'"(?P<key>ts|dur|memory bandwidth \(GB/s\)|External id|correlation|id|Ev Idx|Sequence number|Python id|'
    r"Python parent id|Python module id|Total Allocated|Total Reserved|Bytes|Addr|Seq|Src Rank|Dst Rank|"
    r'In msg nelems|Out msg nelems)": (?P<value>-?[0-9.]+)'
    r'|(?P<text>ProfilerStep#|"nn\.Module: \w+_|nvjet_sm90_(?:for|back)ward_|_apply_kernel_|'
    r'"Input Dims": \[\[(?=1111\]))'
    r"(?P<number>\d+)"
)
_COUNTERS = {
    "External id": ("external", 1),
    "correlation": ("correlation", 7001),
    "Ev Idx": ("event", 0),
    "Sequence number": ("sequence", 0),
    "Python id": ("python", 2),
    "Python parent id": ("python", 2),
    "Python module id": ("layer", 0),
    "Total Allocated": ("allocated", 0),
    "Total Reserved": ("reserved", 4 << 30),
    "Bytes": ("bytes", 0),
    "Addr": ("address", 0),
    "Seq": ("seq", 0),
    "Src Rank": ("peer", 1),
    "Dst Rank": ("peer", 1),
    "In msg nelems": ("in_nelems", 1111),
    '"Input Dims": [[': ("in_nelems", 1111),
    "Out msg nelems": ("out_nelems", 2222),
    "ProfilerStep#": ("step", 0),
}
"""By key or text before the number: the counter, and the recorded number that stands for 0."""
_ADDRESSES_PER_LAYER = 64 << 28


@dataclass(frozen=True, kw_only=True)
class Section:
    """The text one repetition adds to one section of a file."""

    form: str
    columns: int
    times: Integers
    """Rows: column, point, the point it counts from (-1: the clock's zero), extra ns."""
    rates: Integers
    """Rows: column, bytes, first point, last point."""
    counters: Mapping[str, Integers]
    """By name, rows: column, offset."""
    indexed: int
    """How many of its events have an Ev Idx."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Some events that are repeated together."""

    name: str
    sections: Mapping[str, Section]
    phases: Mapping[str, Counter[str]]
    """By section: its events by ph."""
    on_autograd: bool
    increments: Integers
    """From each host point to the next, in ns."""
    longest_gap: int
    """The host point that a pause of the host delays, with all that follow."""
    launches: Integers
    """The host points at which work on the GPU is launched."""
    gpu_ns: Integers
    gpu_names: Sequence[str]
    gpu_categories: Sequence[str]
    stream: int
    """Of its work on the GPU; 0: it has none."""
    strides: Mapping[str, int]
    """How far each counter advances from one repetition to the next."""
    memory: Integers
    """Rows: host point, bytes then allocated; without those of earlier segments."""
    flops: Mapping[str, int]

    def events(self, with_stack: bool) -> Counter[str]:
        """One repetition's events by ph."""
        counts = (count for name, count in self.phases.items() if with_stack or name != "python")
        return sum(counts, Counter())

    def bound(self, change: Callable[[str], str]) -> Segment:
        """The segment with the constants of one rank in its text."""
        sections = {
            name: replace(section, form=change(section.form)) for name, section in self.sections.items()
        }
        return replace(self, sections=sections)


@cache
def recording() -> dict[str, str]:
    """The recorded text by segment; also the head of a file, with names between @."""
    text = Path(__file__).with_name("recorded_step.txt").read_text(encoding="utf-8")
    _, *parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@cache
def segment(name: str) -> Segment:
    texts = re.split(r"(?<=\n  \},\n)", recording()[name])[:-1]
    events = [json.loads(text[:-2]) for text in texts]
    works = [event for event in events if event.get("cat") in GPU_CATEGORIES]
    points = _Points(events, works)
    forms: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    phases: dict[str, Counter[str]] = {}
    for text, event in zip(texts, events, strict=True):
        section = "tail" if name == "tail" else _SECTIONS.get(event["cat"], "gpu")
        forms.setdefault(section, []).append((text, event))
        phases.setdefault(section, Counter())[event["ph"]] += 1
    sections = {section: _section(pairs, points) for section, pairs in forms.items()}
    strides = {}
    for counter in ("external", "correlation", "python", "sequence"):
        rows = [part.counters[counter][1] for part in sections.values() if counter in part.counters]
        strides[counter] = int(np.ptp(np.concatenate(rows))) + 1 if rows else 0
    memory = [event for event in events if event["name"] == "[memory]"]
    calls = {
        event["args"].get("correlation"): points.host[_ns(event["ts"])]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    increments = np.array([after - before for before, after in pairwise([_BEGIN_NS, *points.host])])
    return Segment(
        name=name,
        sections=sections,
        phases=phases,
        on_autograd=any(event["tid"] == AUTOGRAD_TID for event in events),
        increments=increments,
        longest_gap=int(increments.argmax()),
        launches=np.array([calls[work["args"]["correlation"]] for work in works], dtype=np.int64),
        gpu_ns=np.array([_ns(work["dur"]) for work in works], dtype=np.int64),
        gpu_names=[work["name"] for work in works],
        gpu_categories=[work["cat"] for work in works],
        stream=works[0]["tid"] if works else 0,
        strides={
            **strides,
            "layer": 1,
            "address": _ADDRESSES_PER_LAYER * (strides["sequence"] > 0),
            "allocated": sum(event["args"]["Bytes"] for event in memory),
        },
        memory=_fields(
            [(points.host[_ns(event["ts"])], event["args"]["Total Allocated"]) for event in memory], 2
        ),
        flops=_flops(events),
    )


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _on_gpu(event: Mapping[str, Any]) -> bool:
    return bool(event["pid"] == 0 and event["ph"] != "M")


class _Points:
    """Where the times of a segment are in its row of points."""

    def __init__(self, events: Sequence[dict[str, Any]], works: Sequence[dict[str, Any]]) -> None:
        moments = {
            time
            for event in events
            if not _on_gpu(event)
            for time in (_ns(event["ts"]), _ns(event["ts"]) + _ns(event.get("dur", 0)))
        }
        self.host = {time: point for point, time in enumerate(sorted(moments))}
        hosts, count = len(self.host), len(works)
        self.starts = {_ns(work["ts"]): hosts + i for i, work in enumerate(works)}
        self.ends = {_ns(work["ts"]) + _ns(work["dur"]): hosts + count + i for i, work in enumerate(works)}

    def of(self, event: dict[str, Any]) -> tuple[int, int, int]:
        """First point, last point, and by how many ns the event exceeds them on either side."""
        start = _ns(event["ts"])
        end = start + _ns(event.get("dur", 0))
        if not _on_gpu(event):
            return self.host[start], self.host[end], 0
        # Kineto records the annotation of work on the GPU from 1 ns before it to 1 ns after it.
        wider = int(event.get("cat") == "gpu_user_annotation")
        return self.starts[start + wider], self.ends.get(end - wider, -1), wider


def _counter(match: re.Match[str], event: Mapping[str, Any]) -> tuple[str, int]:
    key = match["key"] or match["text"]
    if key == "id":
        key = "correlation" if event["cat"] == "ac2g" else "Sequence number"
    return _COUNTERS.get(key, ("layer", 0))


def _section(pairs: Sequence[tuple[str, dict[str, Any]]], points: _Points) -> Section:
    form: list[str] = []
    times: list[tuple[int, ...]] = []
    rates: list[tuple[int, ...]] = []
    counters: dict[str, list[tuple[int, ...]]] = {}
    column = 0
    for text, event in pairs:
        first, last, wider = points.of(event)
        position = 0
        for match in _NUMBER.finditer(text):
            begin, end = match.span("value" if match["key"] else "number")
            form.append(text[position:begin].replace("%", "%%"))
            position = end
            key = match["key"]
            if key == "ts":
                times.append((column, first, -1, -wider))
            elif key == "dur":
                times.append((column, last, first, 2 * wider))
            elif key == "memory bandwidth (GB/s)":
                rates.append((column, event["args"]["bytes"], first, last))
            else:
                value = int(match["value"] or match["number"])
                counter, zero = _counter(match, event)
                if counter == "python" and value < zero:  # the frame around the whole step
                    counter, zero = "step_frame", value
                counters.setdefault(counter, []).append((column, value - zero))
                form.append("%d")
                column += 1
                continue
            form.append("%d.%09d" if key == "memory bandwidth (GB/s)" else "%d.%03d")
            column += 2
        form.append(text[position:].replace("%", "%%"))
    return Section(
        form="".join(form),
        columns=column,
        times=_fields(times, 4),
        rates=_fields(rates, 4),
        counters={name: _fields(rows, 2) for name, rows in counters.items()},
        indexed=len(counters.get("event", ())),
    )


def _fields(rows: Sequence[tuple[int, ...]], width: int) -> Integers:
    """The transposed rows: one array per field."""
    fields: Integers = np.array(rows, dtype=np.int64).reshape(-1, width).T
    return fields


def _flops(events: Sequence[dict[str, Any]]) -> Counter[str]:
    """Of the matrix products, by op."""
    flops: Counter[str] = Counter()
    for event in events:
        dims = event.get("args", {}).get("Input Dims", ())
        if event["name"] in ("aten::mm", "aten::addmm") and dims:
            (rows, shared), (_, columns) = dims[1:3] if event["name"] == "aten::addmm" else dims
            flops[event["name"]] += 2 * rows * shared * columns
    return flops


def render(section: Section, points: Integers, bases: Mapping[str, int], strides: Mapping[str, int]) -> str:
    """The text of len(points) repetitions. `bases`: the counters of the first; `points`: recorded ns."""
    cells = np.empty((len(points), section.columns), dtype=np.int64)
    columns, at, since, extra = section.times
    since_ns = np.where(since < 0, 0, points[:, since])
    cells[:, columns], cells[:, columns + 1] = np.divmod(points[:, at] - since_ns + extra, 1000)
    columns, nbytes, first, last = section.rates
    if len(columns):
        cells[:, columns], rest = np.divmod(nbytes, took := np.maximum(points[:, last] - points[:, first], 1))
        cells[:, columns + 1] = rest * 10**9 // took
    repetition = np.arange(len(points), dtype=np.int64)[:, None]
    for name, (columns, offsets) in section.counters.items():
        stride = section.indexed if name == "event" else strides.get(name, 0)
        cells[:, columns] = bases[name] + offsets + stride * repetition
    return "".join([section.form % tuple(row) for row in cells.tolist()])
