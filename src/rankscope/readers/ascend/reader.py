"""trace_view.json of Ascend's profilers: a Chrome trace whose processes are layers, with what their events mean here.

| layer | becomes |
|---|---|
| CANN | runtime calls, on the thread of the Python process that made them |
| Ascend Hardware | kernels, copies and waits, by the type of the task; a thread is a stream |
| HCCL, Communication | each operation a kernel that communicates; its tasks are annotations |
| Overlap Analysis | annotations: it is computed from the others |

The rank and the process groups are in files beside it:
NAME_ascend_pt/profiler_info_3.json, profiler_metadata.json, ASCEND_PROFILER_OUTPUT/trace_view.json
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankscope.collective_kinds import kind_of
from rankscope.readers.base import EventBatch, Reader, Reading, TraceIdentity, rank_from_name
from rankscope.readers.checked_values import as_object, json_object
from rankscope.readers.kineto.reader import JsonBatch, KinetoReading

if TYPE_CHECKING:
    from rankscope.readers.ascend.survey import Survey
    from rankscope.readers.columns import Codes, EventColumns
    from rankscope.readers.edited_columns import EditedColumns

_SIGNS = re.compile(
    rb'"(?:Ascend Hardware|CANN|AscendCL@[^"]*|async_npu|async_task_queue|HostToDevice|torch_to_npu)"'
    rb'|"ts"\s*:\s*"\d{13,}\.'
)
"""Names that only these profilers write, and times in quotes, in the first bytes of a list of events."""
_TASK_TYPE = re.compile(rb'"Task Type":"([^"\\]*)"')
_COPIES = re.compile("(?i)^(?:SDMA|PCIE_DMA|MEMCPY)")
_WAITS = re.compile("(?i)EVENT|NOTIFY|PLACE_HOLDER|WAIT|WRITE_VALUE|STREAM_LOCK")
_STEP = re.compile(r"^ProfilerStep#\d+$")
_NUMBER = re.compile(r"\d{1,9}")
_HCCL_STREAMS, _OVERLAP_STREAMS = 100_000, 200_000
"""Where the numbers of rows begin that are no streams: HCCL's operations, which run on several, and the overlap."""
_DTYPES = {
    "FP16": "half", "FP32": "float", "FP64": "double", "BFP16": "bfloat16", "BF16": "bfloat16", "INT8": "char",
    "INT16": "short", "INT32": "int", "INT64": "long", "UINT8": "byte",
}  # fmt: skip
"""HCCL's names of types, and torch's."""


class AscendBatch(EventBatch):
    """The events of one block of JSON, with what they mean."""

    def __init__(self, batch: JsonBatch, number: int, survey: Survey, recording: Recording) -> None:
        self._batch, self._number, self._found, self._recording = batch, number, survey, recording

    def columns(self) -> EventColumns:
        import numpy as np

        from rankscope.readers.edited_columns import EditedColumns

        columns = self._batch.columns()
        edited = EditedColumns(columns)
        is_slice = columns.phase == edited.code("X")
        self._name_steps(edited)
        self._translate_calls(edited, is_slice)
        self._translate_tasks(edited, is_slice, columns)
        self._translate_operations(edited, is_slice, columns.tid)
        self._translate_overlap(edited, is_slice, columns.tid)
        for name in ("correlation", "external_id"):
            events, ids = self._found.in_batch(self._number, getattr(self._found, name), len(columns))
            np.put(getattr(edited, name), events, ids)
        return edited.columns()

    def close(self) -> None:
        self._batch.close()

    def _of_layer(self, edited: EditedColumns, *names: str) -> Any:
        import numpy as np

        return np.isin(edited.pid, edited.codes_of(self._found.pids(*names)))

    def _device(self) -> int:
        """The number in the label of the hardware's process ('NPU 3'); a process has one device."""
        for pid in self._found.pids("Ascend Hardware"):
            number = _NUMBER.search(self._found.labels.get(pid, ""))
            if number is not None:
                return int(number[0])
        return 0

    def _name_steps(self, edited: EditedColumns) -> None:
        """torch_npu records steps as ops."""
        import numpy as np

        steps = [code for code, text in enumerate(edited.texts) if _STEP.match(text)]
        is_step = np.isin(edited.name, steps) & (edited.category == edited.code("cpu_op"))
        edited.category[is_step] = edited.code("user_annotation")

    def _translate_calls(self, edited: EditedColumns, is_slice: Any) -> None:
        """CANN's calls have a process of their own with the threads of the Python process."""
        calls = is_slice & self._of_layer(edited, "CANN")
        edited.category[calls] = edited.code("privateuse1_runtime")
        python = self._found.pids("Python")
        if len(python) == 1:
            edited.pid[calls] = edited.code(python[0])

    def _translate_tasks(self, edited: EditedColumns, is_slice: Any, columns: EventColumns) -> None:
        import numpy as np

        tasks = is_slice & self._of_layer(edited, "Ascend Hardware")
        if not tasks.any():
            return
        category = np.where(tasks, edited.code("kernel"), edited.category)
        task_types = edited.found_in_args(_TASK_TYPE)
        kinds = {kind: edited.code(_category(kind)) for kind in {match[1] for _, match in task_types}}
        events = np.array([event for event, _ in task_types], dtype=np.int64)
        of_tasks = tasks[events]
        category[events[of_tasks]] = np.array([kinds[match[1]] for _, match in task_types], np.int32)[
            of_tasks
        ]
        # HCCL's own tasks are part of an operation, which is counted as a whole.
        listed = _are_among(columns.time, columns.duration, self._found.hccl_tasks)
        category[tasks & listed] = edited.code("gpu_user_annotation")
        edited.category[:] = category
        edited.device[tasks] = self._device()
        edited.stream[tasks] = _stream_numbers(edited.texts, columns.tid[tasks])

    def _translate_overlap(self, edited: EditedColumns, is_slice: Any, tid: Codes) -> None:
        """Computed from the other layers: shown, and not counted."""
        derived = is_slice & self._of_layer(edited, "Overlap Analysis")
        edited.category[derived] = edited.code("gpu_user_annotation")
        edited.device[derived] = self._device()
        edited.stream[derived] = _stream_numbers(edited.texts, tid[derived]) + _OVERLAP_STREAMS

    def _translate_operations(self, edited: EditedColumns, is_slice: Any, tid: Codes) -> None:
        import numpy as np

        from rankscope.readers.ascend.survey import HCCL, is_communication

        hccl = np.flatnonzero(is_slice & self._of_layer(edited, *HCCL))
        edited.category[hccl] = edited.code("gpu_user_annotation")
        edited.device[hccl] = self._device()
        edited.stream[hccl] = _stream_numbers(edited.texts, tid[hccl]) + _HCCL_STREAMS
        for event in hccl.tolist():
            thread = self._found.threads.get((edited.texts[edited.pid[event]], edited.texts[tid[event]]), "")
            name = edited.texts[edited.name[event]]
            kind = kind_of(name)
            if kind is None or not (is_communication(thread) or name.startswith("hcom_")):
                continue
            edited.category[event] = edited.code("kernel")
            args = edited.arguments(event)
            edited.add_collective(event, args, self._metadata(kind, name, thread, args))

    def _metadata(self, kind: str, name: str, thread: str, args: dict[str, Any]) -> dict[str, Any]:
        """Of an operation, under torch's names."""
        metadata: dict[str, Any] = {"Collective name": kind}
        group = self._recording.group(name)
        if group is not None:
            metadata["Process Group Name"] = group.hash
            metadata["Process Group Description"] = group.name or thread
        size = len(group.ranks) if group is not None else 0
        if group is not None and size:
            metadata["Process Group Ranks"] = str(list(group.ranks))
            metadata["Group size"] = size
        count = args.get("count")
        if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 48:
            # HCCL counts what a rank sends, of a reduce-scatter what it receives.
            metadata["In msg nelems"] = count * size if kind == "reduce_scatter" and size else count
            metadata["Out msg nelems"] = count * size if kind == "all_gather" and size else count
        dtype = _DTYPES.get(str(args.get("data_type", "")).upper())
        if dtype is not None:
            metadata["dtype"] = dtype
        return metadata


class AscendReading(Reading):
    """Two passes over one file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._json = KinetoReading(path)
        self.report, self.header = self._json.report, self._json.header

    def batches(self) -> Iterator[AscendBatch]:
        # Late: numpy is not needed to find and identify files.
        from rankscope.readers.ascend.survey import survey

        recording = read_recording(self._path)
        self._describe(recording)
        surveyed = survey(_all_columns(self._path))
        for number, batch in enumerate(self._json.batches()):
            yield AscendBatch(batch, number, surveyed, recording)

    def _describe(self, recording: Recording) -> None:
        identity = identity_of(self._path)
        if identity.rank is None or identity.world_size is None:
            return
        groups = [
            {
                "pg_name": group.hash,
                "pg_desc": group.name,
                "pg_size": len(group.ranks),
                "ranks": list(group.ranks),
            }
            for group in recording.groups.values()
            if group.ranks
        ]
        about = {"backend": "hccl", "rank": identity.rank, "world_size": identity.world_size}
        self.header["distributedInfo"] = {**about, "pg_config": groups}

    def position(self) -> int:
        return self._json.position()

    def clock_base_ns(self) -> int:
        return self._json.clock_base_ns()


class AscendReader(Reader):
    """Recognised by names and times that no other program writes."""

    name = "ascend"

    def recognises(self, path: Path, head: bytes) -> bool:
        text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
        return text[:1] == b"[" and _SIGNS.search(text) is not None

    def identify_parts(self, path: Path) -> list[TraceIdentity]:
        return [identity_of(path)]

    def open(self, path: Path, part: str = "") -> AscendReading:
        return AscendReading(path)


ASCEND = AscendReader()


def _all_columns(path: Path) -> Iterator[EventColumns]:
    """The events of a file for the first pass; what is wrong with it is reported in the second."""
    for batch in KinetoReading(path).batches():
        try:
            yield batch.columns()
        finally:
            batch.close()


def _category(task_type: bytes) -> str:
    kind = task_type.decode("utf-8", "replace")
    if _COPIES.search(kind):
        return "gpu_memcpy"
    return "cuda_sync" if _WAITS.search(kind) else "kernel"


def _are_among(time: Any, duration: Any, listed: Any) -> Any:
    """Which events have a start and a duration that are listed."""
    import numpy as np

    if not len(listed):
        return np.zeros(len(time), bool)
    starts = listed[:, 0]
    begin, end = np.searchsorted(starts, time), np.searchsorted(starts, time, side="right")
    are_listed = np.zeros(len(time), bool)
    for step in range(int((end - begin).max(initial=0))):
        at = np.minimum(begin + step, len(starts) - 1)
        are_listed |= (begin + step < end) & (listed[at, 1] == duration)
    return are_listed


def _stream_numbers(texts: list[str], tid: Codes) -> Any:
    """The numbers of threads; 0 for one that has another name."""
    import numpy as np

    codes, code_index = np.unique(tid, return_inverse=True)
    numbers = [int(match[0]) if (match := _NUMBER.fullmatch(texts[code])) else 0 for code in codes.tolist()]
    return np.array(numbers, dtype=np.int64)[code_index]


OUTPUT = "ASCEND_PROFILER_OUTPUT"
_INFO = re.compile(r"profiler_info_(\d{1,6})\.json")
_LARGEST = 256 << 20
_OPERATION = re.compile(r"^\w+?__(\d{1,3})_\d+")
"""hcom_allReduce__606_0_1: the kind, the last three digits of the group's hash, a running number."""


@dataclass(frozen=True)
class Group:
    """A process group. Only the hash of its id is recorded with operations."""

    hash: str
    name: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recording:
    """What the other files tell."""

    groups: dict[str, Group] = field(default_factory=dict)
    """By hash."""
    group_of: dict[str, str] = field(default_factory=dict)
    """The hash of an operation's group by the operation's name, from communication.json."""

    def group(self, operation: str) -> Group | None:
        """The group of an operation; None if it cannot be told."""
        hash_recorded = self.group_of.get(operation)
        if hash_recorded is not None:
            return self.groups.get(hash_recorded, Group(hash_recorded))
        match = _OPERATION.match(operation)
        if match is None:
            return None
        ending = [group for hash, group in self.groups.items() if hash.endswith(match[1].zfill(3))]
        return ending[0] if len(ending) == 1 else Group(match[1])


def group_hash(id: str) -> str:
    """The number that CANN gives a group: two polynomial hashes of 32 bits of its id."""
    high = low = 0
    for letter in id:
        high = (high * 29 + ord(letter)) & 0xFFFFFFFF
        low = (low * 131 + ord(letter)) & 0xFFFFFFFF
    return str(high << 32 | low)


def identity_of(trace: Path) -> TraceIdentity:
    folder = _folder(trace)
    ranks = {
        int(match[1]) for path in folder.glob("profiler_info_*.json") if (match := _INFO.fullmatch(path.name))
    }
    rank, source = (ranks.pop(), "profiler_info") if len(ranks) == 1 else (rank_from_name(trace), "file name")
    if rank is None:
        rank, source = rank_from_name(folder), "folder name"
    world = max((len(ranks) for ranks in _group_ranks(folder).values()), default=0)
    return TraceIdentity(rank, source if rank is not None else "", world or None)


def read_recording(trace: Path) -> Recording:
    folder = _folder(trace)
    groups = {}
    for id, about in _listed_groups(folder).items():
        hash = group_hash(id)
        groups[hash] = Group(hash, str(about.get("group_name", "")), _group_ranks(folder).get(id, ()))
    group_of: dict[str, str] = {}
    for step in _json(trace.parent / "communication.json").values():
        for operations in as_object(step).values():
            for name in as_object(operations):
                operation, _, hash = name.partition("@")
                if hash:
                    group_of[operation] = hash
    return Recording(groups, group_of)


def _folder(trace: Path) -> Path:
    return trace.parent.parent if trace.parent.name == OUTPUT else trace.parent


def _listed_groups(folder: Path) -> dict[str, dict[str, Any]]:
    listed = _json(folder / "profiler_metadata.json").get("parallel_group_info")
    return {id: about for id, about in as_object(listed).items() if isinstance(about, dict)}


def _group_ranks(folder: Path) -> dict[str, tuple[int, ...]]:
    """The ranks of each group, by its id."""
    ranks_of = {}
    for id, about in _listed_groups(folder).items():
        ranks = about.get("global_ranks")
        if isinstance(ranks, list) and ranks and set(map(type, ranks)) == {int}:
            ranks_of[id] = tuple(ranks)
    return ranks_of


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; {} if it is missing, damaged or far too large."""
    try:
        return json_object(path.read_bytes()) if path.is_file() and path.stat().st_size <= _LARGEST else {}
    except OSError:
        return {}
