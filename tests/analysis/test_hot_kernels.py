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
from rankscope.capture.kernel_list import HotKernel
from rankscope.store.run import Run


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


def test_by_total_time(open_real: Callable[[Path], Run]) -> None:
    [path] = (DATA / "gpt-h200-stack").glob("*.json.gz")
    expected = brute_force(path)
    chosen = hot_kernels(open_real(path), 5)
    assert [kernel.total_ns for kernel in chosen] == [kernel.total_ns for kernel in expected[:5]]
    assert set(chosen) <= set(expected)


def test_ncu_beside_the_run(
    dataset: Callable[[str], Path], tmp_path: Path, open_real: Callable[[Path], Run]
) -> None:
    report = tmp_path / "rank-00000.ncu.csv"
    report.write_bytes(dataset("ncu/gemm_bf16.raw.csv").read_bytes())
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
    met = HotKernel(name, (2, 66, 1), (384, 1, 1), 10, 1_000_000)
    missed = met._replace(grid=(7, 7, 7))
    result = hot_kernels_measured(open_real(report), [met, missed])
    first, second = result.rows
    assert (first["launches"], first["calls"], first["avg_ns"]) == (4, 10, 100_000)
    assert first["duration_ns"] == pytest.approx((101_184 + 91_840 + 75_680 + 26_944) / 4, rel=1e-3)
    assert first["compute_pct"] == pytest.approx((78.7 + 87.1 + 76.8 + 67.6) / 4, abs=0.1)
    assert first["flop_s"] == pytest.approx(697e12, rel=0.02)
    assert (second["launches"], second["duration_ns"], second["flop_s"]) == (0, None, None)
    assert "measured no launch" in result.notes[0]


def test_twins_are_told_apart_by_their_whole_name(
    dataset: Callable[[str], Path], tmp_path: Path, open_real: Callable[[Path], Run]
) -> None:
    report = tmp_path / "rank-00000.ncu.csv"
    report.write_bytes(dataset("ncu/gemm_bf16.raw.csv").read_bytes())
    name = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT"
    here = HotKernel(name, (2, 66, 1), (384, 1, 1), 1, 1)
    twin = here._replace(name=f"void space::{name}<(int)4>(P)")
    assert [row["launches"] for row in hot_kernels_measured(open_real(report), [here, twin]).rows] == [4, 0]
