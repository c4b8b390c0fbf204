"""THE schema: what a run is made of, table by table, column by column.

Readers produce EVENTS, the store turns them into the other tables, SQL users and docs/store.md see them
under these names. Times are int64 nanoseconds; ids are unique within a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 1
"""Of the store on disk; a store of another version is read again from the raw files."""

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime")
"""Calls into a device's runtime or driver; a GPU event points back to one by its correlation."""

COLLECTIVE_NAME_PATTERN = r"(?i)(?:^|[^a-z])(?:nccl|rccl|oneccl|msccl|nvshmem|deep_?ep)|cross_device_reduce"
"""Kernels that communicate, by name, for files that carry no collective metadata (FACTS section 4)."""

HOST_COLLECTIVE_PATTERN = r"^(?:gloo|mpi|ucc):"
"""Annotations torch puts around collectives that run on the host."""

SYNC_CALL_PATTERN = (
    r"^(?:cuda|hip)(?:Stream|Event|Device|Ctx)Synchronize$|^cu(?:Stream|Event|Ctx)Synchronize$"
)
"""Runtime calls in which the host waits for its own device."""

WAITING_PATTERN = r"(?i)work[:.]+wait|barrier|dataloader.*__next__"
"""Host events that wait for somebody else: not work of their own."""


@dataclass(frozen=True)
class Field:
    """One column of a table: name, SQL type, and what it means."""

    name: str
    type: str
    help: str


@dataclass(frozen=True)
class Table:
    """One table of the store: a Parquet file per rank and segment, a view over all of them in SQL."""

    name: str
    help: str
    fields: tuple[Field, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)


EVENTS = Table(
    "events",
    "Every event as the file has it, in file order; nothing is left out.",
    (
        Field("ph", "VARCHAR", "phase of the trace event format: X, B, E, i, s, t, f, M, C, …"),
        Field("category", "VARCHAR", "cat: cpu_op, kernel, cuda_runtime, user_annotation, …"),
        Field("name", "VARCHAR", ""),
        Field("pid", "VARCHAR", "as written; a number or a text"),
        Field("tid", "VARCHAR", "as written; a number or a text"),
        Field("ts_ns", "BIGINT", "start on the file's own clock, in ns"),
        Field("dur_ns", "BIGINT", "duration in ns"),
        Field("flow", "VARCHAR", "id of a flow or of an async event"),
        Field("args", "JSON", "every argument, as written"),
        Field("correlation", "BIGINT", "args.correlation: joins a launch with what it launched"),
        Field("external_id", "BIGINT", "args.External id: joins device activity with its op"),
        Field("device", "BIGINT", "args.device"),
        Field("stream", "BIGINT", "args.stream"),
        Field("bytes", "BIGINT", "args.bytes of copies and fills"),
        Field("collective", "VARCHAR", "args.Collective name"),
        Field("memory", "STRUCT", "the arguments of a [memory] event as numbers"),
    ),
)

SLICES = Table(
    "slices",
    "Everything that has a duration: ops, annotations, Python frames, runtime calls, kernels, copies.",
    (
        Field("id", "BIGINT", "row in events: join with events on (rank, segment, id) for the arguments"),
        Field("track", "INTEGER", "where it ran: join with tracks on (rank, segment, track)"),
        Field("start_ns", "BIGINT", "from the run's start"),
        Field("dur_ns", "BIGINT", "duration"),
        Field("depth", "INTEGER", "row inside its track; two slices of one row never overlap"),
        Field("name", "VARCHAR", ""),
        Field("category", "VARCHAR", "cpu_op, kernel, gpu_memcpy, cuda_runtime, user_annotation, …"),
        Field("step", "INTEGER", "number of its step; of its launch's step for device activity"),
        Field("parent", "BIGINT", "id of the innermost slice on its track that contains it"),
        Field("self_ns", "BIGINT", "duration less that of its direct children"),
        Field("launch", "BIGINT", "device activity: id of the runtime call that launched it"),
        Field("op", "BIGINT", "id of the op around it; for device activity, of the op that launched it"),
        Field(
            "python",
            "BIGINT",
            "id of the innermost Python line around it, the user's own if any (with_stack)",
        ),
        Field("module", "BIGINT", "id of the nn.Module frame it was called from (with_stack)"),
        Field("correlation", "BIGINT", "joins a launch with what it launched"),
        Field("device", "INTEGER", "device activity: the device"),
        Field("stream", "BIGINT", "device activity: the stream"),
        Field("bytes", "BIGINT", "copies and fills: how much"),
        Field("collective", "VARCHAR", "kind of collective, from the metadata"),
    ),
)

INSTANTS = Table(
    "instants",
    "Points in time: allocator events ([memory]) and marks.",
    (
        Field("id", "BIGINT", "row in events"),
        Field("track", "INTEGER", ""),
        Field("ts_ns", "BIGINT", "from the run's start"),
        Field("name", "VARCHAR", ""),
        Field("category", "VARCHAR", ""),
        Field("step", "INTEGER", ""),
        Field("bytes", "BIGINT", "[memory]: allocated (positive) or freed (negative)"),
        Field("allocated_bytes", "BIGINT", "[memory]: total allocated after it"),
        Field("reserved_bytes", "BIGINT", "[memory]: total reserved after it"),
        Field("device_type", "INTEGER", "[memory]: 0 is the CPU, 1 CUDA"),
        Field("device", "INTEGER", "[memory]: which device"),
        Field("address", "BIGINT", "[memory]: address of the block"),
    ),
)

COUNTERS = Table(
    "counters",
    "Values over time (events of phase C), one row a series and point.",
    (
        Field("id", "BIGINT", "row in events"),
        Field("track", "INTEGER", ""),
        Field("ts_ns", "BIGINT", "from the run's start"),
        Field("name", "VARCHAR", "of the counter"),
        Field("series", "VARCHAR", "key of the argument"),
        Field("value", "DOUBLE", ""),
    ),
)

LINKS = Table(
    "links",
    "Flow arrows between slices: launch to kernel (ac2g), forward to backward (fwdbwd), others as named.",
    (
        Field("kind", "VARCHAR", "category of the flow"),
        Field("flow", "VARCHAR", "its id in the file"),
        Field("source", "BIGINT", "id of the slice it leaves; null when the file does not have it"),
        Field("target", "BIGINT", "id of the slice it enters; null when the file does not have it"),
        Field("source_ns", "BIGINT", "when it leaves, from the run's start"),
        Field("target_ns", "BIGINT", "when it arrives, from the run's start"),
    ),
)

TRACKS = Table(
    "tracks",
    "Where things ran: threads, device streams, annotations on streams, async lanes, counters.",
    (
        Field("track", "INTEGER", ""),
        Field("kind", "VARCHAR", "thread, stream, annotation (on a stream), async, counter, span"),
        Field("pid", "VARCHAR", "as in the file"),
        Field("tid", "VARCHAR", "as in the file"),
        Field("device", "INTEGER", "of a stream"),
        Field("stream", "BIGINT", "of a stream"),
        Field("process", "VARCHAR", "name of the process, where the file tells it"),
        Field("thread", "VARCHAR", "name of the thread, where the file tells it"),
        Field("label", "VARCHAR", "what people read: 'GPU 0 stream 7', 'thread 453 (python3)'"),
        Field("sort_index", "BIGINT", "the file's wish for the order"),
        Field("slices", "BIGINT", "how many slices it holds"),
        Field("rows", "INTEGER", "how many rows its slices need (largest depth + 1)"),
    ),
)

STEPS = Table(
    "steps",
    "The training steps.",
    (
        Field("step", "INTEGER", "its number"),
        Field("start_ns", "BIGINT", "from the run's start"),
        Field("dur_ns", "BIGINT", ""),
        Field("source", "VARCHAR", "profiler (ProfilerStep#N), or what it was inferred from"),
    ),
)

TABLES = (SLICES, EVENTS, INSTANTS, COUNTERS, LINKS, TRACKS, STEPS)
