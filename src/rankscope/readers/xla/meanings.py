"""What XLA's planes, lines and events mean here: categories, devices, streams, steps and collectives.

The names of lines and stats are those of XLA's profiler (tsl/profiler/utils/xplane_schema.cc).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rankscope.collective_kinds import kind_of

STEP_STAT, CORRELATION_STAT, COPY_STATS = "step_num", "correlation_id", ("memcpy_details", "memset_details")
OPS_LINE, ASYNC_LINE, STEPS_LINE = "XLA Ops", "Async XLA Ops", "Steps"
HOST, OPS, ASYNC, STREAM, DERIVED, STEPS, OTHER = (
    "host", "ops", "async", "stream", "derived", "steps", "other",
)  # fmt: skip
"""What a line holds."""

DEVICE_PLANE = re.compile(r"^/device:(?:GPU|TPU):(\d{1,9})(?:\D|$)")
HOST_PLANE = re.compile(r"^/host:(?!metadata)")
_STREAM = re.compile(r"^Stream #(\d{1,18})")
_COPY = re.compile(r"(?i)^memcpy")
_FILL = re.compile(r"(?i)^memset")
_PYTHON = re.compile(r"^\$(?:(\S+):(\d+) )?(.*)$", re.DOTALL)
_CALLS = (
    (re.compile(r"^hip[A-Z]"), "hip_runtime"),
    (re.compile(r"^cuda[A-Z]"), "cuda_runtime"),
    (re.compile(r"^cu[A-Z]"), "cuda_driver"),
)
_SIZE = re.compile(r"\bsize:(\d{1,18})\b")
_OPCODE = re.compile(r"^%?([a-z][a-z0-9-]*?)(-start|-done)?(?:[.\s].*)?$", re.DOTALL)
_COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast", "send", "recv",
)  # fmt: skip
_CONTROL_FLOW = ("while", "conditional", "call")
"""Ops that only contain others: counted as kernels they would count twice."""
_MOVES = re.compile("copy|slice")
_SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(\{\{.*?\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)")
_DTYPES = {"s8": "char", "u8": "byte", "s16": "short", "s32": "int", "s64": "long", "pred": "bool"}
"""XLA's names of types where torch's metadata has others."""
_LONGEST_TEXT = 300


@dataclass(frozen=True)
class LineKind:
    """What a line holds, and where it runs."""

    holds: str
    device: int | None = None
    stream: int | None = None


def line_kind(plane: str, line: str) -> LineKind:
    device = DEVICE_PLANE.match(plane)
    if device is None:
        return LineKind(HOST if HOST_PLANE.match(plane) else OTHER)
    number = int(device[1])
    stream = _STREAM.match(line)
    if stream is not None:
        return LineKind(STREAM, number, int(stream[1]))
    if plane.startswith("/device:TPU") and line in (OPS_LINE, ASYNC_LINE):
        return LineKind(OPS, number, 0) if line == OPS_LINE else LineKind(ASYNC, number, 1)
    return LineKind(STEPS if line == STEPS_LINE else DERIVED, number)


@dataclass(frozen=True)
class Meaning:
    """What an event is here."""

    category: str
    name: str
    collective: Mapping[str, Any] = field(default_factory=dict)
    """Arguments under the names that torch gives them, for events that communicate."""


def meaning(
    line: LineKind, label: str, hlo: str, stats: Mapping[str, Any], has_async: bool, many: bool
) -> Meaning:
    """Of an event by its name and what its metadata has; `hlo` is the op's whole text, if it has one.

    `has_async`: the device has a line of asynchronous ops. `many`: the file has several devices.
    """
    if line.holds == HOST:
        if label.startswith("$"):
            # '$train.py:12 step' as torch writes it: 'train.py(12): step'.
            frame = _PYTHON.match(label)
            told = f"{frame[1]}({frame[2]}): {frame[3]}" if frame and frame[1] else label[1:]
            return Meaning("python_function", told)
        return Meaning(next((kind for pattern, kind in _CALLS if pattern.match(label)), "cpu_op"), label)
    if line.holds == STREAM:
        kinds = ((_COPY, "gpu_memcpy"), (_FILL, "gpu_memset"))
        return Meaning(next((kind for pattern, kind in kinds if pattern.match(label)), "kernel"), label)
    if line.holds in (OPS, ASYNC):
        return _op(line, label, hlo, stats, has_async, many)
    if line.holds == STEPS and label.isascii() and label.isdigit():
        return Meaning("gpu_user_annotation", f"step {label}")
    return Meaning("" if line.holds == OTHER else "gpu_user_annotation", label)


def step_name(number: int) -> str:
    """The name of the annotation of a step, as the store recognises it."""
    return f"step {number}"


def copied_bytes(details: str) -> int | None:
    """From 'kind_src:pinned kind_dst:device size:1024 dest:0 async:1'."""
    match = _SIZE.search(details)
    return int(match[1]) if match else None


def _op(
    line: LineKind, label: str, hlo: str, stats: Mapping[str, Any], has_async: bool, many: bool
) -> Meaning:
    match = _OPCODE.match(label)
    opcode, part = (match[1], match[2]) if match else (label, None)
    category = str(stats.get("hlo_category", ""))
    communicates = next((word for word in (opcode, category.split(" ")[0]) if word in _COLLECTIVES), None)
    if opcode in _CONTROL_FLOW or category in _CONTROL_FLOW:
        return Meaning("gpu_user_annotation", label)
    if line.holds == ASYNC:
        if communicates is None:
            return Meaning("gpu_memcpy" if _MOVES.search(label) else "gpu_user_annotation", label)
    elif part == "-done" and has_async:  # the device waits for what the other line shows
        return Meaning("cuda_sync", label)
    elif communicates is None or part == "-start":
        return Meaning("kernel", label)
    return Meaning("kernel", label, collective(communicates, hlo, line.device, many))


def collective(opcode: str, hlo: str, device: int | None, many: bool) -> dict[str, Any]:
    """The metadata of a collective from the text of its op, under torch's names.

    Replica groups list devices, not ranks: a group has their text as its name. Several devices of one process run the
    same groups: each device's are groups of their own.
    """
    metadata: dict[str, Any] = {"Collective name": kind_of(opcode) or opcode}
    before, _, behind = hlo.partition(f" {opcode}")
    result, operands = _elements(before), _elements(behind.partition(")")[0])
    if operands:
        metadata["In msg nelems"], metadata["dtype"] = operands
    if result:
        # The result of a start is a tuple of its operands and what will be there at the end.
        is_start = behind.startswith("-start")
        elements = result[0] - operands[0] if is_start and operands and result[0] > operands[0] else result[0]
        metadata["Out msg nelems"] = elements
        metadata.setdefault("dtype", result[1])
    groups = _GROUPS.search(hlo)
    if groups:
        metadata["Process Group Name"] = f"replica groups {groups[1][:_LONGEST_TEXT]}"
        if many:
            metadata["Process Group Name"] += f", device {device}"
        size = _group_size(groups[1])
        if size is not None:
            metadata["Group size"] = size
    return metadata


def _elements(text: str) -> tuple[int, str] | None:
    """The number of elements of all shapes in a text, and their type."""
    shapes = _SHAPE.findall(text)
    if not shapes:
        return None
    elements = sum(math.prod(int(size) for size in sizes.split(",") if size) for _, sizes in shapes)
    dtype = shapes[0][0]
    return (elements, _DTYPES.get(dtype, dtype)) if elements < 1 << 62 else None


def _group_size(groups: str) -> int | None:
    """Of '{{0,1},{2,3}}' and of '[2,2]<=[4]': the number of devices in each."""
    if groups.startswith("["):
        sizes = [int(number) for number in groups[1 : groups.index("]")].split(",") if number]
        return sizes[-1] if sizes and sizes[-1] < 1 << 31 else None
    first = groups.strip("{}").partition("}")[0]
    return first.count(",") + 1 if first else None


def arguments(stats: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """What all events of a metadata have as arguments: its stats, without long texts and values that are no JSON."""
    short = {
        key: value
        for key, value in stats.items()
        if not (isinstance(value, str) and len(value) > _LONGEST_TEXT)
        and not (isinstance(value, float) and not math.isfinite(value))
    }
    return {**short, **more}
