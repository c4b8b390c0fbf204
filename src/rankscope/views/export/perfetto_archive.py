"""A run as a tar archive for Perfetto: one trace for each file, on the clock of its host, and a manifest that relates
the clocks (https://perfetto.dev/docs/reference/perfetto-manifest).

Perfetto merges the traces on one time axis, with the offsets that rankscope found. They are in the manifest, where they
can be read and changed; in a single trace they are part of every time.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

from rankscope.analysis.core.scope import Scope
from rankscope.timeline.run import Run
from rankscope.views.export.perfetto import write_one
from rankscope.views.export.timeline_events import TraceFile, timeline_files

MANIFEST_NAME = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"
"""What Perfetto takes the times of packets for that name no clock."""
_VERSION = 1


@dataclass(frozen=True)
class _Member:
    """One trace of the archive."""

    file: TraceFile
    """With times on the clock of its host, none of them negative."""
    name: str
    offset_ns: int
    """What is added to its times to have those of the first member."""
    start_unix_ns: int


def write_archive(run: Run, scope: Scope, out: BinaryIO, with_args: bool = True) -> int:
    """Write the archive and return the number of slices."""
    members = _members(run, scope)
    slices = 0
    with tarfile.open(fileobj=out, mode="w|") as archive:
        manifest = json.dumps(_manifest(members)).encode()
        _add(archive, MANIFEST_NAME, io.BytesIO(manifest), len(manifest))
        for member in members:
            with tempfile.TemporaryFile() as content:
                slices += write_one(member.file, member.start_unix_ns, content, with_args)
                size = content.tell()
                content.seek(0)
                _add(archive, member.name, content, size)
    return slices


def _members(run: Run, scope: Scope) -> list[_Member]:
    entries = {(entry.rank, entry.segment): entry for entry in run.timelines}
    files = [(file, entries[file.rank, file.segment]) for file in timeline_files(run, scope)]
    # By how much alignment has moved each file, and how early any file would begin on another's clock.
    moved = [run.shift_ns(entry) - run.begin_ns(entry) for _, entry in files]
    earliest = min(
        (run.begin_ns(entry) - moved[0] + own for (_, entry), own in zip(files, moved, strict=True)),
        default=0,
    )
    base = max(0, -earliest)
    members = []
    for (file, entry), own in zip(files, moved, strict=True):
        file.shift_ns = base - own
        name = (
            f"rank-{file.rank:05d}"
            + (f".file-{file.segment + 1}" if file.segment else "")
            + ".perfetto-trace"
        )
        start = entry.unix_origin_ns - run.begin_ns(entry) - base
        members.append(_Member(file, name, own - moved[0], start))
    return members


def _manifest(members: list[_Member]) -> dict[str, Any]:
    """The key comes first: Perfetto recognises the file by it."""
    reference = {"file": members[0].name, "clock": _CLOCK} if members else {}
    files: list[dict[str, Any]] = []
    for member in members:
        entry: dict[str, Any] = {"path": member.name, "machine": {"name": member.file.label}}
        if files:
            entry["clocks"] = {"clock": _CLOCK, "sync_to": reference, "offset_ns": member.offset_ns}
        files.append(entry)
    return {
        "perfetto_manifest": {
            "version": _VERSION,
            "trace_time": {"clock": _CLOCK, **_file(members)},
            "files": files,
        }
    }


def _file(members: list[_Member]) -> dict[str, str]:
    return {"file": members[0].name} if members else {}


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, content)
