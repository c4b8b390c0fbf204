from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.text.names import applied_function, bare_name, shorten_name, shorten_names, shown_parts
from rankscope.units import display_width

SHORT_NAMES = Path(__file__).with_name("short_names.json")
"""Real names and what is shown of them in some widths."""
FILL = "void at::native::fill<float>(int, T2)"
GATHER = "void at::native::(anonymous namespace)::gather<int, long>(int)"
GELU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)"
    "::{lambda()#2}::operator()() const::{lambda(c10::BFloat16)#1}, std::array<char*, 2ul> >(int)"
)
SCALE = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::BUnaryFunctor<float, "
    "at::native::binary_internal::MulFunctor<float> > > >(int)"
)
GEMV = "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, float>(T13)"
GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{}_tn_align8>(typename T1::Params)"
)
LONG = "implicit_convolve_sgemm_" * 4


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (FILL, "fill"),
        (GATHER, "gather"),
        ("void at::native::<unnamed>::gather<int, long>(int)", "gather"),
        (GELU, "vectorized_elementwise_kernel…GeluCUDAKernelImpl"),
        (SCALE, "elementwise_kernel…MulFunctor"),
        (GEMM.format("64x64"), "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_tn_align8"),
        ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<x, 1> >(T)", "FlashAttnFwdSm90"),
        (GEMV, "kernel"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("vadd(float *, int)", "vadd"),
        ("aten::convolution_backward", "convolution_backward"),
        ("autograd::engine::evaluate_function: MmBackward0", "MmBackward0"),
        ("c10d::allreduce_", "allreduce_"),
    ],
)
def test_what_says_nothing_is_left_out(name: str, shown: str) -> None:
    assert shorten_names([name]) == [shown]
    assert bare_name(name) + "…" * bool(applied_function(name)) + applied_function(name) == shown


@pytest.mark.parametrize(
    "text",
    [
        "Memcpy HtoD (Pageable -> Device)",
        "train.py(42): forward",
        "<built-in method run_backward of torch._C object at 0x7f>",
        "ops: aten::mm",
        "rank 3 waits for aten::mm in all_reduce",
        "all_reduce(sum)",
        "p<0.05",
        "::",
        "at::native::",
        "nn.Module: Linear_0",
        "",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert shorten_names([text]) == [text]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("short", 10, "short"),
        (GELU, 40, "vectorized_elementwise_k…uCUDAKernelImpl"),
        (GELU, 8, "vecto…pl"),
        ("Memcpy HtoD (Pageable -> Device)", 20, "Memcpy HtoD …Device)"),
        ("some/long/path/train.py(1234)", 20, "some/long/pa…y(1234)"),
        ("abcdefghij", 3, "ab…"),
        ("abcdefghij", 0, ""),
        ("abcdefghij", -3, ""),
    ],
)
def test_shorten_name(name: str, width: int, shown: str) -> None:
    assert shorten_name(name, width) == shown


COLUMNS = [
    pytest.param(
        ["f<c10::BFloat16, 1>(int)", "f<float, 1>(int)"], None, ["f…BFloat16", "f…float"], id="an argument"
    ),
    pytest.param(
        ["f<int, 1, 5>(int)", "f<int, 2, 5>(int)", "f<int, 2, 6>(int)"],
        None,
        ["f…1", "f…2…5", "f…2…6"],
        id="the first difference, and for the rest the next one",
    ),
    pytest.param(["aten::add", "add"], None, ["aten::add", "add"], id="the namespace"),
    pytest.param(["a::b::f<x>", "a::c::f<x>"], None, ["b::f", "c::f"], id="within the namespace"),
    pytest.param(["void f<x>(int)", "void f<x>(float)"], None, ["f…int", "f…float"], id="the parameters"),
    pytest.param(
        ["f<x>(int)", "f<x>(int) [clone .kd]"], None, ["f", "f…clone"], id="one is the beginning of the other"
    ),
    pytest.param(
        [GEMM.format("256x128_64x3"), GEMM.format("128x256_64x3")],
        44,
        ["cutlass_80_tensorop_bf16_s…28_64x3_tn_align8", "cutlass_80_tensorop_bf16_s…56_64x3_tn_align8"],
        id="in the middle",
    ),
    pytest.param(
        [f"{LONG}tn", f"{LONG}nt"],
        24,
        ["implicit_convo…_sgemm_tn", "implicit_convo…_sgemm_nt"],
        id="at the end",
    ),
    pytest.param(
        [f"a_{LONG}", f"b_{LONG}"],
        24,
        ["a_implicit_con…ve_sgemm_", "b_implicit_con…ve_sgemm_"],
        id="at the beginning",
    ),
    pytest.param(
        [f"{LONG}1{LONG}", f"{LONG}2{LONG}"],
        24,
        ["implic…emm_1implicit_co…", "implic…emm_2implicit_co…"],
        id="far inside",
    ),
    pytest.param(["same" * 20, "same" * 20], 10, ["samesa…ame"] * 2, id="equal names stay equal"),
]


@pytest.mark.parametrize(("names", "width", "shown"), COLUMNS)
def test_names_are_cut_where_they_stop_differing(
    names: list[str], width: int | None, shown: list[str]
) -> None:
    assert shorten_names(names, width) == shown


def test_verbatim_texts_are_cut_only_to_the_width() -> None:
    assert shorten_names([FILL, "aten::mm"], None, verbatim=True) == [FILL, "aten::mm"]
    assert shorten_names([FILL], 12, verbatim=True) == ["void at…, T2)"[:7] + "…" + FILL[-4:]]


def test_real_names() -> None:
    """After a change that is meant: RANKSCOPE_UPDATE_GOLDEN=1, then read the diff, and run tests/viewer/check-js.sh."""
    case = json.loads(SHORT_NAMES.read_text())
    shown = {width: shorten_names(case["names"], int(width)) for width in case["shown"]}
    if os.environ.get("RANKSCOPE_UPDATE_GOLDEN"):
        SHORT_NAMES.write_text(json.dumps(case | {"shown": shown}, indent=0, ensure_ascii=False) + "\n")
    else:
        assert shown == case["shown"]


@given(st.text(), st.integers(0, 60))
def test_shorten_name_never_exceeds_the_width(name: str, width: int) -> None:
    assert display_width(shorten_name(name, width)) <= width


C_PLUS_PLUS = st.lists(
    st.sampled_from(
        ["void ", "at::", "native::", "f", "kernel", "<", ">", "(", ")", ", ", "int", "4", "float", " "]
    ),
    max_size=12,
).map("".join)


@given(st.lists(st.one_of(C_PLUS_PLUS, st.text(max_size=12)), max_size=6, unique=True))
def test_different_names_stay_different(names: list[str]) -> None:
    assert len(set(shorten_names(names))) == len(names)


@given(
    st.text("abcdef_<>:", max_size=80),
    st.lists(st.text("0123456789", min_size=1, max_size=4), min_size=2, max_size=5, unique=True),
    st.text("uvwxyz_<>(", max_size=80),
    st.integers(16, 60),
)
def test_names_with_one_difference_stay_different(
    beginning: str, middles: list[str], end: str, width: int
) -> None:
    names = [beginning + middle + end for middle in middles]
    shown = shorten_names(names, width)
    assert len(set(shown)) == len(names)
    assert all(display_width(text) <= width for text in shown)


@given(st.lists(st.one_of(C_PLUS_PLUS, st.text(max_size=60)), max_size=6), st.integers(0, 40))
def test_shortened_names_are_made_of_the_names_own_parts(names: list[str], width: int) -> None:
    for name, kept, shown in zip(names, shown_parts(names, width), shorten_names(names, width), strict=True):
        indices = [index for part in kept for index in part]
        assert indices == sorted(indices) and all(0 <= index <= len(name) for index in indices)
        assert shown.strip("…") == "…".join(name[begin:end] for begin, end in kept).strip("…")
        assert display_width(shown) <= width
