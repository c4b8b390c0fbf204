"""trace_view.json of Ascend's profilers: a Chrome trace whose processes are layers, with what their events mean here.

| layer | becomes |
|---|---|
| CANN | runtime calls, on the thread of the Python process that made them |
| Ascend Hardware | kernels, copies and waits, by the type of the task; a thread is a stream |
| HCCL, Communication | each operation a kernel that communicates; its tasks are annotations |
| Overlap Analysis | annotations: it is computed from the others |
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rankscope.readers.ascend.recording import identity_of, read_recording
from rankscope.readers.base import EventBatch, Reader, TraceIdentity
from rankscope.readers.kineto.reader import KinetoReading

if TYPE_CHECKING:
    from rankscope.readers.columns import EventColumns


class AscendReading(KinetoReading):
    """Two passes over one file."""

    def batches(self) -> Iterator[EventBatch]:  # type: ignore[override]
        # Late: numpy is not needed to find and identify files.
        from rankscope.readers.ascend.events import AscendBatch, survey

        recording = read_recording(self._path)
        identity = identity_of(self._path)
        if identity.rank is not None and identity.world_size is not None:
            groups = [
                {
                    "pg_name": group.hash,
                    "pg_desc": group.name,
                    "pg_size": len(group.ranks),
                    "ranks": [*group.ranks],
                }
                for group in recording.groups.values()
                if group.ranks
            ]
            self.header["distributedInfo"] = {
                "backend": "hccl",
                "rank": identity.rank,
                "world_size": identity.world_size,
                "pg_config": groups,
            }
        surveyed = survey(_all_columns(self._path))
        for number, batch in enumerate(super().batches()):
            yield AscendBatch(batch, number, surveyed, recording)


class AscendReader(Reader):
    """Recognised by names and times that no other program writes."""

    name = "ascend"
    reading = AscendReading

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return [identity_of(path)]


ASCEND = AscendReader()


def _all_columns(path: Path) -> Iterator[EventColumns]:
    """The events of a file for the first pass; what is wrong with it is reported in the second."""
    for batch in KinetoReading(path).batches():
        try:
            yield batch.columns()
        finally:
            batch.close()
