"""Kineto's text, event by event: constant pieces with slots for times and counters between them.

Follows files of torch 2.13: line breaks, runs of blanks inside args and the order of keys are Kineto's, because a
fast reader may depend on them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

NANOSECONDS_PER_TICK = 1000  # Kineto prints microseconds with three digits after the point


class Time(NamedTuple):
    """A moment, printed as microseconds."""

    point: int
    shift_ns: int = 0


class Span(NamedTuple):
    """The time from one point to another, printed as microseconds."""

    start: int
    end: int
    extra_ns: int = 0


class Count(NamedTuple):
    """A counter that advances from block to block: an id, an index, the allocated bytes."""

    counter: str
    offset: int = 0


class Rate(NamedTuple):
    """Bytes over a span, printed as GB/s."""

    nbytes: int
    start: int
    end: int


Piece = str | Time | Span | Count | Rate
Event = list[Piece]


def token(name: str) -> str:
    """A placeholder for a constant of a rank or process group; replaced when a template is bound to a rank."""
    return f"\x01{name}\x01"


PID, MAIN_TID, AUTOGRAD_TID, DEVICE = map(token, ("pid", "main_tid", "autograd_tid", "device"))
# Where one event ends and the next begins; the first event follows HEAD_END, the last one ends with TAIL.
SEPARATOR = "\n  },\n  {\n"
HEAD_END = '"traceEvents": [\n  {\n'
TAIL = "\n  }\n  ],\n"


def complete(
    category: str, name: Sequence[Piece], pid: str, tid: str, ts: Time, dur: Span, args: Sequence[Piece]
) -> Event:
    head = f'  {{\n    "ph": "X", "cat": "{category}", "name": "'
    place = f'", "pid": {pid}, "tid": {tid},\n    "ts": '
    return [head, *name, place, ts, ', "dur": ', dur, ',\n    "args": {\n      ', *args, "\n    }\n  },\n"]


def flow(phase: str, category: str, identity: Count, pid: str, tid: str, ts: Time) -> Event:
    """The start or the end of a flow; Kineto binds the end to the enclosing slice."""
    binding = ', "bp": "e"' if phase == "f" else ""
    return [
        f'  {{\n    "ph": "{phase}", "id": ',
        identity,
        f', "pid": {pid}, "tid": {tid}, "ts": ',
        ts,
        f',\n    "cat": "{category}", "name": "{category}"{binding}\n  }},\n',
    ]


def memory_instant(
    tid: str, point: int, change: int, allocated: Count, address: Count, index: Count
) -> Event:
    return [
        f'  {{\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n'
        f'    "pid": {PID}, "tid": {tid},\n    "ts": ',
        Time(point),
        ',\n    "args": {\n      "Total Reserved": ',
        Count("reserved"),
        ', "Total Allocated": ',
        allocated,
        f', "Bytes": {change}, "Device Id": {DEVICE}, "Device Type": 1, "Addr": ',
        address,
        ', "finished": false, "Ev Idx": ',
        index,
        "\n    }\n  },\n",
    ]


def op_args(
    external: Count, inputs: Sequence[Piece], sequence: Count | None, role: str, index: Count
) -> list[Piece]:
    """The args of a host op; the place of the sequence number depends on the op's role in autograd."""
    record = '"Record function id": 0, '
    shapes: list[Piece] = [*inputs, ", "] if inputs else []
    pieces: list[Piece] = ['"External id": ', external, ","]
    if sequence is None:
        pieces.append(record)
    elif role == "engine":
        pieces += [record, '"Sequence number": ', sequence, ', "Fwd thread id": 1, ']
    else:
        thread = 1 if role == "backward" else 0
        pieces += ['"Sequence number": ', sequence, f', "Fwd thread id": {thread}, {record}']
    return [*pieces, *shapes, '"Ev Idx": ', index]


def runtime_args(external: Count, cbid: int, correlation: Count) -> list[Piece]:
    return ['"External id": ', external, f',      "cbid": {cbid}, "correlation": ', correlation]


def kernel_args(stream: str, external: Count, correlation: Count, shape: str) -> list[Piece]:
    return [
        '"External id": ',
        external,
        f',      "queued": 0, "device": {DEVICE}, "context": 1,      "stream": {stream}, "correlation": ',
        correlation,
        f",      {shape}",
    ]


def copy_args(stream: str, external: Count, correlation: Count, rate: Rate) -> list[Piece]:
    return [
        '"External id": ',
        external,
        f',      "device": {DEVICE}, "context": 1,      "stream": {stream}, "correlation": ',
        correlation,
        f',      "bytes": {rate.nbytes}, "memory bandwidth (GB/s)": ',
        rate,
    ]


def launch_shape(
    registers: int, shared: int, grid: tuple[int, int, int], block: tuple[int, int, int], sms: int
) -> str:
    """The launch configuration of a kernel, and the figures that CUPTI derives from it."""
    blocks = grid[0] * grid[1] * grid[2] / sms
    warps = blocks * -(-block[0] * block[1] * block[2] // 32)
    occupancy = min(100, int(100 * warps / 64))
    return (
        f'"registers per thread": {registers},      "shared memory": {shared},      '
        f'"blocks per SM": {blocks:.6f},      "warps per SM": {warps:.6f},      '
        f'"grid": {list(grid)},      "block": {list(block)},      "est. achieved occupancy %": {occupancy}'
    )


def python_args(parent: Count | None, identity: Count, module: Count | None, index: Count) -> list[Piece]:
    pieces: list[Piece] = ['"Python parent id": ', parent or "null", ', "Python id": ', identity]
    if module is not None:
        pieces += [', "Python module id": ', module]
    return [*pieces, ', "Ev Idx": ', index]


def microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // NANOSECONDS_PER_TICK}.{nanoseconds % NANOSECONDS_PER_TICK:03d}"


def header(
    device: int, trace_id: str, distributed: dict[str, object], base_time_ns: int, *, with_stack: bool
) -> str:
    stack = '      "with_stack": 1,\n' if with_stack else ""
    return f"""
  {{
    "schemaVersion": 1,
    "deviceProperties": [
    {{
      "id": {device}, "name": "NVIDIA H200", "totalGlobalMem": 150109880320,
      "computeMajor": 9, "computeMinor": 0,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 32,
      "sharedMemPerBlock": 49152, "numSms": 132
    , "regsPerMultiprocessor": 65536, "sharedMemPerBlockOptin": 232448, "sharedMemPerMultiprocessor": 233472
    }}
    ],
      "trace_id": "{trace_id}",
{stack}      "profile_memory": 1,
      "cuda_driver_version": 13000,
      "record_shapes": 1,
      "distributedInfo": {json.dumps(distributed)},
      "with_flops": 1,
      "cuda_runtime_version": 13000,
      "cupti_version": 130001,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": {base_time_ns},
  "traceEvents": [
"""


def device_synchronize(pid: int, start_ns: int, duration_ns: int, correlation: int) -> list[str]:
    """The profiler's own call when it stops. It belongs to no op, so it has no External id."""
    ts = microseconds(start_ns)
    return [
        f'  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "cudaDeviceSynchronize", "pid": {pid}, '
        f'"tid": {pid},\n    "ts": {ts}, "dur": {microseconds(duration_ns)},\n    "args": {{\n'
        f'            "cbid": 165, "correlation": {correlation}\n    }}\n  }},\n',
        f'  {{\n    "ph": "f", "id": {correlation}, "pid": {pid}, "tid": {pid}, "ts": {ts},\n'
        f'    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},\n',
    ]


def _metadata(name: str, ts: str, pid: int, tid: int, key: str, value: str | int) -> str:
    return (
        f'  {{\n    "name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      "{key}": {json.dumps(value)}\n    }}\n  }},\n'
    )


def process_metadata(ts_ns: int, pid: int, label: str, sort_index: int) -> list[str]:
    ts = microseconds(ts_ns)
    return [
        _metadata("process_name", ts, pid, 0, "name", "python3"),
        _metadata("process_labels", ts, pid, 0, "labels", label),
        _metadata("process_sort_index", ts, pid, 0, "sort_index", sort_index),
    ]


def thread_metadata(ts_ns: int, pid: int, tid: int, name: str) -> list[str]:
    ts = microseconds(ts_ns)
    return [
        _metadata("thread_name", ts, pid, tid, "name", name),
        _metadata("thread_sort_index", ts, pid, tid, "sort_index", tid),
    ]


def closing_events(start_ns: int, duration_ns: int, end_ns: int) -> list[str]:
    """The profiler's span and its two instants. The last event of a file; footer() closes it."""
    ts = microseconds(start_ns)
    return [
        f'  {{\n    "ph": "X", "cat": "Trace", "ts": {ts}, "dur": {microseconds(duration_ns)},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n    "name": "PyTorch Profiler (0)",\n'
        '    "args": {\n      "Op count": 0\n    }\n  },\n',
        f'  {{\n    "name": "process_sort_index", "ph": "M", "ts": {ts},\n    "pid": "Spans", "tid": 0,\n'
        '    "args": {\n      "sort_index": 536870912\n    }\n  },\n',
        '  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        f'    "pid": "Traces", "tid": "Trace PyTorch Profiler", "ts": {ts}\n  }},\n',
        '  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {microseconds(end_ns)}',
    ]


def footer(trace_name: str) -> str:
    return f'{TAIL}  "traceName": {json.dumps(trace_name)}\n}}'
