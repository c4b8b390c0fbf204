"""Readers: one file a format, found by name first and then by structure."""

from __future__ import annotations

from pathlib import Path

from rankscope.errors import EmptyTraceError, NotATraceError
from rankscope.readers.base import Batch, Reader, Reading, TraceIdentity
from rankscope.readers.byte_stream import read_head
from rankscope.readers.kineto import KINETO

__all__ = ["READERS", "Batch", "Reader", "Reading", "TraceIdentity", "find_reader", "looks_like_a_trace"]

READERS: tuple[Reader, ...] = (KINETO,)
_GLANCE = 1 << 16


def looks_like_a_trace(path: Path) -> bool:
    """By its name alone: would a user expect this file to be read? Capture's own manifests are not traces."""
    return path.name.endswith((".json", ".json.gz")) and not path.name.endswith("rankscope.json")


def find_reader(path: Path) -> Reader:
    """The reader of this file, or NotATraceError that says what the file is instead."""
    head, damage = read_head(path, _GLANCE)
    if not head:
        why = (
            damage.capitalize()
            or "It has no bytes; a job killed before it wrote its trace leaves such a file"
        )
        raise EmptyTraceError(
            f"{path} is empty", why=f"{why}.", hint="Capture this rank again, or leave the file out."
        )
    for reader in READERS:
        if reader.recognises(path, head):
            return reader
    raise _not_a_trace(path, head)


def _not_a_trace(path: Path, head: bytes) -> NotATraceError:
    known = "rankscope reads torch.profiler (Kineto) and Chrome traces: .json, .json.gz."
    if head.lstrip()[:1] in (b"{", b"["):
        return NotATraceError(f"{path} is JSON, but not a trace", why="It has no traceEvents.", hint=known)
    return NotATraceError(f"{path} is not a trace", why="It is not JSON.", hint=known)
