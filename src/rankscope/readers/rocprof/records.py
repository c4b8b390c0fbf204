"""Records of ROCm's profilers as events in Kineto's terms: kernels, copies, calls, ranges, allocations, counters.

Both formats have the same records. A RecordKind says where their values are in each, and which events they become. A
reader gives the records of one kind as columns of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from rankscope.capture.rank import SINGLE, detect
from rankscope.collective_kinds import kind_of
from rankscope.model import CROSSING_RANGES, MEMORY_ARGS
from rankscope.readers.base import ReadReport, TraceIdentity
from rankscope.readers.checked_values import integer
from rankscope.readers.columns import NULL, EventColumns
from rankscope.readers.records import Event, Row, Rows, device_event, record_columns

FORMAT = "rocprof"
FROM_ENVIRONMENT = "recorded environment"
CORRELATION_BITS = 40
"""Of an id within a process; the bits above hold the number of the process."""
LONGEST_TEXT = 100_000
REGISTERS = ("arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
"""Of a kernel, the arguments of Kernel.of."""

Values = Mapping[str, tuple[str, str]]
"""By the name of a value: its column in rocpd, and the keys that lead to it in JSON, with dots."""

_COPIES = {
    "HOST_TO_HOST": "HtoH",
    "HOST_TO_DEVICE": "HtoD",
    "DEVICE_TO_HOST": "DtoH",
    "DEVICE_TO_DEVICE": "DtoD",
}
_CALL_CATEGORIES = {
    "HIP_RUNTIME_API": "cuda_runtime",
    "HIP_COMPILER_API": "cuda_runtime",
    "HSA_": "cuda_driver",
    "RCCL_API": "cpu_op",
}
"""How the names of kinds of calls begin, and what they are in Kineto's traces of ROCm. HSA is the layer below HIP."""
_RCCL_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8e4m3", "float8e5m2",
)  # fmt: skip
"""The values of ncclDataType_t."""
_RCCL_ALIASES = {"char": "int8", "int": "int32", "half": "float16", "float": "float32", "double": "float64"}
_PEERS = {"ncclSend": "Dst Rank", "ncclRecv": "Src Rank"}


class Kernel(NamedTuple):
    """A function that runs on the device."""

    name: str
    vector_registers: int | None = None
    scalar_registers: int | None = None

    @staticmethod
    def of(name: str, *registers: Any) -> Kernel:
        """From the values of REGISTERS in a file."""
        *vector, scalar = map(integer, registers)
        counts = [count for count in vector if count is not None]
        return Kernel(name[:LONGEST_TEXT], sum(counts) if counts else None, scalar)


@dataclass(frozen=True)
class Process:
    """What the records of one process refer to."""

    pid: int
    number: int
    """Among the processes of its rank: keeps their correlation ids and streams apart."""
    gpus: Sequence[tuple[int, Mapping[str, Any]]]
    """Id and fields of the agents that are GPUs, see numbered_gpus."""
    kernels: Mapping[int, Kernel]
    operation: Callable[[int | None, int | None], tuple[str, str]]
    """The names of a kind of records, and of an operation of that kind."""
    messages: Mapping[int, str]
    """Of roctx, by the value `event`."""
    counters: Mapping[int, str]
    rccl_arguments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """By correlation id."""

    @cached_property
    def devices(self) -> dict[int, int]:
        """Agent -> number of the GPU, as HIP numbers them. Other agents are CPUs."""
        return {agent: gpu["logical_node_type_id"] for agent, gpu in self.gpus}

    def device_event(self, category: str, name: str, args: Mapping[str, Any]) -> Event:
        event = device_event(category, name, args, f" of process {self.pid}" if self.number else "")
        return event._replace(pid=event.pid or "0")

    def events(self, records: Rows, keys: Sequence[str], event: Callable[[Row], Event]) -> EventColumns:
        """Of records: `event` makes one of each combination of the key columns."""
        ids = records["correlation"]
        usable = (ids > 0) & (ids < 1 << CORRELATION_BITS)
        correlation = np.where(usable, ids + (self.number << CORRELATION_BITS), NULL)
        return record_columns(records, keys, event, correlation)

    def name_row(self, what: str, thread: int, name: str) -> dict[str, Any]:
        """A metadata event: process_name or thread_name."""
        return _row("M", "", what, self.pid, thread, 0, {"name": name})

    def counter_row(self, counter: int, agent: int, time: int, value: float) -> dict[str, Any]:
        """A hardware counter of a dispatch, at the dispatch's start."""
        name, device = self.counters.get(counter, f"counter {counter}"), self.devices.get(agent, 0)
        return _row("C", "gpu_metrics", name, f"GPU {device}", "", time, {"value": value}, device=device)

    def memory_rows(
        self, allocations: Iterable[Mapping[str, Any]], report: ReadReport
    ) -> Iterator[dict[str, Any]]:
        """The [memory] events of records with the values of ALLOCATIONS, and `frees` for those that free memory.

        Reserved equals allocated: there is no cache in between. A free does not say how much, and one of memory that
        was allocated before the recording is left out.
        """
        usable = []
        for record in allocations:
            if all(isinstance(record.get(name), int) and record[name] != NULL for name in ("start", "bytes")):
                usable.append(record)
            else:
                report.lose("an allocation without a usable time or size")
        blocks: dict[int, tuple[int, int | None]] = {}  # size and device by address
        totals: dict[int | None, int] = {}
        for record in sorted(usable, key=itemgetter("start")):
            address = record["address"]
            if record["frees"]:
                size, device = blocks.pop(address, (0, None))
                if not size:
                    continue
                size = -size
            else:
                size, device = record["bytes"], self.devices.get(record.get("agent", NULL))
                blocks[address] = (size, device)
            total = totals[device] = totals.get(device, 0) + size
            number = -1 if device is None else device
            values = (size, total, total, int(device is not None), number, address)
            args = {"Bytes": size, "Device Id": number}
            memory = dict(zip(MEMORY_ARGS, values, strict=True))
            thread, time = record.get("thread"), record["start"]
            yield _row("i", "cpu_instant_event", "[memory]", self.pid, thread, time, args, memory=memory)


def _row(
    phase: str, category: str, name: str, pid: Any, tid: Any, time: int, args: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "ph": phase, "category": category, "name": name, "pid": str(pid), "tid": str(tid), "ts_ns": time, "args": args,
        **more,
    }  # fmt: skip


class RecordKind(NamedTuple):
    """Records of one kind, in both formats."""

    values: Values
    columns: Callable[[Process, Rows], EventColumns]
    """The events of records, from columns with these values."""


def _kernels(process: Process, records: Rows) -> EventColumns:
    """Kernel dispatches. The grid is in blocks, as in Kineto: ROCm counts its work-items."""

    def event(row: Row) -> Event:
        items, block = ([row[f"{what}_{axis}"] for axis in "xyz"] for what in ("items", "block"))
        symbol = process.kernels.get(row["kernel"], Kernel(f"kernel {row['kernel']}"))
        grid = None
        if None not in items:
            sizes = zip(items, block, strict=True)
            grid = tuple(
                -(-count // size) if size is not None and size > 0 else None for count, size in sizes
            )
        args = {
            "device": process.devices.get(row["agent"]),
            "stream": row["queue"] if row["stream"] is None else row["stream"],
            "queue": row["queue"],
            "registers per thread": symbol.vector_registers,
            "scalar registers": symbol.scalar_registers,
            "shared memory": row["group"],
            "local memory per thread": row["private"],
            "grid": grid,
            "block": tuple(block) if None not in block else None,
        }
        return process.device_event("kernel", symbol.name, args)

    return process.events(records, [*KERNELS.values][len(EVERY_EVENT) :], event)


def _copies(process: Process, records: Rows) -> EventColumns:
    """Copies by the DMA engines. Those that a kernel does (__amd_rocclr_copyBuffer) are kernels, as in Kineto."""

    def event(row: Row) -> Event:
        _, name = process.operation(row["kind"], row["operation"])
        direction = next((short for long, short in _COPIES.items() if name.endswith(long)), "Unknown")
        source, target = process.devices.get(row["source"]), process.devices.get(row["target"])
        args = {
            "device": target if source is None else source,
            "stream": next((number for number in (row["stream"], row["queue"]) if number is not None), 0),
            "bytes": row["bytes"],
            "fromDevice": source,
            "toDevice": target,
        }
        return process.device_event("gpu_memcpy", f"Memcpy {direction}", args)

    return process.events(records, [*COPIES.values][len(EVERY_EVENT) :], event)


def _calls(process: Process, records: Rows) -> EventColumns:
    """Calls of HIP, HSA and RCCL, and roctx ranges and marks."""
    ids = records["correlation"]
    calls = np.where(np.isin(ids, list(process.rccl_arguments)), ids, NULL)
    messages = np.full(len(ids), NULL)
    texts: dict[str, int] = {}
    if process.messages:
        said = map(process.messages.get, records["event"].tolist())
        messages[:] = [NULL if text is None else texts.setdefault(text, len(texts)) for text in said]
    distinct = list(texts)

    def event(row: Row) -> Event:
        layer, name = process.operation(row["kind"], row["operation"])
        pid, tid = str(process.pid), "" if row["thread"] is None else str(row["thread"])
        if layer.startswith("MARKER_"):
            return _marker(name, name if row["message"] is None else distinct[row["message"]], pid, tid)
        categories = (what for prefix, what in _CALL_CATEGORIES.items() if layer.startswith(prefix))
        category = next(categories, layer.lower())
        args = _collective(name, process.rccl_arguments.get(row["call"], {})) if category == "cpu_op" else {}
        return Event(category, name, pid, tid, args)

    columns = {**records, "message": messages, "call": calls}
    return process.events(columns, ("kind", "operation", "thread", "message", "call"), event)


EVERY_EVENT: Values = {
    "start": ("start", "start_timestamp"),
    "end": ("end", "end_timestamp"),
    "correlation": ("stack_id", "correlation_id.internal"),
}
_OPERATION: Values = {"kind": ("category_id", "kind"), "operation": ("name_id", "operation")}
KERNELS = RecordKind(
    {
        **EVERY_EVENT,
        "agent": ("agent_id", "dispatch_info.agent_id.handle"),
        "kernel": ("kernel_id", "dispatch_info.kernel_id"),
        "queue": ("queue_id", "dispatch_info.queue_id.handle"),
        "stream": ("stream_id", "stream_id.handle"),
        "private": ("private_segment_size", "dispatch_info.private_segment_size"),
        "group": ("group_segment_size", "dispatch_info.group_segment_size"),
        **{f"block_{axis}": (f"workgroup_size_{axis}", f"dispatch_info.workgroup_size.{axis}") for axis in "xyz"},
        **{f"items_{axis}": (f"grid_size_{axis}", f"dispatch_info.grid_size.{axis}") for axis in "xyz"},
    },
    _kernels,
)  # fmt: skip
COPIES = RecordKind(
    {
        **EVERY_EVENT,
        **_OPERATION,
        "source": ("src_agent_id", "src_agent_id.handle"),
        "target": ("dst_agent_id", "dst_agent_id.handle"),
        "queue": ("queue_id", "queue_id.handle"),
        "stream": ("stream_id", "stream_id.handle"),
        "bytes": ("size", "bytes"),
    },
    _copies,
)
CALLS = RecordKind(
    {
        **EVERY_EVENT,
        **_OPERATION,
        "thread": ("tid", "thread_id"),
        "event": ("event_id", "correlation_id.internal"),
    },
    _calls,
)
ALLOCATIONS: Values = {
    "start": EVERY_EVENT["start"],
    "thread": ("tid", "thread_id"),
    "agent": ("agent_id", "agent_id.handle"),
    "address": ("address", "address"),
    "bytes": ("size", "allocation_size"),
}


def _marker(operation: str, message: str, pid: str, tid: str) -> Event:
    if operation.startswith("roctxMark"):
        return Event("user_annotation", message, pid, tid, {}, phase="i")
    if operation.startswith(("roctxRangePush", "roctxThreadRange")):
        return Event("user_annotation", message, pid, tid, {"style": "PushPop"})
    if operation.startswith(("roctxRangeStart", "roctxProcessRange")):
        return Event("user_annotation", message, pid, tid + CROSSING_RANGES, {"style": "StartEnd"})
    return Event("roctx", operation, pid, tid, {})


def _collective(name: str, given: Mapping[str, str]) -> dict[str, Any]:
    """A call of RCCL as torch's record_param_comms: the kernels that it launches are this collective."""
    if kind_of(name) is None or name.startswith(("ncclGroup", "ncclComm")):
        return {}
    args: dict[str, Any] = {"Collective name": name.removeprefix("nccl").lower()}
    for key, part in (("In msg nelems", "sendcount"), ("Out msg nelems", "recvcount")):
        value = given.get(part, given.get("count", ""))
        if value.isdecimal():
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


def rank_of(environment: Mapping[str, Any], config: Mapping[str, Any]) -> TraceIdentity:
    """From the launcher's variables, else from an output name with %rank% in it, as rocprofv3 was given."""
    variables = {key: value for key, value in environment.items() if isinstance(value, str)}
    identity = detect(variables)
    if identity.source != SINGLE:
        return TraceIdentity(identity.rank, FROM_ENVIRONMENT, identity.world_size)
    for part in ("file", "path"):
        given, written = config.get(f"raw_output_{part}"), config.get(f"output_{part}")
        if isinstance(given, str) and isinstance(written, str) and (match := _RANK_KEY.search(given)):
            before, behind = _KEY.split(given[: match.start()])[-1], _KEY.split(given[match.end() :])[0]
            named = re.search(f"{re.escape(before)}(\\d{{1,6}}){re.escape(behind)}", written)
            if named:
                return TraceIdentity(int(named[1]), "recorded output name")
    return TraceIdentity(None, "")


_KEY = re.compile(r"%(?:[a-z_]+%|[hpjrs]|(?:env|q)\{\w+\}%?)")
_RANK_KEY = re.compile(r"%(?:rank%|r(?![a-z_]+%)|(?:env|q)\{(?:RANK|\w*_RANK|SLURM_PROCID|PALS_RANKID)\}%?)")
"""In names for the output of rocprofv3: %hostname%, %rank%, %env{RANK}%, …"""


def numbered_gpus(agents: Iterable[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """Id and fields of each GPU, as ROCm names them; one without a number has that of its position."""
    return [
        (handle, agent | {"logical_node_type_id": position if number is None else number})
        for position, (handle, agent) in enumerate(agents)
        for number in [integer(agent.get("logical_node_type_id"))]
    ]


def header_of(
    form: dict[str, str], pids: list[Any], gpus: Iterable[tuple[int, Mapping[str, Any]]], host: str
) -> dict[str, Any]:
    """The metadata for segment.json, with the GPUs in Kineto's form."""
    facts = {
        "name": "product_name",
        "numSms": "cu_count",
        "warpSize": "wave_front_size",
        "totalGlobalMem": "local_mem_size",
    }
    properties = [
        {"id": gpu["logical_node_type_id"]} | {key: gpu[name] for key, name in facts.items() if gpu.get(name)}
        for _, gpu in gpus
    ]
    header: dict[str, Any] = {"rocprof": form, "processes": pids, "deviceProperties": properties}
    return header | ({"host_name": host} if host else {})
