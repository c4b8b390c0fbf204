"""Results as the analyses return them, with figures from real traces; every view is tested on these."""

from __future__ import annotations

from typing import Any

from rankscope.analysis.core.result import Column, Fact, Finding, Result, argv

_KERNELS: tuple[tuple[Any, ...], ...] = (
    # From tests/data/nsys/gpt-h200 (nsys stats -r cuda_gpu_kern_sum), and one NCCL kernel.
    (12.6, 6901364, 68, 101490.6, 86912.5, 25568, 630274, 135519.6, "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "COMPUTE"),  # noqa: E501
    (9.9, 5438925, 36, 151081.3, 83968.0, 83488, 688546, 192385.8, "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "COMPUTE"),  # noqa: E501
    (9.4, 5153709, 1176, 29282.4, 10240.0, 2080, 761602, 113036.9, "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const>(int, T1, T2)", "COMPUTE"),  # noqa: E501
    (6.8, 3741002, 24, 155875.1, 164448.0, 100545, 182752, 25582.3, "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::<unnamed>::FusedOptimizerTensorListMetadata<(int)4>, at::native::<unnamed>::FusedAdamMathFunctor<float, (int)4>>", "COMPUTE"),  # noqa: E501
    (5.4, 2965064, 4, 741266.0, 740994.0, 739810, 743266, 1497.6, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "COMM"),  # noqa: E501
    (1.7, 934658, 32, 29208.1, 29024.0, 28639, 30400, 455.8, "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2, const T1 *, const T1 *)", "COMPUTE"),  # noqa: E501
    (0.4, 203992, 196, 1040.8, 1024.0, 703, 2656, 287.2, "Memset (Device)", "COPY"),
    (0.003, 1631, 1, 1631.0, 1631.0, 1631, 1631, 0.0, "triton_poi_fused_add_mul_0|1`x`", "COMPUTE"),
)  # fmt: skip

KERNELS = Result(
    "kernels",
    "GPU kernels, by total time",
    "steps 3:5",
    (
        Column("time_pct", "percent", "share of the time of all kernels"),
        Column("total_ns", "ns", "sum of the durations"),
        Column("instances", "count"),
        Column("avg_ns", "ns"),
        Column("med_ns", "ns"),
        Column("min_ns", "ns"),
        Column("max_ns", "ns"),
        Column("stddev_ns", "ns", "n-1; 0 for one"),
        Column("name"),
        Column("class"),
    ),
    [
        dict(
            zip(
                ("time_pct", "total_ns", "instances", "avg_ns", "med_ns", "min_ns", "max_ns", "stddev_ns", "name", "class"),  # noqa: E501
                row,
                strict=True,
            )
        )
        for row in _KERNELS
    ],
    notes=("12 more rows not shown (--top 20 or --top all shows them)",),
)  # fmt: skip

_PARTS = (
    "span_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "exposed_wait_ns",
    "exposed_copy_ns",
    "idle_ns",
)
BREAKDOWN = Result(
    "breakdown",
    "Where the time went",
    "whole file",
    (
        Column("rank"),
        Column("step", help="null = the whole window"),
        *(Column(name, "ns") for name in _PARTS),
        Column("overlap_pct", "percent"),
    ),
    [
        {"rank": rank, "step": step, **dict(zip(_PARTS, parts, strict=True)), "overlap_pct": overlap}
        for rank, step, parts, overlap in (
            (0, None, (660551000, 115655800, 46876500, 39557700, 12345600, 2286500, 503051000), 15.61),
            (0, 3, (17214031, 5120007, 11300412, 11280002, 10500000, 2400, 811622), 0.1806),
            (1, None, (659002113, 117001200, 45100100, 38000100, 9000100, 2300100, 501700713), 15.7427),
            (2, None, (660004998, 660004998, 0, 0, 0, 0, 0), None),
        )
    ],
    findings=(
        Finding(
            "warning",
            "rank 2 made the others wait 11.3 ms a step, 66 % of it",
            facts=(
                Fact(
                    "example",
                    "It was last in 12 of 12 steps; its GPU computes 12.8 ms a step longer than the median rank's.",
                ),
            ),
            ranks=(2,),
            span=(1_000, 2_000),
            advice="Look at its kernels",
            command=argv("rankscope stats RUN -r kernels --by rank --ranks 2"),
        ),
        Finding("ok", "clocks agree within 12 µs (p95)", facts=(Fact("example", "From 48 collectives."),)),
    ),
    notes=(
        "3 GPU events left out: their launch is not in the file.",
        "Steps were inferred from the optimizer's calls; a profiler schedule would make them certain.",
    ),
)

_TIMES = ("self_host_ns", "total_host_ns", "self_device_ns", "total_device_ns")
OPS = Result(
    "ops",
    "Operators, by self device time",
    "whole file",
    (
        Column("name"),
        Column("calls", "count"),
        *(Column(name, "ns") for name in _TIMES),
        Column("flops", "flop"),
    ),
    [
        {"name": name, "calls": calls, **dict(zip(_TIMES, times, strict=True)), "flops": flops}
        for name, calls, times, flops in (
            ("aten::mm", 12288, (96_412_007, 121_500_990, 812_400_113, 812_400_113), 412_316_860_416_000),
            ("aten::_scaled_dot_product_flash_attention_backward", 768, (9_120_400, 31_004_112, 0, 118_960_004), None),
            ("autograd::engine::evaluate_function: MmBackward0", 6144, (40_100_020, 190_000_411, 0, 540_020_118), None),
            ("c10d::allreduce_", 64, (1_204_001, 1_904_021, 47_912_020, 47_912_020), None),
            ("训练步骤::前向传播", 12, (204_001, 904_021, 0, 0), 0),
        )
    ],
)  # fmt: skip

EMPTY = Result(
    "memory",
    "Allocated memory",
    "whole file",
    (Column("rank"), Column("peak_allocated_bytes", "bytes")),
    [],
    notes=("No [memory] events: record with profile_memory=True (rankscope profile --profile-memory).",),
)

SAMPLES = {result.name: result for result in (KERNELS, BREAKDOWN, OPS, EMPTY)}
