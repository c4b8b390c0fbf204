"""Readers: one module or sub-package per file format, and the registry that finds the reader of a file.

The store calls `find_reader` and `identities`. Readers import neither the store nor each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from rankscope.errors import EmptyTraceError, NotATraceError, NoTimesError, RankscopeError, ReadError
from rankscope.readers.base import (
    PERFETTO_NAMES,
    Batch,
    EventBatch,
    NodeLog,
    NodeReader,
    Reader,
    Reading,
    TraceIdentity,
    identities,
    rank_from_name,
)
from rankscope.readers.byte_stream import cannot_read, read_head
from rankscope.readers.safe_pickle import PICKLE_NAMES, is_pickle

__all__ = [
    "FORMATS_READ",
    "STREAM_NAME",
    "TRACE_NAMES",
    "Batch",
    "EventBatch",
    "NodeLog",
    "NodeReader",
    "Reader",
    "Reading",
    "TraceIdentity",
    "find_reader",
    "folders_below",
    "identities",
    "looks_like_a_trace",
    "one_file",
]

STREAM_NAME = ".qdstrm"
"""A recording of nsys that has not been converted to a report: nsys.stream does that."""
_JSON_NAMES = (".json", ".json.gz", ".chrome_trace")
_HATCHET = re.compile(rb'\s*\[\s*\{\s*"(?:children|frame|metrics)"\s*:\s*[\[{]')
"""The root of a tree of call paths, as Triton's Proton writes it."""
_TEXT_NAMES = (".csv", ".txt", ".log", ".prom", ".out")


class _Format(NamedTuple):
    """Where the reader of a format is, and how its files are usually named."""

    module: str
    reader: str
    endings: tuple[str, ...]
    title: str
    """In the list of what rankscope reads; empty for a second reader of a tool."""


_FORMATS = (
    _Format("xla.trace_json", "TRACE_JSON", _JSON_NAMES, ""),
    _Format("ascend.reader", "ASCEND", _JSON_NAMES, ""),
    _Format(
        "kineto.reader", "KINETO", _JSON_NAMES, "torch.profiler, Ascend and Chrome traces (.json, .json.gz)"
    ),
    _Format("rocprof.rocpd", "ROCPD", (".db",), "rocprofv3 (.db, _results.json)"),
    _Format("rocprof.tool_json", "ROCPROF_JSON", _JSON_NAMES, ""),
    _Format("nsys.reader", "NSYS", (".sqlite",), "Nsight Systems (.nsys-rep, .sqlite)"),
    _Format("nsys.report", "NSYS_REPORT", (".nsys-rep", ".qdrep", STREAM_NAME), ""),
    _Format("ncu", "NCU", (".ncu-rep", ".csv"), "Nsight Compute (.ncu-rep, .csv)"),
    _Format("flight_recorder", "FLIGHT_READER", (), "flight-recorder dumps (_dump_N)"),
    _Format("memory_snapshot", "SNAPSHOT", PICKLE_NAMES, "memory snapshots (.pickle)"),
    _Format("xla.xplane", "XPLANE", (".xplane.pb",), "JAX and XLA (.xplane.pb, .trace.json.gz)"),
    _Format("perfetto.reader", "PERFETTO", PERFETTO_NAMES, "Perfetto (.pftrace, .perfetto-trace)"),
    _Format("nccl.inspector", "INSPECTOR", _TEXT_NAMES, "NCCL's own files (.log, .prom, .txt)"),
    _Format("nccl.prometheus", "PROMETHEUS", _TEXT_NAMES, ""),
    _Format("nccl.plugin", "PLUGIN", _TEXT_NAMES, ""),
    _Format(
        "gpu_counters.reader", "GPU_COUNTERS", _TEXT_NAMES, "counters of nvidia-smi and DCGM (.csv, .log)"
    ),
)
"""In the order in which they are asked. Most runs have one format: the modules of those that come later are not
imported."""
_HEAD_BYTES = 1 << 16
TRACE_NAMES = tuple(sorted({ending for entry in _FORMATS for ending in entry.endings} - set(_TEXT_NAMES)))
FORMATS_READ = f"rankscope reads {'; '.join(entry.title for entry in _FORMATS if entry.title)}."


def looks_like_a_trace(path: Path) -> bool:
    """Judge a file by its name: True if a user would expect it to be read. Capture's manifests are not traces.

    A .csv or text file can be anything, so its content decides.
    """
    if path.name.removesuffix(".gz").endswith(_TEXT_NAMES):
        try:
            head, _ = read_head(path, _HEAD_BYTES)
        except ReadError:
            return False  # such as a log of the job that only its owner may read
        texts = (entry for entry in _FORMATS if not set(_TEXT_NAMES).isdisjoint(entry.endings))
        try:
            return any(_reader(entry).recognises(path, head) for entry in texts)
        except Exception:  # noqa: BLE001 - `find_reader` meets it again, where it is an error of this file
            return True
    if not path.suffix or path.suffix[1:].isdigit():  # flight-recorder dumps: _dump_3, nccl_trace_rank_3
        return rank_from_name(path) is not None
    return path.name.endswith(TRACE_NAMES) and not path.name.endswith("rankscope.json")


def folders_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Where profilers write below the folder that users name: one folder for each rank, or a run of its own each.

    Ascend's have NAME_ascend_pt/ASCEND_PROFILER_OUTPUT for each rank, JAX's plugins/profile/DATE for each recording.
    """
    output = "ASCEND_PROFILER_OUTPUT"
    ranks = sorted(path for path in folder.glob(f"*_ascend_*/{output}") if path.is_dir())
    ranks += [path for path in (folder / output,) if path.is_dir()]
    recordings = sorted(path for path in folder.glob("plugins/profile/*") if path.is_dir())
    return ranks, recordings


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
    for entry in _FORMATS:
        reader = _reader(entry)
        if reader.recognises(path, head):
            return reader
    raise _not_a_trace(path, head)


def _reader(entry: _Format) -> Reader:
    reader: Reader = getattr(import_module(f"rankscope.readers.{entry.module}"), entry.reader)
    return reader


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
            why=f"The reader failed: {type(error).__name__}: {' '.join(str(error).split())[:500]}",
            hint="Please report this, with the file if you can.",
        ) from error


def _not_a_trace(path: Path, head: bytes) -> NotATraceError:
    if is_pickle(head):
        return NotATraceError(
            f"{path} is a pickle, but neither a memory snapshot nor a flight-recorder dump",
            why="It has none of the keys that torch writes into those. Nothing of it was loaded.",
            hint=FORMATS_READ,
        )
    from rankscope.readers.execution_trace import is_execution_trace

    if is_execution_trace(head):
        return NoTimesError(
            f"{path} is an execution trace (PyTorch or Chakra), not a timeline",
            why="It lists ops and their tensors, without times.",
            hint="Open the profiler's trace of the same rank. This file adds to it when it lies beside it, or in "
            "chakra, et or execution_trace there.",
        )
    if _HATCHET.match(head):
        return NotATraceError(
            f"{path} is a profile of Triton's Proton, not a trace",
            why="It has sums for each call path (hatchet), and no times.",
            hint='Record a trace: proton.start("rank-3", data="trace") writes rank-3.chrome_trace',
        )
    if head.lstrip()[:1] in (b"{", b"["):
        return NotATraceError(
            f"{path} is JSON, but not a trace", why="It has no traceEvents.", hint=FORMATS_READ
        )
    return NotATraceError(f"{path} is not a trace", why="It is not JSON.", hint=FORMATS_READ)
