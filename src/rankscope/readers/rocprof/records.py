"""Records of ROCm's profilers as events in Kineto's terms: kernels, copies, calls, ranges, allocations, counters.

A reader gives the records of one kind as columns of numbers. Most records repeat others but for their times and ids:
each distinct one becomes an `Event` once, and every record gets that event with a time and a correlation of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rankscope.capture.rank import SINGLE, detect
from rankscope.collective_kinds import kind_of
from rankscope.model import CROSSING_RANGES, MEMORY_ARGS
from rankscope.readers.columns import (
    DUCKDB,
    NO_TEXT,
    NULL,
    Codes,
    EventColumns,
    Numbers,
    SharedTexts,
    Texts,
    distinct_rows,
    event_columns,
)

FORMAT = "rocprof"
FROM_ENVIRONMENT = "recorded environment"
FROM_OUTPUT_NAME = "recorded output name"
CORRELATION_BITS = 40
"""Of an id within a process; the bits above hold the number of the process."""
ROWS_PER_BATCH = 100_000

Columns = Mapping[str, Numbers]

_LARGEST_TIME = 1 << 61
_COPIES = {
    "HOST_TO_HOST": "HtoH",
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
}
_CALL_CATEGORIES = (
    (re.compile("^HIP_(?:RUNTIME|COMPILER)_API"), "cuda_runtime"),
    (re.compile("^HSA_"), "cuda_driver"),
    (re.compile("^RCCL_API"), "cpu_op"),
)
"""Kinds of calls, and what they are in Kineto's traces of ROCm. HSA is the layer below HIP."""
_MARK = re.compile("^roctxMark")
_THREAD_RANGE = re.compile("^roctx(?:RangePush|ThreadRange)")
_PROCESS_RANGE = re.compile("^roctx(?:RangeStart|ProcessRange)")
_RCCL_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8e4m3", "float8e5m2",
)  # fmt: skip
"""The values of ncclDataType_t."""
_RCCL_ALIASES = {"char": "int8", "int": "int32", "half": "float16", "float": "float32", "double": "float64"}
_IN_COUNT, _OUT_COUNT, _ONE_COUNT = "sendcount", "recvcount", "count"
_PEERS = {"ncclSend": "Dst Rank", "ncclRecv": "Src Rank"}


class Event(NamedTuple):
    """The event of all records that differ only in their times and ids."""

    category: str
    name: str
    pid: str
    tid: str
    args: Mapping[str, Any]
    phase: str = "X"
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None
    collective: str | None = None


class Kernel(NamedTuple):
    """A function that runs on the device."""

    name: str
    vector_registers: int | None
    scalar_registers: int | None


@dataclass(frozen=True)
class Process:
    """What the records of one process refer to."""

    pid: int
    number: int
    """Among the processes of its rank: keeps their correlation ids and streams apart."""
    devices: Mapping[int, int]
    """Agent -> number of the GPU, as HIP numbers them. Other agents are CPUs."""
    kernels: Mapping[int, Kernel]
    rccl_arguments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By correlation id."""
    read_by: str = DUCKDB

    def lane(self, device: int | None, stream: int) -> tuple[str, str]:
        """pid and tid of a stream's track."""
        other = f" of process {self.pid}" if self.number else ""
        return str(0 if device is None else device), f"{stream}{other}"

    def correlation(self, ids: Numbers) -> Numbers:
        usable = (ids > 0) & (ids < 1 << CORRELATION_BITS)
        return np.where(usable, ids + (self.number << CORRELATION_BITS), NULL)


def kernel_columns(process: Process, records: Columns) -> EventColumns:
    """Kernel dispatches. The grid is in blocks, as in Kineto: ROCm counts its work-items."""

    def event(
        agent: int, kernel: int, queue: int, stream: int, private: int, group: int, *sizes: int
    ) -> Event:
        device = process.devices.get(agent)
        lane = queue if stream == NULL else stream
        block, items = sizes[:3], sizes[3:]
        symbol = process.kernels.get(kernel, Kernel(f"kernel {kernel}", None, None))
        grid = [-(-count // size) if size > 0 else None for count, size in zip(items, block, strict=True)]
        args = {
            "device": device,
            "stream": lane,
            "queue": queue,
            "registers per thread": symbol.vector_registers,
            "scalar registers": symbol.scalar_registers,
            "shared memory": group,
            "local memory per thread": private,
            "grid": grid if NULL not in items else None,
            "block": list(block) if NULL not in block else None,
        }
        pid, tid = process.lane(device, lane)
        return Event("kernel", symbol.name, pid, tid, args, device=device, stream=lane)

    keys = ("agent", "kernel", "queue", "stream", "private", "group", *_SIZES)
    return record_columns(process, records, keys, event)


_SIZES = tuple(f"{what}_{axis}" for what in ("block", "items") for axis in "xyz")


def copy_columns(process: Process, records: Columns, operation: Callable[[int], str]) -> EventColumns:
    """Copies by the DMA engines. Those that a kernel does (__amd_rocclr_copyBuffer) are kernels, as in Kineto."""

    def event(kind: int, source: int, target: int, queue: int, stream: int, size: int) -> Event:
        name = operation(kind)
        direction = next((short for long, short in _COPIES.items() if name.endswith(long)), "Unknown")
        source_device, target_device = process.devices.get(source), process.devices.get(target)
        device = target_device if source_device is None else source_device
        lane = next((number for number in (stream, queue) if number != NULL), 0)
        args = {
            "device": device,
            "stream": lane,
            "bytes": size,
            "fromDevice": source_device,
            "toDevice": target_device,
        }
        pid, tid = process.lane(device, lane)
        return Event(
            "gpu_memcpy",
            f"Memcpy {direction}",
            pid,
            tid,
            args,
            device=device,
            stream=lane,
            bytes=None if size == NULL else size,
        )

    return record_columns(
        process, records, ("operation", "source", "target", "queue", "stream", "bytes"), event
    )


def call_columns(
    process: Process, records: Columns, told: Callable[[int, int], tuple[str, str]], messages: Sequence[str]
) -> EventColumns:
    """Calls of HIP, HSA and RCCL, and roctx ranges and marks.

    `told` gives the kind of a call and its name; the column `message` has places in `messages`, or NULL.
    """
    ids = records["correlation"]
    calls = np.where(np.isin(ids, list(process.rccl_arguments)), ids, NULL)

    def event(kind: int, operation: int, thread: int, message: int, call: int) -> Event:
        layer, name = told(kind, operation)
        pid, tid = str(process.pid), str(thread)
        if layer.startswith("MARKER_"):
            return _marker(name, messages[message] if message != NULL else name, pid, tid)
        category = next((what for pattern, what in _CALL_CATEGORIES if pattern.search(layer)), layer.lower())
        args = _collective(name, process.rccl_arguments.get(call, {})) if category == "cpu_op" else {}
        return Event(category, name, pid, tid, args, collective=args.get("Collective name"))

    columns = {**records, "call": calls}
    return record_columns(process, columns, ("kind", "operation", "thread", "message", "call"), event)


def _marker(operation: str, message: str, pid: str, tid: str) -> Event:
    if _MARK.search(operation):
        return Event("user_annotation", message, pid, tid, {}, phase="i")
    if _THREAD_RANGE.search(operation):
        return Event("user_annotation", message, pid, tid, {"style": "PushPop"})
    if _PROCESS_RANGE.search(operation):
        return Event("user_annotation", message, pid, tid + CROSSING_RANGES, {"style": "StartEnd"})
    return Event("roctx", operation, pid, tid, {})


def _collective(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """A call of RCCL as torch's record_param_comms: the kernels that it launches are this collective."""
    if kind_of(name) is None or name.startswith(("ncclGroup", "ncclComm")):
        return {}
    args: dict[str, Any] = {"Collective name": name.removeprefix("nccl").lower()}
    count = given.get(_ONE_COUNT)
    for key, part in (("In msg nelems", _IN_COUNT), ("Out msg nelems", _OUT_COUNT)):
        value = given.get(part, count)
        if value is not None and value.isdecimal():
            args[key] = int(value)
    if dtype := _dtype(given.get("datatype", "")):
        args["dtype"] = dtype
    peer = given.get("peer", "")
    if name in _PEERS and peer.isdecimal():
        args[_PEERS[name]] = int(peer)
    return args


def _dtype(text: str) -> str:
    if text.isdecimal():
        return _RCCL_TYPES[int(text)] if int(text) < len(_RCCL_TYPES) else ""
    word = text.removeprefix("nccl").lower()
    return _RCCL_ALIASES.get(word, word)


def record_columns(
    process: Process, records: Columns, keys: Sequence[str], event: Callable[..., Event]
) -> EventColumns:
    """An event for each record. `event` is called once for each distinct combination of the key columns."""
    start, end = (_time(records[name]) for name in ("start", "end"))
    codes, firsts = distinct_rows([records[name] for name in keys])
    chosen = zip(*(records[name][firsts].tolist() for name in keys), strict=True)
    events = [event(*row) for row in chosen]
    pool: dict[str, int] = {}
    texts: dict[str, Codes] = {
        name: _codes(pool, [getattr(item, name) for item in events])[codes]
        for name in ("phase", "category", "name", "pid", "tid", "collective")
    }
    numbers = {
        name: _numbers(getattr(item, name) for item in events)[codes]
        for name in ("device", "stream", "bytes")
    }
    numbers["correlation"] = process.correlation(records["correlation"])
    args: dict[str, int] = {}
    argument = _codes(args, [_arguments(item.args) for item in events])[codes]
    return event_columns(
        Texts.of(pool),
        start,
        np.where((start == NULL) | (end == NULL), NULL, end - start),
        numbers,
        texts.pop("collective"),
        **texts,
        shared_args=SharedTexts(Texts.of(args), argument),
        read_by=process.read_by,
    )


def _time(times: Numbers) -> Numbers:
    """Times, with NULL for those that no clock has: a difference must fit into 64 bits."""
    return np.where((times > -_LARGEST_TIME) & (times < _LARGEST_TIME), times, NULL)


def _arguments(args: Mapping[str, Any]) -> str | None:
    recorded = {key: value for key, value in args.items() if value is not None and value != NULL}
    return json.dumps(recorded, separators=(",", ":"), ensure_ascii=False) if recorded else None


def _codes(pool: dict[str, int], texts: Iterable[str | None]) -> Codes:
    codes = [NO_TEXT if text is None else pool.setdefault(_whole(text), len(pool)) for text in texts]
    return np.array(codes, dtype=np.int32)


def _whole(text: str) -> str:
    """Text that can be written as UTF-8: a lone surrogate in JSON cannot."""
    return text.encode("utf-8", "replace").decode() if not text.isascii() else text


def _numbers(values: Iterable[int | None]) -> Numbers:
    return np.array([NULL if value is None else value for value in values], dtype=np.int64)


class Allocation(NamedTuple):
    """Memory that was allocated or freed. A free does not say how much."""

    time: int
    thread: int
    agent: int
    address: int
    size: int
    frees: bool


class MemoryUse:
    """The memory in use, from allocations in order of time. Reserved equals allocated: there is no cache in between."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._blocks: dict[int, tuple[int, int | None]] = {}
        """Size and device by address."""
        self._totals: dict[int | None, int] = {}

    def row(self, allocation: Allocation) -> dict[str, Any] | None:
        """The [memory] event of an allocation; None for a free of memory that was allocated before the recording."""
        if allocation.frees:
            size, device = self._blocks.pop(allocation.address, (0, None))
            if not size:
                return None
            size = -size
        else:
            size, device = allocation.size, self._process.devices.get(allocation.agent)
            self._blocks[allocation.address] = (size, device)
        total = self._totals[device] = self._totals.get(device, 0) + size
        on_device = device is not None
        values = (size, total, total, int(on_device), device if on_device else -1, allocation.address)
        return {
            "ph": "i",
            "category": "cpu_instant_event",
            "name": "[memory]",
            "pid": str(self._process.pid),
            "tid": str(allocation.thread),
            "ts_ns": allocation.time,
            "args": {"Bytes": size, "Device Id": values[4]},
            "memory": dict(zip(MEMORY_ARGS, values, strict=True)),
        }


def counter_row(name: str, device: int | None, time: int, value: float) -> dict[str, Any]:
    """A hardware counter of a dispatch, at the dispatch's start."""
    at = 0 if device is None else device
    return {
        "ph": "C",
        "category": "gpu_metrics",
        "name": name,
        "pid": f"GPU {at}",
        "tid": "",
        "ts_ns": time,
        "device": at,
        "args": {"value": value},
    }


def name_row(what: str, pid: int, thread: int, name: str) -> dict[str, Any]:
    """A metadata event: process_name or thread_name."""
    return {
        "ph": "M",
        "category": "",
        "name": what,
        "pid": str(pid),
        "tid": str(thread),
        "ts_ns": 0,
        "args": {"name": name},
    }


class Rank(NamedTuple):
    """The rank of a process; None where nothing in the file tells."""

    rank: int | None
    source: str = ""
    world_size: int | None = None


def rank_of(environment: Mapping[str, Any], config: Mapping[str, Any]) -> Rank:
    """From the launcher's variables, else from an output name with %rank% in it, as rocprofv3 was given."""
    variables = {key: value for key, value in environment.items() if isinstance(value, str)}
    identity = detect(variables)
    if identity.source != SINGLE:
        return Rank(identity.rank, FROM_ENVIRONMENT, identity.world_size)
    for part in ("file", "path"):
        given, written = config.get(f"raw_output_{part}"), config.get(f"output_{part}")
        if isinstance(given, str) and isinstance(written, str) and (match := _RANK_KEY.search(given)):
            before, behind = _KEY.split(given[: match.start()])[-1], _KEY.split(given[match.end() :])[0]
            named = re.search(f"{re.escape(before)}(\\d{{1,6}}){re.escape(behind)}", written)
            if named:
                return Rank(int(named[1]), FROM_OUTPUT_NAME)
    return Rank(None)


_KEY = re.compile(r"%(?:[a-z_]+%|[hpjrs]|(?:env|q)\{\w+\}%?)")
_RANK_KEY = re.compile(r"%(?:rank%|r(?![a-z_]+%)|(?:env|q)\{(?:RANK|\w*_RANK|SLURM_PROCID|PALS_RANKID)\}%?)")
"""In names for the output of rocprofv3: %hostname%, %rank%, %env{RANK}%, …"""


def device_properties(agents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs in Kineto's form, from the agents' fields as ROCm names them."""
    facts = {
        "name": "product_name",
        "numSms": "cu_count",
        "warpSize": "wave_front_size",
        "totalGlobalMem": "local_mem_size",
    }
    return [
        {"id": agent["logical_node_type_id"]}
        | {key: agent[field] for key, field in facts.items() if agent.get(field)}
        for agent in agents
    ]
