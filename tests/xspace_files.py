"""Writes XSpace protobufs (tsl/profiler/protobuf/xplane.proto), for tests of the reader of .xplane.pb."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value >= 0x80:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def chunk(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


@dataclass(frozen=True)
class Ref:
    """A text that is written as a reference to a name."""

    text: str


Value = int | float | str | bytes | Ref


@dataclass
class PlaneFile:
    """A plane being written; names get ids in order of use."""

    name: str
    lines: list[tuple[int, str, int, list[bytes]]] = field(default_factory=list)
    stats: dict[str, Value] = field(default_factory=dict)
    _events: dict[tuple[str, str], int] = field(default_factory=dict)
    _event_stats: dict[int, list[bytes]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)

    def line(self, id: int, name: str, timestamp_ns: int = 1000) -> list[bytes]:
        events: list[bytes] = []
        self.lines.append((id, name, timestamp_ns, events))
        return events

    def stat(self, name: str, value: Value) -> bytes:
        head = number(1, self._names.setdefault(name, len(self._names) + 1))
        if isinstance(value, Ref):
            return head + number(7, self._names.setdefault(value.text, len(self._names) + 1))
        if isinstance(value, bytes):
            return head + chunk(6, value)
        if isinstance(value, str):
            return head + chunk(5, value)
        if isinstance(value, float):
            return head + double(2, value)
        return head + (number(3, value) if value >= 1 << 63 else number(4, value))

    def event(
        self,
        name: str,
        begin_ps: int,
        duration_ps: int,
        /,
        *,
        display: str = "",
        shared: Mapping[str, Value] | None = None,
        **stats: Value,
    ) -> bytes:
        id = self._events.setdefault((name, display), len(self._events) + 1)
        if shared:
            self._event_stats[id] = [self.stat(key, value) for key, value in shared.items()]
        own = b"".join(chunk(4, self.stat(key, value)) for key, value in stats.items())
        return number(1, id) + number(2, begin_ps) + number(3, duration_ps) + own

    def encoded(self) -> bytes:
        data = number(1, 7) + chunk(2, self.name)
        for id, name, timestamp_ns, events in self.lines:
            head = number(1, id) + chunk(2, name) + number(3, timestamp_ns)
            data += chunk(3, head + b"".join(chunk(4, event) for event in events) + chunk(11, name))
        own = [chunk(6, self.stat(key, value)) for key, value in self.stats.items()]
        for (name, display), id in self._events.items():
            about = number(1, id) + chunk(2, name) + (chunk(4, display) if display else b"")
            about += b"".join(chunk(5, stat) for stat in self._event_stats.get(id, ()))
            data += chunk(4, number(1, id) + chunk(2, about))
        for name, id in self._names.items():
            data += chunk(5, number(1, id) + chunk(2, number(1, id) + chunk(2, name)))
        return data + b"".join(own)


def space(*planes: PlaneFile, host: str = "node-1") -> bytes:
    return b"".join(chunk(1, plane.encoded()) for plane in planes) + chunk(4, host)


def write_space(path: Path, *planes: PlaneFile) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(space(*planes))
    return path


def environment(start_ns: int = 1_700_000_000_000_000_000) -> PlaneFile:
    return PlaneFile(
        "Task Environment", stats={"profile_start_time": start_ns, "profile_stop_time": start_ns + 1}
    )


US = 1_000_000
"""Picoseconds in a microsecond."""


def gpu_planes(devices: int = 2, steps: int = 3) -> list[PlaneFile]:
    """In each step of 100 µs each device runs a kernel of 10 µs, one of NCCL of 20 µs, and copies 4096 bytes in 5 µs,
    each launched by a call of 2 µs; a Python frame is around them."""
    host = PlaneFile("/host:CPU")
    main, calls = host.line(11, "python"), host.line(12, "Host Threads/12")
    planes = [environment(), host]
    for device in range(devices):
        plane = PlaneFile(f"/device:GPU:{device}", stats={"device_vendor": "AMD", "core_count": 304})
        compute, other = plane.line(7, "Stream #7(Kernel)"), plane.line(9, "Stream #9(MemcpyH2D)")
        modules = plane.line(100, "XLA Modules")
        for step in range(steps):
            at = step * 100 * US
            launch = (step * devices + device) * 3 + 1
            work: tuple[tuple[list[bytes], str, int, dict[str, Any]], ...] = (
                (compute, "fusion.1", 10, {"hlo_op": Ref("fusion.1")}),
                (compute, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 30, {"hlo_op": Ref("all-reduce.2")}),
                (
                    other,
                    "MemcpyH2D",
                    60,
                    {"memcpy_details": Ref("kind_src:pinned kind_dst:device size:4096 dest:0")},
                ),
            )
            for place, (line, name, begin, stats) in enumerate(work):
                length = (10, 20, 5)[place]
                line.append(
                    plane.event(name, at + begin * US, length * US, correlation_id=launch + place, **stats)
                )
                calls.append(
                    host.event(
                        "hipModuleLaunchKernel",
                        at + (begin - 6 + 3 * device) * US,
                        2 * US,
                        correlation_id=launch + place,
                    )
                )
            modules.append(plane.event("jit_train(1)", at + 10 * US, 55 * US))
        planes.append(plane)
    for step in range(steps):
        main.append(host.event("train", step * 100 * US, 99 * US, _r=1, step_num=step))
        main.append(host.event("$train.py:12 step", step * 100 * US + US, 90 * US))
    return planes


HLO = (
    "%all-reduce.5 = f32[1024,16]{1,0:T(8,128)} all-reduce(f32[1024,16]{1,0:T(8,128)} %fusion.1), channel_id=1, "
    "replica_groups={{0,1,2,3},{4,5,6,7}}, use_global_device_ids=true, to_apply=%add"
)
GATHER = (
    "%all-gather-start.6 = (bf16[8,128]{1,0}, bf16[32,128]{1,0}) all-gather-start(bf16[8,128]{1,0} %p), channel_id=2, "
    "replica_groups=[2,4]<=[8], dimensions={0}"
)


def tpu_plane(device: int = 0, steps: int = 2) -> PlaneFile:
    """Each step of 100 µs: a fusion of 10 µs inside a loop of 30, an all-reduce of 20 µs, a gather of 40 µs beside."""
    plane = PlaneFile(f"/device:TPU:{device}", stats={"device_type_string": "TPU v6 Lite"})
    steps_line, modules = plane.line(1, "Steps"), plane.line(2, "XLA Modules")
    ops, beside = plane.line(3, "XLA Ops"), plane.line(4, "Async XLA Ops")
    for step in range(steps):
        at = step * 100 * US
        steps_line.append(plane.event(str(step), at, 100 * US, display=str(step)))
        modules.append(plane.event("jit_step(99)", at, 95 * US))
        loop = {"hlo_category": "while"}
        ops.append(plane.event("%while.3 = (s32[]) while(...)", at, 30 * US, display="while.3", shared=loop))
        fused: dict[str, Value] = {"hlo_category": "fusion", "flops": 1 << 40, "bytes_accessed": 4096}
        ops.append(plane.event("%fusion.1 = ...", at + 5 * US, 10 * US, display="fusion.1", shared=fused))
        reduce: dict[str, Value] = {"hlo_category": "all-reduce"}
        ops.append(plane.event(HLO, at + 30 * US, 20 * US, display="all-reduce.5", shared=reduce))
        ops.append(plane.event(GATHER, at + 50 * US, US, display="all-gather-start.6"))
        ops.append(plane.event("%all-gather-done.6 = ...", at + 88 * US, 3 * US, display="all-gather-done.6"))
        beside.append(plane.event(GATHER, at + 51 * US, 40 * US, display="all-gather-start.6"))
        beside.append(plane.event("%copy-start.2 = ...", at + 10 * US, 25 * US, display="copy-start.2"))
    return plane
