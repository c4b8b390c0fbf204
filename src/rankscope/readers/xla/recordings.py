"""The files of one recording of XLA's profiler: plugins/profile/DATE has one for each host, in two formats."""

from __future__ import annotations

from pathlib import Path

from rankscope.readers.base import JSON_NAME, XPLANE_NAME, TraceIdentity, identity_from_name

_RECORDINGS = "profile"
"""The folder with a folder for each recording: LOGDIR/plugins/profile."""


def identity_of(path: Path) -> TraceIdentity:
    """The rank of a host's file: from its name, else its place among the hosts of the recording.

    XLA records neither the index of a process nor their number. Hosts are in the order of their names, as in XProf.
    """
    named = identity_from_name(path)
    ending = next((ending for ending in (XPLANE_NAME, JSON_NAME) if path.name.endswith(ending)), "")
    if named.rank is not None or path.parent.parent.name != _RECORDINGS or not ending:
        return named
    hosts = sorted(file.name for file in path.parent.glob(f"*{ending}"))
    if len(hosts) < 2:
        return named
    return TraceIdentity(hosts.index(path.name), "place among the hosts", world_size=len(hosts))
