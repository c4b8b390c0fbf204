"""Level of detail against brute force: nothing that can be seen is missing, and the counts add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.viewer.answers import KINDS
from rankscope.viewer.lanes import BLOCK, buckets, build_pyramid, with_families

lane = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1, max_size=300)


@pytest.mark.slow
@given(lane, st.integers(-50, 600), st.integers(1, 64), st.integers(1, 40), st.integers(0, 20))
def test_against_brute_force(
    gaps: list[tuple[int, int]], begin: int, step: int, width: int, before: int
) -> None:
    """Slices of random gaps and lengths; `before` others stand before the lane in the table."""
    starts, now = [], 0
    for gap, size in gaps:
        starts.append(now + gap)
        now += gap + size
    durations = [size for _, size in gaps]
    start = np.array([0] * before + starts, dtype=np.int64)
    duration = np.array([999] * before + durations, dtype=np.int64)
    found = buckets(start, duration, build_pyramid(duration), [(before, len(start))], begin, step, width)

    expected: dict[int, list[int]] = {}
    for index in range(before, len(start)):
        pixel = (start[index] - begin) // step
        if 0 <= pixel < width:
            expected.setdefault(int(pixel), []).append(index)
    inside = found.longest[start[found.longest] >= begin]
    reaching = [i for i in range(before, len(start)) if start[i] < begin < start[i] + duration[i]]
    assert found.longest[len(inside) :].tolist() == reaching
    assert found.count[: len(inside)].tolist() == [len(members) for members in expected.values()]
    assert inside.tolist() == [max(members, key=lambda i: (duration[i], -i)) for members in expected.values()]


def test_every_visible_slice_of_a_large_lane_is_drawn() -> None:
    random = np.random.default_rng(3)
    duration = random.integers(1, 2000, 200_000)
    start = np.cumsum(duration + random.integers(0, 50, len(duration))) - duration
    levels = build_pyramid(duration)
    assert [len(level) for level in levels] == [12_500, 782, 49, 4] and BLOCK == 16
    for step, width in ((1 << 17, 1600), (1 << 10, 1600), (1 << 24, 20)):
        found = buckets(start, duration, levels, [(0, len(start))], 0, step, width)
        shown = set(found.longest.tolist())
        window = start < step * width
        assert found.count.sum() == window.sum()
        assert set(np.flatnonzero(window & (duration >= step)).tolist()) <= shown


def test_lanes_together_are_what_they_are_alone() -> None:
    random = np.random.default_rng(5)
    duration = random.integers(0, 90, 30_000)
    start = np.cumsum(duration + random.integers(0, 9, len(duration))) - duration
    levels = build_pyramid(duration)
    spans = [(0, 7_000), (7_000, 7_001), (7_001, 7_001), (7_001, 30_000)]
    together = buckets(start, duration, levels, spans, 200_000, 512, 700)
    for place, span in enumerate(spans):
        alone = buckets(start, duration, levels, [span], 200_000, 512, 700)
        mine = together.lane == place
        assert together.longest[mine].tolist() == alone.longest.tolist()
        assert together.count[mine].tolist() == alone.count.tolist()


@pytest.mark.parametrize(
    ("kind", "name", "coloured"),
    [
        ("compute", "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT", "gemm"),
        ("compute", "void pytorch_flash::flash_fwd_kernel<x>(T)", "attention"),
        ("compute", "void at::native::vectorized_layer_norm_kernel<float>(int)", "normalisation"),
        ("compute", "void at::native::vectorized_elementwise_kernel<4, F>(int)", "elementwise"),
        ("compute", "void at::native::multi_tensor_apply_kernel<M, F>(M)", "optimizer"),
        ("compute", "my_kernel", "kernel"),
        ("op", "aten::addmm", "gemm-host"),
        ("op", "autograd::engine::evaluate_function: MmBackward0", "gemm-host"),
        ("op", "aten::scaled_dot_product_attention", "attention-host"),
        ("op", "aten::native_layer_norm", "normalisation-host"),
        ("op", "aten::mul_", "elementwise-host"),
        ("op", "aten::_fused_adamw_", "optimizer-host"),
        ("op", "c10d::allreduce_", "comm-host"),
        ("op", "aten::view", "op"),
        ("comm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args)", "comm"),
        ("python", "matmul", "python"),
    ],
)
def test_kernels_and_ops_have_the_hue_of_their_family(kind: str, name: str, coloured: str) -> None:
    kinds = np.array([KINDS.index("copy"), KINDS.index(kind)], dtype=np.uint8)
    shown = with_families(kinds, np.array([0, 1], dtype=np.int32), ["Memcpy", name])
    assert [KINDS[number] for number in shown.tolist()] == ["copy", coloured]
