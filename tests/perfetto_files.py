"""Writes small Perfetto traces to perfetto/trace/trace_packet.proto, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankscope.views.export.protobuf import blob, double, fixed64, number, text

CLEARED, NEEDS_STATE = 1, 2
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def packet(
    content: bytes, *, time: int | None = None, sequence: int = 1, flags: int = 0, clock: int = 0
) -> bytes:
    """One packet of a trace. A sequence of 0 is left out."""
    fields = b"" if time is None else number(8, time)
    fields += number(58, clock) if clock else b""
    fields += number(10, sequence) if sequence else b""
    fields += number(13, flags) if flags else b""
    return blob(1, fields + content)


def clocks(*readings: tuple[int, int], incremental: Sequence[int] = (), unit: int = 1) -> bytes:
    """A clock snapshot: clock ids and their times."""

    def reading(clock: int, time: int) -> bytes:
        more = number(3, 1) + number(4, unit) if clock in incremental else b""
        return blob(1, number(1, clock) + number(2, time) + more)

    return blob(6, b"".join(reading(*pair) for pair in readings))


def process(uuid: int, pid: int, name: str = "", labels: Sequence[str] = ()) -> bytes:
    inside = number(1, pid) + (text(6, name) if name else b"") + b"".join(text(8, label) for label in labels)
    return packet(blob(60, number(1, uuid) + blob(3, inside)), sequence=0)


def thread(uuid: int, pid: int, tid: int, name: str = "", parent: int = 0) -> bytes:
    inside = number(1, pid) + number(2, tid) + (text(5, name) if name else b"")
    return packet(blob(60, number(1, uuid) + number(5, parent) + blob(4, inside)), sequence=0)


def track(uuid: int, name: str, parent: int = 0, more: bytes = b"") -> bytes:
    return packet(blob(60, number(1, uuid) + number(5, parent) + text(2, name) + more), sequence=0)


def counter(uuid: int, name: str, parent: int = 0, fields: bytes = b"") -> bytes:
    return track(uuid, name, parent, blob(8, fields))


def interned(**tables: Mapping[int, str]) -> bytes:
    """Interned data: event_names={1: "gemm"} and others."""
    numbers = {"categories": 1, "names": 2, "arg_names": 3, "strings": 29}
    return blob(
        12,
        b"".join(
            blob(numbers[table], number(1, iid) + text(2, value))
            for table, values in tables.items()
            for iid, value in values.items()
        ),
    )


def annotation(name: str, value: Any) -> bytes:
    """A debug annotation, with objects and lists inside."""
    return _with_value(text(10, name), value)


def _with_value(name: bytes, value: Any) -> bytes:
    if isinstance(value, bool):
        return name + number(2, int(value))
    if isinstance(value, int):
        return name + number(4, value)
    if isinstance(value, float):
        return name + double(5, value)
    if isinstance(value, str):
        return name + text(6, value)
    if isinstance(value, Mapping):
        return name + b"".join(blob(11, annotation(key, item)) for key, item in value.items())
    return name + b"".join(blob(12, _with_value(b"", item)) for item in value)


def event(
    kind: int,
    track_uuid: int = 0,
    name: str = "",
    category: str = "",
    args: Mapping[str, Any] | None = None,
    more: bytes = b"",
) -> bytes:
    """A track event, with texts in it. A track of 0 is left out."""
    fields = number(9, kind) if kind else b""
    fields += number(11, track_uuid) if track_uuid else b""
    fields += text(23, name) if name else b""
    fields += text(22, category) if category else b""
    fields += b"".join(blob(4, annotation(key, value)) for key, value in (args or {}).items())
    return blob(11, fields + more)


def slices(uuid: int, *rows: tuple[int, int, str, str], args: Mapping[str, Any] | None = None) -> bytes:
    """Begin and end of each slice: start, duration, name, category."""
    return b"".join(
        packet(event(BEGIN, uuid, name, category, args), time=start)
        + packet(event(END, uuid), time=start + duration)
        for start, duration, name, category in rows
    )


def flow(*ids: int, ends: Sequence[int] = ()) -> bytes:
    return b"".join(fixed64(47, one) for one in ids) + b"".join(fixed64(48, one) for one in ends)


def torch_gpu_trace() -> bytes:
    """As torch's CUPTI monitor lays it out (torch/csrc/profiler/cuspy/cuspy_pftrace.cpp): all begins of a group, then
    all its ends; kernels and copies as stages of the GPU."""
    base = 1_700_000_000_000_000_000
    head = packet(clocks((6, base), (1, base)), time=base)
    head += process(1, 4242, "python") + thread(2, 4242, 4242, "thread 4242 (python)", parent=1)
    tables = interned(
        names={1: "ProfilerStep#3", 2: "aten::mm", 3: "cudaLaunchKernel", 4: "gemm_kernel"},
        categories={1: "user_annotation", 2: "cpu_op", 3: "cuda_runtime"},
    )
    specs = ((1, "Kernel", 2), (2, "Memcpy", 0), (10, "[07] stream 7", 0), (11, "[20] stream 20", 0))
    stages = b"".join(blob(24, number(1, iid) + text(2, name) + number(4, kind)) for iid, name, kind in specs)
    kernels = blob(1000, number(1, 1) + text(3, "gemm_kernel"))
    merged = tables[len(tables) - _content_length(tables) :] + stages + kernels
    head += packet(blob(12, merged), flags=CLEARED)
    rows: tuple[tuple[int, int, int, int, dict[str, int]], ...] = (
        (0, 1000, 1, 1, {}),
        (100, 300, 2, 2, {"External id": 7}),
        (150, 50, 3, 3, {"correlation": 11}),
    )
    begins = b"".join(
        packet(
            event(BEGIN, 2, args=args, more=number(10, name) + number(3, category)),
            time=base + start,
            flags=NEEDS_STATE,
        )
        for start, _, name, category, args in rows
    )
    ends = b"".join(packet(event(END, 2), time=base + start + length) for start, length, *_ in rows)
    launch = blob(21, blob(1, number(1, 8) + number(2, 1) + number(3, 1)) + blob(2, number(1, 128)))
    common = number(1, 1) + number(11, 0)

    def stage(start: int, length: int, queue: int, kind: int, more: bytes, **extra: str) -> bytes:
        data = b"".join(
            blob(6, text(1, key.replace("_", " ")) + text(2, value)) for key, value in extra.items()
        )
        fields = common + number(2, length) + number(13, queue) + number(14, kind) + more + data
        return packet(blob(53, fields), time=base + start, flags=NEEDS_STATE)

    gpu = stage(400, 200, 10, 1, number(20, 4) + number(19, 1) + launch, correlation="11", stream_id="7")
    gpu += stage(650, 100, 11, 2, b"", correlation="12", bytes="4096", stream_id="20")
    return head + begins + ends + gpu


def _content_length(field: bytes) -> int:
    """Of a field of bytes whose length has one or two bytes."""
    return field[1] & 127 | (field[2] << 7 if field[1] & 128 else 0)
