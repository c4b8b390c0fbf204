"""Readers: one module or sub-package per file format, and the registry that finds the reader of a file.

The store calls `find_reader`, `identities` and `open_part`. Readers import neither the store nor each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, ReadError
from rankscope.readers.base import (
    Batch,
    EventBatch,
    NodeLog,
    NodeReader,
    Reader,
    Reading,
    TraceIdentity,
    identities,
    open_part,
    rank_from_name,
)
from rankscope.readers.byte_stream import cannot_read, read_head
from rankscope.readers.safe_pickle import PICKLE_NAMES, is_pickle

__all__ = [
    "TRACE_NAMES",
    "Batch",
    "EventBatch",
    "NodeLog",
    "NodeReader",
    "Reader",
    "Reading",
    "TraceIdentity",
    "find_reader",
    "identities",
    "is_stream",
    "looks_like_a_trace",
    "one_file",
    "open_part",
]

_READERS = (
    ("kineto.reader", "KINETO"),
    ("nsys.reader", "NSYS"),
    ("nsys.report", "NSYS_REPORT"),
    ("ncu.reader", "NCU"),
    ("flight_recorder", "FLIGHT_READER"),
    ("memory_snapshot", "SNAPSHOT"),
    ("gpu_counters.reader", "GPU_COUNTERS"),
)
"""Modules and the readers in them, in the order in which they are asked. Most runs have one format: the modules of the
others are not imported."""
_HEAD_BYTES = 1 << 16
_STREAM_NAME = ".qdstrm"
_TEXT_NAMES = (".csv", ".txt", ".log", ".prom")
TRACE_NAMES = (".json", ".json.gz", ".sqlite", ".nsys-rep", ".qdrep", _STREAM_NAME, ".ncu-rep", *PICKLE_NAMES)


def looks_like_a_trace(path: Path) -> bool:
    """Judge a file by its name: True if a user would expect it to be read. Capture's manifests are not traces.

    A .csv or text file can be anything, so its content decides.
    """
    if path.name.removesuffix(".gz").endswith(_TEXT_NAMES):
        from rankscope.readers.gpu_counters.layouts import is_gpu_log
        from rankscope.readers.ncu.csv_pages import HEADER

        try:
            head, _ = read_head(path, _HEAD_BYTES)
        except ReadError:
            return False  # such as a log of the job that only its owner may read
        return HEADER.search(head) is not None or is_gpu_log(head)
    if not path.suffix or path.suffix[1:].isdigit():  # flight-recorder dumps: _dump_3, nccl_trace_rank_3
        return rank_from_name(path) is not None
    return path.name.endswith(TRACE_NAMES) and not path.name.endswith("rankscope.json")


def is_stream(path: Path) -> bool:
    """True for a recording of nsys that has not been converted to a report: nsys.stream does that."""
    return path.suffix == _STREAM_NAME


def find_reader(path: Path) -> Reader:
    """The reader of this file. Raises NotATraceError, which describes what the file is instead."""
    head, damage = read_head(path, _HEAD_BYTES)
    if not head:
        why = (
            damage.capitalize() or "It has 0 bytes, as after a job that was killed before it wrote its trace"
        )
        raise EmptyTraceError(
            f"{path} is empty", why=f"{why}.", hint="Capture this rank again, or leave the file out."
        )
    for module, name in _READERS:
        reader: Reader = getattr(import_module(f"rankscope.readers.{module}"), name)
        if reader.recognises(path, head):
            return reader
    raise _not_a_trace(path, head)


@contextmanager
def one_file(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file is an error of that file: the others are still read."""
    try:
        yield
    except RankscopeError:
        raise
    except OSError as error:
        raise cannot_read(path, error) from error
    except MemoryError as error:
        raise ReadError(
            f"{path} is not read",
            why="Reading it takes more memory than this process may use.",
            hint="Read fewer files at a time: --jobs 1. Or leave the file out.",
        ) from error
    except Exception as error:
        raise ReadError(
            f"cannot read {path}",
            why=f"The reader failed: {type(error).__name__}: {error}",
            hint="Please report this, with the file if you can.",
        ) from error


def _not_a_trace(path: Path, head: bytes) -> NotATraceError:
    known = (
        "rankscope reads torch.profiler (Kineto) and Chrome traces (.json, .json.gz), nsys (.nsys-rep, .sqlite), "
        "Nsight Compute (.ncu-rep, .csv), memory snapshots (.pickle), flight-recorder dumps and counters of "
        "nvidia-smi and DCGM (.csv, .txt, .log)."
    )
    if is_pickle(head):
        return NotATraceError(
            f"{path} is a pickle, but neither a memory snapshot nor a flight-recorder dump",
            why="It has none of the keys that torch writes into those. Nothing of it was loaded.",
            hint=known,
        )
    if head.lstrip()[:1] in (b"{", b"["):
        return NotATraceError(f"{path} is JSON, but not a trace", why="It has no traceEvents.", hint=known)
    return NotATraceError(f"{path} is not a trace", why="It is not JSON.", hint=known)
