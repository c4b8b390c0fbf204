"""Hot kernels against brute force, and their ncu figures from a real report."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import DATA
from rankscope.analysis.efficiency.hot_kernels import hot_kernels, hot_kernels_measured
from rankscope.capture.kernel_list import HotKernel, KernelList, canonical_name, function_name
from rankscope.capture.ncu_selection import Selection, select
from rankscope.timeline.run import Run
from rankscope.tools import Launch

pytestmark = pytest.mark.usefixtures("without_workers")


def brute_force(path: Path) -> list[HotKernel]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    found: dict[tuple[str, tuple[int, ...], tuple[int, ...]], list[int]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "kernel" and not re.search("nccl", event["name"]):
            args = event["args"]
            key = (event["name"], tuple(args["grid"]), tuple(args["block"]))
            found[key].append(round(event["dur"] * 1000))
    kernels = [HotKernel(*key, len(times), sum(times)) for key, times in found.items()]
    return sorted(kernels, key=lambda kernel: (-kernel.total_ns, kernel.name))


@pytest.mark.slow
def test_by_total_time(open_real: Callable[[Path], Run]) -> None:
    [path] = (DATA / "gpt-h200-stack").glob("*.json.gz")
    expected = brute_force(path)
    run = open_real(path)
    chosen = hot_kernels(run, 5).kernels
    assert [kernel.total_ns for kernel in chosen] == [kernel.total_ns for kernel in expected[:5]]
    assert set(chosen) <= set(expected)
    most = max(kernel.calls for kernel in expected)
    assert hot_kernels(run, 1, "calls").kernels[0].calls == most


@pytest.mark.slow
def test_the_launches_of_one_step_in_their_order(open_real: Callable[[Path], Run]) -> None:
    """A real Trainer: the hot elementwise kernels come after launches of other sizes, in forward and backward."""
    [path] = (DATA / "hf-trainer-h200").glob("*.json.gz")
    listed = hot_kernels(open_real(path), 5)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    calls = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    step = next(
        event
        for event in events
        if event.get("name") == f"ProfilerStep#{listed.step}" and event["cat"] == "user_annotation"
    )
    functions = {function_name(kernel.name) for kernel in listed.kernels}
    kernels = [
        (calls[event["args"]["correlation"]], event)
        for event in events
        if event.get("cat") == "kernel" and function_name(event["name"]) in functions
    ]
    expected = [
        Launch(event["name"], tuple(event["args"]["grid"]), tuple(event["args"]["block"]))
        for called, event in sorted(kernels, key=lambda one: one[0])
        if step["ts"] <= called <= step["ts"] + step["dur"]
    ]
    assert list(listed.order) == expected
    chosen = select(listed, 5, by_size=True)
    met = chosen.profiled(listed.order)
    assert not listed.missed(met)
    assert len(met) < 100 < len(expected), "few others are profiled"


@pytest.mark.slow
def test_the_same_kernels_in_the_names_of_two_demanglers(
    dataset: Callable[[str], Path], open_real: Callable[[Path], Run]
) -> None:
    """One model recorded by torch, and by nsys, which spells names as ncu does."""
    [trace] = (DATA / "gpt-h200").glob("*.json.gz")
    listed = hot_kernels(open_real(trace), 30)
    names = open_real(dataset("nsys/gpt-h200/gpt.sqlite")).rows(
        "SELECT DISTINCT name FROM gpu WHERE class = 'COMPUTE'"
    )
    spelt = {canonical_name(name): name for (name,) in names}
    assert len(spelt) == len(names)
    alike = [kernel for kernel in listed.kernels if canonical_name(kernel.name) in spelt]
    assert len(alike) > 20
    for kernel in alike:
        launch = Launch(spelt[canonical_name(kernel.name)], kernel.grid, kernel.block)
        assert kernel.matches(launch)
        assert Selection((kernel,), 1, whole_names=True, take=1).profiled([launch]) == [launch]


@pytest.mark.slow
def test_ncu_beside_the_run(
    dataset: Callable[[str], Path], tmp_path: Path, open_real: Callable[[Path], Run]
) -> None:
    report = tmp_path / "rank-00000.ncu.csv"
    report.write_bytes(dataset("ncu/gemm_bf16.raw.csv").read_bytes())
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
    met = HotKernel(name, (2, 66, 1), (384, 1, 1), 10, 1_000_000)
    missed = met._replace(grid=(7, 7, 7))
    result = hot_kernels_measured(open_real(report), KernelList((met, missed)))
    first, second = result.rows
    assert (first["launches"], first["calls"], first["avg_ns"]) == (4, 10, 100_000)
    assert first["duration_ns"] == pytest.approx((101_184 + 91_840 + 75_680 + 26_944) / 4, rel=1e-3)
    assert first["compute_pct"] == pytest.approx((78.7 + 87.1 + 76.8 + 67.6) / 4, abs=0.1)
    assert first["flop_s"] == pytest.approx(697e12, rel=0.02)
    assert (second["launches"], second["duration_ns"], second["flop_s"]) == (0, None, None)
    assert "its 4 profiled launches have other sizes than grid 7x7x7" in result.notes[0]


@pytest.mark.slow
def test_twins_are_told_apart_by_their_whole_name(
    dataset: Callable[[str], Path], tmp_path: Path, open_real: Callable[[Path], Run]
) -> None:
    report = tmp_path / "rank-00000.ncu.csv"
    report.write_bytes(dataset("ncu/gemm_bf16.raw.csv").read_bytes())
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
    here = HotKernel(name, (2, 66, 1), (384, 1, 1), 1, 1)
    twin = here._replace(name=f"void space::{name}<(int)4>(P)")
    rows = hot_kernels_measured(open_real(report), KernelList((here, twin))).rows
    assert [row["launches"] for row in rows] == [4, 0]
