from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.units import display_width
from rankscope.views.text import clean, hang, pad, shorten_name, shorten_names, shown_parts, wrap


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("short", 10, "short"),
        ("void at::native::fill<float>(int, T2)", 40, "void at::native::fill<float>(int, T2)"),
        ("void at::native::fill<float>(int, T2)", 20, "…fill<float>…"),
        ("void at::native::(anonymous namespace)::gather<int, long>(int)", 24, "…gather<int, long>…"),
        ("void at::native::<unnamed>::gather<int, long>(int)", 24, "…gather<int, long>…"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args<4096ul>)",
            45,
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL…",
        ),
        ("Memcpy HtoD (Pageable -> Device)", 20, "Memcpy HtoD …Device)"),
        ("aten::convolution_backward", 24, "…convolution_backward"),
        ("some/long/path/train.py(1234)", 20, "some/long/pa…y(1234)"),
        ("at::native::", 8, "at::n…::"),
        ("abcdefghij", 3, "ab…"),
        ("abcdefghij", 0, ""),
    ],
)
def test_shorten_name(name: str, width: int, shown: str) -> None:
    assert shorten_name(name, width) == shown


@given(st.text(), st.integers(0, 60))
def test_shorten_name_never_exceeds_the_width(name: str, width: int) -> None:
    shown = shorten_name(name, width)
    assert display_width(shown) <= width
    assert shown == name or "…" in shown or not width


@given(st.text())
def test_clean_is_printable_and_settled(text: str) -> None:
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert clean(cleaned) == cleaned


@given(st.text().map(clean), st.integers(2, 40))
def test_wrap_loses_no_word(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert all(display_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(text.split())


def test_hang() -> None:
    assert hang("· ", "one two three", 9) == ["· one two", "  three"]
    assert hang("· ", "", 9) == []


@pytest.mark.parametrize(("text", "cells"), [("abc", 3), ("训练", 4), ("e\u0301", 1), ("…µ─", 3)])
def test_display_width(text: str, cells: int) -> None:
    assert display_width(text) == cells
    assert display_width(pad(text, 8, right=True)) == display_width(pad(text, 8, right=False)) == 8


GEMM = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_{}_tn_align8>(typename T1::Params)"
)
LONG = "implicit_convolve_sgemm_" * 4


@pytest.mark.parametrize(
    ("names", "width", "shown"),
    [
        pytest.param(
            [GEMM.format("256x128_64x3"), GEMM.format("128x256_64x3")],
            44,
            ["…Kernel2<cu…lu_bf16_256x128_64x3_tn_align8>…", "…Kernel2<cu…lu_bf16_128x256_64x3_tn_align8>…"],
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
            [f"one::f<{LONG}>(int)", f"two::f<{LONG}>(int)"],
            24,
            ["one::f<implici…mm_>(int)", "two::f<implici…mm_>(int)"],
            id="in the namespace, which is cut first",
        ),
        pytest.param(
            [f"void f<{LONG}>(int)", f"void f<{LONG}>(float)"],
            24,
            ["void f<implici…mm_>(int)", "void f<implici…_>(float)"],
            id="in the parameters, which are cut first",
        ),
        pytest.param(["same" * 20, "same" * 20], 10, ["samesa…ame"] * 2, id="equal names stay equal"),
    ],
)
def test_names_that_differ_look_different(names: list[str], width: int, shown: list[str]) -> None:
    assert shorten_names(names, width) == shown


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


@given(st.lists(st.text(max_size=60), max_size=6), st.integers(0, 40))
def test_shortened_names_are_made_of_the_names_own_parts(names: list[str], width: int) -> None:
    for name, kept, shown in zip(names, shown_parts(names, width), shorten_names(names, width), strict=True):
        places = [place for part in kept for place in part]
        assert places == sorted(places) and all(0 <= place <= len(name) for place in places)
        assert display_width(shown) <= width
