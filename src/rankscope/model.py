"""The schema of a run: its tables, their columns, and the categories of events.

Readers produce EVENTS and the store derives the other tables from it. SQL users and docs/store.md see the same
names. Times are int64 nanoseconds; ids are unique within a file.
"""

from __future__ import annotations

from rankscope.records import dataclass
from rankscope.sql import sql_name

FORMAT_VERSION = 13
"""Of the store on disk. A store of another version is built again from the raw files."""

GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
COPY_CATEGORIES = ("gpu_memcpy", "gpu_memset")
LAUNCH_CATEGORIES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime",
    "privateuse1_driver",
)  # fmt: skip
"""Calls into a device's runtime or driver. A GPU event refers to one by its correlation id."""

UNFINISHED_STEP = "unfinished_step"
"""The annotation of a step that had not ended when the recording did: it is not one of the run's steps."""

NCCL_CATEGORY = "nccl"
"""Collectives in NCCL's own files. Not kernels: with no other device activity there, the idle time would be wrong."""

NCCL_PARTS = tuple(
    f"{NCCL_CATEGORY}_{part}"
    for part in (
        "group_api", "coll_api", "p2p_api", "kernel_launch", "group", "coll", "p2p", "proxy", "net", "net_ib",
        "net_sock", "gpu", "ce_coll", "ce_sync", "ce_batch",
    )
)  # fmt: skip
"""What NCCL does for a collective, in dumps of its profiler plugin, which lack the prefix: PROXY, NET, …"""

KNOWN_CATEGORIES = (
    *GPU_CATEGORIES, *LAUNCH_CATEGORIES, "cpu_op", "user_annotation", UNFINISHED_STEP, "gpu_user_annotation",
    "python_function", "python_sample", "cuda_sync", "cuda_event", "xpu_sync", "cuda_profiler_range", "overhead",
    "os_runtime", "Trace", NCCL_CATEGORY, *NCCL_PARTS,
)  # fmt: skip
"""Categories of slices that have a meaning here. Other slices are drawn and counted, and belong to no class."""

CATEGORY_ALIASES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
    "CudaRuntime": "cuda_runtime",
    "mtia_ccp_events": "kernel",
    "scope": "user_annotation",
    "metric": "user_annotation",
}
"""Categories of torch 1.8 to 1.10, Paddle, MTIA and Proton, and those used here: timeline/recording.py applies them."""

COLLECTIVE_NAME_PATTERN = "(?i)" + "|".join(
    (
        # Libraries of collectives; hcom_ is HCCL's, the stream kernels are NVSHMEM's.
        r"(?:^|[^a-z])(?:[hmnprx]ccl|oneccl|msccl|nvshmem|rocshmem|hcom_)",
        r"(?:barrier|sync)(?:_all)?_on_stream_kernel",
        # Exchange of tokens among experts: DeepEP under any namespace, HybridEP, pplx, MORI, TensorRT-LLM.
        r"(?:^|[^a-z])(?:deep_?ep|dpsk(?:::|2)ep|hybrid_?ep)(?:[^a-z]|$)|(?:inter|intra)node(?:_ll)?::",
        r"(?:\(anonymous namespace\)|<unnamed>|pplx[\w:]*)::(?:dispatch|combine)Kernel|a2a_(?:dispatch|combine)_",
        r"Ep(?:Dispatch|Combine)(?:Inter|Intra)Node|moeA2A|trtllm_(?:moe_)?alltoall",
        # Collectives on memory that all ranks see: torch, vLLM, SGLang, TensorRT-LLM, FlashInfer, AITER, userbuffers.
        r"all_?(?:reduce|to_?all)v?\w*kernel|multimem_\w*kernel|::(?:barrier|put_signal|wait_signal)_kernel",
        r"cross_device_(?:reduce|store)|quickreduce::|allreduce_LL_|mnnvl|ar_fusion::|(?:^|[^a-z])k?userbuffers_",
    )
)
"""Names of kernels that communicate, where neither metadata nor an op of torch's tells (docs/facts.md, Kineto traces).
Inductor's kernels only mention the collective that they were fused from: triton_poi_fused_all_reduce_0."""

COMMUNICATING_CALLS = ("c10d::", "record_param_comms")
"""Names of ops begin with these whose own kernels communicate, whatever the kernels' names are."""

HOST_COLLECTIVE_PATTERN = (
    r"(?i)^(?:gloo|mpi|ucc):"
    r"|^mpi_i?(?:all(?:reduce|gather|toall)|bcast|barrier|reduce|gather|scatter|scan|exscan|neighbor"
    r"|[bsr]?send|m?recv|wait)"
)
"""Annotations around communication on the host: those of torch, and MPI functions as nsys records them."""

GRAPH_LAUNCH_PATTERN = r"^(?:cuda|cu|hip)GraphLaunch"
"""Runtime calls that replay a CUDA graph: one call starts all its kernels."""

# At most nine digits: the column is a 32-bit integer.
PROFILER_STEP_PATTERN = r"^ProfilerStep#(\d{1,9})$"
NUMBERED_STEP_PATTERN = r"(?i)^(?:train(?:ing)?[_ ]?)?(?:step|iter(?:ation)?)[ _#:=]*(\d{1,9})$"
"""Annotations of training steps: torch.profiler's, and those that programs number themselves."""

ITERATIONS = "iterations"
"""The source of steps that are inferred from kernels."""

COMPILED_PATTERN = r"^(?:Torch-Compiled Region: |## Call CompiledFxGraph )"
"""Ranges that torch.compile's code runs in: one per compiled frame, and one per graph of Inductor."""

SYNC_CALL_PATTERN = (
    r"^(?:(?:cuda|hip)(?:Stream|Event|Device|Ctx|Thread)|cu(?:Stream|Event|Ctx))"
    r"Synchronize(?:_v\d+)?(?:_ptsz)?$"
    r"|^(?:AscendCL@)?aclrtSynchronize(?:Stream|Device|Event)(?:WithTimeout)?$"
)
"""Runtime calls in which the host waits for its device."""

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
"""Ops whose FLOPs follow from the shapes of their inputs (formulas: analysis/within_rank/flops.py)."""

SHAPE_ARGS = ("Input Dims", "Input type", "Concrete Inputs", "flops", "Flops")
"""The arguments of these ops that the formulas need."""

ALLOCATING_OP_PATTERN = r"^aten::(?:empty|new_|resize|set_|zeros|ones|full|clone|contiguous|to$|_to_copy)"
"""Ops that only allocate; their allocations are attributed to the op that called them."""

MEMORY_ARGS = {
    "Bytes": "BIGINT",
    "Total Allocated": "BIGINT",
    "Total Reserved": "BIGINT",
    "Device Type": "BIGINT",
    "Device Id": "BIGINT",
    "Addr": "BIGINT",
}
"""The arguments of a [memory] event, as torch names them, and their SQL types."""

MEMORY_TYPE = "STRUCT(" + ", ".join(f"{sql_name(name)} {kind}" for name, kind in MEMORY_ARGS.items()) + ")"
"""The full SQL type of the column events.memory."""

CROSSING_RANGES = " start/end ranges"
"""After a thread's number: the track of its NVTX ranges that need not nest."""

WAITING_PATTERN = r"(?i)work[:.]+wait|barrier|dataloader.*__next__"
"""Host events that only wait for another thread, process or rank."""

COMMUNICATING_OP_PATTERN = r"^_?c10d(?:_functional)?::"
"""Ops that start communication or wait for it; the ops inside them, such as copies, do work."""


@dataclass(frozen=True)
class Field:
    """One column of a table: name, SQL type and meaning."""

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
    "Every event of the file, unchanged and in file order.",
    (
        Field("ph", "VARCHAR", "phase of the trace event format: X, B, E, i, s, t, f, M, C, …"),
        Field("category", "VARCHAR", "cat as in the file: cpu_op, kernel, cuda_runtime, user_annotation, …"),
        Field("name", "VARCHAR", ""),
        Field("pid", "VARCHAR", "as in the file: a number or text"),
        Field("tid", "VARCHAR", "as in the file: a number or text"),
        Field("ts_ns", "BIGINT", "start on the file's own clock, in ns"),
        Field("dur_ns", "BIGINT", "duration in ns"),
        Field("flow", "VARCHAR", "id of a flow or of an async event"),
        Field("args", "JSON", "all arguments, as in the file"),
        Field(
            "correlation", "BIGINT", "args.correlation: joins a launch with the device activity it launched"
        ),
        Field("external_id", "BIGINT", "args.External id: joins device activity with its op"),
        Field("device", "BIGINT", "args.device"),
        Field("stream", "BIGINT", "args.stream"),
        Field("bytes", "BIGINT", "args.bytes of copies and fills"),
        Field("collective", "VARCHAR", "args.Collective name"),
    ),
)

READ_EVENTS = Table(
    "read_events",
    "What a reader selects: the events, and arguments of some that other tables are made from.",
    (
        *EVENTS.fields,
        Field("memory", "STRUCT", "the arguments of a [memory] event as numbers"),
        Field(
            "shapes",
            "VARCHAR[]",
            "ops with a FLOP formula: Input Dims, Input type, Concrete Inputs, flops",
        ),
    ),
)

SLICES = Table(
    "slices",
    "Everything that has a duration: ops, annotations, Python frames, runtime calls, kernels, copies.",
    (
        Field("id", "BIGINT", "row in events: join with events on (rank, segment, id) for the arguments"),
        Field("track", "INTEGER", "its track: join with tracks on (rank, segment, track)"),
        Field("start_ns", "BIGINT", "from the run's start"),
        Field("dur_ns", "BIGINT", "duration"),
        Field("depth", "INTEGER", "row inside its track; two slices of one row never overlap"),
        Field("name", "VARCHAR", ""),
        Field(
            "category",
            "VARCHAR",
            "cpu_op, kernel, gpu_memcpy, cuda_runtime, user_annotation, …; names of other programs are translated",
        ),
        Field("step", "INTEGER", "number of its step; for device activity, the step of its launch"),
        Field("parent", "BIGINT", "id of the innermost slice on its track that contains it"),
        Field("self_ns", "BIGINT", "duration minus that of its direct children"),
        Field("launch", "BIGINT", "device activity: id of the runtime call that launched it"),
        Field(
            "op",
            "BIGINT",
            "id of the innermost op around it; for device activity, of the op that launched it",
        ),
        Field(
            "python",
            "BIGINT",
            "id of the innermost Python frame around it, in user code if possible (with_stack)",
        ),
        Field("module", "BIGINT", "id of the nn.Module frame it was called from (with_stack)"),
        Field("correlation", "BIGINT", "joins a launch with the device activity it launched"),
        Field("device", "INTEGER", "device activity: the device"),
        Field("stream", "BIGINT", "device activity: the stream"),
        Field("bytes", "BIGINT", "copies and fills: size"),
        Field("collective", "VARCHAR", "kind of collective, from the metadata"),
        Field("device_ns", "BIGINT", "ops: duration of the device activity it launched itself"),
        Field("total_device_ns", "BIGINT", "ops: the same, including the ops inside it"),
    ),
)

GPU = Table(
    "gpu",
    "Device activity: the slices of kernels, copies and fills, with their launch and op.",
    (
        *(field for field in SLICES.fields if not field.name.endswith("device_ns")),
        Field("launch_ns", "BIGINT", "start of the runtime call that launched it, from the run's start"),
        Field("launch_dur_ns", "BIGINT", "duration of that call"),
        Field("launch_track", "INTEGER", "track of that call"),
        Field("op_name", "VARCHAR", "name of the op that launched it"),
        Field("op_ns", "BIGINT", "start of that op, from the run's start"),
        Field("op_track", "INTEGER", "track of that op"),
        Field("line", "VARCHAR", "Python line that launched it, in user code if possible (with_stack)"),
    ),
)

COMPUTING = Table(
    "computing_ops",
    "Ops whose FLOPs follow from the shapes of their inputs: matrix products, convolutions, attention.",
    (
        Field("id", "BIGINT", "id of its slice"),
        Field("track", "INTEGER", "its track"),
        Field("start_ns", "BIGINT", "from the run's start"),
        Field("dur_ns", "BIGINT", "duration"),
        Field("name", "VARCHAR", ""),
        Field("step", "INTEGER", "number of its step"),
        Field("shapes", "VARCHAR[]", "Input Dims, Input type, Concrete Inputs, flops, as in the file"),
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
        Field("device", "INTEGER", "[memory]: device number"),
        Field("address", "BIGINT", "[memory]: address of the block"),
        Field(
            "op",
            "BIGINT",
            "[memory]: id of the innermost op around it that does more than allocate",
        ),
    ),
)

COUNTERS = Table(
    "counters",
    "Values over time (events of phase C), one row per series and point.",
    (
        Field("id", "BIGINT", "row in events"),
        Field("track", "INTEGER", ""),
        Field("ts_ns", "BIGINT", "from the run's start"),
        Field("name", "VARCHAR", "name of the counter"),
        Field("series", "VARCHAR", "argument of the event that holds the value"),
        Field("value", "DOUBLE", ""),
    ),
)

LINKS = Table(
    "links",
    "Flow arrows between slices: launch to kernel (ac2g), forward to backward (fwdbwd), others as named.",
    (
        Field("kind", "VARCHAR", "category of the flow"),
        Field("flow", "VARCHAR", "its id in the file"),
        Field("source", "BIGINT", "id of the slice it starts in; null if not in the file"),
        Field("target", "BIGINT", "id of the slice it ends in; null if not in the file"),
        Field("source_ns", "BIGINT", "its start, from the run's start"),
        Field("target_ns", "BIGINT", "its end, from the run's start"),
    ),
)

TRACKS = Table(
    "tracks",
    "Threads, device streams, annotations on streams, async events, counters.",
    (
        Field("track", "INTEGER", ""),
        Field("kind", "VARCHAR", "thread, stream, annotation (on a stream), async, counter, span"),
        Field("pid", "VARCHAR", "as in the file"),
        Field("tid", "VARCHAR", "as in the file"),
        Field("device", "INTEGER", "streams only"),
        Field("stream", "BIGINT", "streams only"),
        Field("process", "VARCHAR", "name of the process, if recorded"),
        Field("thread", "VARCHAR", "name of the thread, if recorded"),
        Field("label", "VARCHAR", "name to show: 'GPU 0 stream 7', 'thread 453 (python3)'"),
        Field("sort_index", "BIGINT", "order requested by the file"),
        Field("slices", "BIGINT", "number of slices"),
        Field("rows", "INTEGER", "number of rows its slices need (largest depth + 1)"),
    ),
)

STEPS = Table(
    "steps",
    "The training steps.",
    (
        Field("step", "INTEGER", "its number"),
        Field("start_ns", "BIGINT", "start on the host, from the run's start"),
        Field("dur_ns", "BIGINT", "duration on the host"),
        Field("end_ns", "BIGINT", "end on host and device, from the run's start"),
        Field("time_ns", "BIGINT", "step time, host and device: from the end of the step before to end_ns"),
        Field(
            "source",
            "VARCHAR",
            "profiler (ProfilerStep#N), or what it was inferred from: annotation, optimizer, iterations of kernels",
        ),
    ),
)

COLLECTIVES = Table(
    "collectives",
    "Collectives and point-to-point operations: kernels of NCCL and similar libraries, and those on the host (gloo).",
    (
        Field("id", "BIGINT", "id of its slice"),
        Field("track", "INTEGER", "its track"),
        Field("place", "VARCHAR", "device or host"),
        Field("kind", "VARCHAR", "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, …"),
        Field(
            "start_ns",
            "BIGINT",
            "from the run's start; on the host, after the synchronisation calls at its beginning",
        ),
        Field("dur_ns", "BIGINT", "duration from start_ns"),
        Field("step", "INTEGER", "number of the step of its call"),
        Field("call", "BIGINT", "id of the op that called it (c10d::…, record_param_comms)"),
        Field("call_ns", "BIGINT", "start of that op, from the run's start"),
        Field("group_name", "VARCHAR", "name of its process group, if recorded"),
        Field("group_description", "VARCHAR", "description of its process group, if recorded"),
        Field("group_ranks", "VARCHAR", "ranks of its process group, as in the file"),
        Field("group_size", "INTEGER", "number of ranks in its process group"),
        Field("seq", "BIGINT", "sequence number within its process group"),
        Field("dtype", "VARCHAR", "float32, bfloat16, …"),
        Field("in_elements", "BIGINT", "elements this rank contributes"),
        Field("out_elements", "BIGINT", "elements this rank receives"),
        Field("in_splits", "VARCHAR", "all_to_all with uneven splits: elements sent to each rank"),
        Field("out_splits", "VARCHAR", "all_to_all with uneven splits: elements received from each rank"),
        Field("peer", "INTEGER", "send, recv and a batch with a single peer: the other rank"),
        Field(
            "members",
            "VARCHAR",
            'a kernel of batch_isend_irecv: its messages as JSON, ["send" or "recv", peer, group, bytes] each',
        ),
    ),
)

NCU_KERNELS = Table(
    "ncu_kernels",
    "Kernels measured by Nsight Compute, one row per launch. They have no timestamps.",
    (
        Field("kernel", "BIGINT", "number of the kernel in the report, from 0"),
        Field("name", "VARCHAR", ""),
        Field("grid", "INTEGER[]", "blocks in x, y and z"),
        Field("block", "INTEGER[]", "threads per block in x, y and z"),
        Field("device", "INTEGER", ""),
        Field("context", "INTEGER", ""),
        Field("stream", "BIGINT", ""),
        Field("process_id", "BIGINT", ""),
        Field("compute_capability", "VARCHAR", "9.0 is Hopper"),
    ),
)

NCU_METRICS = Table(
    "ncu_metrics",
    "Metrics measured by Nsight Compute, one row per kernel and metric.",
    (
        Field("kernel", "BIGINT", "join with ncu_kernels on (rank, segment, kernel)"),
        Field("metric", "VARCHAR", "ncu's name, such as gpu__time_duration.sum"),
        Field("value", "DOUBLE", "in `unit`; null if ncu reports text"),
        Field("unit", "VARCHAR", "without prefixes: ns, byte, byte/s, hz, %, inst, cycle, …"),
        Field("text", "VARCHAR", "as in the report"),
    ),
)

SNAPSHOT_CATEGORY = "memory_snapshot"
"""Category of the instants of a memory snapshot. Not [memory]: a trace may record the same allocations."""
OPTIMIZER_STEPS = "optimizer_steps"
"""In the header of a snapshot, by device: the id of the first event after each step of an optimizer."""

MEMORY_SEGMENTS = Table(
    "memory_segments",
    "Memory that the caching allocator held when a snapshot was taken, one row per allocator segment.",
    (
        Field("number", "INTEGER", "number of the allocator segment in the snapshot, from 0"),
        Field("device", "INTEGER", ""),
        Field("address", "BIGINT", ""),
        Field("stream", "BIGINT", ""),
        Field("kind", "VARCHAR", "large or small"),
        Field("total_bytes", "BIGINT", "reserved"),
        Field("allocated_bytes", "BIGINT", "in use by tensors, rounded up to blocks"),
        Field("active_bytes", "BIGINT", "in use, or freed and waiting for a stream"),
        Field("requested_bytes", "BIGINT", "in use by tensors, before rounding"),
        Field("expandable", "BOOLEAN", ""),
    ),
)

MEMORY_BLOCKS = Table(
    "memory_blocks",
    "The blocks of the allocator's segments, in use or free.",
    (
        Field(
            "number",
            "INTEGER",
            "of the allocator segment: join with memory_segments on (rank, segment, number)",
        ),
        Field("device", "INTEGER", ""),
        Field("address", "BIGINT", ""),
        Field("bytes", "BIGINT", "size, rounded up"),
        Field("requested_bytes", "BIGINT", "size before rounding"),
        Field("state", "VARCHAR", "active_allocated, active_pending_free or inactive"),
        Field(
            "stack", "INTEGER", "stack of its allocation: join with memory_stacks on (rank, segment, stack)"
        ),
    ),
)

MEMORY_STACKS = Table(
    "memory_stacks",
    "Call stacks of allocations and frees; the instants of a snapshot refer to them by args.stack.",
    (
        Field("stack", "INTEGER", ""),
        Field("source", "VARCHAR", "innermost Python line, in user code if possible"),
        Field("op", "VARCHAR", "operator or autograd node, if C++ frames were recorded"),
        Field("frames", "VARCHAR[]", "Python lines, innermost first"),
    ),
)

FLIGHT = Table(
    "flight",
    "Collectives and point-to-point operations in a dump of the NCCL flight recorder.",
    (
        Field("record", "BIGINT", "number of the entry on this rank"),
        Field("group_name", "VARCHAR", "name of the process group"),
        Field("group_description", "VARCHAR", "description of the process group"),
        Field("local_group", "INTEGER", "number of the process group on this rank"),
        Field(
            "seq",
            "BIGINT",
            "sequence number in the group; for point-to-point operations, of the last collective",
        ),
        Field("p2p_seq", "BIGINT", "sequence number of point-to-point operations"),
        Field("kind", "VARCHAR", "all_reduce, _all_gather_base, send, …"),
        Field("peer", "INTEGER", "point-to-point: rank of the other side in the group"),
        Field("is_p2p", "BOOLEAN", ""),
        Field("state", "VARCHAR", "scheduled, started or completed"),
        Field("created_ns", "BIGINT", "call, from the run's start"),
        Field("started_ns", "BIGINT", "start on the device, when it was noticed"),
        Field("completed_ns", "BIGINT", "completion, when it was noticed"),
        Field("duration_ns", "BIGINT", "on the device, if timing was enabled"),
        Field("bytes", "BIGINT", "input size on this rank"),
        Field("input_sizes", "VARCHAR", "shapes, as JSON"),
        Field("output_sizes", "VARCHAR", "shapes, as JSON"),
        Field("dtype", "VARCHAR", ""),
        Field("timeout_ms", "BIGINT", ""),
        Field("source", "VARCHAR", "Python line that called it, if stacks were recorded"),
    ),
)

FLIGHT_GROUPS = Table(
    "flight_groups",
    "Process groups of the dumps: members (rows with a name) and progress (rows with a local number).",
    (
        Field("group_name", "VARCHAR", "name; null in rows of progress"),
        Field("group_description", "VARCHAR", ""),
        Field("ranks", "INTEGER[]", "members"),
        Field(
            "local_group",
            "INTEGER",
            "number on this rank: join with flight on (rank, segment, local_group)",
        ),
        Field("last_enqueued", "BIGINT", "sequence number"),
        Field("last_started", "BIGINT", "sequence number; -1 if starts are not recorded"),
        Field("last_completed", "BIGINT", "sequence number"),
    ),
)

NCCL = Table(
    "nccl",
    "Collectives and point-to-point operations as NCCL itself measured them (Inspector, profiler plugin).",
    (
        Field("communicator", "VARCHAR", "NCCL's hash of the communicator, the same on all its ranks"),
        Field("communicator_name", "VARCHAR", "its name, if the program gave it one"),
        Field("communicator_rank", "INTEGER", "rank within the communicator"),
        Field("ranks", "INTEGER", "size of the communicator"),
        Field("nodes", "INTEGER", "number of nodes of the communicator"),
        Field("function", "VARCHAR", "AllReduce, AllGather, Send, …"),
        Field("kind", "VARCHAR", "the kind of collective, as in collectives"),
        Field("seq", "BIGINT", "sequence number; NCCL counts each function of a communicator separately"),
        Field("peer", "INTEGER", "send and recv: rank of the other side within the communicator"),
        Field("rank_bytes", "BIGINT", "message size as NCCL counts it: of one rank"),
        Field("bytes", "BIGINT", "message size S as in nccl-tests, as in collectives"),
        Field("size_range", "VARCHAR", "Prometheus: the range of message sizes, such as 4-5GB"),
        Field("dtype", "VARCHAR", "float32, bfloat16, …"),
        Field("created_ns", "BIGINT", "call on the host, from the run's start"),
        Field("started_ns", "BIGINT", "start of the first channel's kernel, when it was noticed"),
        Field("completed_ns", "BIGINT", "end of the last channel's kernel, when it was noticed"),
        Field("written_ns", "BIGINT", "when the line was written, some time after the end"),
        Field("duration_ns", "BIGINT", "execution time as NCCL reports it; Prometheus: the mean"),
        Field("timing", "VARCHAR", "what measured it: kernel_gpu, kernel_cpu or collective_cpu"),
        Field("algbw_gb_s", "DOUBLE", "as NCCL reports it"),
        Field("busbw_gb_s", "DOUBLE", "as NCCL reports it; Prometheus: the geometric mean"),
        Field("algorithm", "VARCHAR", "RING, TREE, NVLS, …"),
        Field("protocol", "VARCHAR", "LL, LL128 or SIMPLE"),
        Field("channels", "INTEGER", "number of channels"),
        Field("is_mean", "BOOLEAN", "true: of an unknown number of operations (Prometheus)"),
    ),
)

ORIGINS = Table(
    "origins",
    "Where device activity comes from that a CUDA graph or compiled code launched.",
    (
        Field("id", "BIGINT", "id of its slice"),
        Field("graph", "BIGINT", "CUDA graph: its id, where the trace has it"),
        Field("node", "BIGINT", "CUDA graph: number of its node, from 0, in the order of the graph"),
        Field("op", "VARCHAR", "op that launched it; of a graph, when it was captured"),
        Field("module", "VARCHAR", "nn.Module it was called from"),
        Field("line", "VARCHAR", "Python line that launched it, or that its compiled kernel was made from"),
        Field(
            "compiled",
            "VARCHAR",
            "compiled code: its compile id or the key of its FX graph, its function if known",
        ),
        Field("known_by", "VARCHAR", "launch, capture or TORCH_TRACE; null where nothing tells"),
    ),
)

TABLES = (SLICES, GPU, COMPUTING, EVENTS, INSTANTS, COUNTERS, LINKS, TRACKS, STEPS, COLLECTIVES)
"""Tables that every segment has."""

FURTHER_TABLES = (
    NCU_KERNELS,
    NCU_METRICS,
    MEMORY_SEGMENTS,
    MEMORY_BLOCKS,
    MEMORY_STACKS,
    FLIGHT,
    FLIGHT_GROUPS,
    NCCL,
    ORIGINS,
)
"""Tables of some file formats only. The views always exist, and may be empty."""

OTHER_FORMAT = "other"
"""Of readers that other packages add."""
TIMELINE_FORMATS = ("kineto", "nsys", "rocprof", "ascend", "xla", OTHER_FORMAT)
"""Formats that record a rank's whole timeline, in order of preference. A rank is analysed from one of them."""

NCCL_FORMATS = ("nccl_inspector", "nccl_plugin")
"""NCCL's own files with collectives, in order of preference. They repeat what a trace of the same run has."""

TIMES = frozenset(
    f"{moment}_ns"
    for moment in (
        "start",
        "end",
        "ts",
        "source",
        "target",
        "created",
        "started",
        "completed",
        "written",
        "call",
        "launch",
        "op",
    )
)
"""Columns that are points in time. Files hold them relative to their own origin, views relative to the run's start."""

# Counters of GPUs, from nvidia-smi and DCGM: in the table `counters`, `name` is the GPU ("GPU 3") and `series`
# is one of these.

SM_CLOCK = "SM clock (MHz)"
SM_CLOCK_LIMIT = "highest SM clock (MHz)"
MEMORY_CLOCK = "memory clock (MHz)"
POWER = "power (W)"
POWER_LIMIT = "power limit (W)"
TEMPERATURE = "temperature (°C)"
MEMORY_TEMPERATURE = "memory temperature (°C)"
UTILIZATION = "utilization (%)"
MEMORY_UTILIZATION = "memory utilization (%)"
MEMORY_USED = "memory used (MiB)"

SW_POWER_CAP = "throttle: SW power cap"
HW_SLOWDOWN = "throttle: HW slowdown"
SW_THERMAL = "throttle: SW thermal slowdown"
HW_THERMAL = "throttle: HW thermal slowdown"
HW_POWER_BRAKE = "throttle: HW power brake"

REASON_BITS = {
    0x01: "throttle: GPU idle",
    0x02: "throttle: application clocks",
    0x04: SW_POWER_CAP,
    0x08: HW_SLOWDOWN,
    0x10: "throttle: sync boost",
    0x20: SW_THERMAL,
    0x40: HW_THERMAL,
    0x80: HW_POWER_BRAKE,
    0x100: "throttle: display clocks",
}
"""Bits of NVML's clock event reasons. A value of 1 means that the reason was active when the sample was taken."""

THERMAL_REASONS = (SW_THERMAL, HW_THERMAL)
POWER_REASONS = (SW_POWER_CAP, HW_POWER_BRAKE)
HARDWARE_REASONS = (HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE)


def gpu_label(number: object) -> str:
    """The name of a GPU's counters; without a number it is the only one."""
    return f"GPU {number}".rstrip()
