"""What a process did on AMD GPUs, written as a rocpd database of schema 3 or 4, or as rocprofv3's JSON.

Names of tables, columns and keys are those of rocprofiler-sdk's published schemas: rocpd_tables.sql and
rocprofv3-schema.json.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

HIP, HSA, RCCL, RANGE = "HIP_RUNTIME_API_EXT", "HSA_CORE_API", "RCCL_API", "MARKER_CORE_RANGE_API"
KINDS = (
    "NONE", HSA, HIP, RCCL, RANGE, "KERNEL_DISPATCH", "MEMORY_COPY", "MEMORY_ALLOCATION", "SCRATCH_MEMORY",
)  # fmt: skip
SECTIONS = {HSA: "hsa_api", HIP: "hip_api", RCCL: "rccl_api", RANGE: "marker_api"}
CPU_AGENT, GPU_AGENTS = 40, (42, 43)
DIRECTIONS = {"HtoD": "HOST_TO_DEVICE", "DtoH": "DEVICE_TO_HOST", "DtoD": "DEVICE_TO_DEVICE"}


@dataclass(frozen=True)
class KernelRun:
    name: str
    start: int
    end: int
    call: int = 0
    device: int = 0
    stream: int = 1
    queue: int = 3
    block: tuple[int, int, int] = (256, 1, 1)
    items: tuple[int, int, int] = (1024, 2, 1)


@dataclass(frozen=True)
class Copy:
    direction: str
    start: int
    end: int
    size: int
    call: int = 0
    stream: int = 1


@dataclass(frozen=True)
class Call:
    kind: str
    name: str
    start: int
    end: int
    number: int
    thread: int = 71
    message: str = ""
    args: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """Memory allocated, or freed if it has no size."""

    start: int
    address: int
    size: int = 0
    device: int | None = 0


@dataclass(frozen=True)
class Activity:
    """Everything that one process recorded."""

    kernels: Sequence[KernelRun] = ()
    copies: Sequence[Copy] = ()
    calls: Sequence[Call] = ()
    blocks: Sequence[Block] = ()
    counters: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By the place of a kernel: values by the name of the counter."""
    pid: int = 70
    environment: Mapping[str, str] = field(default_factory=dict)
    output: tuple[str, str] = ("%hostname%/%pid%", "node1/70")
    """The name of the output, as given and as made."""

    @cached_property
    def symbols(self) -> dict[str, int]:
        return {name: place + 5 for place, name in enumerate(dict.fromkeys(one.name for one in self.kernels))}

    @cached_property
    def counter_names(self) -> list[str]:
        return sorted({name for values in self.counters.values() for name in values})

    @property
    def config(self) -> dict[str, str]:
        return {"raw_output_file": self.output[0], "output_file": self.output[1]}

    @property
    def command(self) -> list[str]:
        return ["python", "train.py"]


_TRACK = "nid pid tid agent_id queue_id stream_id name_id"
_SIZES = (
    "private_segment_size group_segment_size workgroup_size_x workgroup_size_y workgroup_size_z "
    "grid_size_x grid_size_y grid_size_z region_name_id event_id"
)
_TABLES = {
    "metadata": "tag value",
    "string": "guid string",
    "info_node": "guid hash machine_id system_name hostname release version hardware_name domain_name",
    "info_process": "guid nid ppid pid init fini start end command environment extdata",
    "info_thread": "guid nid ppid pid tid name start end extdata",
    "info_agent": "guid nid pid type absolute_index logical_index type_index uuid name model_name vendor_name "
    "product_name user_name extdata",
    "info_pmc": "guid nid pid agent_id target_arch name symbol value_type extdata",
    "info_kernel_symbol": "guid nid pid code_object_id kernel_name display_name sgpr_count arch_vgpr_count "
    "accum_vgpr_count extdata",
    "event": "guid category_id stack_id parent_stack_id correlation_id call_stack line_info extdata",
    "arg": "guid event_id position type name value extdata",
    "pmc_event": "guid event_id pmc_id value extdata",
}
_SCHEMA_3 = {
    "track": "guid nid pid tid name_id extdata",
    "region": "guid nid pid tid start end name_id event_id extdata",
    "sample": "guid track_id timestamp event_id extdata",
    "kernel_dispatch": f"guid nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end {_SIZES} extdata",
    "memory_copy": "guid nid pid tid start end name_id dst_agent_id dst_address src_agent_id src_address size "
    "queue_id stream_id region_name_id event_id extdata",
    "memory_allocate": "guid nid pid tid agent_id type level start end address size queue_id stream_id event_id "
    "extdata",
}
_SCHEMA_4 = {
    "info_category": "guid name",
    "timestamp": "guid value phase track_id",
    "track": f"guid {_TRACK} extdata",
    "region": "guid track_id name_id start_id end_id event_id extdata",
    "sample": "guid track_id name_id timestamp_id event_id extdata",
    "kernel_dispatch": f"guid track_id kernel_id dispatch_id start_id end_id {_SIZES} extdata",
    "memory_copy": "guid track_id start_id end_id name_id dst_agent_id dst_address src_agent_id src_address size "
    "region_name_id event_id extdata",
    "memory_allocate": "guid track_id type level start_id end_id name_id address size region_name_id event_id extdata",
}


class RocpdWriter:
    """One database; each call of `write` adds the tables of a process."""

    def __init__(self, path: Path, schema: int = 3) -> None:
        self.path, self._schema = path, schema
        self._connection = sqlite3.connect(path)
        self._connection.execute("PRAGMA synchronous = OFF")

    def write(self, activity: Activity) -> RocpdWriter:
        self._ending = f"_{activity.pid:08x}_d4de_74de_b70e_c34ecf8c3a87"
        self._guid = self._ending[1:].replace("_", "-")
        self._ids: dict[tuple[str, Any], int] = {}
        for table, columns in {**_TABLES, **(_SCHEMA_3 if self._schema == 3 else _SCHEMA_4)}.items():
            listed = ", ".join(f'"{column}"' for column in columns.split())
            self._connection.execute(
                f'CREATE TABLE "rocpd_{table}{self._ending}" ("id" INTEGER NOT NULL PRIMARY KEY, {listed})'
            )
            self._connection.execute(
                f'CREATE VIEW IF NOT EXISTS "rocpd_{table}" AS SELECT * FROM "rocpd_{table}{self._ending}"'
            )
        self._process(activity)
        self._events(activity)
        return self

    def sql(self, statement: str) -> RocpdWriter:
        """Any statement; TABLE(name) stands for a table of the last process."""
        self._connection.execute(re.sub(r"TABLE\((\w+)\)", rf'"rocpd_\1{self._ending}"', statement))
        return self

    def close(self) -> Path:
        self._connection.commit()
        self._connection.close()
        return self.path

    def _add(self, table: str, **values: Any) -> int:
        known = (_SCHEMA_3 if self._schema == 3 else _SCHEMA_4).get(table) or _TABLES[table]
        own = known.split()
        row = {key: value for key, value in values.items() if key in own or key == "id"}
        row |= {
            key: default
            for key, default in (("guid", self._guid), ("extdata", "{}"))
            if key in own and key not in row
        }
        columns = ", ".join(f'"{key}"' for key in row)
        cursor = self._connection.execute(
            f'INSERT INTO "rocpd_{table}{self._ending}" ({columns}) VALUES ({", ".join("?" * len(row))})',
            list(row.values()),
        )
        return cursor.lastrowid or 0

    def _once(self, table: str, key: Any, **values: Any) -> int:
        if (table, key) not in self._ids:
            self._ids[table, key] = self._add(table, **values)
        return self._ids[table, key]

    def _string(self, text: str) -> int:
        return self._once("string", text, string=text)

    def _when(self, **times: int) -> dict[str, int]:
        if self._schema == 3:
            return times
        return {f"{name}_id": self._add("timestamp", value=value, phase=0) for name, value in times.items()}

    def _where(self, **place: Any) -> dict[str, Any]:
        place = {"nid": 1, **place}
        if self._schema == 3:
            return place
        return {"track_id": self._once("track", tuple(sorted(place.items())), **place)}

    def _event(self, kind: str, number: int, extdata: str = "{}") -> int:
        category = self._string(kind) if self._schema == 3 else self._once("info_category", kind, name=kind)
        return self._add(
            "event", category_id=category, stack_id=number, parent_stack_id=0, correlation_id=0, call_stack="{}",
            line_info="{}", extdata=extdata,
        )  # fmt: skip

    def _process(self, activity: Activity) -> None:
        pid = activity.pid
        self._add("metadata", tag="schema_version", value=str(self._schema))
        self._add("info_node", id=1, hash=1, machine_id="m", hostname="node1")
        self._add(
            "info_process", id=pid, nid=1, ppid=1, pid=pid, init=0, fini=0, start=0, end=0,
            command=" ".join(activity.command), environment=json.dumps(activity.environment),
            extdata=json.dumps(activity.config),
        )  # fmt: skip
        self._add("info_thread", nid=1, pid=pid, tid=71, name="main thread")
        for place, agent in enumerate((CPU_AGENT, *GPU_AGENTS)):
            self._add(
                "info_agent", id=agent, nid=1, pid=pid, type="GPU" if place else "CPU", absolute_index=agent,
                type_index=max(place - 1, 0), name="gfx942", product_name="AMD Instinct MI300X" if place else "EPYC",
                extdata=json.dumps({"cu_count": 304}),
            )  # fmt: skip
        for name, number in activity.symbols.items():
            self._add(
                "info_kernel_symbol", id=number, nid=1, pid=pid, code_object_id=1, kernel_name=f"{name}.kd",
                display_name=name, sgpr_count=16, arch_vgpr_count=32, accum_vgpr_count=4,
            )  # fmt: skip
        for place, name in enumerate(activity.counter_names):
            self._add(
                "info_pmc", id=place + 1, nid=1, pid=pid, agent_id=GPU_AGENTS[0], name=name, symbol=name
            )

    def _events(self, activity: Activity) -> None:
        pid = activity.pid
        for one in activity.calls:
            message = json.dumps({"message": one.message}) if one.message else "{}"
            event = self._event(one.kind, one.number, message)
            for place, (name, value) in enumerate(one.args.items()):
                self._add("arg", event_id=event, position=place, type="size_t", name=name, value=value)
            name_id = self._string(one.name)
            if one.start == one.end:
                track = self._once(
                    "track", (pid, one.thread, "sample"), nid=1, pid=pid, tid=one.thread, name_id=name_id
                )
                self._add(
                    "sample",
                    track_id=track,
                    name_id=name_id,
                    **self._when(timestamp=one.start),
                    event_id=event,
                )
            else:
                self._add(
                    "region", **self._where(pid=pid, tid=one.thread), **self._when(start=one.start, end=one.end),
                    name_id=name_id, event_id=event,
                )  # fmt: skip
        for place, run in enumerate(activity.kernels):
            event = self._event("KERNEL_DISPATCH", run.call)
            self._add(
                "kernel_dispatch",
                **self._where(
                    pid=pid, tid=71, agent_id=GPU_AGENTS[run.device], queue_id=run.queue, stream_id=run.stream
                ),
                kernel_id=activity.symbols[run.name], dispatch_id=place, **self._when(start=run.start, end=run.end),
                private_segment_size=0, group_segment_size=64, event_id=event,
                **{f"workgroup_size_{axis}": size for axis, size in zip("xyz", run.block, strict=True)},
                **{f"grid_size_{axis}": size for axis, size in zip("xyz", run.items, strict=True)},
            )  # fmt: skip
            for counter, counted in activity.counters.get(place, {}).items():
                self._add(
                    "pmc_event",
                    event_id=event,
                    pmc_id=activity.counter_names.index(counter) + 1,
                    value=counted,
                )
        for copy in activity.copies:
            self._add(
                "memory_copy", **self._where(pid=pid, tid=71, queue_id=None, stream_id=copy.stream),
                **self._when(start=copy.start, end=copy.end),
                name_id=self._string(f"MEMORY_COPY_{DIRECTIONS[copy.direction]}"), size=copy.size,
                src_agent_id=CPU_AGENT if copy.direction[0] == "H" else GPU_AGENTS[0],
                dst_agent_id=CPU_AGENT if copy.direction[-1] == "H" else GPU_AGENTS[0],
                event_id=self._event("MEMORY_COPY", copy.call),
            )  # fmt: skip
        for block in activity.blocks:
            agent = CPU_AGENT if block.device is None else GPU_AGENTS[block.device]
            self._add(
                "memory_allocate", **self._where(pid=pid, tid=71, agent_id=agent if block.size else None),
                type="ALLOC" if block.size else "FREE", level="REAL",
                **self._when(start=block.start, end=block.start + 1),
                address=block.address, size=block.size, event_id=self._event("MEMORY_ALLOCATION", 0),
            )  # fmt: skip


def write_rocpd(path: Path, activity: Activity, schema: int = 3) -> Path:
    return RocpdWriter(path, schema).write(activity).close()


def tool_json(activity: Activity) -> dict[str, Any]:
    """The content of rocprofv3's _results.json."""
    names = {kind: sorted({one.name for one in activity.calls if one.kind == kind}) for kind in KINDS}
    names["MEMORY_COPY"] = [f"MEMORY_COPY_{name}" for name in DIRECTIONS.values()]
    names["MEMORY_ALLOCATION"] = ["MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"]
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in ("kernel_dispatch", *SECTIONS.values())}

    def record(kind: str, name: str, start: int, end: int, number: int, thread: int = 71) -> dict[str, Any]:
        return {
            "size": 96,
            "kind": KINDS.index(kind),
            "operation": names[kind].index(name) if name else 2,
            "correlation_id": {"internal": number, "external": 0},
            "start_timestamp": start,
            "end_timestamp": end,
            "thread_id": thread,
        }

    def info(place: int, run: KernelRun) -> dict[str, Any]:
        return {
            "size": 72,
            "agent_id": {"handle": GPU_AGENTS[run.device]},
            "queue_id": {"handle": run.queue},
            "kernel_id": activity.symbols[run.name],
            "dispatch_id": place,
            "private_segment_size": 0,
            "group_segment_size": 64,
            "workgroup_size": dict(zip("xyz", run.block, strict=True)),
            "grid_size": dict(zip("xyz", run.items, strict=True)),
        }

    for place, run in enumerate(activity.kernels):
        records["kernel_dispatch"].append(
            record("KERNEL_DISPATCH", "", run.start, run.end, run.call)
            | {"dispatch_info": info(place, run), "stream_id": {"handle": run.stream}}
        )
    for one in activity.calls:
        made = record(one.kind, one.name, one.start, one.end, one.number, one.thread)
        records[SECTIONS[one.kind]].append(made | ({"args": dict(one.args)} if one.args else {}))
    records["memory_copy"] = [
        record("MEMORY_COPY", f"MEMORY_COPY_{DIRECTIONS[copy.direction]}", copy.start, copy.end, copy.call)
        | {
            "src_agent_id": {"handle": CPU_AGENT if copy.direction[0] == "H" else GPU_AGENTS[0]},
            "dst_agent_id": {"handle": CPU_AGENT if copy.direction[-1] == "H" else GPU_AGENTS[0]},
            "bytes": copy.size,
            "stream_id": {"handle": copy.stream},
        }
        for copy in activity.copies
    ]
    records["memory_allocation"] = [
        record(
            "MEMORY_ALLOCATION", names["MEMORY_ALLOCATION"][block.size == 0], block.start, block.start + 1, 0
        )
        | {
            "agent_id": {"handle": CPU_AGENT if block.device is None else GPU_AGENTS[block.device]},
            "address": hex(block.address),
            "allocation_size": block.size,
        }
        for block in activity.blocks
    ]  # fmt: skip
    counted = [
        {
            "thread_id": 71,
            "dispatch_data": {
                "size": 128,
                "correlation_id": {"internal": run.call, "external": 0},
                "start_timestamp": run.start,
                "end_timestamp": run.end,
                "dispatch_info": info(place, run),
            },
            "records": [
                {"counter_id": {"handle": activity.counter_names.index(name) + 1}, "value": value}
                for name, value in activity.counters[place].items()
            ],
        }
        for place, run in enumerate(activity.kernels)
        if place in activity.counters
    ]
    agents = [
        {
            "size": 312,
            "id": {"handle": agent},
            "type": 2 if place else 1,
            "cu_count": 304,
            "logical_node_type_id": max(place - 1, 0),
            "name": "gfx942",
            "product_name": "AMD Instinct MI300X" if place else "EPYC",
        }
        for place, agent in enumerate((CPU_AGENT, *GPU_AGENTS))
    ]
    return {
        "rocprofiler-sdk-tool": [
            {
                "metadata": {
                    "node": {"hostname": "node1"},
                    "pid": activity.pid,
                    "init_time": 1,
                    "fini_time": 2,
                    "command": activity.command,
                    "config": activity.config,
                },
                "agents": agents,
                "counters": [
                    {"id": {"handle": place + 1}, "name": name}
                    for place, name in enumerate(activity.counter_names)
                ],
                "strings": {
                    "callback_records": [],
                    "buffer_records": [{"kind": kind, "operations": names[kind]} for kind in KINDS],
                    "marker_api": [
                        {"key": one.number, "value": one.message} for one in activity.calls if one.message
                    ],
                },
                "code_objects": [],
                "kernel_symbols": [
                    {
                        "size": 88,
                        "kernel_id": number,
                        "formatted_kernel_name": name,
                        "sgpr_count": 16,
                        "arch_vgpr_count": 32,
                        "accum_vgpr_count": 4,
                    }
                    for name, number in activity.symbols.items()
                ],
                "host_functions": [],
                "summary": [],
                "callback_records": {"counter_collection": counted},
                "buffer_records": records,
            }
        ]
    }


def write_tool_json(path: Path, activity: Activity, indent: int | None = None) -> Path:
    separators = (",", ":") if indent is None else None
    path.write_text(json.dumps(tool_json(activity), indent=indent, separators=separators))
    return path
