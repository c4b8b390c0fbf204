"""The list of kernels that travels to a job."""

import json
import re
from pathlib import Path

import pytest

from rankscope.capture.kernel_list import (
    HotKernel,
    function_name,
    kernel_filter,
    read_kernels,
    replay_ns,
    write_kernels,
)
from rankscope.errors import UsageError

GEMM = HotKernel("nvjet_sm90_tst_256x128_h_bz_coopA_TNT", (2, 66, 1), (384, 1, 1), 4, 4000)
FILL = HotKernel("void at::native::fill<4, Op<float> >(int, Op<float>)", (8, 1, 1), (128, 1, 1), 10, 100)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("nvjet_sm90_tst_256x128_h_bz_coopA_TNT", "nvjet_sm90_tst_256x128_h_bz_coopA_TNT"),
        (
            "void at::native::vectorized<4, at::native::Add<float>, std::array<char*, 3ul> >(int, Add)",
            "vectorized",
        ),
        (
            "void at::native::(anonymous namespace)::layer_norm<float, float>(int, float, float const*)",
            "layer_norm",
        ),
        (
            "void at::native::<unnamed>::multi_tensor_apply_kernel<A<(int)4>>(T1, T2)",
            "multi_tensor_apply_kernel",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_128x128>(cutlass_80_tensorop_128x128::Params)",
            "Kernel2",
        ),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(P<int>)", "kernel"),
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllGather_RING_LL",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("(", "("),
        ("", ""),
    ],
)
def test_the_function_of_a_kernel(name: str, function: str) -> None:
    assert function_name(name) == function


def test_what_ncu_is_told() -> None:
    pattern = kernel_filter([GEMM, FILL, FILL._replace(grid=(9, 1, 1))])
    assert pattern == f"regex:^({GEMM.name}|fill)$"
    assert re.match(pattern.removeprefix("regex:"), "fill")
    assert not re.match(pattern.removeprefix("regex:"), "fill_more")


def test_there_and_back(tmp_path: Path) -> None:
    write_kernels(tmp_path / "k.json", [GEMM, FILL], "run")
    assert read_kernels(tmp_path / "k.json") == [GEMM, FILL]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"kernels": [{"name": "a"}]}', '{"kernels": 3}', '{"kernels": [3]}']
)
def test_what_is_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "k.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_kernels(tmp_path / "k.json")
    assert "--kernels-out" in caught.value.hint


def test_the_least_it_takes() -> None:
    from rankscope.tools import NCU_PASSES

    assert replay_ns([GEMM], "roofline", 2) == NCU_PASSES["roofline"] * 2 * 1000
    assert replay_ns([GEMM], "roofline", 100) == NCU_PASSES["roofline"] * 4 * 1000, (
        "it is launched four times"
    )


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    write_kernels(tmp_path / "k.json", [FILL], "run")
    value = json.loads((tmp_path / "k.json").read_text())
    assert value["kernels"][0]["grid"] == [8, 1, 1]
