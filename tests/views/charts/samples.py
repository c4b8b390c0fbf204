"""Results for every chart, small enough to read the SVG that comes out."""

from __future__ import annotations

from dataclasses import replace

from rankscope.analysis.core.result import Column, Finding, Result
from views.samples import BREAKDOWN, KERNELS


def result(name: str, title: str, columns: tuple[str, ...], *rows: tuple[object, ...]) -> Result:
    units = {"ns": "ns", "bytes": "bytes", "pct": "percent"}
    listed = tuple(Column(c, units.get(c.rpartition("_")[2], "")) for c in columns)  # type: ignore[arg-type]
    return Result(name, title, "whole file", listed, [dict(zip(columns, row, strict=True)) for row in rows])


STEPS = result(
    "steps", "Steps", ("rank", "step", "start_ns", "time_ns"),
    (0, 3, 0, 17_200_000), (0, 4, 17_200_000, 18_100_000), (1, 3, 0, 17_400_000), (1, 4, 17_400_000, 16_900_000),
)  # fmt: skip
MANY_STEPS = result(
    "steps",
    "Steps",
    ("rank", "step", "start_ns", "time_ns"),
    *((rank, step, 0, 10_000_000 + rank * 100_000 + step) for rank in range(12) for step in (1, 2, 3)),
)
OVERLAP = result(
    "overlap", "Overlap", ("rank", "step", "collective", "comm_ns", "hidden_ns", "exposed_ns", "overlap_pct"),
    (0, None, None, 100_000, 61_000, 39_000, 61.0), (0, None, "all_reduce", 1, 1, 0, 100.0),
    (1, None, None, 90_000, 0, 90_000, 0.0), (0, 3, None, 50_000, 50_000, 0, 100.0),
)  # fmt: skip
IDLE = result(
    "idle", "Idle", ("rank", "device", "host_bound_ns", "launch_latency_ns", "sync_ns", "dataloader_ns", "other_ns"),
    (0, 0, 5_000_000, 100_000, 2_000_000, 0, 300_000),
)  # fmt: skip
MEMORY = result(
    "memory_curve", "Memory over time", ("rank", "device", "ts_ns", "allocated_bytes", "reserved_bytes"),
    (0, "GPU 0", 0, 10**9, 4 * 10**9), (0, "GPU 0", 5_000_000, 3 * 10**9, 4 * 10**9),
    (0, "GPU 0", 9_000_000, 2 * 10**9, 4 * 10**9), (0, "CPU", 1_000_000, 640, None),
)  # fmt: skip
HELD = result(
    "held_by_line", "Memory by line over time", ("rank", "device", "line", "ts_ns", "held_bytes"),
    (3, "GPU 0", "train.py(9): step", 0, 0), (3, "GPU 0", "train.py(9): step", 5_000_000, 2 * 10**9),
    (3, "GPU 0", "train.py(9): step", 9_000_000, 3 * 10**9), (3, "GPU 0", "AddmmBackward0", 0, 10**9),
    (3, "GPU 0", "AddmmBackward0", 5_000_000, 10**8), (3, "GPU 0", "AddmmBackward0", 9_000_000, 10**9),
)  # fmt: skip
ROOFLINE = result(
    "roofline", "Roofline",
    ("name", "calls", "intensity", "flop_s", "pct_of_roof", "bound", "dtype", "device_ns", "source"),
    ("aten::mm", 36, 750.0, 7.8e14, 78.9, "compute", "bfloat16", 13_600_000, "shapes"),
    ("aten::bmm <b>", 12, 20.0, 5.0e13, 52.1, "memory", "bfloat16", 2_000_000, "shapes"),
    ("gemm", 4, 600.0, 6.1e14, 61.7, "compute", "bfloat16", 1_000_000, "ncu"),
    ("aten::mul", 4, 0.2, None, None, None, "float32", 1_000, "shapes"),
)  # fmt: skip
COLLECTIVES = result(
    "collectives", "Collectives",
    ("group", "kind", "dtype", "bytes", "ranks", "count", "transfer_ns", "wait_ns", "algbw_gb_s", "busbw_gb_s",
     "fit_pct"),
    ("0", "all_reduce", "float32", 26_214_400, 8, 120, 250_000, 10_000, 104.8, 183.5, 100.0),
    ("0", "all_reduce", "float32", 1_024_000, 8, 12, 20_000, 500, 51.2, 89.6, 100.0),
    ("0", "all_reduce", "float32", 1_024, 8, 12, 20_000, 500, 0.05, 0.09, 60.0),
    ("1", "all_gather", "bfloat16", 8_388_608, 2, 40, 90_000, 4_000, 93.2, 46.6, None),
    ("1", "barrier", None, None, 2, 3, 9_000, 100, None, None, None),
)  # fmt: skip
STRAGGLERS = Result(
    "stragglers",
    "Stragglers",
    "whole file",
    (Column("rank"), Column("caused_wait_ns", "ns"), Column("cause")),
    [
        {"rank": 0, "caused_wait_ns": 1_000_000, "cause": None},
        {"rank": 1, "caused_wait_ns": 203_000_000, "cause": "compute"},
    ],
    findings=(Finding("critical", "rank 1 made the others wait", ranks=(1,)),),
)
NCU = result(
    "ncu", "Kernels", ("rank", "name", "duration_ns", "compute_pct", "memory_pct"),
    (0, "nvjet_tst_128x256", 52_000, 81.2, 44.0), (0, "elementwise", 9_000, 12.0, 91.5), (0, "unknown", 1, None, None),
)  # fmt: skip
CRITICAL = result(
    "critical", "The critical path", ("class", "rank", "ns", "pct", "name"),
    ("compute", 0, 5_000_000, 50.0, "mm"), ("comm", 1, 3_000_000, 30.0, "all_reduce"),
    ("compute", 1, 1_500_000, 15.0, "mm"), ("between", None, 500_000, 5.0, "the step ends"),
)  # fmt: skip
SWEEP = result(
    "sweep", "Matmul rate by sequence length", ("series", "sequence", "flop_s"),
    ("float32, H 9216, 1 rank", 2304, 4.9e13), ("float32, H 9216, 1 rank", 4608, 5.1e13),
    ("bfloat16, H 9216, 1 rank", 2304, 6.1e14), ("bfloat16, H 9216, 1 rank", 4608, 7.2e14),
)  # fmt: skip
LATENESS = replace(
    result(
        "lateness", "How late each rank is, step by step", ("rank", "step", "excess_ns"),
        *((str(rank), step, 5_100_000 if rank == 2 else 40_000 * step) for rank in range(4) for step in (0, 1)),
    ),
    facts={"mean_step_ns": 25_000_000.0, "late": ["2"]},
)  # fmt: skip
WAITS = replace(
    result(
        "waits", "Who waited for whom", ("rank", "waited_for", "wait_ns"),
        ("0", "2", 30_000_000), ("1", "2", 29_000_000), ("3", "2", 14_000_000), ("3", "0", 120_000),
    ),
    notes=("chains of waits are followed",), facts={"labels": ["0", "1", "2", "3"]},
)  # fmt: skip
TRAFFIC = replace(
    result(
        "traffic", "Bytes between ranks", ("sender", "receiver", "bytes"),
        *((str(a), str(b), 3 * 10**9 if a // 2 == b // 2 else 10**8) for a in range(4) for b in range(4) if a != b),
    ),
    notes=("collectives: bus bytes",), facts={"labels": ["0", "1", "2", "3"]},
)  # fmt: skip
ARRIVALS = result(
    "arrivals", "How far apart ranks arrive", ("low_ns", "high_ns", "last_rank", "count", "skew_ns"),
    (0, 1_000, None, 4, 1_200), (0, 1_000, 1, 2, 600), (10_000, 17_783, 0, 30, 400_000),
    (10_000, 17_783, 3, 12, 150_000), (3_162_278, 5_623_413, 2, 18, 90_000_000),
)  # fmt: skip

BUBBLES = result(
    "bubbles", "Bubbles", ("stage", "bubble_ns", "schedule_ns", "stages_ns", "rank_ns", "rest_ns", "bubble_pct"),
    (0, 9_000_000, 5_000_000, 3_000_000, 800_000, 200_000, 45.0), (1, 4_000_000, 4_000_000, 0, 0, 0, 20.0),
)  # fmt: skip
_PASSES = (  # two stages, two micro-batches, 1F1B: recorded, the second stage takes twice as long
    ("recorded", 0, 4, "forward", 1, 1, 0, 1_000_000), ("recorded", 0, 4, "forward", 2, 1, 1_000_000, 1_000_000),
    ("recorded", 0, 4, "bubble", None, None, 2_000_000, 4_900_000),
    ("recorded", 0, 4, "transfer", None, None, 6_900_000, 100_000),
    ("recorded", 0, 4, "backward", 1, 1, 7_000_000, 2_000_000),
    ("recorded", 0, 4, "wait", None, None, 9_000_000, 2_000_000),
    ("recorded", 1, 6, "bubble", None, None, 0, 1_000_000), ("recorded", 1, 6, "forward", 1, 1, 1_000_000, 2_000_000),
    ("recorded", 1, 6, "backward", 1, 1, 3_000_000, 4_000_000),
    ("recorded", 1, 6, "forward", 2, 2, 7_000_000, 2_000_000),
    ("recorded", 1, 6, "other", None, None, 9_000_000, 2_000_000),
    ("ideal", 0, 4, "forward", 1, 1, 0, 1_500_000), ("ideal", 0, 4, "bubble", None, None, 1_500_000, 1_500_000),
    ("ideal", 0, 4, "backward", 1, 1, 3_000_000, 3_000_000), ("ideal", 1, 6, "bubble", None, None, 0, 1_500_000),
    ("ideal", 1, 6, "backward", 1, 1, 3_000_000, 3_000_000),
)  # fmt: skip
SCHEDULE = replace(
    result(
        "schedule_picture", "Pipeline schedule",
        ("schedule", "stage", "rank", "kind", "micro_batch", "chunk", "start_ns", "dur_ns"), *_PASSES,
    ),
    facts={"step": 3, "pipelines": 2, "is_slowest": True, "window_ns": {4: 11_000_000, 6: 11_000_000}},
)  # fmt: skip


RESULTS = {
    "lateness": LATENESS,
    "waits": WAITS,
    "traffic": TRAFFIC,
    "arrivals": ARRIVALS,
    "breakdown": BREAKDOWN,
    "kernels": KERNELS,
    "steps": STEPS,
    "steps-many": MANY_STEPS,
    "overlap": OVERLAP,
    "idle": IDLE,
    "memory": MEMORY,
    "memory.allocators": HELD,
    "roofline": ROOFLINE,
    "collectives": COLLECTIVES,
    "stragglers": STRAGGLERS,
    "ncu": NCU,
    "critical": CRITICAL,
    "sweep": SWEEP,
    "bubbles": BUBBLES,
    "schedule": SCHEDULE,
}
