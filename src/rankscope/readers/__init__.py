"""Readers: one module or sub-package per file format, and the registry that finds the reader of a file.

The store calls `find_reader` and `identities`. Readers import neither the store nor each other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rankscope.errors import EmptyTraceError, NotATraceError, RankscopeError, ReadError
from rankscope.readers.base import (
    NCCL_PLUGIN_EVENT,
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
from rankscope.readers.byte_stream import PACKED, cannot_read, read_head, unpacked_name
from rankscope.readers.safe_pickle import PICKLE_NAMES, is_pickle

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
_JSON_NAMES = (".json", *(f".json{packed}" for packed in PACKED), ".chrome_trace")
_HATCHET = re.compile(rb'\s*\[\s*\{\s*"(?:children|frame|metrics)"\s*:\s*[\[{]')
"""The root of a tree of call paths, as Triton's Proton writes it."""
_EXECUTION_TRACE = re.compile(rb'\A\s*\{(?s:.*)"nodes"\s*:\s*\[\s*\{\s*"(?:id|name|ctrl_deps)"\s*:')
"""The ops of a process with their tensors, as torch's ExecutionTraceObserver writes them."""
_TEXT_NAMES = (".csv", ".txt", ".log", ".prom", ".out")


class _Format(NamedTuple):
    """Where the reader of a format is, and what tells its files."""

    module: str
    reader: str
    endings: tuple[str, ...]
    sign: bytes
    """A pattern that the first bytes have at least. The module is imported only where they do, or where the ending of
    the name is of this format alone."""
    title: str = ""
    """In the list of what rankscope reads; empty for a second reader of a tool."""


_ASCEND = b'Ascend Hardware|CANN|AscendCL@[^"]*|async_npu|async_task_queue|HostToDevice|torch_to_npu'
"""Names that only its profilers write."""
_SQLITE = rb"\ASQLite format 3\0"
_FORMATS = (
    _Format(
        "xla.trace_json",
        "TRACE_JSON",
        _JSON_NAMES,
        rb'"process_name"[^{}]*\{\s*"name"\s*:\s*"/(?:host|device):',
    ),
    _Format(
        "ascend.reader",
        "ASCEND",
        _JSON_NAMES,
        rb'\A[\xef\xbb\xbf\s]*\[(?s:.*?)(?:"ts"\s*:\s*"\d{13,}\.|"(?:%b)")' % _ASCEND,
    ),
    _Format(
        "kineto.reader",
        "KINETO",
        _JSON_NAMES,
        rb"\A[\xef\xbb\xbf\s]*[{\[]",
        "torch.profiler, Ascend and Chrome traces (.json, .json.gz, .json.zst)",
    ),
    _Format(
        "rocprof.rocpd", "ROCPD", (".db",), _SQLITE + b"(?s:.*?)rocpd_", "rocprofv3 (.db, _results.json)"
    ),
    _Format(
        "rocprof.tool_json",
        "ROCPROF_JSON",
        _JSON_NAMES,
        rb'\A[\xef\xbb\xbf\s]*\{\s*"rocprofiler-sdk-tool"\s*:\s*\[',
    ),
    _Format("nsys.reader", "NSYS", (".sqlite",), _SQLITE, "Nsight Systems (.nsys-rep, .sqlite)"),
    _Format(
        "nsys.report", "NSYS_REPORT", (".nsys-rep", ".qdrep", STREAM_NAME), rb"\ANVIDIA Tegra Profiler Report"
    ),
    _Format(
        "ncu",
        "NCU",
        (".ncu-rep", ".csv"),
        rb'\ANVR\0|(?m:^)"?ID"?,"?Process ID"?,',
        "Nsight Compute (.ncu-rep, .csv)",
    ),
    _Format(
        "flight_recorder",
        "FLIGHT_READER",
        (),
        b"collective_seq_id|profiling_name|nccl_version|pg_config|pg_status|comm_lib_version",
        "flight-recorder dumps (_dump_N)",
    ),
    _Format("memory_snapshot", "SNAPSHOT", PICKLE_NAMES, rb"\A\x80[\x02-\x05]", "memory snapshots (.pickle)"),
    _Format("xla.xplane", "XPLANE", (".xplane.pb",), rb"\A\x0a", "JAX and XLA (.xplane.pb, .trace.json.gz)"),
    _Format(
        "nccl.inspector",
        "INSPECTOR",
        _TEXT_NAMES,
        rb'\A\s*\{(?s:.*?)"inspector_output_format_version"',
        "NCCL's own files (.log, .prom, .txt)",
    ),
    _Format(
        "nccl.prometheus",
        "PROMETHEUS",
        _TEXT_NAMES,
        rb"(?m:^)nccl_(?:p2p_|collective_)?(?:bus_bandwidth_gbs|exec_time_microseconds)\{",
    ),
    _Format("nccl.plugin", "PLUGIN", _TEXT_NAMES, NCCL_PLUGIN_EVENT.pattern),
    _Format(
        "gpu_counters.reader",
        "GPU_COUNTERS",
        _TEXT_NAMES,
        rb"(?im)(?:clocks|power|temperature|utilization|memory)[._]|DCGM_FI_|#\s*Entity|^\d{4}/\d\d/\d\d \d\d:",
        "counters of nvidia-smi and DCGM (.csv, .log)",
    ),
)
"""In the order in which they are asked; then the readers of other packages (docs/readers.md)."""
_GROUP = "rankscope.readers"
_PERFETTO_NAMES = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
"""Not read: a message says what to record instead."""
_HEAD_BYTES = 1 << 16
TRACE_NAMES = tuple(
    sorted({*_PERFETTO_NAMES, *(ending for entry in _FORMATS for ending in entry.endings)} - set(_TEXT_NAMES))
)
FORMATS_READ = f"rankscope reads {'; '.join(entry.title for entry in _FORMATS if entry.title)}."


def looks_like_a_trace(path: Path) -> bool:
    """Judge a file by its name: True if a user would expect it to be read. Capture's manifests are not traces.

    A .csv or text file can be anything, so its content decides. Packages with readers are looked up only for a file
    with a rank in its name: that takes a tenth of a second.
    """
    is_named = rank_from_name(path) is not None
    if unpacked_name(path.name).endswith(_TEXT_NAMES):
        try:
            head, _ = read_head(path, _HEAD_BYTES)
        except ReadError:
            return False  # such as a log of the job that only its owner may read
        try:
            texts = [entry for entry in _FORMATS if not set(_TEXT_NAMES).isdisjoint(entry.endings)]
            if _reader_of(path, head, texts):
                return True
        except Exception:  # noqa: BLE001 - `find_reader` meets it again, where it is an error of this file
            return True
    elif not path.suffix or path.suffix[1:].isdigit():  # flight-recorder dumps: _dump_3, nccl_trace_rank_3
        return is_named
    elif path.name.endswith(TRACE_NAMES):
        return not path.name.endswith("rankscope.json")
    return is_named and _entry_point(path) is not None


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
    reader = _reader_of(path, head, _FORMATS) or _installed_reader(path, head)
    if reader is not None:
        return reader
    if path.name.endswith(_PERFETTO_NAMES):
        raise ReadError(
            f"{path} is not read",
            why="It is a trace in Perfetto's own format (protobuf).",
            hint="Record JSON: prof.export_chrome_trace('rank-3.json') in PyTorch, --output-format json in rocprofv3. "
            f"Or convert it: traceconv json {path.name} rank-3.json",
        )
    raise _not_a_trace(path, head)


def _reader_of(path: Path, head: bytes, formats: Iterable[_Format]) -> Reader | None:
    for entry in formats:
        own = tuple(ending for ending in entry.endings if ending not in (*_JSON_NAMES, *_TEXT_NAMES))
        if path.name.endswith(own) or re.search(entry.sign, head):
            reader: Reader = getattr(import_module(f"rankscope.readers.{entry.module}"), entry.reader)
            if reader.recognises(path, head):
                return reader
    return None


@cache
def _entry_points(places: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Of the packages in these folders."""
    from importlib.metadata import entry_points  # late: it takes longer to import than a small trace to read

    return tuple(entry_points(group=_GROUP))


def _entry_point(path: Path) -> EntryPoint | None:
    """That of another package whose name is how the name of this file ends."""
    name = unpacked_name(path.name)
    return next((entry for entry in _entry_points(tuple(sys.path)) if name.endswith(entry.name)), None)


def _installed_reader(path: Path, head: bytes) -> Reader | None:
    """The reader that another package has for this file."""
    entry = _entry_point(path)
    if entry is None:
        return None
    try:
        reader: Reader = entry.load()
    except Exception as error:
        package = entry.dist.name if entry.dist else entry.module
        raise ReadError(
            f"{path} is not read",
            why=f"Its reader {entry.value} of the package {package} cannot be loaded: {type(error).__name__}: {error}.",
            hint=f"Install the package again, or without it: pip uninstall {package}",
        ) from error
    return reader if reader.recognises(path, head) else None


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
    if _EXECUTION_TRACE.search(head):
        return NotATraceError(
            f"{path} is an execution trace (PyTorch or Chakra), which is not read",
            why="It lists ops and their tensors, without times.",
            hint="Open the profiler's trace of the same rank, recorded with record_shapes=True for the shapes.",
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
