"""A temporary folder for one rank's profiler, on this node; it is removed at the end.

nsys writes gigabytes to TMPDIR before it makes the report, fails when TMPDIR is not a folder, and silently leaves a
report there that it cannot write to its target. A folder of its own keeps these files apart, and two users of a node
do not collide in /tmp/nvidia.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rankscope.errors import CaptureError

# Network file systems: slow for a profiler's many small writes, and shared by all ranks.
_NETWORK = (
    *("nfs", "lustre", "gpfs", "beegfs", "cifs", "smb", "ceph", "panfs", "afs", "weka", "pvfs", "orangefs"),
)
_LOW_SPACE_BYTES = 2 * 10**9


def make_temp_folder(env: Mapping[str, str], prefix: str) -> tuple[Path, list[str]]:
    """A new folder below TMPDIR, or below /tmp when TMPDIR cannot be used, and warnings."""
    notes = []
    given = env.get("TMPDIR")
    names = dict.fromkeys((given, "/tmp", "/var/tmp", str(Path.cwd())))
    candidates = [Path(name) for name in names if name]
    for parent in candidates:
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        except OSError as error:
            if str(parent) == given:
                notes.append(
                    f"TMPDIR={given} cannot be used ({error.strerror}): the profiler uses another folder"
                )
            continue
        kind = file_system(folder)
        if kind.startswith(_NETWORK) or (kind.startswith("fuse.") and kind.endswith("sshfs")):
            notes.append(
                f"{parent} is on a network file system ({kind}): set TMPDIR to a local disk of the node"
            )
        free = os.statvfs(folder)
        if free.f_bavail * free.f_frsize < _LOW_SPACE_BYTES:
            notes.append(
                f"less than {_LOW_SPACE_BYTES // 10**9} GB are free in {parent}: set TMPDIR to a larger disk"
            )
        return folder, notes
    raise CaptureError(
        "there is no folder for the profiler's temporary files",
        why=f"None of {', '.join(map(str, candidates))} can be written.",
        hint="Set TMPDIR to a folder on a local disk of the node.",
    )


_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv")
_NOT_FOR_REPORTS = tuple(f"/{name}/" for name in ("proc", "sys", "dev", "etc", "run", "var/run", "usr"))


def lost_with_container(folder: Path, mounts: str | None = None) -> str | None:
    """A warning where a folder is in the file system of a container itself, which is removed with the container."""
    if not any(Path(name).exists() for name in _CONTAINER_FILES) or file_system(folder, mounts) != "overlay":
        return None
    mounted = [
        point
        for point in _mount_points(mounts)
        if point not in ("/", "/tmp")
        and not f"{point}/".startswith(_NOT_FOR_REPORTS)
        and os.path.isdir(point)  # noqa: PTH112
    ]
    way = (
        f"name a mounted folder: -o {'/reports' if '/reports' in mounted else mounted[0]}/NAME"
        if mounted
        else "start the container with a folder of the host in it (-v $PWD/reports:/reports), and give -o /reports/NAME"
    )
    return f"{folder} is in this container and is lost with it; {way}"


def file_system(path: Path, mounts: str | None = None) -> str:
    """The type of the file system of a path, as the kernel names it; empty when unknown."""
    deepest, kind = "", ""
    for point, mounted_kind in _mount_points(mounts).items():
        if path.is_relative_to(point) and len(point) >= len(deepest):
            deepest, kind = point, mounted_kind
    return kind


def _mount_points(mounts: str | None) -> dict[str, str]:
    """Where file systems are mounted, and their types; ``mounts`` is the text of mountinfo."""
    try:
        text = Path("/proc/self/mountinfo").read_text(errors="replace") if mounts is None else mounts
    except OSError:
        return {}
    points = {}
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(), right.split()
        if len(fields) >= 5 and kinds:
            points[fields[4].replace("\\040", " ")] = kinds[0]
    return points
