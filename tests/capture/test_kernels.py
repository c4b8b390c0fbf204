"""The list of kernels that travels to a job."""

import json
import re
from pathlib import Path

import pytest

from rankscope.capture.kernel_list import (
    HotKernel,
    KernelList,
    canonical_name,
    function_name,
    read_kernels,
    short_name,
    write_kernels,
)
from rankscope.capture.ncu_selection import (
    Selection,
    expected_launches,
    plan_text,
    select,
    select_again,
    why_missed,
)
from rankscope.errors import UsageError
from rankscope.tools import NCU_PASSES, Launch
from rankscope.units import format_ns

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


@pytest.mark.parametrize(
    ("torch", "nvidia"),
    [
        (
            "void at::native::unrolled<at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>, 4>(int, long)",
            "void at::native::unrolled<at::native::CUDAFunctor_add<float>, std::array<char *, (unsigned long)3>, "
            "(int)4>(int, T1)",
        ),
        (
            "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::copy_cuda("
            "at::Base&)::{lambda()#3}::operator()() const::{lambda()#12}::operator()() const::{lambda(c10::BFloat16)"
            "#1}>(at::Base&, "
            "at::native::copy_cuda(at::Base&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1} const&)"
            "::{lambda(int)#1}>(int, long)",
            "void at::native::elementwise_kernel<(int)128, (int)4, void at::native::gpu_kernel_impl_nocast<"
            "at::native::copy_cuda(at::Base &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 12)]"
            "::operator ()() const::[lambda(c10::BFloat16) (instance 1)]>(at::Base &, const T1 &)"
            "::[lambda(int) (instance 1)]>(int, T3)",
        ),
        (
            "void at::native::(anonymous namespace)::multi<Adam<float, 4, (at::native::ADAM_MODE)1, false>, float "
            "const*>(Adam<float, 4, (at::native::ADAM_MODE)1, false>, float const*)",
            "void at::native::<unnamed>::multi<Adam<float, (int)4, (at::native::ADAM_MODE)1, (bool)0>, const float *>"
            "(T1, T2...)",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul> >(int, at::native::AUnaryFunctor"
            "<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 2ul>)",
            # ncu 2025.3, which leaves out namespaces
            "void vectorized_elementwise_kernel<4, AUnaryFunctor<float, float, float, MulFunctor<float>>, "
            "array<char *, 2>>(int, T2, T3)",
        ),
    ],
)
def test_one_name_for_all_demanglers(torch: str, nvidia: str) -> None:
    assert canonical_name(torch) == canonical_name(nvidia)
    assert canonical_name(torch.replace("4", "5")) != canonical_name(nvidia)


def test_a_short_name() -> None:
    assert short_name(FILL.name) == "fill<4, Op<float> >"
    assert short_name("void at::native::(anonymous namespace)::norm<float const*>(int)") == "norm<float *>"


def test_what_ncu_is_told() -> None:
    pattern = Selection((GEMM, FILL, FILL._replace(grid=(9, 1, 1))), 1).pattern
    assert pattern == f"regex:^(?:{GEMM.name}|fill)$"
    assert re.match(pattern.removeprefix("regex:"), "fill")
    assert not re.match(pattern.removeprefix("regex:"), "fill_more")
    whole = re.compile(Selection((FILL,), 1, whole_names=True).pattern.removeprefix("regex:"))
    assert whole.fullmatch("void at::native::fill<(int)4, Op<float>>(int, T2)")
    assert not whole.fullmatch("void at::native::fill<(int)4, Mul<float>>(int, T2)")


def launch(kernel: HotKernel, *grid: int) -> Launch:
    return Launch(kernel.name, grid or kernel.grid, kernel.block)


# Six launches of other sizes, then the hot ones.
ORDER = (*[launch(FILL, 1, 1, 1)] * 6, launch(GEMM), *[launch(FILL)] * 3, launch(GEMM))


def test_the_shortest_stretch_of_a_step() -> None:
    listed = KernelList((GEMM, FILL), 2, ORDER)
    chosen = select(listed, 1, by_size=True)
    assert (chosen.step, chosen.by_size, chosen.skip, chosen.take) == (2, False, 6, 2)
    chosen = select(listed, 3, by_size=False)
    assert (chosen.skip, chosen.take) == (6, 5), "GEMM runs twice only"
    assert chosen.profiled(ORDER) == list(ORDER[6:])
    least = format_ns(round(NCU_PASSES["roofline"] * 5 * (1000 + 10) / 2), 2)
    assert f"at least {least} of kernel time" in plan_text(chosen, listed, "roofline")


def test_without_steps_nothing_can_be_skipped() -> None:
    listed = KernelList((GEMM, FILL), None, ORDER)
    chosen = select(listed, 1, by_size=True)
    assert (chosen.step, chosen.by_size, chosen.skip, chosen.take) == (None, True, 0, 1)
    assert len(chosen.profiled(ORDER)) == 3
    assert (select(listed, 1, by_size=False).skip, select(listed, 1, by_size=False).take) == (0, 8)


def test_fewer_launches_of_each_where_there_would_be_hundreds() -> None:
    order = tuple(
        one for _ in range(5) for one in (launch(GEMM), *[launch(FILL, 1, 1, 1)] * 90, launch(FILL))
    )
    listed = KernelList((GEMM, FILL), 0, order)
    assert select(listed, None, by_size=False).wanted == 3
    assert select(listed, 5, by_size=False).wanted == 5, "what was asked for"
    assert select(KernelList((GEMM,), 0, ORDER), None, by_size=True).wanted == 5


def test_the_second_attempt_is_wider() -> None:
    listed = KernelList((GEMM, FILL), 2, ORDER)
    first = select(listed, 1, by_size=True)
    second = select_again(listed, first, [FILL], [launch(GEMM)], by_size=True)
    assert (second.kernels, second.step, second.by_size) == ((FILL,), 2, True)
    third = select_again(listed, second, [FILL], [], by_size=True)
    assert (third.step, third.whole_names, third.take) == (None, False, 2)
    assert select_again(listed, first, [FILL], [], by_size=True).step is None, "no step was opened"
    assert not select_again(listed, first, [FILL], [], by_size=False).by_size
    assert select_again(KernelList((GEMM,)), first, [GEMM], [], by_size=True).take == 1
    many = tuple(launch(FILL, size, 1, 1) for size in range(150) for _ in range(10))
    wide = select_again(KernelList((FILL,), 2, (*many, launch(FILL))), first, [FILL], [], by_size=True)
    assert expected_launches(wide, many) <= 200


def test_what_was_missed_and_why() -> None:
    other = FILL._replace(name="void at::native::fill<4, Mul<float> >(int, Mul<float>)")
    met = [launch(FILL, 1, 1, 1), launch(GEMM)]
    assert KernelList((GEMM, FILL, other)).missed(met) == [FILL, other]
    assert why_missed(FILL, met) == "its 1 profiled launches have other sizes than grid 8x1x1, block 128x1x1"
    assert why_missed(other, met) == "the 1 profiled launches of fill have other template arguments"
    assert why_missed(GEMM, met[:1]).startswith("ncu met no launch of nvjet")


def test_template_arguments_in_an_unknown_spelling() -> None:
    """The function and the size are enough where the run had only one such kernel."""
    met = Launch("void at::native::fill<four, Op{float}>(int)", FILL.grid, FILL.block)
    assert not KernelList((GEMM, FILL), 2, ORDER).missed([met, launch(GEMM)])
    twin = launch(FILL)._replace(name="void at::native::fill<4, Mul<float> >(int, Mul<float>)")
    assert KernelList((FILL,), 2, (*ORDER, twin)).missed([met]) == [FILL]
    assert KernelList((FILL,)).missed([met]) == [FILL], "the run's kernels are not known"


def test_there_and_back(tmp_path: Path) -> None:
    listed = KernelList((GEMM, FILL), 3, ORDER)
    write_kernels(tmp_path / "k.json", listed, "run")
    assert read_kernels(tmp_path / "k.json") == listed
    assert read_kernels(tmp_path / "k.json").top(1).kernels == (GEMM,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"kernels": [{"name": "a"}]}',
        '{"kernels": 3}',
        '{"kernels": [], "order": [0]}',
        '{"kernels": [3]}',
    ],
)
def test_what_is_no_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "k.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        read_kernels(tmp_path / "k.json")
    assert "--kernels-out" in caught.value.hint


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    write_kernels(tmp_path / "k.json", KernelList((FILL,)), "run")
    value = json.loads((tmp_path / "k.json").read_text())
    assert value["kernels"][0]["grid"] == [8, 1, 1]
