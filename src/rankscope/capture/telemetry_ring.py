"""A rank's telemetry: a file of fixed size in the run folder, a ring of one record for each step.

    RUN/telemetry/rank-00003.ring

The file begins with a header of 4,096 bytes: the numbers of HEADER, then at byte 256 a JSON object about the rank,
padded with zeros. The records follow, each of len(FIELDS) numbers of eight bytes. Record number n (from 0) lies in
slot n % capacity and begins with n + 1, so that a reader notices a slot that is being written. The whole file is
written when the job begins: a disk that fills later costs nothing.

A rank writes its records at most once a second, and with them the header: `records` (how many there are so far), when
it was last alive, what its training thread does and since when.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rankscope.files import open_private

FOLDER = "telemetry"
MAGIC = b"RSRING1\n"
HEADER_BYTES = 4096
DEFAULT_RECORDS = 4096
NONE = -1
"""A number that is not known."""

FIELDS = (
    "number",  # of the record, from 1
    "step",
    "end_unix_ns",
    "step_ns",
    "own_ns",  # the rank's own work: what it does before it meets the other ranks
    "first_ns",  # from the step's begin until it first waits in a collective
    "wait_ns",  # the training thread is blocked in collectives
    "data_ns",  # it waits for its data loader
    "optimizer_ns",
    "forward_ns",  # from the step's begin until backward begins
    "device_ns",  # on the GPU, from CUDA events: from the step's begin until backward begins, and the optimizer
    "cpu_ns",  # CPU time of the process
    "gc_ns",  # pauses of Python's garbage collector
    "memory_bytes",  # of the GPU; without one, the process's resident memory
    "run_delay_ns",  # the training thread could run and waited for a core
    "profiled",  # 1 where a profiler was on in the step, or its trace was written: the step is slower than others
)
RECORD = struct.Struct(f"<{len(FIELDS)}q")

PHASES = ("starting", "training", "data loading", "backward", "optimizer", "collective", "ended")
"""What the training thread does; the header has the index."""

HEADER = struct.Struct("<8sIIQQqQ")
_JSON_AT = 256


class Header(NamedTuple):
    """The numbers at the beginning of the file."""

    capacity: int
    records: int
    alive_unix_ns: int
    """When the rank wrote last."""
    phase: int
    phase_since_unix_ns: int


class Ring(NamedTuple):
    """A file as it was read."""

    header: Header
    about: dict[str, Any]
    """rank, local_rank, world_size, node, host, pid, role, started_unix_ns, hang_after_s; at the end also cost
    (hook_ns, step_ns, thread_pct, or None) and off: why the rank switched its telemetry off, or None."""


def ring_path(run: Path, rank: int) -> Path:
    return run / FOLDER / f"rank-{rank:05d}.ring"


def _packed(header: Header) -> bytes:
    return HEADER.pack(MAGIC, RECORD.size, *header)


def _description(about: Mapping[str, Any]) -> bytes:
    text = json.dumps(about).encode()
    if len(text) > HEADER_BYTES - _JSON_AT:
        raise ValueError("the description of the rank is too long")
    return text.ljust(HEADER_BYTES - _JSON_AT, b"\0")


class RingWriter:
    """Writes one rank's file. Every method may raise OSError; nothing is kept open that could hold up an unmount."""

    def __init__(self, path: Path, about: Mapping[str, Any], capacity: int = DEFAULT_RECORDS) -> None:
        text = _description(about)
        self.path = path
        self.capacity = capacity
        self.records = 0
        header = _packed(Header(capacity, 0, int(about["started_unix_ns"]), 0, int(about["started_unix_ns"])))
        with open_private(path, "wb") as file:
            file.write(header.ljust(_JSON_AT, b"\0") + text)
            file.write(bytes(capacity * RECORD.size))

    def describe(self, about: Mapping[str, Any]) -> None:
        """Replace the description of the rank."""
        file = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(file, _description(about), _JSON_AT)
        finally:
            os.close(file)

    def write(
        self, records: Sequence[Sequence[int]], alive_unix_ns: int, phase: int, phase_since_unix_ns: int
    ) -> None:
        """Add records (FIELDS without `number`) and renew the header, which comes last."""
        file = os.open(self.path, os.O_WRONLY)
        try:
            for record in records[-self.capacity :]:
                data = RECORD.pack(self.records + 1, *record)
                os.pwrite(file, data, HEADER_BYTES + self.records % self.capacity * RECORD.size)
                self.records += 1
            header = Header(self.capacity, self.records, alive_unix_ns, phase, phase_since_unix_ns)
            os.pwrite(file, _packed(header), 0)
        finally:
            os.close(file)


def read_header(data: bytes) -> Ring | None:
    """The header from the first HEADER_BYTES of a file; None if it is not a whole one."""
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        return None
    _, size, *numbers = HEADER.unpack_from(data)
    if size != RECORD.size:
        return None
    try:
        about = json.loads(data[_JSON_AT:HEADER_BYTES].rstrip(b"\0"))
    except ValueError:
        return None
    return Ring(Header(*numbers), about) if isinstance(about, dict) else None
