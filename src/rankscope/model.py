"""THE schema: what a run is made of, table by table, column by column.

Readers produce EVENTS, the store turns them into the other tables, SQL users and docs/store.md see them
under these names. Times are int64 nanoseconds; ids are unique within a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

FORMAT_VERSION = 4
"""Of the store on disk; a store of another version is read again from the raw files."""

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "privateuse1_runtime")
"""Calls into a device's runtime or driver; a GPU event points back to one by its correlation."""

COLLECTIVE_NAME_PATTERN = r"(?i)(?:^|[^a-z])(?:nccl|rccl|oneccl|msccl|nvshmem|deep_?ep)|cross_device_reduce"
"""Kernels that communicate, by name, for files that carry no collective metadata (docs/facts.md, Kineto traces)."""

HOST_COLLECTIVE_PATTERN = (
    r"(?i)^(?:gloo|mpi|ucc):"
    r"|^mpi_i?(?:all(?:reduce|gather|toall)|bcast|barrier|reduce|gather|scatter|scan|exscan|neighbor"
    r"|[bsr]?send|m?recv|wait)"
)
"""Annotations around communication that runs on the host: torch's own, and MPI's functions as nsys records them."""

SYNC_CALL_PATTERN = (
    r"^(?:(?:cuda|hip)(?:Stream|Event|Device|Ctx|Thread)|cu(?:Stream|Event|Ctx))"
    r"Synchronize(?:_v\d+)?(?:_ptsz)?$"
)
"""Runtime calls in which the host waits for its own device."""

DATALOADER_PATTERN = r"(?i)dataloader"
"""Annotations in which the training loop waits for its next batch."""

COMPUTING_OPS = (
    *(f"aten::{name}" for name in (
        "mm", "bmm", "matmul", "_scaled_mm", "_int_mm", "addmm", "baddbmm", "_addmm_activation",
        "linear", "mkldnn_linear", "_mkldnn_linear",
        "convolution", "_convolution", "cudnn_convolution", "mkldnn_convolution", "miopen_convolution",
        "convolution_backward",
        "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
    )),
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_backward",
)  # fmt: skip
"""Ops whose work can be told from the shapes of their inputs (analysis/flops.py has the formulas)."""

SHAPE_ARGS = ("Input Dims", "Input type", "Concrete Inputs", "flops", "Flops")
"""The arguments of such an op that tell it."""

ALLOCATING_OP_PATTERN = r"^aten::(?:empty|new_|resize|set_|zeros|ones|full|clone|contiguous|to$|_to_copy)"
"""Ops that only get memory for others: the one that asked for it is the one to name."""

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
        Field(
            "shapes",
            "VARCHAR[]",
            "of ops whose work can be told: Input Dims, Input type, Concrete Inputs, flops",
        ),
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
        Field("device_ns", "BIGINT", "ops: device activity launched by it, and by no op inside it"),
        Field("total_device_ns", "BIGINT", "ops: device activity launched by it or by an op inside it"),
    ),
)

GPU = Table(
    "gpu",
    "Device activity: the slices of kernels, copies and fills, with what launched them.",
    (
        *(field for field in SLICES.fields if not field.name.endswith("device_ns")),
        Field("launch_ns", "BIGINT", "start of the runtime call that launched it, from the run's start"),
        Field("launch_dur_ns", "BIGINT", "duration of that call"),
        Field("launch_track", "INTEGER", "where that call ran"),
        Field("op_name", "VARCHAR", "name of the op that launched it"),
        Field("op_ns", "BIGINT", "start of that op, from the run's start"),
        Field("op_track", "INTEGER", "where that op ran"),
        Field("line", "VARCHAR", "the line of Python that launched it, the user's own if any (with_stack)"),
    ),
)

COMPUTING = Table(
    "computing_ops",
    "Ops whose work can be told from the shapes of their inputs: products, convolutions, attention.",
    (
        Field("id", "BIGINT", "its slice"),
        Field("track", "INTEGER", "where it ran"),
        Field("start_ns", "BIGINT", "from the run's start"),
        Field("dur_ns", "BIGINT", "duration"),
        Field("name", "VARCHAR", ""),
        Field("step", "INTEGER", "number of its step"),
        Field("shapes", "VARCHAR[]", "Input Dims, Input type, Concrete Inputs, flops, as written"),
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
        Field(
            "op",
            "BIGINT",
            "[memory]: id of the op that asked for it: the innermost that does more than allocate",
        ),
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

COLLECTIVES = Table(
    "collectives",
    "Everything that communicates: kernels of NCCL and its kin, and collectives on the host (gloo).",
    (
        Field("id", "BIGINT", "its slice"),
        Field("track", "INTEGER", "where it ran"),
        Field("place", "VARCHAR", "device or host"),
        Field("kind", "VARCHAR", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, …"),
        Field(
            "start_ns",
            "BIGINT",
            "from the run's start; on the host, when the synchronising calls at its start have returned",
        ),
        Field("dur_ns", "BIGINT", "from there to its end"),
        Field("step", "INTEGER", "number of the step in which it was asked for"),
        Field("call", "BIGINT", "id of the op that asked for it (c10d::…, record_param_comms)"),
        Field("call_ns", "BIGINT", "when that op started, from the run's start"),
        Field("group_name", "VARCHAR", "of its process group, where the file tells it"),
        Field("group_description", "VARCHAR", "of its process group, where the file tells it"),
        Field("group_ranks", "VARCHAR", "as the file lists them"),
        Field("group_size", "INTEGER", "how many ranks take part"),
        Field("seq", "BIGINT", "sequence number within its process group"),
        Field("dtype", "VARCHAR", "float32, bfloat16, …"),
        Field("in_elements", "BIGINT", "what this rank puts in"),
        Field("out_elements", "BIGINT", "what this rank gets out"),
        Field("in_splits", "VARCHAR", "all_to_all with uneven parts: how many elements go to each rank"),
        Field("out_splits", "VARCHAR", "all_to_all with uneven parts: how many elements come from each rank"),
        Field("peer", "INTEGER", "send and recv: the other rank"),
    ),
)

NCU_KERNELS = Table(
    "ncu_kernels",
    "Kernels that Nsight Compute measured, one row a launch. They carry no time of day.",
    (
        Field("kernel", "BIGINT", "counts the kernels of the report"),
        Field("name", "VARCHAR", ""),
        Field("grid", "INTEGER[]", "blocks in x, y and z"),
        Field("block", "INTEGER[]", "threads of a block in x, y and z"),
        Field("device", "INTEGER", ""),
        Field("context", "INTEGER", ""),
        Field("stream", "BIGINT", ""),
        Field("process_id", "BIGINT", ""),
        Field("compute_capability", "VARCHAR", "9.0 is Hopper"),
    ),
)

NCU_METRICS = Table(
    "ncu_metrics",
    "What Nsight Compute measured of each kernel, one row a kernel and metric.",
    (
        Field("kernel", "BIGINT", "join with ncu_kernels on (rank, segment, kernel)"),
        Field("metric", "VARCHAR", "ncu's own name, as gpu__time_duration.sum"),
        Field("value", "DOUBLE", "in the unit beside it; null where ncu gave a text"),
        Field("unit", "VARCHAR", "without prefixes: ns, byte, byte/s, hz, %, inst, cycle, …"),
        Field("text", "VARCHAR", "as the report has it"),
    ),
)

SNAPSHOT_CATEGORY = "memory_snapshot"
"""Instants of a memory snapshot's history; apart from [memory] events, which may tell of the same allocations."""

MEMORY_SEGMENTS = Table(
    "memory_segments",
    "Memory the caching allocator held when a snapshot was taken, one row a segment.",
    (
        Field("number", "INTEGER", "counts the segments of the snapshot"),
        Field("device", "INTEGER", ""),
        Field("address", "BIGINT", ""),
        Field("stream", "BIGINT", ""),
        Field("kind", "VARCHAR", "large or small"),
        Field("total_bytes", "BIGINT", "reserved"),
        Field("allocated_bytes", "BIGINT", "of it, in use by tensors, rounded up to blocks"),
        Field("active_bytes", "BIGINT", "in use, or freed and waiting for a stream"),
        Field("requested_bytes", "BIGINT", "what was asked for, before rounding"),
        Field("expandable", "BOOLEAN", ""),
    ),
)

MEMORY_BLOCKS = Table(
    "memory_blocks",
    "The blocks those segments are cut into, in use or free.",
    (
        Field("number", "INTEGER", "of the segment: join with memory_segments on (rank, segment, number)"),
        Field("device", "INTEGER", ""),
        Field("address", "BIGINT", ""),
        Field("bytes", "BIGINT", "rounded up"),
        Field("requested_bytes", "BIGINT", "what was asked for"),
        Field("state", "VARCHAR", "active_allocated, active_pending_free or inactive"),
        Field("stack", "INTEGER", "who allocated it: join with memory_stacks on (rank, segment, stack)"),
    ),
)

MEMORY_STACKS = Table(
    "memory_stacks",
    "Where in the program memory was allocated and freed; instants of a snapshot name theirs in args.stack.",
    (
        Field("stack", "INTEGER", ""),
        Field("source", "VARCHAR", "innermost line of Python, the user's own if any"),
        Field("op", "VARCHAR", "operator or node of autograd, when C++ frames were recorded"),
        Field("frames", "VARCHAR[]", "lines of Python, innermost first"),
    ),
)

FLIGHT = Table(
    "flight",
    "Collectives and point-to-point operations in the NCCL flight recorder's ring when it was dumped.",
    (
        Field("record", "BIGINT", "counts what the rank recorded"),
        Field("group_name", "VARCHAR", "its name"),
        Field("group_description", "VARCHAR", "of the process group"),
        Field("local_group", "INTEGER", "the rank's own number for it"),
        Field("seq", "BIGINT", "sequence number in the group; of the last collective for point to point"),
        Field("p2p_seq", "BIGINT", "sequence number of point-to-point operations"),
        Field("kind", "VARCHAR", "all_reduce, _all_gather_base, send, …"),
        Field("peer", "INTEGER", "point to point: the other's rank in the group"),
        Field("is_p2p", "BOOLEAN", ""),
        Field("state", "VARCHAR", "scheduled, started or completed"),
        Field("created_ns", "BIGINT", "asked for, from the run's start"),
        Field("started_ns", "BIGINT", "seen to have started on the device"),
        Field("completed_ns", "BIGINT", "seen to have completed"),
        Field("duration_ns", "BIGINT", "on the device, where timing was on"),
        Field("bytes", "BIGINT", "what the rank puts in"),
        Field("input_sizes", "VARCHAR", "shapes, as JSON"),
        Field("output_sizes", "VARCHAR", "shapes, as JSON"),
        Field("dtype", "VARCHAR", ""),
        Field("timeout_ms", "BIGINT", ""),
        Field("source", "VARCHAR", "line of Python that called it, when stacks were recorded"),
    ),
)

FLIGHT_GROUPS = Table(
    "flight_groups",
    "Process groups of the dumps: who is in them (by name), and how far the rank got (by its own number).",
    (
        Field("group_name", "VARCHAR", "name; null in rows that tell of progress"),
        Field("group_description", "VARCHAR", ""),
        Field("ranks", "INTEGER[]", "its members"),
        Field(
            "local_group",
            "INTEGER",
            "the rank's own number; join with flight on (rank, segment, local_group)",
        ),
        Field("last_enqueued", "BIGINT", "sequence number"),
        Field("last_started", "BIGINT", "sequence number; -1 where starts are not watched"),
        Field("last_completed", "BIGINT", "sequence number"),
    ),
)

TABLES = (SLICES, GPU, COMPUTING, EVENTS, INSTANTS, COUNTERS, LINKS, TRACKS, STEPS, COLLECTIVES)
"""Every segment has them."""

FURTHER_TABLES = (
    NCU_KERNELS,
    NCU_METRICS,
    MEMORY_SEGMENTS,
    MEMORY_BLOCKS,
    MEMORY_STACKS,
    FLIGHT,
    FLIGHT_GROUPS,
)
"""What only some tools record: a segment has those its file speaks of, the views exist always."""

TIMELINE_FORMATS = ("kineto", "nsys")
"""Files that record the whole rank, first choice first: figures of a rank come from one of them, never from both."""

TIMES = frozenset(
    f"{moment}_ns"
    for moment in (
        "start",
        "ts",
        "source",
        "target",
        "created",
        "started",
        "completed",
        "call",
        "launch",
        "op",
    )
)
"""Columns that are points in time: views add the distance from the run's start."""
