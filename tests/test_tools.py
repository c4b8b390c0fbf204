"""The command lines of nsys and ncu, and what their output says."""

from pathlib import Path

import pytest

from rankscope import tools
from rankscope.errors import ToolError
from rankscope.tools import NcuOptions, NsysOptions

APP = ["python", "train.py"]
NSYS_START = "nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --wait=primary --kill=none"


def nsys(**options: object) -> str:
    return " ".join(tools.nsys_profile("nsys", NsysOptions(**options), Path("r/rank-00003.nsys-rep"), APP))  # type: ignore[arg-type]


def ncu(**options: object) -> str:
    return " ".join(tools.ncu_profile("ncu", NcuOptions(**options), Path("r/rank-00003.ncu-rep"), None, APP))  # type: ignore[arg-type]


def test_what_a_training_job_gets_by_default() -> None:
    assert nsys() == f"{NSYS_START} --output=r/rank-00003.nsys-rep python train.py"
    assert ncu(launch_count=32) == (
        "ncu --set=roofline --kernel-name-base=function "
        "--kernel-name=regex:^(?!.*(nccl|rccl|oneccl|msccl|nvshmem|cross_device_reduce)) --launch-count=32 "
        "--clock-control=base --export=r/rank-00003.ncu-rep python train.py"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capture_range": "cudaProfilerApi"}, "--capture-range=cudaProfilerApi --capture-range-end=stop"),
        (
            {"capture_range": "cudaProfilerApi", "captures": 3},
            "--capture-range=cudaProfilerApi --capture-range-end=repeat:3",
        ),
        (
            {"capture_range": "cudaProfilerApi", "captures": 0},
            "--capture-range=cudaProfilerApi --capture-range-end=repeat",
        ),
        (
            {"capture_range": "nvtx:step@train"},
            "--capture-range=nvtx --capture-range-end=stop --nvtx-capture=step@train",
        ),
        ({"delay_s": 30, "duration_s": 10}, "--delay=30 --duration=10"),
        ({"gpu_metrics_device": "all"}, "--gpu-metrics-device=all"),
        (
            {"cuda_memory_usage": True, "nic_metrics": True, "run_as": "ada", "overwrite": True},
            "--cuda-memory-usage=true --nic-metrics=true --run-as=ada --force-overwrite=true",
        ),
        ({"extra": ("--cudabacktrace=all",)}, "--cudabacktrace=all"),
    ],
)
def test_nsys_in_its_own_words(options: dict[str, object], words: str) -> None:
    assert nsys(**options) == f"{NSYS_START} {words} --output=r/rank-00003.nsys-rep python train.py"


def test_samples_bring_their_own_context_switches() -> None:
    assert "--sample=process-tree --wait" in nsys(sample="process-tree")


def test_ncu_in_its_own_words() -> None:
    line = ncu(kernels="regex:gemm", set="full", clock_control="none", ranged=True, overwrite=True)
    assert line == (
        "ncu --set=full --kernel-name-base=function --kernel-name=regex:gemm --clock-control=none "
        "--profile-from-start=off --force-overwrite --export=r/rank-00003.ncu-rep python train.py"
    )


def test_names_are_final() -> None:
    words = tools.nsys_profile("nsys", NsysOptions(), Path("run%h/%q{X}"), APP)
    assert "--output=run%%h/%%q{X}" in words


def test_unregistered_names_open_an_nvtx_range() -> None:
    assert tools.nsys_environment(NsysOptions(capture_range="nvtx:a")) == {
        "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"
    }
    assert tools.nsys_environment(NsysOptions(capture_range="cudaProfilerApi")) == {}


def test_does_nsys_ask_for_root(tmp_path: Path) -> None:
    answer = "Root privilege: disabled\nCPU Profiling Environment{}: {}\n"

    def refuses(scope: str, outcome: str) -> bool:
        program = tmp_path / "nsys"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer.format(scope, outcome)}\nEND\n")
        program.chmod(0o755)
        return tools.refuses_cpu_profiling(str(program), "process-tree")

    assert refuses(" (process-tree)", "Fail")
    assert not refuses(" (system-wide)", "Fail")
    assert not refuses(" (process-tree)", "OK")
    assert refuses("", "Fail"), "an older version"
    assert tools.refuses_cpu_profiling(str(tmp_path / "none"), "process-tree"), "no answer"


@pytest.mark.parametrize(
    ("extra", "gone", "kept"),
    [
        (("--wait=all",), ["--wait=primary"], ["--kill=none"]),
        (("--sample=cpu",), ["--sample=none", "--cpuctxsw=none"], ["--trace=cuda,nvtx"]),
        (("-s", "process-tree"), ["--sample=none", "--cpuctxsw=none"], []),
        (("-scpu",), ["--sample=none", "--cpuctxsw=none"], []),
        (("--sample=none",), [], ["--cpuctxsw=none"]),
        (("--capture-range=nvtx",), ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"], []),
        (
            ("--capture-range-end=repeat:2",),
            ["--capture-range-end=stop"],
            ["--capture-range=cudaProfilerApi"],
        ),
        (("-t", "cuda"), ["--trace=cuda,nvtx"], ["--sample=none"]),
    ],
)
def test_an_argument_of_the_user_replaces_ours(
    extra: tuple[str, ...], gone: list[str], kept: list[str]
) -> None:
    """nsys refuses two of a kind: "option '--sample' cannot be specified more than once"."""
    words = nsys(capture_range="cudaProfilerApi", extra=extra).split()
    assert not set(gone) & set(words)
    assert {*kept, *extra} <= set(words)


def test_an_argument_of_the_user_replaces_ours_for_ncu() -> None:
    words = ncu(launch_count=3, extra=("-c", "7", "--set", "full", "--clock-control=none")).split()
    assert not {"--launch-count=3", "--set=roofline", "--clock-control=base"} & set(words)
    assert "--kernel-name-base=function" in words


def test_a_tool_that_is_not_there_is_an_error_in_three_parts() -> None:
    with pytest.raises(ToolError) as caught:
        tools.find_tool("ncu", "/no/such/ncu")
    assert (caught.value.message, caught.value.why) == (
        "cannot find /no/such/ncu",
        "There is no such program.",
    )
    assert "--ncu PATH" in caught.value.hint


NCU_LOG = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Profiling "nvjet_sm90_tst" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "gemm" - 1: 0%....50%....100% - 10 passes
==PROF== Disconnected from process 4242
"""
NCU_NOTHING = """\
==PROF== Connected to process 4242 (/usr/bin/python3.12)
==PROF== Disconnected from process 4242
==WARNING== No kernels were profiled.
Available Kernels:
1. distribution_elementwise_grid_stride_kernel
2. nvjet_sm90_tst
"""


def test_what_ncu_says() -> None:
    assert tools.read_ncu_log(NCU_LOG).profiled == (("nvjet_sm90_tst", 9), ("gemm", 10))
    heard = tools.read_ncu_log(NCU_NOTHING)
    assert heard.available == ("distribution_elementwise_grid_stride_kernel", "nvjet_sm90_tst")
    assert tools.read_ncu_log("==ERROR== ERR_NVGPUCTRPERM\n").errors == ("==ERROR== ERR_NVGPUCTRPERM",)
