"""JAX's and XLA's .xplane.pb: a protobuf with everything that was recorded on one host.

One file is one process, and one rank, with all its devices: docs/adr/0154-other-formats.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.errors import ReadError
from rankscope.readers.base import EventBatch, Reader, Reading, TraceIdentity, need_c_parts, usable_time
from rankscope.readers.byte_stream import read_head
from rankscope.readers.xla.recordings import identity_of

if TYPE_CHECKING:
    from rankscope.readers.xla.planes import Plane

_START = re.compile(
    rb"\A\x0a[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?\x12[\x80-\xff]?."
    rb"(?:/device:|/host:|Task Environment)",
    re.DOTALL,
)
"""An XSpace: its first field is a plane, which has an id and a name."""
_LARGEST = 8 << 30
_SINCE_1970 = 1 << 56
"""ns: a line that begins later (1972) has times since 1970, not since the start of the recording."""
_ENVIRONMENT = "Task Environment"
_FACTS = {
    "device_type_string": "name",
    "gpu_device_name": "name",
    "device_vendor": "vendor",
    "memory_size": "totalGlobalMem",
    "core_count": "numSms",
    "compute_cap_major": "computeMajor",
    "compute_cap_minor": "computeMinor",
    "memory_bandwidth": "memoryBandwidth",
}
"""Stats of a device, and their names in deviceProperties."""


class XplaneReading(Reading):
    """One pass over one file, which is in memory while it is read: the names of events come after them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._base_ns = 0
        self._done = self._total = 0

    def batches(self) -> Iterator[EventBatch]:
        # Late: numpy is not needed to find and identify files.
        from rankscope.readers.xla.events import plane_batches

        need_c_parts(self._path)
        planes = self._planes()
        self._total = sum(len(line.pieces) for plane in planes for line in plane.lines)
        self._base_ns = self._clock(planes)
        for batch in plane_batches(planes, self.report):
            yield batch
            self._done += 1

    def position(self) -> int:
        size = self._path.stat().st_size
        return min(size * self._done // self._total, size) if self._total else size

    def clock_base_ns(self) -> int:
        return self._base_ns

    def _planes(self) -> list[Plane]:
        from rankscope.readers.xla.planes import Plane, read_planes

        content, damage = read_head(self._path, _LARGEST + 1)
        if len(content) > _LARGEST:
            raise ReadError(
                f"{self._path} is not read",
                why=f"It has more than {_LARGEST >> 30} GiB, as no recording of XLA's profiler has.",
                hint="Record fewer steps.",
            )
        planes: list[Plane] = []
        for item in read_planes(memoryview(content)):
            if isinstance(item, Plane):
                planes.append(item)
            elif item[0] == "damage":
                damage = damage or item[1]
            else:
                self.header.setdefault(f"{item[0]}s", []).append(item[1][:1000])
        self.report.damage = damage or next(
            (f"{plane.name}: {plane.damage}" for plane in planes if plane.damage), ""
        )
        if not any(plane.lines for plane in planes):
            raise ReadError(
                f"{self._path} has no events",
                why=f"{damage or 'None of its planes has lines'}.",
                hint="Record it again: jax.profiler.trace(FOLDER) around some steps.",
            )
        self._describe(planes)
        return planes

    def _describe(self, planes: list[Plane]) -> None:
        """What the file tells of the program and its devices, for the header."""
        from rankscope.readers.xla.meanings import DEVICE_PLANE

        devices = []
        for plane in planes:
            number = DEVICE_PLANE.match(plane.name)
            if number is not None and plane.lines:
                facts = {_FACTS[key]: value for key, value in plane.stats.items() if key in _FACTS}
                devices.append({"id": int(number[1]), **facts})
            elif plane.name in (_ENVIRONMENT, "/host:metadata"):
                self.header |= {key: value for key, value in plane.stats.items() if len(str(value)) < 1000}
        if devices:
            self.header["deviceProperties"] = devices

    def _clock(self, planes: list[Plane]) -> int:
        """ns since 1970 at time 0 of the events."""
        starts = [line.timestamp_ns for plane in planes for line in plane.lines if line.timestamp_ns > 0]
        if starts and max(starts) >= _SINCE_1970:
            return 0
        return usable_time(self.header.get("profile_start_time"))


class XplaneReader(Reader):
    """XSpace protobufs."""

    name = "xla"
    reading = XplaneReading

    def recognises(self, path: Path, head: bytes) -> bool:
        return _START.match(head) is not None

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return [identity_of(path)]


XPLANE = XplaneReader()
